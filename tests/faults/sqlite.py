"""Faults of a store in SQLite: of its disk, of the machine's power, and of the daemon."""

import errno
import random
import shutil
import signal
import sqlite3
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from storage.engines import engine_at
from tests.daemon import Daemon, device_id, run_command
from tests.faults import machine, outbound
from tests.faults.outbound import asked
from tests.faults.shim import ALL, STORE, Shim
from tests.faults.world import CLIENTS, Fleet, Row, compare, counted, end, log_of, make_rounds, under_load, wait
from tests.fork_server import commands_forked
from tests.stores import make_index
from tests.unpacking import unpack
from tests.upgrades.record import STORES

_STORE: Final = "store.sqlite"
#: The devices of the clients.
_DEVICES: Final = len(CLIENTS) - 1
_ONLY_READ_SECONDS: Final = 1.0
_LATE_SECONDS: Final = 10.0
#: Of a write that is torn: a disk writes whole sectors.
_SECTOR: Final = 512


class SqliteWorld:
    """A state directory of its own."""

    def __init__(self, folder: Path, chance: random.Random, *, devices: int = _DEVICES) -> None:
        self.folder, self.chance, self.devices = folder, chance, devices
        self.first = 0
        self.state = folder / "state"

    def daemon(self, held: ExitStack, *, name: str = "a", settings: str = "") -> Daemon:  # noqa: ARG002 - one at a time
        """A daemon on the store that does not run yet. It ends with the stack."""
        log = held.enter_context((self.folder / "log").open("a", encoding="utf-8"))
        daemon = Daemon(self.state, f'[coap]\nbind = "127.0.0.1:0"\n{settings}', log=log)
        if self.state.exists():
            daemon.write_config()
        else:
            daemon.configure(devices=self.devices)
        held.callback(end, daemon)
        return daemon

    def stored(self) -> Counter[tuple[int, int]]:
        return stored(self.state / _STORE, self.devices)


def stored(database: Path, devices: int = _DEVICES) -> Counter[tuple[int, int]]:
    """How often each number of each client is in a store. Raises RuntimeError: it is damaged."""
    with closing(sqlite3.connect(database)) as db:
        if (said := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise RuntimeError(said)
        rows = db.execute(
            "SELECT d.id, json_extract(m.data, '$.intensity') FROM message AS m JOIN device AS d ON d.key = m.device"
        ).fetchall()
        made = [name for (name,) in db.execute("SELECT name FROM device WHERE name LIKE 'made %'")]
    return counted(rows, made, devices)


@contextmanager
def shimmed(world: SqliteWorld, *, forked: bool = False) -> Iterator[tuple[Shim, Daemon]]:
    """A daemon that starts with the library; `forked`: as a fork of a process that has imported all of it already."""
    with ExitStack() as held:
        daemon = world.daemon(held)
        shim = Shim(world.folder, world.state)
        if forked:
            held.enter_context(commands_forked())
            with shim.loaded():  # the process begins with its first command
                run_command("--help", environment={})
        else:
            held.enter_context(shim.loaded())
        yield shim, daemon


def failing(
    world: SqliteWorld, rounds: int, *, calls: str, error: int, fault: str, seen: str, files: str = STORE
) -> Row:
    """All such calls fail for a while."""

    def act(_world: object, _daemon: Daemon, _fleet: Fleet) -> float:
        shim.arm(calls, files, error=error)
        time.sleep(world.chance.uniform(0.05, 0.3))
        shim.disarm()
        return time.monotonic()

    with shimmed(world) as (shim, daemon):
        return make_rounds(world, Row(fault, seen, rounds), daemon, act)


def each_call(world: SqliteWorld, rounds: int, *, calls: str, error: int, fault: str, seen: str) -> Row:
    """One call after the other fails, once: of those that follow each other, and of those to the store itself, which
    is written when the log is emptied into it."""
    turn = iter(range(rounds))

    def act(_world: object, _daemon: Daemon, _fleet: Fleet) -> float:
        number = next(turn)
        own = number % 4 == 3
        shim.arm(calls, "d" if own else ALL, error=error, skip=number // 4 if own else number, count=1)
        shim.wait_hit()
        shim.disarm()
        return time.monotonic()

    with shimmed(world) as (shim, daemon):
        return make_rounds(world, Row(fault, seen, rounds), daemon, act)


def each_call_of_a_start(world: SqliteWorld, rounds: int, *, calls: str, error: int, fault: str, seen: str) -> Row:
    """The daemon ends, by SIGKILL or SIGTERM, and starts; one call after the other of both fails, once.

    A start that fails has said why, and the next one goes on. Raises RuntimeError: it did not.
    """
    ways, turn, hits = (signal.SIGKILL, signal.SIGTERM), iter(range(rounds)), 0

    def act(_world: object, daemon: Daemon, _fleet: Fleet) -> float:
        nonlocal hits
        each, way = divmod(next(turn), 2)
        shim.arm(calls, ALL, error=error, skip=counts[way] * 2 * each // rounds, count=1)
        ended = _end_and_start(daemon, ways[way], shim)
        hits += shim.hits
        return ended

    with shimmed(world, forked=True) as (shim, daemon):
        daemon.start()
        counts = [shim.counted(calls, partial(_end_and_start, daemon, way)) for way in ways]
        daemon.stop()
        turn = iter(range(rounds := min(rounds, 2 * max(counts))))
        row = make_rounds(world, Row(fault, seen, rounds), daemon, act)
    row.fault += f" ({hits} of {' and '.join(map(str, counts))})"
    return row


def _end_and_start(daemon: Daemon, how: signal.Signals, shim: Shim | None = None) -> float:
    """Returns when it had ended. Raises RuntimeError: it has not said in one line why it did not end or start well."""
    assert daemon.process is not None
    before = len(log_of(daemon))
    daemon.process.send_signal(how)
    daemon.process.wait(60)
    daemon.kill()
    ended = time.monotonic()
    _start(daemon, shim, before)
    return ended


def _start(daemon: Daemon, shim: Shim | None, before: int = 0) -> None:
    """Start, and again without the fault if the first start says why it ends. `before`: how long its log was."""
    daemon.begin()
    try:
        daemon.wait_ready()
    except AssertionError:
        assert daemon.process is not None
        status = daemon.process.wait(60)
        daemon.kill()
        if shim is None or not status or not log_of(daemon)[before:].strip():
            raise RuntimeError(f"a start ended with {status}") from None
        shim.disarm()
        daemon.start()
    if "Traceback" in (said := log_of(daemon)[before:]):
        raise RuntimeError(said)


def renames(world: SqliteWorld, rounds: int) -> Row:
    """The rename of a mail fails, that of the copy which an upgrade keeps, or that of the first key; in turn.

    Each mail comes to the outbox later, and the next start goes on with all rows of the older store: what is not there
    counts as lost.
    """
    row = Row(
        "EIO of the renames of a mail, of the copy of an upgrade and of the first key, in turn",
        "`mail_server_unavailable`, and the mail comes 10 s later; the start says which file and why",
        rounds,
    )
    turn = iter(range(rounds))

    def mailed(daemon: Daemon, number: int) -> None:
        address = f"guest{number}@example.org"
        asked(daemon, "POST", f"/devices/{device_id(0)}/shares", json={"email": address})
        shim.wait_hit()
        shim.disarm()
        wait(lambda: any(address in one.read_text() for one in (world.state / "outbox").glob("*.eml")), "the mail")

    def started(daemon: Daemon) -> int:
        """Returns how many rows of its store are lost, of a daemon that does not run yet."""
        before = _rows(daemon.state)
        with (daemon.state.parent / "log").open("a", encoding="utf-8") as daemon.log:
            _start(daemon, shim)
            if not shim.hits:
                raise RuntimeError("nothing was renamed")
            daemon.stop()
        return before - _rows(daemon.state)

    def act(_world: object, daemon: Daemon, _fleet: Fleet) -> float:
        number = next(turn)
        other = Daemon(world.folder / f"{world.state.name}-{number}" / "state")  # its name begins as that of the world
        other.state.mkdir(parents=True)
        other.write_config()
        if number % 3 == 1:
            unpack(world.chance.choice(sorted(STORES.glob("*.tar.xz"))), other.state)
        shim.arm("n", ALL, error=errno.EIO, count=1)
        if number % 3 == 0:
            mailed(daemon, number)
        else:
            row.lost += started(other)
        return time.monotonic()

    with shimmed(world, forked=True) as (shim, daemon):
        return make_rounds(world, row, daemon, act)


def _rows(state: Path) -> int:
    """Messages and Actions in a store, if there is one."""
    if not (state / _STORE).exists():
        return 0
    with closing(sqlite3.connect(state / _STORE)) as db:
        found: int = db.execute("SELECT (SELECT count(*) FROM message) + (SELECT count(*) FROM action)").fetchone()[0]
    return found


def only_read(world: SqliteWorld, rounds: int) -> Row:
    """The kernel lets nothing be written any more; every other time the daemon is started on such a disk, too."""
    row = Row(
        f"the disk can only be read for {_ONLY_READ_SECONDS:.0f} s; a start on such a disk",
        "`nothing_is_stored` once a minute; a start says what cannot be written",
        rounds,
    )
    turn = iter(range(rounds))

    def act(_world: object, daemon: Daemon, fleet: Fleet) -> float:
        refused = fleet.refused
        shim.arm("wsontua", ALL, error=errno.EROFS)
        wait(lambda: fleet.refused > refused, "somebody is refused")
        time.sleep(_ONLY_READ_SECONDS)
        if next(turn) % 2:
            _end_and_start(daemon, signal.SIGKILL, shim)
        shim.disarm()
        return time.monotonic()

    with shimmed(world) as (shim, daemon):
        return make_rounds(world, row, daemon, act)


def late_sync(world: SqliteWorld, rounds: int) -> Row:
    row = Row(
        f"the disk takes {_LATE_SECONDS:.0f} s for a sync", "nothing; /ready says that a commit takes long", rounds
    )

    def act(_world: object, _daemon: Daemon, _fleet: Fleet) -> float:
        shim.arm("s", delay=int(1000 * _LATE_SECONDS), count=1)
        shim.wait_hit()
        shim.disarm()
        time.sleep(_LATE_SECONDS)
        return time.monotonic()

    with shimmed(world) as (shim, daemon):
        return make_rounds(world, row, daemon, act)


@dataclass(frozen=True, slots=True)
class _Step:
    kind: str
    file: str
    offset: int
    content: bytes


def power_cuts(world: SqliteWorld, rounds: int, *, messages: int = 3_000, torn: bool = False) -> Row:
    """Replay what the daemon wrote up to a random moment. Of what was not synced, a random part is on the disk.

    `torn`: the moment is in the middle of emptying the log into the store, and every page is there in part.
    """
    row = Row("power cut, replayed from the order of writes and syncs", "one line when the log was cut", rounds)
    if torn:
        row.fault = "power cut while the log is emptied into the store, with every such page torn"
    record = world.folder / "record"
    marks: list[tuple[int, tuple[int, int]]] = []
    with ExitStack() as held:
        daemon = world.daemon(held)
        shutil.copytree(world.state, world.folder / "before")
        with Shim(world.folder, world.state).loaded(FAULTS_RECORD=str(record)):
            daemon.start()
        of_load = Row("", "")
        noted: Callable[[int, int], None] = lambda *one: marks.append((record.stat().st_size, one))  # noqa: E731
        with under_load(world, of_load, [daemon], noted=noted) as fleet:
            fleet.wait_for(messages)
        daemon.kill()
    steps = list(_steps(record.read_bytes()))
    into = [end for end, step in steps if (step.kind, step.file) == ("W", "d")]
    acknowledged = len(marks)
    for _ in range(rounds):
        cut = world.chance.choice(into) if torn else world.chance.randrange(steps[-1][0])
        image = world.folder / "image"
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(world.folder / "before", image)
        _replay([step for end, step in steps if end <= cut], image, world.chance, torn=torn)
        before = time.monotonic()
        compare(row, {one for end, one in marks if end <= cut}, stored(image / _STORE))
        row.recovery.append(time.monotonic() - before)
    row.acknowledged = acknowledged
    row.lost += of_load.lost
    row.twice += of_load.twice
    return row


def _steps(data: bytes) -> Iterator[tuple[int, _Step]]:
    at = 0
    while at + 18 <= len(data):
        offset, size = struct.unpack("=qq", data[at + 2 : at + 18])
        end = at + 18 + size
        yield end, _Step(chr(data[at]), chr(data[at + 1]), offset, data[at + 18 : end])
        at = end


def _replay(steps: Sequence[_Step], image: Path, chance: random.Random, *, torn: bool) -> None:
    paths = {"d": image / _STORE, "l": image / f"{_STORE}-wal"}
    synced = {
        name: max((i for i, s in enumerate(steps) if (s.kind, s.file) == ("S", name)), default=-1) for name in paths
    }
    for path in paths.values():
        path.touch()
    with paths["d"].open("r+b") as store, paths["l"].open("r+b") as log:
        files = {"d": store, "l": log}
        for index, step in enumerate(steps):
            is_open = index > synced[step.file]
            tears = torn and step.file == "d"
            if step.kind == "S" or (is_open and not tears and chance.random() < 0.5):
                continue
            if step.kind == "T":
                files[step.file].truncate(step.offset)
                continue
            content, offset = step.content, step.offset
            if is_open and (tears or chance.random() < 0.2):  # a part of the write: whole sectors
                sectors = len(content) // _SECTOR
                begin = chance.randrange(sectors) * _SECTOR if tears and sectors else 0
                content = content[begin : begin + chance.randrange(sectors + 1) * _SECTOR]
                offset += begin
            files[step.file].seek(offset)
            files[step.file].write(content)


def stopped_with_backlog(world: SqliteWorld, rows: int) -> Row:
    """SIGTERM while `rows` rows wait for the snapshots and rollups."""
    row = Row(
        f"SIGTERM with a backlog of {rows:,} rows: seconds until it has ended", "nothing; the next start goes on", 1
    )
    with ExitStack() as held:
        daemon = world.daemon(held)
        daemon.start()
        daemon.stop()
        _fill(world.state / _STORE, rows)
        daemon.start()
        time.sleep(1)
        before = time.monotonic()
        if daemon.stop() != 0:
            raise RuntimeError("the daemon did not stop by itself")
        row.recovery.append(time.monotonic() - before)
    return row


def _fill(database: Path, rows: int) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        keys = [key for (key,) in db.execute("SELECT key FROM device ORDER BY key")]
        now_ms = time.time_ns() // 1_000_000
        db.executemany(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, ?, ?, ?, 1, ?)",
            (
                (n, keys[n % len(keys)], now_ms - rows + n, now_ms - rows + n, f'{{"intensity":{n}}}')
                for n in range(1, rows + 1)
            ),
        )
        db.execute("INSERT OR REPLACE INTO counter (name, value) VALUES ('head', ?)", (rows,))
    make_index(engine_at(str(database)))


_FULL: Final = "`nothing_is_stored` once a minute, with what helps; 503; the status in systemd"
_BROKEN: Final = "`nothing_is_stored` once a minute; the watchdog restarts the daemon when it lasts"
_DAMAGED: Final = "`store_damaged` once an hour for each table"
_ONCE: Final = "`nothing_is_stored` with the reason, then `stored_again`"
_START: Final = "the start goes on, or says which file and why, and systemd starts it again"
_CALLS: Final = {
    "r": "read",
    "w": "write",
    "s": "sync",
    "o": "open",
    "u": "unlink",
    "t": "truncation",
    "a": "allocation",
}

#: Each fault by its short name: how many rounds it has for each round that is wished, and what makes them.
FAULTS: Final[dict[str, tuple[float, Callable[[SqliteWorld, int], Row]]]] = {
    "kill": (10, machine.killed),
    "cuts": (25, power_cuts),
    "torn": (5, partial(power_cuts, torn=True)),
    "full": (
        1,
        partial(failing, calls="wa", error=errno.ENOSPC, fault="full disk, then room again", seen=_FULL, files=ALL),
    ),
    "full each": (
        5,
        partial(each_call, calls="wa", error=errno.ENOSPC, fault="full disk at one write after the other", seen=_ONCE),
    ),
    "only read": (0.5, only_read),
    "syncs": (1, partial(failing, calls="s", error=errno.EIO, fault="syncs that fail", seen=_BROKEN)),
    "reads": (1, partial(failing, calls="r", error=errno.EIO, fault="reads that fail", seen=_DAMAGED)),
    **{
        f"each {name}": (
            2,
            partial(each_call, calls=call, error=errno.EIO, fault=f"EIO of one {name} after the other", seen=_ONCE),
        )
        for call, name in _CALLS.items()
        if call in "ws"
    },
    **{
        f"start {name}": (
            2,
            partial(
                each_call_of_a_start,
                calls=call,
                error=errno.EIO,
                fault=f"EIO of one {name} after the other while the daemon ends and starts",
                seen=_START,
            ),
        )
        for call, name in _CALLS.items()
    },
    "renames": (0.6, renames),
    "late": (0.15, late_sync),
    **machine.FAULTS,
    **outbound.FAULTS,
}


def rows(rounds: int, chance: random.Random, chosen: Sequence[str], *, backlog: int) -> Iterator[Row]:
    """Every fault, or the chosen ones, each with its line of the table and a store of its own."""
    for name, (weight, fault) in FAULTS.items():
        if not chosen or name in chosen:
            with TemporaryDirectory(prefix="trunkline-faults-") as folder:
                yield fault(SqliteWorld(Path(folder), chance), max(1, round(rounds * weight)))
    if not chosen or "backlog" in chosen:
        with TemporaryDirectory(prefix="trunkline-faults-") as folder:
            yield stopped_with_backlog(SqliteWorld(Path(folder), chance), backlog)
