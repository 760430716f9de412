"""Forwards to one upstream: reads the log behind its own position, and sends what the upstream does not have yet.

A position of its own in the log, as subscriptions have, but no consumer's: an upstream that is away for long does not
keep retention from deleting. `Status` says when that would begin.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import BadRequest, DeviceNotFound, DomainError
from broker.forwarding.port import Broker, BrokerMessage, UpstreamAnswer, UpstreamError, Upstreams
from broker.forwarding.progress import advanced, begun, next_part, oldest_left, passed, rows_left
from broker.forwarding.selection import Selection, topic_of
from broker.forwarding.wire import (
    ACTIONS_PATH,
    PATH,
    ActionsAnswer,
    ActionsAsked,
    Batch,
    BatchAnswer,
    ForwardAsked,
    Greeting,
    SentAction,
    SentDevice,
    SentMessage,
    SentType,
)
from broker.ids import is_id
from broker.loops import Wakeup
from broker.messages.ingest import Ingest
from broker.nesting import check_nesting
from config.forward_target import ForwardTarget
from config.limits import (
    FORWARD_BATCH_BYTES,
    FORWARD_BATCH_MESSAGES,
    FORWARD_PATH_MAX,
    FORWARD_POLL_SECONDS,
    FORWARD_SECONDS,
    MAX_DATA_BYTES,
)
from config.settings import Forward
from storage.database import Database, Transaction
from storage.facts import StoreOvertakenError
from storage.forwarding import ForwardRecord
from storage.keys import DeviceKey, Milliseconds, Position
from storage.leases import Holder
from storage.outages import Outage
from storage.records import MessageRow
from storage.sql import StoreError

_DAY_MS: Final = 86_400_000
_SAVE_SECONDS: Final = 5.0
_BACKOFF: Final = (1.0, 60.0)
_LONGEST_WAIT: Final = 3_600.0  # that an upstream may ask for
_ROW_BYTES: Final = 400  # of a message in a request, beside its data
_SKEW_SECONDS: Final = 60.0
_A = TypeVar("_A")
_log = structlog.get_logger(__name__)
_decode_error = msgspec.json.Decoder(dict[str, Any]).decode


class ForwardStatus(msgspec.Struct, frozen=True):
    """A forward for its operator. `problem`: a sentence; empty while all is well.

    `behind`: rows of the log that are not sent; `behind_seconds`: how long ago the oldest of them came. `deletes_on`:
    when retention would begin to delete what is not sent, in ms; None: nothing is deleted, or all is sent. `lost`: rows
    that it has deleted before, at most.
    """

    name: str
    to: str
    state: str  # sends | waits | elsewhere
    problem: str
    sent: int
    actions: int
    refused_actions: int
    failures: int
    behind: int
    behind_seconds: float
    deletes_on: int | None
    lost: int
    sent_on: int | None
    clock_ahead_seconds: float


class _Block(msgspec.Struct, frozen=True):
    """Rows of a part of the log, up to `upto`, and the stores that those of other stores have come through."""

    record: ForwardRecord
    rows: Sequence[MessageRow]
    paths: dict[DeviceKey, tuple[str, ...]]
    after: int
    upto: int
    of_gap: bool


class _Loaded(msgspec.Struct, frozen=True):
    message: MessageRow
    device: Device
    path: tuple[str, ...]


class Forwarder:
    def __init__(
        self,
        entry: Forward,
        database: Database,
        lease: Holder,
        clock: Clock,
        devices: Devices,
        ingest: Ingest,
        upstreams: Upstreams | None,
        store: str,
        retention_days: int,
    ) -> None:
        self.entry = entry
        self._target = ForwardTarget.parse(entry.to)
        self._database, self._lease, self._clock = database, lease, clock
        self._devices, self._ingest, self._upstreams = devices, ingest, upstreams
        self._store, self._retention_days = store, retention_days
        self.wakeup = Wakeup()
        self._record: ForwardRecord | None = None
        self._saved: ForwardRecord | None = None
        self._selection: Selection | None = None
        self._upstream_store = ""
        self._asked_types = frozenset[str]()
        self._outage = Outage("forward_failed", "forwards_again")
        self._state, self._problem, self._notes = "waits", "The service has just begun.", ""
        self._sent = self._actions = self._refused_actions = self._failures = 0
        self._sent_on: int | None = None
        self._ahead_seconds = 0.0
        self._behind, self._behind_seconds = 0, 0.0
        self._deletes_on: int | None = None
        self._lost = 0
        kbit = entry.max_kbit
        self._most = FORWARD_BATCH_MESSAGES
        if kbit:  # a batch takes some seconds at most
            self._most = min(max(kbit * 1000 // 8 * 5 // (_ROW_BYTES + MAX_DATA_BYTES), 1), FORWARD_BATCH_MESSAGES)
        self._free_at = float("-inf")

    def status(self) -> ForwardStatus:
        return ForwardStatus(
            self.entry.name,
            self.entry.to,
            self._state,
            " ".join(filter(None, (self._problem, self._notes))),
            self._sent,
            self._actions,
            self._refused_actions,
            self._failures,
            self._behind,
            self._behind_seconds,
            self._deletes_on,
            self._lost,
            self._sent_on,
            self._ahead_seconds,
        )

    # The worker

    async def run(self) -> None:
        """Forward until cancelled."""
        delay = _BACKOFF[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_forever)
            while True:
                sent, seconds = self._sent, 0.0
                try:
                    await self._begin()
                    await self._converse()
                except* UpstreamError as errors:
                    error = _first(errors)
                    seconds = min(error.seconds, _LONGEST_WAIT) if isinstance(error, UpstreamError) else 0.0
                    self._failed(str(error))
                except* StoreError as errors:
                    self._failed(f"The store cannot be read or written: {_first(errors)}.")
                except* Exception as errors:  # noqa: BLE001 - a bug that one upstream meets must not end the others
                    seconds = _BACKOFF[1]
                    _log.exception("forward_broken", forward=self.entry.name, exc_info=_first(errors))
                    self._failed(f"{type(_first(errors)).__name__}: the log has the details.")
                delay = _BACKOFF[0] if self._sent != sent else min(delay * 2, _BACKOFF[1])
                await trio.sleep(max(seconds, delay * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads load

    def _failed(self, text: str) -> None:
        self._failures += 1
        self._state, self._problem = "waits", text
        self._outage.failed(text, forward=self.entry.name)

    def _works(self) -> None:
        self._state, self._problem = "sends", ""
        self._outage.succeeded(forward=self.entry.name)

    async def _begin(self) -> None:
        """Read where the last run stopped, or begin. Raises StoreError."""
        entry = self.entry
        if self._record is None:

            def read(tx: Transaction) -> tuple[ForwardRecord | None, Position]:
                return tx.forwarding.forward(entry.name), tx.messages.head()

            known, head = await self._database.read(read)
            if known is None or known.target != entry.to:
                mark = 0 if entry.begin == "start" else head
                known = ForwardRecord(
                    entry.name, entry.to, None, mark, (), "", None, None, Milliseconds(self._clock.now_ms())
                )
            self._record = known
            await self._save(must=self._saved is None)
        self._selection = await self._database.read(lambda tx: Selection.of(entry, tx))
        await self._look()  # what it says of itself is true from the beginning

    async def _converse(self) -> None:
        """Raises UpstreamError, StoreError, also in groups."""
        if self._upstreams is None:
            raise UpstreamError("Nothing leaves this machine.")
        if self._target.is_broker:
            commands = self.entry.commands if self.entry.actions else ""
            filter_ = topic_filter(commands)
            client_id = f"trunkline-{self._store[:12]}-{self.entry.name}"
            async with self._upstreams.broker(self.entry, client_id, filter_, self._command) as broker:
                self._works()
                await self._send_forever(partial(self._publish, broker))
            return
        await self._greet()
        self._works()
        async with trio.open_nursery() as nursery:
            if self.entry.actions:
                nursery.start_soon(self._take_actions_forever)
            await self._send_forever(self._send_batch)

    def forget(self) -> None:
        """Another node forwards, or the position was changed: read it again."""
        self._record = self._saved = None
        self._state, self._problem = "waits", ""

    async def save(self) -> None:
        await self._save(must=False)

    async def _save(self, *, must: bool) -> None:
        """Write how far it is. Raises StoreError."""
        record = self._record
        if record is None or (record == self._saved and not must):
            return
        record = replace(record, changed_on=Milliseconds(self._clock.now_ms()))

        def work(tx: Transaction) -> None:
            known = tx.forwarding.forward(record.name)
            actions = record.actions_after if known is None or known.target != record.target else known.actions_after
            tx.forwarding.put_forward(replace(record, actions_after=actions))

        await self._database.write_own(self._lease, work)
        self._saved = replace(record, changed_on=self._record.changed_on if self._record else record.changed_on)

    # Reading

    async def _send_forever(self, send: Callable[[_Block, Sequence[_Loaded]], Any]) -> None:
        saved_at = trio.current_time()
        while True:
            block = await self._next_block()
            if block is None:
                if trio.current_time() - saved_at >= _SAVE_SECONDS:
                    await self.save()
                    saved_at = trio.current_time()
                await self.wakeup.wait(_SAVE_SECONDS if self._record != self._saved else 60.0)
                continue
            loaded = await self._loaded(block)
            if not loaded and block.record.pending is None:  # nobody wants these rows
                self._record = passed(block.record, block.after, block.upto, block.upto, of_gap=block.of_gap)
                await trio.lowlevel.checkpoint()
                continue
            await self._wait_for_line(sum(_ROW_BYTES + len(one.message.data) for one in loaded))
            await send(block, loaded)

    async def _next_block(self) -> _Block | None:
        """The next rows to send; None: all are sent. Raises StoreError."""
        record = self._record
        assert record is not None, "`_begin` has read it"  # noqa: S101 - the order of the calls
        newest_first, most = self.entry.order == "newest", self._most

        def read(tx: Transaction) -> _Block | None:
            head = tx.messages.head()
            rows: Sequence[MessageRow]
            if (pending := record.pending) is not None:
                found = record
                after, upto, of_gap = pending.after, pending.upto, pending.of_gap
                rows = _upto(tx.messages.after(Position(after), limit=FORWARD_BATCH_MESSAGES), upto)
            else:
                found, part = next_part(record, head, newest_first=newest_first, most=most)
                if part is None:
                    return None
                after, of_gap = part.after, part.of_gap
                rows = tx.messages.after(Position(after), limit=most)
                if part.upto is not None:
                    rows, upto = _upto(rows, part.upto), part.upto
                    rows, after = _within_from_behind(rows, after)
                else:
                    upto = rows[-1].position if len(rows) == most else max(head, after)
                    rows, upto = _within(rows, upto)
            paths = tx.forwarding.paths_of({one.device for one in rows})
            return _Block(found, rows, paths, after, upto, of_gap)

        return await self._database.read(read)

    async def _loaded(self, block: _Block) -> list[_Loaded]:
        """The rows that the upstream is to have: of covered devices, and not of itself."""
        selection, devices = self._selection, dict[DeviceKey, Device]()
        for key in {row.device for row in block.rows}:
            try:
                device = await self._devices.get(key)
            except DeviceNotFound:
                continue
            path = block.paths.get(key, ())
            if selection is None or not selection.covers(device) or self._upstream_store in path:
                continue
            if self._store in path or len(path) >= FORWARD_PATH_MAX:
                self._note("Messages that have come through too many stores are not forwarded.")
                continue
            devices[key] = device
        return [
            _Loaded(row, found, (*block.paths.get(row.device, ()), self._store))
            for row in block.rows
            if (found := devices.get(row.device)) is not None
        ]

    def _note(self, text: str) -> None:
        if text != self._notes:
            self._notes = text
            _log.warning("forward_notice", forward=self.entry.name, reason=text)

    async def _wait_for_line(self, size: int) -> None:
        """Keep to `max_kbit`."""
        if not self.entry.max_kbit:
            return
        now = trio.current_time()
        if self._free_at > now:
            await trio.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + size * 8 / (self.entry.max_kbit * 1000)

    # To another Trunkline

    async def _greet(self) -> None:
        """Raises UpstreamError."""
        greeting = await self._ask(PATH, ForwardAsked(store=self._store), Greeting)
        record = self._record
        assert record is not None, "`_begin` has read it"  # noqa: S101 - the order of the calls
        if greeting.store == self._store:
            raise UpstreamError("The upstream is this store itself, or another copy of it.", seconds=_BACKOFF[1])
        self._upstream_store = greeting.store
        if record.store is not None and record.store != greeting.store:
            raise UpstreamError(
                f"The upstream is another store than before: {greeting.store}, not {record.store}. If that is right,"
                " give the entry another name.",
                seconds=_BACKOFF[1],
            )
        self._note_clock(greeting.now)
        if record.store is None:
            self._record = replace(record, store=greeting.store)

    async def _send_batch(self, block: _Block, loaded: Sequence[_Loaded]) -> None:
        """Raises UpstreamError, StoreError."""
        record = block.record
        if record.pending is None:
            record = begun(record, block.after, block.upto, of_gap=block.of_gap)
        self._record = record
        pending = record.pending
        assert pending is not None, "it was begun"  # noqa: S101 - as above
        await self._save(must=False)  # a batch that comes again has the same id
        batch = Batch(
            store=self._store,
            id=pending.id,
            previous=record.batch,
            after=pending.after,
            upto=pending.upto,
            messages=tuple(
                SentMessage(
                    one.message.position,
                    self._ingest.mid(Position(one.message.position)),
                    one.device.id,
                    one.message.ts,
                    one.message.data,
                )
                for one in loaded
            ),
            devices={
                one.device.id: SentDevice(one.device.record.name, one.device.type.record.unique_name, one.path)
                for one in loaded
            },
            types=await self._types_of(loaded),
        )
        answer = await self._ask(PATH, ForwardAsked(batch=batch), BatchAnswer)
        self._note_clock(answer.now)
        if answer.types:
            asked = frozenset(answer.types)
            if asked <= self._asked_types:
                raise UpstreamError("The upstream asks again for device types that it was told of.")
            self._asked_types = asked
            return
        self._asked_types = frozenset()
        if not pending.after <= answer.upto <= pending.upto:
            raise UpstreamError("The upstream says that it has stored what it was not sent.")
        if answer.upto > pending.after:
            self._record = advanced(record, answer.upto)
            self._sent += sum(one.message.position <= answer.upto for one in loaded)
            self._sent_on = self._clock.now_ms()
        if answer.problem:
            raise UpstreamError(f"The upstream says: {_plain(answer.problem)}", seconds=answer.seconds)
        if answer.upto == pending.after:
            raise UpstreamError("The upstream has stored nothing of a batch, and does not say why.")
        self._works()

    async def _types_of(self, loaded: Sequence[_Loaded]) -> dict[str, SentType]:
        """Descriptions of the device types that the upstream has asked for."""
        types = {one.device.type.record.unique_name: one.device.type for one in loaded}
        wanted = {name: type_ for name, type_ in types.items() if name in self._asked_types}
        if not wanted:
            return {}

        def read(tx: Transaction) -> dict[str, SentType]:
            return {
                name: SentType(type_.record.name, found.document)
                for name, type_ in wanted.items()
                if (
                    found := next((one for one in reversed(tx.device_types.manifests(type_.key)) if one.approved), None)
                )
            }

        return await self._database.read(read)

    async def _ask(self, path: str, content: object, kind: type[_A]) -> _A:
        """The answer of the upstream. Raises UpstreamError."""
        assert self._upstreams is not None, "`_converse` has checked it"  # noqa: S101 - the order of the calls
        answer = await self._upstreams.post(
            self.entry, path, msgspec.json.encode(content), seconds=FORWARD_SECONDS + FORWARD_POLL_SECONDS
        )
        if answer.status == 200:
            try:
                check_nesting(answer.body)
                enveloped: _Enveloped[_A] = msgspec.json.decode(answer.body, type=_Enveloped[kind])  # type: ignore[valid-type]
            except (msgspec.DecodeError, UnicodeDecodeError, DomainError) as error:
                raise UpstreamError(
                    "The upstream does not answer as a Trunkline does: is the address right?"
                ) from error
            return enveloped.data
        raise _refusal(answer)

    def _note_clock(self, upstream_ms: int) -> None:
        self._ahead_seconds = (self._clock.now_ms() - upstream_ms) / 1000
        if abs(self._ahead_seconds) > _SKEW_SECONDS:
            ahead = "ahead of" if self._ahead_seconds > 0 else "behind"
            self._note(f"The clock of this machine is {abs(self._ahead_seconds):.0f} s {ahead} that of the upstream.")
        elif self._notes.startswith("The clock"):
            self._notes = ""

    # Actions of another Trunkline

    async def _take_actions_forever(self) -> None:
        """Each Action of the upstream is stored here once: in the commit of the position up to which they are."""
        name, target = self.entry.name, self.entry.to

        def read(tx: Transaction) -> int | None:
            known = tx.forwarding.forward(name)
            return None if known is None or known.target != target else known.actions_after

        after = await self._database.read(read)
        while True:
            asked = ActionsAsked(self._store, after, 0 if after is None else FORWARD_POLL_SECONDS)
            answer = await self._ask(ACTIONS_PATH, asked, ActionsAnswer)
            if after is not None and answer.upto < after:
                raise UpstreamError(
                    "The upstream has a shorter log than before: a backup of it was restored. trunkline edge accept,"
                    f" there, and trunkline forward rewind {name}, here, begin again."
                )
            if answer.upto != after:
                await self._take_actions(answer.actions, after, answer.upto)
                after = answer.upto

    async def _take_actions(self, actions: Sequence[SentAction], after: int | None, upto: int) -> None:
        """Raises StoreError, UpstreamError."""
        if not self._ingest.has_room:
            await self._ingest.wait_room()
        devices = {one.did: await self._found(one.did) for one in actions}
        if any(one is not None and self._devices.get_nowait(one.key) is not one for one in devices.values()):
            raise UpstreamError("A device was changed while Actions came for it: they are asked for again.")
        now_ms = self._clock.now_ms()
        taken = refused = 0
        for one in actions:
            device = devices[one.did]
            try:
                if device is None:
                    raise BadRequest
                self._ingest.submit_action(device, device, one.data.encode(), min(one.ts, now_ms))
                taken += 1
            except DomainError as refusal:
                refused += 1
                _log.warning("forwarded_action_refused", forward=self.entry.name, mid=one.mid, reason=str(refusal))
        name, target = self.entry.name, self.entry.to

        def work(tx: Transaction) -> None:
            known = tx.forwarding.forward(name)
            if known is None or (known.target, known.actions_after) != (target, after):
                raise StoreOvertakenError("another node has taken Actions of this upstream")
            tx.forwarding.set_actions_after(name, upto)

        self._database.write_nowait(work, holder=self._lease, is_of_rows=True)
        try:
            await self._ingest.wait_committed()
        except DomainError as error:
            raise UpstreamError(f"Actions of the upstream could not be stored: {error}.") from error
        self._actions += taken
        self._refused_actions += refused

    async def _found(self, device_id: str) -> Device | None:
        """A device that the upstream may send Actions to."""
        try:
            device = await self._devices.find(device_id)
        except DeviceNotFound:
            return None
        return device if self._selection is not None and self._selection.covers(device) else None

    # To a broker of MQTT

    async def _publish(self, broker: Broker, block: _Block, loaded: Sequence[_Loaded]) -> None:
        """Raises UpstreamError, StoreError."""
        messages = [
            BrokerMessage(
                topic_of(self.entry.topic, one.device),
                one.message.data.encode(),
                (
                    ("mid", self._ingest.mid(Position(one.message.position))),
                    ("ts", str(one.message.ts)),
                    ("did", one.device.id),
                    ("path", ",".join(one.path)),
                ),
            )
            for one in loaded
        ]
        if messages:
            await broker.publish(messages)
            self._sent += len(messages)
            self._sent_on = self._clock.now_ms()
        self._record = passed(block.record, block.after, block.upto, block.upto, of_gap=block.of_gap)
        await self._save(must=False)
        self._works()

    async def _command(self, topic: str, payload: bytes) -> None:
        """A command of a broker. It is acknowledged when this returns: it is stored, or refused for good.

        Raises UpstreamError: it could not be stored; the broker sends it again on the next connection.
        """
        device_id = _did_of(self.entry.commands, topic)
        try:
            device = None if device_id is None else await self._found(device_id)
            if device is None:
                raise BadRequest
            if not self._ingest.has_room:
                await self._ingest.wait_room()
            self._ingest.submit_action(device, device, _command_data(payload))
        except DomainError as refusal:
            self._refused_actions += 1
            _log.warning("forwarded_action_refused", forward=self.entry.name, topic=topic[:200], reason=str(refusal))
            return
        except StoreError as error:
            raise UpstreamError(f"A command of the broker could not be stored: {error}.") from error
        try:
            await self._ingest.wait_committed()
        except DomainError as error:
            raise UpstreamError(f"A command of the broker could not be stored: {error}.") from error
        self._actions += 1

    # How far it is

    async def _look_forever(self) -> None:
        while True:
            with suppress(StoreError):  # the worker says so
                await self._look()
            await trio.sleep(_SAVE_SECONDS)

    async def _look(self) -> None:
        record, now_ms = self._record, self._clock.now_ms()
        if record is None:
            return

        def read(tx: Transaction) -> tuple[int, int | None, int, int]:
            head = tx.messages.head()
            left = oldest_left(record, head)
            oldest = None if left is None else next(iter(tx.messages.after(Position(left), limit=1)), None)
            own = [days for days in tx.retention.days_of_types().values() if days]
            days = min([*own, *([self._retention_days] if self._retention_days else [])], default=0)
            deleted = 0 if left is None else tx.forwarding.deleted_upto()
            lost = 0 if left is None else max(min(deleted, head) - left, 0)
            return rows_left(record, head), None if oldest is None else oldest.cts, days, lost

        behind, oldest_cts, days, lost = await self._database.read(read)
        self._behind = behind if oldest_cts is not None else 0
        self._behind_seconds = 0.0 if oldest_cts is None else max(now_ms - oldest_cts, 0) / 1000
        self._deletes_on = None if oldest_cts is None or not days else oldest_cts + days * _DAY_MS
        if lost > self._lost:
            self._lost = lost
            self._note(f"Retention has deleted up to {lost} rows before they were sent.")


class _Enveloped(msgspec.Struct, Generic[_A], frozen=True):
    data: _A


def topic_filter(commands: str) -> str:
    """The topics of commands of all devices."""
    return "/".join("+" if "{" in level else level for level in commands.split("/")) if commands else ""


def _did_of(form: str, topic: str) -> str | None:
    for level, found in zip(form.split("/"), topic.split("/"), strict=False):
        if level == "{did}":
            return found if is_id(found) else None
    return None


def _command_data(payload: bytes) -> bytes:
    """The `data` of an Action: what a command of a broker has, or `{"name": …, "parameters": …}` alone."""
    check_nesting(payload)
    try:
        value = _decode_error(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest from error
    return msgspec.json.encode({"actions": [value]}) if "name" in value and "actions" not in value else payload


def _upto(rows: Sequence[MessageRow], upto: int) -> Sequence[MessageRow]:
    return [one for one in rows if one.position <= upto]


def _within(rows: Sequence[MessageRow], upto: int) -> tuple[Sequence[MessageRow], int]:
    """The first rows that have room in a batch."""
    size = 0
    for index, row in enumerate(rows):
        size += len(row.data)
        if size > FORWARD_BATCH_BYTES and index:
            return rows[:index], rows[index - 1].position
    return rows, upto


def _within_from_behind(rows: Sequence[MessageRow], after: int) -> tuple[Sequence[MessageRow], int]:
    """The last rows that have room in a batch: a gap is filled from its end."""
    size = 0
    for index in range(len(rows) - 1, -1, -1):
        size += len(rows[index].data)
        if size > FORWARD_BATCH_BYTES and index < len(rows) - 1:
            return rows[index + 1 :], rows[index].position
    return rows, after


def _refusal(answer: UpstreamAnswer) -> UpstreamError:
    """The error of an answer that is no success."""
    status, seconds = answer.status, 0.0
    after = answer.headers.get("retry-after", "")
    if after.isascii() and after.isdigit():
        seconds = float(after[:9])
    if 300 <= status < 400:
        return UpstreamError(
            f"The upstream sends elsewhere (HTTP status {status}), which is not followed: name that address in `to`.",
            seconds=_BACKOFF[1],
        )
    try:
        said = _plain(str(_decode_error(answer.body)["error"]["message"]))
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
        said = ""
    if status == 401:
        return UpstreamError(
            "The upstream does not know the token of token_file (HTTP status 401).", seconds=_BACKOFF[1]
        )
    if status == 404:
        return UpstreamError(
            "There is no Trunkline that takes messages at this address (HTTP status 404).", seconds=_BACKOFF[1]
        )
    about = f": {said}" if said else ""
    return UpstreamError(f"The upstream answers with HTTP status {status}{about}", seconds=seconds)


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)[:600]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
