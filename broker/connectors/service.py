"""The cloud connectors as the rest of the daemon sees them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.connectors.actions import Actions
from broker.connectors.budget import CallBudget
from broker.connectors.calls import Calls
from broker.connectors.catalog import Catalog
from broker.connectors.fetches import Fetches
from broker.connectors.hooks import Heard
from broker.connectors.intake import Intake
from broker.connectors.lanes import Lanes
from broker.connectors.links import ConnectorLinks
from broker.connectors.notifications import Notifications
from broker.connectors.plugin import IncomingRequest
from broker.connectors.port import ThirdParty
from broker.connectors.provider_auth import ProviderAuth
from broker.connectors.sub_devices import SubDevices
from broker.device_types.catalog import DeviceTypes
from broker.devices.inventory import Inventory
from broker.devices.registry import Device, Devices
from broker.facts import DeviceDeleted, FactPhase, Router
from broker.limits.meters import Meters
from broker.limits.quotas import Quotas
from broker.loops import Wakeup, repeat
from broker.messages.ingest import Ingest
from broker.secrets import Vault
from storage.database import Database

_CLEAN_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectorStatistics:
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


class Connectors:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        clock: Clock,
        router: Router,
        device_types: DeviceTypes,
        devices: Devices,
        inventory: Inventory,
        ingest: Ingest,
        meters: Meters,
        quotas: Quotas | None,
        third_party: ThirdParty | None,
        *,
        base_url: Callable[[], str],
        pull_minutes: int,
    ) -> None:
        self.catalog = Catalog(database, vault, device_types, base_url)
        self._fetch_lanes, self._action_lanes = Lanes(), Lanes()
        links = ConnectorLinks(database, vault, clock, router, device_types, devices)
        self._calls = Calls(links, devices, CallBudget(meters), quotas, clock, third_party)
        self._intake = Intake(database, clock, devices, SubDevices(database, devices, inventory), ingest)
        self.fetches = Fetches(
            database,
            clock,
            devices,
            self.catalog,
            links,
            self._calls,
            self._intake,
            self._fetch_lanes,
            pull_minutes=pull_minutes,
        )
        self._notifications = Notifications(clock, device_types, devices, self.catalog, links, self.fetches)
        self._actions = Actions(
            database,
            clock,
            router,
            devices,
            self.catalog,
            links,
            self._calls,
            self._intake,
            self._action_lanes,
            quotas,
            ingest.mid,
        )
        self._provider_auth = ProviderAuth(database, vault, clock, router, devices, self.catalog, links, self._calls)
        self._orphaned = Wakeup()
        router.subscribe(DeviceDeleted, self._device_deleted, FactPhase.EFFECT)

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

    def _device_deleted(self, _fact: DeviceDeleted) -> None:
        self._orphaned.set()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the workers of the connectors."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._fetch_lanes.run_forever)
            await nursery.start(self._action_lanes.run_forever)
            await nursery.start(self._actions.save_forever)
            await nursery.start(self.fetches.pull_forever)
            nursery.start_soon(self._clean_forever)
            task_status.started()

    async def _clean_forever(self) -> None:
        await repeat(
            self.clean_up,
            every=_CLEAN_SECONDS,
            wakeup=self._orphaned,
            at_once=True,
            failure="connector_links_not_cleaned",
        )

    async def clean_up(self) -> None:
        """End the links of deleted devices. Raises StoreError."""
        await self._provider_auth.clean_up()

    async def save(self) -> None:
        """Save how far Actions have been sent. Raises StoreError."""
        await self._actions.save()

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
