"""Writes wanted values to the resources of registered devices (reference 18.7).

One task for each device writes them one after the other, and waits while the device sleeps. A device that registers
again may have lost them, so all that no message has reported is written again.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
import trio

from broker.core import Core
from broker.device_management.objects import ObjectMap
from broker.device_management.sessions import (
    DeviceRefusedError,
    ManagedSession,
    SessionLostError,
    UnreadableAnswerError,
)
from broker.device_management.values import value_of
from broker.device_types.manifest import ResourceAddress, address_text
from broker.facts import FactPhase, WantedChanged
from broker.wanted.following import OpenValue
from broker.wanted.wanted import Wanted
from storage.keys import DeviceKey
from storage.sql import StoreError

_ATTEMPTS: Final = 3  # of a device that sleeps again before it answers
_RETRY_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)

#: A wanted value by its field, and the revision and time by which it is known.
_Known = tuple[str, int, int]


class WantedWriteStatistics(msgspec.Struct, frozen=True):
    writing: int
    written: int
    refused: int


@dataclass(slots=True, eq=False)
class _Registered:
    session: ManagedSession
    written: set[_Known]
    scope: trio.CancelScope | None = None


class WantedWrites:
    def __init__(self, core: Core, wanted: Wanted, objects: ObjectMap) -> None:
        self._wanted, self._objects = wanted, objects
        self._registered: dict[DeviceKey, _Registered] = {}
        self._nursery: trio.Nursery | None = None
        self._written = self._refused = 0
        core.router.subscribe(WantedChanged, self._changed, FactPhase.EFFECT)

    def connected(self, session: ManagedSession) -> None:
        """The device has registered, or updated its registration."""
        key = session.device.key
        known = self._registered.get(key)
        if known is None or known.session is not session:
            self._end(known)
            self._registered[key] = _Registered(session, set())
        self._look(key)

    def disconnected(self, session: ManagedSession) -> None:
        known = self._registered.get(session.device.key)
        if known is not None and known.session is session:
            self._end(self._registered.pop(session.device.key))

    @staticmethod
    def _end(registered: _Registered | None) -> None:
        if registered is not None and registered.scope is not None:
            registered.scope.cancel()

    def _changed(self, fact: WantedChanged) -> None:
        self._look(fact.device)

    def _look(self, key: DeviceKey) -> None:
        registered = self._registered.get(key)
        if registered is not None and registered.scope is None and self._nursery is not None and self._next(registered):
            registered.scope = trio.CancelScope()
            self._nursery.start_soon(self._serve, registered, registered.scope)

    def _next(self, registered: _Registered) -> tuple[OpenValue, ResourceAddress] | None:
        device = registered.session.device
        resources, open_ = device.manifest.manifest.resources, self._wanted.open_of(device.key)
        registered.written.intersection_update(map(_known, open_.values()))
        for field, one in open_.items():
            if field in resources and one.reached is None and _known(one) not in registered.written:
                return one, resources[field]
        return None

    async def _serve(self, registered: _Registered, scope: trio.CancelScope) -> None:
        device, tries = registered.session.device, 0
        with scope:
            while not registered.session.is_over and (found := self._next(registered)) is not None:
                one, path = found
                try:
                    problem = await self._write(registered.session, one, path)
                    if problem is None:
                        await self._wanted.written(device.key, one)
                        self._written += 1
                    else:
                        await self._wanted.refuse(device.key, one, problem)
                        self._refused += 1
                except SessionLostError:
                    tries += 1
                    if tries == _ATTEMPTS or not registered.session.is_asleep:
                        break  # the next registration, update or wish goes on
                    continue
                except StoreError:
                    await trio.sleep(_RETRY_SECONDS)
                    continue
                except Exception:  # noqa: BLE001 - a bug in one value must not end those of others
                    _log.exception("wanted_not_written", device=device.id, field=one.record.field)
                registered.written.add(_known(one))
        registered.scope = None

    async def _write(self, session: ManagedSession, one: OpenValue, path: ResourceAddress) -> str | None:
        """Returns why the device does not take it. Raises SessionLostError."""
        value, described, where = one.value, self._objects.described(path), address_text(path)
        if not isinstance(value, bool | int | float | str):
            return f"{where} takes no list."
        if described is not None:
            try:
                value = value_of(value, described.type)
            except ValueError:
                return f"{where} is {described.type.value}, and the wanted value is no such one."
        try:
            await session.write(path, value)
        except DeviceRefusedError as error:
            return f"The device refused the write to {where}: {error.code}."
        except UnreadableAnswerError as error:
            return error.reason
        except ValueError:
            return f"The value is too long to be written to {where}."
        return None

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def statistics(self) -> WantedWriteStatistics:
        writing = sum(one.scope is not None for one in self._registered.values())
        return WantedWriteStatistics(writing, self._written, self._refused)


def _known(one: OpenValue) -> _Known:
    return one.record.field, one.record.revision, one.record.since
