"""Who is online, and when a device was last seen (compatibility.md 6.4).

What changes is kept in memory and written in bulk every second; reads look through memory, so nobody sees an old value.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import structlog
import trio

from broker.clock import Clock
from broker.facts import DeviceConnectedAgain, DeviceWentOffline, DeviceWentOnline, MessagesStored, Router
from storage.database import Database
from storage.records import PresenceRecord
from storage.sql import StoreError

FLUSH_SECONDS = 1.0
V = TypeVar("V")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PresenceStatistics:
    online: int
    unwritten: int


class Presence:
    def __init__(self, database: Database, router: Router, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._online: dict[int, str] = {}
        # Not yet written: the protocol of the last connection, the end of the last online period,
        # the last sign of life.
        self._protocol: dict[int, str] = {}
        self._offline: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        router.subscribe(DeviceWentOnline, self._went_online)
        router.subscribe(DeviceConnectedAgain, self._went_online)
        router.subscribe(DeviceWentOffline, self._went_offline)
        router.subscribe(MessagesStored, self._messages_stored)

    def _went_online(self, fact: DeviceWentOnline | DeviceConnectedAgain) -> None:
        self._online[fact.device] = self._protocol[fact.device] = fact.protocol
        self._offline.pop(fact.device, None)
        self._seen[fact.device] = fact.at_ms

    def _went_offline(self, fact: DeviceWentOffline) -> None:
        self._online.pop(fact.device, None)
        self._offline[fact.device] = self._seen[fact.device] = fact.at_ms

    def _messages_stored(self, fact: MessagesStored) -> None:
        seen = self._seen
        for row in fact.rows:
            # A device may have gone, or sent a ping, between its message and the commit of it.
            if row.cts > seen.get(row.device, 0):
                seen[row.device] = row.cts

    def touch(self, device: int) -> None:
        """A sign of life that is no message: a protocol's ping."""
        self._seen[device] = self._clock.now_ms()

    async def of(self, device: int) -> PresenceRecord:
        """The presence of a device now; `unknown` when it never connected."""
        # First memory, then the store: what moves from the one to the other in between is the same in both.
        change = self._change(device)
        stored = await self._database.read(lambda tx: tx.devices.presence(device))
        return change.applied_to(stored or _never_seen(device))

    def _change(self, device: int) -> "_Change":
        return _Change(
            online=device in self._online,
            now_ms=self._clock.now_ms(),
            protocol=self._protocol.get(device),
            offline_on=self._offline.get(device),
            seen_on=self._seen.get(device),
        )

    async def flush(self) -> None:
        """Write what changed since the last time."""
        devices = self._seen.keys() | self._offline.keys() | self._protocol.keys()
        if not devices:
            return
        protocol, offline, seen = dict(self._protocol), dict(self._offline), dict(self._seen)
        changes = {device: self._change(device) for device in devices}
        stored = await self._database.read(lambda tx: tx.devices.presences(devices))
        records = [change.applied_to(stored.get(device) or _never_seen(device)) for device, change in changes.items()]
        await self._database.write(lambda tx: tx.devices.put_presences(records))
        _drop_unchanged(self._protocol, protocol)
        _drop_unchanged(self._offline, offline)
        _drop_unchanged(self._seen, seen)

    async def flush_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await trio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
            except StoreError as error:  # what was not written stays in memory, and in the next attempt
                _log.warning("presence_not_saved", reason=str(error))

    def statistics(self) -> PresenceStatistics:
        return PresenceStatistics(len(self._online), len(self._seen))


@dataclass(frozen=True, slots=True)
class _Change:
    online: bool
    now_ms: int
    protocol: str | None
    offline_on: int | None
    seen_on: int | None

    def applied_to(self, stored: PresenceRecord) -> PresenceRecord:
        record = replace(
            stored, protocol=self.protocol or stored.protocol, last_seen_on=self.seen_on or stored.last_seen_on
        )
        if self.online:
            return replace(record, availability="online", last_time_online=self.now_ms)
        if self.offline_on is not None:
            return replace(record, availability="offline", last_time_online=self.offline_on)
        return record


def _never_seen(device: int) -> PresenceRecord:
    return PresenceRecord(device, "unknown", None, None, None)


def _drop_unchanged(current: dict[int, V], written: dict[int, V]) -> None:
    for device, value in written.items():
        if current.get(device) == value:
            del current[device]
