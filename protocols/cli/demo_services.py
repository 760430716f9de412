"""PostgreSQL and HAProxy of `trunkline demo --nodes N`: the database of all nodes, and the balancer before them."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import trio

from config.settings import Address
from protocols.cli.demo_nodes import DemoNode
from protocols.cli.failures import CommandError
from protocols.operation.state import holder

_HAPROXY: Final = "haproxy"
#: Debian has it where only root looks.
_FOLDERS: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
_OR_NAMED: Final = (
    "or name a database, --store postgresql://USER@HOST/DATABASE, made by: createdb --template template0"
    " --encoding UTF8 --locale C DATABASE"
)
#: In short the example for several nodes, config/proxies/haproxy-several.cfg.
_CONFIGURATION: Final = """\
# Made by trunkline demo --nodes.
global
    maxconn 1000

defaults
    mode tcp
    balance leastconn
    timeout connect 2s
    timeout check 2s
    timeout client 30m
    timeout server 30m
    retries 3
    option redispatch 1
    option httpchk GET /readyz
    http-check expect status 200 error-status L7OKC
    default-server check inter 500ms fall 1 rise 1 on-marked-down shutdown-sessions
"""
_START_SECONDS: Final = 5.0
#: Runs a program until the standard input ends.
_WITH_STDIN: Final = '"$0" "$@" & read -r _; kill $!; wait'
_PART: Final = """
frontend {name}
    bind {address}
    default_backend trunkline_{name}

backend trunkline_{name}
{servers}
"""


# The database


@contextmanager
def database_in(state: Path, *, is_new: bool) -> Iterator[str]:
    """A server of PostgreSQL of the demo's own, until the block ends: its URL. It has no port, and its socket is in a
    folder that nobody else may enter.

    Args:
        state: the demo's folder, in which the data is, too; that of root, whom PostgreSQL refuses, in the home of the
            user postgres.
        is_new: the demo has no key yet, so nobody can read what was in the database.

    Raises CommandError: it is not installed, or does not start; or a demo runs on this folder.
    """
    if (process := holder(state)) is not None:
        raise CommandError(f"{state}: process {process} has it: stop that demo, or name another folder (--state)", 2)
    if (programs := _programs()) is None:
        raise CommandError(f"--nodes needs PostgreSQL: install its server (apt install postgresql), {_OR_NAMED}", 2)
    data, user = state / "postgresql", None
    if not os.geteuid():
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            raise CommandError(
                f"PostgreSQL does not run as root: start the demo as another user, {_OR_NAMED}", 2
            ) from None
        data = Path(user.pw_dir) / f"trunkline-demo-{sha256(bytes(state.absolute())).hexdigest()[:8]}"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = _Server(programs, data, user)
    # The path of a socket must be short, and whoever runs the server may enter no other private folder.
    with TemporaryDirectory(prefix="trunkline-demo.", dir=None if user is None else user.pw_dir) as sockets:
        if user is not None:
            os.chown(sockets, user.pw_uid, user.pw_gid)
        server.prepare(is_new=is_new)
        options = f"-c listen_addresses= -c unix_socket_directories={sockets}"
        server.run("pg_ctl", "-l", server.log, "-w", "-o", options, "start")
        try:
            yield f"postgresql://trunkline@/postgres?host={sockets}"
        finally:
            server.stop()


class _Server:
    def __init__(self, programs: Path, data: Path, user: pwd.struct_passwd | None) -> None:
        self._programs, self._data, self._user = programs, data, user
        self.log = data.with_name(f"{data.name}.log")

    def prepare(self, *, is_new: bool) -> None:
        """Make the data, unless it is there."""
        self.log.touch(mode=0o600)
        if self._user is not None:
            os.chown(self.log, self._user.pw_uid, self._user.pw_gid)
        if (self._data / "postmaster.pid").exists():  # a demo was killed, and it runs still
            self.stop()
        if is_new and self._data.exists():
            shutil.rmtree(self._data)
        if not (self._data / "PG_VERSION").exists():
            click.echo(f"Making a database of PostgreSQL in {self._data}.")
            self.run("initdb", "-U", "trunkline", "-A", "trust", "-E", "UTF8", "--locale=C")

    def stop(self) -> None:
        self.run("pg_ctl", "-m", "fast", "-w", "stop", is_needed=False)

    def run(self, name: str, *arguments: str | Path, is_needed: bool = True) -> None:
        """Raises CommandError: it has failed, and `is_needed`."""
        user = self._user
        other: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with self.log.open("a", encoding="utf-8") as said:  # a pipe would stay open in the server
            done = subprocess.run(  # noqa: S603 - PostgreSQL's own programs
                [self._programs / name, "-D", self._data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                check=False,
                cwd=self._data.parent,
                **other,
            )
        if done.returncode and is_needed:
            raise CommandError(f"{name} of PostgreSQL has failed: {self.log} says why")


def _programs() -> Path | None:
    """The folder of PostgreSQL's programs, of the newest version."""
    if (found := shutil.which("initdb", path=_FOLDERS)) is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return folders[-1].parent if folders else None


# The balancer


def find_balancer() -> str | None:
    """HAProxy's program, if it is installed."""
    return shutil.which(_HAPROXY, path=_FOLDERS)


def balancer_line(balancer: "DemoBalancer | None", *, is_balanced: bool) -> str:
    """Of the introduction."""
    if balancer is None:
        return "none: HAProxy is not installed (apt install haproxy). Each node has its own address"
    if not is_balanced:
        return f"HAProxy does not listen: {balancer.log} says why. Each node has its own address"
    return f"HAProxy: HTTP {balancer.addresses['http']}   MQTT {balancer.addresses['mqtt']}"


class DemoBalancer:
    """`addresses` are its own, for HTTP and MQTT; `log` has what HAProxy says."""

    def __init__(self, program: str, config: Path, addresses: Mapping[str, Address]) -> None:
        self.addresses, self.log = addresses, config.with_suffix(".log")
        self._program, self._config = program, config

    async def run(self, nodes: Sequence[DemoNode], task_status: trio.TaskStatus[bool]) -> None:
        """Run HAProxy until this is cancelled; tells whether it listens."""
        parts = [self._part(name, nodes) for name in self.addresses]
        self._config.write_text(_CONFIGURATION + "".join(parts), encoding="utf-8")
        with self.log.open("w", encoding="utf-8") as said:
            # Ctrl-C is for the demo. Nothing is written to the pipe: it ends when the demo ends, or is killed.
            process = await trio.lowlevel.open_process(
                ["/bin/sh", "-c", _WITH_STDIN, self._program, "-db", "-f", str(self._config)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        assert process.stdin is not None, "it is a pipe"  # noqa: S101 - as it was asked for
        try:
            task_status.started(await self._listens())
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await process.stdin.aclose()
                await process.wait()

    def _part(self, name: str, nodes: Sequence[DemoNode]) -> str:
        servers = [
            f"    server {node.name} {node.addresses[name]} port {node.addresses['http'].port}"
            for node in nodes
            if node.addresses
        ]
        return _PART.format(name=name, address=self.addresses[name], servers="\n".join(servers))

    async def _listens(self) -> bool:
        """Whether it does, after some seconds at most."""
        address = self.addresses["http"]
        with trio.move_on_after(_START_SECONDS):
            while True:
                with suppress(OSError):
                    stream = await trio.open_tcp_stream(address.host, address.port)
                    await stream.aclose()
                    return True
                await trio.sleep(0.05)
        return False
