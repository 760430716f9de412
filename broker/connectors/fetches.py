"""Fetches data from third parties: periodically for each linked device, and when a notification asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from broker.clock import Clock
from broker.connectors.calls import CALL_FAILURES, Calls, LinkEndedError
from broker.connectors.catalog import Catalog, Connector
from broker.connectors.hooks import HookOutcome
from broker.connectors.intake import Intake
from broker.connectors.lanes import Lanes
from broker.connectors.links import ConnectorLink, ConnectorLinks
from broker.connectors.plugin import Phase, Request
from broker.connectors.problems import Doing, Problems
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound, StorageUnavailable
from broker.loops import Loop, Wakeup
from storage.database import Database
from storage.keys import DeviceKey
from storage.leases import Holder
from storage.outages import Outage
from storage.sql import StoreError

_LOOK_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Fetches:
    _database: Database
    _lease: Holder
    _clock: Clock
    _devices: Devices
    _catalog: Catalog
    _links: ConnectorLinks
    _calls: Calls
    _intake: Intake
    _lanes: Lanes
    _problems: Problems
    _pull_minutes: int

    def __post_init__(self) -> None:
        self._outage = Outage("connector_fetch_not_stored")
        self._waiting: set[DeviceKey] = set()
        self._wakeup = Wakeup()
        self._has_more = False  # the last look used all the room in the lanes, so more pulls may be due
        self.failed = 0

    def wake(self) -> None:
        """Look for due pulls now: a device that was just linked has one."""
        self._wakeup.set()

    async def pull_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        loop = Loop(self.pull_due, every=_LOOK_SECONDS, wakeup=self._wakeup, failure="connector_pulls_not_read")
        await loop.run(task_status=task_status)

    async def pull_due(self) -> None:
        """Start the pulls that are due, as many as the lanes have room for. Each is due again after its interval.

        The next time is stored before the first request, so that a restart does not repeat the pull. Raises StoreError.
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

    async def _claimed(self, connector: Connector, limit: int) -> list[DeviceKey]:
        type_key, now_ms = connector.type.key, self._clock.now_ms()
        interval_ms = (connector.terms.pull_minutes or self._pull_minutes) * 60_000
        next_ms, latest_ms = now_ms + interval_ms, now_ms + 2 * interval_ms
        if not await self._database.read(
            lambda tx: tx.connectors.is_fetch_due(type_key, now_ms=now_ms, latest_ms=latest_ms)
        ):
            return []
        return await self._database.write_own(
            self._lease,
            lambda tx: tx.connectors.claim_fetches(
                type_key, now_ms=now_ms, latest_ms=latest_ms, next_ms=next_ms, limit=limit
            ),
        )

    def offer(self, connector: Connector, device: DeviceKey, requests: Sequence[Request] | None = None) -> bool:
        """Queue a fetch; False when there is no room for it.

        Without `requests`, the plug-in's fetch hook names the requests; a device has at most one such fetch waiting.
        """
        if requests is None:
            if device in self._waiting:
                return True
            self._waiting.add(device)
        taken = self._lanes.offer(connector.type.key, device, lambda: self._fetch(connector, device, requests))
        if not taken and requests is None:
            self._waiting.discard(device)
        return taken

    async def _fetch(self, connector: Connector, device: DeviceKey, requests: Sequence[Request] | None) -> None:
        if requests is None:
            self._waiting.discard(device)
        try:
            link = await self._usable_link(device)
            if link is None:
                return
            if requests is None:
                since = (await self._intake.progress(link)).since(self._clock.now_ms())
                requests = await connector.hooks.fetch(link.device(since=since))
            for request in requests:
                await self._ask(connector, link, request)
            self._problems.note_success(connector.type.key, device, Doing.FETCH)
            self._outage.succeeded()
        except (StorageUnavailable, StoreError) as error:
            self._note_failure(connector, device, error)
            self._outage.failed(error)
        except CALL_FAILURES as error:
            self._note_failure(connector, device, error)
            _log.warning("connector_fetch_failed", device_type=connector.type.id, device=device, reason=str(error))
        finally:
            if self._has_more:  # this fetch has left room for another one
                self.wake()

    def _note_failure(self, connector: Connector, device: DeviceKey, error: Exception) -> None:
        self.failed += 1
        self._problems.note_error(connector.type.key, device, Doing.FETCH, error)

    async def _usable_link(self, device: DeviceKey) -> ConnectorLink | None:
        try:
            record = (await self._devices.get(device)).record
        except DeviceNotFound:
            return None
        if not record.enabled:
            return None
        return await self._links.of_device(device)

    async def _ask(self, connector: Connector, link: ConnectorLink, request: Request) -> None:
        asked_on = self._clock.now_ms()
        response = await self._calls.send(connector, link, request, Phase.FETCH)
        await self.keep(link, await connector.hooks.fetched(link.device(), request, response), asked_on=asked_on)

    async def keep(self, link: ConnectorLink, outcome: HookOutcome, *, asked_on: int) -> None:
        """Store a hook's records, then the texts to remember. `asked_on`, in ms: the answer has what was there then.

        A crash in between repeats records without a series, and loses none.

        Raises StorageUnavailable, StoreError, LinkEndedError.
        """
        if outcome == HookOutcome():
            return
        async with self._links.standing(link.record.device):
            current = await self._links.current(link)
            if current is None:
                raise LinkEndedError
            await self._intake.store(current, outcome.records, asked_on=asked_on)
        await self._links.note(link, outcome)
