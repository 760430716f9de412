"""Work for registered devices: one device task of a device at a time, the oldest first.

A device has a task of trio only while one of its operations is under way. Each change of a device task is committed
before the next operation begins, so that a restart goes on where the daemon stopped.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.device_management.configuration import Configurations
from broker.device_management.objects import RESULT, STATE
from broker.device_management.operations import Operations
from broker.device_management.queueing import tell_move
from broker.device_management.requests import decode_task_request
from broker.device_management.rollouts import Rollouts
from broker.device_management.sessions import ManagedSession, ResourcePath, ResourceValue, SessionLostError
from broker.device_management.shared_registrations import SharedRegistrations
from broker.device_management.states import BEGUN, Acceptance, DeviceTaskStatus, ErrorCode, TaskFailure, move, put_back
from broker.device_management.timers import Timers
from broker.device_management.updates import Done, Failed, Firmware, Go, PutBack, Rest, Step, Verdict, advance
from broker.facts import TaskProgressed
from storage.database import Database
from storage.firmware import FirmwareImageRecord
from storage.keys import DeviceKey
from storage.outages import Outage
from storage.sql import StoreError
from storage.tasks import DeviceTaskRecord, TaskRecord
from storage.transaction import Transaction

_STORE_SECONDS: Final = 5
_CHOICES: Final = 200  # device tasks of one device that are looked at for the next one
_NOT_ENDED: Final = (DeviceTaskStatus.QUEUED, *BEGUN)
LOST: Final = TaskFailure(ErrorCode.DEVICE_TIMEOUT, "The device did not answer, or its registration ended.")
_NOT_BEGUN: Final = frozenset({Step.NONE, Step.CHECK, Step.OFFER})
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Work:
    """Work for a device that is going on. `again`: something happened since it began, so look once more."""

    again: bool = False
    entry: int | None = None
    scope: trio.CancelScope | None = None


@dataclass(slots=True)
class _Update:
    """State of an update between two of its steps, for as long as the registration lasts."""

    entry: int
    session: ManagedSession
    due_ms: int  # of the steady clock
    firmware: Firmware | None = None


class _Chosen(msgspec.Struct, frozen=True):
    entry: DeviceTaskRecord
    task: TaskRecord
    image: FirmwareImageRecord | None


@dataclass(eq=False)
class DeviceWork:
    """Images are below `image_root` of their protocol. `stop` ends a roll-out. `shared`: other nodes have
    registrations, too.

    A device task that has begun is of the process that carries it out (`holder`). A device that has registered with
    another node since takes it along: what the former one finds out then changes nothing.
    """

    _database: Database
    _clock: Clock
    _timers: Timers
    _configurations: Configurations
    _operations: Operations
    _image_root: Callable[[str | None], str | None]
    stop: InitVar[Callable[[int], None]]
    _shared: SharedRegistrations | None = None

    def __post_init__(self, stop: Callable[[int], None]) -> None:
        self._holder = "" if self._shared is None else self._shared.instance
        self._sessions: dict[DeviceKey, ManagedSession] = {}
        self._work: dict[DeviceKey, _Work] = {}
        self._updates: dict[DeviceKey, _Update] = {}
        #: Devices that said something new of their firmware since the last step of their update began.
        self._heard: set[DeviceKey] = set()
        self._outage = Outage("device_task_not_saved")
        self._nursery: trio.Nursery | None = None
        self.rollouts = Rollouts(self._database, self._clock, self._timers, self.wake, stop, self._shared is not None)

    # Sessions

    def begin_in(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        for device in tuple(self._sessions):
            self.wake(device)

    def end(self) -> None:
        self._nursery = None

    def session_of(self, device: DeviceKey) -> ManagedSession | None:
        return self._sessions.get(device)

    def connected(self, session: ManagedSession) -> None:
        self._sessions[session.device.key] = session
        if self._shared is not None:
            self._shared.note(session, is_ready=True)
        self.wake(session.device.key)

    def disconnected(self, session: ManagedSession) -> None:
        key = session.device.key
        if self._sessions.get(key) is session:
            self.drop(key)

    def drop(self, device: DeviceKey) -> None:
        """Forget a device that is not connected any more, or was deleted."""
        session = self._sessions.pop(device, None)
        if session is not None and self._shared is not None and not session.is_over:
            self._shared.note(session, is_ready=False)
        self._updates.pop(device, None)
        self._heard.discard(device)
        self._timers.cancel(("poll", device))

    def said(self, device: DeviceKey, values: Mapping[ResourcePath, ResourceValue]) -> None:
        """The device answered or notified: an update that waits for this goes on."""
        update = self._updates.get(device)
        if (update is None and device not in self._work) or not (STATE in values or RESULT in values):
            return
        known = (None if update is None else update.firmware) or Firmware(None, 0)
        if (values.get(STATE, known.state), values.get(RESULT, known.result)) != (known.state, known.result):
            self._heard.add(device)
            self.wake(device)

    def stop_operation(self, entry: int, device: DeviceKey) -> None:
        """The device task has ended without its operation: the device's next one may begin."""
        work = self._work.get(device)
        if work is not None and work.entry == entry and work.scope is not None:
            work.scope.cancel()
        else:
            self.wake(device)

    def wake(self, device: DeviceKey) -> bool:
        """Look for work of a device; False if it is not connected."""
        if device not in self._sessions:
            return False
        if (work := self._work.get(device)) is not None:
            work.again = True
        elif self._nursery is not None:
            self._work[device] = _Work()
            self._nursery.start_soon(self._serve, device)
        return True

    # Work

    async def _serve(self, device: DeviceKey) -> None:
        work = self._work[device]
        try:
            goes_on = True
            while goes_on or work.again:
                work.again = False
                goes_on = await self._serve_once(device, work)
            self._outage.succeeded()
        except StoreError as error:
            self._outage.failed(error, device=device)
            self._wake_in(device, _STORE_SECONDS)
        except Exception:  # noqa: BLE001 - a bug in the work for one device must not end that for the others
            _log.exception("device_task_failed", device=device)
            self._sessions.pop(device, None)  # it is tried again at the next registration or update
        finally:
            del self._work[device]

    def _wake_in(self, device: DeviceKey, seconds: float) -> None:
        at_ms = self._clock.steady_ms() + int(seconds * 1000)
        self._timers.set(("poll", device), at_ms, partial(self._look, device))

    def _look(self, device: DeviceKey) -> None:
        self.wake(device)

    async def _serve_once(self, device: DeviceKey, work: _Work) -> bool:
        """Take the next step; answer whether there may be another one at once."""
        session = self._sessions.get(device)
        if session is None or session.is_over:
            return False
        chosen = await self._choose(session)
        if chosen is None:
            return False
        if chosen.entry.holder != self._holder:
            return await self._take_over(chosen)
        if chosen.task.image is None:
            await self._operate(session, chosen, work)
            return True
        return await self._update(session, chosen, work)

    async def _choose(self, session: ManagedSession) -> _Chosen | None:
        """The device task that has begun, else the oldest one that may begin."""
        device = session.device
        found = await self._database.read(partial(_open_entries, device.key))
        begun = [one for one in found if one.entry.status in BEGUN]
        if begun:
            await self.rollouts.of(begun[0].task)  # so that its end is counted
            return begun[0]
        configuration = await self._configurations.of(device.type)
        for one in found:
            request = decode_task_request(one.task.request)
            if one.entry.acceptance == Acceptance.WAITING or request.server_path is not None:
                continue
            if not (request.is_update or configuration.device_properties_enabled):
                continue
            rollout = await self.rollouts.of(one.task)
            again = one.entry.started_on is not None
            if rollout is None or self.rollouts.admit(rollout, one.task.key, device.key, again=again):
                began, has_turn = await self._begin(one, again=again)
                if began is not None:
                    return replace(one, entry=began)
                if rollout is not None:
                    rollout.undo_begin(again=again)
                    if not has_turn:
                        self.rollouts.hold(rollout, one.task.key, device.key)
        return None

    async def _begin(self, chosen: _Chosen, *, again: bool) -> tuple[DeviceTaskRecord | None, bool]:
        """The device task, if it has begun; and whether the roll-out lets it."""
        now_ms, is_here = self._clock.now_ms(), self._is_here(chosen.entry.device)

        def work(tx: Transaction) -> tuple[DeviceTaskRecord | None, bool]:
            if not is_here(tx):
                return None, True
            if not self.rollouts.may_begin(tx, chosen.task, again=again):
                return None, False
            publish(tx, TaskProgressed(chosen.task.key))
            return move(tx, chosen.entry.key, DeviceTaskStatus.PROCESSING, now_ms, holder=self._holder), True

        return await self._database.write(work)

    def _is_here(self, device: DeviceKey) -> Callable[[Transaction], bool]:
        """Says, in a transaction, whether no other node has taken the device over."""
        return _always if self._shared is None else self._shared.is_here(device)

    async def _take_over(self, chosen: _Chosen) -> bool:
        """Go on with what another node has begun, where the device was before. An update goes on with its step; the
        outcome of any other operation is unknown, as when the connection fails. False: the device has gone on."""
        now_ms, is_here, before = self._clock.now_ms(), self._is_here(chosen.entry.device), chosen.entry

        def work(tx: Transaction) -> bool:
            if not is_here(tx):
                return False
            if (now := tx.tasks.entry(before.key)) is None or now.status not in BEGUN or now.holder != before.holder:
                return True
            if chosen.task.image is None:
                tell_move(tx, now, put_back(tx, now.key, LOST, now_ms))
            else:
                tx.tasks.put_entry(replace(now, holder=self._holder))
            return True

        return await self._database.write(work)

    async def _operate(self, session: ManagedSession, chosen: _Chosen, work: _Work) -> None:
        request, failure, is_lost = decode_task_request(chosen.task.request), None, False
        with self._operation(chosen.entry.key, work) as scope:
            try:
                failure = await self._operations.perform(session, request)
            except SessionLostError:
                is_lost = True
        _operation_ended(work)
        if scope.cancelled_caught:
            return
        if is_lost:
            await self._lost(session, chosen)
            return
        status = DeviceTaskStatus.SUCCEEDED if failure is None else DeviceTaskStatus.FAILED
        await self._move(chosen.entry, partial(_move, status=status, failure=failure, now_ms=self._clock.now_ms()))

    def _operation(self, entry: int, work: _Work) -> trio.CancelScope:
        work.entry, work.scope = entry, trio.CancelScope()
        return work.scope

    async def _lost(self, session: ManagedSession, chosen: _Chosen) -> None:
        """A communication failure before anything was begun: another try at the next registration or update."""
        self._forget(session)
        await self._move(chosen.entry, partial(_put_back, now_ms=self._clock.now_ms()))

    def _forget(self, session: ManagedSession) -> None:
        self._updates.pop(session.device.key, None)
        self.disconnected(session)

    async def _move(
        self, before: DeviceTaskRecord, change: Callable[[Transaction, int], DeviceTaskRecord | None]
    ) -> None:
        def work(tx: Transaction) -> None:
            now = tx.tasks.entry(before.key)
            if now is not None and (now.holder == self._holder or now.status not in BEGUN):
                tell_move(tx, before, change(tx, before.key))

        await self._database.write(work)

    # Updates

    async def _update(self, session: ManagedSession, chosen: _Chosen, work: _Work) -> bool:
        entry, device = chosen.entry, session.device.key
        if entry.status == DeviceTaskStatus.CANCEL_REQUESTED and Step(entry.step) in _NOT_BEGUN:
            await self._move(entry, partial(_move, status=DeviceTaskStatus.CANCELLED, now_ms=self._clock.now_ms()))
            return True
        known = self._updates.get(device)
        is_resumed = known is None or known.entry != entry.key or known.session is not session
        is_due = device in self._heard or known is None or known.due_ms <= self._clock.steady_ms()
        if not is_resumed and not is_due:
            return False  # the timer wakes the device
        self._heard.discard(device)
        with self._operation(entry.key, work) as scope:
            verdict, firmware = await advance(session, entry, chosen.image, self._url(chosen), is_resumed=is_resumed)
        _operation_ended(work)
        if scope.cancelled_caught:
            self._updates.pop(device, None)
            return True
        if self._sessions.get(device) is session:  # else the registration has ended
            said = firmware if firmware is not None or known is None else known.firmware
            self._updates[device] = _Update(entry.key, session, 0, said)
        return await self._follow(session, chosen, verdict, firmware)

    def _url(self, chosen: _Chosen) -> str:
        # A listener that is gone since the task was made leaves the address of REST.
        root = self._image_root(decode_task_request(chosen.task.request).protocol) or self._image_root(None)
        return f"{root}/v1.1/updates/urls/{chosen.entry.download}"

    async def _follow(
        self, session: ManagedSession, chosen: _Chosen, verdict: Verdict, firmware: Firmware | None
    ) -> bool:
        """Store what follows from a step; answer whether the next step may be taken at once."""
        entry, device, now_ms = chosen.entry, session.device.key, self._clock.now_ms()
        match verdict:
            case Done():
                self._updates.pop(device, None)
                await self._move(entry, partial(_move, status=DeviceTaskStatus.SUCCEEDED, now_ms=now_ms))
                return True
            case Failed(failure):
                self._updates.pop(device, None)
                change = partial(_move, status=DeviceTaskStatus.FAILED, failure=failure, now_ms=now_ms)
                await self._move(entry, change)
                return True
            case PutBack():
                await self._lost(session, chosen)
                return False
            case Rest(step):
                self._forget(session)
                await self._set_step(entry, step=step, now_ms=now_ms, reported="")
                return False
            case Go(step, seconds, tries, is_restart):
                changes: dict[str, Any] = {"step": step, "tries": tries, "reported": _reported(firmware, step)}
                if is_restart:
                    changes |= {"restarts": entry.restarts + 1, "attempts": entry.attempts + 1}
                if step is Step.OFFER and entry.download is None:
                    changes["download"] = secrets.token_hex(5)[:9]
                await self._set_step(entry, now_ms=now_ms, **changes)
                if not seconds:
                    return True
                if (update := self._updates.get(device)) is not None:
                    update.due_ms = self._clock.steady_ms() + seconds * 1000
                self._wake_in(device, seconds)
                return device in self._heard

    async def _set_step(self, entry: DeviceTaskRecord, **changes: Any) -> None:
        await self._database.write(partial(_set_step, entry, **changes))

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def working(self) -> int:
        return len(self._work)


def _always(_tx: Transaction) -> bool:
    return True


def _reported(firmware: Firmware | None, step: Step) -> str:
    """The part of it that explains why the update waits in this step."""
    if firmware is None:
        return ""
    if step is Step.CHECK:
        return str(firmware.state or "")
    return (firmware.version or "") if step is Step.VERIFY else ""


def _operation_ended(work: _Work) -> None:
    work.entry = work.scope = None


def _open_entries(device: DeviceKey, tx: Transaction) -> list[_Chosen]:
    """The device tasks of a device that have not ended, oldest first, with their tasks and images."""
    entries = tx.tasks.entries_of_device(device, _NOT_ENDED, limit=_CHOICES)
    with_tasks = [(entry, tx.tasks.task(entry.task)) for entry in entries]
    return [
        _Chosen(entry, task, None if task.image is None else tx.firmware.image(task.image))
        for entry, task in with_tasks
        if task is not None
    ]


def _move(
    tx: Transaction, key: int, *, status: DeviceTaskStatus, now_ms: Any, failure: TaskFailure | None = None
) -> DeviceTaskRecord | None:
    return move(tx, key, status, now_ms, failure=failure)


def _put_back(tx: Transaction, key: int, *, now_ms: Any) -> DeviceTaskRecord | None:
    return put_back(tx, key, LOST, now_ms)


def _set_step(known: DeviceTaskRecord, tx: Transaction, *, step: Step, now_ms: Any, **changes: Any) -> None:
    """Change the step of an update, unless it has ended."""
    publish(tx, TaskProgressed(known.task))
    entry = tx.tasks.entry(known.key)
    if entry is not None and entry.status in BEGUN and entry.holder == known.holder:
        step_on = entry.step_on if entry.step == step else now_ms
        tx.tasks.put_entry(replace(entry, step=step, step_on=step_on, **changes))
