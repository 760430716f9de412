"""`trunkline doctor` (reference 27.12): a line for each check, and what is wrong is found."""

import datetime as dt
import json
import os
import socket
import stat
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec.structs import replace

from broker.messages.rollup_days import RollupDays
from broker.operating.forecast import Forecast, KeptDays
from config.settings import Address, Http, Mqtt, Settings, Tls, TopicDevice
from protocols.cli import main
from protocols.doctor.certificates import look_at_certificates, mode_allows
from protocols.doctor.examination import CHECKS
from protocols.doctor.machine import HARDENING, look_at_clock, look_at_ports, unit_finding
from protocols.doctor.patient import CheckResult, Patient
from protocols.doctor.sizes import forecast_of, size_finding
from protocols.doctor.state import disk_finding, look_at_state, look_at_store
from protocols.doctor.topic_devices import look_at_topic_devices
from protocols.operation.state import open_state
from storage.engines.sqlite_check import check_integrity
from storage.sizes import Sample, Sizes, StorePart
from storage.sql import StoreError
from tests.certificates import DAY, Authority
from tests.damaged_pages import damage, leaves
from tests.postgresql import ENGINE
from tests.rows import each_row
from tests.stores import begin_store, configuration, storage_of, store_of
from tests.test_systemd import UNIT

NOW = dt.datetime.now(dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
DAY_MS = 86_400_000
ROWS = 20_000
MIB, GIB = 1024**2, 1024**3


@pytest.fixture(autouse=True)
def _well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs tests need not have a synchronised clock and room on its disk."""
    monkeypatch.setattr("protocols.doctor.state.available_bytes", lambda _folder: 100 * GIB)
    monkeypatch.setattr("protocols.doctor.machine.is_clock_synchronized", lambda: True)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A stopped daemon with a store of its own."""
    state = tmp_path / "state"
    settings = Settings(state_dir=state, http=Http(bind=Address("127.0.0.1", 0)), storage=storage_of(state))
    former = structlog.get_config()
    with open_state(settings):
        begin_store(settings)
    structlog.configure(**former)
    return settings


def patient_of(settings: Settings) -> Patient:
    return Patient(settings, None, "", "trunkline.service")


def examined(settings: Settings, *options: str) -> Result:
    config = settings.state_dir.parent / "trunkline.toml"
    text = f'state_dir = "{settings.state_dir}"\n[http]\nbind = "127.0.0.1:0"\n'
    config.write_text(configuration(text, settings.state_dir), encoding="utf-8")
    return CliRunner().invoke(main, ["doctor", "--config", str(config), *options])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_healthy_machine_has_a_line_for_each_check_and_nothing_changes(settings: Settings) -> None:
    before = contents(settings.state_dir)
    done = examined(settings)
    assert done.exit_code == 0, done.output
    lines = [line.split(maxsplit=1) for line in done.output.splitlines()]
    assert [check for check, _ in lines] == [
        "configuration",
        "daemon",
        "state",
        "store",
        *(["cluster"] if ENGINE == "postgresql" else []),
        "disk",
        "size",
        "clock",
        "port",
        "certificate",
        "gnutls",
        "descriptors",
        "unit",
    ]
    assert all(text.startswith("ok: ") for _, text in lines)
    assert contents(settings.state_dir) == before


@pytest.mark.both_engines
def test_json_has_the_same_and_what_to_do_makes_the_status_1(settings: Settings) -> None:
    settings.state_dir.chmod(0o755)
    done = examined(settings, "--json")
    found = json.loads(done.output)
    assert (done.exit_code, found["ok"]) == (1, False)
    wrong = [check for check in found["checks"] if not check["ok"]]
    assert wrong == [
        {"check": "state", "ok": False, "text": f"{settings.state_dir}: others can get in: chmod 700 it"},
    ]


def test_a_configuration_that_cannot_be_used_is_the_only_finding(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text("state_dri = 'x'", encoding="utf-8")
    done = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert done.exit_code == 1
    assert len(done.output.splitlines()) == 1
    assert "state_dri: unknown setting" in done.output


@pytest.mark.both_engines
def test_one_check_that_fails_hides_none_of_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_patient: Patient) -> list[CheckResult]:
        raise ValueError("bug")

    monkeypatch.setitem(CHECKS, "disk", fail)
    done = examined(settings)
    assert done.exit_code == 1
    assert "disk          TO DO: could not be checked: ValueError: bug" in done.output
    assert "unit" in done.output


# State, store and disk


def fill(settings: Settings, *, from_ms: int, to_ms: int) -> None:
    """Messages at even distances."""
    with store_of(settings, has_references=False) as store:
        store.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"  # noqa: S608 - a number
            " INSERT INTO message (position, device, ts, cts, mv, data)"
            f" SELECT i, 1, 0, {from_ms} + {to_ms - from_ms} / {ROWS} * i, 1, '{{}}' FROM n"
        )


@pytest.mark.sqlite("it damages pages of the file")
def test_a_damaged_store_is_found(settings: Settings) -> None:
    store = settings.state_dir / "store.sqlite"
    fill(settings, from_ms=0, to_ms=NOW_MS)
    damage(store, leaves(store, "message")[-1])
    (finding,) = look_at_store(patient_of(settings))
    assert not finding.ok
    assert "restore a backup, or stop the daemon and run: trunkline store salvage" in finding.text
    store.write_bytes(b"no database at all" * 1000)
    (finding,) = look_at_store(patient_of(settings))
    assert not finding.ok
    assert "not a database" in finding.text


@pytest.mark.sqlite("no check of PostgreSQL reads all pages")
def test_the_check_of_the_store_is_bounded(settings: Settings) -> None:
    store = settings.state_dir / "store.sqlite"
    fill(settings, from_ms=0, to_ms=NOW_MS)
    assert not check_integrity(store, seconds=0).is_complete
    assert check_integrity(store, seconds=60).is_complete
    with pytest.raises(StoreError):
        check_integrity(store.with_name("none"), seconds=60)
    # SQLite looks at no clock in the middle of a table; a disk that does not answer is the longest table.
    os.mkfifo(silent := store.with_name("silent.sqlite"))
    assert not check_integrity(silent, seconds=0.5).is_complete


@pytest.mark.both_engines
def test_growth_is_that_of_the_last_week(settings: Settings) -> None:
    for days in (2, 70):
        begin_store(settings)
        fill(settings, from_ms=NOW_MS - days * DAY_MS, to_ms=NOW_MS)
        found = forecast_of(settings)
        assert found is not None
        of_messages = next(part.size for part in found.parts if part.name == "messages")
        assert found.bytes_a_day == pytest.approx(of_messages / days, rel=0.1)


@pytest.mark.both_engines
def test_a_log_of_hours_or_of_long_ago_forecasts_nothing(settings: Settings) -> None:
    fill(settings, from_ms=NOW_MS - DAY_MS // 2, to_ms=NOW_MS)
    young = forecast_of(settings)
    assert (young and young.bytes_a_day) is None
    assert "too young" in disk_finding(10 * GIB, young).text
    begin_store(settings)
    fill(settings, from_ms=NOW_MS - 30 * DAY_MS, to_ms=NOW_MS - 8 * DAY_MS)
    old = forecast_of(settings)
    assert old is not None
    assert old.bytes_a_day == 0
    assert "nothing came" in disk_finding(10 * GIB, old).text


def forecast(a_day: float, *, retention: int) -> Forecast:
    """Of ten days of messages."""
    samples = [Sample(NOW_MS - hour * 3_600_000, a_day / 24, 1) for hour in range(240)]
    found = Sizes(round(10 * a_day), 0, True, NOW_MS - 10 * DAY_MS, [StorePart("messages", 10 * a_day, samples)])
    return Forecast(found, KeptDays(retention, RollupDays(), 365, 30, {}), now_ms=NOW_MS)


@each_row(
    ("available", "a_day", "retention", "ok", "text"),
    [
        (100 * MIB, 0, 0, False, "make room"),
        (10 * GIB, 100 * MIB, 0, True, "100.0 MiB a day fill them on "),
        (10 * GIB, GIB, 0, False, "in 9 days: make room, or set storage.retention_days to at most 19"),
        (10 * GIB, GIB, 5, True, "fit: the store will have at most 5,"),
        (10 * GIB, GIB, 15, True, "fit: the store will have at most 15,"),
        (10 * GIB, GIB, 30, False, "at most 19"),
    ],
)
def test_the_forecast_of_the_disk(available: int, a_day: float, retention: int, ok: bool, text: str) -> None:
    finding = disk_finding(available, forecast(a_day, retention=retention))
    assert (finding.ok, text in finding.text) == (ok, True), finding


def test_the_parts_of_the_store_are_told_with_their_settings() -> None:
    finding = size_finding(forecast(10 * MIB, retention=30))
    assert finding.ok
    assert "the store has 100.0 MiB: messages 100.0 (+10.0 a day), free pages 0.0" in finding.text
    assert "storage.retention_days" in finding.text


def test_a_store_that_never_becomes_smaller_is_named_with_what_it_could_give_back() -> None:
    for free, ok in ((MIB, True), (100 * MIB, False)):
        found = Sizes(GIB, free, False, None, [])
        finding = size_finding(Forecast(found, KeptDays(0, RollupDays(), 365, 30, {}), now_ms=NOW_MS))
        assert finding.ok == ok
        text = f"to get {free // MIB}.0 MiB back, stop the daemon and run: trunkline store compact"
        assert text in finding.text


def test_an_interrupted_rotation_and_an_open_key_are_found(settings: Settings) -> None:
    key = settings.state_dir / "key"
    (one,) = look_at_state(patient_of(settings))
    assert one.ok
    key.write_bytes(key.read_bytes() * 2)
    (finding,) = look_at_state(patient_of(settings))
    assert (finding.ok, "trunkline key rotate" in finding.text) == (False, True)
    key.chmod(0o640)
    (finding,) = look_at_state(patient_of(settings))
    assert (finding.ok, "chmod 600" in finding.text) == (False, True)


# Clock, ports and the unit


@pytest.mark.both_engines
def test_a_clock_that_jumped_or_that_nobody_keeps_right(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_of(settings) as store:
        store.execute("INSERT INTO counter VALUES ('trusted_ms', :ms)", {"ms": NOW_MS - 3 * DAY_MS})
    (finding,) = look_at_clock(patient_of(settings))  # the kernel explains it
    assert finding.ok
    monkeypatch.setattr("protocols.doctor.machine.is_clock_synchronized", lambda: False)
    (finding,) = look_at_clock(patient_of(settings))
    assert (finding.ok, "trunkline retention confirm" in finding.text) == (False, True)
    running = Patient(settings, {"clock": {"jumped_seconds": 0}}, "", "")
    (finding,) = look_at_clock(running)
    assert (finding.ok, "chrony" in finding.text) == (False, True)


def test_ports_that_are_free_taken_or_missing(tmp_path: Path) -> None:
    host = "127.83.11.7"  # where no other test listens
    with socket.create_server((host, 0)) as other:
        address = Address(host, other.getsockname()[1])
        settings = Settings(state_dir=tmp_path, http=Http(bind=address))
        (taken,) = look_at_ports(patient_of(settings))
        assert (taken.ok, "ss -lnp" in taken.text) == (False, True)
        (answers,) = look_at_ports(Patient(settings, {}, "", ""))
        assert answers.ok
    (free,) = look_at_ports(patient_of(settings))
    assert free.ok
    (silent,) = look_at_ports(Patient(settings, {}, "", ""))
    assert (silent.ok, "does not answer here" in silent.text) == (False, True)
    (none,) = look_at_ports(patient_of(Settings(state_dir=tmp_path)))
    assert not none.ok


def test_a_daemon_with_other_settings_than_this_command_names_its_listeners(tmp_path: Path) -> None:
    """`trunkline demo` has no configuration file."""
    with socket.create_server(("127.83.11.8", 0)) as listener:
        address = Address("127.83.11.8", listener.getsockname()[1])
        patient = Patient(Settings(state_dir=tmp_path), {}, "", "", {"http": address})
        assert [(found.ok, found.text) for found in look_at_ports(patient)] == [(True, f"http {address}")]


def test_hardening_is_that_of_the_unit_of_this_version() -> None:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    assert {f"{name}={value}" for name, value in HARDENING.items()} <= set(lines)


def test_a_unit_that_was_changed_or_softened() -> None:
    whole = "LoadState=loaded\nNeedDaemonReload=no\n" + "".join(f"{key}={value}\n" for key, value in HARDENING.items())
    assert unit_finding("a.service", whole).ok
    assert unit_finding("a.service", "LoadState=not-found\n").ok
    assert "daemon-reload" in unit_finding("a.service", whole.replace("Reload=no", "Reload=yes")).text
    soft = unit_finding("a.service", whole.replace("ProtectHome=yes", "ProtectHome=no"))
    assert (soft.ok, "lacks ProtectHome=yes:" in soft.text) == (False, True)


# Certificates


def certificate(folder: Path, *, starts: int = -30, ends: int = 90) -> tuple[Path, Path]:
    """The chain and the key of gateway.example.org, valid between two days from now."""
    names = x509.SubjectAlternativeName([x509.DNSName("gateway.example.org"), x509.DNSName("*.home.example.org")])
    factory = Authority("Root", now=NOW).delegate()
    chain, key = factory.issue(extensions=[names], starts=starts * DAY, ends=ends * DAY).files(folder, "server")
    key.chmod(0o600)
    return chain, key


def diagnosed(chain: Path, key: Path, tmp_path: Path, *, url: str = "") -> CheckResult:
    settings = Settings(state_dir=tmp_path, public_url=url, tls=Tls(certificate=chain, key=key))
    (finding,) = look_at_certificates(patient_of(settings))
    return finding


def test_a_certificate_that_is_right(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    for host in ("gateway.example.org", "a.home.example.org"):
        found = diagnosed(chain, key, tmp_path, url=f"https://{host}:8443")
        assert (found.ok, "valid until" in found.text) == (True, True), found


@pytest.mark.parametrize(
    ("starts", "ends", "said"),
    [(-30, -1, "expired on"), (-30, 20, "expires in 19 days"), (1, 90, "valid only from")],
)
def test_dates_of_certificates(tmp_path: Path, starts: int, ends: int, said: str) -> None:
    found = diagnosed(*certificate(tmp_path, starts=starts, ends=ends), tmp_path)
    assert (found.ok, said in found.text) == (False, True), found


def test_certificates_and_keys_that_do_not_fit(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    assert "does not name other.example.org" in diagnosed(chain, key, tmp_path, url="https://other.example.org").text
    assert "does not name" in diagnosed(chain, key, tmp_path, url="https://a.b.home.example.org").text
    (tmp_path / "other").mkdir()
    other, other_key = certificate(tmp_path / "other")
    assert "not the key of" in diagnosed(chain, other_key, tmp_path).text
    leaf, issuer = x509.load_pem_x509_certificates(chain.read_bytes())
    foreign = x509.load_pem_x509_certificates(other.read_bytes())[1]
    for wrong in ((issuer, leaf), (leaf, foreign)):
        chain.write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in wrong))
        found = diagnosed(chain, key, tmp_path)
        assert (found.ok, "is not issued by the one after it" in found.text) == (False, True)
    chain.write_text("nothing", encoding="ascii")
    assert "no certificate in PEM" in diagnosed(chain, key, tmp_path).text
    chain.unlink()
    assert "No such file" in diagnosed(chain, key, tmp_path).text


def test_keys_that_others_read_or_that_are_none(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    key.chmod(0o644)
    assert "others can read or write this key" in diagnosed(chain, key, tmp_path).text
    key.chmod(0o600)
    key.write_text("nothing", encoding="ascii")
    assert "no private key" in diagnosed(chain, key, tmp_path).text
    key.unlink()
    assert "No such file" in diagnosed(chain, key, tmp_path).text


def test_a_key_that_systemd_gives_is_there_only_while_the_service_runs(tmp_path: Path) -> None:
    chain, _ = certificate(tmp_path)
    key = Path("/run/credentials/trunkline-test-that-is-no-unit.service/key.pem")
    assert diagnosed(chain, key, tmp_path).ok
    settings = Settings(state_dir=tmp_path, tls=Tls(certificate=chain, key=key))
    (finding,) = look_at_certificates(Patient(settings, {}, "", ""))
    assert (finding.ok, "No such file" in finding.text) == (False, True)


@each_row(
    ("mode", "uid", "gid", "allowed"),
    [
        (0o400, 5, 9, True),
        (0o040, 5, 9, False),  # the owner has the owner's rights only
        (0o040, 6, 7, True),
        (0o004, 6, 7, False),
        (0o004, 6, 9, True),
        (0o000, 0, 0, True),
    ],
)
def test_who_may_read_by_the_mode(mode: int, uid: int, gid: int, allowed: bool) -> None:
    owned = os.stat_result((mode, 0, 0, 1, 5, 7, 0, 0, 0, 0))
    assert mode_allows(owned, uid, gid, stat.S_IRUSR) is allowed


def test_topic_devices_that_are_refused_or_do_not_understand(settings: Settings) -> None:
    def found(entry: TopicDevice, **known: object) -> list[tuple[bool, str]]:
        usual = {"name": entry.name, "stored": 7, "problem": "", "unknown": []}
        running = {"topic devices": {"entries": [usual | known]}}
        with_entry = replace(settings, mqtt=Mqtt(topics="open"), topic_devices=(entry,))
        patient = replace(patient_of(with_entry), statistics=running)
        return [(one.ok, one.text) for one in look_at_topic_devices(patient)]

    entry = TopicDevice(name="shellies", owner="ada@example.org", type="example.shelly", mapping="shelly")
    assert found(entry) == [(True, "shellies: 7 messages")]
    assert found(entry, problem="There is no device type example.shelly.") == [
        (False, "shellies: There is no device type example.shelly.")
    ]
    keys = [f"k{number}" for number in range(7)]
    assert found(entry, unknown=keys) == [
        (
            False,
            "shellies: there is no device of k0, k1, k2, k3, k4 and 2 more: name it in devices, or set make = true",
        )
    ]
    assert found(replace(entry, data="{a: ")) == [
        (False, "topic_devices[0].data: Invalid value: unexpected end at position 4")
    ]
    assert list(look_at_topic_devices(patient_of(settings))) == []
