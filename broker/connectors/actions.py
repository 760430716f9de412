"""Sends the Actions for devices of connectors through the plug-in's action hook to the third party.

Actions are taken up once they are durable, and the position in the log is saved. Actions that a stop or a crash leaves
unsent are sent after the restart, unless older than `_WANTED_MS`; so an Action may be sent twice, but it is not lost.
An Action for a device without a link is dropped (reference 9.1).
"""

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.leases import Lease
from broker.connectors.calls import CALL_FAILURES, Calls
from broker.connectors.catalog import Catalog, Connector
from broker.connectors.intake import Intake
from broker.connectors.lanes import Lanes
from broker.connectors.links import ConnectorLink, ConnectorLinks
from broker.connectors.problems import Doing, Problems, answered
from broker.connectors.sending import PendingAction, WaitedTooLongError
from broker.devices.inventory import device_fact
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound
from broker.facts import (
    ActionStored,
    DeviceActionDelivered,
    DeviceActionFact,
    DeviceActionFailed,
    Fact,
    FactPhase,
    Router,
)
from broker.limits.quotas import Quotas, ReservedRequest
from broker.loops import Loop
from config.limits import CONNECTOR_WAITING
from storage.database import Database
from storage.keys import DeviceKey, Position
from storage.outages import Outage
from storage.sql import StoreDamagedError, StoreError

_CONSUMER: Final = "connector actions"
_SAVE_SECONDS: Final = 5.0
_WANTED_MS: Final = 600_000  # an Action that was left unsent for longer is dropped at a restart
_WAITING: Final = 100  # Actions of one device
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Actions:
    """`mid` gives the public id of a position. `quotas` charges the deliveries; None: nothing is charged."""

    _database: Database
    _lease: Lease
    _clock: Clock
    _router: Router
    _publish: Callable[[Fact], Awaitable[None]]  # on all nodes
    _devices: Devices
    _catalog: Catalog
    _links: ConnectorLinks
    _calls: Calls
    _intake: Intake
    _lanes: Lanes
    _problems: Problems
    _quotas: Quotas | None
    _mid: Callable[[Position], str]

    def __post_init__(self) -> None:
        self._outage = Outage("connector_action_not_sent")
        self._unsent: OrderedDict[Position, None] = OrderedDict()
        self._waiting: Counter[DeviceKey] = Counter()  # of `_unsent`, by device
        self._last = self._saved = Position(0)
        self._has_resumed = False
        self.sent = self.failed = 0
        self._router.subscribe(ActionStored, self._stored, FactPhase.EFFECT)

    def _stored(self, fact: ActionStored) -> None:
        connector = self._catalog.by_id(fact.action.ddtid)
        if connector is None:
            self._release_request(fact.destination)
            return
        if not self._lease.is_held:  # the node that has it takes the Action, from the log if need be
            self._release_request(fact.destination)
            return
        self._last = max(self._last, fact.action.position)
        if not fact.is_sent:
            return
        if not fact.is_own and self._quotas is not None and (device := self._devices.get_nowait(fact.destination)):
            self._quotas.reserve_request(device)
        if self._may_go(fact):
            self._offer(connector, fact.action.position, fact.destination, fact.action.data)
        else:
            self._release_request(fact.destination)

    def _release_request(self, device: DeviceKey) -> None:
        if self._quotas is not None:
            self._quotas.release_request(device)

    def _may_go(self, fact: ActionStored) -> bool:
        """Whether the Action may wait in its lane, where the link is asked (`_link_for`). Its delivery is charged."""
        device = self._devices.get_nowait(fact.destination)
        if device is None:
            return True
        if device.record.cloud_authorization != "AUTHORIZED":
            return False
        if self._quotas is not None:
            if not self._quotas.admits(device, fact.action):
                return False
            self._quotas.delivered(device, fact.action)
        return True

    def _offer(self, connector: Connector, position: Position, device: DeviceKey, data: str) -> None:
        reserved = None if self._quotas is None else ReservedRequest(self._quotas, device)
        sending = PendingAction(connector, device, data, self._calls, self._link_for, reserved)
        has_room = self._waiting[device] < _WAITING
        if has_room and self._lanes.offer(connector.type.key, device, lambda: self._send(connector, sending, position)):
            self._unsent[position] = None
            self._waiting[device] += 1
        else:
            self.failed += 1
            self._release_request(device)
            self._problems.note(connector.type.key, device, Doing.ACTION, "Too many Actions wait: one was not sent.")
            _log.warning("connector_action_dropped", device=device, position=position)

    async def _send(self, connector: Connector, sending: PendingAction, position: Position) -> float | None:
        """Seconds until the Action is to be tried again; None: it has ended."""
        problem = ""
        try:
            if (wait := await sending.go_on()) is not None:
                return wait
            self._outage.succeeded()
        except StoreError as error:
            problem = str(error)
            self._problems.note_error(connector.type.key, sending.device, Doing.ACTION, error)
            self._outage.failed(error)
        except (*CALL_FAILURES, WaitedTooLongError) as error:
            problem = str(error) or type(error).__name__
            self._problems.note_error(connector.type.key, sending.device, Doing.ACTION, error)
            _log.warning("connector_action_failed", device=sending.device, position=position, reason=problem)
        except Exception as error:  # noqa: BLE001 - an unexpected error must not keep the saved position from moving on
            problem = type(error).__name__
            self._problems.note_error(connector.type.key, sending.device, Doing.ACTION, error)
            _log.exception("connector_action_failed", device=sending.device, position=position)
        # A cancelled task does not get here: its Action stays unsent and is sent after the restart.
        del self._unsent[position]
        sending.end()
        self._waiting[sending.device] -= 1
        if not self._waiting[sending.device]:
            del self._waiting[sending.device]
        if not problem and sending.refused_with is not None:
            self._problems.note(connector.type.key, sending.device, Doing.ACTION, answered(sending.refused_with))
        elif not problem and sending.sent:
            self._problems.note_success(connector.type.key, sending.device, Doing.ACTION)
        self.sent += sending.sent
        self.failed += sending.failed + bool(problem)
        await self._tell_end(sending, position, has_failed=bool(problem or sending.failed))
        return None

    async def _tell_end(self, sending: PendingAction, position: Position, *, has_failed: bool) -> None:
        """Tell the end of an Action that the third party did not take at once (reference 20)."""
        if not has_failed and not (sending.was_delayed and sending.sent):
            return
        with suppress(DeviceNotFound, StoreError):
            device = await self._devices.get(sending.device)
            kind: type[DeviceActionFact] = DeviceActionFailed if has_failed else DeviceActionDelivered
            fact = device_fact(kind, device.record, device.type.record, None, self._clock.now_ms())
            await self._publish(replace(fact, mid=self._mid(position)))

    async def _link_for(self, device: DeviceKey) -> tuple[ConnectorLink | None, str | None]:
        """The link that authorizes requests for a device, and the device's external id when it is a sub-device."""
        if (link := await self._links.of_device(device)) is not None:
            return link, None
        holder = await self._database.read(lambda tx: tx.connectors.holder_of(device))
        if holder is None:
            return None, None
        try:
            eid = (await self._devices.get(device)).record.eid
        except DeviceNotFound:
            return None, None
        return await self._links.of_device(holder), eid

    async def resume(self) -> None:
        """Queue the Actions that the last run left unsent. The lanes must be running."""
        since_ms = self._clock.now_ms() - _WANTED_MS
        self._last = self._saved = await self._database.read(lambda tx: tx.messages.consumer_position(_CONSUMER))
        unsent: list[tuple[Position, DeviceKey, str]] = []
        with suppress(StoreDamagedError):  # the engine has told the operator
            unsent = await self._database.read(
                lambda tx: tx.connectors.unsent_actions(after=self._saved, since_ms=since_ms, limit=CONNECTOR_WAITING)
            )
        for position, key, data in unsent:
            try:
                device = await self._devices.get(key)
            except DeviceNotFound:
                continue
            self._last = max(self._last, position)
            if (connector := self._catalog.find(device.type_key)) is not None and position not in self._unsent:
                if self._quotas is not None:
                    self._quotas.reserve_request(device)
                self._offer(connector, position, key, data)
        self._has_resumed = True

    def forget(self) -> None:
        """Another node sends from now on."""
        self._unsent.clear()
        self._waiting.clear()
        self._has_resumed = False

    async def save_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.resume()
        task_status.started()
        await Loop(self.save, every=_SAVE_SECONDS, failure="connector_actions_not_saved").run()

    async def save(self) -> None:
        """Save the position before the first unsent Action. Raises StoreError."""
        position = Position(min(self._unsent) - 1) if self._unsent else self._last
        if self._has_resumed and position > self._saved:
            await self._database.write_own(
                self._lease, lambda tx: tx.messages.set_consumer_position(_CONSUMER, position)
            )
            self._saved = position
