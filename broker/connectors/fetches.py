"""Fetches data from third parties: periodically for each linked device, and when a notification asks for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
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
from broker.secrets import Vault
from config.limits import CONNECTOR_WAITING
from storage.connectors import ConnectorJobRecord
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey
from storage.leases import Holder
from storage.outages import Outage
from storage.sql import StoreError
from storage.transaction import Transaction

_LOOK_SECONDS: Final = 5.0
_KEEP_SECONDS: Final = 10.0
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
    _vault: Vault
    _wakeup: Wakeup
    _jobs: Wakeup
    _is_shared: bool  # several nodes hear notifications, and one asks third parties

    def __post_init__(self) -> None:
        self._outage = Outage("connector_fetch_not_stored")
        self._waiting: set[DeviceKey] = set()
        self._pulling: set[DeviceKey] = set()  # their pulls were claimed, and have not ended
        self._taken: set[int] = set()  # jobs that are in the lanes
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
        # The next time is stored even if the lease goes: `save` must know whose pulls are due again.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _KEEP_SECONDS):
            claimed = await self._database.write_own(
                self._lease,
                lambda tx: tx.connectors.claim_fetches(
                    type_key, now_ms=now_ms, latest_ms=latest_ms, next_ms=next_ms, limit=limit
                ),
            )
            self._pulling.update(claimed)
            return claimed
        return []

    async def ask(self, connector: Connector, device: DeviceKey, requests: Sequence[Request] | None = None) -> bool:
        """As `offer`, for whichever node does it: the fetch is stored on return. Raises StoreError."""
        if not self._is_shared:
            return self.offer(connector, device, requests)
        sealed = None if requests is None else self._vault.seal(_encode(requests).decode())
        job = ConnectorJobRecord(0, connector.type.key, device, sealed, self._clock.now_ms())
        taken = await self._database.write(lambda tx: tx.connectors.add_job(job, at_most=CONNECTOR_WAITING))
        self._jobs.set()
        return taken

    async def take_jobs_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        loop = Loop(
            self.take_jobs, every=_LOOK_SECONDS, at_once=True, wakeup=self._jobs, failure="connector_jobs_not_read"
        )
        await loop.run(task_status=task_status)

    async def take_jobs(self) -> None:
        """Put the jobs into the lanes, as many as there is room for. Raises StoreError."""
        for connector in self._catalog.all():
            type_key = connector.type.key
            for job in await self._database.read(partial(_jobs_of, type_key)):
                if job.key not in self._taken:
                    self._taken.add(job.key)
                    if not self._lanes.offer(type_key, job.device, partial(self._do, connector, job)):
                        self._taken.discard(job.key)
                        break

    async def _do(self, connector: Connector, job: ConnectorJobRecord) -> None:
        requests = None if job.requests is None else _decode(self._vault.open(job.requests))
        await self._fetch(connector, job.device, requests, job.key)
        await self._database.write_own(self._lease, lambda tx: tx.connectors.end_job(job.key))
        self._taken.discard(job.key)
        self._jobs.set()  # there is room for another one

    def forget(self) -> None:
        """Another node asks from now on."""
        self._waiting.clear()
        self._pulling.clear()
        self._taken.clear()

    async def save(self) -> None:
        """Pulls that have not ended are due again: another node begins. Raises StoreError."""
        if pulling := tuple(self._pulling):
            now_ms = self._clock.now_ms()
            await self._database.write_own(self._lease, lambda tx: tx.connectors.fetch_at(pulling, now_ms))

    def offer(self, connector: Connector, device: DeviceKey, requests: Sequence[Request] | None = None) -> bool:
        """Queue a fetch; False when there is no room for it.

        Without `requests`, the plug-in's fetch hook names the requests; a device has at most one such fetch waiting.
        """
        if requests is None:
            if device in self._waiting:
                return True
            self._waiting.add(device)
        taken = self._lanes.offer(connector.type.key, device, partial(self._begin, connector, device, requests))
        if not taken and requests is None:
            self._waiting.discard(device)
        return taken

    async def _begin(self, connector: Connector, device: DeviceKey, requests: Sequence[Request] | None) -> None:
        await self._fetch(connector, device, requests)
        if requests is None:
            self._pulling.discard(device)

    async def _fetch(
        self, connector: Connector, device: DeviceKey, requests: Sequence[Request] | None, job: int | None = None
    ) -> None:
        if requests is None:
            self._waiting.discard(device)
        try:
            link = await self._usable_link(device)
            if link is None:
                return
            if requests is None:
                since = (await self._intake.progress(link)).since(self._clock.now_ms())
                requests = await connector.hooks.fetch(link.device(since=since))
            for number, request in enumerate(requests, start=1):
                then = (
                    None if job is None else partial(_leave, job, self._vault.seal(_encode(requests[number:]).decode()))
                )
                await self._ask(connector, link, request, then)
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

    async def _ask(
        self, connector: Connector, link: ConnectorLink, request: Request, then: Callable[[Transaction], None] | None
    ) -> None:
        asked_on = self._clock.now_ms()
        response = await self._calls.send(connector, link, request, Phase.FETCH)
        outcome = await connector.hooks.fetched(link.device(), request, response)
        # The lease goes to another node behind this, so that this one does not store what that one stores, too.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _KEEP_SECONDS):
            await self.keep(link, outcome, asked_on=asked_on)
            if then is not None:
                await self._database.write_own(self._lease, then)
        await trio.lowlevel.checkpoint_if_cancelled()

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


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[Request, ...]).decode


def _jobs_of(device_type: DeviceTypeKey, tx: Transaction) -> list[ConnectorJobRecord]:
    return tx.connectors.jobs(device_type, limit=CONNECTOR_WAITING)


def _leave(job: int, requests: bytes, tx: Transaction) -> None:
    """These requests of a job are left."""
    tx.connectors.set_job(job, requests)
