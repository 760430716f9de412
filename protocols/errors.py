"""Errors of listeners and of the state directory, which commands report without loading what raises them."""

from typing import Final

from storage import engines

STORE: Final = engines.STORE


class ListenerError(Exception):
    """A listener cannot be opened. The text names it and its address."""


class StateError(Exception):
    """The state directory cannot be used. The text is one line for the operator."""


class StateInUseError(StateError):
    """Another process uses this state directory."""
