"""`trunkline backup` and `trunkline restore` on the state of a stopped daemon (reference 27.9)."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from config.loading import load_settings
from protocols.cli import main
from protocols.operation.state import open_state
from storage.audit import AuditStore
from storage.records import AuditFilter
from tests.stores import begin_store, configuration, move_state, place_of, store_of

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "trunkline.toml"
    file.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"))
    settings = load_settings(file, {})
    with open_state(settings):
        begin_store(settings)
    return file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_a_directory_keeps_the_newest_backups_and_all_that_is_not_one(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "mine.tar.gz").touch()
    made: list[Path] = []
    for _ in range(3):
        done = run("backup", folder, "--rate", "1000", "--keep", "2", "--config", config)
        assert done.exit_code == 0, done.output
        made.append(Path(done.stdout.splitlines()[0].split(": ")[0]))
    assert {path.name for path in folder.iterdir()} == {"mine.tar.gz", *(path.name for path in made[1:])}
    assert {path.stat().st_mode & 0o777 for path in made[1:]} == {0o600}


def test_an_older_backup_that_cannot_be_deleted_is_told_in_one_line(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (old := folder / "trunkline-20200101T000000000000Z.tar.gz").touch()
    fails_for(monkeypatch, "unlink", old)
    done = run("backup", folder, "--rate", "1000", "--keep", "1", "--config", config)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"trunkline: {old}: Input/output error")
    assert len(list(folder.iterdir())) == 2


def test_where_there_are_no_hard_links_a_backup_that_gets_no_name_leaves_nothing(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "one.tar"

    def no_links(*_paths: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with monkeypatch.context() as patched:
        fails_for(patched, "replace", target)
        done = run("backup", target, "--rate", "1000", "--config", config)
        assert (done.exit_code, target.exists()) == (1, False), done.output
        assert f"{target}: Input/output error" in done.stderr
    assert run("backup", target, "--rate", "1000", "--config", config).exit_code == 0


def fails_for(monkeypatch: pytest.MonkeyPatch, call: str, path: Path) -> None:
    """Let this call of `Path` fail where it names the path."""
    real = getattr(Path, call)

    def fail(self: Path, *arguments: Any, **named: Any) -> Any:
        if path in (self, *arguments):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, call, fail)


def test_without_a_file_it_goes_where_those_of_the_page_go(config: Path, tmp_path: Path) -> None:
    """The command keeps as many as the page does."""
    folder = load_settings(config).backup_dir
    assert folder == tmp_path / "state-backups"
    config.write_text(config.read_text() + "[console]\nkeep_backups = 2\n")
    for kept in (1, 2, 2):
        done = run("backup", "--rate", "1000", "--config", config)
        assert (done.exit_code, done.stdout.startswith(f"{folder}/trunkline-")) == (0, True), done.output
        assert len(list(folder.iterdir())) == kept
    assert folder.stat().st_mode & 0o777 == 0o700
    config.write_text(config.read_text() + f'backup_dir = "{tmp_path / "elsewhere"}"\n')
    assert run("backup", "--rate", "1000", "--config", config).stdout.startswith(f"{tmp_path}/elsewhere/trunkline-")


def test_both_commands_are_in_the_audit_log(config: Path, tmp_path: Path) -> None:
    assert run("backup", tmp_path / "one.tar", "--rate", "1000", "--config", config).exit_code == 0
    move_state(tmp_path / "state", tmp_path / "old")
    assert run("restore", tmp_path / "one.tar", "--config", config).exit_code == 0
    with store_of(load_settings(config, {})) as store:
        entries = AuditStore(store).find(AuditFilter(0, 2**62, 10))
    assert [(entry.details["command"], entry.object, entry.address) for entry in entries] == [
        (command, f"file {tmp_path / 'one.tar'}", "command line") for command in ("backup", "restore")
    ]


def test_a_passphrase_comes_from_the_first_line_of_a_file(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.backup.sealed_key._MEMORY_KIB", 8)
    (tmp_path / "phrase").write_text("correct horse\nsecond line\n")
    phrase = ("--passphrase-file", tmp_path / "phrase")
    made = run("backup", tmp_path / "one.tar", "--rate", "1000", *phrase, "--config", config)
    assert "with the key under the passphrase" in made.output
    move_state(tmp_path / "state", tmp_path / "old")
    (tmp_path / "phrase").write_text("correct horse\n")
    restored = run("restore", tmp_path / "one.tar", *phrase, "--config", config)
    assert restored.exit_code == 0, restored.output


def test_what_cannot_be_done_is_said(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    Path("phrase").write_text("correct horse\n")
    Path("empty").touch()
    for arguments, status, said in (
        (["backup", "one.tar", "--without-key", "--passphrase-file", "phrase"], 2, "exclude each other"),
        (["backup", "one.tar", "--keep", "2"], 2, "is not a directory"),
        (["backup", "one.tar", "--passphrase-file", "missing"], 2, "No such file"),
        (["backup", "one.tar", "--passphrase-file", "empty"], 2, "its first line is empty"),
        (["backup", "phrase"], 1, "exists already"),
        (["backup", "missing/one.tar"], 1, "No such file or directory"),
        (["restore", "missing.tar"], 1, "No such file or directory"),
        (["restore", "phrase"], 1, "not a backup"),
    ):
        done = run(*arguments, "--config", config)
        assert (done.exit_code, said in done.stderr) == (status, True), (arguments, done.stderr)
        assert not Path("one.tar").exists(), arguments
        assert Path("phrase").read_text() == "correct horse\n", arguments


def test_without_a_store_there_is_nothing_to_back_up_and_nothing_is_made(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"))
    done = run("backup", tmp_path / "one.tar", "--config", config)
    assert (done.exit_code, done.stderr) == (4, f"trunkline: {place_of(config)}: there is no store\n")
    assert not (tmp_path / "state").exists()
