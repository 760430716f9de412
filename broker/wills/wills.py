"""Wills: what is published for a device that has gone without a word (reference 16.2, 16.5, 16.6).

A will is stored before its CONNACK is sent. It is published and removed in one commit, so that it is published once,
however often the daemon is killed. After a kill the store has the wills of connections that were open, which ended
then, and wills that wait for their delay.

Of several nodes each publishes its own. A node that buries another one takes its wills over in the same transaction,
and one that leaves gives them to whoever looks first.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from broker.core import Core
from broker.device_sessions.sessions import WRITE_BYTES
from broker.devices.registry import Device, Devices
from broker.errors import DomainError, PayloadTooLarge, StorageUnavailable
from broker.limits.meters import Meter
from broker.limits.overhead import Overhead
from broker.messages.ingest import Ingest
from broker.topics.room import TopicsRoom
from broker.topics.space import Preparer, TopicMessage
from config.limits import MAX_DATA_BYTES
from storage.keys import DeviceKey, Milliseconds
from storage.mqtt_wills import WillRecord
from storage.outages import Outage
from storage.sql import StoreError
from storage.transaction import Transaction

#: How often a node looks for the wills of nodes that have left.
_ADOPT_SECONDS: Final = 20.0
#: Wills that are published in one turn of the loop.
_TURN: Final = 64
_RETRY_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


class WillForbidden(DomainError):
    status = 403
    template = "The device may not publish to the topic of its will"


class WillStatistics(msgspec.Struct, frozen=True):
    waiting: int
    published: int


class _Waiting(msgspec.Struct, frozen=True):
    due_at: float  # of trio's clock
    will: WillRecord


class Wills:
    def __init__(self, core: Core, registry: Devices, ingest: Ingest, topics: TopicsRoom, overhead: Overhead) -> None:
        self._core = core
        self._database = core.database
        #: The name of this node among several; empty: the only one.
        self._node = "" if core.peers is None else core.settings.cluster.name
        self._registry = registry
        self._ingest = ingest
        self._topics = topics
        self._overhead = overhead
        self._waiting: dict[DeviceKey, _Waiting] = {}
        self._is_due = trio.Event()
        self._outage = Outage("wills_not_published")
        self._published = 0

    async def resume(self) -> None:
        """After the start of the daemon: no device is connected to it. `publish_forever` publishes what is due."""
        if await self._database.read(lambda tx: tx.mqtt_wills.others(self._node)):
            await self._database.write(partial(_take_over, self._node))
        of_connections, away = await self._database.read(partial(_all, self._node))
        connected = {will.device for will in of_connections}
        # Killed between the commit of a new session, which ended the wait, and that of the will.
        overtaken = [will for will, _ in away if will.device in connected]
        owners = {one.key: one for one in await self._registry.get_all(will.device for will in overtaken)}
        now, now_ms = trio.current_time(), self._core.clock.now_ms()
        for will in overtaken:
            if will.device in owners:
                self._publish(owners[will.device], will, None)
        for will, due_on in away:
            self._wait_until(will, due_on)
        for will in of_connections:
            due_on = Milliseconds(now_ms + will.delay_seconds * 1000)
            self._database.write_nowait(partial(_wait, self._node, will.device, due_on), size=WRITE_BYTES)
            self._wait(will, now + (will.delay_seconds if self._has_delays else 0))

    async def adopt(self) -> None:
        """Publish the wills that this node has taken over: those of a node that it has buried, and of nodes that have
        left. Raises StoreError."""
        if await self._database.read(lambda tx: "" in tx.mqtt_wills.others(self._node)):
            await self._database.write(partial(_take_over, self._node))
        for will, due_on in await self._database.read(lambda tx: tx.mqtt_wills.away(self._node)):
            if will.device not in self._waiting:
                self._wait_until(will, due_on)

    @property
    def _has_delays(self) -> bool:
        return self._core.settings.mqtt.persistent_sessions == "on"

    def _wait_until(self, will: WillRecord, due_on: Milliseconds) -> None:
        # After the clock was set back, a will waits no longer than its delay.
        seconds = min((due_on - self._core.clock.now_ms()) / 1000, will.delay_seconds) if self._has_delays else 0
        self._wait(will, trio.current_time() + seconds)

    def _wait(self, will: WillRecord, due_at: float) -> None:
        self._waiting[will.device] = _Waiting(due_at, will)
        self._is_due.set()

    # --- Connections ---

    async def keep(self, will: WillRecord) -> None:
        """Store the will of a new connection. Raises StoreError."""
        await self._database.write(partial(_keep, self._node, will))

    def keep_with_next_commit(self, will: WillRecord) -> None:
        """Keep a will in the next commit; see `keep`."""
        self._database.write_nowait(partial(_keep, self._node, will), size=will.size + WRITE_BYTES)

    def begun(self, device: DeviceKey, is_present: bool) -> None:
        """A connection has begun, with the session that the waiting will belongs to, or with a new one."""
        if (waiting := self._waiting.get(device)) is None:
            return
        is_over = is_present and waiting.due_at > trio.current_time()
        owner = None if is_over else self._registry.get_nowait(device)  # it is connected now
        if owner is not None and not self._is_ready(owner, waiting.will):
            self._wait(waiting.will, trio.current_time())
            return
        del self._waiting[device]
        self._forget(device, is_away=True)
        if owner is not None:
            self._publish(owner, waiting.will, None)

    def leave(self, device: Device, will: WillRecord, *, is_due: bool, seconds: int, meter: Meter | None) -> None:
        """The connection has ended: publish its will at once or after `seconds`, or forget it."""
        if is_due and (seconds or not self._is_ready(device, will)):
            due_on = Milliseconds(self._core.clock.now_ms() + seconds * 1000)
            self._database.write_nowait(partial(_wait, self._node, device.key, due_on), size=WRITE_BYTES)
            self._wait(will, trio.current_time() + seconds)
            return
        self._forget(device.key, is_away=False)
        if is_due:
            self._publish(device, will, meter)

    def _forget(self, device: DeviceKey, *, is_away: bool) -> None:
        self._database.write_nowait(partial(_forget, self._node, device, is_away), size=WRITE_BYTES)

    def _is_ready(self, device: Device, will: WillRecord) -> bool:
        """Whether all hearers of open topics have in memory what they need for this will."""
        return self._unready(device, will) is None

    def _unready(self, device: Device, will: WillRecord) -> Preparer | None:
        space = self._topics.space
        if not will.topic or space is None:
            return None
        return space.unready(will.topic, will.payload, device.key, device.owner)

    # --- Publication ---

    async def publish_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish wills when they are due; those of a daemon that has ended before any device connects."""
        await self._publish_due()
        task_status.started()
        adopt_at = trio.current_time() + _ADOPT_SECONDS if self._node else math.inf
        while True:
            if trio.current_time() >= adopt_at:
                adopt_at = trio.current_time() + _ADOPT_SECONDS
                with suppress(StoreError):  # it looks again
                    await self.adopt()
            with trio.move_on_at(min((one.due_at for one in self._waiting.values()), default=adopt_at)):
                self._is_due = trio.Event()
                await self._is_due.wait()
            await self._publish_due()

    async def _publish_due(self) -> None:
        now = trio.current_time()
        due = [one for one in self._waiting.values() if one.due_at <= now]
        for begin in range(0, len(due), _TURN):
            await self._ingest.wait_room()
            await self._publish_some(due[begin : begin + _TURN])

    async def _publish_some(self, due: Sequence[_Waiting]) -> None:
        elsewhere: set[DeviceKey] = set()
        try:
            if self._node:
                keys = [one.will.device for one in due if one.will.delay_seconds]
                elsewhere = await self._database.read(lambda tx: tx.device_connections.connected(keys))
            devices = await self._devices_of(due)
        except (StoreError, StorageUnavailable) as error:
            self._outage.failed(error)
            for one in due:
                if self._waiting.get(one.will.device) is one:
                    self._wait(one.will, trio.current_time() + _RETRY_SECONDS)
            return
        self._outage.succeeded()
        for one in due:
            key = one.will.device
            if self._waiting.get(key) is not one:  # the device is back
                continue
            del self._waiting[key]
            self._forget(key, is_away=True)
            if key not in elsewhere and (device := devices.get(key)) is not None:  # it is back on another node in time
                self._publish(device, one.will, None)

    async def _devices_of(self, due: Sequence[_Waiting]) -> dict[DeviceKey, Device]:
        """The devices whose wills are due, when what each will needs is in memory. Raises StoreError,
        StorageUnavailable."""
        devices = {one.key: one for one in await self._registry.get_all(one.will.device for one in due)}
        has_waited = False
        for will in (one.will for one in due):
            device = devices.get(will.device)
            if device is not None and (preparer := self._unready(device, will)) is not None:
                await preparer.make_ready(will.topic, will.payload, device.key, device.owner)
                has_waited = True
        if has_waited:
            devices = {one.key: one for one in await self._registry.get_all(one.will.device for one in due)}
        return devices

    def _publish(self, device: Device, will: WillRecord, meter: Meter | None) -> None:
        """Publish a will in the commit in which the caller forgets it. A refusal has nobody to be reported to."""
        try:
            if meter is not None:
                meter.count()
            if not will.topic:
                self._submit(device, will.payload)
            else:
                self._distribute(device, will)
            self._published += 1
        except DomainError as refusal:
            self._core.refusals.note("mqtt_will_refused", reason=str(refusal), caller=f"device {device.id}")

    def _submit(self, device: Device, payload: bytes) -> None:
        if len(payload) > MAX_DATA_BYTES:
            raise PayloadTooLarge(organization_id=device.type.record.organization_id, device_id=device.id)
        self._ingest.submit(device, payload)

    def _distribute(self, device: Device, will: WillRecord) -> None:
        space = self._topics.space
        if space is None or not device.enabled or not self._topics.access.may_publish(device, will.topic):
            raise WillForbidden
        expiry = will.expiry_seconds
        message = TopicMessage(
            topic=will.topic,
            payload=will.payload,
            qos=will.qos,
            retain=will.retain,
            properties=will.properties,
            expires_on=None if expiry is None else Milliseconds(self._core.clock.now_ms() + expiry * 1000),
        )
        space.distribute(message, device.key, device.owner, space.pace(device.key, self._overhead))

    def statistics(self) -> WillStatistics:
        return WillStatistics(len(self._waiting), self._published)


def _all(node: str, tx: Transaction) -> tuple[list[WillRecord], list[tuple[WillRecord, Milliseconds]]]:
    return tx.mqtt_wills.of_connections(node), tx.mqtt_wills.away(node)


def _take_over(node: str, tx: Transaction) -> None:
    """The wills of nodes that have left; the only daemon has those of all."""
    now_ms = tx.connection.now_ms()
    for former in tx.mqtt_wills.others(node):
        if not (node and former):
            tx.mqtt_wills.take_over(node, former, now_ms)


def _keep(node: str, will: WillRecord, tx: Transaction) -> None:
    tx.mqtt_wills.keep(will, node)


def _wait(node: str, device: DeviceKey, due_on: Milliseconds, tx: Transaction) -> None:
    tx.mqtt_wills.wait(device, due_on, node)


def _forget(node: str, device: DeviceKey, is_away: bool, tx: Transaction) -> None:
    tx.mqtt_wills.forget(device, is_away=is_away, node=node)
