"""A command in a text runs as it is shown: on the same program, configuration and state directory."""

import shlex
import sys
from pathlib import Path

import pytest

from config import shown_command as shown
from config.shown_command import (
    around_command,
    commands_of_this_program,
    shown_program,
    with_configuration,
    with_state,
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "with space" / "trunkline"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(path), "serve"])
    monkeypatch.delenv("TRUNKLINE_STATE_DIR", raising=False)
    return path


def test_the_program_and_the_configuration_are_named_while_a_command_runs(program: Path, tmp_path: Path) -> None:
    with commands_of_this_program():
        assert shlex.split(shown.shown_command("store salvage")) == [str(program), "store", "salvage"]
        with_configuration(tmp_path / "it's.toml")
        assert shlex.split(shown.shown_command("migrate")) == [
            str(program), "migrate", "--config", str(tmp_path / "it's.toml")
        ]  # fmt: skip
        assert shlex.split(shown_program()) == [str(program)]
    assert shown.shown_command("migrate") == "trunkline migrate"


def test_a_state_directory_that_is_in_no_file_is_named(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_STATE_DIR", "/var/lib/a b")
    with commands_of_this_program():
        assert around_command()[0].startswith("TRUNKLINE_STATE_DIR='/var/lib/a b' ")
        with_state(Path("/srv/demo"))  # as `trunkline demo` does
        assert around_command()[0].startswith("TRUNKLINE_STATE_DIR=/srv/demo ")
    assert around_command() == ("trunkline", "")


def test_a_program_that_every_shell_finds_has_its_bare_name(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_USUAL", str(program.parent))
    with commands_of_this_program():
        assert shown_program() == "trunkline"


def test_the_interpreter_has_the_program_beside_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m protocols.cli`."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/protocols/cli/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(program.with_name("python3")))
    with commands_of_this_program():
        assert shlex.split(shown_program()) == [str(program)]
