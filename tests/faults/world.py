"""What every fault has: a store of its own, clients that count on through it, and what was acknowledged and stored."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol, TypeVar

from tests.daemon import Daemon, device_id
from tests.faults.clients import PROTOCOLS, Exchange, Lasting, making
from tests.faults.windows import Windowed

#: The clients of most faults. `making` is the last one: it is no device.
CLIENTS: Final = (*PROTOCOLS, making)
WAIT_SECONDS: Final = 60.0
#: Clients wait so long for an answer, and less when they can try another daemon.
_ANSWER_SECONDS: Final = 5.0
_OTHER_SECONDS: Final = 1.0


@dataclass
class Row:
    """One line of the table."""

    fault: str
    seen: str  # what the operator sees
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    refused: int = 0
    stall: float = 0.0  # the longest, in seconds
    #: Of each round: seconds from the end of the fault to the next acknowledgement.
    recovery: list[float] = field(default_factory=list)
    #: What clients saw instead of an acknowledgement: how often each of "protocol: answer".
    clients: Counter[str] = field(default_factory=Counter)
    #: Of a server that has lost commits: how many of them, and how many positions, the daemon says. It is not at fault.
    said: int = 0
    said_positions: int = 0


class Fleet:
    """A client of each protocol, and one that makes devices."""

    def __init__(
        self,
        daemons: Sequence[Daemon],
        first: int,
        *,
        protocols: Sequence[Callable[..., Exchange]] = CLIENTS,
        windowed: int = 0,
        noted: Callable[[int, int], None] | None = None,
    ) -> None:
        """
        Args:
            daemons: clients try the next one when one does not answer.
            first: the numbers begin behind it.
            protocols: of the clients.
            windowed: so many devices with many messages in flight, instead.
            noted: called with the device and the number of each acknowledged message.
        """
        seconds = _ANSWER_SECONDS if len(daemons) == 1 else _OTHER_SECONDS
        self.clients: list[Lasting | Windowed] = [
            Lasting(daemons, number, protocol, first, seconds=seconds, noted=noted)
            for number, protocol in enumerate(protocols)
        ]
        if windowed:
            self.clients = [Windowed(daemons, number, first, seconds=seconds) for number in range(windowed)]

    @property
    def acknowledged(self) -> list[tuple[float, int, int]]:
        """The moment, the device and the number of each, in order."""
        return sorted((at, client.device, n) for client in self.clients for at, n in client.acknowledged.copy())

    @property
    def refused(self) -> int:
        return sum(client.refused for client in self.clients)

    @property
    def seen(self) -> Counter[str]:
        return sum((client.seen for client in self.clients if isinstance(client, Lasting)), Counter())

    def begin(self) -> None:
        for client in self.clients:
            client.start()

    def wait_for(self, more: int) -> None:
        """Wait until `more` further ones are acknowledged."""
        until = sum(len(client.acknowledged) for client in self.clients) + more
        wait(lambda: sum(len(client.acknowledged) for client in self.clients) >= until, "acknowledgements")

    def goes_on(self, moment: float) -> float:
        """Wait until every client has been acknowledged again since then; the seconds until the first one was."""
        for client in self.clients:
            wait(lambda of=client: bool(of.acknowledged) and of.acknowledged[-1][0] > moment, client.name)  # type: ignore[misc]
        return min(at for at, _, _ in self.acknowledged if at > moment) - moment

    def stall_since(self, moment: float) -> float:
        """The longest time in which nobody was acknowledged."""
        times = [at for at, _, _ in self.acknowledged]
        begun = max((at for at in times if at <= moment), default=moment)
        return max(after - before for before, after in pairwise([begun, *(at for at in times if at > begun)]))

    def end(self) -> None:
        for client in self.clients:
            client.stop.set()
        for client in self.clients:
            client.join(timeout=WAIT_SECONDS)


def wait(is_so: Callable[[], bool], what: str) -> None:
    """Wait until it is so. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_SECONDS:.0f} s: {what}")
        time.sleep(0.002)


class World(Protocol):
    """A store of its own, and what the faults have counted in it up to now."""

    chance: random.Random
    devices: int
    first: int  # the numbers of the next fault begin behind it

    def daemon(self, held: ExitStack, *, name: str = "a", settings: str = "") -> Daemon:
        """A daemon on the store that does not run yet. It ends with the stack."""

    def stored(self) -> Counter[tuple[int, int]]:
        """How often each number of each client is in the store."""


def counted(rows: Sequence[tuple[str, int]], made: Sequence[str], devices: int) -> Counter[tuple[int, int]]:
    """What is stored: `rows` has the device and the number of each message, `made` the names of the made devices."""
    numbers = {device_id(number): number for number in range(devices)}
    found = Counter((numbers[id_], number) for id_, number in rows)
    found.update((int(words[1]), int(words[2])) for name in made for words in (name.split(),))
    return found


@contextmanager
def under_load(
    world: World,
    row: Row,
    daemons: Sequence[Daemon],
    *,
    protocols: Sequence[Callable[..., Exchange]] = CLIENTS,
    windowed: int = 0,
    noted: Callable[[int, int], None] | None = None,
) -> Iterator[Fleet]:
    """Clients send while the block lasts; then what they know is compared with the store."""
    fleet, first = Fleet(daemons, world.first, protocols=protocols, windowed=windowed, noted=noted), world.first
    world.first += 1_000_000
    fleet.begin()
    try:
        yield fleet
    finally:
        fleet.end()
    compare(row, {(device, number) for _, device, number in fleet.acknowledged}, world.stored(), behind=first)
    row.refused += fleet.refused
    row.clients += fleet.seen


def compare(row: Row, acknowledged: set[tuple[int, int]], found: Counter[tuple[int, int]], *, behind: int = 0) -> None:
    row.acknowledged += len(acknowledged)
    row.lost += len(acknowledged - found.keys())
    row.twice += sum(times > 1 and number > behind for (_, number), times in found.items())


def end(daemon: Daemon) -> None:
    """Whatever it does, it has ended then."""
    if daemon.process is not None:
        if daemon.process.poll() is None:
            os.kill(daemon.process.pid, signal.SIGCONT)
        daemon.kill()


W = TypeVar("W", bound=World)
#: Makes a fault, and returns the moment at which it was over.
Act = Callable[[W, Daemon, Fleet], float]


def make_rounds(
    world: W,
    row: Row,
    daemon: Daemon,
    act: Act[W],
    *,
    protocols: Sequence[Callable[..., Exchange]] = CLIENTS,
    most: int = 120,
) -> Row:
    """Make the fault as often as the row says. Before each, up to `most` are acknowledged."""
    daemon.start()
    with under_load(world, row, [daemon], protocols=protocols) as fleet:
        for _ in range(row.rounds):
            fleet.wait_for(world.chance.randint(min(20, most), most))
            begun = time.monotonic()
            row.recovery.append(fleet.goes_on(act(world, daemon, fleet)))
            row.stall = max(row.stall, fleet.stall_since(begun))
    daemon.stop()
    return row


def log_of(daemon: Daemon) -> str:
    assert daemon.log is not None
    return Path(daemon.log.name).read_text(encoding="utf-8")


def process_of(daemon: Daemon) -> int:
    assert daemon.process is not None
    return daemon.process.pid
