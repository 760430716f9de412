"""The cloud connectors as the rest of the daemon sees them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.tokens import Caller
from broker.cluster.kinds import publish
from broker.cluster.leases import LeaseName
from broker.connectors.actions import Actions
from broker.connectors.calls import CallBudget, Calls
from broker.connectors.catalog import Catalog
from broker.connectors.fetches import Fetches
from broker.connectors.hooks import Heard
from broker.connectors.intake import Intake
from broker.connectors.lanes import Lanes
from broker.connectors.links import ConnectorLinks
from broker.connectors.notifications import Notifications
from broker.connectors.plugin import IncomingRequest
from broker.connectors.port import ThirdParty
from broker.connectors.problems import NO_DEVICE, Problem, Problems
from broker.connectors.provider_auth import ProviderAuth
from broker.connectors.sub_devices import SubDevices
from broker.core import Core
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import DeviceNotFound
from broker.facts import DeviceDeleted, Fact, FactPhase, ProviderAuthRemoved
from broker.limits.room import LimitsRoom
from broker.loops import Loop, Wakeup
from broker.messages.ingest import Ingest
from storage.keys import DeviceKey

_CLEAN_SECONDS: Final = 60.0
_SAVE_SECONDS: Final = 5.0
_JOB_MS: Final = 86_400_000
UNUSABLE: Final = "The connector's plug-in cannot be used; the log of the operator has the reason."
_log = structlog.get_logger(__name__)


class ConnectorStatistics(msgspec.Struct, frozen=True):
    """Counted since the start, except for `waiting`."""

    calls: int
    failed_calls: int
    refused_clients: int
    failed_fetches: int
    notifications: int
    failed_notifications: int
    stored: int
    refused: int
    actions_sent: int
    actions_failed: int
    waiting: int
    dropped: int


class ConnectorStatus(msgspec.Struct, frozen=True):
    """Status of a connector: whether its plug-in can be used, and its failures, the latest first."""

    is_usable: bool
    problems: Sequence[Problem]

    @property
    def sentence(self) -> str | None:
        """The known problem in one sentence; None: none is known."""
        if not self.is_usable:
            return UNUSABLE
        return self.problems[0].sentence if self.problems else None


class Connectors:
    """Cloud connectors. Without a `third_party`, nothing is fetched and no Action is sent."""

    def __init__(
        self,
        core: Core,
        device_types: DeviceTypes,
        of_devices: DevicesRoom,
        limits: LimitsRoom,
        ingest: Ingest,
        third_party: ThirdParty | None,
    ) -> None:
        database, vault, clock, router = core.database, core.vault, core.clock, core.router
        devices, quotas = of_devices.registry, limits.charged
        self.catalog = Catalog(database, vault, device_types, lambda: f"{core.site.origin}/v1.1")
        self._fetch_lanes, self._action_lanes = Lanes(), Lanes()
        self._database, self._devices = database, devices
        lease = core.leases.of(LeaseName.CONNECTORS)
        self._core = core
        self.problems = Problems(database, core.news, clock)
        self.links = links = ConnectorLinks(database, vault, clock, device_types, core.peers)
        self._calls = Calls(links, devices, CallBudget(limits.meters), quotas, clock, third_party)
        self._intake = Intake(database, clock, devices, SubDevices(database, devices, of_devices.inventory), ingest)
        self.fetches = Fetches(
            database,
            lease,
            clock,
            devices,
            self.catalog,
            links,
            self._calls,
            self._intake,
            self._fetch_lanes,
            self.problems,
            core.settings.connectors.pull_minutes,
            vault,
            core.knock(LeaseName.CONNECTORS, "connector pulls"),
            core.knock(LeaseName.CONNECTORS, "connector jobs"),
            core.peers is not None,
        )
        self._notifications = Notifications(
            clock, device_types, devices, self.catalog, links, self.fetches, self.problems
        )
        self._actions = Actions(
            database,
            lease,
            clock,
            router,
            self._publish,
            devices,
            self.catalog,
            links,
            self._calls,
            self._intake,
            self._action_lanes,
            self.problems,
            quotas,
            ingest.mid,
        )
        self._provider_auth = ProviderAuth(
            database, vault, clock, self._publish, devices, self.catalog, links, self._calls, self.problems
        )
        self._orphaned = Wakeup()
        router.subscribe(DeviceDeleted, self._device_deleted, FactPhase.EFFECT)
        router.subscribe(ProviderAuthRemoved, lambda fact: self.problems.forget(fact.device), FactPhase.EFFECT)

    async def _publish(self, fact: Fact) -> None:
        """Have all nodes hear it. Raises StoreError."""
        if self._core.peers is None:
            self._core.router.publish(fact)
        else:
            await self._database.write(lambda tx: publish(tx, fact))

    def types(self) -> list[DeviceType]:
        """The types that have a connector, by name, unusable plug-ins included."""
        found = [*(one.type for one in self.catalog.all()), *self.catalog.unusable.values()]
        return sorted(found, key=lambda one: one.record.name)

    def standing(self, type_: DeviceType) -> ConnectorStatus:
        """How the connector of a type is. Raises Conflict when the type has none."""
        self.catalog.check(type_)
        return ConnectorStatus(type_.key not in self.catalog.unusable, self.problems.of(type_.key))

    async def linked(self, type_: DeviceType) -> int:
        """How many devices of the type are linked."""
        return await self._database.read(lambda tx: tx.connectors.count_links(type_.key))

    async def devices_of(self, problems: Iterable[Problem]) -> dict[DeviceKey, str]:
        """The ids of the devices that are still there."""
        found = {}
        for device in {one.device for one in problems} - {NO_DEVICE}:
            with suppress(DeviceNotFound):
                found[device] = (await self._devices.get(device)).id
        return found

    async def holder(self, device: Device) -> Device:
        """The device whose authorization counts for this one. See `ProviderAuth.holder`."""
        return await self._provider_auth.holder(device)

    async def authorize(self, caller: Caller, device: Device, *, referer: str, mobile: bool) -> str:
        """Begin an authorization. See `ProviderAuth.begin`."""
        return await self._provider_auth.begin(caller, device, referer=referer, mobile=mobile)

    async def authorized(self, device_type: str, parameters: Mapping[str, str]) -> str:
        """Finish an authorization. See `ProviderAuth.finish`."""
        back = await self._provider_auth.finish(device_type, parameters)
        self.fetches.wake()
        return back

    async def revoke(self, device: Device, *, application_id: str | None = None) -> None:
        """See `ProviderAuth.revoke`."""
        await self._provider_auth.revoke(device, application_id=application_id)

    async def notified(self, device_type: str, request: IncomingRequest) -> Heard:
        """See `Notifications.hear`."""
        return await self._notifications.hear(device_type, request)

    def _device_deleted(self, fact: DeviceDeleted) -> None:
        self.problems.forget(fact.device)
        self._orphaned.set()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the workers of the connectors."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._fetch_lanes.run_forever)
            await nursery.start(self._action_lanes.run_forever)
            await nursery.start(self._actions.save_forever)
            await nursery.start(self.fetches.pull_forever)
            await nursery.start(self.fetches.take_jobs_forever)
            nursery.start_soon(
                Loop(
                    self.clean_up,
                    every=_CLEAN_SECONDS,
                    wakeup=self._orphaned,
                    at_once=True,
                    failure="connector_links_not_cleaned",
                ).run
            )
            task_status.started()

    async def run_here_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what is done on each of several nodes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                Loop(self.problems.save, every=_SAVE_SECONDS, failure="connector_problems_not_saved").run
            )
            if self._core.peers is not None:
                nursery.start_soon(self.links.contents.end_again_forever)
                nursery.start_soon(self.links.standings.end_again_forever)
            task_status.started()

    async def clean_up(self) -> None:
        """End the links of deleted devices, and forget old jobs. Raises StoreError."""
        await self._provider_auth.clean_up()
        if self._core.peers is not None:
            before_ms = self._core.clock.now_ms() - _JOB_MS
            await self._database.write(lambda tx: tx.connectors.forget_jobs(before_ms=before_ms))

    async def save(self) -> None:
        """Save the position of the sent Actions, and which pulls are due again. Raises StoreError."""
        await self._actions.save()
        await self.fetches.save()

    def forget(self) -> None:
        """Another node asks third parties from now on."""
        self._actions.forget()
        self.fetches.forget()

    def statistics(self) -> ConnectorStatistics:
        return ConnectorStatistics(
            calls=self._calls.sent,
            failed_calls=self._calls.failed,
            refused_clients=self._calls.operator_faults,
            failed_fetches=self.fetches.failed,
            notifications=self._notifications.heard,
            failed_notifications=self._notifications.failed,
            stored=self._intake.stored,
            refused=self._intake.refused,
            actions_sent=self._actions.sent,
            actions_failed=self._actions.failed,
            waiting=self._fetch_lanes.waiting + self._action_lanes.waiting,
            dropped=self._fetch_lanes.dropped + self._action_lanes.dropped,
        )
