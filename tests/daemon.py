"""The real daemon in a process of its own, for end-to-end tests and benchmarks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

import structlog
import trio

from config.loading import load_settings
from config.settings import Address
from config.settings_checks import SOCKET_LIMITS
from protocols.cli.provision import apply_document, read_provision_file
from storage.engines.port import EngineConnection
from tests.factories import LIGHT_MANIFEST
from tests.fork_server import ForkedProcess, running
from tests.leaks import heard
from tests.postgresql import ENGINE, STATES, made_once
from tests.stores import configuration, copy_state, store_of

_COMMAND_SECONDS = 60
TRUNKLINE = Path(sys.executable).parent / "trunkline"
#: Options of `trunkline demo` for free ports.
DEMO_ON_ANY_PORT = ("--http-port", "0", "--mqtt-port", "0", "--coap-port", "0", "--lwm2m-port", "0")

#: Settings of `limits` for one user with thousands of connections and feeds.
MANY_CONNECTIONS = "".join(f"{name} = 1000000\n" for name in SOCKET_LIMITS)

USER_TOKEN, APPLICATION_TOKEN = "33" * 16, "34" * 16
ADA_EMAIL, ADA = "ada@example.org", "ada0" * 8
DASHBOARD, LIGHT_TYPE = "aa" * 16, "dt" + "1e" * 16
#: Of a provision file: the Dashboard with a secret, which an own receiver of callbacks on this machine needs.
DASHBOARD_WITH_SECRET = f"""
[[applications]]
id = "{DASHBOARD}"
name = "Dashboard"
organization = "Acme"
secret = "s3cret"
redirect_uri = "http://localhost/"
methods = ["client_credentials"]
permissions = [{{ device_type = "*", permissions = ["READ", "WRITE"] }}]
"""


def device_id(number: int) -> str:
    return f"{0xD0000000 + number:032x}"


def device_token(number: int) -> str:
    return f"{0x70000000 + number:032x}"


@dataclass
class Daemon:
    """One state directory and the daemon that may be running on it."""

    state: Path
    settings: str = ""
    addresses: dict[str, str] = field(default_factory=dict)  # the first of each listener
    ready: list[tuple[str, str, int]] = field(default_factory=list)  # all of them
    process: subprocess.Popen[str] | ForkedProcess | None = None
    log: IO[str] | None = None  # where the daemon's log goes; None: to the test's output

    @property
    def config(self) -> Path:
        return self.state.parent / "trunkline.toml"

    def configure(self, *, devices: int) -> None:
        """Write the configuration beside a state directory in which Ada has this many lights."""
        provisioned = _provisioned(devices)
        shutil.copytree(provisioned, self.state.parent, ignore=shutil.ignore_patterns("state"), dirs_exist_ok=True)
        copy_state(provisioned / "state", self.state)
        self.write_config()

    def write_config(self) -> None:
        _write_configuration(self.config, self.state, self.settings)

    @contextmanager
    def store(self, *, read_only: bool = False) -> Iterator[EngineConnection]:
        """As `tests/stores.py: store_of`."""
        with store_of(load_settings(self.config, {}), read_only=read_only) as connection:
            yield connection

    def start(self) -> None:
        """Start the daemon, and wait for its ready line."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start the daemon without waiting."""
        self.process = start_command("serve", "--config", self.config, stderr=self.log)

    def wait_ready(self) -> None:
        """Read the ready line of the process, and the addresses in it."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("trunkline ready"), f"the daemon said {line!r} and returned {self.process.poll()}"
        pairs = [pair.split("=", 1) for pair in line.split()[2:]]
        self.addresses = {name: address for name, address in reversed(pairs)}  # noqa: C416 - the first one of each
        self.ready = [(name, address.host, address.port) for name, text in pairs for address in (Address.parse(text),)]

    def host_port(self, name: str) -> tuple[str, int]:
        host, _, port = self.addresses[name].rpartition(":")
        return host, int(port)

    def port(self, name: str) -> int:
        return self.host_port(name)[1]

    @property
    def base_url(self) -> str:
        return f"http://{self.addresses['http']}/v1.1"

    @property
    def ws_url(self) -> str:
        return f"ws://{self.addresses['http']}/v1.1"

    def kill(self) -> None:
        """End the process with SIGKILL, without a chance to save."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End the process with SIGTERM, as systemd does; return the exit status."""
        return self._end(signal.SIGTERM)

    def begin_to_stop(self) -> None:
        """Send SIGTERM without waiting; `stop` sends another one."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def interrupt(self) -> int:
        """End the process with SIGINT, as Ctrl-C does; return the exit status."""
        return self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> int:
        process = self.process
        if process is None:
            return 0
        process.send_signal(how)
        status = process.wait(timeout=30)
        assert process.stdout is not None
        heard(process.stdout.read())
        process.stdout.close()
        if self.log is not None:
            heard(Path(self.log.name).read_text(encoding="utf-8", errors="replace"))
        self.process = None
        return status


@contextmanager
def running_daemon(folder: Path, *, devices: int, settings: str = "") -> Iterator[Daemon]:
    daemon = Daemon(folder / "state", settings)
    daemon.configure(devices=devices)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        STATES.drop(daemon.state)


@cache
def _provisioned(devices: int) -> Path:
    """A folder with the state directory after `trunkline provision`, which runs once for each number of lights."""
    if ENGINE == "sqlite":
        return made_once(f"provisioned-{devices}", partial(_provision, devices))
    # Each process knows its own databases by their state directories.
    folder = Path(_FOLDER.name) / f"{os.getpid()}-{devices}"
    _provision(devices, folder)
    return folder


def _provision(devices: int, folder: Path) -> None:
    config, file = write_world(folder, devices=devices)
    if trio.lowlevel.in_trio_run():
        # The settings that a test gives its daemon by variables are not for this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
        command_output("provision", file, "--config", config, environment=environment)
        return
    # Unit tests need no other command: the server that would fork this one takes two seconds to start.
    document, unreadable = read_provision_file(file)
    assert not unreadable
    former = structlog.get_config()
    trio.run(partial(apply_document, load_settings(config, {}), document, dry_run=False))
    structlog.configure(**former)  # the command's level would hide lines from the tests that come after


def write_world(
    folder: Path, *, devices: int, settings: str = "", manifest: Mapping[str, object] = LIGHT_MANIFEST
) -> tuple[Path, Path]:
    """Write a configuration, and a provision file in which Ada has this many lights."""
    folder.mkdir()
    config, file = folder / "trunkline.toml", folder / "provision.toml"
    _write_configuration(config, folder / "state", settings)
    (folder / "light.json").write_text(json.dumps(manifest), encoding="utf-8")
    file.write_text(
        _WORLD + "".join(_DEVICE.format(id=device_id(n), n=n, token=device_token(n)) for n in range(devices)),
        encoding="utf-8",
    )
    return config, file


def start_command(
    *arguments: str | Path, stderr: IO[str] | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str] | ForkedProcess:
    """Start `trunkline` with these arguments and a pipe for its output. `stderr` is the test's own if it is None.

    Tests fork it (tests/fork_server.py); benchmarks start the program.
    """
    given = {**(os.environ if environment is None else environment), "PYTHONUNBUFFERED": "1"}
    if (server := running(given)) is not None:
        return server.start([TRUNKLINE, *arguments], given, stderr=stderr)
    return subprocess.Popen([TRUNKLINE, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True, env=given)


def run_command(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `trunkline` with these arguments to its end, as `subprocess.run` does with captured output."""
    with TemporaryFile("w+", encoding="utf-8") as errors:
        process = start_command(*arguments, stderr=errors, environment=environment)
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read()
        status = process.wait(_COMMAND_SECONDS)
        errors.seek(0)
        heard(said := errors.read())
        return subprocess.CompletedProcess(["trunkline", *map(str, arguments)], status, output, said)


def command_output(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a `trunkline` command that must succeed; return its output."""
    done = run_command(*arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _write_configuration(path: Path, state: Path, settings: str = "") -> None:
    text = (
        f'state_dir = "{state}"\n[http]\nbind = "127.0.0.1:0"\n[mqtt]\nbind = "127.0.0.1:0"\n'
        f'[limits]\nrate_limits = "off"\nquotas = "off"\n{settings}'
    )
    path.write_text(configuration(text, state), encoding="utf-8")


_FOLDER = TemporaryDirectory(prefix="trunkline-tests-")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"bearer {token}"}


def chunks(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for index in range(0, len(items), size):
        yield items[index : index + size]


_WORLD = f"""
[[organizations]]
name = "Acme"
monthly_messages = -1

[[users]]
id = "{ADA}"
email = "{ADA_EMAIL}"
full_name = "Ada"
password = "correct horse battery staple"
organization = "Acme"
role = "administrator"

[[applications]]
id = "{DASHBOARD}"
name = "Dashboard"
organization = "Acme"
secret = "s3cret"
redirect_uri = "https://app.example.org/callback"
methods = ["client_credentials"]
permissions = [{{ device_type = "*", permissions = ["READ", "WRITE"] }}]

[[device_types]]
id = "{LIGHT_TYPE}"
unique_name = "example.light"
name = "Light"
organization = "Acme"
published = true
manifest = "light.json"

[[tokens]]
value = "{USER_TOKEN}"
application = "{DASHBOARD}"
user = "{ADA_EMAIL}"
expires_in = 86400

[[tokens]]
value = "{APPLICATION_TOKEN}"
application = "{DASHBOARD}"
expires_in = 86400

[[grants]]
user = "{ADA_EMAIL}"
application = "{DASHBOARD}"
device_type = "example.light"
permissions = ["READ", "WRITE"]
"""

_DEVICE = """
[[devices]]
id = "{id}"
owner = "ada@example.org"
type = "example.light"
name = "Light {n}"
token = "{token}"
"""
