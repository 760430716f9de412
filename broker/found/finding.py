"""Takes over devices that MQTT clients announce for Home Assistant (reference 16.9).

A client is a device of this service, which the setting `discover` names. A worker reads its announcements, in turns by
clients; they are listed until their owner accepts them. A state of an accepted device is a message of that device, in
the turn in which it comes, so the client's acknowledgement follows the message's commit.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.inventory import Inventory, NewDevice
from broker.devices.presence import Presence
from broker.devices.registry import Device, Devices
from broker.errors import (
    Conflict,
    DeviceNotFound,
    DomainError,
    NotFound,
    ValidationFailed,
    too_long,
)
from broker.facts import ActionStored, DeviceDeleted, DeviceHandedOver, FactPhase, Router
from broker.found.announcements import Announced, Announcement, is_announcement, read_announcement
from broker.found.clients import ACCEPTED, FOUND, IGNORED, Announcer, FoundDevice, client_named, found_of, rows_of
from broker.found.commands import Command, FoundCommands
from broker.found.components import AvailabilityTopic, FieldReading
from broker.found.definitions import PublishedState, definition_of, values_of
from broker.found.templates import Template
from broker.found.topics import FoundTopics
from broker.found.types import FoundTypes
from broker.ids import new_id
from broker.limits.overhead import Pace
from broker.loops import Loop, Wakeup
from broker.messages.ingest import Ingest
from broker.threads import run_in_thread
from broker.topics.space import TopicMessage, TopicSpace
from broker.trace.refusals import Refusals
from config.limits import (
    FOUND_COMPONENTS_MAX,
    FOUND_DEVICES_MAX,
    FOUND_DOCUMENT_BYTES,
    FOUND_WAITING,
    FOUND_WAITING_BYTES,
    MAX_DATA_BYTES,
)
from config.settings import Discover, Settings
from storage.database import Database
from storage.found import FoundRecord
from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.sql import StoreError
from storage.transaction import Transaction

_NOTHING: Final = "Nothing of it can be taken over"
_UNFIT: Final = "its parameters do not fit"
#: Parts of templates that take the time of one frame of overhead.
_PARTS_OF_A_FRAME: Final = 25
#: How often clients that the settings name are looked up.
_CLIENTS_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0

_encode: Final = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


class TooManyAnnouncements(DomainError):
    status = 429
    template = f"At most {FOUND_WAITING} announcements wait, or {FOUND_WAITING_BYTES // 1024} KiB"


class FoundStatistics(msgspec.Struct, frozen=True):
    """`clients` that announce, `found` devices, `accepted` ones, and how many announcements wait."""

    clients: int
    found: int
    accepted: int
    waiting: int
    messages: int


class DeviceFinder:
    """Does nothing, and costs nothing, for as long as the settings name no client."""

    def __init__(
        self,
        database: Database,
        space: TopicSpace,
        devices: Devices,
        inventory: Inventory,
        presence: Presence,
        types: FoundTypes,
        ingest: Ingest,
        router: Router,
        clock: Clock,
        refusals: Refusals,
        wanted: Iterable[Discover],
        commands: FoundCommands,
    ) -> None:
        self.commands = commands
        self._database = database
        self._space = space
        self._devices = devices
        self._inventory = inventory
        self._presence = presence
        self._types = types
        self._ingest = ingest
        self._clock = clock
        self._refusals = refusals
        self._wanted = tuple(wanted)
        self._clients: dict[DeviceKey, Announcer] = {}
        self._accepted: dict[DeviceKey, tuple[Announcer, FoundDevice]] = {}  # by the device that was made
        self._topics = FoundTopics()
        self._ready: dict[DeviceKey, Device] = {}  # the devices that were made, which stay in memory
        self._wakeup = Wakeup()
        self._changing = trio.Lock()
        self._due_at = 0.0
        self._messages = 0
        self.run_forever = Loop(
            self.step,
            failure="announcements_not_read",
            pause=self._pause,
            wakeup=self._wakeup,
            at_once=True,
            retry_seconds=_RETRY_SECONDS,
        ).run
        router.subscribe(ActionStored, self._action_stored, FactPhase.EFFECT)
        router.subscribe(DeviceDeleted, self._device_gone, FactPhase.EFFECT)
        router.subscribe(DeviceHandedOver, self._device_gone, FactPhase.EFFECT)

    def renew(self, settings: Settings) -> None:
        """Take new settings."""
        if settings.discover != self._wanted:
            self._wanted = settings.discover
            self._due_at = 0.0
            self._wakeup.set()

    def statistics(self) -> FoundStatistics:
        clients = self._clients.values()
        return FoundStatistics(
            len(clients),
            sum(len(one.found) for one in clients),
            len(self._accepted),
            sum(len(one.jobs) for one in clients),
            self._messages,
        )

    def is_taken_over(self, device: DeviceKey) -> bool:
        """Whether a device was made of what a client announces: Home Assistant knows it by that."""
        return device in self._accepted

    # --- Lists ---

    def of_user(self, user: UserKey) -> list[tuple[Device, FoundDevice]]:
        """The found devices of a user's clients, each with its client."""
        return [
            (client.device, found)
            for client in self._clients.values()
            if client.owner == user == client.device.owner
            for found in client.found.values()
        ]

    def has_client(self, user: UserKey) -> bool:
        return any(client.owner == user for client in self._clients.values())

    def device_of(self, found: FoundDevice) -> Device | None:
        """The device that was made of it."""
        return None if found.record.device is None else self._ready.get(found.record.device)

    def find(self, id_: str) -> tuple[Device, FoundDevice]:
        """A found device, whosever it is, with its client. Raises NotFound."""
        for client in self._clients.values():
            if client.owner == client.device.owner:
                for found in client.found.values():
                    if found.record.id == id_:
                        return client.device, found
        raise NotFound

    async def accept(self, user: UserKey, id_: str) -> FoundDevice:
        """Make a device of it, and of its states messages, from now on. Returns the accepted one.

        Raises NotFound, Conflict: nothing can be made of it, or the user has no organization for its type; what refuses
        a device or a type.
        """
        async with self._changing:
            client, found = self._client_of(user, id_)
            if found.record.status == ACCEPTED:
                return found
            if found.definition.is_empty:
                texts = [f"{one.component}: {one.text}" for one in found.definition.problems[:5]]
                raise Conflict(f"{_NOTHING}: {'; '.join(texts)}" if texts else _NOTHING)
            type_ = await self._types.of(user, found)
            now_ms = self._clock.now_ms()

            def beside(tx: Transaction, record: Any) -> None:
                row = replace(found.record, status=ACCEPTED, device=record.key, last_on=Milliseconds(now_ms))
                tx.found.put(row)

            device = await self._inventory.create(
                NewDevice(owner=user, type=type_, name=found.record.name), beside=beside
            )
            found.record = replace(found.record, status=ACCEPTED, device=device.key, last_on=Milliseconds(now_ms))
            self._ready[device.key] = device
            self._index()
        self._read_retained(client, found)
        return found

    async def ignore(self, user: UserKey, id_: str) -> FoundDevice:
        """Take no notice of it any more. A device that was made of it stays, and gets no messages."""
        return await self._mark(user, id_, IGNORED)

    async def reconsider(self, user: UserKey, id_: str) -> FoundDevice:
        """List it as found again."""
        return await self._mark(user, id_, FOUND)

    async def _mark(self, user: UserKey, id_: str, status: str) -> FoundDevice:
        async with self._changing:
            _, found = self._client_of(user, id_)
            record = replace(found.record, status=status, device=None)
            await self._database.write(lambda tx: tx.found.put(record))
            found.record = record
            self._index()
        return found

    def _client_of(self, user: UserKey, id_: str) -> tuple[Announcer, FoundDevice]:
        for client in self._clients.values():
            if client.owner == user == client.device.owner:
                for found in client.found.values():
                    if found.record.id == id_:
                        return client, found
        raise NotFound

    # --- Messages of clients ---

    def is_ready(self, topic: bytes, payload: bytes, source: DeviceKey, _owner: UserKey) -> bool:
        """See `Preparer`: whether there is room for an announcement."""
        client = self._clients.get(source)
        if client is None or client.has_room(text := topic.decode(errors="replace"), len(payload)):
            return True
        return not is_announcement(client.prefix, text)

    async def make_ready(self, topic: bytes, payload: bytes, source: DeviceKey, owner: UserKey) -> bool:
        """See `Preparer`: the client waits until others of its announcements are read."""
        while not self.is_ready(topic, payload, source, owner):
            await self._clients[source].room.wait()
        return True

    def hear(self, message: TopicMessage, source: DeviceKey, owner: UserKey, pace: Pace) -> bool:
        """See `Hearer`. Everybody else gets these messages, too. Raises TooManyAnnouncements."""
        client = self._clients.get(source)
        if client is None or client.owner != owner:
            return False
        for made, readings in self._topics.readings(message.topic, source):
            pace.spend(sum(one.cost for one in readings) // _PARTS_OF_A_FRAME)
            self._take_state(client, made, readings, message.payload)
        if tellers := self._topics.availability(message.topic, source):
            templates = {one.template for _, one in tellers if one.template is not None}
            pace.spend(sum(one.cost for one in templates) // _PARTS_OF_A_FRAME)
            self._take_availability(client, tellers, message.payload)
        topic = message.topic.decode(errors="replace")
        if is_announcement(client.prefix, topic):
            if not client.has_room(topic, len(message.payload)):
                raise TooManyAnnouncements
            self._add(client, topic, partial(self._announced, client, topic, message.payload), len(message.payload))
        return False

    def _add(self, client: Announcer, subject: object, job: Callable[[], Any], size: int) -> None:
        """Do a job later, in the place of one about the same subject that waits."""
        client.waiting_bytes += size - client.jobs.get(subject, (None, 0))[1]
        client.jobs[subject] = (job, size)
        self._wakeup.set()

    def _take_state(self, client: Announcer, made: DeviceKey, readings: Iterable[FieldReading], payload: bytes) -> None:
        """Store what a state says as messages of the device, which knows of refusals."""
        device = self._ready.get(made)
        if device is None or device.owner != client.owner:
            return
        try:
            values = values_of(readings, payload)
            for part in _parts(values):
                self._ingest.submit(device, part)
                self._messages += 1
        except ValidationFailed as error:
            self._ingest.refused.note(device, Conflict(f"State refused: {_said(error)}"))
        except DomainError as error:
            self._ingest.refused.note(device, error)

    def _take_availability(
        self, client: Announcer, tellers: Iterable[tuple[DeviceKey, AvailabilityTopic]], payload: bytes
    ) -> None:
        """Each template is rendered once: all devices of a client may have the same one."""
        with suppress(ValidationFailed):
            state, texts = PublishedState(payload), dict[Template | None, str | None]()
            for made, one in tellers:
                if one.template not in texts:
                    texts[one.template] = state.rendered(one.template)
                if (text := texts[one.template]) in {one.available, one.not_available}:
                    status = "online" if text == one.available else "offline"
                    self._add(client, made, partial(self._set_status, made, status), 0)

    async def _set_status(self, made: DeviceKey, status: str) -> None:
        if made in self._accepted:
            await self._presence.set(made, status)

    def _action_stored(self, fact: ActionStored) -> None:
        """Publish what an Action to a device is for its client, at the command topic."""
        if not self._clients:
            return
        self.commands.saw(fact.action.position)
        if fact.is_sent and fact.destination in self._accepted:
            self.commands.put(fact.action.position, self._commands_of(fact.destination, fact.action.data))

    def _commands_of(self, made: DeviceKey, data: str) -> list[Command]:
        """The commands for the client of a device; the device knows of calls that are none."""
        accepted, device = self._accepted.get(made), self._ready.get(made)
        if accepted is None or device is None:
            return []
        client, found = accepted
        if device.owner != client.owner or client.device.owner != client.owner:
            return []
        commands = list[Command]()
        for call in msgspec.json.decode(data).get("actions", ()):
            name, parameters = str(call.get("name")), call.get("parameters")
            setting = found.definition.settings.get(name)
            payload = None if setting is None else setting.payload(parameters if isinstance(parameters, dict) else {})
            if setting is None or payload is None:
                self._not_passed_on(device, name, "its client has no such command" if setting is None else _UNFIT)
                continue
            lost = partial(self._not_passed_on, device, name, "its client is away")
            commands.append(Command(setting.topic.encode(), payload.encode(), client.device.key, client.owner, lost))
        return commands

    def _not_passed_on(self, device: Device, name: str, reason: str) -> None:
        self._ingest.refused.note(device, Conflict(f"Action {name[:64]} was not passed on: {reason}"))

    def _device_gone(self, fact: DeviceDeleted | DeviceHandedOver) -> None:
        accepted = self._accepted.get(fact.device)
        if accepted is not None:
            _, found = accepted
            record = replace(found.record, status=FOUND, device=None)
            self._database.write_nowait(lambda tx: tx.found.put(record))
            found.record = record
            self._ready.pop(fact.device, None)
            self._index()
        if fact.device in self._clients:
            self._due_at = 0.0
            self._wakeup.set()

    def _index(self) -> None:
        """Make the tables of topics again."""
        self._accepted = self._topics.renew(self._clients.values(), self._leave_out)
        self._ready = {key: device for key, device in self._ready.items() if key in self._accepted}

    def _leave_out(self, client: Announcer, found: FoundDevice, topic: bytes) -> None:
        """Too many devices have their states, or too costly ones, at one topic."""
        reason = f"{found.record.name}: {topic.decode(errors='replace')[:100]} is the topic of too many devices"
        self._refusals.note("announcement_refused", reason=reason, caller=f"device {client.device.id}")

    # --- The worker ---

    def _pause(self) -> float:
        return max(0.0, self._due_at - trio.current_time()) if self._wanted or self._clients else inf

    async def step(self) -> bool:
        """One job of each client; whether there are more. Raises StoreError: the job is done again."""
        if (self._wanted or self._clients) and trio.current_time() >= self._due_at:
            await self._look_up()
        for client in list(self._clients.values()):
            if client.jobs:
                subject, job = next(iter(client.jobs.items()))
                try:
                    await job[0]()
                except DomainError as error:
                    self._refuse(client, error)
                except StoreError:
                    raise
                except Exception:  # noqa: BLE001 - what one client announces must not end the service
                    _log.exception("announcement_failed", device=client.device.id)
                client.ended(subject, job)
            await trio.lowlevel.checkpoint()
        return any(client.jobs for client in self._clients.values())

    def _refuse(self, client: Announcer, error: DomainError) -> None:
        """Its owner sees it at the client (9.6)."""
        text = _said(error)
        self._ingest.refused.note(client.device, Conflict(f"Announcement refused: {text}"))
        self._refusals.note("announcement_refused", reason=text, caller=f"device {client.device.id}")

    async def _look_up(self) -> None:
        wanted = self._wanted
        named = await self._database.read(lambda tx: [client_named(tx, one) for one in wanted])
        clients: dict[DeviceKey, Announcer] = {}
        for one, found in zip(wanted, named, strict=True):
            if found is None:
                reason = f"there is no device {one.device} of {one.owner}"
                self._refusals.note("discover_refused", reason=reason, caller="settings")
                continue
            owner, key = found
            known = self._clients.get(key)
            if known is not None and (known.owner, known.prefix) == (owner, one.prefix):
                clients[key] = known
                continue
            with suppress(DeviceNotFound):
                clients[key] = Announcer(await self._devices.get(key), owner, one.prefix)
        new = [client for key, client in clients.items() if self._clients.get(key) is not client]
        ready: dict[DeviceKey, Device] = {}
        for client in new:
            for record in await self._database.read(partial(rows_of, client.device.key)):
                client.found[record.identity] = one_found = await run_in_thread(partial(found_of, record))
                if record.status != ACCEPTED:
                    continue
                device = await self._made_for(client.owner, record)
                if device is None:
                    one_found.record = replace(record, status=FOUND, device=None)
                else:
                    ready[device.key] = device
        if wanted is not self._wanted:  # the next step looks again
            return
        for former in self._clients.values():
            if clients.get(former.device.key) is not former:
                former.room.set()  # nothing waits for it any more
        self._clients = clients
        self._space.prepare_with(self, is_on=bool(clients))
        self._ready |= ready
        self._index()
        for client in new:
            self._read_announced(client)
        await self.commands.resume(lambda row: self._commands_of(row.device, row.data))
        self._due_at = trio.current_time() + _CLIENTS_SECONDS

    def _read_announced(self, client: Announcer) -> None:
        """Read what was announced before the setting was there, and is retained."""
        for topic, payload in self._space.retained_of(client.owner):
            text = topic.decode(errors="replace")
            if is_announcement(client.prefix, text):
                self._add(client, text, partial(self._announced, client, text, payload), len(payload))

    async def _made_for(self, owner: UserKey, record: FoundRecord) -> Device | None:
        """The device that was made; None if it was deleted or handed over while the setting was not there."""
        if record.device is None:
            return None
        try:
            device = await self._devices.get(record.device)
        except DeviceNotFound:
            return None
        return device if device.owner == owner else None

    # --- Announcements ---

    async def _announced(self, client: Announcer, topic: str, payload: bytes) -> None:
        """Raises ValidationFailed, Conflict: it is refused, and nothing is changed."""
        announcement = read_announcement(client.prefix, topic, payload)
        async with self._changing:
            for identity, found in list(client.found.items()):
                left = tuple(one for one in found.components if one.topic != topic)
                if identity != announcement.identity and len(left) < len(found.components):
                    await self._put(client, found, left, found.record)
            if announcement.components:
                await self._put_announced(client, announcement)

    async def _put_announced(self, client: Announcer, announcement: Announcement) -> None:
        now_ms = Milliseconds(self._clock.now_ms())
        topic = announcement.components[0].topic
        known = client.found.get(announcement.identity)
        if known is None:
            if len(client.found) >= FOUND_DEVICES_MAX:
                raise Conflict(f"a client announces at most {FOUND_DEVICES_MAX} devices")
            record = FoundRecord(
                id=new_id(),
                source=client.device.key,
                identity=announcement.identity,
                name=announcement.name,
                model=announcement.model,
                manufacturer=announcement.manufacturer,
                status=FOUND,
                device=None,
                components="[]",
                first_on=now_ms,
                last_on=now_ms,
            )
            known = FoundDevice(record, (), definition_of(()))
        kept = tuple(one for one in known.components if one.topic != topic)
        components = (*kept, *announcement.components)
        if components == known.components:
            return
        if len(components) > FOUND_COMPONENTS_MAX:
            raise Conflict(f"a device has at most {FOUND_COMPONENTS_MAX} components")
        about = {
            name: value
            for name in ("name", "model", "manufacturer")
            if (value := getattr(announcement, name)) and known.record.status != ACCEPTED
        }
        await self._put(client, known, components, replace(known.record, last_on=now_ms, **about))

    async def _put(
        self, client: Announcer, found: FoundDevice, components: tuple[Announced, ...], record: FoundRecord
    ) -> None:
        """Store a found device with these components; without any, forget it, unless it was accepted or ignored."""
        identity = record.identity
        if not components and record.status == FOUND:
            await self._database.write(lambda tx: tx.found.remove(record.id))
            client.found.pop(identity, None)
            return
        text = _encode(components).decode()
        if len(text) > FOUND_DOCUMENT_BYTES:
            raise ValidationFailed.of("components", too_long(FOUND_DOCUMENT_BYTES))
        definition = await run_in_thread(partial(definition_of, components))  # each template takes a millisecond
        if (device := self.device_of(found)) is not None:
            await self._types.extend(
                device, definition
            )  # before the components are known: else nothing would do it again
        row = replace(record, components=text, status=found.record.status, device=found.record.device)
        await self._database.write(lambda tx: tx.found.put(row))
        # The device may be gone by now.
        found.record = replace(row, status=found.record.status, device=found.record.device)
        found.components, found.definition = components, definition
        client.found[identity] = found
        if found.record.status == ACCEPTED:
            self._index()
            self._read_retained(client, found)

    def _read_retained(self, client: Announcer, found: FoundDevice) -> None:
        """Take the states that are there already."""
        made = found.record.device
        if made is None:
            return
        for topic, payload in self._space.retained_of(client.owner):
            for of, readings in self._topics.readings(topic, client.device.key):
                if of == made:
                    self._take_state(client, made, readings, payload)
            tellers = self._topics.availability(topic, client.device.key)
            if mine := [(of, one) for of, one in tellers if of == made]:
                self._take_availability(client, mine, payload)


def _said(error: DomainError) -> str:
    if isinstance(error, ValidationFailed):
        return "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in error.findings)
    return str(error)


def _parts(values: Mapping[str, Any]) -> Iterable[bytes]:
    """JSON objects with these values, each as large as a message may be."""
    part: dict[str, Any] = {}
    for name, value in values.items():
        part[name] = value
        if len(part) > 1 and len(_encode(part)) > MAX_DATA_BYTES:
            del part[name]
            yield _encode(part)
            part = {name: value}
    if part:
        yield _encode(part)
