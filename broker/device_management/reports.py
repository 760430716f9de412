"""Reports of devices on their resources become properties, and messages where the Manifest has fields for them.

Device management itself needs properties only. A message for each time gives the values a history (reference 18.3,
18.6).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import trio

from broker.device_management.properties import DeviceProperties, jsonable
from broker.device_management.sessions import Reading, Readings, ResourcePath
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

    async def take(self, device: Device, readings: Readings, *, is_kept: bool = True, is_read: bool = False) -> None:
        """Store readings of a device; return when they are durable. Raises StoreError.

        Without `is_kept` they become no properties, and messages only of the fields with `lwm2m`; with `is_read` these
        fields are left out.
        """
        is_any = False
        for number, reading in enumerate(readings, 1):
            if number % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if not self._ingest.has_room:
                await self._ingest.wait_room()
            # A device may have got another Manifest while this waited.
            resources = device.manifest.manifest.resources
            wanted = {} if is_read or not resources else self._wanted(resources, reading)
            if (data := self._message(device, reading, wanted, is_kept=is_kept)) is not None:
                is_any |= self._submit(device, data, reading)
        if is_kept:
            await self._properties.report(device, readings)
        if is_any:
            try:
                await self._ingest.wait_committed()
            except StorageUnavailable as error:
                raise StoreError(str(error)) from error

    def keep_unreadable(self, device: Device, payload: bytes, reason: str) -> None:
        self._ingest.keep_failed(device, payload, reason)

    def _wanted(self, resources: Mapping[str, ResourcePath], reading: Reading) -> dict[str, Any]:
        """The values of the fields with `lwm2m`, by the dotted paths of the fields."""
        found = ((field, reading.values[path]) for field, path in resources.items() if path in reading.values)
        return {field: shown for field, value in found if (shown := jsonable(value)) is not None}

    def _message(self, device: Device, reading: Reading, wanted: Mapping[str, Any], *, is_kept: bool) -> bytes | None:
        """The message that the Manifest makes of a reading; None if it is empty or the Manifest has a transform.

        A property that the Manifest does not have is no lost field of it, so what goes by names is normalised here.
        """
        manifest = device.manifest
        if manifest.takes_any_payload:
            return None
        named = None
        if is_kept:
            named = manifest.normalize(_encode(message_data(self._properties.named(reading.values))))
        if not (resources := manifest.manifest.resources):
            return named
        data: dict[str, Any] = {} if named is None else msgspec.json.decode(named)
        for field in resources:  # a name that a path stands beside means nothing
            _remove(data, field)
        for field, value in wanted.items():
            _put(data, field, value)
        return _encode(data) if data else None

    def _submit(self, device: Device, data: bytes, reading: Reading) -> bool:
        try:
            self._ingest.submit(device, data, reading.ts)
        except DomainError:  # a quota, or a device that was disabled: it is among the device's refused messages
            return False
        return True


def _put(data: dict[str, Any], field: str, value: object) -> None:
    *groups, name = field.split(".")
    for group in groups:
        data = data.setdefault(group, {})
    data[name] = value


def _remove(data: dict[str, Any], field: str) -> None:
    """Remove a value and the groups that are empty without it."""
    group, _, rest = field.partition(".")
    if rest and isinstance(below := data.get(group), dict):
        _remove(below, rest)
        if not below:
            del data[group]
    elif not rest:
        data.pop(group, None)


def message_data(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
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
