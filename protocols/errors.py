"""Errors of listeners and of the state directory, which commands report without loading what raises them."""

from typing import TYPE_CHECKING, Final

from storage import engines

if TYPE_CHECKING:
    from config.settings import Settings

STORE: Final = engines.STORE


class ListenerError(Exception):
    """A listener cannot be opened. The text names it and its address."""


class StateError(Exception):
    """The state directory cannot be used. The text is one line for the operator."""


class StateInUseError(StateError):
    """Another process uses this state directory."""


def require_store(settings: "Settings") -> None:
    """For a command that begins no store. Raises StateError: there is none. StoreError: the server cannot be asked."""
    if not engines.has_store(settings):
        where = engines.engine_of(settings) if settings.storage.is_postgresql else settings.state_dir
        raise StateError(f"{where}: there is no store")
