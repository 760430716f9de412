"""/devices and /users/…/devices: the device record, and what a user has (reference 6.1)."""

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, field

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller, TokenKind
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.devices.inventory import POLICIES, VENDOR_ID_TAKEN, DeviceChanges, NewDevice, Policy, name_findings
from broker.devices.listing import DeviceFilter, Order, Ownership, SortedBy
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import BOOLEAN_ONLY, REQUIRED, Finding
from broker.registration.room import RegistrationRoom
from config.limits import FORBIDDEN_IN_NAMES, VENDOR_ID_MAX_CHARACTERS
from protocols.http.calls import ANY_TOKEN, NOTHING, USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule, Valid, boolean_of
from protocols.http.rest.device_records import DeviceEntryObject, DeviceObject, device_entry, device_record, record_of
from protocols.http.rest.named import NAMED_USER, named_device
from protocols.http.schema import Count, Data, Id, NumberedPage, Offset, Shape, TypeId, about, integer, text
from protocols.http.schema import name as device_name
from storage.records import UserRecord

DEVICES: Final = Chapter(
    "Devices", "The inventory: what a user owns, and the one access token that each device may have."
)

_Version = Annotated[
    int, integer("Version of the Manifest that parses the device's messages", lowest=1, highest=999_999_999)
]
_Policy = Annotated[Policy, about("LATEST follows the newest Manifest, DEVICE stays on manifestVersion; any case")]
_Name = Annotated[str, device_name(f"Without the characters {' '.join(sorted(FORBIDDEN_IN_NAMES))}")]
_WithProperties = Annotated[bool, Meta(description="Adds `properties`")]


def _name_is_right(given: Given) -> Iterator[Finding]:
    name = given.values["name"]
    if name is not None:
        yield from name_findings(name)


def _owner_is_named(given: Given) -> Iterator[Finding]:
    """An application must name the owner."""
    is_application = given.caller is not None and given.caller.kind is TokenKind.APPLICATION
    if is_application and given.values["uid"] is None:
        yield Finding("uid", (REQUIRED,))


def _is_boolean_if_it_matters(given: Given) -> Iterator[Finding]:
    """`properties` is ignored when `includeProperties` is true."""
    text = given.values["properties"]
    if text is not None and not given.values["include_properties"] and boolean_of(text) is None:
        yield Finding("properties", (BOOLEAN_ONLY,))


class _Devices(Shape):
    devices: list[DeviceEntryObject]


class _OfUser(Shape):
    owner: Annotated[Ownership, about("Whose; of shared ones only accepted shares")] = Ownership.ALL
    dtid: Annotated[TypeId, about("Only devices of this type")] | None = None
    dt_name: (
        Annotated[str, text("Only devices of the type of exactly this name or unique name", longest=128)] | None
    ) = field(default=None, name="dt_name")
    search: Annotated[
        str, Meta(max_length=64, description="Only devices with this part in name or id, or in the name of their type")
    ] = ""
    sort: Annotated[SortedBy, about("By what the list is sorted; then by id")] = SortedBy.CREATED_ON
    order: Order = Order.ASCENDING
    include_properties: _WithProperties = False
    include_share_info: Annotated[bool, about("Adds `sharedWithOthers` to own devices")] = False
    count: Count = 100
    offset: Offset = 0


class _NewDevice(Shape, kw_only=True):
    example = {"uid": samples.UID, "dtid": samples.TYPE_NAME, "name": "Kitchen light"}

    uid: Annotated[Id, about("The owner; an application must name one"), Rule(_owner_is_named)] | None = None
    dtid: Annotated[
        TypeId,
        Meta(min_length=1, description="Id or unique name of the device type"),
        Valid(FORBIDDEN_IN_NAMES.isdisjoint, "must not contain any of < > & ' \""),
    ]
    name: Annotated[_Name, Rule(_name_is_right)] | None = None
    manifest_version: _Version | None = None
    manifest_version_policy: _Policy = POLICIES[0]
    vdid: Annotated[str, text("Vendor's id, from the approved list", longest=VENDOR_ID_MAX_CHARACTERS)] | None = None
    svdid: Annotated[str, about("Base64 of the signature over vdid")] | None = None


class _ShownWith(Shape):
    include_properties: _WithProperties = False
    properties: (
        Annotated[
            str,
            about("The same as `includeProperties`", type="boolean", default=False),
            Rule(_is_boolean_if_it_matters),
        ]
        | None
    ) = None


class _Changes(Shape):
    example = {"name": "Kitchen lamp"}

    name: _Name | None = None
    manifest_version: _Version | None = None
    manifest_version_policy: _Policy | None = None
    connected: Annotated[bool, about("Whether it is enabled")] | None = None


class DeviceCalls(RestCalls):
    chapter = DEVICES

    def __init__(
        self,
        accounts: AccountsRoom,
        device_types: DeviceTypesRoom,
        devices: DevicesRoom,
        registration: RegistrationRoom,
    ) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._types = device_types.catalog
        self._lists = devices.lists
        self._inventory = devices.inventory
        self._shares = devices.shares
        self._approved = registration.approved_lists

    @RestCall(
        "GET",
        "/users/{uid}/devices",
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        summary="A user's devices",
        about="By default in the order of their creation. Entries tell who shares them only when asked.",
    )
    async def of_user(self, caller: Caller, user: UserRecord, query: _OfUser) -> NumberedPage[_Devices]:
        chosen = DeviceFilter(
            owner=query.owner,
            device_type=query.dtid,
            type_name=query.dt_name,
            search=query.search,
            sort=query.sort,
            order=query.order,
        )
        found, total = await self._lists.page(caller, user.key, chosen, offset=query.offset, count=query.count)
        entries = [
            device_entry(
                one.device,
                share=one.share,
                with_share_info=query.include_share_info,
                with_properties=query.include_properties,
            )
            for one in found
        ]
        return NumberedPage(_Devices(entries), total, query.offset, len(entries))

    @RestCall(
        "POST",
        "/devices",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Add a device",
        about="Without a name it is called like its type. `uid` may be left out with a user token. `vdid` and "
        "`svdid` are for types whose approved list is enabled: an unused id of the list, and the Base64 of its "
        "signature.",
        refusals={
            404: "The type or the user does not exist.",
            409: VENDOR_ID_TAKEN,
        },
    )
    async def create(self, caller: Caller, body: _NewDevice) -> Data[DeviceObject]:
        owner = await self._users.find(body.uid or "self", caller)
        type_ = await self._types.find(body.dtid)
        await self._require_creation(caller, owner, type_)
        is_listed = await self._approved.is_enabled(type_)
        claim = await self._approved.check(type_, body.vdid, body.svdid)
        new = NewDevice(
            owner=owner.key,
            type=type_,
            name=body.name,
            manifest_version=body.manifest_version,
            manifest_version_policy=body.manifest_version_policy,
            vdid=body.vdid if is_listed else None,
        )
        return await self._answer(
            caller, await self._inventory.create(new, application_id=caller.application_id, check=claim)
        )

    @RestCall("GET", "/devices/{did}", tokens=ANY_TOKEN, on=named_device(Permission.READ), summary="One device")
    async def show(self, caller: Caller, device: Device, query: _ShownWith) -> Data[DeviceObject]:
        with_properties = query.include_properties or bool(query.properties and boolean_of(query.properties))
        return await self._answer(caller, device, with_properties=with_properties)

    @RestCall(
        "PUT",
        "/devices/{did}",
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="Change a device",
        about="Only the members sent are changed. `connected` false disables it: its connections are closed, and "
        "it neither sends nor receives until it is enabled again.",
    )
    async def change(self, caller: Caller, device: Device, body: _Changes) -> Data[DeviceObject]:
        changes = DeviceChanges(
            name=body.name,
            manifest_version=body.manifest_version,
            manifest_version_policy=body.manifest_version_policy,
            enabled=body.connected,
        )
        await self._inventory.change(device, changes, application_id=caller.application_id)
        return await self._answer(caller, device)

    @RestCall(
        "DELETE",
        "/devices/{did}",
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="Delete a device",
        about="Its messages leave all queries at once. The operator can bring it back for 30 days.",
    )
    async def delete(self, caller: Caller, device: Device) -> Data[DeviceObject]:
        was = await self._inventory.delete(device, application_id=caller.application_id)
        return Data(record_of(was, device))

    async def _answer(self, caller: Caller, device: Device, *, with_properties: bool = False) -> Data[DeviceObject]:
        share = None if caller.user is None else await self._shares.accepted_by(caller.user, device)
        share_id = None if share is None else share.id
        return Data(device_record(device, shared_with_me=share_id, with_properties=with_properties))

    async def _require_creation(self, caller: Caller, owner: UserRecord, type_: DeviceType) -> None:
        """Raises PermissionDenied."""
        await self._permissions.require_granted(caller, owner.key, type_.record, Permission.WRITE)
        await self._permissions.require_type(caller, type_.record, user=owner.key)
