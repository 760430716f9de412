"""Messages of topic devices: of what they publish on open topics, or of calls of hooks (reference 16.8).

A message is accepted in the turn in which it is published, so it commits with the group that acknowledges the
publisher. Before that, its publisher waits until the device is in memory: read, or made (`make_ready`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.tokens import TokenKind
from broker.accounts.users import user_named
from broker.clock import Clock
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.inventory import Inventory, NewDevice
from broker.devices.registry import Device, Devices
from broker.errors import (
    Conflict,
    DeviceNotFound,
    DeviceTypeNotFound,
    DomainError,
    NotFound,
    StorageUnavailable,
    ValidationFailed,
    invalid,
)
from broker.facts import DeviceTypeChanged, FactPhase, Router
from broker.limits.meters import Channel, Meters
from broker.limits.overhead import Pace
from broker.loops import Wakeup
from broker.messages.ingest import Ingest
from broker.names import plain_name_problem
from broker.topic_devices.entries import MadeMessage, NotUnderstoodError, PayloadMapping, TopicDeviceEntry
from broker.topics.space import TopicMessage
from broker.trace.refusals import Refusals
from config.limits import TOPIC_DEVICES_MADE_MAX, TOPIC_DEVICES_SHOWN
from storage.database import Database
from storage.keys import DeviceKey, Ticket, UserKey
from storage.records import UserRecord
from storage.sql import StoreError
from storage.transaction import Transaction

#: How often owner and type of each entry are looked up: either may be made, or go, at any time.
_LOOK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_PREFIX: Final = "sha256:"
_log = structlog.get_logger(__name__)


class HookNotReady(DomainError):
    """The owner or the device type of the entry is missing."""

    status = 503
    template = "This hook has no owner or no device type yet"


class TopicDeviceStatus(msgspec.Struct, frozen=True):
    """An entry for its operator. `problem`: why it takes nothing, or what was not understood last; empty when all is
    well. `unknown` are keys without a device, the last one first."""

    name: str
    source: str  # its topics, or "hook"
    stored: int
    made: int
    not_understood: int
    problem: str
    unknown: tuple[str, ...]


class TopicDeviceStatistics(msgspec.Struct, frozen=True):
    """`ignored`: payloads about nothing that a mapping takes. `refused`: messages that the device's limits refused.
    `waiting`: messages whose publishers wait for a device that is read or made."""

    stored: int
    ignored: int
    refused: int
    not_understood: int
    unknown: int
    made: int
    waiting: int
    entries: tuple[TopicDeviceStatus, ...]


@dataclass(eq=False)
class _Door:
    """An entry at work. `owner` and `type` are None while there is no such one."""

    entry: TopicDeviceEntry
    owner: UserRecord | None = None
    type: DeviceType | None = None
    problem: str = "The service has just begun."
    last: str = ""
    known: dict[str, Device] = field(default_factory=dict)
    unknown: OrderedDict[str, None] = field(default_factory=OrderedDict)
    stored: int = 0
    made: int = 0
    not_understood: int = 0

    def lacks(self, problem: str) -> None:
        """Why the entry takes nothing; empty when it does. Each reason is logged once."""
        if problem and problem != self.problem:
            _log.warning("topic_device_entry_refused", entry=self.entry.name, reason=problem)
        self.problem = problem


class TopicDevices:
    """`entries` are those of the settings. Without any, nothing hears of messages."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        devices: Devices,
        types: DeviceTypes,
        inventory: Inventory,
        ingest: Ingest,
        meters: Meters,
        router: Router,
        refusals: Refusals,
        entries: Sequence[TopicDeviceEntry],
    ) -> None:
        self._database, self._clock = database, clock
        self._devices, self._types, self._inventory = devices, types, inventory
        self._ingest, self._meters, self._refusals = ingest, meters, refusals
        self._doors = [_Door(one) for one in entries]
        self._hooks = {one.entry.name: one for one in self._doors if one.entry.is_hook}
        self._routes: dict[UserKey, list[tuple[PayloadMapping, _Door]]] = {}
        #: The message that was looked at last, and what was made of it: it is published next.
        self._looked_at: tuple[_Door, bytes, bytes, MadeMessage | None] | None = None
        self._waiting = 0
        self._wakeup = Wakeup()
        router.subscribe(DeviceTypeChanged, self._type_changed, FactPhase.EFFECT)
        self._ignored = self._refused = 0

    def _type_changed(self, _fact: DeviceTypeChanged) -> None:
        """It may be one that an entry waits for."""
        if any(one.type is None for one in self._doors):
            self._wakeup.set()

    # Topics

    def hear(self, message: TopicMessage, _source: DeviceKey, owner: UserKey, _pace: Pace) -> bool:
        """Take what a device of this owner publishes; everybody else gets it all the same."""
        if (found := self._made_of(message.topic, message.payload, owner)) is not None:
            self._looked_at = None
            door, made = found
            if made is not None and (device := self._known(door, made.key)) is not None:
                self._submit(door, device, made)
        return False

    def is_ready(self, topic: bytes, payload: bytes, _source: DeviceKey, owner: UserKey) -> bool:
        """See `Preparer`: whether the message is of a device in memory, or of none."""
        if (found := self._made_of(topic, payload, owner)) is None:
            return True
        door, made = found
        return made is None or self._known(door, made.key) is not None

    async def make_ready(self, topic: bytes, payload: bytes, _source: DeviceKey, owner: UserKey) -> bool:
        """See `Preparer`: read the device of the message, or make it."""
        if (found := self._made_of(topic, payload, owner)) is None:
            return True
        door, made = found
        if made is None:
            return True
        self._waiting += 1
        try:
            return await self._device(door, made.key) is not None
        except StorageUnavailable:
            raise
        except DomainError as error:
            self._note(door, f"No device could be made: {error}.")
            return False
        finally:
            self._waiting -= 1

    def _made_of(self, topic: bytes, payload: bytes, owner: UserKey) -> tuple[_Door, MadeMessage | None] | None:
        """The entry that takes a message, and what it makes of it; None: no entry takes it."""
        if (routes := self._routes.get(owner)) is None:
            return None
        for mapping, door in routes:
            if mapping.pattern.fullmatch(topic):
                known = self._looked_at
                if known is not None and known[:3] == (door, topic, payload):
                    return door, known[3]
                made = self._made(door, mapping, topic, payload)
                self._looked_at = door, topic, payload, made
                return door, made
        return None

    def _made(self, door: _Door, mapping: PayloadMapping, topic: bytes, payload: bytes) -> MadeMessage | None:
        try:
            made = mapping.made_of(topic, payload)
        except NotUnderstoodError as error:
            self._note(door, str(error))
            return None
        if made is None:
            self._ignored += 1
        return made

    # Hooks

    def check(self, name: str, secret: str) -> None:
        """Raises NotFound, in the same time for a wrong name and a wrong secret."""
        door = self._hooks.get(name)
        wanted = _PREFIX + "0" * 64 if door is None else door.entry.settings.hook
        given = _PREFIX + sha256(secret.encode(errors="surrogatepass")).hexdigest()
        if not compare_digest(given, wanted) or door is None:
            raise NotFound

    def count(self, name: str) -> None:
        """Count a call of a hook against its owner's messages. Raises RateLimitExceeded, HookNotReady."""
        door = self._hooks[name]
        if door.owner is None or door.type is None:
            raise HookNotReady
        meter_name = f"{Channel.MESSAGES.value} hooks of user {door.owner.key}"
        rate = self._meters.rate_named(meter_name, Channel.MESSAGES, TokenKind.USER)
        if rate is not None:
            self._meters.named(meter_name, rate).count()

    async def receive(self, name: str, payload: bytes) -> Ticket | None:
        """Accept the message of a call; None for a payload about nothing that the mapping takes.

        Raises:
            ValidationFailed: it is not understood, or of no device that is known.
            DomainError: as `Ingest.submit`.
        """
        door = self._hooks[name]
        for mapping in door.entry.mappings:
            try:
                made = mapping.made_of(b"", payload)
            except NotUnderstoodError as error:
                self._note(door, str(error))
                raise ValidationFailed.of("body", invalid(str(error))) from error
            if made is None:
                continue
            device = self._known(door, made.key) or await self._device(door, made.key)
            if device is None:
                raise ValidationFailed.of("key", invalid("is of no device that the service knows"))
            return self._submitted(door, device, made)
        self._ignored += 1
        return None

    # Devices

    def _known(self, door: _Door, key: str) -> Device | None:
        """A device that is in memory, and still what it was."""
        device = door.known.get(key)
        if device is None:
            return None
        if self._is_of(door, device, key) and self._devices.get_nowait(device.key) is device:
            return device
        del door.known[key]
        return None

    def _is_of(self, door: _Door, device: Device, key: str) -> bool:
        if door.owner is None or door.type is None or device.owner != door.owner.key:
            return False
        if (known := door.entry.settings.devices.get(key)) is not None:
            return device.id == known
        return device.record.eid == key and device.type_key == door.type.key

    async def _device(self, door: _Door, key: str) -> Device | None:
        """The device of a key, which is made if it may be. Raises StoreError, DomainError."""
        if door.owner is None or door.type is None:
            return None
        if (known := door.entry.settings.devices.get(key)) is not None:
            try:
                device: Device | None = await self._devices.find(known)
            except DeviceNotFound:
                device = None
            if device is not None and device.owner != door.owner.key:
                device = None
        else:
            device = await self._devices.by_eid(door.owner.key, door.type.key, key)
            if device is None and door.entry.settings.make:
                device = await self._make(door, door.owner, door.type, key)
        if device is None:
            self._note_unknown(door, key)
            return None
        if len(door.known) >= 2 * TOPIC_DEVICES_MADE_MAX:
            door.known.clear()
        door.known[key] = device
        door.unknown.pop(key, None)
        return device

    async def _make(self, door: _Door, owner: UserRecord, type_: DeviceType, key: str) -> Device | None:
        new = NewDevice(owner=owner.key, type=type_, name=None if plain_name_problem(key) else key, eid=key)
        most = door.entry.settings.make_max
        try:
            device = await self._inventory.create(new, check=partial(_check_room, owner.key, type_, most))
        except _NoRoomError:
            self._note(door, f"It has made {most} devices, and makes no more: make_max.")
            return None
        except Conflict:  # another node, or an entry of the same type, was first
            return await self._devices.by_eid(owner.key, type_.key, key)
        door.made += 1
        _log.info("topic_device_made", entry=door.entry.name, device=device.id)
        return device

    # Messages

    def _submit(self, door: _Door, device: Device, made: MadeMessage) -> None:
        try:
            self._submitted(door, device, made)
        except DomainError:  # it is among the device's refused messages
            self._refused += 1

    def _submitted(self, door: _Door, device: Device, made: MadeMessage) -> Ticket:
        """Raises DomainError."""
        ts = made.ts
        if ts is not None and ts > self._clock.now_ms() + self._ingest.future_grace_ms:
            ts = None  # the clock of the sender is wrong
        ticket = self._ingest.submit(device, made.data, ts)
        door.stored += 1
        return ticket

    # Reporting

    def _note(self, door: _Door, text: str) -> None:
        door.not_understood += 1
        door.last = text
        self._refusals.note("topic_device_not_understood", reason=text, source=f"topic_devices {door.entry.name}")

    def _note_unknown(self, door: _Door, key: str) -> None:
        door.unknown[key] = None
        door.unknown.move_to_end(key)
        if len(door.unknown) > TOPIC_DEVICES_SHOWN:
            door.unknown.popitem(last=False)
        text = "There is no device of a key."
        self._refusals.note("topic_device_unknown", reason=text, source=f"topic_devices {door.entry.name}")

    def statistics(self) -> TopicDeviceStatistics:
        doors = self._doors
        return TopicDeviceStatistics(
            sum(one.stored for one in doors),
            self._ignored,
            self._refused,
            sum(one.not_understood for one in doors),
            sum(len(one.unknown) for one in doors),
            sum(one.made for one in doors),
            self._waiting,
            tuple(map(_status, doors)),
        )

    # The worker

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        is_known = await self.look_up()
        task_status.started()
        while True:
            seconds = _LOOK_SECONDS if is_known else _RETRY_SECONDS
            await self._wakeup.wait(seconds if self._doors else float("inf"))
            is_known = await self.look_up()

    async def look_up(self) -> bool:
        """Find owner and type of each entry; whether the store could be read."""
        is_known = True
        routes = dict[UserKey, list[tuple[PayloadMapping, _Door]]]()
        for door in self._doors:
            settings = door.entry.settings
            try:
                owner = await self._database.read(lambda tx, name=settings.owner: user_named(tx, name))  # type: ignore[misc]
                type_ = await self._types.find(settings.type)
            except DeviceTypeNotFound:
                door.type = None
                door.lacks(f"There is no device type {settings.type}.")
                continue
            except StoreError:
                is_known = False  # it stays as it was
            else:
                door.owner, door.type = owner, type_
                door.lacks("" if owner is not None else f"There is no user {settings.owner}.")
            if door.owner is not None and door.type is not None and not door.entry.is_hook:
                routes.setdefault(door.owner.key, []).extend((one, door) for one in door.entry.mappings)
        self._routes = routes
        return is_known


class _NoRoomError(Exception):
    pass


def _check_room(owner: UserKey, type_: DeviceType, most: int, tx: Transaction) -> None:
    if tx.devices.count_with_eid(owner, type_.key) >= most:
        raise _NoRoomError


def _status(door: _Door) -> TopicDeviceStatus:
    source = "hook" if door.entry.is_hook else ", ".join(one.topic for one in door.entry.mappings)
    return TopicDeviceStatus(
        door.entry.name,
        source,
        door.stored,
        door.made,
        door.not_understood,
        door.problem or door.last,
        tuple(reversed(door.unknown)),
    )
