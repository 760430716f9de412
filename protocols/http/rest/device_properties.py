"""/devicemgmt: properties of devices, and how the devices of a type are managed (reference 2.10 and 15.1)."""

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.permissions import ADMINISTRATORS, Permission
from broker.accounts.tokens import Caller, TokenKind
from broker.device_management.configuration import ConfigurationChange
from broker.device_management.properties import PropertySets, manifest
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from config.limits import (
    PMAX_SECONDS,
    PMIN_SECONDS,
    SERVER_PROPERTIES_BYTES,
    SERVER_PROPERTIES_LEVELS,
    TASK_EXPIRES_SECONDS,
)
from protocols.http.calls import ANY_TOKEN, USER_OR_APPLICATION, Accepts, InQuery, RestCall
from protocols.http.openapi import samples
from protocols.http.rest.managed import CONFIGURED_TYPE, MANAGED_DEVICE, ManagementCalls
from protocols.http.schema import Amount, Count, Data, Id, Offset, Shape, Timestamp, TypeId, about, one_of, time_ms
from storage.device_management import ManagementRecord

_SYSTEM: Final = {
    "did": samples.DID,
    "createdOn": samples.TS,
    "connection": {"connected": True, "protocol": "LWM2M", "lastSeenOn": samples.TS},
}
_SETS: Final = {
    "serverProperties": {"site": {"floor": "3"}},
    "systemProperties": _SYSTEM,
    "deviceProperties": {"device": {"manufacturer": "Example"}},
}

_Tree = Annotated[dict[str, Any], about("Groups nested. With `includeTimestamp` each leaf is `{value, ts}`")]


class _Connection(Shape):
    connected: Annotated[bool, about("Whether the device has a persistent connection")]
    protocol: Annotated[str, one_of(("WEBSOCKET", "MQTT", "COAP", "LWM2M"), "Of this or the last connection")]
    last_seen_on: Annotated[int, time_ms("Its last message, connection or ping")] | UnsetType = UNSET


class _System(Shape):
    did: Id
    created_on: Timestamp
    connection: Annotated[_Connection | None, about("null: the device never connected")]


class PropertiesObject(Shape):
    shape = "PropertySets"
    example = _SETS

    server_properties: _Tree
    system_properties: _System
    device_properties: _Tree


class _Page(Shape):
    properties: list[PropertiesObject]
    total: Amount
    offset: Amount
    count: Amount


class _PropertyPage(Shape):
    example = {
        "data": {"properties": [_SETS], "total": 1, "offset": 0, "count": 1},
        "total": 1,
        "offset": 0,
        "count": 1,
    }

    data: _Page
    total: Annotated[Amount, about("All matches")]
    offset: Annotated[Amount, about("As asked for")]
    count: Annotated[Amount, about("Items in this answer")]


class _Shown(Shape):
    include_timestamp: Annotated[bool, about("Whether leaves come with their times")] = False


class _Described(Shape):
    objects: (
        Annotated[
            str,
            about(
                "Objects of the LwM2M registry, by name or number, separated by commas; `*` is all",
                example="temperature,3304",
            ),
        ]
        | None
    ) = None


class _Listed(Shape):
    dtid: Annotated[TypeId, about("The device type", example=samples.TYPE_NAME)]
    filter: (
        Annotated[str, about("Pairs `key=value`, separated by commas", example="serverProperties.site.floor=3")] | None
    ) = None
    count: Count = 100
    offset: Offset = 0
    include_timestamp: Annotated[bool, about("Whether leaves come with their times")] = False


class _Did(Shape):
    example = {"did": samples.DID}

    did: Id


class _Manifest(Shape):
    fields: Annotated[dict[str, Any], about("Fields by name, groups nested")]


class _ManifestAnswer(Shape):
    example = {
        "properties": {
            "fields": {
                "systemProperties": {
                    "did": {
                        "type": "String",
                        "isCollection": False,
                        "description": "",
                        "metadata": {"operations": "R"},
                    }
                }
            }
        }
    }

    properties: _Manifest


class ManagementObject(Shape, kw_only=True):
    shape = "DeviceManagement"
    example = {
        "dtid": samples.DTID,
        "devicePropertiesEnabled": True,
        "pmin": PMIN_SECONDS[1],
        "pmax": PMAX_SECONDS[1],
        "taskExpiresAfter": TASK_EXPIRES_SECONDS[1],
        "createdOn": samples.TS,
        "modifiedOn": samples.TS,
    }

    dtid: TypeId
    device_properties_enabled: bool
    pmin: Annotated[int, about("Seconds")]
    pmax: Annotated[int, about("Seconds")]
    task_expires_after: Annotated[int, about("Seconds")]
    created_on: Timestamp
    modified_on: Timestamp


class _ManagementChange(Shape):
    example = {"devicePropertiesEnabled": True, "pmin": 300}

    device_properties_enabled: (
        Annotated[bool, about("Whether properties are read from devices and observed")] | None
    ) = None
    pmin: Annotated[int, Meta(ge=PMIN_SECONDS[0], le=PMIN_SECONDS[2], description="Seconds")] | None = None
    pmax: Annotated[int, Meta(ge=PMAX_SECONDS[0], le=PMAX_SECONDS[2], description="Seconds")] | None = None
    task_expires_after: (
        Annotated[int, Meta(ge=TASK_EXPIRES_SECONDS[0], le=TASK_EXPIRES_SECONDS[2], description="Seconds")] | None
    ) = None


class DevicePropertyCalls(ManagementCalls):
    async def _readable(self, caller: Caller, did: str) -> Device:
        """A device whose properties the caller may read: itself, that of a user who granted READ, or that of a type
        which it administrates. A share gives none of it."""
        device = await self._devices.find(did)
        reach = await self._permissions.reach(caller)
        is_itself = caller.kind is TokenKind.DEVICE and reach.allows(device, Permission.READ)
        if not (is_itself or reach.allows_type(device.owner, device.type.record, Permission.READ)):
            await self._permissions.require_role(caller, device.type.record, ADMINISTRATORS)
        return device

    async def _visible_type(self, caller: Caller, dtid: str) -> DeviceType:
        type_ = await self._types.find(dtid)
        await self._lists.see(caller, type_.record)
        return type_

    @RestCall(
        "GET",
        "/devicemgmt/devices/properties",
        tokens=USER_OR_APPLICATION,
        on=InQuery(ManagementCalls.chosen_type),
        summary="Properties of a type's devices",
        about="For administrators of the organization that owns the type, and its applications. In a filter, keys "
        "begin with `systemProperties.`, `serverProperties.` or `deviceProperties.`; texts of server and device "
        "properties match when they contain the value, all else when it is the same.",
    )
    async def show_many(self, type_: DeviceType, query: _Listed) -> _PropertyPage:
        found, total = await self._management.properties.matching(
            type_, query.filter or "", offset=query.offset, count=query.count, with_times=query.include_timestamp
        )
        page = _Page(list(map(_sets, found)), total, query.offset, len(found))
        return _PropertyPage(page, total, query.offset, len(found))

    @RestCall(
        "GET",
        "/devicemgmt/devices/{did}/properties",
        tokens=ANY_TOKEN,
        on=_readable,
        summary="Properties of a device",
    )
    async def show(self, device: Device, query: _Shown) -> Data[PropertiesObject]:
        return Data(_sets(await self._management.properties.of(device, with_times=query.include_timestamp)))

    @RestCall(
        "POST",
        "/devicemgmt/devices/{did}/serverproperties",
        tokens=ANY_TOKEN,
        on=MANAGED_DEVICE,
        summary="Set server properties",
        about="The body is merged leaf by leaf; null removes a leaf or a group. A device has at most "
        f"{SERVER_PROPERTIES_BYTES} bytes of them in {SERVER_PROPERTIES_LEVELS} levels.",
        accepts=Accepts(
            {"application/json": Annotated[dict[str, Any], about("Server properties")]}, {"site": {"floor": "3"}}
        ),
    )
    async def merge(self, device: Device, body: dict[str, Any]) -> Data[_Did]:
        await self._management.properties.merge(device, body)
        return Data(_Did(device.id))

    @RestCall(
        "DELETE",
        "/devicemgmt/devices/{did}/serverproperties",
        tokens=ANY_TOKEN,
        on=MANAGED_DEVICE,
        summary="Remove all server properties",
    )
    async def clear(self, device: Device) -> Data[_Did]:
        await self._management.properties.clear(device)
        return Data(_Did(device.id))

    @RestCall(
        "GET",
        "/devicemgmt/devicetypes/{dtid}",
        tokens=USER_OR_APPLICATION,
        on=CONFIGURED_TYPE,
        summary="How the devices of a type are managed",
    )
    async def configuration(self, type_: DeviceType) -> Data[ManagementObject]:
        return Data(_management(type_, await self._management.configurations.of(type_)))

    @RestCall(
        "PUT",
        "/devicemgmt/devicetypes/{dtid}",
        tokens=USER_OR_APPLICATION,
        on=CONFIGURED_TYPE,
        summary="Change how the devices of a type are managed",
        about="Changes only the members that are sent. `pmax` must not be smaller than `pmin`.",
    )
    async def configure(self, type_: DeviceType, body: _ManagementChange) -> Data[ManagementObject]:
        change = ConfigurationChange(body.device_properties_enabled, body.pmin, body.pmax, body.task_expires_after)
        return Data(_management(type_, await self._management.configurations.change(type_, change)))

    @RestCall(
        "GET",
        "/devicemgmt/devicetypes/{dtid}/manifest/properties",
        tokens=ANY_TOKEN,
        on=_visible_type,
        summary="What system and device properties there are",
        about="`operations` has the letters R, W and E; `unit` is that of the value. Objects 3 to 7 and those of model "
        "files are always there, other objects of the LwM2M registry when `objects` names them.",
    )
    async def manifest(self, _caller: Caller, query: _Described) -> Data[_ManifestAnswer]:
        groups = [one.strip() for one in (query.objects or "").split(",")]
        return Data(_ManifestAnswer(_Manifest(manifest(self._management.objects, groups))))


def _sets(found: PropertySets) -> PropertiesObject:
    connection = None
    if found.connection is not None:
        connection = _Connection(
            found.connection.connected,
            found.connection.protocol or "",
            UNSET if found.connection.last_seen_on is None else found.connection.last_seen_on,
        )
    system = _System(found.device.id, found.device.record.created_on, connection)
    return PropertiesObject(dict(found.server), system, dict(found.reported))


def _management(type_: DeviceType, record: ManagementRecord) -> ManagementObject:
    return ManagementObject(
        dtid=type_.record.id,
        device_properties_enabled=record.device_properties_enabled,
        pmin=record.pmin,
        pmax=record.pmax,
        task_expires_after=record.task_expires_after,
        created_on=record.created_on,
        modified_on=record.modified_on,
    )
