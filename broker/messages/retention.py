"""Retention: how long messages are kept, globally and for device types with a number of days of their own.

Messages, Actions and failed messages are deleted by ranges of positions in small steps, so that other writes come in
between. Where the engine has partitions of the messages, one in which no device type keeps anything is dropped as a
whole. Device types with the same number of days form a class, which is deleted along the log from a cursor to the end
of its days; when the classes change, a new class starts at the beginning of the log. Rows that a consumer of the log
has not read yet stay. Rollups are kept longer, finer ones shorter than coarser ones
(broker/messages/rollup_days.py).
"""

from collections.abc import Collection
from functools import partial

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.loops import Loop, Wakeup
from broker.messages.intervals import DAY_MS, Interval
from broker.messages.rollup_days import RollupDays
from config.limits import FAILED_DAYS
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, Position
from storage.leases import Holder
from storage.retention import LogTable
from storage.sizes import AUDIT, DAYS, DELIVERIES, FAILED, FILES, HOURS, INDEX, MESSAGES, MINUTES, OTHER, measure
from storage.sql import StoreBusyError, StoreDamagedError
from storage.transaction import Transaction

RETENTION_SWEEP_SECONDS = 600.0
LONGEST_DAYS = 36_500
#: Positions of a step, for which all other writes wait: some ms. With more of them at once more rows go in a second.
_STEP_POSITIONS = 250
_FAST_STEP_POSITIONS = 1_000
#: Positions of a step that deletes entries alone, of which there is one for some rows.
_STEP_ENTRIES = 5_000
#: Rollups of a step at most: a day of the minutes of one field.
_STEP_ROLLUPS = 1_440
_PAUSE_SECONDS = 0.01
#: Free pages stay for what comes next, up to a part of the store. The rest goes back to the disk: this many pages in a
#: step, some milliseconds of the writer, and not so often that the write-ahead log grows much.
_FREE_BYTES_KEPT = 16 * 1024**2
_FREE_PART_KEPT = 20
_STEP_PAGES = 64
_PAUSE_BETWEEN_PAGES_SECONDS = 0.05
_DEVICES_AT_ONCE = 100
_log = structlog.get_logger(__name__)


def free_bytes_kept(store_bytes: float) -> float:
    """Free bytes that stay in a store of this size for what comes next."""
    return max(_FREE_BYTES_KEPT, store_bytes // _FREE_PART_KEPT)


class RetentionStatistics(msgspec.Struct, frozen=True):
    """Deleted rows count since the start. Sizes are those of the last sweep (storage/sizes.py)."""

    days: int  # 0 keeps everything
    types_with_own_days: int = 0
    deleted_messages: int = 0
    deleted_actions: int = 0
    deleted_failed_messages: int = 0
    deleted_rollups: int = 0
    store_bytes: int = 0
    free_bytes: int = 0
    message_bytes: int = 0  # and Actions
    index_bytes: int = 0
    minute_rollup_bytes: int = 0
    hour_rollup_bytes: int = 0
    day_rollup_bytes: int = 0
    file_bytes: int = 0  # firmware images, archives of exports and of users
    audit_bytes: int = 0
    delivery_bytes: int = 0
    other_bytes: int = 0


class _Class(msgspec.Struct, frozen=True):
    """Device types with the same retention: these, or with `others` all but these."""

    days: int
    types: tuple[DeviceTypeKey, ...]
    others: bool

    def cursor(self, table: LogTable) -> str:
        return f"{table}/{self.days}/{'not ' if self.others else ''}{','.join(map(str, self.types))}"

    def concerns(self, types: Collection[DeviceTypeKey] | None) -> bool:
        """Whether one of these types is among its own; None: of all types."""
        return types is None or any((one in self.types) is not self.others for one in types)


_LOG: tuple[LogTable, ...] = ("message", "action")


def deleted_upto(
    tx: Transaction, types: Collection[DeviceTypeKey] | None, *, since_ms: int | None = None, now_ms: int = 0
) -> Position:
    """The position up to which messages or Actions of these types were deleted; None: of any type.

    With `since_ms`, only where nothing is deleted that was stored at that time or later.
    """
    found = [Position(0)]
    for name, position in tx.retention.cursors():
        one = _class_of(name)
        if one is None or not one.concerns(types):
            continue
        if since_ms is None or since_ms >= now_ms - one.days * DAY_MS:
            found.append(position)
    return max(found)


def _class_of(cursor: str) -> _Class | None:
    """The class that a cursor is of; None: it is none of the log's."""
    table, _, rest = cursor.partition("/")
    days, _, types = rest.partition("/")
    if table not in _LOG or not days.isdigit():
        return None
    others = types.startswith("not ")
    keys = types.removeprefix("not ").split(",")
    return _Class(int(days), tuple(DeviceTypeKey(int(key)) for key in keys if key), others=others)


class _Pace:
    """How many positions a step has: few, so that others hardly wait, as long as twice as many go as new ones come."""

    def __init__(self) -> None:
        self.positions = _STEP_POSITIONS
        self._began: tuple[int, int] | None = None

    def note(self, reached: Position, last: Position) -> None:
        """Everything up to `reached` is gone; `last` is the newest row."""
        first_reached, first_last = self._began = self._began or (reached, last)
        is_slow = reached - first_reached < 2 * (last - first_last)
        self.positions = _FAST_STEP_POSITIONS if is_slow else _STEP_POSITIONS


class Retention:
    def __init__(self, database: Database, lease: Holder, clock: Clock, *, days: int, rollups: RollupDays) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self.wakeup = Wakeup()
        self._days = days
        self._rollups = rollups
        self._statistics = RetentionStatistics(days)
        self._rollups_swept_on = -1  # in days since the epoch
        self.sweep_forever = Loop(
            self.sweep,
            every=RETENTION_SWEEP_SECONDS,
            wakeup=self.wakeup,
            at_once=True,
            failure="retention_not_swept",
            deletes=True,
        ).run

    async def sweep(self) -> None:
        """Delete everything that is older than its retention. Raises StoreError."""
        if not self._clock.may_delete():
            return
        before = self._statistics
        own = await self._database.read(lambda tx: tx.retention.days_of_types())
        classes = self._classes(own)
        cursors = {one.cursor(table) for one in classes for table in _LOG}
        await self._database.write_own(
            self._lease, lambda tx: tx.retention.forget_cursors({*cursors, "failed_message"})
        )
        if self._days and all(own.values()):  # nobody keeps all
            await self._drop_partitions(classes)
        for one in classes:
            for table in _LOG:
                await self._sweep_log(table, one.cursor(table), one.days, one.types, others=one.others)
        await self._sweep_log("failed_message", "failed_message", FAILED_DAYS, None)
        today = self._clock.now_ms() // DAY_MS
        if (classes or self._rollups.any) and today != self._rollups_swept_on:
            # This reads every device, and has work only once a day.
            await self._sweep_rollups(own)
            self._rollups_swept_on = today
        await self._give_back()
        self._statistics = await self._database.read(
            partial(_measured, replace(self._statistics, types_with_own_days=len(own)), self._clock.now_ms())
        )
        if any(self._counts(self._statistics)) and self._counts(self._statistics) != self._counts(before):
            _log.info("retention_swept", **{name: getattr(self._statistics, name) for name in _COUNTED})

    def _classes(self, own: dict[DeviceTypeKey, int]) -> list[_Class]:
        by_days: dict[int, list[DeviceTypeKey]] = {}
        for device_type, days in sorted(own.items()):
            by_days.setdefault(days, []).append(device_type)
        classes = [_Class(days, tuple(types), others=False) for days, types in by_days.items()]
        return [one for one in (*classes, _Class(self._days, tuple(sorted(own)), others=True)) if one.days]

    async def _sweep_log(
        self, table: LogTable, cursor: str, days: int, types: Collection[DeviceTypeKey] | None, *, others: bool = False
    ) -> None:
        now_ms = self._clock.now_ms()
        live_ms = now_ms - days * DAY_MS, now_ms
        is_done, pace = False, _Pace()
        while not is_done:
            step = partial(_delete_step, table, cursor, live_ms, types, others, pace)
            try:
                deleted, is_done = await self._database.write_own(self._lease, step)
            except StoreDamagedError:
                behind, is_done = await self._database.read(partial(_beyond_damage, table, cursor, pace.positions))
                await self._database.write_own(self._lease, partial(_set_cursor, cursor, behind))
                deleted = 0
            self._count(**{f"deleted_{table}s": deleted})
            await trio.sleep(_PAUSE_SECONDS)  # let other writes commit

    async def _drop_partitions(self, classes: Collection[_Class]) -> None:
        until_ms = self._clock.now_ms()
        since_ms = until_ms - max(one.days for one in classes) * DAY_MS
        cursors = [one.cursor("message") for one in classes]
        for part in await self._database.read(lambda tx: tx.retention.partitions()):
            rows = await self._database.read(partial(_rows_if_old, part, since_ms, until_ms))
            if rows is None:
                return
            for first in range(part.start, part.stop, _STEP_ENTRIES):
                upto = min(first + _STEP_ENTRIES, part.stop) - 1
                await self._database.write_own(self._lease, partial(_forget_entries, first - 1, upto))
                await trio.sleep(_PAUSE_SECONDS)
            try:
                await self._database.write_own(self._lease, partial(_drop, part, cursors))
            except StoreBusyError:  # a backup, or somebody else's long transaction
                return  # these rows go one by one, which takes no lock
            self._count(deleted_messages=rows)

    async def _sweep_rollups(self, own: dict[DeviceTypeKey, int]) -> None:
        key = DeviceKey(0)
        while devices := await self._database.read(partial(_devices, key)):
            for device, device_type in devices:
                for level, days in self._rollups.of_device(own.get(device_type, self._days)).items():
                    if days:
                        await self._sweep_rollups_of(device, level, self._clock.now_ms() - days * DAY_MS)
            key = devices[-1][0]

    async def _sweep_rollups_of(self, device: DeviceKey, level: Interval, before_ms: int) -> None:
        """In steps of one day of some fields."""
        at_once = max(1, _STEP_ROLLUPS * (level.end_of(0) - level.start_of(0)) // DAY_MS)
        while old := await self._database.read(partial(_old_rollups, device, level, before_ms)):
            upto = min(before_ms, min(bucket for _, bucket in old) + DAY_MS)
            fields = [field for field, bucket in old if bucket < upto]
            for first in range(0, len(fields), at_once):
                some = fields[first : first + at_once]
                deleted = await self._database.write_own(
                    self._lease, partial(_delete_rollups, device, some, level, upto)
                )
                self._count(deleted_rollups=deleted)
                await trio.sleep(_PAUSE_SECONDS)

    async def _give_back(self) -> None:
        more = True
        while more:
            size, free = await self._database.read(lambda tx: tx.retention.size_bytes())
            if free <= free_bytes_kept(size):
                return
            more = await self._database.write(lambda tx: tx.retention.give_back(_STEP_PAGES))
            await trio.sleep(_PAUSE_BETWEEN_PAGES_SECONDS)

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._statistics, name) + number for name, number in more.items()}
        self._statistics = replace(self._statistics, **counts)

    def _counts(self, statistics: RetentionStatistics) -> list[int]:
        return [getattr(statistics, name) for name in _COUNTED]

    def statistics(self) -> RetentionStatistics:
        return self._statistics


_COUNTED = ("deleted_messages", "deleted_actions", "deleted_failed_messages", "deleted_rollups")


def _delete_step(
    table: LogTable,
    cursor: str,
    live_ms: tuple[int, int],
    types: Collection[DeviceTypeKey] | None,
    others: bool,
    pace: _Pace,
    tx: Transaction,
) -> tuple[int, bool]:
    """Delete one range; return the number of deleted rows and whether that was the last step.

    The range ends before the first row that was received within `live_ms`. A row whose `cts` is later came while the
    clock was wrong: it goes with the rows around it, and does not keep them for ever.
    """
    behind = tx.retention.cursor(cursor)
    first = tx.retention.first_after(table, behind)
    if first is None:
        return 0, True
    full, last = Position(first - 1 + pace.positions), tx.retention.last(table)
    pace.note(Position(first - 1), last)
    end = min(full, last)
    if table == "message":
        end = min(end, tx.retention.lowest_consumer() or Position(0))
    live = tx.retention.first_received(table, behind=behind, upto=end, since_ms=live_ms[0], until_ms=live_ms[1])
    if live is not None:
        end = Position(live - 1)
    if end < first:
        return 0, True
    deleted = tx.retention.delete(table, behind=behind, upto=end, types=types, others=others)
    tx.retention.set_cursor(cursor, end)
    return deleted, end < full


def _rows_if_old(part: range, since_ms: int, until_ms: int, tx: Transaction) -> int | None:
    """The number of messages in a partition; None when some of them are still kept, or wanted by a consumer."""
    if part.stop - 1 > (tx.retention.lowest_consumer() or 0):
        return None
    return tx.retention.rows_if_old(part, since_ms=since_ms, until_ms=until_ms)


def _forget_entries(behind: int, upto: int, tx: Transaction) -> None:
    tx.retention.forget_entries(behind, upto)


def _drop(part: range, cursors: Collection[str], tx: Transaction) -> None:
    """Drop the oldest partition, behind which each class goes on."""
    tx.retention.drop_partition(part)
    for cursor in cursors:
        tx.retention.set_cursor(cursor, Position(max(part.stop - 1, tx.retention.cursor(cursor))))


def _beyond_damage(table: LogTable, cursor: str, positions: int, tx: Transaction) -> tuple[Position, bool]:
    """Where to go on behind a step that met damage, and whether there is nothing more.

    The rows of the step that can be read stay, too: SQLite cannot delete beside a page that it cannot read. They go
    when the store is salvaged (reference 27.14), because the cursors of retention begin again then.
    """
    behind, head = tx.retention.cursor(cursor), tx.messages.head()
    end = tx.retention.beyond_damage(table, Position(behind + positions), head) - 1
    return Position(max(behind, end)), end >= head - 1


def _set_cursor(cursor: str, position: Position, tx: Transaction) -> None:
    tx.retention.set_cursor(cursor, position)


def _devices(key: DeviceKey, tx: Transaction) -> list[tuple[DeviceKey, DeviceTypeKey]]:
    return tx.retention.devices_after(key, _DEVICES_AT_ONCE)


def _old_rollups(device: DeviceKey, level: str, before_ms: int, tx: Transaction) -> list[tuple[int, int]]:
    return tx.retention.old_rollups(device, level, before_ms)


def _delete_rollups(device: DeviceKey, fields: list[int], level: str, before_ms: int, tx: Transaction) -> int:
    return tx.retention.delete_rollups(device, fields, level, before_ms)


def _measured(statistics: RetentionStatistics, now_ms: int, tx: Transaction) -> RetentionStatistics:
    found = measure(tx.connection, now_ms=now_ms)
    return replace(
        statistics,
        store_bytes=found.store_bytes,
        free_bytes=found.free_bytes,
        message_bytes=found.of(MESSAGES),
        index_bytes=found.of(INDEX),
        minute_rollup_bytes=found.of(MINUTES),
        hour_rollup_bytes=found.of(HOURS),
        day_rollup_bytes=found.of(DAYS),
        file_bytes=found.of(*FILES),
        audit_bytes=found.of(AUDIT),
        delivery_bytes=found.of(DELIVERIES),
        other_bytes=found.of(FAILED, OTHER),
    )
