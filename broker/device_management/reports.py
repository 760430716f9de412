"""Reports of devices on their resources become properties, and messages where the Manifest has fields for them.

Device management itself needs properties only. A message for each time gives the values a history (reference 18.3).
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import trio

from broker.device_management.properties import DeviceProperties
from broker.device_management.sessions import Reading, Readings
from broker.devices.registry import Device
from broker.errors import DomainError, StorageUnavailable
from broker.messages.ingest import Ingest
from storage.sql import StoreError

_AT_ONCE: Final = 32  # readings of one device without a turn for other tasks
_NUMBER: Final = re.compile(r"[0-9]+")
_encode: Final = msgspec.json.Encoder().encode


class Reports:
    def __init__(self, properties: DeviceProperties, ingest: Ingest) -> None:
        self._properties = properties
        self._ingest = ingest

    async def take(self, device: Device, readings: Readings) -> None:
        """Store readings of a device; return when they are durable. Raises StoreError."""
        is_any = False
        for number, reading in enumerate(readings, 1):
            if number % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if not self._ingest.has_room:
                await self._ingest.wait_room()
            if (data := self._message(device, reading)) is not None:
                is_any |= self._submit(device, data, reading)
        await self._properties.report(device, readings)
        if is_any:
            try:
                await self._ingest.wait_committed()
            except StorageUnavailable as error:
                raise StoreError(str(error)) from error

    def _message(self, device: Device, reading: Reading) -> bytes | None:
        """The message that the Manifest makes of a reading; None if it is empty or the Manifest has a transform."""
        manifest = device.manifest
        if manifest.takes_any_payload:
            return None
        return manifest.normalize(_encode(message_of(self._properties.named(reading.values))))

    def _submit(self, device: Device, data: bytes, reading: Reading) -> bool:
        try:
            self._ingest.submit(device, data, reading.ts)
        except DomainError:  # a quota, or a device that was disabled: it is among the device's refused messages
            return False
        return True


def message_of(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The data of a message from properties by name.

    The names are those of the properties, but that fields of a Manifest cannot be numbers: instance 0 of an object
    goes without its number, instance 1 is `temperature_1`, and a resource that is known by its number is
    `resource5700`.
    """
    data: dict[str, Any] = {}
    for name, value in named:
        group, *rest = name.split(".")
        if len(rest) > 1 and (instance := rest.pop(0)) != "0":
            group += f"_{instance}"
        leaf = f"resource{rest[0]}" if _NUMBER.fullmatch(rest[0]) else rest[0]
        data.setdefault(group, {})[leaf] = value
    return data
