"""Asking third parties for data: once in a while for every linked device, and when a notification says so."""

from collections.abc import Sequence
from typing import Final

import structlog
import trio

from broker.clock import Clock
from broker.connectors.calls import CALL_FAILURES, Calls
from broker.connectors.catalog import Catalog, Connector
from broker.connectors.hooks import Outcome
from broker.connectors.intake import Intake
from broker.connectors.lanes import Lanes
from broker.connectors.links import Link, Links
from broker.connectors.plugin import Phase, Request
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound, StorageUnavailable
from storage.database import Database
from storage.sql import StoreError

_LOOK_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)


class Fetches:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        devices: Devices,
        catalog: Catalog,
        links: Links,
        calls: Calls,
        intake: Intake,
        lanes: Lanes,
        *,
        pull_minutes: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._devices = devices
        self._catalog = catalog
        self._links = links
        self._calls = calls
        self._intake = intake
        self._lanes = lanes
        self._pull_minutes = pull_minutes
        self._waiting: set[int] = set()
        self._woken = trio.Event()
        self._has_more = False  # at the last look there was room for no more pulls than it began
        self.failed = 0

    def wake(self) -> None:
        """Look now: a pull may be due, as that of a device that was linked."""
        self._woken.set()

    async def pull_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            with trio.move_on_after(_LOOK_SECONDS):
                await self._woken.wait()
            self._woken = trio.Event()
            try:
                await self.pull_due()
            except StoreError as error:
                _log.warning("connector_pulls_not_read", reason=str(error))

    async def pull_due(self) -> None:
        """Begin the pulls that are due, as many as third parties have room for. Each is due again in its interval.

        That is written before anything is asked, so that a restart does not ask again.
        """
        self._has_more = False
        for connector in self._catalog.all():
            room = self._lanes.room(connector.type.key)
            if not connector.hooks.pulls:
                continue
            claimed = await self._claimed(connector, room) if room else []
            self._has_more = self._has_more or len(claimed) == room
            for device in claimed:
                self.offer(connector, device)

    async def _claimed(self, connector: Connector, limit: int) -> list[int]:
        type_key, now_ms = connector.type.key, self._clock.now_ms()
        if not await self._database.read(lambda tx: tx.connectors.is_fetch_due(type_key, now_ms=now_ms)):
            return []
        next_ms = now_ms + (connector.terms.pull_minutes or self._pull_minutes) * 60_000
        return await self._database.write(
            lambda tx: tx.connectors.claim_fetches(type_key, now_ms=now_ms, next_ms=next_ms, limit=limit)
        )

    def offer(self, connector: Connector, device: int, requests: Sequence[Request] | None = None) -> bool:
        """Take up a fetch. Without `requests` it asks what the plug-in wants to ask; a second one of those is one."""
        if requests is None:
            if device in self._waiting:
                return True
            self._waiting.add(device)
        taken = self._lanes.offer(connector.type.key, device, lambda: self._fetch(connector, device, requests))
        if not taken and requests is None:
            self._waiting.discard(device)
        return taken

    async def _fetch(self, connector: Connector, device: int, requests: Sequence[Request] | None) -> None:
        if requests is None:
            self._waiting.discard(device)
        try:
            link = await self._usable_link(device)
            if link is None:
                return
            if requests is None:
                requests = await connector.hooks.fetch(link.device())
            for request in requests:
                await self._ask(connector, link, request)
        except (*CALL_FAILURES, StorageUnavailable, StoreError) as error:
            self.failed += 1
            _log.warning("connector_fetch_failed", device_type=connector.type.id, device=device, reason=str(error))
        finally:
            if self._has_more:  # there is room for the next one now
                self.wake()

    async def _usable_link(self, device: int) -> Link | None:
        try:
            record = (await self._devices.get(device)).record
        except DeviceNotFound:
            return None
        if not record.enabled or record.cloud_authorization != "AUTHORIZED":
            return None
        return await self._links.of_device(device)

    async def _ask(self, connector: Connector, link: Link, request: Request) -> None:
        response = await self._calls.send(connector, link, request, Phase.FETCH)
        await self.keep(link, await connector.hooks.fetched(link.device(), request, response))

    async def keep(self, link: Link, outcome: Outcome) -> None:
        """Store what a hook found, then what it wants to remember: what is repeated is at least not lost.

        Raises StorageUnavailable, StoreError.
        """
        await self._intake.store(link, outcome.records)
        await self._links.note(link, outcome)
