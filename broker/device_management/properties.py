"""Server, system and device properties (reference 15.1)."""

import base64
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from broker.clock import Clock
from broker.device_management.objects import ObjectMap, nested, values_by_path
from broker.device_management.registry import unit_of
from broker.device_management.sessions import Readings, ResourceValue, Values
from broker.device_types.catalog import DeviceType
from broker.devices.presence import Presence
from broker.devices.registry import Device, Devices
from broker.errors import Finding, ValidationFailed, invalid, too_long
from broker.trace.audit import AuditEvent, note
from config.limits import (
    DEVICE_PROPERTIES_BYTES,
    FILTER_MAX_CHARACTERS,
    FILTER_PAIRS_MAX,
    SERVER_PROPERTIES_BYTES,
    SERVER_PROPERTIES_LEVELS,
)
from storage.database import Database
from storage.device_management import PropertyMatch, PropertySetRecord
from storage.keys import DeviceKey, Milliseconds
from storage.records import PresenceRecord
from storage.transaction import Transaction

_KINDS: Final = {"systemProperties": "system", "serverProperties": "server", "deviceProperties": "reported"}


def parse_filter(text: str) -> list[PropertyMatch]:
    """The conditions of a filter: `key=value` pairs, separated by commas. Values are taken literally.

    Raises ValidationFailed for a key without a prefix.
    """
    if len(text) > FILTER_MAX_CHARACTERS:
        raise ValidationFailed.of("filter", too_long(FILTER_MAX_CHARACTERS))
    matches = []
    for pair in filter(None, map(str.strip, text.split(","))):
        key, equals, value = pair.partition("=")
        prefix, dot, path = key.strip().partition(".")
        kind = _KINDS.get(prefix)
        if kind is None or not equals or not dot or not path:
            raise ValidationFailed.of("filter", invalid("must be pairs such as serverProperties.site=north"))
        matches.append(PropertyMatch(kind, path, value.strip()))
    if len(matches) > FILTER_PAIRS_MAX:
        raise ValidationFailed.of("filter", too_long(FILTER_PAIRS_MAX))
    return matches


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_INTEGERS: Final = range(-(2**63), 2**64)  # LWM2M has signed and unsigned ones
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_log = structlog.get_logger(__name__)


class ConnectionStatus(msgspec.Struct, frozen=True):
    """The persistent connection of a device, or its last one."""

    connected: bool
    protocol: str | None
    last_seen_on: int | None


class PropertySets(msgspec.Struct, frozen=True):
    """All properties of a device. With times, each leaf is `{"value":…,"ts":…}`."""

    device: Device
    server: Mapping[str, Any]
    connection: ConnectionStatus | None
    reported: Mapping[str, Any]


@dataclass(eq=False)
class DeviceProperties:
    _database: Database
    _clock: Clock
    _devices: Devices
    _presence: Presence
    _objects: ObjectMap

    async def of(self, device: Device, *, with_times: bool) -> PropertySets:
        stored = await self._database.read(lambda tx: tx.device_management.properties(device.key))
        presence = await self._presence.of(device.key)
        return _shown(device, stored or PropertySetRecord(device.key), presence, with_times=with_times)

    async def matching(
        self, type_: DeviceType, filter_: str, *, offset: int, count: int, with_times: bool
    ) -> tuple[list[PropertySets], int]:
        """A page of the type's devices that fit the filter, and the number of all. Raises ValidationFailed."""
        matches = parse_filter(filter_)
        if any(match.kind == "system" for match in matches):
            await self._presence.flush()  # the store compares
        stored, total = await self._database.read(
            lambda tx: tx.device_management.matching(type_.record.key, matches, offset=offset, limit=count)
        )
        presences = await self._presence.of_all([key for key, _ in stored])
        devices = {device.key: device for device in await self._devices.get_all(key for key, _ in stored)}
        return [
            _shown(devices[key], record, presences[key], with_times=with_times)
            for key, record in stored
            if key in devices
        ], total

    async def merge(self, device: Device, change: Mapping[str, Any]) -> None:
        """Merge server properties leaf by leaf; None removes a leaf or a group. Raises ValidationFailed."""
        check_server_properties(change)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            merge_server_properties(tx, device.key, change, now_ms)
            # Their names and values may be secrets.
            note(tx, AuditEvent.PROPERTIES_CHANGED, f"device {device.id}", now_ms=now_ms)

        await self._database.write(work)

    async def clear(self, device: Device) -> None:
        """Remove all server properties."""

        def work(tx: Transaction) -> None:
            if (stored := tx.device_management.properties(device.key)) is not None:
                tx.device_management.put_properties(replace(stored, server="{}", server_times="{}"))
            note(tx, AuditEvent.PROPERTIES_REMOVED, f"device {device.id}", now_ms=self._clock.now_ms())

        await self._database.write(work)

    async def report(self, device: Device, readings: Readings) -> None:
        """Store what the device said of its resources, the newest value of each with its time.

        Values without a property are dropped, and values that are older than the stored ones.
        """
        now_ms = self._clock.now_ms()
        leaves: dict[str, tuple[Any, Milliseconds]] = {}
        times = [(now_ms if reading.ts is None else reading.ts, reading) for reading in readings]
        for ts_ms, reading in sorted(times, key=lambda one: one[0]):
            leaves |= {name: (value, ts_ms) for name, value in self.named(reading.values)}
        if leaves:
            stored = await self._database.write(
                lambda tx: _report(tx, device.key, leaves, now_ms, self._objects.present_name)
            )
            if not stored:
                _log.warning("device_properties_dropped", device=device.id, reason="too many bytes")

    def named(self, values: Values) -> Iterator[tuple[str, Any]]:
        """The values that have a property, by its name and as JSON has them."""
        for path, value in values.items():
            found = self._objects.property_at(path)
            shown = jsonable(value)
            if found is not None and shown is not None:
                yield found.name, shown

    async def note_registration(self, device: DeviceKey) -> None:
        """Remember that the device has registered for device management; return when it is durable."""
        if await self._database.read(lambda tx: tx.device_management.registered_on([device])):
            return
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            stored = tx.device_management.properties(device) or PropertySetRecord(device)
            if stored.registered_on is None:
                tx.device_management.put_properties(replace(stored, registered_on=now_ms))

        await self._database.write(work)


# Server properties


def check_server_properties(change: Mapping[str, Any], prefix: str = "", level: int = 1) -> None:
    """Check names and depth. Raises ValidationFailed."""
    for name, value in change.items():
        if _NAME.fullmatch(name) is None or level > SERVER_PROPERTIES_LEVELS:
            raise ValidationFailed.of(
                f"{prefix}{name}",
                invalid(f"must have the form {_NAME.pattern}, and at most {SERVER_PROPERTIES_LEVELS} levels"),
            )
        if isinstance(value, dict):
            check_server_properties(value, f"{prefix}{name}.", level + 1)


def merge_server_properties(
    tx: Transaction, device: DeviceKey, change: Mapping[str, Any], now_ms: Milliseconds
) -> None:
    """Raises ValidationFailed when the properties become too many."""
    stored = tx.device_management.properties(device) or PropertySetRecord(device)
    tree, times = _decode(stored.server), _decode(stored.server_times)
    _merge(tree, change)
    text = _encode(tree)
    if len(text) > SERVER_PROPERTIES_BYTES:
        raise ValidationFailed((Finding("serverProperties", (too_long(SERVER_PROPERTIES_BYTES),)),))
    changed = values_by_path(change)
    times = {path: now_ms if path in changed else times.get(path, now_ms) for path in values_by_path(tree)}
    tx.device_management.put_properties(replace(stored, server=text.decode(), server_times=_encode(times).decode()))


def has_server_property(tx: Transaction, device: DeviceKey, path: str) -> bool:
    stored = tx.device_management.properties(device)
    node: Any = {} if stored is None else _decode(stored.server)
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


def _merge(tree: dict[str, Any], change: Mapping[str, Any]) -> None:
    for name, value in change.items():
        if isinstance(value, dict):
            node = tree.get(name)
            node = node if isinstance(node, dict) else {}
            _merge(node, value)
            value = node or None  # noqa: PLW2901 - a group without a leaf is no group
        if value is None:
            tree.pop(name, None)
        else:
            tree[name] = value


# Device properties


def _report(
    tx: Transaction,
    device: DeviceKey,
    leaves: Mapping[str, tuple[Any, Milliseconds]],
    now_ms: Milliseconds,
    name_of: Callable[[str], str],
) -> bool:
    stored = tx.device_management.properties(device) or PropertySetRecord(device)
    known = {name_of(name): value for name, value in values_by_path(_decode(stored.reported)).items()}
    times = {name_of(name): ts_ms for name, ts_ms in _decode(stored.reported_times).items()}
    # A time in the future is of a clock that was set back since: it does not keep anything out.
    newer = {name: leaf for name, leaf in leaves.items() if leaf[1] >= min(times.get(name, 0), now_ms)}
    if not newer:
        return True
    text = _encode(nested(known | {name: value for name, (value, _) in newer.items()}))
    if len(text) > DEVICE_PROPERTIES_BYTES:
        return False
    times |= {name: ts_ms for name, (_, ts_ms) in newer.items()}
    tx.device_management.put_properties(replace(stored, reported=text.decode(), reported_times=_encode(times).decode()))
    return True


def jsonable(value: ResourceValue) -> Any:
    """The value as the store has it; None for one that it cannot have. Bytes are shown in base64."""
    if isinstance(value, list):
        items = [jsonable(item) for item in value]
        return None if None in items else items
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and value not in _INTEGERS:
        return None
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="replace").decode()  # JSON of a device may hold half a character
    return value


# Showing


def _shown(device: Device, record: PropertySetRecord, presence: PresenceRecord, *, with_times: bool) -> PropertySets:
    server, reported = _decode(record.server), _decode(record.reported)
    if with_times:
        server = _with_times(server, _decode(record.server_times))
        reported = _with_times(reported, _decode(record.reported_times))
    connection = None
    if presence.protocol is not None:
        connection = ConnectionStatus(presence.is_connected, presence.protocol, presence.last_seen_on)
    return PropertySets(device, server, connection, reported)


def _with_times(tree: Mapping[str, Any], times: Mapping[str, int]) -> dict[str, Any]:
    return nested({path: {"value": value, "ts": times[path]} for path, value in values_by_path(tree).items()})


def manifest(objects: ObjectMap, groups: Collection[str] = ()) -> dict[str, Any]:
    """The fields of the management manifest: type, operations, unit and description of properties.

    Of the objects of the registry only those of `groups`, which are names or numbers; they are hundreds.
    """
    system = {
        "did": _field("String", "R"),
        "createdOn": _field("Time", "R"),
        "connection": {
            "connected": _field("Boolean", "R"),
            "protocol": _field("String", "R"),
            "lastSeenOn": _field("Time", "R"),
        },
    }
    reported: dict[str, Any] = {}
    for number, group, resources in objects.groups():
        if objects.is_shipped(number) and not {group, str(number), f"object{number}", "*"} & set(groups):
            continue
        reported[group] = {
            one.name: _field(
                one.type.value,
                one.operations,
                one.description,
                one.unit or unit_of(number, key),
                is_collection=one.is_multiple,
            )
            for key, one in resources.items()
        }
    return {"systemProperties": system, "deviceProperties": reported}


def _field(
    type_: str, operations: str, description: str = "", unit: str = "", *, is_collection: bool = False
) -> dict[str, Any]:
    return {
        "type": type_,
        "isCollection": is_collection,
        "description": description,
        "metadata": {"operations": operations} | ({"unit": unit} if unit else {}),
    }
