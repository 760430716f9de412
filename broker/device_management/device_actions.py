"""Actions that are operations of LWM2M: Write and Execute on the registered device (reference 18.7).

They are carried out one after the other, in the order of the log, and wait while the device sleeps. A device without a
registration gets none (reference 9.1). An Action that waits is a row of the store, so a restart goes on with it
(unended_actions.py). Of several nodes, the one with the registration carries them out, and the next one goes on there
(shared_registrations.py).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_management.objects import ObjectMap
from broker.device_management.sessions import (
    DeviceRefusedError,
    ManagedSession,
    NotSentError,
    SessionLostError,
    UnreadableAnswerError,
)
from broker.device_management.shared_registrations import Begun, SharedRegistrations
from broker.device_management.unended_actions import UnendedActions
from broker.device_management.waiting_actions import NoFittingValueError, WaitingAction, calls_of, written_value
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
from broker.loops import Loop
from broker.messages.history import MessageHistory
from config.limits import LWM2M_ACTION_SECONDS, LWM2M_ACTIONS_KEPT, LWM2M_ACTIONS_WAITING
from storage.keys import DeviceKey, Milliseconds, Position
from storage.lwm2m import EndedActionRecord
from storage.lwm2m_actions import UnendedActionRecord
from storage.outages import Outage
from storage.sql import StoreError

_WAITING_IN_ALL: Final = 10_000
_WAITING_OF_USER: Final = 1_000
_DEVICES_SHOWN: Final = 2_000
_ATTEMPTS: Final = 3  # of a Write to a device that sleeps again before it answers
#: A device that registers again has its properties read before its Actions go on.
_AGAIN_SECONDS: Final = 300
#: A node looks so often whether a device has registered with another one, which has what waits for it then.
_LOOK_SECONDS: Final = 20.0
_SAVE_SECONDS: Final = 5.0
_STORE_SECONDS: Final = 1.0
_LOST_SECONDS: Final = 600
_INTERRUPTED: Final = "The service ended before the device had answered."
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


class _TakenOverError(Exception):
    """Another node has the device."""


class DeviceActions:
    """Actions for registered devices. `quotas` charges what is taken for delivery; None: nothing is charged. `shared`:
    other nodes have registrations, too."""

    def __init__(
        self,
        core: Core,
        devices: Devices,
        objects: ObjectMap,
        history: MessageHistory,
        quotas: Quotas | None,
        shared: SharedRegistrations | None = None,
    ) -> None:
        self._shared = shared
        self._lease = core.leases.of(LeaseName.TASKS)
        #: With `shared`: the registered devices, and the Actions that come while one registers.
        self._registered: dict[DeviceKey, ManagedSession] = {}
        self._coming: dict[DeviceKey, list[Action]] = {}
        self._outage = Outage("device_actions_not_saved")
        self._database, self._clock, self._router = core.database, core.clock, core.router
        self._devices, self._objects, self._history, self._quotas = devices, objects, history, quotas
        lwm2m = core.settings.lwm2m
        is_on = any((lwm2m.dtls_bind, lwm2m.tls_bind, lwm2m.tcp_bind))
        self._unended = UnendedActions(core.database, is_on=is_on)
        #: Devices with Actions of the last run, that have not registered in this one.
        self._not_back: set[DeviceKey] = set()
        self._sessions: dict[DeviceKey, ManagedSession] = {}
        self._changed: dict[DeviceKey, trio.Event] = {}
        self._queues: dict[DeviceKey, deque[WaitingAction]] = {}
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
        self._sessions.pop(session.device.key, None)  # the newest one is the last
        self._sessions[session.device.key] = session
        self._not_back.discard(session.device.key)
        self._wake(session.device.key)

    def session_of(self, device: DeviceKey) -> ManagedSession | None:
        """The registration of a device, once its first steps have ended."""
        return self._sessions.get(device)

    def sessions(self) -> list[ManagedSession]:
        """The registrations whose first steps have ended, in their order."""
        return list(self._sessions.values())

    def disconnected(self, session: ManagedSession) -> None:
        key = session.device.key
        if self._registered.get(key) is session:
            del self._registered[key]
            self._wake(key)
        if self._sessions.get(key) is session:
            del self._sessions[key]
            self._wake(key)

    def begin(self, session: ManagedSession) -> None:
        """The device registers, with this node of several: what comes from now on is for this registration."""
        if self._shared is not None:
            self._coming.setdefault(session.device.key, [])
            self._shared.begin(session)
        else:
            self._registered[session.device.key] = session

    async def begun(self, session: ManagedSession) -> None:
        """It has registered. Raises StoreError: it has not."""
        device, shared = session.device, self._shared
        if shared is None:
            return
        try:
            if (begun := await shared.begun(session)) is None:
                return  # a later registration goes on with what comes
            unended = [(one.record, await self._history.action_view(one.row, device)) for one in begun.unended]
            later = [await self._history.action_view(row, device) for row in begun.later]
        except BaseException:
            if shared.is_latest(session):
                self._coming.pop(device.key, None)
            raise
        if shared.is_latest(session):
            self._take_on(session, begun, unended, later)
            if begun.head is not None:
                shared.skip(device.key, begun.head)

    def _take_on(
        self,
        session: ManagedSession,
        begun: Begun,
        unended: Sequence[tuple[UnendedActionRecord, Action]],
        later: Sequence[Action],
    ) -> None:
        device = session.device
        coming = self._coming.pop(device.key, ())
        if not begun.is_known:
            self._drop(device.key)
        if not session.is_over:
            self._registered[device.key] = session
        known = {action.position for _, action in unended}
        for record, action in unended:
            if record.owner == device.owner and (calls := calls_of(device, action.data)):
                self._wait(device, WaitingAction(device.owner_id, action, calls, min(record.step, len(calls))))
        for action in later:
            if action.position not in known:
                known.add(action.position)
                self._offer(device, action)
        for action in coming:
            if action.position > begun.after and action.position not in known:
                self._offer(device, action)

    def _wake(self, device: DeviceKey) -> None:
        if (event := self._changed.get(device)) is not None:
            event.set()

    def _gone(self, fact: DeviceDeleted | DeviceHandedOver) -> None:
        """The device has no owner, or another one, who did not send what waits."""
        self._ended.pop(fact.device, None)
        self._not_back.discard(fact.device)
        if self._shared is not None:  # a hand-over removes the rows itself
            has_some = fact.device in self._queues
            self._drop(fact.device)
            if isinstance(fact, DeviceDeleted):
                self._shared.forget(fact.device)
                if has_some:
                    self._unended.end_of_device(fact.device)
        elif (scope := self._scopes.get(fact.device)) is not None:
            scope.cancel()

    def _drop(self, device: DeviceKey) -> None:
        """Leave the Actions that wait to another node."""
        for waiting in (queue := self._queues.pop(device, deque())):
            self._left(waiting)
        queue.clear()
        if (scope := self._scopes.pop(device, None)) is not None:
            scope.cancel()

    # Actions

    def _stored(self, fact: ActionStored) -> None:
        if self._nursery is None:
            return
        self._unended.seen(fact.action.position)
        if not fact.is_sent:
            return
        if (coming := self._coming.get(fact.destination)) is not None:
            coming.append(fact.action)
            return
        session = self._registered.get(fact.destination)
        if session is None and self._shared is None:
            session = self._sessions.get(fact.destination)
        if session is not None:
            self._offer(session.device, fact.action)

    def _offer(self, device: Device, action: Action) -> None:
        if calls := calls_of(device, action.data):
            self._take(device, WaitingAction(device.owner_id, action, calls))

    def _take(self, device: Device, waiting: WaitingAction) -> None:
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
        record = UnendedActionRecord(waiting.action.position, device.key, device.owner, 0)
        (self._unended if self._shared is None else self._shared).take(record)
        self._wait(device, waiting)

    def _wait(self, device: Device, waiting: WaitingAction) -> None:
        queue = self._queues.get(device.key)
        self._waiting_of[waiting.owner] += 1
        if queue is not None:
            queue.append(waiting)
        elif self._nursery is not None:
            queue = self._queues[device.key] = deque((waiting,))
            self._nursery.start_soon(self._serve, device, queue)

    async def _serve(self, device: Device, queue: deque[WaitingAction]) -> None:
        """Carry out the Actions of a device until none waits."""
        if self._queues.get(device.key) is not queue:  # another node has the device since
            return
        with trio.CancelScope() as scope:
            self._scopes[device.key] = scope
            with suppress(_TakenOverError):
                await self._serve_all(device, queue)
        if queue and self._shared is None:  # the device is gone, or its owner
            self._unended.end_of_device(device.key)
        if self._queues.get(device.key) is queue:
            self._drop(device.key)

    def _left(self, waiting: WaitingAction) -> None:
        self._waiting_of[waiting.owner] -= 1
        if not self._waiting_of[waiting.owner]:
            del self._waiting_of[waiting.owner]

    async def _serve_all(self, device: Device, queue: deque[WaitingAction]) -> None:
        while queue:
            problem: str | None = "The device was not heard in time."
            try:
                with trio.move_on_after(self._seconds_left(queue[0])):
                    problem = await self._carry_out(device, queue[0])
            except _TakenOverError:
                raise
            except Exception:  # noqa: BLE001 - a bug in one Action must not end those of others
                _log.exception("device_action_failed", device=device.id, mid=queue[0].action.mid)
                problem = "The service made a mistake, which its log has."
            if self._shared is not None:
                await self._stored_at_last(partial(self._store_end, self._shared, device.key, queue[0], problem))
            self._left(waiting := queue.popleft())
            if self._shared is None:
                self._unended.end([waiting.action.position])
            self._end(device, waiting, problem, is_stored=True)

    def _seconds_left(self, waiting: WaitingAction) -> float:
        """How long an Action may wait. The clock may have been set since it came."""
        passed = (self._clock.now_ms() - waiting.action.cts) / 1000
        return min(max(0.0, LWM2M_ACTION_SECONDS - passed), LWM2M_ACTION_SECONDS)

    async def _carry_out(self, device: Device, waiting: WaitingAction) -> str | None:
        """Carry out the operations one by one up to the first that fails. Returns why it failed."""
        if waiting.step and waiting.calls[waiting.step - 1][1].is_execute:  # begun by the last run
            problem: str | None = _INTERRUPTED if self._shared is None else "The device did not answer."
            return waiting.said(waiting.calls[waiting.step - 1][0], problem or "")
        while waiting.step < len(waiting.calls):
            name, operation, parameters = waiting.calls[waiting.step]
            try:
                problem = await self._operate(device.key, waiting, operation, parameters)
            except DeviceRefusedError as error:
                problem = f"The device refused the operation on {address_text(operation.path)}: {error.code}."
            except UnreadableAnswerError as error:
                problem = error.reason
            except StoreError:
                problem = "The service could not store that it begins."
            if problem is not None:
                return waiting.said(name, problem)
            waiting.step += 1
            if not operation.is_execute and waiting.step < len(waiting.calls) and self._shared is None:
                self._unended.note_step(waiting.action.position, waiting.step)
        return None

    async def _operate(
        self, device: DeviceKey, waiting: WaitingAction, operation: ResourceOperation, parameters: dict[str, Any]
    ) -> str | None:
        try:
            value = False if operation.is_execute else written_value(self._objects, operation, parameters)
        except NoFittingValueError as error:
            return str(error)
        attempts, is_begun = 0, False
        while True:
            if (session := await self._session(device)) is None:
                return "The registration of the device has ended."
            if self._shared is not None or (operation.is_execute and not is_begun):
                await session.wait_awake()
                if session.is_over:
                    continue
                # An Execute whose end is not known is not sent again: that it begins is stored before it is sent.
                await self._store_step(device, waiting, waiting.step + int(operation.is_execute))
                is_begun = True
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

    async def _store_step(self, device: DeviceKey, waiting: WaitingAction, step: int) -> None:
        """Raises StoreError, and _TakenOverError."""
        position = waiting.action.position
        if self._shared is None:
            await self._unended.store_step(position, step)
        else:
            await self._stored_at_last(partial(self._shared.begin_operation, device, position, step))

    async def _stored_at_last(self, write: Callable[[], Awaitable[bool]]) -> None:
        """Raises _TakenOverError."""
        while True:
            try:
                is_here = await write()
            except StoreError as error:
                self._outage.failed(error)
                await trio.sleep(_STORE_SECONDS)
                continue
            self._outage.succeeded()
            if not is_here:
                raise _TakenOverError
            return

    async def _store_end(
        self, shared: SharedRegistrations, device: DeviceKey, waiting: WaitingAction, problem: str | None
    ) -> bool:
        shown = self._shown(waiting, problem)
        fact = await self._fact(device, shown.mid, problem)
        return await shared.end_action(_record(device, waiting.action.position, shown), fact)

    async def _session(self, device: DeviceKey) -> ManagedSession | None:
        """The registration of the device after its first steps; the next one, when it has ended a moment ago. None:
        there is none. Raises _TakenOverError."""
        while (found := self._sessions.get(device)) is None or found.is_over:
            is_coming = device in self._not_back or device in self._registered
            event = self._changed.setdefault(device, trio.Event())
            try:
                with trio.move_on_after(inf if is_coming else _AGAIN_SECONDS) as waited:
                    await self._set_here(device, event)
            finally:
                self._changed.pop(device, None)
            if waited.cancelled_caught:
                return None
        return found

    async def _set_here(self, device: DeviceKey, event: trio.Event) -> None:
        """Wait for the event. Raises _TakenOverError: another node has the device."""
        while not event.is_set():
            with trio.move_on_after(inf if self._shared is None else _LOOK_SECONDS):
                await event.wait()
                return
            with suppress(StoreError):
                if self._shared is not None and await self._shared.is_elsewhere(device):
                    raise _TakenOverError

    def _shown(self, waiting: WaitingAction, problem: str | None) -> ShownAction:
        state = ActionState.DONE if problem is None else ActionState.FAILED
        text = problem or "The device did it."
        return ShownAction(waiting.action.mid, waiting.name, self._clock.now_ms(), state, text)

    def _end(self, device: Device, waiting: WaitingAction, problem: str | None, *, is_stored: bool = False) -> None:
        """`is_stored`: other nodes have it from the store."""
        if problem is None:
            self._done += 1
        else:
            self._failed += 1
        if self._shared is not None:
            if not is_stored and self._nursery is not None:
                self._nursery.start_soon(self._store_refused, self._shared, device.key, waiting, problem)
            return
        ended = self._ended.setdefault(device.key, deque(maxlen=LWM2M_ACTIONS_KEPT))
        ended.append(self._shown(waiting, problem))
        self._ended.move_to_end(device.key)
        if len(self._ended) > _DEVICES_SHOWN:
            self._ended.popitem(last=False)
        if self._nursery is not None:
            self._nursery.start_soon(self._tell, device.key, waiting.action.mid, problem)

    async def _store_refused(
        self, shared: SharedRegistrations, device: DeviceKey, waiting: WaitingAction, problem: str | None
    ) -> None:
        with suppress(_TakenOverError):
            await self._stored_at_last(partial(self._store_end, shared, device, waiting, problem))

    async def _fact(self, key: DeviceKey, mid: str, problem: str | None) -> DeviceActionFact | None:
        """The event (reference 20); None: the device was deleted. Raises StoreError."""
        if (device := await self._device(key)) is None:
            return None
        kind: type[DeviceActionFact] = DeviceActionDelivered if problem is None else DeviceActionFailed
        return replace(device_fact(kind, device.record, device.type.record, None, self._clock.now_ms()), mid=mid)

    async def _tell(self, key: DeviceKey, mid: str, problem: str | None) -> None:
        with suppress(StoreError):
            if (fact := await self._fact(key, mid, problem)) is not None:
                self._router.publish(fact)

    # Showing

    async def shown(self, device: Device) -> list[ShownAction]:
        """The Actions that wait and the last that have ended, the newest first. Raises StoreError."""
        session = self._sessions.get(device.key)
        if self._shared is not None:
            return await self._shown_of_all(device, self._shared, session)
        is_registered = session is not None or device.key in self._registered
        text = _waiting_text(is_registered=is_registered, is_asleep=session is not None and session.is_asleep)
        waiting = [
            ShownAction(one.action.mid, one.name, one.action.cts, ActionState.WAITING, text)
            for one in self._queues.get(device.key, ())
        ]
        return [*reversed(waiting), *reversed(self._ended.get(device.key, ()))]

    async def _shown_of_all(
        self, device: Device, shared: SharedRegistrations, session: ManagedSession | None
    ) -> list[ShownAction]:
        """As `shown`, on whatever node the device is."""
        found = await shared.actions(device.key)
        registered = found.registration
        is_asleep = registered is not None and registered.is_asleep if session is None else session.is_asleep
        text = _waiting_text(is_registered=registered is not None, is_asleep=is_asleep)
        waiting = []
        for one in found.unended:
            action = await self._history.action_view(one.row, device)
            names = ", ".join(name for name, _, _ in calls_of(device, action.data))
            waiting.append(ShownAction(action.mid, names, action.cts, ActionState.WAITING, text))
        past = [ShownAction(one.mid, one.name, one.at_ms, ActionState(one.state), one.text) for one in found.ended]
        return [*reversed(waiting), *reversed(past)]

    # The worker

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                if self._shared is None:
                    await self._resume()
                else:
                    await self._unended.forget_position()
                    end_lost = partial(self._end_lost, self._shared)
                    nursery.start_soon(Loop(end_lost, every=_LOST_SECONDS, failure="lwm2m_actions_not_ended").run)
                    again = self._shared.change_again
                    nursery.start_soon(Loop(again, every=_SAVE_SECONDS, failure="lwm2m_registrations_not_saved").run)
                task_status.started()
                await Loop(self.save, every=_SAVE_SECONDS, failure="lwm2m_actions_not_saved").run()
            finally:
                self._nursery = None
                self._queues.clear()
                self._scopes.clear()
                self._not_back.clear()
                self._waiting_of.clear()

    async def _resume(self) -> None:
        """Go on with the Actions that have not ended when the last run did. Their deliveries are charged already."""
        found = await self._unended.left()
        ended = list[Position]()
        for record in found.records:
            row, device = found.rows.get(record.position), await self._device(record.device)
            calls = () if row is None or device is None else calls_of(device, row.data)
            if row is None or device is None or device.owner != record.owner or not calls:
                ended.append(record.position)
                continue
            action = await self._history.action_view(row, device)
            self._not_back.add(device.key)
            self._wait(device, WaitingAction(device.owner_id, action, calls, min(record.step, len(calls))))
        for row in found.later:
            if (device := await self._device(row.device)) is not None:
                self._not_back.add(device.key)
                self._offer(device, await self._history.action_view(row, device))
        if ended:
            self._unended.end(ended)
        await self.save()

    async def _end_lost(self, shared: SharedRegistrations) -> None:
        """End the Actions that no node has any more, and whose time is over. Raises StoreError."""
        if not self._lease.is_held:
            return
        lost: list[tuple[EndedActionRecord, DeviceActionFact | None]] = []
        latest = self._clock.now_ms() - (LWM2M_ACTION_SECONDS + _LOST_SECONDS) * 1000
        for one in await shared.unended():
            if one.row.cts < latest and (device := await self._device(one.record.device)) is not None:
                action = await self._history.action_view(one.row, device)
                waiting = WaitingAction(device.owner_id, action, calls_of(device, action.data))
                shown = self._shown(waiting, "The device was not heard in time.")
                record = _record(device.key, action.position, shown)
                lost.append((record, await self._fact(device.key, action.mid, shown.text)))
        if lost:
            await shared.end_lost(lost)

    async def _device(self, key: DeviceKey) -> Device | None:
        try:
            return await self._devices.get(key)
        except DeviceNotFound:
            return None

    async def save(self) -> None:
        """Save how far it has come. Raises StoreError."""
        if self._shared is None:
            await self._unended.save()

    def statistics(self) -> DeviceActionStatistics:
        return DeviceActionStatistics(self._waiting_of.total(), self._done, self._failed)


def _record(device: DeviceKey, position: Position, shown: ShownAction) -> EndedActionRecord:
    return EndedActionRecord(device, position, shown.mid, shown.name, shown.at_ms, shown.state, shown.text)


def _waiting_text(*, is_registered: bool, is_asleep: bool) -> str:
    if not is_registered:
        return "The device gets it with its next registration."
    if is_asleep:
        return "The device sleeps, and gets it when it is heard again."
    return "The device gets it next."
