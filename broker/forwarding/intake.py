"""The way in for stores that forward to this one: each of their messages is stored once (reference 30.3).

The batches of an edge form a chain: each names the one before it. The sender keeps the id of a batch before it sends
it, and here the id of the last one is written in the commit of its messages. So a batch that comes again is known, and
a second copy of a store, as after a backup was restored, shows at its first batch: it does not know the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.device_types.dropped import DroppedField
from broker.device_types.making import TypeChanges, TypeMaking
from broker.devices.inventory import Inventory, NewDevice
from broker.devices.registry import Device, Devices
from broker.errors import (
    BadRequest,
    Conflict,
    DeviceNotFound,
    DeviceTypeNotFound,
    DomainError,
    StorageUnavailable,
    TryLater,
    Unauthorized,
    ValidationFailed,
    invalid,
)
from broker.facts import ActionStored, FactPhase, Router
from broker.forwarding.wire import (
    ActionsAnswer,
    ActionsAsked,
    Batch,
    BatchAnswer,
    Greeting,
    SentAction,
    SentDevice,
    SentMessage,
    SentType,
    position_of,
)
from broker.ids import is_unique_name
from broker.limits.refusals import PlanLimitsNotSet
from broker.messages.ingest import Ingest, Normalized
from broker.names import plain_name_problem
from broker.nesting import check_nesting
from broker.secrets import token_hash
from config.limits import (
    EDGE_RANGES_MAX,
    EDGES_MAX,
    FORWARD_ACTIONS,
    FORWARD_PATH_MAX,
    MAX_DATA_BYTES,
    NAME_MAX_CHARACTERS,
)
from storage.database import Database, Transaction
from storage.facts import StoreOvertakenError
from storage.forwarding import EdgeDeviceRecord, EdgeRecord, Ranges, merged
from storage.keys import BY_CLOUD, DeviceKey, Position, Ticket
from storage.records import ActionRow, DeviceRecord
from storage.sql import StoreError

#: A message whose time is later than this is not waited for: it is kept among the failed ones.
_CLOCK_WAIT_MS: Final = 600_000
_QUOTA_SECONDS: Final = 60.0
_ACTION_ROWS: Final = 1_000  # that one reading looks at
_READINGS: Final = 5  # of one request
_FORGET_EVERY: Final = 50  # batches
_FORGET_ROWS: Final = 100
_NO_MID: Final = bytes(16)
_WAITERS_OF_ONE: Final = 3  # requests for Actions: one that has lost its connection may still wait
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class OtherStore(Conflict):
    template = (
        "This token is of another store, {reason}. Each store needs a token of its own: trunkline edge add, at the"
        " upstream"
    )


@dataclass(eq=False)
class StoreCopied(Conflict):
    template = (
        "Two copies of this store send: the last batch is not the one before. A backup was restored, here or at the"
        " sender. {reason}"
    )


@dataclass(eq=False)
class ForwardLoop(Conflict):
    template = "Messages would come back to a store that they have come from: {reason}"


@dataclass(eq=False)
class EdgeBusy(TryLater):
    template = "Another request of this store is under way"


class EdgeStatus(msgspec.Struct, frozen=True):
    """A store that forwards to this one, for its operator. `problem`: why its last request was refused."""

    name: str
    store: str
    messages: int
    dropped: int
    upto: int
    seen_on: int | None
    problem: str


class EdgeStatistics(msgspec.Struct, frozen=True):
    """Since the start."""

    batches: int
    again: int
    messages: int
    dropped: int
    refused: int
    actions: int
    waiting: int
    edges: tuple[EdgeStatus, ...]


@dataclass(eq=False)
class _Waiter:
    edge: int
    event: trio.Event


@dataclass(eq=False)
class Edges:
    """`store`: the id of this one."""

    _database: Database
    _clock: Clock
    _router: Router
    _devices: Devices
    _inventory: Inventory
    _types: DeviceTypes
    _making: TypeMaking
    _ingest: Ingest
    store: str

    def __post_init__(self) -> None:
        self._turns: dict[int, trio.Lock] = {}
        self._waiters: set[_Waiter] = set()
        self._edge_of: dict[DeviceKey, int] = {}
        self._known: set[int] = set()  # edges whose devices are in `_edge_of`
        self._status: dict[int, EdgeStatus] = {}
        self._loaded: set[int] = set()
        self._batches = self._again = self._messages = self._dropped = self._refused = self._actions = 0
        self._router.subscribe(ActionStored, self._action_stored, FactPhase.EFFECT)

    async def load(self) -> None:
        """Read them: another node may have changed some. Raises StoreError."""
        found = await self._database.read(lambda tx: tx.forwarding.edges(limit=EDGES_MAX))
        for edge in found:
            known = self._status.get(edge.key)
            if known is None or known.seen_on is None or (edge.seen_on or 0) > known.seen_on:
                self._status[edge.key] = _status(edge, "" if known is None else known.problem)
        gone = self._status.keys() - {edge.key for edge in found}
        for key in gone & self._loaded:  # others were added during the reading
            self.forget(key)
        self._loaded = {edge.key for edge in found}

    def statistics(self) -> EdgeStatistics:
        return EdgeStatistics(
            self._batches,
            self._again,
            self._messages,
            self._dropped,
            self._refused,
            self._actions,
            len(self._waiters),
            tuple(sorted(self._status.values(), key=lambda one: one.name)),
        )

    def note(self, edge: EdgeRecord) -> None:
        """It was added or changed."""
        self._status[edge.key] = _status(edge, "")

    def forget(self, key: int) -> None:
        self._status.pop(key, None)
        self._turns.pop(key, None)

    async def authenticate(self, token: str) -> EdgeRecord:
        """Raises Unauthorized, StorageUnavailable."""
        hashed = token_hash(token)
        try:
            edge = await self._database.look_up(lambda tx: tx.forwarding.edge_of_token(hashed))
        except StoreError as error:
            raise StorageUnavailable.of(error) from error
        if edge is None:
            raise Unauthorized
        return edge

    def greet(self, edge: EdgeRecord, store: str) -> Greeting:
        """The first thing that a sender asks. Raises Conflict."""
        self._refuse_self(edge, store)
        self._refuse_other(edge, store)
        upto = edge.ranges[-1][1] if edge.ranges else 0
        return Greeting(self.store, self._clock.now_ms(), edge.batch or "", upto)

    # Messages

    async def receive(self, edge: EdgeRecord, batch: Batch) -> BatchAnswer:
        """Store the messages of a batch that are not stored yet, with the batch's id, in one commit.

        Raises:
            Conflict: the batch is of another store, of a copy of the store, or has come from here.
            ValidationFailed: a member is wrong.
            TryLater: another batch of the edge is under way.
            StorageUnavailable, Unauthorized.
        """
        _check(batch)
        turn = self._turns.setdefault(edge.key, trio.Lock())
        if turn.statistics().tasks_waiting:
            raise EdgeBusy(1)
        async with turn:
            try:
                return await self._receive(edge.key, batch)
            except StoreError as error:
                raise StorageUnavailable.of(error) from error
            except Conflict as error:
                self._refused += 1
                if (known := self._status.get(edge.key)) is not None:
                    self._status[edge.key] = replace(known, problem=str(error))
                raise

    async def _receive(self, key: int, batch: Batch) -> BatchAnswer:
        edge, namesake, known = await self._database.read(
            lambda tx: (
                tx.forwarding.edge(key),
                tx.forwarding.edge_of_store(batch.store),
                tx.forwarding.edge_devices(key, set(batch.devices)),
            )
        )
        if edge is None:
            raise Unauthorized
        self._refuse_self(edge, batch.store)
        self._refuse_other(edge, batch.store)
        if namesake is not None and namesake.key != key:
            raise StoreCopied(f"It forwards here as {namesake.name} already")
        if edge.batch == batch.id and edge.batch_upto is not None:
            self._again += 1
            return BatchAnswer(upto=min(max(edge.batch_upto, batch.after), batch.upto), now=self._clock.now_ms())
        if edge.batch is not None and not edge.accepts and edge.batch != batch.previous:
            upto = edge.ranges[-1][1] if edge.ranges else 0
            raise StoreCopied(
                f"Everything up to position {upto} of the sender is here. If the sender was restored: trunkline edge"
                f" accept {edge.name} --new-positions, here. If this store was restored: trunkline edge accept"
                f" {edge.name}, here, and trunkline forward rewind NAME {upto}, at the sender"
            )
        if (missing := await self._missing_types(edge, batch, known)) is not None:
            return missing
        try:
            devices = await self._devices_of(edge, batch, known)
        except _NotNowError as reason:
            return self._not_now(edge, batch, str(reason), _QUOTA_SECONDS)
        if not self._ingest.has_room:
            await self._ingest.wait_room()
        return await self._store(edge, batch, devices)

    async def _store(self, edge: EdgeRecord, batch: Batch, devices: Mapping[str, Device | None]) -> BatchAnswer:
        """In one turn up to the commit."""
        stored = list[tuple[Ticket, str]]()
        dropped, upto, problem, seconds = 0, batch.upto, "", 0.0
        now_ms = self._clock.now_ms()
        for one in batch.messages:
            if _covers(edge.ranges, one.position):
                continue
            device = devices.get(one.did)
            if device is None or device.owner != edge.owner:
                dropped += 1
                continue
            if (reason := self._reason_to_wait(device, one, now_ms)) is not None:
                (problem, seconds), upto = reason, one.position - 1
                break
            try:
                stored.append((self._submitted(device, one), one.mid))
            except (TryLater, PlanLimitsNotSet) as refusal:
                problem = str(refusal)
                upto, seconds = one.position - 1, float(getattr(refusal, "retry_seconds", _QUOTA_SECONDS))
                break
            except DomainError as refusal:
                self._ingest.keep_failed(device, one.data.encode(), f"forwarded by {edge.name}: {refusal}")
                dropped += 1
        upto = max(upto, batch.after)
        if upto == batch.after:
            return self._not_now(edge, batch, problem, seconds)
        ranges = merged(edge.ranges, batch.after, upto)
        if len(ranges) > EDGE_RANGES_MAX:
            raise ValidationFailed.of("after", invalid(f"leaves more than {EDGE_RANGES_MAX} gaps"))
        group = self._ingest.group

        def work(tx: Transaction) -> None:
            known = tx.forwarding.edge(edge.key)
            if known is None or (known.batch, known.accepts) != (edge.batch, edge.accepts):
                raise StoreOvertakenError("another node has stored a batch of this edge")
            tx.forwarding.put_edge(
                replace(
                    known,
                    store=batch.store,
                    batch=batch.id,
                    batch_upto=upto,
                    ranges=ranges,
                    accepts=False,
                    messages=known.messages + len(stored),
                    dropped=known.dropped + dropped,
                    seen_on=now_ms,
                )
            )
            if stored:
                tickets, mids = dict(stored), bytearray()
                for ticket in range(stored[0][0], stored[-1][0] + 1):
                    mid = tickets.get(Ticket(ticket))
                    mids += _NO_MID if mid is None else bytes.fromhex(mid)
                tx.forwarding.add_batch(
                    edge.key,
                    first=group.position(stored[0][0]),
                    last=group.position(stored[-1][0]),
                    remote=(int(stored[0][1][:16], 16), int(stored[-1][1][:16], 16)),
                    mids=bytes(mids),
                )
            if self._batches % _FORGET_EVERY == 0:
                oldest = tx.retention.first_after("message", Position(0))
                tx.forwarding.forget_batches(before=oldest or 0, limit=_FORGET_ROWS)

        self._database.write_nowait(work, is_of_rows=True)
        await self._ingest.wait_committed()
        self._batches += 1
        self._messages += len(stored)
        self._dropped += dropped
        before = self._status.get(edge.key)
        self._status[edge.key] = EdgeStatus(
            edge.name,
            batch.store,
            edge.messages + len(stored),
            edge.dropped + dropped,
            ranges[-1][1],
            now_ms,
            problem if before is None or problem or not before.problem else "",
        )
        return BatchAnswer(
            upto=upto,
            now=now_ms,
            stored=len(stored),
            dropped=dropped,
            problem=problem,
            seconds=max(seconds, 0.0),
        )

    def _reason_to_wait(self, device: Device, one: SentMessage, now_ms: int) -> tuple[str, float] | None:
        """Why a message is not stored yet, and for how many seconds."""
        if self._devices.get_nowait(device.key) is not device:  # while something was awaited
            return "A device was changed just now: its messages are stored with the next request", 0.0
        ahead = (one.ts - now_ms) / 1000
        if 0 < one.ts - now_ms - self._ingest.future_grace_ms <= _CLOCK_WAIT_MS:
            return (
                f"The clock of the sender is {ahead:.0f} s ahead: its message is stored when its time has come",
                min(ahead, _QUOTA_SECONDS),
            )
        return None

    def _submitted(self, device: Device, one: SentMessage) -> Ticket:
        """Raises DomainError."""
        payload, dropped = one.data.encode(), list[DroppedField]()
        if len(payload) > 4 * MAX_DATA_BYTES:
            raise BadRequest
        check_nesting(payload)
        # It is normalised: the transform of its type was applied at the sender.
        version = device.manifest
        data = version.normalize_stored(payload, dropped)
        if data is None:
            raise BadRequest
        return self._ingest.submit(device, payload, one.ts, dropped, Normalized(version, data, tuple(dropped)))

    def _not_now(self, edge: EdgeRecord, batch: Batch, problem: str, seconds: float) -> BatchAnswer:
        if (known := self._status.get(edge.key)) is not None:
            self._status[edge.key] = replace(known, problem=problem)
        return BatchAnswer(
            upto=batch.after, now=self._clock.now_ms(), problem=problem[:2_000], seconds=max(seconds, 1.0)
        )

    # The sender

    def _refuse_self(self, edge: EdgeRecord, store: str) -> None:
        if store == self.store:
            raise ForwardLoop(f"{edge.name} is this store itself, or another copy of it")

    @staticmethod
    def _refuse_other(edge: EdgeRecord, store: str) -> None:
        if edge.store is not None and edge.store != store and not edge.accepts:
            raise OtherStore(edge.store)

    # Devices

    async def _missing_types(
        self, edge: EdgeRecord, batch: Batch, known: Mapping[str, EdgeDeviceRecord]
    ) -> BatchAnswer | None:
        """Make device types that are not known here, or ask for their Manifests."""
        wanted = dict.fromkeys(one.type for remote, one in batch.devices.items() if remote not in known)
        asked, problem = list[str](), ""
        for name in wanted:
            try:
                await self._types.find(name)
            except DeviceTypeNotFound:
                if edge.organization is None:
                    problem = (
                        f"There is no device type {name} here: make it, or let the edge bring its types (trunkline edge"
                        " add --types)"
                    )
                elif name not in batch.types:
                    asked.append(name)
                else:
                    problem = await self._make_type(edge, name, batch.types[name]) or problem
        if asked:
            return BatchAnswer(upto=batch.after, now=self._clock.now_ms(), types=tuple(asked))
        return self._not_now(edge, batch, problem, _QUOTA_SECONDS) if problem else None

    async def _make_type(self, edge: EdgeRecord, name: str, sent: SentType) -> str:
        """Make a device type in the edge's organization. Return why it cannot be used yet; empty when it can."""
        if not is_unique_name(name):
            return f"The name of the device type {name!r} is no unique name."
        try:
            check_nesting(sent.manifest.encode())
            document: Any = msgspec.json.decode(sent.manifest)
        except (msgspec.DecodeError, DomainError):
            document = None
        if not isinstance(document, dict):
            return f"The Manifest of the device type {name} is no JSON object."
        key = edge.organization
        organization = await self._database.read(lambda tx: None if key is None else tx.accounts.organization(key))
        if organization is None:
            return f"The organization is gone in which the device type {name} would be made."
        called = sent.name if len(sent.name) <= NAME_MAX_CHARACTERS and not plain_name_problem(sent.name) else name[:64]
        try:
            record = await self._making.add(organization, name, called, TypeChanges())
            type_ = await self._types.get(record.key)
            uploaded = await self._making.upload(type_, document)
        except DomainError as refusal:
            findings = getattr(refusal, "findings", ())
            why = "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in findings[:3]) or str(refusal)
            return f"The device type {name} cannot be made here: {why}"[:1_000]
        _log.info("edge_type_made", edge=edge.name, device_type=type_.id)
        if not uploaded.approved:
            return (
                f"The Manifest of the device type {name} waits for approval: trunkline type approve, at the upstream."
            )
        return ""

    async def _devices_of(
        self, edge: EdgeRecord, batch: Batch, known: Mapping[str, EdgeDeviceRecord]
    ) -> dict[str, Device | None]:
        """The devices of the batch, which are made at first sight. None: it was deleted here.

        Raises ForwardLoop, _NotNowError.
        """
        found = dict[str, Device | None]()
        for remote, sent in batch.devices.items():
            self._refuse_path(remote, sent, batch.store)
            record = known.get(remote)
            if record is None:
                found[remote] = await self._make(edge, remote, sent)
            elif record.device is None:
                found[remote] = None
            else:
                try:
                    found[remote] = await self._devices.get(record.device)
                except DeviceNotFound:
                    found[remote] = None
                if record.path != sent.path:
                    changed = replace(record, path=sent.path)
                    await self._database.write(lambda tx, one=changed: tx.forwarding.put_edge_device(edge.key, one))  # type: ignore[misc]
            if (device := found[remote]) is not None and not device.manifest.version:
                raise _NotNowError(f"The device type {sent.type} has no approved Manifest here.")
        return found

    def _refuse_path(self, remote: str, sent: SentDevice, store: str) -> None:
        if self.store in sent.path:
            raise ForwardLoop(f"those of the device {remote} have come through this store")
        if sent.path[-1] != store or len(set(sent.path)) != len(sent.path):
            raise ValidationFailed.of("devices", invalid("a path ends with the store that sends, and has each once"))

    async def _make(self, edge: EdgeRecord, remote: str, sent: SentDevice) -> Device:
        type_: DeviceType = await self._types.find(sent.type)
        if not type_.latest.version:
            raise _NotNowError(f"The device type {sent.type} has no approved Manifest here.")
        name = sent.name if len(sent.name) <= NAME_MAX_CHARACTERS and not plain_name_problem(sent.name) else None

        def check(tx: Transaction) -> None:
            if remote in tx.forwarding.edge_devices(edge.key, [remote]):
                raise _NotNowError("Another request has made the device.")
            if tx.forwarding.count_edge_devices(edge.key) >= edge.devices_max:
                raise _NotNowError(
                    f"{edge.name} has {edge.devices_max} devices here, and may make no more (trunkline edge add"
                    " --devices)."
                )

        def beside(tx: Transaction, record: DeviceRecord) -> None:
            tx.forwarding.put_edge_device(edge.key, EdgeDeviceRecord(remote, record.key, sent.path))

        try:
            device = await self._inventory.create(
                NewDevice(owner=edge.owner, type=type_, name=name), check=check, beside=beside
            )
        except DomainError as refusal:
            raise _NotNowError(f"No device can be made: {refusal}.") from refusal
        self._edge_of[device.key] = edge.key
        _log.info("edge_device_made", edge=edge.name, device=device.id)
        return device

    # Actions

    async def actions(self, edge: EdgeRecord, asked: ActionsAsked) -> ActionsAnswer:
        """The next Actions to devices of the edge, after a while if there are none now.

        Raises Conflict, StorageUnavailable.
        """
        self._refuse_self(edge, asked.store)
        self._refuse_other(edge, asked.store)
        if sum(one.edge == edge.key for one in self._waiters) >= _WAITERS_OF_ONE:
            raise EdgeBusy(int(asked.wait) + 1)
        try:
            if edge.key not in self._known:
                for one in await self._database.read(lambda tx: tx.forwarding.all_edge_devices(edge.key)):
                    if one.device is not None:
                        self._edge_of[one.device] = edge.key
                self._known.add(edge.key)
            waiter = _Waiter(edge.key, trio.Event())
            self._waiters.add(waiter)
            try:
                answer = await self._next_actions(edge, asked)
                if not answer.actions and asked.wait:
                    with trio.move_on_after(asked.wait):
                        await waiter.event.wait()
                    answer = await self._next_actions(edge, replace(asked, after=answer.upto))
            finally:
                self._waiters.discard(waiter)
            if asked.after is not None and asked.after != edge.actions_upto:
                now_ms = self._clock.now_ms()
                await self._database.write(
                    lambda tx: tx.forwarding.note_seen(edge.key, actions_upto=asked.after, now_ms=now_ms)
                )
        except StoreError as error:
            raise StorageUnavailable.of(error) from error
        self._actions += len(answer.actions)
        return answer

    async def _next_actions(self, edge: EdgeRecord, asked: ActionsAsked) -> ActionsAnswer:
        upto = asked.after
        for _ in range(_READINGS):
            found, reached, is_last = await self._database.read(lambda tx, after=upto: _actions(tx, edge.key, after))  # type: ignore[misc]
            if found or is_last:
                sent = [
                    SentAction(row.position, self._ingest.mid(Position(row.position)), remote, row.ts, row.data)
                    for row, remote in found[:FORWARD_ACTIONS]
                ]
                is_cut = len(found) > FORWARD_ACTIONS
                return ActionsAnswer(sent[-1].position if is_cut else reached, tuple(sent))
            upto = reached
        return ActionsAnswer(upto or 0)

    def _action_stored(self, fact: ActionStored) -> None:
        if self._waiters and (edge := self._edge_of.get(fact.destination)) is not None:
            for waiter in self._waiters:
                if waiter.edge == edge:
                    waiter.event.set()


class _NotNowError(DomainError):
    """The batch is not stored now. The text is a sentence for the sender's operator."""

    status = 503
    template = "{text}"

    def __init__(self, text: str) -> None:
        self.text = text


def _check(batch: Batch) -> None:
    """Raises ValidationFailed."""
    if batch.upto <= batch.after:
        raise ValidationFailed.of("upto", invalid("must be greater than after"))
    last = batch.after
    for one in batch.messages:
        if not last < one.position <= batch.upto:
            raise ValidationFailed.of("messages", invalid("positions must grow, after `after`, up to `upto`"))
        last = one.position
        if position_of(one.mid) != one.position:
            raise ValidationFailed.of("messages", invalid("a mid is that of its position"))
        if one.did not in batch.devices:
            raise ValidationFailed.of("devices", invalid(f"has no description of {one.did}"))
    for sent in batch.devices.values():
        if len(sent.path) > FORWARD_PATH_MAX:
            raise ValidationFailed.of("devices", invalid(f"a path has at most {FORWARD_PATH_MAX} stores"))


def _covers(ranges: Ranges, position: int) -> bool:
    return any(after < position <= upto for after, upto in ranges)


def _status(edge: EdgeRecord, problem: str) -> EdgeStatus:
    upto = edge.ranges[-1][1] if edge.ranges else 0
    return EdgeStatus(edge.name, edge.store or "", edge.messages, edge.dropped, upto, edge.seen_on, problem)


def _actions(tx: Transaction, edge: int, after: int | None) -> tuple[Sequence[tuple[ActionRow, str]], int, bool]:
    """Actions to devices of the edge, up to which position these are all, and whether that is the end of the log."""
    head = tx.messages.head()
    if after is None or after >= head:
        return (), head if after is None else after, True
    rows = tx.messages.actions_after(Position(after), limit=_ACTION_ROWS)
    remotes = tx.forwarding.remotes_of(edge, {row.device for row in rows})
    is_last = len(rows) < _ACTION_ROWS
    reached = head if is_last else rows[-1].position
    found = [(row, remotes[row.device]) for row in rows if row.device in remotes and row.source != BY_CLOUD]
    return found, reached, is_last
