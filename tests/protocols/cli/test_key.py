"""`trunkline key rotate`: a new key for a stopped daemon's store, finished by a second run after a kill at any step."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.fernet import InvalidToken

from broker.secrets import Vault
from broker.trace.origin import current_origin
from config.settings import Settings
from protocols.cli import main
from protocols.cli.key import rotate_key
from protocols.errors import StateError
from protocols.operation.key_file import KeyFile
from protocols.operation.state import open_state
from storage.sealed import SEALED_COLUMNS
from tests.broker.test_resealing import opened
from tests.properties import chance
from tests.protocols.operation.sealed_state import make_sealed_state
from tests.stores import configuration, copy_state, storage_of, store_of

SECRETS_EACH = 3


@pytest.fixture(scope="module")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sealed_state(tmp_path_factory.mktemp("template") / "state", SECRETS_EACH)


@pytest.fixture
def settings(tmp_path: Path, _template: Path) -> Settings:
    """A state directory whose store has secrets in every sealed column."""
    state = tmp_path / "state"
    copy_state(_template, state)
    return Settings(state_dir=state, storage=storage_of(state))


def all_opened(settings: Settings) -> dict[str, list[str]]:
    """Every secret that a rotation keeps, opened with the keys that the daemon would use. That for ID tokens goes."""
    with open_state(settings) as state, store_of(settings) as store:
        found = {str(column): opened(store, column, state.vault) for column in SEALED_COLUMNS}
    del found["signing_key.sealed"]
    return found


def write_config(path: Path, settings: Settings) -> None:
    path.write_text(configuration(f'state_dir = "{settings.state_dir}"\n', settings.state_dir))


def keys_of(state_dir: Path) -> tuple[bytes, ...]:
    return KeyFile(state_dir / "key").keys()


@pytest.mark.both_engines
def test_every_secret_opens_with_the_new_key_and_none_with_the_old(settings: Settings) -> None:
    (old,), before = keys_of(settings.state_dir), all_opened(settings)
    done = rotate_key(settings)
    assert done.secrets == SECRETS_EACH * len(SEALED_COLUMNS)
    (new,) = keys_of(settings.state_dir)
    assert new != old
    assert all_opened(settings) == before
    with store_of(settings) as store:
        for column in (one for one in SEALED_COLUMNS if one.table != "signing_key"):
            with pytest.raises(InvalidToken):
                opened(store, column, Vault(old))


@pytest.mark.both_engines
def test_the_key_file_stays_private(settings: Settings) -> None:
    rotate_key(settings)
    assert (settings.state_dir / "key").stat().st_mode & 0o777 == 0o600
    assert not (settings.state_dir / "key.new").exists()


def test_an_interrupted_rotation_is_finished_with_the_key_it_began_with(settings: Settings) -> None:
    file, new = KeyFile(settings.state_dir / "key"), Vault.new_key()
    file.write(new, *file.keys())
    rotate_key(settings)
    assert keys_of(settings.state_dir) == (new,)


@contextmanager
def killer() -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-m", "tests.protocols.cli.killed_rotation"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


#: How many operations of the beginning and of the end a kill comes before, and which of the others, where each run
#: begins with another one. No column has a multiple of these.
_EACH, _SOME = 15, 17


@pytest.mark.processes
def test_after_a_kill_at_any_step_every_secret_opens_and_a_second_run_finishes(settings: Settings) -> None:
    """Before each of the first and the last operations. Between these, each column has the same, and gets some."""
    before, states = all_opened(settings), set[int]()
    with killer() as process:

        def killed(number: int) -> list[int]:
            """The signal, and how many operations were done."""
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{settings.state_dir} {settings.storage.url} {number}\n")
            process.stdin.flush()
            return [int(word) for word in process.stdout.readline().split()]

        ended, all_ = killed(1_000_000)
        assert ended == 0
        assert all_ > 3 * len(SEALED_COLUMNS)  # at least: begin, read, commit of each column
        first = _EACH + chance().randrange(_SOME)
        for number in chain(range(_EACH), range(first, all_ - _EACH, _SOME), count(all_ - _EACH)):
            signalled, _ = killed(number)
            assert signalled in {0, signal.SIGKILL}
            states.add(len(keys_of(settings.state_dir)))
            assert all_opened(settings) == before, f"after a kill before operation {number}"
            rotate_key(settings)
            assert len(keys_of(settings.state_dir)) == 1
            if signalled == 0:
                break
    assert all_opened(settings) == before
    assert states == {1, 2}


def test_a_running_daemon_keeps_its_key(settings: Settings, tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    write_config(config, settings)
    before = (settings.state_dir / "key").read_bytes()
    with open_state(settings):
        run = CliRunner().invoke(main, ["key", "rotate", "--config", str(config)])
    assert run.exit_code == 4
    assert "stop the daemon" in run.output
    assert (settings.state_dir / "key").read_bytes() == before


@pytest.mark.both_engines
def test_a_key_outside_the_state_directory_is_rotated_where_it_is(settings: Settings, tmp_path: Path) -> None:
    """The source of systemd's credential."""
    elsewhere, config = tmp_path / "trunkline.key", tmp_path / "trunkline.toml"
    (settings.state_dir / "key").rename(elsewhere)
    (old,) = KeyFile(elsewhere).keys()
    write_config(config, settings)
    before = current_origin()
    run = CliRunner().invoke(main, ["key", "rotate", "--key-file", str(elsewhere), "--config", str(config)])
    assert (run.exit_code, run.output.partition(" ")[0]) == (0, str(SECRETS_EACH * len(SEALED_COLUMNS)))
    (new,) = KeyFile(elsewhere).keys()
    assert new != old
    assert not (settings.state_dir / "key").exists()
    assert current_origin() == before  # what the command did for the operator ended with it


def test_secrets_of_an_unknown_key_are_told(settings: Settings, tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    write_config(config, settings)
    (settings.state_dir / "key").write_bytes(Vault.new_key())
    run = CliRunner().invoke(main, ["key", "rotate", "--config", str(config)])
    assert "3 in device_token.sealed" in run.output


@pytest.mark.parametrize("content", [b"", b"short", b"!" * 44])
def test_a_file_without_a_key_is_refused(settings: Settings, content: bytes) -> None:
    (settings.state_dir / "key").write_bytes(content)
    with pytest.raises(StateError, match="not a key"):
        rotate_key(settings)


def test_without_a_store_no_key_is_changed(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "empty", storage=storage_of(tmp_path / "empty"))
    with pytest.raises(StateError, match="there is no store"):
        rotate_key(settings)


def test_a_key_that_others_may_read_is_refused(settings: Settings) -> None:
    os.chmod(settings.state_dir / "key", 0o644)  # noqa: PTH101 - as an operator would
    with pytest.raises(StateError, match="others may read"):
        rotate_key(settings)
