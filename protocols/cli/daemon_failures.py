"""The exit statuses of the daemon's errors (reference 27.1)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from broker.cluster.fenced import FencedError, ReplacedError
from broker.errors import DomainError, ValidationFailed
from config.loading import SettingsError
from protocols.cli.failures import CommandError, leaves
from protocols.control.client import ControlFailedError
from protocols.errors import ListenerError, StateError
from storage.sql import StoreError

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (SettingsError, 2),
    (ListenerError, 3),
    (StateError, 4),
    (StoreError, 4),
    (ReplacedError, 6),
    (FencedError, 5),
    (ControlFailedError, 1),
    (DomainError, 1),
)


@contextmanager
def failures_reported(*, about: Path | None = None) -> Iterator[None]:
    """Turn an error that an operator can act on into a CommandError; any other error is a bug and keeps its traceback.

    Args:
        about: the file that validation findings are about.
    """
    try:
        yield
    except Exception as error:  # trio wraps errors in groups; what is not explained is raised again
        for leaf in leaves(error):
            if isinstance(leaf, CommandError):
                raise leaf from error
            if isinstance(leaf, msgspec.ValidationError):  # of an answer, which only another version makes
                raise CommandError(
                    f"the answer of the running daemon cannot be read ({leaf}): it is of another version than this"
                    " program. Restart the daemon, or use its own program"
                ) from error
            for kind, status in _STATUSES:
                if isinstance(leaf, kind):
                    first, *others = _lines(leaf, about)
                    raise CommandError(first, status, more=others) from error
        raise


def _lines(error: BaseException, about: Path | None) -> list[str]:
    """One line for each finding."""
    if isinstance(error, SettingsError):
        return [str(error), *error.others]
    if not isinstance(error, ValidationFailed) or not error.findings:
        return [str(error)]
    place = "" if about is None else f"{about}: "
    return [f"{place}{finding.field}: {', '.join(finding.messages)}" for finding in error.findings]
