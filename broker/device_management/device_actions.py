"""Actions that are operations of LWM2M: Write and Execute on the registered device (reference 18.7).

They are carried out one after the other, in the order of the log, and wait while the device sleeps. They are in memory:
a device without a registration gets none (reference 9.1), and what waits ends with the daemon.
"""

from collections import Counter, OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.core import Core
from broker.device_management.objects import ObjectMap
from broker.device_management.sessions import (
    DeviceRefusedError,
    ManagedSession,
    NotSentError,
    SessionLostError,
    UnreadableAnswerError,
)
from broker.device_management.values import value_of
from broker.device_types.manifest import ResourceOperation, address_text
from broker.devices.inventory import device_fact
from broker.devices.registry import Device, Devices
from broker.envelope import Action
from broker.errors import DeviceNotFound
from broker.facts import (
    ActionStored,
    DeviceActionDelivered,
    DeviceActionFact,
    DeviceActionFailed,
    DeviceDeleted,
    DeviceHandedOver,
    FactPhase,
)
from broker.limits.quotas import Quotas
from config.limits import LWM2M_ACTION_SECONDS, LWM2M_ACTIONS_KEPT, LWM2M_ACTIONS_WAITING
from storage.keys import DeviceKey, Milliseconds
from storage.sql import StoreError

_WAITING_IN_ALL: Final = 10_000
_WAITING_OF_USER: Final = 1_000
_DEVICES_SHOWN: Final = 2_000
_ATTEMPTS: Final = 3  # of a Write to a device that sleeps again before it answers
#: A device that registers again has its properties read before its Actions go on.
_AGAIN_SECONDS: Final = 300
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_log = structlog.get_logger(__name__)


class ActionState(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


class ShownAction(msgspec.Struct, frozen=True):
    """An Action of a device, as its owner sees it. `text` is a sentence."""

    mid: str
    name: str
    at_ms: Milliseconds
    state: ActionState
    text: str


class DeviceActionStatistics(msgspec.Struct, frozen=True):
    waiting: int
    done: int
    failed: int


@dataclass(slots=True, eq=False)
class _Waiting:
    """One Action message, with those of its Actions that are operations. `owner`: of the device when it came."""

    owner: str
    action: Action
    calls: tuple[tuple[str, ResourceOperation, dict[str, Any]], ...]

    @property
    def name(self) -> str:
        return ", ".join(name for name, _, _ in self.calls)


class DeviceActions:
    """Actions for registered devices. `quotas` charges what is taken for delivery; None: nothing is charged."""

    def __init__(self, core: Core, devices: Devices, objects: ObjectMap, quotas: Quotas | None) -> None:
        self._clock, self._router = core.clock, core.router
        self._devices, self._objects, self._quotas = devices, objects, quotas
        self._sessions: dict[DeviceKey, ManagedSession] = {}
        self._changed: dict[DeviceKey, trio.Event] = {}
        self._queues: dict[DeviceKey, deque[_Waiting]] = {}
        self._scopes: dict[DeviceKey, trio.CancelScope] = {}
        self._ended: OrderedDict[DeviceKey, deque[ShownAction]] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self._waiting_of: Counter[str] = Counter()  # by the owner of the device
        self._done = self._failed = 0
        self._router.subscribe(ActionStored, self._stored, FactPhase.EFFECT)
        self._router.subscribe(DeviceDeleted, self._gone, FactPhase.EFFECT)
        self._router.subscribe(DeviceHandedOver, self._gone, FactPhase.EFFECT)

    # Registrations

    def connected(self, session: ManagedSession) -> None:
        self._sessions[session.device.key] = session
        self._wake(session.device.key)

    def session_of(self, device: DeviceKey) -> ManagedSession | None:
        """The registration of a device, once its first steps have ended."""
        return self._sessions.get(device)

    def disconnected(self, session: ManagedSession) -> None:
        key = session.device.key
        if self._sessions.get(key) is session:
            del self._sessions[key]
            self._wake(key)

    def _wake(self, device: DeviceKey) -> None:
        if (event := self._changed.get(device)) is not None:
            event.set()

    def _gone(self, fact: DeviceDeleted | DeviceHandedOver) -> None:
        """The device has no owner, or another one, who did not send what waits."""
        self._ended.pop(fact.device, None)
        if (scope := self._scopes.get(fact.device)) is not None:
            scope.cancel()

    # Actions

    def _stored(self, fact: ActionStored) -> None:
        session = self._sessions.get(fact.destination)
        if session is None or not fact.is_sent or self._nursery is None:
            return
        device, action = session.device, fact.action
        operations = device.manifest.manifest.operations
        if not operations:
            return
        calls = tuple(
            (one["name"], operations[one["name"]], one.get("parameters") or {})
            for one in _decode(action.data)["actions"]
            if one["name"] in operations
        )
        if calls:
            self._take(device, _Waiting(device.owner_id, action, calls))

    def _take(self, device: Device, waiting: _Waiting) -> None:
        queue = self._queues.get(device.key)
        if queue is not None and len(queue) >= LWM2M_ACTIONS_WAITING:
            self._end(device, waiting, "Too many Actions wait for the device.")
            return
        if self._waiting_of[waiting.owner] >= _WAITING_OF_USER or self._waiting_of.total() >= _WAITING_IN_ALL:
            self._end(device, waiting, "Too many Actions wait for devices of the user, or of all.")
            return
        if self._quotas is not None:
            if not self._quotas.admits(device, waiting.action):
                self._end(device, waiting, "The quota of the organization or of the device is used up.")
                return
            self._quotas.delivered(device, waiting.action)
        self._waiting_of[waiting.owner] += 1
        if queue is not None:
            queue.append(waiting)
        elif self._nursery is not None:
            self._queues[device.key] = deque((waiting,))
            self._nursery.start_soon(self._serve, device)

    async def _serve(self, device: Device) -> None:
        """Carry out the Actions of a device until none waits."""
        queue = self._queues[device.key]
        with trio.CancelScope() as scope:
            self._scopes[device.key] = scope
            await self._serve_all(device, queue)
        for waiting in queue:
            self._left(waiting)
        del self._queues[device.key], self._scopes[device.key]

    def _left(self, waiting: _Waiting) -> None:
        self._waiting_of[waiting.owner] -= 1
        if not self._waiting_of[waiting.owner]:
            del self._waiting_of[waiting.owner]

    async def _serve_all(self, device: Device, queue: deque[_Waiting]) -> None:
        while queue:
            problem: str | None = "The device was not heard in time."
            try:
                with trio.move_on_after(LWM2M_ACTION_SECONDS):
                    problem = await self._carry_out(device, queue[0])
            except Exception:  # noqa: BLE001 - a bug in one Action must not end those of others
                _log.exception("device_action_failed", device=device.id, mid=queue[0].action.mid)
                problem = "The service made a mistake, which its log has."
            self._left(waiting := queue.popleft())
            self._end(device, waiting, problem)

    async def _carry_out(self, device: Device, waiting: _Waiting) -> str | None:
        """Carry out the operations one by one up to the first that fails. Returns why it failed."""
        for name, operation, parameters in waiting.calls:
            try:
                problem = await self._operate(device.key, operation, parameters)
            except DeviceRefusedError as error:
                problem = f"The device refused the operation on {address_text(operation.path)}: {error.code}."
            except UnreadableAnswerError as error:
                problem = error.reason
            if problem is not None:
                return problem if len(waiting.calls) == 1 else f"{name}: {problem}"
        return None

    async def _operate(self, device: DeviceKey, operation: ResourceOperation, parameters: dict[str, Any]) -> str | None:
        value: Any = operation.value
        if operation.parameter is not None:
            value = parameters.get(operation.parameter)
            if not isinstance(value, bool | int | float | str):
                return f"The Action has no value of the parameter {operation.parameter}."
        described = self._objects.described(operation.path)
        if not operation.is_execute and described is not None:
            try:
                value = value_of(value, described.type)
            except ValueError:
                where = address_text(operation.path)
                return f"{where} is {described.type.value}, and the Action has another value."
        attempts = 0
        while True:
            if (session := await self._session(device)) is None:
                return "The registration of the device has ended."
            try:
                if operation.is_execute:
                    await session.execute(operation.path)
                else:
                    await session.write(operation.path, value)
            except NotSentError:
                if not session.is_over:
                    return "The connection of the device has ended."
            except SessionLostError:
                attempts += 1
                if operation.is_execute or attempts >= _ATTEMPTS or not (session.is_asleep or session.is_over):
                    return "The device did not answer."
            except ValueError:
                return "The value is too long for the device."
            else:
                return None

    async def _session(self, device: DeviceKey) -> ManagedSession | None:
        """The registration of the device; the next one, when it has ended a moment ago. None: there is none."""
        with trio.move_on_after(_AGAIN_SECONDS):
            while (found := self._sessions.get(device)) is None or found.is_over:
                event = self._changed.setdefault(device, trio.Event())
                try:
                    await event.wait()
                finally:
                    self._changed.pop(device, None)
            return found
        return None

    def _end(self, device: Device, waiting: _Waiting, problem: str | None) -> None:
        state = ActionState.DONE if problem is None else ActionState.FAILED
        text = problem or "The device did it."
        if problem is None:
            self._done += 1
        else:
            self._failed += 1
        ended = self._ended.setdefault(device.key, deque(maxlen=LWM2M_ACTIONS_KEPT))
        ended.append(ShownAction(waiting.action.mid, waiting.name, self._clock.now_ms(), state, text))
        self._ended.move_to_end(device.key)
        if len(self._ended) > _DEVICES_SHOWN:
            self._ended.popitem(last=False)
        if self._nursery is not None:
            self._nursery.start_soon(self._tell, device.key, waiting.action.mid, problem)

    async def _tell(self, key: DeviceKey, mid: str, problem: str | None) -> None:
        """Publish the event (reference 20)."""
        with suppress(DeviceNotFound, StoreError):
            device = await self._devices.get(key)
            kind: type[DeviceActionFact] = DeviceActionDelivered if problem is None else DeviceActionFailed
            fact = device_fact(kind, device.record, device.type.record, None, self._clock.now_ms())
            self._router.publish(replace(fact, mid=mid))

    # Showing

    def shown(self, device: Device) -> list[ShownAction]:
        """The Actions that wait and the last that have ended, the newest first."""
        session = self._sessions.get(device.key)
        is_asleep = session is not None and session.is_asleep
        text = "The device sleeps, and gets it when it is heard again." if is_asleep else "The device gets it next."
        waiting = [
            ShownAction(one.action.mid, one.name, one.action.cts, ActionState.WAITING, text)
            for one in self._queues.get(device.key, ())
        ]
        return [*reversed(waiting), *reversed(self._ended.get(device.key, ()))]

    # The worker

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._queues.clear()
                self._scopes.clear()
                self._waiting_of.clear()

    def statistics(self) -> DeviceActionStatistics:
        return DeviceActionStatistics(self._waiting_of.total(), self._done, self._failed)
