"""Announces the devices of users to Home Assistant, and keeps their states up to date there (reference 16.7).

Facts only note what is to be done: that a device is to be looked at again, or that a message is to be shown. A worker
does it, in turns by the devices' owners. A look reads everything again and publishes what has changed, so nothing
depends on which facts came, or in which order. Messages are shown in the order of the log.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
import trio

from broker.accounts.users import user_named
from broker.devices.presence import Presence
from broker.devices.registry import Device, Devices
from broker.errors import DomainError, PermissionDenied
from broker.facts import (
    AvailabilityChanged,
    DeviceChanged,
    DeviceCreated,
    DeviceDeleted,
    DeviceTakenOver,
    DeviceTypeChanged,
    FactPhase,
    MessagesStored,
    Router,
    SharesChanged,
)
from broker.home_assistant.components import Component, components_of
from broker.home_assistant.topics import IDENTITY, asked, config_topic, own_topic, reserved_pattern
from broker.limits.overhead import Pace
from broker.loops import Loop, Wakeup
from broker.messages.decoding import decoded
from broker.messages.folds import Fields, merge_fields
from broker.messages.ingest import Ingest
from broker.messages.snapshots import Snapshots
from broker.topics.space import TopicMessage, TopicSpace
from broker.trace.refusals import Refusals
from config.build import VERSION
from config.limits import HOME_COMPONENTS_MAX, HOME_DEVICES_MAX, HOME_TEXT_CHARACTERS, HOME_WAITING_ROWS
from config.settings import HomeAssistant, Settings
from storage.database import Database
from storage.keys import DeviceKey, UserKey
from storage.records import MessageRow, PresenceRecord
from storage.transaction import Transaction

#: The service as the source of a message: no device has this key.
_SERVICE: Final = DeviceKey(-1)
#: Devices of one owner that are looked at in one turn, messages that are shown, and the pause after a turn of looks.
_LOOKS: Final = 20
_ROWS: Final = 100
_PAUSE_SECONDS: Final = 0.1
#: How often users that the settings name are looked up: one may be made, or get another address, at any time.
_USERS_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
#: Everything of one user is published again at most once in this time.
_AGAIN_SECONDS: Final = 5.0
_ONLINE: Final = b"online"
_OFFLINE: Final = b"offline"

_encode: Final = msgspec.json.Encoder().encode


class HomeStatistics(msgspec.Struct, frozen=True):
    """`homes`: users with devices in Home Assistant; `waiting`: looks at devices, and messages, that are to come."""

    homes: int
    devices: int
    waiting: int
    actions: int


@dataclass(eq=False)
class _Line:
    """The work for the devices of one owner. `looks`: whether everything is to be published again."""

    looks: dict[DeviceKey, bool] = field(default_factory=dict)
    rows: deque[MessageRow] = field(default_factory=deque)


@dataclass(eq=False)
class _Shown:
    """A device that is announced. `configs`: what was published for each discovery prefix, and to whom. `gone`: the
    platforms of the components that it has lost, by their ids: Home Assistant must be told that they are gone."""

    device: Device
    audience: frozenset[UserKey]
    fields: Fields
    components: tuple[Component, ...] = ()
    made_of: object = None  # the version of the Manifest that the components are of
    configs: dict[str, tuple[bytes, frozenset[UserKey]]] = field(default_factory=dict)
    own: dict[str, tuple[bytes, frozenset[UserKey]]] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)


class HomeAnnouncer:
    """Does nothing, and costs nothing, for as long as the settings name no user."""

    def __init__(
        self,
        database: Database,
        space: TopicSpace,
        devices: Devices,
        presence: Presence,
        snapshots: Snapshots,
        ingest: Ingest,
        router: Router,
        refusals: Refusals,
        homes: Iterable[HomeAssistant],
        public_url: str,
        leaves_out: Callable[[DeviceKey], bool],
    ) -> None:
        """`leaves_out`: devices that somebody else announces to Home Assistant."""
        self._database = database
        self._space = space
        self._devices = devices
        self._presence = presence
        self._snapshots = snapshots
        self._ingest = ingest
        self._refusals = refusals
        self._public_url = public_url
        self._leaves_out = leaves_out
        self._wanted = tuple(homes)
        self._homes: dict[UserKey, str] = {}  # discovery prefixes
        #: Prefixes that are no longer wanted, and Home Assistant may not know it yet. False: whoever is connected is to
        #: be told; True: Home Assistant is, which has just come, and that is the end of it; None: it has not come.
        self._former: dict[tuple[UserKey, str], bool | None] = {}
        self._has_looked = False
        self._prefixes = frozenset[str]()  # of all that are wanted
        self._shown: dict[DeviceKey, _Shown] = {}
        self._reading: dict[DeviceKey, Device] = {}  # devices whose values are being read
        self._by_id: dict[str, DeviceKey] = {}
        self._of_user: dict[UserKey, int] = {}  # how many devices are shown
        self._lines: dict[UserKey, _Line] = {}
        self._wakeup = Wakeup()
        self._users_due_at = 0.0
        self._again: dict[UserKey, float] = {}  # when everything of a user may be published again
        self._began: dict[UserKey, float] = {}  # when that began last
        self._actions = 0
        self.run_forever = Loop(
            self._turn,
            failure="home_assistant_not_told",
            pause=self._pause,
            wakeup=self._wakeup,
            at_once=True,
            retry_seconds=_RETRY_SECONDS,
        ).run
        router.subscribe(DeviceChanged, self._device_changed, FactPhase.EFFECT)
        router.subscribe(DeviceDeleted, self._device_changed, FactPhase.EFFECT)
        router.subscribe(SharesChanged, self._device_changed, FactPhase.EFFECT)
        router.subscribe(AvailabilityChanged, self._device_changed, FactPhase.EFFECT)
        router.subscribe(DeviceCreated, self._device_came, FactPhase.EFFECT)
        router.subscribe(DeviceTakenOver, self._device_came, FactPhase.EFFECT)
        router.subscribe(DeviceTypeChanged, self._type_changed, FactPhase.EFFECT)
        router.subscribe(MessagesStored, self._messages_stored, FactPhase.EFFECT)
        self._reserve()

    # The settings

    def renew(self, settings: Settings) -> None:
        """Take new settings: users who are no longer named lose their devices in Home Assistant."""
        if settings.home_assistant != self._wanted:
            self._wanted = settings.home_assistant
            self._users_due_at = 0.0
            self._reserve()
            self._wakeup.set()

    def _reserve(self) -> None:
        """Nobody sees or writes the topics from now on, before anything is there."""
        wanted = frozenset(one.prefix for one in self._wanted)
        if wanted - self._prefixes:
            self._space.drop_retained(reserved_pattern(wanted))
        self._prefixes = wanted

    def prefixes(self) -> frozenset[str]:
        return self._prefixes

    def has_home(self, user: UserKey) -> bool:
        return user in self._homes

    def shows(self, device_id: str, user: UserKey) -> bool:
        """Whether a device is announced to a user, who has it still."""
        shown = self._shown.get(self._by_id.get(device_id, _SERVICE))
        return shown is not None and user in shown.audience and shown.device.is_held_by(user)

    def statistics(self) -> HomeStatistics:
        waiting = sum(len(line.looks) + len(line.rows) for line in self._lines.values())
        return HomeStatistics(len(self._homes), len(self._shown), waiting, self._actions)

    # Facts

    def _device_changed(self, fact: DeviceChanged | DeviceDeleted | SharesChanged | AvailabilityChanged) -> None:
        if not self._homes and not self._shown:
            return
        key = fact.device
        device = self._devices.get_nowait(key)
        is_announced = key in self._shown or (device is not None and bool(self._users_of(device)))
        # With whom a device is shared that is not in memory is to be read first.
        if is_announced or (device is None and isinstance(fact, SharesChanged)):
            self._look(key)

    def _device_came(self, fact: DeviceCreated | DeviceTakenOver) -> None:
        if fact.owner in self._homes or fact.device in self._shown:
            self._look(fact.device)
        elif len(self._homes) < len(self._wanted):  # the owner may be a user who was not there yet
            self._users_due_at = 0.0
            self._wakeup.set()

    def _type_changed(self, fact: DeviceTypeChanged) -> None:
        for key, shown in self._shown.items():
            if shown.device.type_key == fact.device_type:
                self._look(key)

    def _messages_stored(self, fact: MessagesStored) -> None:
        if not self._shown and not self._reading:
            return
        for row in fact.rows:
            shown = self._shown.get(row.device)
            device = self._reading.get(row.device) if shown is None else shown.device
            if device is not None:
                line = self._line(device.owner)
                if len(line.rows) < HOME_WAITING_ROWS:
                    line.rows.append(row)
                else:  # then only the last values are shown
                    line.looks.setdefault(row.device, False)
                self._wakeup.set()

    def _look(self, key: DeviceKey, *, again: bool = False) -> None:
        device = self._devices.get_nowait(key)
        shown = self._shown.get(key)
        owner = device.owner if device is not None else shown.device.owner if shown is not None else UserKey(0)
        looks = self._line(owner).looks
        looks[key] = again or looks.get(key, False)
        self._wakeup.set()

    def _line(self, owner: UserKey) -> _Line:
        if (line := self._lines.get(owner)) is None:
            line = self._lines[owner] = _Line()
        return line

    # Messages of devices

    def hear(self, message: TopicMessage, _source: DeviceKey, owner: UserKey, _pace: Pace) -> bool:
        """See `Hearer`. A message on a set topic is an Action of the user whose device has sent it. Raises
        PermissionDenied, ValidationFailed, and what refuses an Action."""
        if self._former and message.payload == _ONLINE:
            self._hear_former(message.topic, owner)
        prefix = self._homes.get(owner)
        if prefix is None:
            return False
        if message.payload == _ONLINE and message.topic == f"{prefix}/status".encode():
            self._again.setdefault(owner, self._began.get(owner, 0.0) + _AGAIN_SECONDS)
            self._wakeup.set()
            return False
        if (set_topic := asked(message.topic)) is None:
            return False
        device_id, wanted = set_topic
        shown = self._shown.get(self._by_id.get(device_id, _SERVICE))
        if shown is None or owner not in shown.audience or not shown.device.is_held_by(owner):
            raise PermissionDenied(f"WRITE on device {device_id}")
        for component in shown.components:
            for _, id_, command in component.commands:
                if id_ == wanted:
                    self._ingest.submit_action(shown.device, shown.device, command(message.payload).data)
                    self._actions += 1
                    return True
        raise PermissionDenied(f"{wanted}, which device {device_id} does not have")

    def _hear_former(self, topic: bytes, owner: UserKey) -> None:
        for user, prefix in self._former:
            if user == owner and topic == f"{prefix}/status".encode():
                self._former[user, prefix] = True
                self._wakeup.set()

    # The worker

    def _pause(self) -> float:
        return max(0.0, self._users_due_at - trio.current_time()) if self._wanted else inf

    async def _turn(self) -> bool:
        if has_more := await self.step():
            await trio.sleep(0 if any(line.rows for line in self._lines.values()) else _PAUSE_SECONDS)
        return has_more

    async def step(self) -> bool:
        """Each owner has one turn; whether there is more to do. Raises StoreError."""
        is_of_use = self._wanted or self._homes or not self._has_looked
        if is_of_use and trio.current_time() >= self._users_due_at:
            await self._look_up_users()
        for (user, prefix), is_due in list(self._former.items()):
            if is_due is not None:
                await self._withdraw_former(user, prefix, is_end=is_due)
        self._begin_again()
        for owner in list(self._lines):
            line = self._lines[owner]
            self._show_rows(line)
            await self._look_at_some(line)
            if not line.rows and not line.looks:
                self._lines.pop(owner, None)
            await trio.lowlevel.checkpoint()
        return bool(self._lines or self._again)

    def _begin_again(self) -> None:
        now = trio.current_time()
        for user in [user for user, at in self._again.items() if at <= now]:
            del self._again[user]
            self._began[user] = now
            for key, shown in self._shown.items():
                if user in shown.audience:
                    self._look(key, again=True)

    async def _look_up_users(self) -> None:
        wanted = self._wanted

        def read(tx: Transaction) -> tuple[list[tuple[UserKey, str, list[DeviceKey]]], set[tuple[UserKey, str]]]:
            found = []
            for one in wanted:
                if (user := user_named(tx, one.user)) is not None:
                    some = tx.devices.listed(user.key, own=True, shared=True)[:HOME_DEVICES_MAX]
                    found.append((user.key, one.prefix, [listed.key for listed in some]))
            return found, tx.homes.all()

        found, known = await self._database.read(read)
        if wanted is not self._wanted:  # the next step looks again
            return
        self._know_homes({(user, prefix) for user, prefix, _ in found}, known)
        self._users_due_at = trio.current_time() + _USERS_SECONDS
        former, self._homes = self._homes, {user: prefix for user, prefix, _ in found}
        changed = {user for user in former.keys() | self._homes.keys() if former.get(user) != self._homes.get(user)}
        for key, shown in self._shown.items():
            if shown.audience & changed:
                self._look(key)
        for user, _, keys in found:
            if user in changed:
                for key in keys:
                    self._line(user).looks.setdefault(key, False)

    def _know_homes(self, now: set[tuple[UserKey, str]], known: set[tuple[UserKey, str]]) -> None:
        if new := now - known:
            self._database.write_nowait(partial(_put_homes, new))
        first = None if self._has_looked else False  # later, `_withdraw` tells whoever is connected
        self._former = {one: self._former.get(one, first) for one in (known | self._former.keys()) - now}
        self._has_looked = True

    async def _withdraw_former(self, user: UserKey, prefix: str, *, is_end: bool) -> None:
        """Publish that the devices of a user are gone."""
        listed = await self._database.read(
            lambda tx: [one.key for one in tx.devices.listed(user, own=True, shared=True)[:HOME_DEVICES_MAX]]
        )
        devices = await self._devices.get_all(listed)
        for number, device in enumerate(devices):
            if (user, prefix) not in self._former:  # it is wanted again
                return
            shown = self._shown.get(device.key)
            is_shown = shown is not None and prefix in shown.configs
            topic = config_topic(prefix, device.id)
            self._publish(user, topic, b"", frozenset({user}), qos=1, retain=not is_shown)
            if number % _LOOKS == 0:
                await trio.lowlevel.checkpoint()
        if (user, prefix) not in self._former:  # it is wanted again
            return
        if is_end:
            del self._former[user, prefix]
            self._database.write_nowait(lambda tx: tx.homes.remove(user, prefix))
        elif not self._former[user, prefix]:
            self._former[user, prefix] = None

    def _show_rows(self, line: _Line) -> None:
        """Show messages that wait, each by itself, in their order."""
        for _ in range(min(_ROWS, len(line.rows))):
            row = line.rows.popleft()
            if (shown := self._shown.get(row.device)) is None:
                continue
            try:
                ((_, data),) = decoded([row])
                merge_fields(shown.fields, data, row)
                self._publish_state(shown, again=False)
            except (DomainError, msgspec.DecodeError, ValueError) as error:  # damaged in the log, or no room
                self._note(shown, str(error))

    async def _look_at_some(self, line: _Line) -> None:
        some = list(line.looks)[:_LOOKS]
        if not some:
            return
        taken = {key: line.looks.pop(key) for key in some}
        try:
            devices = {device.key: device for device in await self._devices.get_all(some)}
            self._reading = {key: device for key, device in devices.items() if self._users_of(device)}
            wanted = list(self._reading)
            presences = await self._presence.of_all(wanted) if wanted else {}
            snapshots = await self._snapshots.of_all(wanted) if wanted else {}
        except BaseException:  # whatever it is; raised again
            for key, again in taken.items():
                line.looks[key] = again or line.looks.get(key, False)
            self._reading = {}
            raise
        self._reading = {}
        # A device that changed since is in `looks` again.
        for key, again in taken.items():
            device = devices.get(key)
            if device is None or key not in presences or self._devices.get_nowait(key) is not device:
                self._withdraw(key)
            else:
                self._show(device, presences[key], snapshots[key], again=again)

    def _users_of(self, device: Device) -> frozenset[UserKey]:
        """The users to whom the device is announced, if there is room."""
        if self._leaves_out(device.key):
            return frozenset()
        if len(self._homes) <= len(device.shared_with):
            return frozenset(user for user in self._homes if device.is_held_by(user))
        return frozenset(user for user in (device.owner, *device.shared_with) if user in self._homes)

    # One device

    def _show(self, device: Device, presence: PresenceRecord, fields: Fields, *, again: bool) -> None:
        shown = self._shown.get(device.key)
        before = frozenset[UserKey]() if shown is None else shown.audience
        users = self._users_of(device)
        full = {user for user in users - before if self._of_user.get(user, 0) >= HOME_DEVICES_MAX}
        for user in full:
            self._refusals.note(
                "home_assistant_refused",
                reason=f"more than {HOME_DEVICES_MAX} devices of a user: device {device.id} is left out",
                caller=f"user {user}",
            )
        users -= full
        components = self._components(shown, device) if users else ()
        if not components:
            self._withdraw(device.key)
            return
        if shown is None or shown.device is not device:
            self._withdraw(device.key)
            shown = self._shown[device.key] = _Shown(device, frozenset(), dict(fields))
            self._by_id[device.id] = device.key
        self._merge(shown, fields)
        for component in shown.components:
            shown.gone[component.id] = component.platform
        for component in components:
            shown.gone.pop(component.id, None)
        for id_ in list(shown.gone)[:-HOME_COMPONENTS_MAX]:
            del shown.gone[id_]
        shown.components, shown.made_of = components, device.manifest
        self._set_audience(shown, users)
        try:
            is_online = device.enabled and presence.availability != "offline"
            self._publish_own(shown, "availability", _ONLINE if is_online else _OFFLINE, qos=1, again=again)
            self._publish_state(shown, again=again)
            self._publish_configs(shown, again=again)
        except DomainError as error:  # there is no room for retained messages: all of the device or nothing
            self._note(shown, str(error))
            self._withdraw(device.key)

    @staticmethod
    def _components(shown: _Shown | None, device: Device) -> tuple[Component, ...]:
        if shown is not None and shown.made_of is device.manifest:
            return shown.components
        return components_of(device.manifest.manifest)

    @staticmethod
    def _merge(shown: _Shown, fields: Fields) -> None:
        """Take what was read, but for newer values that came during the read."""
        for path, value in fields.items():
            known = shown.fields.get(path)
            if known is None or value[:2] > known[:2]:
                shown.fields[path] = value

    def _set_audience(self, shown: _Shown, users: frozenset[UserKey]) -> None:
        for user in users - shown.audience:
            self._of_user[user] = self._of_user.get(user, 0) + 1
        for user in shown.audience - users:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]
        shown.audience = users

    def _publish_configs(self, shown: _Shown, *, again: bool) -> None:
        wanted: dict[str, set[UserKey]] = {}
        for user in shown.audience:
            wanted.setdefault(self._homes[user], set()).add(user)
        for prefix, (_, users) in list(shown.configs.items()):
            if lost := users - wanted.get(prefix, set()):
                self._empty(shown, prefix, lost, is_all=prefix not in wanted)
        payload = _encode(self._config(shown)) if wanted else b""
        for prefix, those in wanted.items():
            entry = (payload, frozenset(those))
            if again or shown.configs.get(prefix) != entry:
                self._publish(shown.device.owner, config_topic(prefix, shown.device.id), *entry, qos=1)
                shown.configs[prefix] = entry

    def _publish_state(self, shown: _Shown, *, again: bool) -> None:
        leaves = shown.device.manifest.manifest.leaves
        values = {path: _shown_value(value) for path, (_, _, value) in shown.fields.items() if path in leaves}
        self._publish_own(shown, "state", _encode(values), qos=0, again=again)

    def _publish_own(self, shown: _Shown, last: str, payload: bytes, *, qos: int, again: bool) -> None:
        entry = (payload, shown.audience)
        if again or shown.own.get(last) != entry:
            self._publish(shown.device.owner, own_topic(shown.device.id, last), *entry, qos=qos)
            shown.own[last] = entry

    def _withdraw(self, key: DeviceKey) -> None:
        """An empty message has Home Assistant remove the device."""
        if (shown := self._shown.pop(key, None)) is None:
            return
        self._by_id.pop(shown.device.id, None)
        for prefix, (_, users) in list(shown.configs.items()):
            self._empty(shown, prefix, users, is_all=True)
        for last, (_, audience) in shown.own.items():
            self._publish(shown.device.owner, own_topic(shown.device.id, last), b"", audience, qos=0)
        self._set_audience(shown, frozenset())

    def _empty(self, shown: _Shown, prefix: str, users: Iterable[UserKey], *, is_all: bool) -> None:
        """Send an empty message to the devices of these users; for all, there is no retained message any more."""
        topic = config_topic(prefix, shown.device.id)
        self._publish(shown.device.owner, topic, b"", frozenset(users), qos=1, retain=is_all)
        if is_all:
            shown.configs.pop(prefix, None)

    def _publish(
        self,
        owner: UserKey,
        topic: bytes,
        payload: bytes,
        audience: frozenset[UserKey],
        *,
        qos: int,
        retain: bool = True,
    ) -> None:
        """Raises TooManyRetained."""
        if owner not in audience:  # only guests have the device in Home Assistant: one of them has the message
            owner = min(audience)
        message = TopicMessage(topic, payload, qos, retain=retain, properties=b"", expires_on=None)
        self._space.publish(message, _SERVICE, owner, audience=audience)

    def _config(self, shown: _Shown) -> Mapping[str, Any]:
        device = shown.device
        identity = f"{IDENTITY}{device.id}"
        about: dict[str, Any] = {
            "identifiers": [identity],
            "name": device.record.name,
            "model": device.type.record.name,
        }
        if self._public_url:
            about["configuration_url"] = self._public_url
        state = own_topic(device.id, "state").decode()
        components: dict[str, Mapping[str, Any]] = {}
        for one in shown.components:
            components[one.id] = {
                "platform": one.platform,
                "unique_id": f"{identity}_{one.id}",
                **one.options,
                **dict.fromkeys(one.state, state),
                **{option: own_topic(device.id, f"set/{id_}").decode() for option, id_, _ in one.commands},
            }
        # A component with nothing but its platform is removed.
        components |= {id_: {"platform": platform} for id_, platform in shown.gone.items()}
        return {
            "device": about,
            "origin": {"name": "Trunkline", "sw_version": VERSION},
            "availability_topic": own_topic(device.id, "availability").decode(),
            "components": components,
        }

    def _note(self, shown: _Shown, reason: str) -> None:
        self._refusals.note(
            "home_assistant_refused", reason=f"device {shown.device.id}: {reason}", caller=f"user {shown.device.owner}"
        )


def _put_homes(homes: set[tuple[UserKey, str]], tx: Transaction) -> None:
    for user, prefix in homes:
        tx.homes.put(user, prefix)


def _shown_value(value: Any) -> Any:
    if isinstance(value, str):
        return value[:HOME_TEXT_CHARACTERS]
    if isinstance(value, list | dict):
        return _encode(value).decode()[:HOME_TEXT_CHARACTERS]
    return value
