"""Queues of jobs that wait for third parties: one job at a time for each device, a few at once for each device type.

The jobs of a device run in order. Fetches and Actions have separate lanes, so that a slow fetch does not delay Actions.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from config.limits import CONNECTOR_WAITING
from storage.keys import DeviceKey, DeviceTypeKey
from storage.outages import Outage
from storage.sql import StoreError

#: Answers the seconds after which the job is to be called again; None: it is done.
Job = Callable[[], Awaitable[float | None]]
_AT_ONCE: Final = 8  # jobs of one device type: a slow third party delays only its own type
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Type:
    """`devices` has a queue for each device that has a task."""

    limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_AT_ONCE))
    devices: dict[DeviceKey, deque[Job]] = field(default_factory=dict)
    waiting: int = 0


class Lanes:
    def __init__(self) -> None:
        self._types: dict[DeviceTypeKey, _Type] = {}
        self._nursery: trio.Nursery | None = None
        self._outage = Outage("connector_job_not_saved")
        self.dropped = 0

    def room(self, device_type: DeviceTypeKey) -> int:
        """How many more jobs of the type could start now."""
        known = self._types.get(device_type)
        return _AT_ONCE if known is None else max(0, _AT_ONCE - len(known.devices))

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._types.values())

    def offer(self, device_type: DeviceTypeKey, device: DeviceKey, job: Job) -> bool:
        """Queue the job; False when there is no room for it."""
        lane = self._types.setdefault(device_type, _Type())
        if self._nursery is None or lane.waiting >= CONNECTOR_WAITING:
            self.dropped += 1
            return False
        lane.waiting += 1
        if (queue := lane.devices.get(device)) is not None:
            queue.append(job)
        else:
            lane.devices[device] = deque([job])
            self._nursery.start_soon(self._work_off, lane, device)
        return True

    async def _work_off(self, lane: _Type, device: DeviceKey) -> None:
        queue = lane.devices[device]
        try:
            while queue:
                async with lane.limiter:
                    wait = await self._isolated(queue[0])
                if wait is not None:  # the next jobs of this device wait for this one; other devices do not
                    await trio.sleep(wait)
                    continue
                queue.popleft()
                lane.waiting -= 1
        finally:
            del lane.devices[device]  # of a lane that may have ended

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._types.clear()

    async def _isolated(self, job: Job) -> float | None:
        try:
            seconds = await job()
        except StoreError as error:
            self._outage.failed(error)
        except Exception:  # noqa: BLE001 - an unexpected error in one job must not end the others
            _log.exception("connector_job_failed")
        else:
            self._outage.succeeded()
            return seconds
        return None
