"""`trunkline user`, `device`, `app` and `token` on the state of a stopped daemon (reference 27.10)."""

import csv
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from xml.etree import ElementTree as ET

import pytest
import segno
import trio
from click.testing import CliRunner, Result

from broker.clock import Clock
from broker.errors import DomainError, ValidationFailed
from broker.services import open_services
from config.loading import load_settings
from protocols.cli import main
from protocols.control.client import ControlFailedError, send_command
from protocols.control.server import COMMANDS
from protocols.operation.state import open_state
from storage.audit import AuditStore
from storage.database import Database
from storage.engines import engine_of
from storage.limits import LimitStore
from storage.records import AuditFilter, TallyRecord
from storage.sql import sure
from tests.daemon import (
    ADA,
    ADA_EMAIL,
    APPLICATION_TOKEN,
    DASHBOARD,
    USER_TOKEN,
    Daemon,
    device_id,
    device_token,
)
from tests.fakes import on_loop
from tests.rows import each_row
from tests.stores import configuration, copy_state, place_of, store_of

pytestmark = pytest.mark.slow


DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    daemon = Daemon(tmp_path_factory.mktemp("provisioned") / "state")
    daemon.configure(devices=4)
    return daemon


@pytest.fixture
def config(provisioned: Daemon, tmp_path: Path) -> Path:
    daemon = Daemon(tmp_path / "state")
    copy_state(provisioned.state, daemon.state)
    daemon.write_config()
    return daemon.config


def run(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--config", str(config)])


def output(config: Path, *arguments: str) -> str:
    done = run(config, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def audited(config: Path) -> list[tuple[str, str, str]]:
    with store_of(load_settings(config)) as store:
        found = AuditStore(store).find(AuditFilter(0, 2**62, 100, event="command"))
    return [(entry.details["command"], entry.object, entry.actor) for entry in found]


def caller_of(config: Path, token: str) -> tuple[str, str]:
    """Kind and actor of a token, as the daemon finds it."""

    async def ask() -> tuple[str, str]:
        settings = load_settings(config)
        with open_state(settings) as state:
            database = Database(engine_of(settings), worker=on_loop())
            async with open_services(settings, database, state.vault, Clock()) as services:
                try:
                    caller = await services.accounts.tokens.caller(token)
                except DomainError:
                    return "nobody", ""
                return caller.kind.value, caller.actor

    return trio.run(ask)


@pytest.mark.both_engines
def test_lists_as_lines_and_as_json(config: Path) -> None:
    (user,) = output(config, "user", "list").splitlines()
    assert user.split() == [ADA, ADA_EMAIL, json.loads(output(config, "user", "list", "--json"))["name"], "Ada"]
    (application,) = output(config, "app", "list", "--json").splitlines()
    assert json.loads(application)["id"] == DASHBOARD
    devices = [json.loads(line) for line in output(config, "device", "list", "--json").splitlines()]
    assert [one["id"] for one in devices] == [device_id(number) for number in range(4)]
    assert {one["owner"] for one in devices} == {ADA_EMAIL}
    assert len(output(config, "device", "list", "--limit", "2", "--owner", ADA_EMAIL).splitlines()) == 2
    assert audited(config) == []


def test_a_device_is_shown_switched_off_and_on_and_deleted(config: Path) -> None:
    device = device_id(1)
    assert f"id            {device}" in output(config, "device", "show", device)
    assert output(config, "device", "disable", device) == f"{device}  Light 1: disabled\n"
    assert json.loads(output(config, "device", "show", "--json", device))["enabled"] is False
    assert output(config, "device", "enable", device) == f"{device}  Light 1: enabled\n"
    assert output(config, "device", "delete", "--yes", device) == f"{device}  Light 1: deleted\n"
    assert run(config, "device", "show", device).exit_code == 1
    operator, about = f"operator {os.getuid()}", f"device {device}"
    assert audited(config) == [
        (command, about, operator) for command in ("device disable", "device enable", "device delete")
    ]


def test_devices_are_imported_with_labels_or_not_at_all(config: Path, tmp_path: Path) -> None:
    file, sheet = tmp_path / "devices.csv", tmp_path / "labels.svg"
    arguments = ("device", "import", str(file), "--owner", ADA_EMAIL, "--labels", str(sheet))
    file.write_text('name,type,vdid\n"Lamp, 1",example.light,a\nLamp 2,example.light,a\n', encoding="utf-8")
    refused = run(config, *arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{file}: line 3: vdid: the same as in line 2" in refused.stderr
    assert not sheet.exists()
    assert len(output(config, "device", "list").splitlines()) == 4
    file.write_text('name,type,vdid\n"Lamp, 1",example.light,a\nLamp 2,example.light,b\n', encoding="utf-8")
    accounts = ("--accounts-url", "https://home.example.org/accounts/")
    first, second = csv.DictReader(output(config, *arguments, *accounts).splitlines())
    assert (first["name"], second["name"]) == ("Lamp, 1", "Lamp 2")
    assert first["link"] == f"https://home.example.org/accounts/accept/label?code={first['code']}"
    assert caller_of(config, second["token"]) == ("device", f"device {second['id']}")
    assert sheet.stat().st_mode & 0o777 == 0o600
    drawn = ET.parse(sheet).getroot()  # noqa: S314 - our own
    labels = drawn.findall("{http://www.w3.org/2000/svg}g")
    assert len(labels) == 2
    for label, one in zip(labels, (first, second), strict=True):
        path = label.find("{http://www.w3.org/2000/svg}path")
        assert path is not None
        assert modules(path.attrib["d"]) == dark_modules(one["link"])
        assert one["name"] in [text.text for text in label]
    assert run(config, *arguments).exit_code == 2, "a sheet is not overwritten: its codes are the only ones"


@pytest.mark.both_engines
def test_lost_labels_are_made_again(config: Path, tmp_path: Path) -> None:
    file, sheet = tmp_path / "devices.csv", tmp_path / "again.svg"
    file.write_text("name,type\nLamp 1,example.light\nLamp 2,example.light\n", encoding="utf-8")
    made = run(config, "device", "import", str(file), "--owner", ADA_EMAIL, "--json")
    again = run(config, "device", "labels", "Lamp 1", "Lamp 2", "--labels", str(sheet), "--json")
    assert (made.exit_code, again.exit_code) == (0, 0)
    before, after = (
        {one["id"]: one["code"] for one in map(json.loads, done.stdout.splitlines())} for done in (made, again)
    )
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert all(code[:4] in sheet.read_text(encoding="utf-8") for code in after.values())
    refused = run(config, "device", "labels", "Light 0")
    assert refused.exit_code == 1
    assert "has no label that can be claimed" in refused.stderr


def test_devices_that_are_made_keep_their_labels_when_the_disk_is_full(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has no codes: the lines are all that is left of them."""
    file = tmp_path / "devices.csv"
    file.write_text("name,type\nLamp,example.light\n", encoding="utf-8")
    full = Path("/dev/full")

    @contextmanager
    def opened(_path: Path) -> Iterator[IO[str]]:
        with full.open("w", encoding="utf-8") as sheet:
            try:
                yield sheet
            finally:
                with suppress(OSError):
                    sheet.close()

    monkeypatch.setattr("protocols.cli.device._made", opened)
    done = run(config, "device", "import", str(file), "--owner", ADA_EMAIL, "--labels", str(tmp_path / "labels.svg"))
    assert done.exit_code == 1
    (made,) = csv.DictReader(done.stdout.splitlines())
    assert made["link"].endswith(f"code={made['code']}")
    assert "labels.svg cannot be written whole: No space left on device. Keep the lines above." in done.stderr
    assert caller_of(config, made["token"]) == ("device", f"device {made['id']}")


def modules(path: str) -> set[tuple[int, int]]:
    runs = re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path)
    assert "".join(f"M{x} {y}h{n}v1h-{n}z" for x, y, n in runs) == path
    return {(int(x) + at, int(y)) for x, y, n in runs for at in range(int(n))}


def dark_modules(text: str) -> set[tuple[int, int]]:
    rows = segno.make(text, error="m", micro=False).matrix
    return {(x, y) for y, row in enumerate(rows) for x, dark in enumerate(row) if dark}


@pytest.mark.both_engines
def test_a_device_is_deleted_after_a_question_only(config: Path) -> None:
    done = CliRunner().invoke(main, ["device", "delete", device_id(0), "--config", str(config)], input="n\n")
    assert done.exit_code == 1
    assert len(output(config, "device", "list").splitlines()) == 4


def test_a_new_device_token_ends_the_former_one(config: Path) -> None:
    device = device_id(2)
    assert output(config, "device", "token", device) == f"{device_token(2)}\n"
    new = output(config, "device", "rotate", device).strip()
    assert output(config, "device", "token", device) == f"{new}\n"
    assert caller_of(config, new) == ("device", f"device {device}")
    assert caller_of(config, device_token(2)) == ("nobody", "")
    assert [entry[0] for entry in audited(config)] == ["device token", "device rotate", "device token"]


@pytest.mark.both_engines
def test_a_device_is_named_by_its_id_or_by_a_name_that_no_other_has(config: Path) -> None:
    """The audit log has the id in both cases."""
    device = device_id(1)
    assert f"id            {device}" in output(config, "device", "show", "Light 1")
    assert output(config, "device", "token", "Light 1") == f"{device_token(1)}\n"
    new = output(config, "token", "new", "--device", "Light 1").strip()
    assert caller_of(config, new) == ("device", f"device {device}")
    output(config, "device", "disable", "Light 1")
    assert {entry[1] for entry in audited(config)} == {f"device {device}"}
    with store_of(load_settings(config)) as store:
        store.execute("UPDATE device SET name = 'Light 1' WHERE id = :id", {"id": device_id(3)})
    for command in ("show", "token", "rotate", "disable", "enable"):
        done = run(config, "device", command, "Light 1")
        ids = [f"{device_id(number)} of {ADA_EMAIL}" for number in (1, 3)]
        assert (done.exit_code, f"called 'Light 1': give the id: {', '.join(ids)}" in done.stderr) == (1, True)
    assert f"id            {device}" in output(config, "device", "show", device)


@pytest.mark.both_engines
def test_applications_of_one_name_are_said_with_their_ids(config: Path) -> None:
    other = "ab" * 16
    with store_of(load_settings(config)) as store:
        (first,) = store.execute("SELECT * FROM application WHERE name = 'Dashboard'")
        row = {**dict(first), "id": other, "key": 99}
        store.insert_many("application", list(row), [[*row.values()]])
    done = run(config, "app", "secret", "Dashboard")
    assert done.exit_code == 1
    assert "2 applications called 'Dashboard': give the id: " in done.stderr
    assert DASHBOARD in done.stderr
    assert other in done.stderr


#: Of each command that is about an object: arguments that name none, and what the refusal names.
NOBODY: Mapping[str, tuple[Mapping[str, object], str]] = {
    "app secret": ({"application": "Nobody"}, "application: no application called 'Nobody'"),
    **{
        f"device {verb}": ({"device": "Nobody"}, "there is no device 'Nobody'")
        for verb in ("show", "token", "rotate", "disable", "enable", "delete")
    },
    "edge add": ({"edge": "attic", "owner": "Nobody"}, "there is no user 'Nobody'"),
    **{f"edge {verb}": ({"edge": "Nobody"}, "there is no edge 'Nobody'") for verb in ("token", "remove", "accept")},
    "edge origin": ({"mid": "Nobody"}, "there is no message of an edge with the mid 'Nobody'"),
    "forward rewind": ({"forward": "Nobody", "position": 1}, "there is no forward 'Nobody'"),
    "found list": ({"owner": "Nobody"}, "there is no user 'Nobody'"),
    **{f"found {verb}": ({"found": "Nobody"}, "there is no found device 'Nobody'") for verb in ("accept", "ignore")},
    "device labels": ({"devices": ["Nobody"]}, "there is no device 'Nobody'"),
    "device import": ({"text": "name,type\n", "owner": "Nobody"}, "there is no user 'Nobody'"),
    "device list": ({"owner": "Nobody"}, "there is no user 'Nobody'"),
    **{
        f"user {verb}": ({"user": "Nobody"}, "there is no user 'Nobody'")
        for verb in ("show", "disable", "enable", "delete", "reset password")
    },
    "user reset second-factor": ({"name": "Nobody"}, "there is no user 'Nobody'"),
    "type upload": (
        {"device_type": "Nobody", "document": {"fields": [{"name": "on", "valueClass": "Boolean"}]}},
        "there is no device type 'Nobody'",
    ),
    "type approve": ({"device_type": "Nobody", "version": 1}, "there is no device type 'Nobody'"),
    "type failures": ({"device_or_type": "Nobody", "limit": 1}, "there is no device or device type 'Nobody'"),
    "rule explain": ({"rule": "Nobody"}, "there is no rule 'Nobody'"),
    "rule replay": ({"rule": "Nobody", "start": 0, "end": 1}, "there is no rule 'Nobody'"),
    "plans decide": (
        {"device_type": "Nobody", "version": 1, "decision": "APPROVED"},
        "there is no plan 1 of device type 'Nobody'",
    ),
    "payments decide": ({"reference": "Nobody", "outcome": "accepted"}, "there is no payment 'Nobody'"),
    "payments refunded": ({"reference": "Nobody"}, "there is no payment 'Nobody'"),
}
ABOUT_NOTHING = {
    "app list",
    "audit",
    "backup",
    "drain",
    "drain standing",
    "limits",
    "listeners",
    "payments",
    "plans",
    "provision",
}
ABOUT_NOTHING |= {"edge list", "forward list", "retention confirm", "statistics", "type list", "user list"}


@pytest.mark.both_engines
def test_each_command_names_what_is_not_there(config: Path) -> None:
    assert NOBODY.keys() == COMMANDS.keys() - ABOUT_NOTHING

    async def refusals() -> dict[str, str]:
        settings, said = load_settings(config), dict[str, str]()
        with open_state(settings) as state:
            database = Database(engine_of(settings), worker=on_loop())
            async with open_services(settings, database, state.vault, Clock()) as services:
                for command, (arguments, _) in NOBODY.items():
                    try:
                        await COMMANDS[command](services, arguments)
                    except ValidationFailed as error:
                        (finding,) = error.findings
                        said[command] = f"{finding.field}: {', '.join(finding.messages)}"
                    except DomainError as error:
                        said[command] = str(error)
        return said

    said = trio.run(refusals)
    for command, (_, wanted) in NOBODY.items():
        assert wanted in said.get(command, "nothing"), command


@pytest.mark.parametrize("name", [DASHBOARD, "Dashboard"])
def test_a_client_secret_is_shown_and_the_audit_log_notes_it(config: Path, name: str) -> None:
    assert output(config, "app", "secret", name) == "s3cret\n"
    assert audited(config) == [("app secret", f"application {name}", f"operator {os.getuid()}")]


def test_a_new_token_is_of_its_user_or_of_its_application(config: Path) -> None:
    of_user = output(config, "token", "new", "--app", "Dashboard", "--user", ADA_EMAIL, "--expires", "2h").strip()
    assert caller_of(config, of_user) == ("user", f"user {ADA}")
    of_application = output(config, "token", "new", "--app", DASHBOARD).strip()
    assert caller_of(config, of_application) == ("application", f"application {DASHBOARD}")


@pytest.mark.both_engines
def test_a_disabled_user_has_no_tokens_until_they_sign_in_again(config: Path) -> None:
    assert caller_of(config, USER_TOKEN) == ("user", f"user {ADA}")
    assert output(config, "user", "disable", ADA_EMAIL) == f"{ADA}  {ADA_EMAIL}: disabled\n"
    assert caller_of(config, USER_TOKEN) == ("nobody", "")
    assert caller_of(config, APPLICATION_TOKEN)[0] == "application"
    assert output(config, "user", "list").rstrip().endswith("(disabled)")
    refused = run(config, "token", "new", "--user", ADA_EMAIL)
    assert (refused.exit_code, f"{ADA_EMAIL} is disabled" in refused.stderr) == (1, True)
    assert output(config, "user", "enable", ADA) == f"{ADA}  {ADA_EMAIL}: enabled\n"
    assert caller_of(config, USER_TOKEN) == ("nobody", "")
    assert caller_of(config, output(config, "token", "new", "--user", ADA_EMAIL).strip())[0] == "user"
    assert [entry[:2] for entry in audited(config)][:2] == [
        ("user disable", f"user {ADA_EMAIL}"),
        ("user enable", f"user {ADA}"),
    ]


def test_a_new_password_is_set_with_a_link(config: Path) -> None:
    link = output(config, "user", "reset", "--password", ADA_EMAIL).strip()
    assert re.fullmatch(r"http://\S+/reset\?code=[0-9a-f]{32}", link)
    assert audited(config) == [("user reset password", f"user {ADA_EMAIL}", f"operator {os.getuid()}")]
    assert run(config, "user", "reset", ADA_EMAIL).exit_code == 2


def test_a_new_device_token_is_a_new_token_too(config: Path) -> None:
    new = output(config, "token", "new", "--device", device_id(0)).strip()
    assert caller_of(config, new) == ("device", f"device {device_id(0)}")
    assert run(config, "token", "new", "--device", device_id(0), "--expires", "1d").exit_code == 2
    assert run(config, "token", "new").exit_code == 2


@pytest.mark.both_engines
def test_what_is_used_up_is_listed_first_with_the_time_when_it_opens(config: Path) -> None:
    assert output(config, "limits") == "nothing is used yet\n"
    settings, now_ms = load_settings(config), int(time.time() * 1000)
    tomorrow = now_ms + DAY_MS
    with store_of(settings) as store:
        keys = {table: store.execute(f"SELECT min(key) AS key FROM {table}").one() for table in ("device", "user")}  # noqa: S608
        device, user = (sure(keys[table])["key"] for table in ("device", "user"))
        application = sure(store.execute("SELECT key FROM application").one())["key"]
        named = [(f"rest user {application} {user}", 3), (f"mqtt device {device}", 100_000), ("coap device 999", 1)]
        LimitStore(store).put_tallies([TallyRecord(name, now_ms - 1, tomorrow, used) for name, used in named])
    on = config.read_text().replace('rate_limits = "off"', 'rate_limits = "on"')
    config.write_text(on)
    found = [json.loads(line) for line in output(config, "limits", "--json").splitlines()]
    assert [(one["what"], one["whose"], one["used"], one["limit"], one["is_used_up"]) for one in found] == [
        ("mqtt", f"device Light 0 ({device_id(0)})", 100_000, 100_000, True),
        ("rest", f"user {ADA_EMAIL} in Dashboard", 3, 1_000, False),
    ]
    assert {one["opens_on"] for one in found} == {tomorrow}
    (line,) = output(config, "limits", "--used-up").splitlines()
    assert "used up, open again 2" in line
    assert audited(config) == []


@each_row(
    ("arguments", "status", "said"),
    [
        (("device", "show", "00"), 1, "there is no device '00'"),
        (("device", "list", "--owner", "nobody@example.org"), 1, "there is no user 'nobody@example.org'"),
        (("app", "secret", "Nothing"), 1, "application: no application called 'Nothing'"),
        (("token", "new", "--app", "Nothing"), 1, "Nothing"),
        (("token", "new", "--app", "Dashboard", "--expires", "soon"), 2, "--expires: expected"),
    ],
)
def test_what_is_not_there_is_said(config: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    done = run(config, *arguments)
    assert (done.exit_code, said in done.stderr) == (status, True), done.stderr


@pytest.mark.parametrize(
    "arguments", [("user", "list"), ("device", "list"), ("app", "list"), ("token", "new", "--app", "x")]
)
def test_without_a_store_nothing_is_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"))
    done = run(config, *arguments)
    assert (done.exit_code, done.stderr) == (4, f"trunkline: {place_of(config)}: there is no store\n")
    assert not (tmp_path / "state").exists()


@pytest.fixture
def stranger() -> Iterator[None]:
    """Another user than root, as far as files are concerned; without root, whoever runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_socket_that_may_not_be_opened_says_so(tmp_path: Path, stranger: None) -> None:
    with pytest.raises(ControlFailedError, match="permission denied"):
        await send_command(Path("/proc/1/cwd" if os.geteuid() else tmp_path), "statistics", {})
