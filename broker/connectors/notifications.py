"""Notifications of third parties: the plug-in says what they mean and which devices they are about (reference 23)."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker.clock import Clock
from broker.connectors.calls import LinkEndedError
from broker.connectors.catalog import Catalog, Connector, ConnectorUnavailable
from broker.connectors.fetches import Fetches
from broker.connectors.hooks import Heard, NotifiedDevices, PluginFailedError
from broker.connectors.links import ConnectorLink, ConnectorLinks
from broker.connectors.plugin import IncomingRequest
from broker.connectors.problems import NO_DEVICE, Doing, Problems
from broker.device_types.catalog import DeviceTypes
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound
from config.limits import IDS_MAX
from storage.keys import DeviceTypeKey

_AT_ONCE: Final = 16  # of one type
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class Notifications:
    _clock: Clock
    _types: DeviceTypes
    _devices: Devices
    _catalog: Catalog
    _links: ConnectorLinks
    _fetches: Fetches
    _problems: Problems
    _busy: Counter[DeviceTypeKey] = field(default_factory=Counter, init=False)
    heard: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)

    async def hear(self, device_type: str, request: IncomingRequest) -> Heard:
        """Process a notification. Its records are durable on return; the result has the answer to the third party.

        Raises:
            DeviceTypeNotFound, Conflict: there is no such type, or it has no connector.
            ConnectorUnavailable: the plug-in failed, or too many notifications wait. The third party may try again.
            StorageUnavailable.
        """
        connector = self._catalog.by_id(device_type)
        if connector is None:
            connector = self._catalog.of_type(await self._types.find(device_type))
        key = connector.type.key
        if self._busy[key] >= _AT_ONCE:
            raise ConnectorUnavailable
        self._busy[key] += 1
        try:
            return await self._hear(connector, request)
        finally:
            self._busy[key] -= 1

    async def _hear(self, connector: Connector, request: IncomingRequest) -> Heard:
        try:
            heard = await connector.hooks.notification(request)
        except PluginFailedError as error:
            self.failed += 1
            self._problems.note_error(connector.type.key, NO_DEVICE, Doing.NOTIFICATION, error)
            _log.warning("connector_notification_failed", device_type=connector.type.id, reason=str(error))
            raise ConnectorUnavailable from error
        for notified in heard.devices:
            for link in await self._links_of(connector, notified):
                await self._take(connector, link, notified)
        self.heard += 1
        self._problems.note_success(connector.type.key, NO_DEVICE, Doing.NOTIFICATION)
        return heard

    async def _links_of(self, connector: Connector, notified: NotifiedDevices) -> list[ConnectorLink]:
        """The links that the notification names, if their devices are of this connector's type."""
        if notified.account is not None:
            return await self._links.of_account(connector.type.key, notified.account, limit=IDS_MAX)
        try:
            device = await self._devices.find(notified.device or "")
        except DeviceNotFound:
            return []
        link = await self._links.of_device(device.key) if device.type_key == connector.type.key else None
        return [] if link is None else [link]

    async def _take(self, connector: Connector, link: ConnectorLink, notified: NotifiedDevices) -> None:
        try:
            await self._fetches.keep(link, notified.outcome, asked_on=self._clock.now_ms())
        except LinkEndedError as error:  # the third party tries again, and finds the new link or none
            raise ConnectorUnavailable from error
        device = link.record.device
        taken = not notified.requests or await self._fetches.ask(connector, device, notified.requests)
        taken = (not notified.fetch or await self._fetches.ask(connector, device)) and taken
        if not taken:
            raise ConnectorUnavailable
