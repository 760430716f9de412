"""Faults of a store in PostgreSQL: of the server, of the connection to it, and of the daemon, with one that stands by.

Each fault has rounds of its own on one server and one store. Whatever was acknowledged is looked for in the database
itself: messages of each protocol, and devices that were made, which are works of the store and no rows of the log.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

from tests.cutting_proxy import CuttingProxy
from tests.daemon import Daemon, command_output, write_world
from tests.faults import machine, outbound
from tests.faults.clients import PROTOCOLS
from tests.faults.machine import Clock, directly, faketime, kill
from tests.faults.windows import WINDOW
from tests.faults.world import WAIT_SECONDS, Act, Fleet, Row, counted, end, log_of, make_rounds, under_load, wait
from tests.postgresql import Server

_LEASE_SECONDS: Final = 4.0  # the least
PATIENCE_SECONDS: Final = 3.0
_AWAY_SECONDS: Final = 20.0  # longer than the patience and the lease
#: A disk for a server with a little to write.
_DISK: Final = "size=160m"
_FENCED, _REPLACED = 5, 6  # the exit statuses
#: Longer than the patience, so that clients are refused.
#: How many times as fast the clocks of a daemon run for which a minute is to be an hour.
_FAST: Final = 60
#: What it may keep in that hour. Of each kind it may write a line a minute, one at the beginning and one at the end.
_MORE_MIB: Final = 16.0
#: Devices of a load as in the benchmarks.
_MANY: Final = 50
_PROMOTED_SECONDS: Final = 6.0
#: As operators have it: a commit waits for the disk.
_DURABLE: Final = ("fsync=on", "full_page_writes=on", "max_wal_size=64MB", "checkpoint_timeout=5min")


@dataclass
class PostgresWorld:
    """A server of its own, a store in it, and what the faults have counted in it up to now."""

    folder: Path
    server: Server
    chance: random.Random
    database: str = "store"
    patience: float = PATIENCE_SECONDS
    lease: float = _LEASE_SECONDS
    devices: int = len(PROTOCOLS)
    url: str = ""  # of all servers, if there are several
    first: int = 0  # the numbers of the next fault begin behind it
    begun: float = field(default_factory=time.monotonic)
    _named: int = 0

    def daemon(self, held: ExitStack, *, name: str = "a", settings: str = "", port: int | None = None) -> Daemon:
        """A daemon on the store that does not run yet. `port`: of a proxy before the server."""
        self._named += 1
        folder = self.folder / f"{self._named}"
        state = folder / "state"
        state.mkdir(parents=True, mode=0o700)
        shutil.copy(self.folder / "provisioned" / "state" / "key", state / "key")
        log = held.enter_context((folder / "log").open("w", encoding="utf-8"))
        made = Daemon(state, self.settings(name, port) + settings, log=log)
        made.write_config()
        held.callback(end, made)
        return made

    def settings(self, name: str, port: int | None = None) -> str:
        url = self.url or self.server.url(self.database)
        if port is not None:
            url = f"postgresql://postgres@127.0.0.1:{port}/{self.database}?sslmode=disable&gssencmode=disable"
        return (
            f'[coap]\nbind = "127.0.0.1:0"\n[storage]\nurl = "{url}"\n[cluster]\nnode = "{name}"\n'
            f"lease_seconds = {self.lease}\npatience_seconds = {self.patience}\n"
        )

    def provision(self) -> None:
        """Make the clients' devices, and the schema where there is none."""
        config, file = write_world(self.folder / "provisioned", devices=self.devices, settings=self.settings("a"))
        command_output("provision", file, "--config", config)

    def stored(self) -> Counter[tuple[int, int]]:
        """How often each number of each client is in the store."""
        with self.server.target(self.database).connect() as connection:
            rows = connection.execute(
                "SELECT d.id, (m.data::json ->> 'intensity')::bigint FROM message AS m JOIN device AS d ON d.key ="
                " m.device"
            ).fetchall()
            names = connection.execute("SELECT name FROM device WHERE name LIKE 'made %'").fetchall()
        return counted(rows, [name for (name,) in names], self.devices)


@contextmanager
def world_of(
    folder: Path,
    chance: random.Random,
    *,
    on: Path,
    disk: str | None = None,
    devices: int = len(PROTOCOLS),
    environment: Mapping[str, str] | None = None,
) -> Iterator[PostgresWorld]:
    """A server in a folder below `on`, where its user may enter. `disk`: options of a tmpfs that its files are on;
    `environment`: of its processes."""
    own = Path(mkdtemp(prefix="trunkline-pg.", dir=on))
    with ExitStack() as held:
        held.callback(shutil.rmtree, own, ignore_errors=True)
        if disk is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", disk, "none", own], check=True, timeout=60)
            held.callback(lambda: subprocess.run(["umount", "-l", own], check=True, timeout=60))
        server = Server(own)
        server.environment |= environment or {}
        server.make(*_DURABLE)
        server.start()
        held.callback(server.stop, "immediate")
        server.administration.execute("CREATE DATABASE store TEMPLATE template0")
        server.administration.close()
        world = PostgresWorld(folder, server, chance, devices=devices)
        world.provision()
        yield world


def by_proxy(
    fault: str, seen: str, act: Callable[[PostgresWorld, CuttingProxy], float]
) -> Callable[[PostgresWorld, int], Row]:
    def run(world: PostgresWorld, rounds: int) -> Row:
        with ExitStack() as held:
            proxy = held.enter_context(closing(CuttingProxy(world.server.folder / ".s.PGSQL.5432")))
            daemon = world.daemon(held, port=proxy.port)
            return make_rounds(world, Row(fault, seen, rounds), daemon, lambda of, _daemon, _fleet: act(of, proxy))

    return run


def _restart(world: PostgresWorld, _daemon: Daemon, _fleet: Fleet) -> float:
    world.server.stop("immediate")
    stopped = time.monotonic()
    world.server.start()
    return stopped


def _away(seconds: float) -> Act[PostgresWorld]:
    def act(world: PostgresWorld, daemon: Daemon, fleet: Fleet) -> float:
        refused = fleet.refused
        world.server.stop("immediate")
        time.sleep(seconds)
        back = time.monotonic()
        world.server.start()
        if seconds > PATIENCE_SECONDS:
            if fleet.refused == refused:
                raise RuntimeError("nobody was refused while the server was away")
            if "nothing_is_stored" not in log_of(daemon):
                raise RuntimeError("the log does not say why nothing is stored")
        return back

    return act


def _stand_still(world: PostgresWorld, _daemon: Daemon, _fleet: Fleet) -> float:
    """All processes of the server stop; their sockets stay open and take what is sent."""
    main = int((world.server.data / "postmaster.pid").read_text(encoding="ascii").split()[0])
    children = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
    processes = [*map(int, children), main]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    time.sleep(_AWAY_SECONDS)
    gone_on = time.monotonic()
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    return gone_on


def _terminate(world: PostgresWorld, _daemon: Daemon, _fleet: Fleet) -> float:
    with world.server.target("postgres").connect() as connection:
        for _ in range(10):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = %s"
                " AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s) AS chosen",
                [world.database, world.chance.randint(1, 4)],
            )
            time.sleep(world.chance.uniform(0.02, 0.2))
    return time.monotonic()


def _cut(world: PostgresWorld, proxy: CuttingProxy) -> float:
    for _ in range(5):
        proxy.cut()
        time.sleep(world.chance.uniform(0.02, 0.2))
    return time.monotonic()


def _cut_in_commit(world: PostgresWorld, proxy: CuttingProxy) -> float:
    """Before the server has got it, or after it has done it: of rows alone, and of works."""
    cuts = [(marker, answered) for marker in (b"intensity", b"COMMIT") for answered in (False, True)]
    for marker, answered in world.chance.sample(cuts, len(cuts)):
        proxy.cut_at(marker, answered=answered)
        if not proxy.has_cut.wait(WAIT_SECONDS):
            raise TimeoutError("no commit came")
    return time.monotonic()


def _lose_for_good(world: PostgresWorld, proxy: CuttingProxy) -> float:
    proxy.has_lost.clear()
    proxy.loses = world.chance.choice(("up", "down"))
    if not proxy.has_lost.wait(WAIT_SECONDS):
        raise TimeoutError("nothing was sent")
    time.sleep(world.chance.uniform(0.1, 0.5))
    proxy.loses = ""
    return time.monotonic()


def _lose(world: PostgresWorld, proxy: CuttingProxy) -> float:
    proxy.loses = world.chance.choice(("up", "down"))
    time.sleep(world.chance.uniform(0.5, 1.5))
    proxy.loses = ""
    proxy.cut()
    return time.monotonic()


def disk_full(folder: Path, rounds: int, chance: random.Random, *, on: Path) -> Row:
    """On a file system that is really full. Raises CalledProcessError: it cannot be mounted."""
    row = Row(
        "the server's disk is full for 3 s, then has room", "`nothing_is_stored` once a minute, with what helps", rounds
    )

    def act(world: PostgresWorld, _daemon: Daemon, fleet: Fleet) -> float:
        filler, refused = world.server.folder / "filler", fleet.refused
        with filler.open("wb", buffering=0) as file:
            for piece in (bytes(1 << 20), bytes(4096)):
                try:
                    while True:
                        file.write(piece)
                except OSError:
                    continue
        wait(lambda: fleet.refused > refused, "somebody is refused on the full disk")
        time.sleep(3)
        filler.unlink()
        room = time.monotonic()
        if not (world.server.data / "postmaster.pid").exists():  # it ended: it could not write its log
            world.server.start()
        return room

    with world_of(folder, chance, on=on, disk=_DISK) as world, ExitStack() as held:
        return make_rounds(world, row, world.daemon(held), act)


def take_overs(world: PostgresWorld, rounds: int, *, how: signal.Signals, windowed: int = 0) -> Row:
    """Of two daemons the one that serves is killed or paused. The other one serves, and the first one stands by.

    `windowed`: devices with many messages in flight each.
    """
    name, seen = {
        signal.SIGKILL: ("kill -9", "`taken_over`"),
        signal.SIGTERM: ("SIGTERM", "`taken_over`"),
        signal.SIGSTOP: ("SIGSTOP, and SIGCONT after the take-over", "`taken_over`; the paused one ends with status 5"),
    }[how]
    load = f", {windowed} paho clients with {WINDOW} in flight each" if windowed else ""
    row = Row(f"{name} of one of two daemons{load}", seen, rounds)
    with ExitStack() as held:
        serving, other = (world.daemon(held, name=name) for name in "ab")
        serving.start()
        with under_load(world, row, [serving, other], windowed=windowed) as fleet:
            for _ in range(rounds):
                other.begin()
                wait(lambda of=other: "stands_by" in log_of(of), "a daemon stands by")  # type: ignore[misc]
                fleet.wait_for(world.chance.randint(20, 120) * (WINDOW if windowed else 1))
                begun = time.monotonic()
                assert serving.process is not None
                serving.process.send_signal(how)
                other.wait_ready()
                row.recovery.append(fleet.goes_on(begun + 0.2))  # what was under way is answered by then
                row.stall = max(row.stall, fleet.stall_since(begun))
                if how == signal.SIGSTOP:
                    serving.process.send_signal(signal.SIGCONT)
                    if (status := serving.process.wait(WAIT_SECONDS)) != _FENCED:
                        raise RuntimeError(f"the daemon that was paused ended with {status}")
                serving.kill()
                serving.addresses = {}
                assert serving.log is not None
                serving.log.truncate(0)
                serving, other = other, serving
    return row


def same_name(world: PostgresWorld, rounds: int) -> Row:
    """Another daemon with the name of the one that serves takes its place, and that one is not to be started again."""
    row = Row("a second daemon with the same `cluster.node`", "the first one ends with status 6", rounds)
    with ExitStack() as held:
        serving, other = (world.daemon(held) for _ in range(2))
        serving.start()
        with under_load(world, row, [serving, other]) as fleet:
            for _ in range(rounds):
                fleet.wait_for(world.chance.randint(20, 120))
                begun = time.monotonic()
                other.start()
                assert serving.process is not None
                if (status := serving.process.wait(WAIT_SECONDS)) != _REPLACED:
                    raise RuntimeError(f"the daemon whose name another one has ended with {status}")
                row.recovery.append(fleet.goes_on(time.monotonic()))
                row.stall = max(row.stall, fleet.stall_since(begun))
                serving.kill()
                serving.addresses = {}
                serving, other = other, serving
    return row


def clock_jumps(folder: Path, rounds: int, chance: random.Random, *, on: Path) -> Row:
    """Of two daemons the one that serves goes on when the server's clock jumps forwards. When it is killed just when
    the clock has jumped back, the other one takes over as after every kill."""
    row = Row(
        "the server's clock jumps 1 h forwards, then 2 h back; then kill -9 of one of two daemons", _TAKEN, rounds
    )
    with TemporaryDirectory(prefix="trunkline-clock-") as name:
        clock = Clock(Path(name), "libfaketime.so.1")
        with world_of(folder, chance, on=on, environment=clock.environment) as world, ExitStack() as held:
            serving, other = (world.daemon(held, name=name) for name in "ab")
            serving.start()
            with under_load(world, row, [serving, other]) as fleet:
                for _ in range(rounds):
                    other.begin()
                    wait(lambda of=other: "stands_by" in log_of(of), "a daemon stands by")  # type: ignore[misc]
                    fleet.wait_for(world.chance.randint(20, 120))
                    begun = time.monotonic()
                    clock.jump("+1h")
                    time.sleep(2 * _LEASE_SECONDS)
                    if not 3590 < _clock_of(world) - time.time() < 3610:
                        raise RuntimeError("the server's clock has not jumped")
                    assert serving.process is not None
                    if "taken_over" in log_of(other) or serving.process.poll() is not None:
                        raise RuntimeError("a jump of the clock took the lease away")
                    if fleet.stall_since(begun) > 2:
                        raise RuntimeError("nobody served after the jump")
                    killed = time.monotonic()
                    clock.jump("-1h")
                    serving.kill()
                    serving.addresses = {}
                    other.wait_ready()
                    row.recovery.append(fleet.goes_on(killed + 0.2))
                    row.stall = max(row.stall, fleet.stall_since(begun))
                    clock.jump("+0")
                    assert serving.log is not None
                    serving.log.truncate(0)
                    serving, other = other, serving
            if (far := _farthest_from_now(world)) > 60_000 + 1000 * (time.monotonic() - world.begun):
                raise RuntimeError(f"a message has a time that is {far / 1000:.0f} s away")
    return row


def _clock_of(world: PostgresWorld) -> float:
    with world.server.target(world.database).connect() as connection:
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::double precision").fetchone()
    assert row is not None
    return float(row[0])


def _farthest_from_now(world: PostgresWorld) -> float:
    """How far from the real time the `cts` of a message is, in ms."""
    with world.server.target(world.database).connect() as connection:
        row = connection.execute("SELECT min(cts), max(cts) FROM message").fetchone()
    assert row is not None
    now_ms = time.time() * 1000
    earliest, latest = map(float, row)
    return max(now_ms - earliest, latest - now_ms)


def fails_over(folder: Path, rounds: int, chance: random.Random, *, on: Path, synchronous: bool) -> Row:
    """The server fails, and its standby is promoted. Each round has servers of its own."""
    kind = "a synchronous" if synchronous else "an asynchronous"
    seen = _COPY if synchronous else "status 5 with the number of commits and positions; the next start goes on"
    row = Row(f"the server fails, {kind} standby is promoted after {_PROMOTED_SECONDS:.0f} s", seen, rounds)
    for number in range(rounds):
        (folder / f"{number}").mkdir()
        with world_of(folder / f"{number}", chance, on=on) as world, ExitStack() as held:
            standby = _standby_of(world, held, synchronous=synchronous)
            _fail_over(world, standby, row, world.daemon(held), synchronous=synchronous)
    return row


def standby_gone(folder: Path, rounds: int, chance: random.Random, *, on: Path) -> Row:
    row = Row("the synchronous standby is away until clients are refused", _MISSING, rounds)
    with world_of(folder, chance, on=on) as world, ExitStack() as held:
        standby = _standby_of(world, held, synchronous=True)

        def act(_world: PostgresWorld, daemon: Daemon, fleet: Fleet) -> float:
            refused = fleet.refused
            standby.stop()
            wait(lambda: fleet.refused > refused, "somebody is refused without the standby")
            if "a commit waits for a synchronous standby" not in log_of(daemon):
                raise RuntimeError("the log does not say why")
            back = time.monotonic()
            standby.start()
            return back

        make_rounds(world, row, world.daemon(held), act)
        standby.stop("immediate")
    return row


def _standby_of(world: PostgresWorld, held: ExitStack, *, synchronous: bool) -> Server:
    first = world.server
    standby = first.standby(Path(f"{first.folder}.standby"))
    held.callback(shutil.rmtree, standby.folder, ignore_errors=True)
    with (standby.data / "postgresql.conf").open("a", encoding="ascii") as file:
        file.write("cluster_name = 'standby'\n")
    standby.start()
    if synchronous:
        first.set("synchronous_standby_names", "1 (standby)")
    world.url = first.urls(world.database, standby)
    return standby


def _fail_over(world: PostgresWorld, standby: Server, row: Row, daemon: Daemon, *, synchronous: bool) -> None:
    first = world.server
    daemon.start()
    with under_load(world, row, [daemon]) as fleet:
        fleet.wait_for(world.chance.randint(20, 120))
        begun = time.monotonic()
        if not synchronous:  # so that it lacks something
            standby.stop()
            fleet.wait_for(world.chance.randint(20, 120))
        first.stop("immediate")
        if not synchronous:
            standby.start()
        time.sleep(_PROMOTED_SECONDS)
        if synchronous and "is the copy of another one" not in log_of(daemon):
            raise RuntimeError("the log does not say that the server is a copy")
        promoted = time.monotonic()
        standby.promote()
        world.server = standby
        if not synchronous:  # systemd does that
            assert daemon.process is not None
            if (status := daemon.process.wait(WAIT_SECONDS)) != _FENCED:
                raise RuntimeError(f"the daemon whose commits were lost ended with {status}")
            said = re.search(r"has lost what it had stored: (\d+) commits and (\d+) positions", log_of(daemon))
            if said is None:
                raise RuntimeError("the daemon does not say what is lost")
            row.said += int(said[1])
            row.said_positions += int(said[2])
            daemon.kill()
            daemon.start()
        row.recovery.append(fleet.goes_on(promoted))
        row.stall = max(row.stall, fleet.stall_since(begun))
    daemon.stop()
    world.server.stop("immediate")
    first.start()  # which the world ends


def away_for_an_hour(folder: Path, rounds: int, chance: random.Random, *, on: Path) -> Row:
    """The daemon's clocks run sixty times as fast, so a minute is an hour to it: libfaketime scales them, and waits.

    Raises RuntimeError: it keeps more memory than before, or writes more lines than one a minute of each kind. Those
    before the fault do not count: the round before had as many.
    """
    row = Row(f"the server is away for an hour of the daemon, whose clocks run {_FAST} times as fast", "", rounds)
    with world_of(folder, chance, on=on) as world, ExitStack() as held:
        world.patience, world.lease = PATIENCE_SECONDS * _FAST, _LEASE_SECONDS * _FAST
        world.server.environment |= {"LD_PRELOAD": ""}  # the server itself has the real clock
        daemon = world.daemon(held)

        def act(_world: PostgresWorld, daemon: Daemon, fleet: Fleet) -> float:
            refused, told_before, begun = fleet.refused, _events_of(daemon), time.monotonic()
            world.server.stop("immediate")
            time.sleep(900 / _FAST)
            before = _memory_mib(daemon)  # with what a daemon has that refuses
            time.sleep(2700 / _FAST)
            more, told = _memory_mib(daemon) - before, _events_of(daemon) - told_before
            back = time.monotonic()
            minutes = (back - begun) * _FAST / 60
            world.server.start()
            ((kind, most),) = told.most_common(1)
            row.seen = (
                f"as when it is away for 20 s; {told.total()} lines of log in {minutes:.0f} minutes, {most} of a"
                f" kind at most; {more:+.0f} MiB of memory in the last 45 minutes"
            )
            if fleet.refused == refused or more > _MORE_MIB or most > minutes + 2:
                raise RuntimeError(f"{row.seen}: {kind}; before it {told_before.most_common(3)}")
            return back

        with faster(_FAST):
            make_rounds(world, row, daemon, act)
    return row


def _events_of(daemon: Daemon) -> Counter[str]:
    """How often each event is in the log; that something works again, by what."""
    lines = [line.split("]", 1)[-1] for line in log_of(daemon).splitlines() if "]" in line]
    after = (re.search(r" after=\S+", line) for line in lines)
    return Counter(line.split()[0] + (found[0] if found else "") for line, found in zip(lines, after, strict=True))


def _memory_mib(daemon: Daemon) -> float:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def faster(times: int) -> Iterator[None]:
    """Processes that begin within the block have clocks that run so many times as fast."""
    former = dict(os.environ)
    os.environ |= {"LD_PRELOAD": str(faketime("libfaketimeMT.so.1")), "FAKETIME": f"+0 x{times}"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= former


def loaded(folder: Path, rounds: int, chance: random.Random, *, on: Path) -> Row:
    """A take-over while many messages are in flight."""
    with world_of(folder, chance, on=on, devices=_MANY) as world:
        return take_overs(world, rounds, how=signal.SIGKILL, windowed=_MANY)


_TAKEN: Final = "`taken_over`, after the kill alone"
_MISSING: Final = "`nothing_is_stored` once a minute: a commit waits for a synchronous standby; 503"
_COPY: Final = "`nothing_is_stored` once a minute: the server is the copy of another one; 503"
_WAITS: Final = "nothing: within `patience_seconds` clients wait"
_SILENT: Final = "`store_silent` with the number of connections; then as when the server is away"
_REASON: Final = "`nothing_is_stored` once a minute, with the reason; 503; no PUBACK"

#: The faults of one world by their short names.
FAULTS: Final[dict[str, Callable[[PostgresWorld, int], Row]]] = {
    "kill": machine.killed,
    "restart": directly("`pg_ctl restart -m immediate` of the server", _WAITS, _restart),
    "terminate": directly("`pg_terminate_backend` of 1 to 4 sessions, 10 times", _WAITS, _terminate),
    "cut": by_proxy("a proxy cuts all connections, 5 times", _WAITS, _cut),
    "commit": by_proxy("a proxy cuts in a commit, before or after the server has it", _WAITS, _cut_in_commit),
    "one way": by_proxy("one direction is lost for 1 s, then the connection is cut", _WAITS, _lose),
    "silent": by_proxy(
        "one direction is lost, the connection stays open",
        "`store_silent` with the number of connections",
        _lose_for_good,
    ),
    "second": directly("the server is away for 1 s", _WAITS, _away(1.0)),
    "away": directly(f"the server is away for {_AWAY_SECONDS:.0f} s", _REASON, _away(_AWAY_SECONDS)),
    "still": directly(f"the server stands still for {_AWAY_SECONDS:.0f} s", _SILENT, _stand_still),
    "minute": directly("the server is away for 60 s", _REASON, _away(60.0)),
    "take-over": lambda world, rounds: take_overs(world, rounds, how=signal.SIGKILL),
    "stop": lambda world, rounds: take_overs(world, rounds, how=signal.SIGTERM),
    "name": same_name,
    **{name: fault for name, (_, fault) in (machine.FAULTS | outbound.FAULTS).items()},
    "pause": lambda world, rounds: take_overs(world, rounds, how=signal.SIGSTOP),
}


def short(world: PostgresWorld) -> Row:
    """One daemon: connections that are cut in commits, sessions that the server ends, and a kill."""

    def act(proxy: CuttingProxy, of: PostgresWorld, daemon: Daemon, fleet: Fleet) -> float:
        _cut_in_commit(of, proxy)
        _terminate(of, daemon, fleet)
        return kill(of, daemon, fleet)

    with ExitStack() as held:
        proxy = held.enter_context(closing(CuttingProxy(world.server.folder / ".s.PGSQL.5432")))
        daemon = world.daemon(held, port=proxy.port)
        return make_rounds(world, Row("short", "", 1), daemon, partial(act, proxy))


#: Of these, so many rounds take as long as one of another fault.
_LONG: Final = {"away": 4, "minute": 5, "still": 4, "pause": 2, "gone": 2} | dict.fromkeys(
    ("clock", "synchronous", "asynchronous", "load"), 2
)

#: Faults with servers of their own, each by its short name.
_APART: Final[dict[str, Callable[..., Row]]] = {
    "full": disk_full,
    "synchronous": partial(fails_over, synchronous=True),
    "standby": standby_gone,
    "asynchronous": partial(fails_over, synchronous=False),
    "clock": clock_jumps,
    "hour": away_for_an_hour,
    "load": loaded,
}


def rows(rounds: int, chance: random.Random, chosen: Sequence[str] = ()) -> Iterator[Row]:
    """Every fault on a disk of the machine, or the chosen ones, each with its line of the table."""
    on = Path("/var/tmp")  # noqa: S108 - a folder of its own is made in it
    names = chosen or [*FAULTS, *_APART]
    if together := [name for name in FAULTS if name in names]:
        with TemporaryDirectory(prefix="trunkline-faults-") as folder, world_of(Path(folder), chance, on=on) as world:
            for name in together:
                yield FAULTS[name](world, max(1, rounds // _LONG.get(name, 1)))
    for name in filter(names.__contains__, _APART):
        with TemporaryDirectory(prefix="trunkline-faults-") as folder:
            yield _APART[name](Path(folder), max(1, rounds // _LONG.get(name, 1)), chance, on=on)
