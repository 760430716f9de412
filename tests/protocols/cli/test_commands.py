"""The commands as processes, with arguments, output and an exit status.

The shared daemon, the demo and what stands within `programs_started` start the program that is installed.
"""

import json
import os
import shlex
import signal
import socket
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest
import trio

from broker.secrets import Vault
from config.settings import Storage
from protocols.control.client import ControlFailedError, send_command
from storage import migrations
from tests.daemon import (
    ADA,
    DEMO_ON_ANY_PORT,
    TRUNKLINE,
    USER_TOKEN,
    Daemon,
    bearer,
    device_id,
    device_token,
    run_command,
    start_command,
)
from tests.fork_server import ForkedProcess
from tests.postgresql import server
from tests.properties import IS_CI, in_ci
from tests.stores import configuration, copy_state, storage_of

pytestmark = pytest.mark.processes

SECONDS = 60


def trunkline(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environment={**os.environ, **environment})


@contextmanager
def programs_started() -> Iterator[None]:
    """Commands are the installed program from its first instruction on; otherwise they are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.daemon.running", lambda _environment: None)
        yield


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """A stopped daemon. Tests use copies of its state, because provisioning takes a second."""
    daemon = Daemon(tmp_path_factory.mktemp("provisioned") / "state")
    daemon.configure(devices=4)
    return daemon


def copied(provisioned: Daemon, folder: Path) -> Daemon:
    copy = Daemon(folder / "state")
    copy_state(provisioned.state, copy.state)
    copy.write_config()
    return copy


@pytest.fixture
def stopped(provisioned: Daemon, tmp_path: Path) -> Daemon:
    """A stopped daemon that the test may change."""
    return copied(provisioned, tmp_path)


@pytest.fixture(scope="module")
def running(provisioned: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A running daemon that tests share; each test has a device of its own on it."""
    daemon = copied(provisioned, tmp_path_factory.mktemp("running"))
    with programs_started():
        daemon.start()
    yield daemon
    assert daemon.stop() == 0


def one_line(run: subprocess.CompletedProcess[str]) -> str:
    (line,) = run.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('state_dir = "/x"\ncolour = 1', "colour"),
        ('state_dir = "/x"\n[mqtt]\naction_payload = "x"', "mqtt.action_payload"),
        ("=", "TOML"),
    ],
)
def test_bad_configuration_exits_with_2(tmp_path: Path, content: str, named: str) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(content)
    run = trunkline("serve", "--config", config)
    assert run.returncode == 2
    assert str(config) in one_line(run)
    assert named in one_line(run)


@pytest.mark.parametrize("listener", ["http]\ntls_bind", "mqtt]\ntls_bind", "coap]\ndtls_bind"])
def test_unusable_certificate_exits_with_2(tmp_path: Path, listener: str) -> None:
    """reference 27.1"""
    certificate, config = tmp_path / "cert.pem", tmp_path / "trunkline.toml"
    certificate.write_text("not a certificate")
    config.write_text(
        f'state_dir = "{tmp_path}/state"\n[{listener} = "127.0.0.1:0"\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate}"\n'
    )
    run = trunkline("serve", "--config", config)
    assert run.returncode == 2
    assert str(certificate) in one_line(run)


def test_taken_port_exits_with_3(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        config = tmp_path / "trunkline.toml"
        text = f'state_dir = "{tmp_path}/state"\n[mqtt]\nbind = "{address}"\n'
        config.write_text(configuration(text, tmp_path / "state"), encoding="utf-8")
        run = trunkline("serve", "--config", config)
    assert run.returncode == 3
    assert f"mqtt cannot listen on {address}" in one_line(run)


def test_a_daemon_that_cannot_make_the_socket_of_its_commands_exits_with_3(stopped: Daemon) -> None:
    (stopped.state / "control.sock").mkdir()
    run = trunkline("serve", "--config", stopped.config)
    assert run.returncode == 3
    assert f"{stopped.state}/control.sock: " in one_line(run)


@pytest.mark.sqlite("the store is a file with other bytes")
def test_broken_store_exits_with_4(stopped: Daemon) -> None:
    (stopped.state / "store.sqlite").write_bytes(b"not a database" * 500)
    run = trunkline("serve", "--config", stopped.config)
    assert run.returncode == 4
    assert "store.sqlite" in one_line(run)


def test_lost_key_exits_with_4_and_makes_no_other(stopped: Daemon) -> None:
    (stopped.state / "key").unlink()
    run = trunkline("serve", "--config", stopped.config)
    assert run.returncode == 4
    assert "restore it" in one_line(run)
    assert not (stopped.state / "key").exists()


def test_second_daemon_exits_with_4(running: Daemon) -> None:
    run = trunkline("serve", "--config", running.config)
    assert running.process is not None
    assert run.returncode == 4
    assert f"in use by process {running.process.pid}" in one_line(run)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stop_exits_with_0(stopped: Daemon, how: signal.Signals) -> None:
    stopped.start()
    process = stopped.process
    assert process is not None
    assert process.stdout is not None
    process.send_signal(how)
    status = process.wait(SECONDS)
    process.stdout.close()
    assert status == 0
    assert not (stopped.state / "control.sock").exists()


def test_state_directory_is_private(running: Daemon) -> None:
    modes = {name: stat.S_IMODE((running.state / name).stat().st_mode) for name in (".", "key", "lock", "control.sock")}
    assert modes == {".": 0o700, "key": 0o600, "lock": 0o600, "control.sock": 0o600}


def test_provision_reaches_a_running_daemon(running: Daemon, tmp_path: Path) -> None:
    more = tmp_path / "more.toml"
    more.write_text('[[devices]]\nowner = "ada@example.org"\ntype = "example.light"\nname = "Porch"\n')
    dry = trunkline("provision", more, "--config", running.config, "--dry-run")
    with programs_started():
        first = trunkline("provision", more, "--config", running.config)
    second = trunkline("provision", more, "--config", running.config)
    assert [run.returncode for run in (dry, first, second)] == [0, 0, 0]
    assert "Dry run: nothing was changed." in dry.stdout
    assert "1 created" in first.stdout
    assert "devices Porch token" in " ".join(first.stdout.split())
    assert "1 unchanged" in second.stdout
    assert "Generated" not in second.stdout


@pytest.mark.parametrize("which", ["stopped", "running"])
def test_provision_error_names_file_table_and_key(request: pytest.FixtureRequest, which: str, tmp_path: Path) -> None:
    daemon: Daemon = request.getfixturevalue(which)
    bad = tmp_path / "bad.toml"
    bad.write_text('[[users]]\nemail = "eve@example.org"\npassword = "short"\n')
    run = trunkline("provision", bad, "--config", daemon.config)
    assert run.returncode == 1
    assert one_line(run) == f"trunkline: {bad}: users[0].password: must have 8 to 1024 characters"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), ("{", "not valid JSON"), ("[" * 2_000, "not valid JSON: more than 850")],
)
def test_provision_error_names_the_manifest_file(
    provisioned: Daemon, tmp_path: Path, content: str | None, problem: str
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[[device_types]]\nunique_name = "a.b"\norganization = "Acme"\nmanifest = "m.json"\n')
    if content is not None:
        (tmp_path / "m.json").write_text(content)
    run = trunkline("provision", bad, "--config", provisioned.config)
    assert run.returncode == 1
    assert f"{bad}: device_types[0].manifest: {tmp_path / 'm.json'}: {problem}" in one_line(run)


@pytest.mark.parametrize(
    ("number", "protocol", "listener"), [(0, "mqtt", "mqtt"), (1, "websocket", "http"), (2, "http", "http")]
)
def test_simulated_device_sends_the_requested_number_of_messages(
    running: Daemon, number: int, protocol: str, listener: str
) -> None:
    device = ["--device", device_id(number), "--protocol", protocol, "--address", running.addresses[listener]]
    count = ["--count", "3", "--period", "0"]
    sent = trunkline("simulate", *device, *count, TRUNKLINE_TOKEN=device_token(number))
    refused = trunkline("simulate", *device, *count, TRUNKLINE_TOKEN="0" * 32)
    assert (sent.returncode, sent.stdout) == (0, f"{device_id(number)} sent 3 messages\n")
    assert refused.returncode == 1
    assert "was refused" in one_line(refused)


def test_a_simulated_device_may_be_named(running: Daemon) -> None:
    where = ["--protocol", "http", "--address", running.addresses["http"], "--count", "1"]
    where += ["--config", str(running.config)]
    sent = trunkline("simulate", "--device", "Light 2", *where, TRUNKLINE_TOKEN=device_token(2))
    assert (sent.returncode, sent.stdout) == (0, "Light 2 sent 1 messages\n")
    nobody = trunkline("simulate", "--device", "Lamp", *where, TRUNKLINE_TOKEN=device_token(2))
    assert (nobody.returncode, one_line(nobody)) == (1, "trunkline: there is no device 'Lamp'")


def test_tail_prints_live_messages(running: Daemon) -> None:
    url = f"{running.ws_url}/live"
    where = ["--address", running.addresses["http"], "--period", "0.05"]
    simulating = ("simulate", "--device", device_id(3), "--protocol", "http", *where)
    simulator = start_command(*simulating, environment={**os.environ, "TRUNKLINE_TOKEN": device_token(3)})
    assert simulator.stdout is not None
    with simulator.stdout:
        run = trunkline("tail", "--live", url, "--count", "2", TRUNKLINE_TOKEN=USER_TOKEN)
        simulator.send_signal(signal.SIGTERM)
        simulator.wait(SECONDS)
    refused = trunkline("tail", "--live", url, TRUNKLINE_TOKEN="0" * 32)
    frames = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(frame["sdid"], frame["uid"]) for frame in frames] == [(device_id(3), ADA)] * 2
    assert refused.returncode == 1
    assert "refused with 401" in one_line(refused)


def test_demo_devices_send_and_end_with_it_and_its_password_is_shown_once(tmp_path: Path) -> None:
    shown = []
    for how in (signal.SIGKILL, signal.SIGTERM):
        with (tmp_path / "log").open("w") as log:
            process = start_command(*demo(tmp_path)[1:], stderr=log)
        lines = introduction(process)
        if how is signal.SIGKILL and IS_CI:
            # Board 5 has properties, no messages.
            assert senders(lines, 10) == {f"{'d0' * 15}{number:02}" for number in (1, 2, 3, 7)}
        process.send_signal(how)
        # The simulated devices hold the same pipe: reading ends when the last of them has ended.
        assert process.stdout is not None
        with process.stdout:
            process.stdout.read()
        assert process.wait(SECONDS) == (0 if how is signal.SIGTERM else -how)
        shown += [line.partition(", password ")[2].strip() for line in lines if line.strip().startswith("Sign in")]
    assert "state_not_saved" not in (tmp_path / "log").read_text()
    assert len(shown[0]) == 16
    assert shown[1] == "(was shown when this state directory was new)"


def senders(introduced: list[str], count: int) -> set[str]:
    """The devices of the next messages in the feed of the demo."""
    (exported,) = (line for line in introduced if line.startswith("export "))
    variables = dict(word.split("=", 1) for word in exported.split()[1:])
    url = f"ws{variables['URL'].removeprefix('http')}/v1.1/live"
    run = trunkline("tail", "--live", url, "--count", str(count), TRUNKLINE_TOKEN=variables["TOKEN"])
    assert (run.returncode, run.stderr) == (0, "")
    return {json.loads(line)["sdid"] for line in run.stdout.splitlines()}


@in_ci
def test_the_demo_keeps_its_store_in_postgresql(tmp_path: Path) -> None:
    postgresql = server()
    name = postgresql.new_database(template="template0")
    process = start_command(*demo(tmp_path, postgresql.url(name))[1:])
    assert any("MQTT" in line for line in introduction(process))
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert process.stdout is not None
    process.stdout.close()
    with postgresql.target(name).connect() as rows:
        assert rows.execute("SELECT count(*) FROM device").fetchone() == (7,)
    postgresql.drop(name)
    assert not (tmp_path / "demo" / "store.sqlite").exists()


def demo(folder: Path, store: str | None = None) -> list[str]:
    state = folder / "demo"
    command = [str(TRUNKLINE), "demo", "--state", str(state), *DEMO_ON_ANY_PORT]
    url = store or storage_of(state).url
    return command if url == Storage().url else [*command, "--store", url]


def introduction(process: subprocess.Popen[str] | ForkedProcess) -> list[str]:
    """The output of the demo up to its last line, the link to the console."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Console: "):
            break
    assert lines[0].startswith("trunkline ready http=127.0.0.1:")
    return lines


def test_a_state_directory_that_others_can_read_is_closed_to_them(stopped: Daemon) -> None:
    stopped.state.chmod(0o755)
    stopped.start()
    assert stopped.stop() == 0
    assert stopped.state.stat().st_mode & 0o777 == 0o700


def test_a_state_directory_that_others_can_write_to_is_refused(stopped: Daemon) -> None:
    """Its key or its store may be somebody else's."""
    stopped.state.chmod(0o777)
    run = trunkline("serve", "--config", stopped.config)
    assert run.returncode == 4
    assert "others may write into it" in one_line(run)
    assert stopped.state.stat().st_mode & 0o777 == 0o777


def test_a_directory_of_other_files_that_others_can_read_is_refused_and_not_changed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "letter.txt").write_text("not ours", encoding="ascii")
    config = tmp_path / "trunkline.toml"
    config.write_text(f'state_dir = "{shared}"\n[http]\nbind = "127.0.0.1:0"\n', encoding="utf-8")
    run = trunkline("serve", "--config", config)
    assert run.returncode == 4
    assert "others may read it" in one_line(run)
    assert shared.stat().st_mode & 0o777 == 0o755


# Keys and second factors


def token_of(daemon: Daemon, number: int) -> str:
    """A device token, as its owner reads it: opened from the store."""
    answer = httpx.get(f"{daemon.base_url}/devices/{device_id(number)}/tokens", headers=bearer(USER_TOKEN))
    token: str = answer.raise_for_status().json()["data"]["accessToken"]
    return token


def test_a_daemon_opens_its_secrets_with_the_new_key(stopped: Daemon) -> None:
    before = (stopped.state / "key").read_bytes()
    run = trunkline("key", "rotate", "--config", stopped.config)
    assert (run.returncode, run.stderr) == (0, "")
    assert (stopped.state / "key").read_bytes() != before
    stopped.start()
    try:
        assert token_of(stopped, 1) == device_token(1)
    finally:
        assert stopped.stop() == 0


def test_a_running_daemon_keeps_its_key(running: Daemon) -> None:
    before = (running.state / "key").read_bytes()
    run = trunkline("key", "rotate", "--config", running.config)
    assert run.returncode == 4
    assert "stop the daemon" in one_line(run)
    assert (running.state / "key").read_bytes() == before


def test_a_daemon_starts_between_two_steps_of_a_rotation(stopped: Daemon) -> None:
    key = stopped.state / "key"
    key.write_bytes(Vault.new_key() + b"\n" + key.read_bytes())
    stopped.start()
    try:
        assert token_of(stopped, 2) == device_token(2)
    finally:
        assert stopped.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("ada@example.org", "--second-factor"), 0, "ada@example.org has no second factor"),
        (("nobody@example.org", "--second-factor"), 1, "there is no user 'nobody@example.org'"),
        (("ada@example.org",), 2, "--second-factor"),
    ],
)
def test_a_second_factor_is_reset_on_a_stopped_daemons_state(
    stopped: Daemon, arguments: tuple[str, ...], status: int, said: str
) -> None:
    run = trunkline("user", "reset", *arguments, "--config", stopped.config)
    assert run.returncode == status
    assert said in run.stdout + run.stderr


def test_a_device_is_named_in_its_history_too(running: Daemon) -> None:
    def history(device: str) -> subprocess.CompletedProcess[str]:
        return trunkline("history", device, "--url", running.base_url.removesuffix("/v1.1"), TRUNKLINE_TOKEN=USER_TOKEN)

    assert history("Light 0").returncode == 0, history("Light 0").stderr
    assert one_line(history("Lamp")) == "trunkline: no devices are called 'Lamp'"
    failures = trunkline("type", "failures", "Light 0", "--config", running.config)
    assert (failures.returncode, failures.stdout) == (0, ""), failures.stderr


LISTING = (("device", "list"), ("user", "list"), ("app", "list"), ("limits",), ("audit",), ("device", "show", "x"))


@pytest.mark.sqlite("it makes a file without the last step; tests/storage/test_postgresql.py has an older database")
def test_commands_say_that_a_store_is_older_and_what_to_do_runs_as_it_is_shown(tmp_path: Path) -> None:
    """The commands change nothing."""
    config, store = tmp_path / "the trunkline.toml", tmp_path / "state/store.sqlite"
    config.write_text(f'state_dir = "{store.parent}"\n')
    store.parent.mkdir(mode=0o700)
    store.with_name("key").write_bytes(Vault.new_key())
    store.with_name("key").chmod(0o600)
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # as the daemon has left it
        migrations.apply(connection, stop_before=migrations.pending(connection)[-1])
    before = store.read_bytes()
    for words in LISTING:
        done = trunkline(*words, "--config", config)
        assert (done.returncode, done.stdout) == (4, ""), words
        about, _, shown = one_line(done).partition("run once: ")
        assert "it lacks 1 schema steps" in about, words
        assert store.read_bytes() == before, words
    assert shlex.split(shown) == [str(TRUNKLINE), "migrate", "--config", str(config)]
    subprocess.run(["sh", "-c", shown], check=True, capture_output=True, timeout=SECONDS)
    assert trunkline("device", "list", "--config", config).returncode == 0


@contextmanager
def daemon_that_answers(state: Path, answer: bytes) -> Iterator[None]:
    """The control socket of a daemon of another version."""
    state.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(state / "control.sock"))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as client:
                while client.recv(65_536):
                    pass
                client.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("device", "list"), b'{"data":[{"id":"a"}]}'),
        (("user", "list"), b'{"data":[{"id":"a"}]}'),
        (("limits",), b'{"data":{}}'),
        (("audit",), b'{"data":[{}]}'),
        (("type", "list"), b'{"data":[{}]}'),
        (("statistics",), b'{"data":7}'),
    ],
)
def test_a_daemon_of_another_version_is_named(
    tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...], answer: bytes
) -> None:
    folder = tmp_path_factory.mktemp("v")
    config = folder / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{folder}/s"\n', folder / "s"))
    with daemon_that_answers(folder / "s", answer):
        done = trunkline(*words, "--config", config)
    assert (done.returncode, "of another version than this program" in one_line(done)) == (1, True)


def test_statistics(tmp_path: Path) -> None:  # a short name: its folder has a socket
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path}/s"\n', tmp_path / "s"))
    node = {"node": "left.7", "lease_epoch": 1200, "standbys": ["right.8"], "is_first": True, "log_bytes": 2**20}
    with daemon_that_answers(tmp_path / "s", json.dumps({"data": {"node": node}}).encode()):
        done = trunkline("statistics", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "node",
        "node left.7",
        "lease epoch 1,200",
        "standbys right.8",
        "is first yes",
        "log bytes 1.0 MiB",
    ]


def test_a_daemon_says_what_it_does_not_know_with_its_version(running: Daemon) -> None:
    for command, arguments in (("device sing", {}), ("device list", {"sorted": True})):
        with pytest.raises(ControlFailedError, match=r"the running daemon, Trunkline \S+ \(.*schema \d+\), does not"):
            trio.run(send_command, running.state, command, arguments)
