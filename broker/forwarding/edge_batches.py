"""The way in for stores that forward to this one: each of their messages is stored once (reference 30.3).

The batches of an edge form a chain: each names the one before it. The sender keeps the id of a batch before it sends
it, and here the id of the last one is written in the commit of its messages. So a batch that comes again is known, and
a second copy of a store, as after a backup was restored, shows at its first batch: it does not know the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device, Devices
from broker.errors import (
    BadRequest,
    Conflict,
    DomainError,
    StorageUnavailable,
    TryLater,
    Unauthorized,
    ValidationFailed,
    invalid,
)
from broker.forwarding.edge_devices import EdgeDevices
from broker.forwarding.edge_refusals import EdgeBusy, NotNowError, StoreCopied
from broker.forwarding.edge_types import EdgeTypes
from broker.forwarding.edges import Edges
from broker.forwarding.wire import Batch, BatchAnswer, SentMessage, position_of
from broker.limits.refusals import PlanLimitsNotSet
from broker.messages.ingest import Ingest, Normalized
from broker.nesting import check_nesting
from config.limits import EDGE_RANGES_MAX, FORWARD_PATH_MAX, MAX_DATA_BYTES
from storage.database import Database
from storage.facts import StoreOvertakenError
from storage.forwarding import EdgeRecord, Ranges, merged
from storage.keys import Position, Ticket
from storage.sql import StoreError
from storage.transaction import Transaction

#: A message whose time is later than this is not waited for: it is kept among the failed ones.
_CLOCK_WAIT_MS: Final = 600_000
_WAIT_SECONDS: Final = 60.0
_FORGET_EVERY: Final = 50  # batches
_FORGET_ROWS: Final = 100
_NO_MID: Final = bytes(16)


@dataclass(eq=False)
class EdgeBatches:
    _database: Database
    _clock: Clock
    _devices: Devices
    _ingest: Ingest
    _edges: Edges
    _edge_types: EdgeTypes
    _edge_devices: EdgeDevices

    def __post_init__(self) -> None:
        self._turns: dict[int, trio.Lock] = {}

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
                self._edges.note_refused(edge.key, error)
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
        self._edges.refuse_others(edge, batch.store)
        if namesake is not None and namesake.key != key:
            raise StoreCopied(f"It forwards here as {namesake.name} already")
        if edge.batch == batch.id and edge.batch_upto is not None:
            self._edges.counts.again += 1
            return BatchAnswer(upto=min(max(edge.batch_upto, batch.after), batch.upto), now=self._clock.now_ms())
        self._edges.refuse_copies(edge, [batch.previous])
        if len(merged(_with_beginning(edge.ranges, batch), batch.after, batch.after + 1)) > EDGE_RANGES_MAX:
            raise ValidationFailed.of("after", invalid(f"leaves more than {EDGE_RANGES_MAX} gaps"))
        wanted = dict.fromkeys(one.type for remote, one in batch.devices.items() if remote not in known)
        if unknown := await self._edge_types.unknown(wanted):
            if edge.organization is None:
                problem = (
                    f"There is no device type {unknown[0]} here: make it, or let the edge bring its types (trunkline"
                    " edge add --types)"
                )
                return self._not_now(edge, batch, problem, _WAIT_SECONDS)
            return BatchAnswer(upto=batch.after, now=self._clock.now_ms(), types=tuple(unknown))
        try:
            devices = await self._edge_devices.of(edge, batch, known)
        except NotNowError as reason:
            return self._not_now(edge, batch, str(reason), _WAIT_SECONDS)
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
                upto, seconds = one.position - 1, float(getattr(refusal, "retry_seconds", _WAIT_SECONDS))
                break
            except DomainError as refusal:
                self._ingest.keep_failed(device, one.data.encode(), f"forwarded by {edge.name}: {refusal}")
                dropped += 1
        upto = max(upto, batch.after)
        if upto == batch.after:
            return self._not_now(edge, batch, problem, seconds)

        def with_batch(known: EdgeRecord) -> EdgeRecord:
            return replace(
                known,
                store=batch.store,
                batch=batch.id,
                batch_upto=upto,
                ranges=merged(_with_beginning(known.ranges, batch), batch.after, upto),
                accepts=False,
                messages=known.messages + len(stored),
                dropped=known.dropped + dropped,
                seen_on=now_ms,
            )

        counts, group = self._edges.counts, self._ingest.group

        def work(tx: Transaction) -> None:
            known = tx.forwarding.edge(edge.key)
            if known is None or (known.batch, known.accepts) != (edge.batch, edge.accepts):
                raise StoreOvertakenError("another node has stored a batch of this edge")
            tx.forwarding.put_edge(with_batch(known))
            if stored:
                tx.forwarding.add_batch(
                    edge.key,
                    first=group.position(stored[0][0]),
                    last=group.position(stored[-1][0]),
                    remote=(int(stored[0][1][:16], 16), int(stored[-1][1][:16], 16)),
                    mids=_packed_mids(stored),
                )
            if counts.batches % _FORGET_EVERY == 0:
                oldest = tx.retention.first_after("message", Position(0))
                tx.forwarding.forget_batches(before=oldest or 0, limit=_FORGET_ROWS)

        self._database.write_nowait(work, is_of_rows=True)
        await self._ingest.wait_committed()
        counts.batches += 1
        counts.messages += len(stored)
        counts.dropped += dropped
        self._edges.note(with_batch(edge), problem)
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
                min(ahead, _WAIT_SECONDS),
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
        self._edges.note_problem(edge.key, problem)
        return BatchAnswer(
            upto=batch.after, now=self._clock.now_ms(), problem=problem[:2_000], seconds=max(seconds, 1.0)
        )


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


def _packed_mids(stored: Sequence[tuple[Ticket, str]]) -> bytes:
    """The mids at the sender of all rows from the first to the last one; rows of others between them have none."""
    mids = dict(stored)
    return b"".join(
        bytes.fromhex(mids[Ticket(ticket)]) if ticket in mids else _NO_MID
        for ticket in range(stored[0][0], stored[-1][0] + 1)
    )


def _with_beginning(ranges: Ranges, batch: Batch) -> Ranges:
    """The first range begins where the sender has begun, so that everything up to its end is here."""
    beginning = batch.after if batch.complete is None else min(batch.complete, batch.after)
    return ranges if ranges and ranges[0][0] <= beginning else merged(ranges, beginning, beginning)


def _covers(ranges: Ranges, position: int) -> bool:
    return any(after < position <= upto for after, upto in ranges)
