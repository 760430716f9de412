"""The open wanted values in memory, and the messages that report them.

Each node compares each stored message with the open values of its device before anybody is told of the message, so
whoever reads after an acknowledgement sees what it has reached. The node with the lease stores the ends, with the
position up to which messages were compared; after a crash the messages behind it are compared again.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import WANTED, publish
from broker.cluster.leases import Lease
from broker.cluster.news import News
from broker.devices.inventory import device_fact
from broker.facts import DeviceWanted, FactPhase, MessagesStored, Router, WantedChanged
from broker.loops import Loop, Wakeup
from broker.messages.decoding import decode, flat
from broker.messages.follower import LogFollower
from broker.wanted.values import NOTHING, WantedState, document_of, is_reached, json_of
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.transaction import Transaction
from storage.wanted import WantedEnd, WantedRecord

#: A report whose `ts` is older than the wish by more than this was kept on the device from before.
_EARLIER_MS: Final = 60_000
#: The clock of ends, and how often the position is stored. Another node's wish is heard within the latter.
_STEP_SECONDS: Final = 1.0
_SAVE_SECONDS: Final = 10.0
_ENDS_AT_ONCE: Final = 500
_KEPT_MS: Final = 7 * 86_400_000
_SWEEP_SECONDS: Final = 600.0
_SWEPT: Final = 1_000
_FEW_DEVICES: Final = 200  # the messages of more are found by reading all
_READ_ROWS: Final = 2_000
_NEVER: Final = Milliseconds(2**62)
_decode_value: Final = msgspec.json.Decoder().decode


class WantedStatistics(msgspec.Struct, frozen=True):
    """`devices`, `open`: now. The others since the start, of this node."""

    devices: int
    open: int
    reached: int
    expired: int
    given: int


class OpenValue(msgspec.Struct):
    """An open wanted value. `reached` is the report that it waits to be stored with."""

    record: WantedRecord
    value: Any
    reached: MessageRow | None = None
    reported: Any = None

    def judge(self, row: MessageRow, data: Mapping[str, Any]) -> bool:
        """Compare a message; return whether it has reported the value now."""
        record = self.record
        if self.reached is not None or record.field not in data or not counts(row, record):
            return False
        reported = data[record.field]
        if not is_reached(reported, self.value, record.tolerance):
            return False
        self.reached, self.reported = row, reported
        return True

    def end(self) -> WantedEnd:
        one = self.record
        return WantedEnd(one.device, one.field, one.revision, one.since, WantedState.REACHED, json_of(self.reported))


def counts(row: MessageRow, record: WantedRecord) -> bool:
    """Whether a message came while the value was wanted, and says how the device was then."""
    is_later = row.position > record.position and row.ts >= record.since - _EARLIER_MS
    return is_later and row.cts < record.expires_on


_Of = dict[str, OpenValue]


class Following:
    """`document`, `open_of` and `given` never wait."""

    def __init__(
        self,
        database: Database,
        router: Router,
        news: News,
        clock: Clock,
        lease: Lease,
        follower: LogFollower | None = None,
    ) -> None:
        """`follower`: other nodes store messages, too; the node with the lease reads these from the log."""
        self._database = database
        self._router = router
        self._clock = clock
        self._lease = lease
        self._of: dict[DeviceKey, _Of] = {}
        self._documents: dict[DeviceKey, bytes] = {}
        self._seen = Position(0)
        self._looks: dict[DeviceKey, Position] = {}  # messages behind these positions are still to be compared
        self._ended: deque[OpenValue] = deque()
        self._given: dict[DeviceKey, int] = {}
        self._next_due = _NEVER  # nothing expires before
        self._earlier = self._saved = Position(0)
        self._saved_at = self._swept_at = -_SWEEP_SECONDS
        self._number = self._reached = self._expired = self._times_given = 0
        self._wakeup = Wakeup()
        self._follower = follower
        self._read: Position | None = None  # up to where messages of other nodes were compared
        if follower is not None:
            follower.tell_reader(self._reads, self._wakeup.set)
        news.listen(WANTED, self._changed)
        router.subscribe(MessagesStored, self._messages_stored, FactPhase.STATE)
        self.run_forever = Loop(
            self.step, every=_STEP_SECONDS, wakeup=self._wakeup, at_once=True, failure="wanted_not_saved"
        ).run

    # The open values

    async def resume(self) -> None:
        """Read what is open. Messages behind the stored position are compared while the daemon runs."""
        records, position, self._seen = await self._database.read(
            lambda tx: (tx.wanted.all_open(), tx.wanted.position(), tx.messages.last_position())
        )
        of: dict[DeviceKey, list[WantedRecord]] = {}
        for record in records:
            of.setdefault(record.device, []).append(record)
        for device, some in of.items():
            self._put(device, some)
            self._looks[device] = max(position, min(record.position for record in some))
        self._earlier = self._saved = position

    def open_of(self, device: DeviceKey) -> Mapping[str, OpenValue]:
        """By dotted path; those too that are reached, until that is stored."""
        return self._of.get(device, {})

    def document(self, device: DeviceKey) -> bytes | None:
        """The open values for the device; None without one."""
        return self._documents.get(device)

    def given(self, device: DeviceKey) -> bool:
        """The device was given its document. Returns whether it had not been given some of it before."""
        waiting = [
            one.record.revision for one in self._of.get(device, {}).values() if one.record.state == WantedState.WAITING
        ]
        if not waiting or self._given.get(device, 0) >= max(waiting):
            return False
        self._times_given += 1
        self._given[device] = max(waiting)
        self._wakeup.set()
        return True

    def _changed(self, device: DeviceKey, records: Sequence[WantedRecord]) -> None:
        before = self._of.get(device, {})
        new = [one.position for one in records if not _is_same(before.get(one.field), one)]
        self._put(device, records)
        if new:
            if self._follower is not None or self._seen > min(new):  # messages came while it was stored
                self._looks[device] = min(self._looks.get(device, new[0]), *new)
            self._wakeup.set()

    def _put(self, device: DeviceKey, records: Sequence[WantedRecord]) -> None:
        was_any = bool(self._of)
        before = self._of.pop(device, {})
        of = {record.field: _open(record, before.get(record.field)) for record in records}
        self._number += len(of) - len(before)
        if of:
            self._of[device] = of
            if self._follower is not None and not was_any:
                self._follower.on_begin()
        else:
            self._looks.pop(device, None)
        self._next_due = min([self._next_due, *(record.expires_on for record in records)])
        self._document_changed(device)

    def _document_changed(self, device: DeviceKey) -> None:
        """Tell the device's connections, if it gets something else now."""
        before = self._documents.pop(device, None)
        open_ = [one.record for one in self._of.get(device, {}).values() if one.reached is None]
        now = document_of(open_) if open_ else None
        if now is not None:
            self._documents[device] = now
        if now != before:
            self._router.publish(WantedChanged(device, now or NOTHING))

    # Messages

    def _messages_stored(self, fact: MessagesStored) -> None:
        self._seen = fact.rows[-1].position
        if self._of:
            self._compare(fact.rows)

    def _compare(self, rows: Iterable[MessageRow]) -> None:
        of, changed = self._of, set[DeviceKey]()
        for row in rows:
            if (known := of.get(row.device)) is None:
                continue
            data = flat(decode(row.data))
            for one in known.values():
                if one.judge(row, data):
                    self._ended.append(one)
                    self._reached += 1
                    changed.add(row.device)
        for device in changed:
            self._document_changed(device)
            self._wakeup.set()

    # The worker

    async def step(self) -> bool:
        """Returns whether there is more to do at once."""
        if self._looks:
            await self._look()
        if self._given:
            await self._note_given()
        # Ends that are stored, here or by another node, are open no more.
        self._ended = deque(one for one in self._ended if self._is_open(one))
        if not self._lease.is_held:
            self._read = None
            return False
        if self._follower is not None and self._of:
            await self._read_on()
        goes_on = await self._store_ends()
        goes_on |= await self._expire()
        await self._save()
        await self._sweep()
        return goes_on

    async def _look(self) -> None:
        """Compare the messages that came before this node had heard of the wish."""
        looks, self._looks = self._looks, {}
        try:
            for device in list(looks):
                if device in self._of:
                    self._compare(await self._database.read(partial(_after, device, looks[device])))
                del looks[device]
        finally:
            for device, position in looks.items():
                self._looks[device] = min(position, self._looks.get(device, position))

    def _reads(self) -> bool:
        return self._lease.is_held and bool(self._of)

    async def _read_on(self) -> None:
        """Compare the messages of other nodes."""
        if self._read is None:
            self._read = await self._database.read(lambda tx: tx.wanted.position())
        if len(self._of) <= _FEW_DEVICES:
            rows, upto = await self._database.read(partial(_after_all, tuple(self._of), self._read))
            self._compare(rows)
            self._read = max(self._read, upto)
            return
        while rows := await self._database.read(partial(_next, self._read)):
            self._compare(rows)
            self._read = rows[-1].position
            if len(rows) < _READ_ROWS:
                break

    async def _note_given(self) -> None:
        given, now_ms = dict(self._given), self._clock.now_ms()

        def work(tx: Transaction) -> None:
            for device, revision in given.items():
                if tx.wanted.sent(device, revision, now_ms=now_ms):
                    tx.tell(WANTED, device)

        await self._database.write(work)
        for device, revision in given.items():
            if self._given.get(device) == revision:
                del self._given[device]

    async def _store_ends(self) -> bool:
        some = [self._ended[index] for index in range(min(len(self._ended), _ENDS_AT_ONCE))]
        if not some:
            return False
        ends, now_ms = [one.end() for one in some], self._clock.now_ms()
        await self._database.write_own(self._lease, lambda tx: end_in(tx, ends, now_ms))
        for one in some:
            if self._ended and self._ended[0] is one:
                self._ended.popleft()
        return bool(self._ended)

    def _is_open(self, one: OpenValue) -> bool:
        return self._of.get(one.record.device, {}).get(one.record.field) is one

    async def _expire(self) -> bool:
        if self._next_due > (now_ms := self._clock.now_ms()):
            return False
        reached = {(one.record.device, one.record.field, one.record.revision) for one in self._ended}

        def work(tx: Transaction) -> tuple[int, bool, Milliseconds]:
            due = tx.wanted.due(now_ms, limit=_ENDS_AT_ONCE)
            # Values that a message has reached in time are stored as reached.
            late = [one for one in due if (one.device, one.field, one.revision) not in reached]
            ends = [WantedEnd(one.device, one.field, one.revision, one.since, WantedState.EXPIRED) for one in late]
            end_in(tx, ends, now_ms)
            return len(ends), len(due) == _ENDS_AT_ONCE, tx.wanted.next_due(now_ms) or _NEVER

        self._next_due, before = _NEVER, self._next_due  # a wish that comes during the write is not forgotten
        try:
            number, goes_on, next_due = await self._database.write_own(self._lease, work)
        except BaseException:
            self._next_due = min(self._next_due, before)
            raise
        self._expired += number
        self._next_due = min(self._next_due, before if goes_on else next_due)
        return goes_on

    async def _save(self) -> None:
        """Store up to where messages were compared, with some delay: another node's wish may not be heard yet."""
        now = trio.current_time()
        if not self._of or now - self._saved_at < _SAVE_SECONDS or self._looks or self._ended:
            return
        position, self._earlier = self._earlier, self._seen if self._read is None else self._read
        if position > self._saved:
            await self._database.write_own(self._lease, lambda tx: tx.wanted.note_position(position))
            self._saved = position
        self._saved_at = now

    async def _sweep(self) -> None:
        now = trio.current_time()
        if now - self._swept_at < _SWEEP_SECONDS or not self._clock.may_delete():
            return
        before_ms = self._clock.now_ms() - _KEPT_MS
        if await self._database.write_own(self._lease, lambda tx: tx.wanted.sweep(before_ms, limit=_SWEPT)) < _SWEPT:
            self._swept_at = now

    def statistics(self) -> WantedStatistics:
        return WantedStatistics(len(self._of), self._number, self._reached, self._expired, self._times_given)


def _after_all(
    devices: Sequence[DeviceKey], position: Position, tx: Transaction
) -> tuple[Sequence[MessageRow], Position]:
    upto = tx.messages.last_position()
    return tx.message_searches.after_of(devices, position), upto


def _next(position: Position, tx: Transaction) -> Sequence[MessageRow]:
    return tx.messages.after(position, limit=_READ_ROWS)


def _after(device: DeviceKey, position: Position, tx: Transaction) -> Sequence[MessageRow]:
    return tx.message_searches.after_of([device], position)


def _is_same(known: OpenValue | None, record: WantedRecord) -> bool:
    return known is not None and (known.record.revision, known.record.since) == (record.revision, record.since)


def _open(record: WantedRecord, before: OpenValue | None) -> OpenValue:
    """The value as it is known, also to the queue of ends, with its new record."""
    if before is None or not _is_same(before, record):
        return OpenValue(record, _decode_value(record.value))
    before.record = record
    return before


def end_in(tx: Transaction, ends: Sequence[WantedEnd], now_ms: Milliseconds) -> None:
    """Store ends, and tell of the new ones."""
    news: dict[tuple[DeviceKey, str], list[str]] = {}
    for end in ends:
        if tx.wanted.end(end, now_ms=now_ms):
            news.setdefault((end.device, end.state), []).append(end.field)
    for (device, state), fields in news.items():
        tx.tell(WANTED, device)
        tell(tx, device, state, fields, None, now_ms)


def tell(
    tx: Transaction,
    device: DeviceKey,
    change: str,
    fields: Iterable[str],
    application_id: str | None,
    now_ms: Milliseconds,
) -> None:
    """The event (reference 20)."""
    record = tx.devices.device(device)
    type_ = None if record is None else tx.device_types.device_type(record.device_type)
    if record is not None and type_ is not None:
        fact = device_fact(DeviceWanted, record, type_, application_id, now_ms)
        publish(tx, replace(fact, change=change, fields=",".join(sorted(fields))))
