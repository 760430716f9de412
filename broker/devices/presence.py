"""Whether devices are online, and when they were last seen (reference 6.4).

A device is online while it has a connection. Without one, the later of two events decides: the end of the last
connection, or a status that the device was given. Changes are kept in memory and written in bulk: those of the
connections every second, when a device was seen twice a minute. Reads include what is in memory, so they never give an
old value.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec
import trio

from broker.clock import Clock
from broker.cluster.kinds import AVAILABILITY, Availability
from broker.facts import (
    AvailabilityChanged,
    DeviceConnectedAgain,
    DeviceDeleted,
    DeviceWentOffline,
    DeviceWentOnline,
    FactPhase,
    MessagesStored,
    Router,
)
from broker.loops import Loop
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds
from storage.records import PresenceRecord
from storage.transaction import Transaction

_FLUSH_SECONDS = 1.0
#: Each message changes it. After a crash, this much of it may be missing (reference 6.4).
SEEN_SECONDS = 30.0
V = TypeVar("V")


class PresenceStatistics(msgspec.Struct, frozen=True):
    online: int
    unwritten: int


class Presence:
    def __init__(self, database: Database, router: Router, clock: Clock, node: str | None = None) -> None:
        """`node`: the name of this node, when devices may be connected to others, too."""
        self._database = database
        self._node = node
        self._router = router
        self._clock = clock
        self._online: dict[DeviceKey, str] = {}
        self._online_by_themselves: set[DeviceKey] = set()
        # Not yet written: the protocol of the last connection, the status without one, when the device was last seen.
        self._protocol: dict[DeviceKey, str] = {}
        self._decided: dict[DeviceKey, _Decided] = {}
        self._seen: dict[DeviceKey, int] = {}
        self._seen_due_at = 0.0
        self._flushing = trio.Lock()
        router.subscribe(DeviceWentOnline, self._went_online, FactPhase.STATE)
        router.subscribe(DeviceConnectedAgain, self._connected_again, FactPhase.STATE)
        router.subscribe(DeviceWentOffline, self._went_offline, FactPhase.STATE)
        router.subscribe(DeviceDeleted, self._deleted, FactPhase.STATE)
        router.subscribe(MessagesStored, self._messages_stored, FactPhase.STATE)
        self.flush_forever = Loop(self._flush_what_is_due, every=_FLUSH_SECONDS, failure="presence_not_saved").run

    async def resume(self) -> None:
        """Read what the last run left. At the start no device is connected to this node, so online periods end."""
        await self._database.write(partial(_end_online_periods, self._node, self._clock.now_ms()))
        self._online_by_themselves = await self._database.read(lambda tx: tx.devices.online_without_connection())

    def _went_online(self, fact: DeviceWentOnline) -> None:
        was_online = self._is_online(fact.device)
        self._online[fact.device] = self._protocol[fact.device] = fact.protocol
        self._online_by_themselves.discard(fact.device)
        self._decided.pop(fact.device, None)
        self._seen[fact.device] = fact.at_ms
        if not was_online:
            self._router.publish(AvailabilityChanged(fact.device, "online", fact.at_ms))

    def _connected_again(self, fact: DeviceConnectedAgain) -> None:
        self._online[fact.device] = self._protocol[fact.device] = fact.protocol
        self._seen[fact.device] = fact.at_ms

    def _went_offline(self, fact: DeviceWentOffline) -> None:
        if self._online.pop(fact.device, None) is None:  # it was deleted before its connection was closed
            return
        if fact.is_elsewhere:
            return
        self._decided[fact.device] = _Decided("offline", fact.at_ms)
        self._seen[fact.device] = fact.at_ms
        self._router.publish(AvailabilityChanged(fact.device, "offline", fact.at_ms))

    def _deleted(self, fact: DeviceDeleted) -> None:
        self._online.pop(fact.device, None)
        self._online_by_themselves.discard(fact.device)

    def is_connected(self, device: DeviceKey) -> bool:
        """Whether the device has a persistent connection now."""
        return device in self._online

    def _is_online(self, device: DeviceKey) -> bool:
        return device in self._online or device in self._online_by_themselves

    async def set(self, device: DeviceKey, availability: str) -> None:
        """Give a device a status: `online`, `offline` or `unknown`. It is durable on return.

        While the device is connected, this has no effect: the end of the connection is a later event.
        """
        async with self._flushing:  # no value may move from memory to the store while both are read
            stored = await self._database.read(lambda tx: tx.devices.presence(device))
            now_ms = self._clock.now_ms()
            before = self._change(device).applied_to(stored or _never_seen(device))
            if device in self._online or before.availability == availability:
                return
            self._decided[device] = _Decided(availability, now_ms if self._is_online(device) else None)
            if availability == "online":
                self._online_by_themselves.add(device)
            else:
                self._online_by_themselves.discard(device)
            self._router.publish(AvailabilityChanged(device, availability, now_ms))
        await self.flush()
        if self._node is not None:
            await self._database.write(partial(_tell, Availability(device, availability, Milliseconds(now_ms))))

    def _messages_stored(self, fact: MessagesStored) -> None:
        if not fact.is_own:
            return
        seen, now_ms = self._seen, self._clock.now_ms()
        for device, cts in {row.device: row.cts for row in fact.rows}.items():  # the last row of each device
            # The device may have disconnected, or sent a ping, between its message and the commit of the message.
            if not cts <= seen.get(device, 0) <= now_ms:  # a time that is ahead was noted while the clock was ahead
                seen[device] = cts

    def touch(self, device: DeviceKey) -> None:
        """Note that the device was seen without a message: it sent a protocol's ping."""
        self._seen[device] = self._clock.now_ms()

    async def of(self, device: DeviceKey) -> PresenceRecord:
        """The presence of a device now; `unknown` when it never connected."""
        return (await self.of_all([device]))[device]

    async def of_all(self, devices: Collection[DeviceKey]) -> dict[DeviceKey, PresenceRecord]:
        """The presences of many devices, as they are at one moment."""
        # Memory first: a value that is written to the store in between is then in both, and the same.
        changes = {device: self._change(device) for device in devices}
        stored = await self._database.read(lambda tx: tx.devices.presences(devices))
        return {
            device: _past(change.applied_to(stored.get(device) or _never_seen(device)), change.now_ms)
            for device, change in changes.items()
        }

    def _change(self, device: DeviceKey) -> "_Change":
        return _Change(
            online=device in self._online,
            online_by_itself=device in self._online_by_themselves,
            now_ms=self._clock.now_ms(),
            protocol=self._protocol.get(device),
            decided=self._decided.get(device),
            seen_on=self._seen.get(device),
            is_shared=self._node is not None,
        )

    async def flush(self) -> None:
        """Write the changes since the last flush. Raises StoreError."""
        async with self._flushing:
            self._seen_due_at = trio.current_time() + SEEN_SECONDS
            await self._write(self._seen.keys() | self._decided.keys() | self._protocol.keys())

    async def _flush_what_is_due(self) -> None:
        if trio.current_time() >= self._seen_due_at:
            await self.flush()
            return
        async with self._flushing:
            await self._write(self._decided.keys() | self._protocol.keys())

    async def _write(self, devices: Collection[DeviceKey]) -> None:
        if not devices:
            return
        protocol, decided, seen = dict(self._protocol), dict(self._decided), _of(self._seen, devices)
        if self._node is None:
            records = list((await self.of_all(devices)).values())
            await self._database.write(partial(_put, records))
        else:  # others write the same rows, so the write reads them
            changes = {device: self._change(device) for device in devices}
            await self._database.write(partial(_put_changes, self._node, changes))
        _drop_unchanged(self._protocol, protocol)
        _drop_unchanged(self._decided, decided)
        _drop_unchanged(self._seen, seen)

    def statistics(self) -> PresenceStatistics:
        return PresenceStatistics(len(self._online), len(self._seen))


class _Decided(msgspec.Struct, frozen=True):
    """The status without a connection, and the end of the online period if it ended one."""

    availability: str
    ended_on: int | None


class _Change(msgspec.Struct, frozen=True):
    online: bool
    online_by_itself: bool
    now_ms: int
    protocol: str | None
    decided: _Decided | None
    seen_on: int | None
    is_shared: bool = False  # other nodes see devices, too, and write when

    def applied_to(self, stored: PresenceRecord) -> PresenceRecord:
        seen_on = self.seen_on or stored.last_seen_on
        if self.is_shared and (seen_on or 0) < (stored.last_seen_on or 0) <= self.now_ms:
            seen_on = stored.last_seen_on
        record = replace(stored, protocol=self.protocol or stored.protocol, last_seen_on=seen_on)
        if self.online or self.online_by_itself:
            return replace(record, availability="online", last_time_online=self.now_ms, is_connected=self.online)
        if self.decided is not None:
            ended_on = record.last_time_online if self.decided.ended_on is None else self.decided.ended_on
            return replace(
                record, availability=self.decided.availability, last_time_online=ended_on, is_connected=False
            )
        return record


def _tell(change: Availability, tx: Transaction) -> None:
    """Have all nodes tell of a status that was set, unless the device is connected to one of them."""
    if not tx.device_connections.connected([change.device]):
        tx.tell(AVAILABILITY, change)


def _end_online_periods(node: str | None, now_ms: Milliseconds, tx: Transaction) -> None:
    if node is None:
        tx.device_connections.forget_all()
        tx.lwm2m.forget_all()
    else:
        tx.device_connections.end_all(node)
        tx.lwm2m.end_all(node, now_ms=now_ms, head=tx.messages.head())
    tx.devices.end_online_periods()


def _put_changes(node: str, changes: "Mapping[DeviceKey, _Change]", tx: Transaction) -> None:
    """As `_put`, where a device may be connected to another node: what ended here is not its availability then."""
    stored, elsewhere = tx.devices.presences(list(changes)), tx.device_connections.connected(changes, but_for=node)
    records = []
    for device, change in changes.items():
        before = stored.get(device) or _never_seen(device)
        if device in elsewhere and not change.online:
            change = msgspec.structs.replace(change, decided=None, protocol=None)  # noqa: PLW2901 - the same change
        records.append(_past(change.applied_to(before), change.now_ms))
    _put(records, tx)


def _put(records: Sequence[PresenceRecord], tx: Transaction) -> None:
    there = tx.devices.existing([one.device for one in records])  # others were removed for good
    tx.devices.put_presences([one for one in records if one.device in there])


def _past(record: PresenceRecord, now_ms: int) -> PresenceRecord:
    """The times that are not in the future: future ones were noted while the clock was ahead."""
    seen_on, online_on = record.last_seen_on, record.last_time_online
    if (seen_on or 0) <= now_ms and (online_on or 0) <= now_ms:
        return record
    return replace(
        record,
        last_seen_on=None if seen_on is None else min(seen_on, now_ms),
        last_time_online=None if online_on is None else min(online_on, now_ms),
    )


def _never_seen(device: DeviceKey) -> PresenceRecord:
    return PresenceRecord(device, "unknown", None, None, None)


def _of(values: dict[DeviceKey, V], devices: Collection[DeviceKey]) -> dict[DeviceKey, V]:
    return {device: values[device] for device in devices if device in values}


def _drop_unchanged(current: dict[DeviceKey, V], written: dict[DeviceKey, V]) -> None:
    for device, value in written.items():
        if current.get(device) == value:
            del current[device]
