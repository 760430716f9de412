"""Keeps the folds of the devices, their snapshots and rollups, up to date with the message log.

Rows are added to the folds in memory soon after their commit. Each device is written about once a minute, a few devices
in one transaction, together with the position up to which nothing is missing in the store. After a crash the rows
behind that position are added again; each device skips the rows that it has already.

Reads merge memory and store, so nothing that was acknowledged is missing in them.

The log's index gets the same rows, because they are sorted by device here (`broker/messages/log_indexer.py`).
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from broker.facts import FactPhase, MessagesStored, Router
from broker.loops import Loop, Wakeup
from broker.messages.folds import Fields, Folds, FoldTally, Unsaved, write_folds
from broker.messages.log_indexer import LogIndexer, RowsByDevice
from broker.messages.rollups import RollupWriter
from storage.database import Database
from storage.keys import DeviceKey, Position
from storage.leases import Holder
from storage.records import MessageRow, SnapshotRow
from storage.sql import StaleLeaseError, StoreDamagedError, StoreError
from storage.transaction import Transaction

#: A device is written once its oldest unwritten row is this old, so that each bucket of a minute is written once.
WRITE_SECONDS: Final = 60.0
#: How often, and after how many rows, new rows are added to the folds: after more for many devices, because a single
#: row costs several times as much as one in a batch of its device.
_LOOK_SECONDS: Final = 1.0
_LOOK_ROWS: Final = 4_000
_LOOK_ROWS_OF_A_DEVICE: Final = 8
_LOOK_ROWS_MOST: Final = 12_000
#: Where other nodes store rows, too, the log is read after about as many rows as these, so that the index follows.
_READ_ON_ROWS: Final = 8_000
_READ_ON_SECONDS: Final = 0.05
#: Rows of a device that are added in one piece; seconds after which other tasks have their turn; rows between two looks
#: at the clock. Most rows cost a microsecond, and a few, after which sums are made, a millisecond.
_ROWS_AT_ONCE: Final = 128
_FOLD_SECONDS: Final = 0.01
_CLOCK_ROWS: Final = 16
#: Devices are written earlier when there is more than this to be done again after a crash, or to be held in memory.
_UNWRITTEN_ROWS: Final = 2_000_000
_HELD_DEVICES: Final = 10_000
_HELD_FIELDS: Final = 400_000
#: Devices of one transaction, at least: other writes wait for it.
_WRITE_DEVICES: Final = 50
#: Rows beyond this number are not held, but read from the log when their turn comes.
_HELD_ROWS: Final = 50_000
_READ_ROWS: Final = 2_000
#: After a failed write, in seconds. Mostly the disk has failed, and then nothing new is stored.
_RETRY_SECONDS: Final = 5.0
#: A stop is not held up by rows that are in the log and can be added later.
_SAVE_SECONDS: Final = 2.0
_CONSUMER: Final = "folds"
_NOTE_SECONDS: Final = 10.0
_log = structlog.get_logger(__name__)

T = TypeVar("T")
_Saves = Sequence[tuple[SnapshotRow, Unsaved]]


class ProjectorStatistics(msgspec.Struct, frozen=True):
    """`position`: of the last row in the folds. `written_position`: nothing up to there is missing in the store.
    `indexed_position`: rows up to there have index entries, which the store has or will have with its next commit."""

    position: Position
    written_position: Position
    indexed_position: Position
    held_rows: int
    unwritten_devices: int


class _Unwritten(msgspec.Struct, frozen=True):
    """A device with rows that are not written: the position of the first one, and since when it waits."""

    first: Position
    since: float


class Projector:
    def __init__(self, database: Database, lease: Holder, router: Router | None) -> None:
        """`router` publishes each row; None: other nodes store rows, too, and all are read from the log."""
        self._database = database
        self._lease = lease
        self._position = self._written = Position(0)
        self._folds: dict[DeviceKey, Folds] = {}
        self._tally = FoldTally()
        self._unwritten: dict[DeviceKey, _Unwritten] = {}  # in the order of their first positions
        self._writer = RollupWriter()
        self._retry_at = 0.0
        self._looked_at = float("inf")
        self._held = RowsByDevice()  # rows since the last look
        self._adding = RowsByDevice()  # the rows that `_add` is adding
        self._follows = False  # no row is missing between the added ones, or a read of the log under way, and `_held`
        self._is_reading = False  # rows before `_held`, from the log
        self._writing: Collection[DeviceKey] = ()  # their folds must not change until they are saved
        self._wakeup = Wakeup()
        self._indexer = LogIndexer(database, lease)
        self._working = trio.Lock()
        self._damaged: set[DeviceKey] = set()  # devices that were logged already
        self._reads = router is None
        if router is not None:
            router.subscribe(MessagesStored, self._messages_stored, FactPhase.STATE)
        self.project_forever = Loop(
            self._step, every=_LOOK_SECONDS, wakeup=self._wakeup, at_once=True, failure="folds_not_saved"
        ).run

    @property
    def position(self) -> Position:
        """Every row up to this position is in the folds."""
        return self._position

    def statistics(self) -> ProjectorStatistics:
        return ProjectorStatistics(
            self._position, self._written, self._indexer.position, self._held.number, len(self._unwritten)
        )

    # The folds in memory up to a position. A device without folds in memory has all its rows up to there in the store.
    # Folds in memory may have rows after it; each tells its own position.

    def fields_of(self, devices: Collection[DeviceKey]) -> tuple[Position, dict[DeviceKey, tuple[Position, Fields]]]:
        """The snapshots that are in memory, and their position."""
        position, found = self._caught_up(devices)
        return position, {device: (folds.position, folds.fields()) for device, folds in found.items()}

    def captured(self, devices: Collection[DeviceKey]) -> tuple[Position, dict[DeviceKey, Unsaved]]:
        """The rollups that are in memory, and their position."""
        position, found = self._caught_up(devices)
        return position, {device: folds.capture() for device, folds in found.items()}

    def _caught_up(self, devices: Collection[DeviceKey]) -> tuple[Position, dict[DeviceKey, Folds]]:
        """The folds of these devices in memory, and their position.

        Their rows that wait are added first, because reading them from the log takes longer. It never waits.
        """
        found = {device: self._folds[device] for device in devices if device in self._folds}
        if not self._follows or self._is_reading:
            return self._position, found
        position = max(self._position, self._adding.last, self._held.last)
        for device in devices:
            for waiting in (self._adding.of, self._held.of):
                if device not in waiting:
                    continue
                rows = waiting[device]
                if device not in found or device in self._writing or len(rows) > _LOOK_ROWS:
                    position = self._position  # the rows are read from the log, and those after them
                    break
                found[device].fold(rows)
        return position, found

    # Work

    async def resume(self) -> None:
        """Read the position of the last run. Rows after it are added while the daemon runs."""
        self._position = await self._database.read(saved_position)
        self._written = self._position
        await self._indexer.resume(self._position)

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Project while the lease is held. Where several nodes have it one after the other, begin with what the one
        before has stored."""
        if self._lease.held is None:
            await self.project_forever(task_status=task_status)
            return
        await self._begin_anew()
        await self.project_forever(task_status=task_status)

    async def note_others_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """While another node projects: reads begin where the store is whole."""
        await Loop(self._note_others, every=_NOTE_SECONDS, failure="snapshots_not_looked_at").run(
            task_status=task_status
        )

    async def _note_others(self) -> None:
        saved = await self._database.read(saved_position)
        if not self._is_held():
            self._position = self._written = max(self._position, saved)

    def _is_held(self) -> bool:
        try:
            self._lease.held  # noqa: B018 - it raises
        except StaleLeaseError:
            return False
        return True

    async def _begin_anew(self) -> None:
        async with self._working:
            while True:
                try:
                    self.forget_all()
                    await self.resume()
                except StoreError:
                    await trio.sleep(_RETRY_SECONDS)
                else:
                    return

    def forget_all(self) -> None:
        """Another node has the folds."""
        for folds in self._folds.values():
            folds.leave_tally()
        self._folds, self._unwritten, self._position = {}, {}, self._written
        self._held, self._adding, self._follows, self._is_reading = RowsByDevice(), RowsByDevice(), False, False

    async def flush(self) -> None:
        """Add every durable row, and write all devices. Raises StoreError."""
        async with self._working:
            await self._catch_up()
            self._indexer.flush()
            until = self._position
            while self._unwritten and next(iter(self._unwritten.values())).first <= until:
                await self._write_some()
            await self._note_position()

    async def forget(self, devices: Collection[DeviceKey]) -> None:
        """Hold nothing of devices whose rows are about to be removed for good. Raises StoreError.

        Without the lease nothing is held: the node that has it writes no folds of a device that is gone.
        """
        if not self._is_held():
            return
        async with self._working:
            await self._catch_up()
            self._indexer.flush()  # so that the removal finds the entries
            for device in devices:
                self._unwritten.pop(device, None)
                if (folds := self._folds.pop(device, None)) is not None:
                    folds.leave_tally()

    async def caught_up(self, device: DeviceKey) -> Position:
        """Add every durable row, and write the device; up to which position rows were added. Raises StoreError."""
        async with self._working:
            await self._catch_up()
            self._indexer.flush()
            await self._write_one(device)
            return self._position

    async def rewrite(self, device: DeviceKey, work: Callable[[Transaction], T]) -> T:
        """Run a work that changes what the store has of a device, all of whose rows were written before. Raises
        StoreError."""
        async with self._working:
            await self._catch_up()
            await self._write_one(device)
            if (folds := self._folds.pop(device, None)) is not None:
                folds.leave_tally()
            # Shielded: of a write that nobody waits for, nobody knows whether it was committed.
            with trio.CancelScope(shield=True):
                done = await self._database.write_own(self._lease, work)
            return done  # noqa: RET504 - to mypy, the scope could have ended without it

    async def _write_one(self, device: DeviceKey) -> None:
        if device in self._unwritten:
            await self._write([device])

    async def save(self) -> None:
        """Write for a short time, when the daemon stops: the rows that remain are added again after the next start."""
        with trio.move_on_after(_SAVE_SECONDS):
            await self.flush()

    async def _step(self) -> bool:
        """True: many rows come, so it looks again before the usual time."""
        begun, behind = trio.current_time(), self._position
        await self._bring_up_to_date()
        number, seconds = self._position - behind, trio.current_time() - min(begun, self._looked_at)
        self._looked_at = trio.current_time()
        if not self._reads or number < _READ_ON_ROWS:
            return False
        await trio.sleep(max(_READ_ON_SECONDS, min(_LOOK_SECONDS, seconds * _READ_ON_ROWS / number)))
        return True

    async def _bring_up_to_date(self) -> None:
        async with self._working:
            await self._catch_up()
            self._indexer.flush_when_due()
            if self._is_crowded():
                self._drop_written()
            while self._is_due():
                await self._write_some()
                await self._add_held()
            await self._note_position()

    def _messages_stored(self, fact: MessagesStored) -> None:
        held = self._held
        held.add(fact.rows)
        if held.number >= _LOOK_ROWS and (
            held.number >= _LOOK_ROWS_OF_A_DEVICE * len(held.of)
            or held.number >= _LOOK_ROWS_MOST
            or self._indexer.is_far_behind(held.last)
        ):
            self._wakeup.set()
        if held.number > _HELD_ROWS:
            self._held, self._follows = RowsByDevice(), False

    # Adding rows

    async def _catch_up(self) -> None:
        self._follows &= not self._reads
        if self._follows:
            await self._add_held()
        while not self._follows:
            try:
                await self._read_on()
            except BaseException:  # also a cancellation; raised again
                self._follows = False  # the rows before the held ones were not all read
                raise

    async def _add_held(self) -> None:
        held, self._held = self._held, RowsByDevice()
        if held.number and self._follows:
            await self._add(held)

    async def _read_on(self) -> None:
        # From now on every commit is held. A row that is held and read is added once, because positions are compared.
        self._held, self._follows, self._is_reading = RowsByDevice(), True, True
        is_behind = True
        while self._follows and is_behind:
            rows = await self._database.read(partial(_after, self._position))
            await self._add(RowsByDevice(rows))
            is_behind = len(rows) == _READ_ROWS
            while self._is_due():
                await self._write_some()
        self._is_reading = False

    async def _add(self, rows: RowsByDevice) -> None:
        self._adding = rows
        try:
            if missing := [device for device in rows.of if device not in self._folds]:
                loaded = await self._load(missing)
                for folds in loaded.values():
                    folds.enter_tally()
                self._folds |= loaded
            self._indexer.note(rows)
            self._expect_write(rows)
            # Shielded, so that no rows are missing in the folds of a part of the devices.
            with trio.CancelScope(shield=True):
                await self._fold(rows)
        except BaseException:  # also a cancellation; raised again
            self._follows = False  # the rows are read from the log next time
            raise
        finally:
            self._adding = RowsByDevice()
        self._position = max(self._position, rows.last)
        self._indexer.flush_when_due()

    def _expect_write(self, rows: RowsByDevice) -> None:
        now = trio.current_time()
        for device, some in rows.of.items():
            if (folds := self._folds.get(device)) is None:
                self._leave_out(device, some[-1].position)
            elif device not in self._unwritten and some[-1].position > folds.saved_position:
                self._unwritten[device] = _Unwritten(some[0].position, now)

    async def _fold(self, rows: RowsByDevice) -> None:
        number, timed_at, until = 0, _CLOCK_ROWS, perf_counter() + _FOLD_SECONDS
        for device, some in rows.of.items():
            if (folds := self._folds.get(device)) is None:
                continue
            for start in range(0, len(some), _ROWS_AT_ONCE):
                piece = some if len(some) <= _ROWS_AT_ONCE else some[start : start + _ROWS_AT_ONCE]
                folds.fold(piece)
                number += len(piece)
                is_long = number >= _LOOK_ROWS
                if not is_long and number >= timed_at:  # not for each device, which may have one row
                    timed_at, is_long = number + _CLOCK_ROWS, perf_counter() >= until
                if is_long:
                    await trio.lowlevel.checkpoint()
                    number, timed_at, until = 0, _CLOCK_ROWS, perf_counter() + _FOLD_SECONDS

    async def _load(self, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Folds]:
        """The folds of these devices, except folds on a page that cannot be read."""
        try:
            return await self._database.read(lambda tx: Folds.load(tx, devices, self._tally))
        except StoreDamagedError:
            if len(devices) == 1:
                return {}
            middle = len(devices) // 2
            return await self._load(devices[:middle]) | await self._load(devices[middle:])

    def _leave_out(self, device: DeviceKey, position: Position) -> None:
        if device not in self._damaged:
            self._damaged.add(device)
            _log.error("snapshot_incomplete", position=position, device=device)

    # Writing

    def _is_due(self) -> bool:
        if not self._unwritten:
            return False
        oldest, now = next(iter(self._unwritten.values())), trio.current_time()
        return now >= self._retry_at and (
            now - oldest.since >= WRITE_SECONDS
            or self._position - oldest.first >= _UNWRITTEN_ROWS
            or self._is_crowded()
        )

    def _is_crowded(self) -> bool:
        return len(self._folds) > _HELD_DEVICES or self._tally.fields > _HELD_FIELDS

    def _drop_written(self) -> None:
        """Drop the devices that are written, except where a read has added new rows."""
        self._drop(
            [
                device
                for device, folds in self._folds.items()
                if device not in self._unwritten and folds.position <= folds.saved_position
            ]
        )

    def _drop(self, devices: Sequence[DeviceKey]) -> None:
        """Forget devices that are written; they are read again at their next rows."""
        for device in devices:
            self._folds.pop(device).leave_tally()

    async def _write_some(self) -> None:
        await trio.lowlevel.checkpoint()  # a stop ends here, because it does not interrupt a write
        # More of them when many wait: so the number that waits has a bound.
        await self._write(list(islice(self._unwritten, max(_WRITE_DEVICES, len(self._unwritten) // 20))))

    async def _write(self, devices: Sequence[DeviceKey], *, again: bool = True) -> None:
        """Write these devices. Raises StoreError; then they wait as before.

        `again`: when a page is damaged and only one device is to be written, try it once more.
        """
        saves = [self._folds[device].unsaved() for device in devices]
        waiting = {device: self._unwritten.pop(device) for device in devices}
        oldest = next(iter(self._unwritten.values()), None)
        # Rows of a device that waits may be in no folds, because adding failed, or in the store already.
        until = self._position if oldest is None else min(self._position, Position(oldest.first - 1))
        until = max(self._written, until)
        self._writing, is_durable = frozenset(devices), False
        try:
            # Shielded: of a write that nobody waits for, nobody knows whether it was committed.
            with trio.CancelScope(shield=True):
                await self._database.write_own(self._lease, partial(self._save, saves, until))
            is_durable = True
        except StoreDamagedError:
            self._unwritten = waiting | self._unwritten
            await self._write_around(devices, again=again)
            return
        except BaseException:  # whatever it is; raised again
            self._unwritten = waiting | self._unwritten
            self._retry_at = trio.current_time() + _RETRY_SECONDS
            raise
        finally:
            self._writer.committed(is_durable)
            self._writing = ()
        self._written = until
        for device in devices:
            self._folds[device].saved()
        if self._is_crowded():
            self._drop(devices)

    async def _note_position(self) -> None:
        """Write the position when no device has to be written, such as after rows that were written before a crash."""
        if not self._unwritten and self._written < self._position:
            await self._write(())

    async def _write_around(self, devices: Sequence[DeviceKey], *, again: bool) -> None:
        """Write devices in halves; leave out a device with a page that cannot be read."""
        if len(devices) > 1:
            middle = len(devices) // 2
            await self._write(devices[:middle])
            await self._write(devices[middle:])
        elif again:  # the damage may be in an index of the log, which the second try leaves alone
            await self._write(devices, again=False)
        else:
            for device in devices:
                self._leave_out(device, self._unwritten.pop(device).first)
            self._drop(devices)

    def _save(self, saves: _Saves, until: Position, tx: Transaction) -> None:
        self._writer.begin()  # after damage this is called again, while its first transaction is rolled back
        write_folds(tx, saves, self._writer)
        tx.messages.set_consumer_position(_CONSUMER, until)


def _after(position: Position, tx: Transaction) -> list[MessageRow]:
    return tx.messages.after(position, limit=_READ_ROWS)


def saved_position(tx: Transaction) -> Position:
    """Every row up to this position is in the folds that the store has."""
    return tx.messages.consumer_position(_CONSUMER)
