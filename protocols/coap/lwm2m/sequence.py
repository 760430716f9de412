"""Steps after a registration, an update and a notification (reference 18.3), in tasks of their own.

After the answer to a registration a task of its device writes attributes, observes and reads, then tells device
management. It ends with that: an idle registration has no task.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from broker.core import Core
from broker.device_management.sessions import (
    DeviceRefusedError,
    ObservationSettings,
    Reading,
    Readings,
    RegistrationPort,
    ResourcePath,
    SessionLostError,
    UnreadableAnswerError,
)
from protocols.coap.containment import Failure, contain_async
from protocols.coap.lwm2m.device import NotifiedReading, ObservedPaths, OnStored, RegisteredDevice
from protocols.coap.lwm2m.formats.values import MAX_VALUES, path_text

#: Object instances that are read after one registration at most.
MAX_INSTANCES: Final = 64
_OBSERVED: Final[tuple[ResourcePath, ...]] = ((3, 0), (5, 0))
#: Security, server and access control (0 to 2), and OSCORE: the server may not read them, or has no use for them.
_NOT_READ: Final = frozenset({0, 1, 2, 21})

#: This many fit into a request of 1,024 bytes, whatever their numbers are.
_COMPOSITE_PATHS: Final = 40
#: A device that notifies what was written to it has done so by then.
_NOTIFIES_SECONDS: Final = 2.0

_Step = Callable[[], Awaitable[None]]
_Ask = Callable[[ResourcePath], Awaitable[Readings]]
_Work = Callable[[RegisteredDevice], Awaitable[None]]


class Sequence:
    """The tasks of all registered devices. Nothing begins while there is no nursery."""

    def __init__(self, core: Core, registrations: RegistrationPort, pause_seconds: float) -> None:
        """No tasks yet; `pause_seconds` are between the answer to a registration and the first request."""
        self._clock = core.clock
        self._refusals = core.refusals
        self._registrations = registrations
        self._pause_seconds = pause_seconds
        self.nursery: trio.Nursery | None = None
        self.unreadable = self.failures = 0

    def begin(self, registered: RegisteredDevice) -> None:
        """The device has registered or updated: carry out the sequence, or tell device management."""
        registered.is_due = True
        if not registered.is_working and self.nursery is not None:
            registered.is_working = True
            self.nursery.start_soon(self._contained, registered, self._work_on)

    async def _contained(self, registered: RegisteredDevice, work: _Work) -> None:
        await self._is_done(registered, work)

    async def _is_done(self, registered: RegisteredDevice, work: _Work) -> bool:
        """Whether the work ended without an exception that no code expects."""
        details: Mapping[str, object] = {"device": registered.device.id}
        ended = await contain_async("lwm2m_sequence_failed", registered.device.id, work, registered, details=details)
        return not isinstance(ended, Failure)

    async def _work_on(self, registered: RegisteredDevice) -> None:
        """Carry out the sequence, and repeat it if an update came during it."""
        try:
            await trio.sleep(self._pause_seconds)
            while registered.is_due and not registered.is_over:
                registered.is_due = False
                if not registered.is_read:
                    registered.is_read = True  # an update or a new configuration makes it False again
                    try:
                        await self._read_all(registered)
                    except BaseException:
                        registered.is_read = False
                        raise
                await self._observe_fields(registered)
                await self._registrations.registered(registered)
        except SessionLostError:
            # The sequence goes on with the next update or registration.
            self.failures += 1
            self.note(registered, "lwm2m_communication_failure", "no answer")
        finally:
            registered.is_working = False
        if registered.is_due and not registered.is_over:  # it came back while a request was lost
            self.begin(registered)

    async def _read_all(self, registered: RegisteredDevice) -> None:
        observation = await self._registrations.observation_of(registered.device)
        if not observation.is_enabled:
            return
        observed = [path for path in _OBSERVED if path in registered.offers or path[:1] in registered.offers]
        for path in observed:
            await self._noted(registered, path, partial(registered.write_attributes, path, observation))
        for path in observed:
            await self._noted(registered, path, partial(self._store, registered, path, registered.observe))
        for path in await self._instances(registered):
            await self._noted(registered, path, partial(self._store, registered, path, registered.read, is_read=True))

    async def _observe_fields(self, registered: RegisteredDevice) -> None:
        """Observe the resources of the Manifest that are not observed yet, and no others any more (reference 18.6)."""
        settings = await self._registrations.observation_of(registered.device)
        wanted = set(settings.paths)
        for paths in registered.observations():
            if paths[0] not in _OBSERVED and not wanted.issuperset(paths):
                await self._noted(registered, paths[0], partial(registered.stop_observing, paths))
        for path in [path for path in registered.unobserved if path not in wanted]:
            del registered.unobserved[path]
        due = [path for path in settings.paths if not (path in registered.unobserved or registered.is_observed(path))]
        for path in due:
            if not registered.lists(path):
                registered.unobserved[path] = f"The device does not list {path_text(path[:2])}."
        if due := [path for path in due if path not in registered.unobserved]:
            await self._observe_due(registered, settings, due)

    def forget_fields(self, registered: RegisteredDevice) -> None:
        """Forget the observations of the Manifest: the next steps begin them with other attributes."""
        for paths in registered.observations():
            if paths[0] not in _OBSERVED:
                registered.forget(paths)

    async def _observe_due(
        self, registered: RegisteredDevice, settings: ObservationSettings, due: list[ResourcePath]
    ) -> None:
        for path in due:
            await self._noted(registered, path, partial(registered.write_attributes, path, settings))
        for at in range(0, len(due), _COMPOSITE_PATHS):
            part = tuple(due[at : at + _COMPOSITE_PATHS])
            if registered.takes_composite and len(part) > 1:
                await self._noted(registered, (), partial(self._observe_composite, registered, part))
            for path in part:
                if not (registered.is_observed(path) or path in registered.unobserved):
                    await self._noted(registered, path, partial(self._observe_field, registered, path))

    async def _observe_composite(self, registered: RegisteredDevice, paths: ObservedPaths) -> None:
        readings = await registered.observe_composite(paths)
        registered.takes_composite = readings is not None and paths in registered.observations()
        if readings is not None and registered.takes_composite:
            for path in set(paths).difference(*(one.values for one in readings)):
                registered.unobserved[path] = f"The device has not given a value of {path_text(path)}."
            await self._values_came(registered, readings)

    async def _observe_field(self, registered: RegisteredDevice, path: ResourcePath) -> None:
        try:
            readings = await registered.observe(path)
        except DeviceRefusedError as error:
            registered.unobserved[path] = f"The device refuses to have {path_text(path)} observed: {error.code}."
            raise
        except UnreadableAnswerError as error:
            registered.unobserved[path] = error.reason
            raise
        if not registered.is_observed(path):
            registered.unobserved[path] = f"The device gives {path_text(path)}, and does not observe it."
        await self._values_came(registered, readings)

    async def _instances(self, registered: RegisteredDevice) -> list[ResourcePath]:
        """The object instances to read. The instances of an object that is listed without any are discovered."""
        found: list[ResourcePath] = []
        for path in registered.instances():
            if path[0] in _NOT_READ:
                continue
            if len(path) > 1:
                found.append(path)
                continue
            below: list[ResourcePath] = []
            await self._noted(registered, path, partial(self._discover, registered, path, below))
            instances: set[ResourcePath] = {one[:2] for one in below if len(one) > 1 and one[:1] == path}
            found.extend(sorted(instances) or [(*path, 0)])
        return found[:MAX_INSTANCES]

    async def _discover(self, registered: RegisteredDevice, path: ResourcePath, below: list[ResourcePath]) -> None:
        below.extend(await registered.discover(path))

    async def _noted(self, registered: RegisteredDevice, path: ResourcePath, step: _Step) -> None:
        """Take one step. A refusal is noted, and the sequence goes on. Raises SessionLostError."""
        try:
            await step()
        except DeviceRefusedError as error:
            self.note(registered, "lwm2m_step_refused", f"{error.code} to {path_text(path)}")
        except UnreadableAnswerError as error:
            self.unreadable += 1
            self.note(registered, "lwm2m_unreadable", error.reason)

    def note(self, registered: RegisteredDevice, event: str, reason: str) -> None:
        """Log what a device did wrong, within the bounds of refusals."""
        device = registered.device.id
        self._refusals.note(event, reason=reason, source=f"device {device}", device=device)

    async def _store(
        self, registered: RegisteredDevice, path: ResourcePath, ask: _Ask, *, is_read: bool = False
    ) -> None:
        readings = await ask(path)
        if readings and is_read:
            await self._registrations.receive_values(registered.device, readings, is_read=True)
        else:
            await self._values_came(registered, readings)

    async def _values_came(self, registered: RegisteredDevice, readings: Readings) -> None:
        if readings:
            await self._registrations.receive_values(registered.device, readings)

    def store_later(
        self,
        registered: RegisteredDevice,
        paths: ObservedPaths,
        readings: Readings,
        on_stored: OnStored | None = None,
    ) -> None:
        """Store what was notified after what waits, then call `on_stored`, with False if it could not be stored.

        Beyond MAX_VALUES of an observation, the oldest is left out.
        """
        if not readings:
            if on_stored is not None:
                on_stored(True)
            return
        waiting = registered.unsaved.setdefault(paths, [])
        now_ms = self._clock.now_ms()
        waiting.extend(NotifiedReading(Reading(now_ms if one.ts is None else one.ts, one.values)) for one in readings)
        waiting[-1] = waiting[-1]._replace(on_stored=on_stored)
        while len(waiting) > 1 and sum(max(1, len(one.reading.values)) for one in waiting) > MAX_VALUES:
            dropped = waiting.pop(0)
            if dropped.on_stored is not None:
                dropped.on_stored(False)
            self.note(registered, "lwm2m_notification_dropped", f"too many values of {_all_shown(paths)} wait")
        if not registered.is_storing and self.nursery is not None:
            registered.is_storing = True
            self._start(registered, self._store_notifications)

    def read_later(self, registered: RegisteredDevice, paths: ObservedPaths) -> None:
        """Read what was observed, because its notification did not fit into one block."""
        if paths not in registered.read_again:
            registered.read_again.add(paths)
            self._start(registered, partial(self._read_again, paths))

    def read_back(self, registered: RegisteredDevice, path: ResourcePath) -> None:
        """Read what was written to a resource of the Manifest, unless the device notifies it: most do not tell a server
        what it has written itself."""
        if path not in registered.unreported and path in registered.device.manifest.manifest.resources.values():
            registered.unreported.add(path)
            self._start(registered, partial(self._read_back, path))

    async def _read_back(self, path: ResourcePath, registered: RegisteredDevice) -> None:
        await trio.sleep(_NOTIFIES_SECONDS)
        if path in registered.unreported:
            registered.unreported.discard(path)
            try:
                await self._noted(registered, path, partial(self._store, registered, path, registered.read))
            except SessionLostError:
                self.failures += 1

    def _start(self, registered: RegisteredDevice, work: _Work) -> None:
        if self.nursery is not None:
            self.nursery.start_soon(self._contained, registered, work)

    async def _store_notifications(self, registered: RegisteredDevice) -> None:
        try:
            while registered.unsaved:
                waiting = registered.unsaved.pop(next(iter(registered.unsaved)))
                readings = [one.reading for one in waiting]
                # Readings that cannot be stored do not block later ones.
                is_stored = await self._is_done(registered, partial(self._values_came, readings=readings))
                for one in waiting:
                    if one.on_stored is not None:
                        one.on_stored(is_stored)
        finally:
            registered.is_storing = False

    async def _read_again(self, paths: ObservedPaths, registered: RegisteredDevice) -> None:
        registered.read_again.discard(paths)
        try:
            if len(paths) == 1:
                step = partial(self._store, registered, paths[0], registered.read)
            else:
                step = partial(self._read_composite, registered, paths)
            await self._noted(registered, paths[0], step)
        except SessionLostError:
            self.failures += 1

    async def _read_composite(self, registered: RegisteredDevice, paths: ObservedPaths) -> None:
        await self._values_came(registered, await registered.read_composite(paths))


def _all_shown(paths: ObservedPaths) -> str:
    return ", ".join(map(path_text, paths))
