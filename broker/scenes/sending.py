"""Activation: every Action of a scene becomes an Action message to each of its destinations (reference 12.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.devices.registry import Device, Devices
from broker.errors import DestinationDeviceDisabled, DomainError, Finding
from broker.messages.ingest import Ingest
from broker.scenes.actions import NamedObjects, SceneAction
from broker.wanted.values import read_wanted
from broker.wanted.wanted import Wanted, Wish
from config.limits import SCENE_MESSAGES_MAX
from storage.database import Database
from storage.keys import DeviceTypeKey, UserKey
from storage.transaction import Transaction


@dataclass(eq=False)
class SceneInvalid(DomainError):
    """The scene cannot be activated; nothing was sent."""

    status = 400
    template = "{reason}"
    reason: str


SCENE_INVALID: Final = "Scene is invalid"
TOO_MANY_MESSAGES: Final = f"Scene sends more than {SCENE_MESSAGES_MAX} Actions"
_SENT_AT_ONCE: Final = 50  # in one commit


class SceneSender:
    def __init__(self, database: Database, devices: Devices, ingest: Ingest, wanted: Wanted) -> None:
        self._database = database
        self._devices = devices
        self._ingest = ingest
        self._wanted = wanted

    async def send(
        self,
        user: UserKey,
        actions: Sequence[SceneAction],
        named: NamedObjects,
        findings: Sequence[Finding],
        *,
        author: str,
    ) -> None:
        """Send the Actions in their order, and then want values; return when all is durable.

        Nothing is sent of an invalid scene, or when a device that it names is disabled. `every` leaves disabled devices
        out. An Action that a quota refuses does not stop the others.

        Raises SceneInvalid, DestinationDeviceDisabled; after the others are sent, a refusal of a quota.
        """
        if findings:
            raise SceneInvalid(SCENE_INVALID)
        if any(device is not None and not device.enabled for device in named.devices.values()):
            raise DestinationDeviceDisabled
        messages = await self._messages(user, actions, named)
        refused: DomainError | None = None
        for first in range(0, len(messages), _SENT_AT_ONCE):
            await self._ingest.wait_room()
            some = messages[first : first + _SENT_AT_ONCE]
            refused = self._submit(some) or refused
            await self._ingest.wait_committed()  # also lets other tasks have their turn
            refused = await self._want(some, author) or refused
        if refused is not None:
            raise refused

    async def _want(self, messages: Sequence[tuple[Device, SceneAction]], author: str) -> DomainError | None:
        """Want values of devices, in one commit; return a refusal, if there was one."""
        wishes, refusals = list[Wish](), list[DomainError]()
        for device, action in messages:
            if not action.wanted_seconds:
                continue
            try:
                values = read_wanted(action.data, device.manifest.manifest, f"{action.path}.want")
            except DomainError as error:
                refusals.append(error)
            else:
                before = await self._wanted.before(device.key)
                wishes.append(Wish(device, values, action.wanted_seconds, author, before, is_noted=False))

        def work(tx: Transaction) -> list[DomainError]:
            found = list[DomainError]()
            for wish in wishes:
                try:
                    self._wanted.put_in(tx, wish)
                except DomainError as error:
                    found.append(error)
            return found

        if wishes:
            refusals += await self._database.write(work)
        return refusals[-1] if refusals else None

    def _submit(self, messages: Sequence[tuple[Device, SceneAction]]) -> DomainError | None:
        """Submit these; return a refusal, if there was one."""
        refused = None
        for device, action in messages:
            if action.wanted_seconds:
                continue
            try:
                self._ingest.submit_action(device, device, action.data)
            except DomainError as error:
                refused = error
        return refused

    async def _messages(
        self, user: UserKey, actions: Sequence[SceneAction], named: NamedObjects
    ) -> list[tuple[Device, SceneAction]]:
        """Each destination with its Action. Raises SceneInvalid when there are too many."""
        of_type: dict[str, list[Device]] = {}
        for name, type_ in named.types.items():
            if type_ is not None:
                of_type[name] = await self._enabled(user, type_.key)
        messages: list[tuple[Device, SceneAction]] = []
        for action in actions:
            device = named.devices.get(action.device)
            destinations = [device] if device is not None else of_type.get(action.every, [])
            if len(messages) + len(destinations) > SCENE_MESSAGES_MAX:
                raise SceneInvalid(TOO_MANY_MESSAGES)
            messages += [(destination, action) for destination in destinations]
        return messages

    async def _enabled(self, user: UserKey, type_: DeviceTypeKey) -> list[Device]:
        """The user's own devices of a type that are enabled. Raises SceneInvalid when there are too many."""
        found = await self._database.read(lambda tx: tx.devices.listed(user, own=True, shared=False, device_type=type_))
        if len(found) > SCENE_MESSAGES_MAX:
            raise SceneInvalid(TOO_MANY_MESSAGES)
        return [device for device in await self._devices.get_all(one.key for one in found) if device.enabled]
