"""Forwards to one upstream: sends what the log has behind its own position, and tries again after failures."""

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog
import trio

from broker.clock import Clock
from broker.devices.registry import Devices
from broker.forwarding.broker_upstream import BrokerUpstream
from broker.forwarding.lag import lag_of
from broker.forwarding.log_reader import Block, LoadedMessage, LogReader
from broker.forwarding.port import UpstreamError, Upstreams
from broker.forwarding.position import LogPosition
from broker.forwarding.progress import passed
from broker.forwarding.report import ForwardReport
from broker.forwarding.sent_manifests import SentManifests
from broker.forwarding.status import ForwardStatus
from broker.forwarding.trunkline import TrunklineUpstream
from broker.forwarding.upstream_actions import UpstreamActions, command_filter
from broker.loops import Wakeup
from broker.messages.ingest import Ingest
from config.forward_target import ForwardTarget
from config.limits import FORWARD_BATCH_MESSAGES, MAX_DATA_BYTES
from config.settings import Forward
from storage.database import Database
from storage.leases import Holder
from storage.sql import StoreError

_SAVE_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 60.0
_BACKOFF: Final = (1.0, 60.0)
_LONGEST_WAIT: Final = 3_600.0  # that an upstream may ask for
_ROW_BYTES: Final = 400  # of a message in a request, beside its data
_log = structlog.get_logger(__name__)

_Send = Callable[[Block, Sequence[LoadedMessage]], Awaitable[None]]


class Forwarder:
    """Of one entry of the settings."""

    def __init__(
        self,
        entry: Forward,
        database: Database,
        lease: Holder,
        clock: Clock,
        devices: Devices,
        ingest: Ingest,
        upstreams: Upstreams | None,
        store: str,
        retention_days: int,
    ) -> None:
        self.entry = entry
        self._database, self._clock, self._ingest = database, clock, ingest
        self._upstreams, self._retention_days = upstreams, retention_days
        self.wakeup = Wakeup()
        self._report = ForwardReport(entry, clock)
        self._position = LogPosition(entry, database, lease, clock)
        self._reader = LogReader(entry, database, devices, self._report, _most_of(entry), store)
        self._actions = UpstreamActions(entry, database, lease, clock, devices, ingest, self._reader, self._report)
        self._manifests = SentManifests(entry.name, database, self._report, store)
        self._free_at = float("-inf")

    def status(self) -> ForwardStatus:
        return self._report.status()

    async def run(self) -> None:
        """Forward until cancelled."""
        delay = _BACKOFF[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_forever)
            while True:
                sent, seconds = self._report.sent, 0.0
                try:
                    await self._position.begin()
                    await self._reader.begin()
                    await self._look()  # its status is true from the beginning
                    await self._converse()
                except* UpstreamError as errors:
                    error = _first(errors)
                    seconds = min(error.seconds, _LONGEST_WAIT) if isinstance(error, UpstreamError) else 0.0
                    self._report.failed(str(error), seconds)
                except* StoreError as errors:
                    self._report.failed(f"The store cannot be read or written: {_first(errors)}.")
                except* Exception as errors:  # noqa: BLE001 - a bug that one upstream meets must not end the others
                    seconds = _BACKOFF[1]
                    _log.exception("forward_broken", forward=self.entry.name, exc_info=_first(errors))
                    self._report.failed(f"{type(_first(errors)).__name__}: the log has the details.")
                delay = _BACKOFF[0] if self._report.sent != sent else min(delay * 2, _BACKOFF[1])
                await trio.sleep(max(seconds, delay * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads load

    async def _converse(self) -> None:
        """Raises UpstreamError, StoreError, also in groups."""
        if self._upstreams is None:
            raise UpstreamError("Nothing leaves this machine.")
        if ForwardTarget.parse(self.entry.to).is_broker:
            await self._converse_with_broker(self._upstreams)
        else:
            await self._converse_with_trunkline(self._upstreams)

    async def _converse_with_broker(self, upstreams: Upstreams) -> None:
        filter_ = command_filter(self.entry.commands) if self.entry.actions else ""
        client_id = f"trunkline-{self._reader.store[:12]}-{self.entry.name}"
        async with upstreams.broker(self.entry, client_id, filter_, self._actions.command) as broker:
            self._report.works()
            upstream = BrokerUpstream(self.entry, broker, self._ingest, self._position, self._report)
            await self._send_forever(upstream.send)

    async def _converse_with_trunkline(self, upstreams: Upstreams) -> None:
        upstream = TrunklineUpstream(
            self.entry,
            upstreams,
            self._clock,
            self._ingest,
            self._position,
            self._reader,
            self._manifests,
            self._report,
        )
        await upstream.greet()
        self._report.works()
        async with trio.open_nursery() as nursery:
            if self.entry.actions:
                nursery.start_soon(self._actions.take_forever, upstream)
            await self._send_forever(upstream.send)

    async def _send_forever(self, send: _Send) -> None:
        saved_at = trio.current_time()
        while True:
            block = await self._reader.next_block(self._position.record)
            if block is None:
                if trio.current_time() - saved_at >= _SAVE_SECONDS:
                    await self.save()
                    saved_at = trio.current_time()
                await self.wakeup.wait(_IDLE_SECONDS if self._position.is_saved else _SAVE_SECONDS)
                continue
            loaded = await self._reader.loaded(block)
            if not loaded and block.record.pending is None:  # nobody wants these rows
                self._position.record = passed(block.record, block.after, block.upto, block.upto, of_gap=block.of_gap)
                await trio.lowlevel.checkpoint()
                continue
            await self._wait_for_line(sum(_ROW_BYTES + len(one.message.data) for one in loaded))
            await send(block, loaded)

    async def _wait_for_line(self, size: int) -> None:
        """Keep to `max_kbit`."""
        if not self.entry.max_kbit:
            return
        now = trio.current_time()
        if self._free_at > now:
            await trio.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + size * 8 / (self.entry.max_kbit * 1000)

    def forget(self) -> None:
        """Another node forwards, or the position was changed: read it again."""
        self._position.forget()
        self._report.waits()

    async def save(self) -> None:
        await self._position.save()

    async def _look_forever(self) -> None:
        while True:
            with suppress(StoreError):  # the worker says so
                await self._look()
            await trio.sleep(_SAVE_SECONDS)

    async def _look(self) -> None:
        if not self._position.is_known:
            return
        record, days, now_ms = self._position.record, self._retention_days, self._clock.now_ms()
        self._report.set_lag(
            await self._database.read(lambda tx: lag_of(tx, record, retention_days=days, now_ms=now_ms))
        )


def _most_of(entry: Forward) -> int:
    """How many messages a request has at most: with `max_kbit` it takes some seconds."""
    if not entry.max_kbit:
        return FORWARD_BATCH_MESSAGES
    return min(max(entry.max_kbit * 1000 // 8 * 5 // (_ROW_BYTES + MAX_DATA_BYTES), 1), FORWARD_BATCH_MESSAGES)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
