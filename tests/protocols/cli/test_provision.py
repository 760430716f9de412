"""`trunkline provision` on the state of a stopped daemon (reference 26)."""

import json
import tempfile
from pathlib import Path

import jsonschema_rs
import pytest
from click.testing import CliRunner, Result

from protocols.cli import main
from tests.daemon import ADA_EMAIL, Daemon, device_id
from tests.stores import configuration, copy_state

pytestmark = pytest.mark.slow


_EXAMPLE = Path(__file__).parents[3] / "config" / "gateway.example.toml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a daemon that never ran."""
    path = tmp_path / "trunkline.toml"
    path.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"))
    return path


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    daemon = Daemon(tmp_path_factory.mktemp("provisioned") / "state")
    daemon.configure(devices=1)
    return daemon


def provision(config: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["provision", *map(str, arguments), "--config", str(config)])


def written(folder: Path, text: str) -> Path:
    path = folder / "more.toml"
    path.write_text(text)
    return path


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder, with mode and time of the last change.

    Without the index of the write-ahead log, which has no data: SQLite rebuilds it after a kill, also for a reader.
    """
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    } | {".": (folder.stat().st_mode, folder.stat().st_mtime_ns, b"")}


def test_a_dry_run_of_the_example_makes_no_state_directory(config: Path) -> None:
    done = provision(config, _EXAMPLE, "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Dry run: nothing was changed.\n")
    assert "  devices  Kitchen lamp: created" in done.stdout
    assert "Would be generated:" in done.stdout
    assert [path.name for path in config.parent.iterdir()] == ["trunkline.toml"]


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.processes)])
def test_a_dry_run_touches_nothing_of_a_stopped_daemon(provisioned: Daemon, tmp_path: Path, killed: bool) -> None:
    daemon = Daemon(tmp_path / "state")
    copy_state(provisioned.state, daemon.state)
    daemon.write_config()
    if killed:  # it leaves its write-ahead log
        daemon.start()
        daemon.kill()
    more = written(
        tmp_path,
        f'[[devices]]\nid = "{device_id(0)}"\nowner = "{ADA_EMAIL}"\ntype = "example.light"\nname = "Porch"\n',
    )
    before = contents(daemon.state)
    done = provision(daemon.config, more, "--dry-run")
    assert done.exit_code == 0, done.output
    assert '  devices  Light 0: name: "Light 0" -> "Porch"\n' in done.stdout
    assert contents(daemon.state) == before


def test_the_report_is_one_object(provisioned: Daemon, tmp_path: Path) -> None:
    more = written(tmp_path, '[[users]]\nemail = "bob@example.org"\n')
    done = provision(provisioned.config, more, "--dry-run", "--json")
    report = json.loads(done.stdout)
    assert report["changes"] == [{"table": "users", "name": "bob@example.org", "created": True, "keys": []}]
    assert report["not_in_file"]["users"] == [ADA_EMAIL]
    assert report["dry_run"] is True


def test_the_schema_takes_no_file_and_no_store(config: Path) -> None:
    done = provision(config, "--schema")
    shown = json.loads(done.stdout)
    assert shown["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(shown)
    check = jsonschema_rs.validator_for(shown)
    lamp = {"unique_name": "acme.lamp", "name": "Lamp", "organization": "Acme"}
    for manifest, is_valid in (("lamp.json", True), ({"fields": []}, True), (7, False), ([], False)):
        assert check.is_valid({"device_types": [{**lamp, "manifest": manifest}]}) == is_valid, manifest
    assert not check.is_valid({"device_types": [{**lamp, "ca": {}}]})
    assert not (config.parent / "state").exists()
    assert provision(config).exit_code == 2


def test_each_mistake_has_a_line_also_files_that_cannot_be_read(provisioned: Daemon, tmp_path: Path) -> None:
    more = written(
        tmp_path,
        '[[device_types]]\nunique_name = "a.b"\norganization = "Acme"\nmanifest = "absent.json"\nrsp = true\n'
        'ca = "absent.pem"\n[[users]]\nemial = "x"\n[[firmware]]\ndevice_type = "example.light"\nversion = "1"\n'
        'file = "absent.bin"\n',
    )
    done = provision(provisioned.config, more)
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"trunkline: {more}: ") for line in lines)
    assert {line.removeprefix(f"trunkline: {more}: ").partition(":")[0] for line in lines} == {
        *("device_types[0].manifest", "device_types[0].ca", "users[0].emial", "users[0].email", "firmware[0].file"),
    }


def test_a_report_does_not_control_the_terminal(provisioned: Daemon, tmp_path: Path) -> None:
    more = written(tmp_path, '[[scenes]]\nowner = "x"\napplication = "y"\nname = "\\u001b[2J"\nactions = []\n')
    assert "\x1b" not in provision(provisioned.config, more, "--dry-run").output


def test_the_copy_of_a_dry_run_is_removed(provisioned: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    more = written(tmp_path, '[[users]]\nemail = "bob@example.org"\n')
    assert provision(provisioned.config, more, "--dry-run").exit_code == 0
    assert list((tmp_path / "copies").iterdir()) == []
