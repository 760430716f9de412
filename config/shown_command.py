"""Commands as texts show them: each runs as it is shown, in a shell of this machine, on the same state directory.

A text may come from anywhere, also from the store, which has no settings. Therefore what they share is of the process,
as its arguments and its environment are: the command line sets it, and a process without one shows the bare name.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NAME: Final = "trunkline"
#: Where every shell of every user looks.
_USUAL: Final = "/usr/local/bin:/usr/bin"
_STATE: Final = "TRUNKLINE_STATE_DIR"
_own: dict[str, str] = {}


@contextmanager
def commands_of_this_program() -> Iterator[None]:
    """While the block lasts, commands are shown with the path of this program, and with its configuration."""
    former = dict(_own)
    _own.update(program=_program(), configuration="", state=os.environ.get(_STATE, ""))
    try:
        yield
    finally:
        _own.clear()
        _own.update(former)


def with_configuration(path: Path | None) -> None:
    """The configuration file of this process."""
    if _own:
        _own["configuration"] = "" if path is None else str(path.absolute())


def with_state(directory: Path) -> None:
    """The state directory, of a process that has it neither from a file nor from the environment."""
    if _own:
        _own["state"] = str(directory.absolute())


def shown_program() -> str:
    """How the program is called, quoted for a shell."""
    return shlex.quote(_own.get("program", _NAME))


def around_command() -> tuple[str, str]:
    """The text before and behind the words of a command that works on the state directory."""
    state, configuration = _own.get("state", ""), _own.get("configuration", "")
    before = f"{_STATE}={shlex.quote(state)} " if state else ""
    return before + shown_program(), f" --config {shlex.quote(configuration)}" if configuration else ""


def shown_command(words: str) -> str:
    """`trunkline WORDS`, for a command that works on the state directory."""
    before, behind = around_command()
    return f"{before} {words}{behind}"


def _program() -> str:
    """The bare name where a shell finds this very program; else its path."""
    called = Path(sys.argv[0])
    if called.name != _NAME:  # python -m protocols.cli
        called = Path(sys.executable).with_name(_NAME)
    found = shutil.which(_NAME, path=_USUAL)
    if not called.exists() or (found is not None and Path(found).samefile(called)):
        return _NAME
    return str(called.absolute())
