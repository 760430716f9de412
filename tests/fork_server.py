"""Starts `trunkline` commands as forks of one process that has imported the product once.

To start the interpreter and to import the daemon takes more than a second of processor time, and the tests start it a
hundred times. A forked command is as a started one: a process of its own with its own arguments, environment, folder,
files, signals and end. Only its `/proc/PID/cmdline` is the server's, and Argon2 has its lowest cost.
tests/protocols/cli/test_commands.py starts the installed program itself.

Saves 0.7 s of processor time for each of some hundred commands, and is started in 2 s: once for all processes of a
run, by the one that first needs it.

As a program (`python -m tests.fork_server SOCKET [FOLDER]`, a descriptor) this module is the server. It ends with the
last process that is connected to it. Between the server and each command stands a waiter, which is the command's parent
and reports its exit status.
"""

import atexit
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final, Never

from tests import leaks, opened_stores

#: Modules of the commands that tests start most often.
_COMMANDS = ("serve", "provision", "user", "rule", "device_types", "monetization", "audit", "statistics", "demo")
_REQUEST_BYTES = 1 << 17
_NUMBER_BYTES = 12
#: A variable that names a module which the command imports before it begins.
FIRST: Final = "TESTS_FIRST_IMPORT"
_REPORT = 3  # the descriptors of a request: standard input, output and error, the socket for the report,
_SECRETS, _STORES = 4, 5  # and the files of tests/leaks.py and, over PostgreSQL, tests/opened_stores.py


class ForkedProcess:
    """The part of `subprocess.Popen` that tests use, for a process that the server forked."""

    def __init__(self, report: socket.socket, stdout: IO[str]) -> None:
        self._report = report
        self.stdout: IO[str] | None = stdout
        self.returncode: int | None = None
        number = report.recv(_NUMBER_BYTES)
        assert number, "the server that forks commands has ended"
        self.pid = int(number)

    def poll(self) -> int | None:
        """The exit status, -N after signal N; None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            looking = select.poll()
            looking.register(self._report, select.POLLIN)
            if not looking.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._report.recv(_NUMBER_BYTES))
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """A process that has ended gets none. No other one has its number before `wait` has told of the end."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The server's process, from the first command on."""

    NUMBER_BYTES: Final = _NUMBER_BYTES  # of each of the two reports: the command's process and its exit status

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: whoever names the same one shares the server; None: it is this object's own."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(
        self, arguments: Sequence[str | Path], environment: Mapping[str, str], *, stderr: IO[str] | None
    ) -> ForkedProcess:
        """Start the program `arguments[0]` with a pipe for its output."""
        request = json.dumps([list(map(str, arguments)), dict(environment), str(Path.cwd())]).encode()
        report, theirs = socket.socketpair()
        read, write = os.pipe()
        with theirs, open(write, "w", encoding="utf-8") as stdout:  # noqa: PTH123 - a descriptor
            errors = 2 if stderr is None else stderr.fileno()
            self._send(request, [0, stdout.fileno(), errors, theirs.fileno()])
        return ForkedProcess(report, open(read, encoding="utf-8"))  # noqa: PTH123 - of the caller from now on

    def hand_over(self, connection: socket.socket) -> None:
        """Start the command of a request that came from another process (tests/forked_program.py)."""
        request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _REPORT + 1)
        try:
            if len(descriptors) == _REPORT + 1:
                self._send(request, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _send(self, request: bytes, descriptors: list[int]) -> None:
        if self._requests is None:
            self._requests = self._connected()
        notes = [leaks.KNOWN.file, *([] if (stores := opened_stores.OPENED.file) is None else [stores])]
        socket.send_fds(self._requests, [request], [*descriptors, *notes])

    def _connected(self) -> socket.socket:
        """A connection to the server, which begins if there is none."""
        if self._folder is None:
            requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._begin(theirs)
            return requests
        requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _one_at_a_time(self._folder) as address:
            try:
                requests.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                Path(address).unlink(missing_ok=True)
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                listening.bind(address)
                listening.listen()
                requests.connect(address)
                self._begin(listening, self._folder)
        return requests

    def _begin(self, theirs: socket.socket, *folder: Path) -> None:
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), *folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            if self._folder is None:
                self._process.wait()
            else:  # others may still use it
                _left.append(self._process)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[str]:
    """Within the block nobody else looks for the server of this folder, begins it or ends it. Gives its address."""
    with (folder / "forks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield f"{folder}/forks"


_left: list[subprocess.Popen[bytes]] = []  # as long as this process runs
_servers: list[ForkServer] = []


@contextmanager
def commands_forked(folder: Path | None = None) -> Iterator[None]:
    """Until the block ends, `running` gives a server, which is that of all who name the same folder."""
    server = ForkServer(folder)
    _servers.append(server)
    try:
        yield
    finally:
        _servers.remove(server)
        server.close()


def running(environment: Mapping[str, str]) -> ForkServer | None:
    """The server that can start a command with this environment; None: the program itself must be started."""
    has_own_libraries = "LD_PRELOAD" in environment  # which are loaded when a program starts
    return _servers[-1] if _servers and not has_own_libraries else None


def _serve(first: socket.socket, folder: Path | None) -> None:
    """Fork for each request. `first`: where those of a folder connect, or the one connection."""
    import trio
    from argon2.profiles import CHEAPEST

    from broker import secrets
    from tests.protocols.http.routes import shared_routes
    from tests.stores import schema_in_memory

    secrets.ARGON2_COST = CHEAPEST  # type: ignore[misc] # as in the tests' own processes
    for name in _COMMANDS:
        import_module(f"protocols.cli.{name}")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # no threads, which a fork would not have
    with schema_in_memory():
        pass  # has imported sqlite_utils: each start without a store takes 70 ms less
    with suppress(ImportError):  # psycopg may be missing
        import_module("storage.engines.postgresql")  # each start over PostgreSQL takes 70 of 220 ms less
    routes = shared_routes()
    routes.__enter__()
    trio.run(_make_tables)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the tests and to this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the waiters
    waiting = select.poll()
    waiting.register(first, select.POLLIN)
    open_ = {first.fileno(): first}
    while True:
        for number, _event in waiting.poll():
            if folder is not None and number == first.fileno():
                connection, _ = first.accept()
                waiting.register(connection, select.POLLIN)
                open_[connection.fileno()] = connection
            elif not _fork_for(open_[number], open_.values()):
                waiting.unregister(number)
                open_.pop(number).close()
                if folder is None or (len(open_) == 1 and _is_over(first, folder)):
                    return


def _is_over(listening: socket.socket, folder: Path) -> bool:
    """Nobody is connected. Afterwards whoever looks for the server begins one."""
    with suppress(FileNotFoundError), _one_at_a_time(folder) as address:  # the run may be over, too
        if select.select([listening], [], [], 0)[0]:
            return False
        Path(address).unlink()
    return True


def _fork_for(requests: socket.socket, sockets: Iterable[socket.socket]) -> bool:
    """Fork for the request of a connection. False: it has ended."""
    request, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _STORES + 1)
    if not request:
        return False
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in sockets:
            one.close()
        command = os.fork()
        if command != 0:
            _wait(command, descriptors[: _REPORT + 1])
        _become(request, descriptors)
        from protocols.cli import main  # the module is there

        try:
            main()
        except SystemExit as ended:
            if isinstance(ended.code, int):
                atexit.register(_end, ended.code)
            raise
    for descriptor in descriptors:
        os.close(descriptor)
    return True


async def _make_tables() -> None:
    """Make what each daemon makes once: its routes, the objects of LWM2M. Each start takes 25 of 90 ms less."""
    from protocols.http.application import build_app
    from tests.builders import opener_in
    from tests.postgresql import ENGINE

    if ENGINE == "postgresql":  # whose connections have threads, which a fork would not have
        return
    with TemporaryDirectory() as folder:
        async with opener_in(Path(folder))() as services:
            assert build_app(services).url_map


def _wait(command: int, descriptors: Sequence[int]) -> Never:
    """Report the command's process and, at its end, its exit status."""
    *standard, last = descriptors
    for descriptor in (*standard, 0, 1, 2):  # whoever reads the command's output must see its end
        os.close(descriptor)
    report = socket.socket(fileno=last)
    with suppress(OSError):  # the tests may have ended
        report.sendall(f"{command:<{_NUMBER_BYTES}}".encode())
        ended = os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        report.sendall(f"{status:<{_NUMBER_BYTES}}".encode())
        report.recv(1)  # until the other end is closed: the number of the process stays taken
    os._exit(0)


def _end(status: int) -> Never:
    """End the command when its threads have ended.

    Python would free each object of the product, which are in pages of the server: 60 ms of 250 for a daemon.
    """
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _become(request: bytes, descriptors: Sequence[int]) -> None:
    """Take over what the command has of its caller."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments, environment, folder = json.loads(request)
    for number in range(_REPORT):
        os.dup2(descriptors[number], number)
    for descriptor in descriptors[: _REPORT + 1]:
        os.close(descriptor)
    leaks.record_into(descriptors[_SECRETS])
    for stores in descriptors[_STORES:]:
        opened_stores.record_into(stores)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    for module in filter(None, [os.environ.pop(FIRST, "")]):
        import_module(module)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115 - a descriptor
        for number, mode in enumerate(("r", "w", "w"))
    )


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as received:
        _serve(received, Path(sys.argv[2]) if sys.argv[2:] else None)
