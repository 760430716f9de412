"""Attempts to act as a device without proof: shown to the device's owner (reference 9.6).

A stranger must not learn whether there is such a device. So nothing is looked up while the stranger waits for an
answer: claims go into a queue, which a worker empties. It is short, and few claims are looked up in a second.
"""

from collections import OrderedDict
from contextlib import suppress
from typing import Final

import msgspec
import trio

from broker.clock import Clock
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound, DomainError, Unauthorized
from broker.ids import is_id
from broker.messages.refused import RefusedMessages
from broker.trace.origin import current_origin
from storage.keys import DeviceKey
from storage.sql import StoreError

WRONG: Final = "wrong credentials for this device"
_WAITING: Final = 100
_PAUSE_SECONDS: Final = 0.1  # between two that are looked up
_EVERY_MS: Final = 60_000  # for one device
_DEVICES: Final = 2_000


class _Claim(msgspec.Struct, frozen=True):
    device_id: str
    text: str
    address: str


class UnprovedClaims:
    def __init__(self, devices: Devices, refused: RefusedMessages, clock: Clock) -> None:
        self._devices = devices
        self._refused = refused
        self._steady_ms = clock.steady_ms
        self._send, self._receive = trio.open_memory_channel[_Claim](_WAITING)
        self._told: OrderedDict[DeviceKey, int] = OrderedDict()

    def note(self, device_id: str, channel: str, error: DomainError | StoreError) -> None:
        """A peer has named this device on a channel (`MQTT`), with credentials that were refused. Does not wait."""
        if isinstance(error, Unauthorized):
            self.note_unproven(device_id, f"{channel}: {WRONG}")

    def note_unproven(self, device_id: str, text: str) -> None:
        """Note a claim with this text; see `note`."""
        if is_id(device_id):
            with suppress(trio.WouldBlock):  # strangers send more of them than anybody reads
                self._send.send_nowait(_Claim(device_id, text, current_origin().address))

    async def look_up_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        async for claim in self._receive:
            await self._look_up(claim)
            await trio.sleep(_PAUSE_SECONDS)

    async def _look_up(self, claim: _Claim) -> None:
        try:
            device = await self._devices.find(claim.device_id)
        except (DeviceNotFound, StoreError):
            return
        now = self._steady_ms()
        if now - self._told.get(device.key, now - _EVERY_MS) < _EVERY_MS:
            return
        self._told[device.key] = now
        self._told.move_to_end(device.key)
        if len(self._told) > _DEVICES:
            self._told.popitem(last=False)
        self._refused.note_claim(device, claim.text, claim.address)
