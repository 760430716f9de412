"""Faults of the daemon and of its machine, over any store."""

import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.daemon import Daemon
from tests.faults.clients import PROTOCOLS
from tests.faults.world import Act, Fleet, Row, W, World, make_rounds, process_of, under_load

_STOPPED_SECONDS: Final = 8.0
#: Forwards and backwards, by an hour as of a wrong time zone, and to where a machine without a battery begins.
_JUMPS: Final = ("+1h", "-1h", "+400d", "-20000d", "+0")
_EXHAUSTED_SECONDS: Final = 3.0
_STRANGERS: Final = 200


def directly(fault: str, seen: str, act: Act[W], *, most: int = 120) -> Callable[[W, int], Row]:
    """Rounds of a fault that needs only the daemon; see `make_rounds`."""

    def run(world: W, rounds: int) -> Row:
        with ExitStack() as held:
            return make_rounds(world, Row(fault, seen, rounds), world.daemon(held), act, most=most)

    return run


def kill(_world: World, daemon: Daemon, _fleet: Fleet) -> float:
    daemon.kill()
    at = time.monotonic()
    daemon.start()
    return at


def _stop(_world: World, daemon: Daemon, _fleet: Fleet) -> float:
    os.kill(process_of(daemon), signal.SIGSTOP)
    time.sleep(_STOPPED_SECONDS)
    os.kill(process_of(daemon), signal.SIGCONT)
    return time.monotonic()


class Clock:
    """The clock of processes that start with its environment: libfaketime moves it, and not their steady clock."""

    def __init__(self, folder: Path, library: str = "libfaketimeMT.so.1") -> None:
        self._file = folder / "offset"
        folder.chmod(0o755)
        self.environment = {
            "LD_PRELOAD": str(faketime(library)),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.jump("+0")

    def jump(self, offset: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset}\n", encoding="ascii")
        fresh.chmod(0o644)
        fresh.replace(self._file)


def faketime(name: str) -> Path:
    """The library. Raises FileNotFoundError."""
    library = next(Path("/usr/lib").glob(f"*/faketime/{name}"), None)
    if library is None:
        raise FileNotFoundError("libfaketime is not installed")
    return library


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Processes that start within the block have the variables."""
    former = dict(os.environ)
    os.environ |= variables
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= former


def clock_jumps(world: World, rounds: int) -> Row:
    """Devices on each protocol are acknowledged after each jump. Tokens of users end on the way, so none is used."""
    row = Row(f"the daemon's clock jumps: {', '.join(_JUMPS)}", "nothing", rounds)
    with TemporaryDirectory(prefix="trunkline-clock-") as name, ExitStack() as held:
        clock = Clock(Path(name))
        held.enter_context(environment(clock.environment))

        def act(_world: World, _daemon: Daemon, fleet: Fleet) -> float:
            at = 0.0
            for jump in _JUMPS:
                at = time.monotonic()
                clock.jump(jump)
                fleet.goes_on(at)
            return at

        return make_rounds(world, row, world.daemon(held), act, protocols=PROTOCOLS)


def descriptors(world: World, rounds: int) -> Row:
    """The process may open no more files than it has: strangers have the last ones. Other clients come meanwhile."""
    row = Row(
        f"no free descriptors for {_EXHAUSTED_SECONDS:.0f} s, and new clients of each protocol",
        "`connections_refused` once for each listener",
        rounds,
    )

    def act(world: World, daemon: Daemon, _fleet: Fleet) -> float:
        process = process_of(daemon)
        former = resource.prlimit(process, resource.RLIMIT_NOFILE)
        highest = max(int(one.name) for one in Path(f"/proc/{process}/fd").iterdir())
        resource.prlimit(process, resource.RLIMIT_NOFILE, (highest + 1, former[1]))
        with ExitStack() as held:
            for number in range(_STRANGERS):
                one = held.enter_context(closing(socket.socket()))
                one.setblocking(False)
                one.bind((f"127.1.0.{number + 1}", 0))
                with suppress(BlockingIOError):
                    one.connect(daemon.host_port("mqtt" if number % 2 else "http"))
            with under_load(world, row, [daemon], protocols=PROTOCOLS):
                time.sleep(_EXHAUSTED_SECONDS)
        resource.prlimit(process, resource.RLIMIT_NOFILE, former)
        return time.monotonic()

    with ExitStack() as held:
        return make_rounds(world, row, world.daemon(held), act)


killed: Final = directly("kill -9 of the daemon", "systemd restarts the daemon", kill, most=400)

#: Each fault by its short name: how many rounds it has for each round that is wished, and what makes them.
FAULTS: Final[dict[str, tuple[float, Callable[[World, int], Row]]]] = {
    "stopped": (0.25, directly(f"SIGSTOP for {_STOPPED_SECONDS:.0f} s", "nothing", _stop)),
    "daemon's clock": (0.25, clock_jumps),
    "descriptors": (0.25, descriptors),
}
