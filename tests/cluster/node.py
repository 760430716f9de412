"""Daemons on one database of PostgreSQL: several that serve together, or one that serves and others that stand by."""

import hashlib
import http.client
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Final

from tests.daemon import Daemon, command_output, write_world
from tests.factories import LIGHT_MANIFEST
from tests.free_port import free_port
from tests.postgresql import TEMPLATE, made_once, server

LEASE_SECONDS: Final = 4.0  # the least
#: A busy machine.
PATIENCE_SECONDS: Final = 30.0


class Node:
    """A daemon with a state directory and ports of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        key: Path,
        *,
        nodes: str = "one",
        settings: str = "",
        cluster: str = "",
        mqtt: str = "",
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """`nodes`: of `cluster`; `settings`, `cluster` and `mqtt` are further lines of the configuration. LWM2M_PORT in
        `settings` is a free port of this node."""
        folder.mkdir()
        self.name, self.url = name, url
        self.http, self.mqtt, self.coap, self.lwm2m = (free_port() for _ in range(4))
        self.daemon = Daemon(folder / "state", "")
        self.daemon.state.mkdir(mode=0o700)
        shutil.copy(key, self.daemon.state / "key")
        self.daemon.config.write_text(
            f'state_dir = "{self.daemon.state}"\n[http]\nbind = "127.0.0.1:{self.http}"\n'
            f'[mqtt]\nbind = "127.0.0.1:{self.mqtt}"\n{mqtt}[coap]\nbind = "127.0.0.1:{self.coap}"\n'
            f'[limits]\nrate_limits = "off"\nquotas = "off"\n{settings.replace("LWM2M_PORT", str(self.lwm2m))}'
            f'[storage]\nurl = "{url}"\n[cluster]\nnode = "{name}"\nnodes = "{nodes}"\n'
            f"lease_seconds = {lease_seconds}\n{cluster}",
            encoding="utf-8",
        )
        self._log_path = folder / "log"
        self._log: IO[str] | None = None

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.http}/v1.1"

    @property
    def websocket(self) -> str:
        return f"ws://127.0.0.1:{self.http}/v1.1"

    def begin(self) -> None:
        """Start the daemon, without waiting until it serves."""
        self.close()
        self._log = self._log_path.open("a", encoding="utf-8")
        self.daemon.log = self._log
        self.daemon.begin()

    def start(self) -> None:
        self.begin()
        self.daemon.wait_ready()

    def stand_by(self) -> None:
        self.begin()
        wait_until(lambda: self.health("/healthz") == 200, f"{self.name} stands by")

    def health(self, path: str) -> int:
        """The status of the answer; 0 without one."""
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)) as connection:
                connection.request("GET", path)
                return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8")

    def status(self) -> int:
        """The exit status of the daemon, which ends by itself."""
        assert self.daemon.process is not None
        return self.daemon.process.wait(PATIENCE_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        assert self.daemon.process is not None
        os.kill(self.daemon.process.pid, number)

    def close(self) -> None:
        if self.daemon.process is not None:
            if self.daemon.process.poll() is None:
                self.signal(signal.SIGCONT)
            self.daemon.kill()
        if self._log is not None:
            self._log.close()
            self._log = None


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> float:
    """The seconds until it was so, and a tenth more: what is looked for often takes processor time of the nodes."""
    began = time.monotonic()
    waiting = threading.Event()
    while not is_so():
        passed = time.monotonic() - began
        assert passed < seconds, f"not within {seconds} s: {what}"
        waiting.wait(min(max(0.02, passed / 10), 0.2))
    return time.monotonic() - began


@contextmanager
def running_nodes(
    folder: Path,
    *names: str,
    devices: int = 8,
    settings: str = "",
    manifest: Mapping[str, object] = LIGHT_MANIFEST,
) -> Iterator[list[Node]]:
    """Nodes that serve one store, in which Ada has so many lights."""
    postgresql = server()
    key, provisioned = _provisioned(devices, json.dumps(manifest))
    database = postgresql.new_database(template=provisioned)
    url = postgresql.url(database)
    nodes = [Node(folder / name, name, url, key, nodes="several", settings=settings) for name in names]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.close()
        postgresql.drop(database)


@cache
def _provisioned(devices: int, manifest: str) -> tuple[Path, str]:
    """The key of a database that nobody uses, and its name: to copy it takes 10 ms, and to make it 0.7 s."""
    database = f"nodes_{devices}_{hashlib.sha256(manifest.encode()).hexdigest()[:12]}"

    def make(folder: Path) -> None:
        postgresql = server()
        postgresql.make_database(database, TEMPLATE)
        settings = f'[storage]\nurl = "{postgresql.url(database)}"\n'
        config, file = write_world(folder, devices=devices, settings=settings, manifest=json.loads(manifest))
        command_output("provision", file, "--config", config)

    return made_once(database, make) / "state" / "key", database


def new_node(folder: Path, name: str, like: Node, *, cluster: str = "", settings: str = "") -> Node:
    """One more node of the same store, which does not run yet."""
    key = like.daemon.state / "key"
    return Node(folder / name, name, like.url, key, nodes="several", cluster=cluster, settings=settings)
