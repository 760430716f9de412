"""/devicetypes and the lists of them: the device type record (reference 8.1)."""

from typing import Annotated, Final

from msgspec import UNSET, UnsetType

from broker.accounts.tokens import Caller
from broker.device_types.lists import SeenType, TypePage
from broker.device_types.room import DeviceTypesRoom
from config.limits import DESCRIPTION_MAX_CHARACTERS
from protocols.http.calls import ANY_TOKEN, NOTHING, USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import NAMED_USER
from protocols.http.rest.tags import TagObject, tag_object
from protocols.http.schema import (
    Amount,
    Count,
    Data,
    Id,
    NumberedPage,
    Offset,
    Paging,
    Shape,
    TypeId,
    about,
    absent_if_none,
    ids,
    text,
    time_ms,
)
from storage.records import ApplicationRecord, UserRecord

DEVICE_TYPES: Final = Chapter(
    "Device types",
    "What devices there are, and what each declares in its Manifest: the fields of its messages and the Actions that "
    "it takes. Wherever a call takes the id of a type, it takes its unique name, too.",
)


class DeviceTypeObject(Shape, kw_only=True):
    shape = "DeviceType"
    example = {
        "id": samples.DTID,
        "oid": samples.OID,
        "uid": samples.UID,
        "name": "Smart Light",
        "published": True,
        "approved": True,
        "protected": False,
        "latestVersion": 2,
        "uniqueName": samples.TYPE_NAME,
        "vid": "0",
        "rsp": False,
        "issuerDn": None,
        "description": "",
        "tags": [{"name": "home", "isCategory": True}],
        "inStore": True,
        "hasCloudConnector": False,
        "lastUpdated": samples.TS,
        "ownedByCurrentUser": True,
    }

    id: TypeId
    oid: Annotated[Id, about("The organization that owns it")]
    uid: Annotated[Id, about("The user who owns it")] | UnsetType = UNSET
    name: str
    published: bool
    approved: Annotated[bool, about("Whether its latest Manifest was approved")]
    protected: Annotated[bool, about("Only for users of the owner's applications")]
    latest_version: Annotated[Amount, about("Of its Manifest; 0 before there is one")]
    unique_name: str
    vid: Annotated[str, about("Vendor; 0 without one")]
    rsp: Annotated[bool, about("Whether its devices register with certificates")]
    issuer_dn: Annotated[str, about("Issuer of those certificates")] | None
    description: Annotated[str, text(longest=DESCRIPTION_MAX_CHARACTERS)] | None
    tags: list[TagObject] | UnsetType = UNSET
    in_store: bool
    has_cloud_connector: bool
    billing_subscription_id: Annotated[str, about("With a plan")] | UnsetType = UNSET
    last_updated: Annotated[int, time_ms("Its last Manifest")]
    owned_by_current_user: (
        Annotated[bool, about("For user tokens: whether the user has a device of this type")] | UnsetType
    ) = UNSET


class _DeviceTypes(Shape):
    device_types: list[DeviceTypeObject]


class _Search(Shape):
    name: Annotated[str, about("A part of the name or unique name, any case")] | None = None
    name_search: Annotated[str, about("The same as `name`")] | None = None
    tags: Annotated[tuple[str, ...], ids("Tags that the types must all have")] = ()
    create_device: Annotated[bool, about("Only types of which the caller may create devices")] = False
    count: Count = 100
    offset: Offset = 0


class _OfUser(Shape):
    include_shared: Annotated[bool, about("Adds the types of devices that are shared with the user")] = False
    include_organization: Annotated[bool, about("Adds the types of the user's organization")] = False
    count: Count = 100
    offset: Offset = 0


class DeviceTypeCalls(RestCalls):
    chapter = DEVICE_TYPES

    def __init__(self, device_types: DeviceTypesRoom) -> None:
        self._types = device_types.catalog
        self._lists = device_types.lists

    @RestCall(
        "GET",
        "/devicetypes",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Find device types",
        about="All published types and the caller's own. Exact matches come first.",
    )
    async def search(self, caller: Caller, query: _Search) -> NumberedPage[_DeviceTypes]:
        found = await self._lists.search(
            caller,
            texts=[text for text in (query.name, query.name_search) if text is not None],
            tags=query.tags,
            may_create=query.create_device,
            count=query.count,
            offset=query.offset,
        )
        return _page(found, query.offset)

    @RestCall(
        "GET",
        "/devicetypes/cloudconnectors",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Device types with a cloud connector",
    )
    async def with_connectors(self, caller: Caller, query: Paging) -> NumberedPage[_DeviceTypes]:
        found = await self._lists.search(caller, with_connector=True, count=query.count, offset=query.offset)
        return _page(found, query.offset)

    async def _seen(self, caller: Caller, dtid: str) -> SeenType:
        return await self._lists.see(caller, (await self._types.find(dtid)).record)

    @RestCall("GET", "/devicetypes/{dtid}", tokens=ANY_TOKEN, on=_seen, summary="One device type")
    async def show(self, seen: SeenType) -> Data[DeviceTypeObject]:
        return Data(type_record(seen))

    @RestCall(
        "GET",
        "/users/{uid}/devicetypes",
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        summary="A user's device types",
    )
    async def of_user(self, caller: Caller, user: UserRecord, query: _OfUser) -> NumberedPage[_DeviceTypes]:
        found = await self._lists.of_user(
            caller,
            user.key,
            with_organization=query.include_organization,
            with_shared=query.include_shared,
            count=query.count,
            offset=query.offset,
        )
        return _page(found, query.offset)

    async def _application(self, caller: Caller, aid: str) -> ApplicationRecord:
        return await self._lists.application(caller, aid)

    @RestCall(
        "GET",
        "/applications/{aid}/devicetypes",
        tokens=USER_OR_APPLICATION,
        on=_application,
        summary="Device types that an application asks permissions for",
    )
    async def of_application(
        self, caller: Caller, application: ApplicationRecord, query: Paging
    ) -> NumberedPage[_DeviceTypes]:
        found = await self._lists.of_application(caller, application, count=query.count, offset=query.offset)
        return _page(found, query.offset)


def _page(found: TypePage, offset: int) -> NumberedPage[_DeviceTypes]:
    return NumberedPage(_DeviceTypes(list(map(type_record, found.types))), found.total, offset, len(found.types))


def type_record(seen: SeenType) -> DeviceTypeObject:
    type_ = seen.record
    return DeviceTypeObject(
        id=type_.id,
        oid=type_.organization_id,
        uid=absent_if_none(type_.owner_id),
        name=type_.name,
        published=type_.published,
        approved=type_.approved,
        protected=type_.protected,
        latest_version=type_.latest_version,
        unique_name=type_.unique_name,
        vid=type_.vid,
        rsp=type_.rsp,
        issuer_dn=type_.issuer_dn,
        description=type_.description,
        tags=list(map(tag_object, type_.tags)) or UNSET,
        in_store=type_.published if type_.in_store is None else type_.in_store,
        has_cloud_connector=type_.has_cloud_connector,
        billing_subscription_id=absent_if_none(type_.billing_subscription_id),
        last_updated=type_.last_updated,
        owned_by_current_user=absent_if_none(seen.owned),
    )
