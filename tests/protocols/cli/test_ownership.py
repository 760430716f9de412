"""Files that root's commands make in a service's state directory belong to the service's user, who can open them."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from config.loading import load_settings
from protocols.cli import main
from storage import migrations
from tests.postgresql import ENGINE
from tests.rows import each_row
from tests.stores import configuration, remove_store

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="root: only root makes files for others"), pytest.mark.slow]
USER = 65534  # nobody
PROVISIONED = """
[[organizations]]
name = "Acme"
[[users]]
email = "ada@example.org"
organization = "Acme"
role = "administrator"
"""


def run(config: Path, *words: str) -> None:
    done = CliRunner().invoke(main, [*words, "--config", str(config)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def make_older(state: Path) -> None:
    store = state / "store.sqlite"
    with closing(sqlite3.connect(store)) as connection:
        migrations.apply(connection, stop_before=migrations.pending(connection)[-1])


def provision(config: Path) -> None:
    file = config.with_name("gateway.toml")
    file.write_text(PROVISIONED, encoding="utf-8")
    run(config, "provision", str(file))


def older(config: Path) -> None:
    provision(config)
    state = config.with_name("state")
    (state / "store.sqlite").unlink()
    make_older(state)


def backed_up(config: Path) -> None:
    provision(config)
    run(config, "backup", str(config.with_name("backup.tar.gz")))
    remove_store(load_settings(config, {}))
    for path in config.with_name("state").iterdir():
        path.unlink() if path.is_file() else path.rmdir()


@each_row(
    ("prepare", "words"),
    [
        (provision, ("user", "list")),
        (provision, ("key", "rotate")),
        (backed_up, ("restore", "{folder}/backup.tar.gz")),
        *([(provision, ("store", "salvage")), (older, ("migrate",))] if ENGINE == "sqlite" else []),  # make files
    ],
)
def test_the_service_can_open_what_root_has_made(
    tmp_path_factory: pytest.TempPathFactory, prepare: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    folder = tmp_path_factory.mktemp("gateway")
    config, state = folder / "trunkline.toml", folder / "state"
    state.mkdir(mode=0o700)
    os.chown(state, USER, USER)
    text = f'state_dir = "{state}"\n[http]\nbind = "127.0.0.1:0"\n'
    config.write_text(configuration(text, state), encoding="utf-8")
    prepare(config)
    run(config, *(word.format(folder=folder) for word in words))
    owners = {path.name: path.lstat().st_uid for path in (state, *state.rglob("*"))}
    assert len(owners) > 2
    assert set(owners.values()) == {USER}, owners
