"""Readers of a user's data (reference 5.9), and the sheet of a device type (reference 8.9)."""

from typing import Annotated, Final

from msgspec import UNSET, UnsetType

from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.devices.readers import DataReader
from broker.devices.room import DevicesRoom
from broker.export.tables import Column
from broker.my_data.room import MyDataRoom
from broker.my_data.sheets import Sheet
from config.limits import DATA_READERS_SHOWN
from protocols.http.calls import ANY_TOKEN, USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.messages import MESSAGES
from protocols.http.rest.named import NAMED_USER
from protocols.http.schema import Amount, Data, Id, Shape, Timestamp, TypeId, about, one_of
from storage.records import UserRecord

_READ: Final = "GET /v1.1/messages, live feeds and subscriptions; GET /v1.1/messages/analytics; at the console"
_TAKE: Final = "POST /v1.1/messages/export as CSV, JSON Lines, Parquet or JSON, of any range; trunkline export"
_SHARE: Final = (
    "POST /v1.1/devices/{did}/shares with another user, an application by consent (OAuth 2.0), both until they are "
    "withdrawn; POST /v1.1/subscriptions for a server or a cloud stream"
)
_ERASE: Final = "DELETE /v1.1/messages of a range of times, DELETE /v1.1/devices/{did}, DELETE /v1.1/users/{uid}"


class _Named(Shape):
    example = {"id": samples.AID, "name": "Dashboard"}

    id: Id
    name: str


class ReaderObject(Shape, kw_only=True):
    shape = "DataReader"
    example = {
        "application": {"id": samples.AID, "name": "Dashboard"},
        "user": {"id": samples.UID, "name": "ada"},
        "count": 12,
        "firstOn": samples.TS,
        "lastOn": samples.CTS,
    }

    application: _Named | UnsetType = UNSET
    user: Annotated[_Named, about("For whom the application has read; absent: for itself")] | UnsetType = UNSET
    count: Annotated[Amount, about("Calls, exports and feeds, not messages")]
    first_on: Timestamp
    last_on: Timestamp


class _Readers(Shape):
    readers: list[ReaderObject]


class SheetField(Shape, kw_only=True):
    shape = "SheetField"
    example = {"field": "steps", "type": "integer", "isList": False, "unit": "", "description": "", "sensitive": False}

    field: str
    type: Annotated[str, one_of(("boolean", "integer", "number", "text"))]
    is_list: bool
    unit: str
    description: str
    sensitive: bool


class _SheetAction(Shape):
    example = {"name": "setOn", "description": ""}

    name: str
    description: str


class _Volume(Shape, kw_only=True):
    days: Annotated[Amount, about("Whole days that were looked at", example=7)]
    devices: Annotated[Amount, about("Devices that sent messages in them", example=2)]
    messages: Annotated[Amount, about("Of these devices", example=2_880)]
    per_device_and_day: Annotated[float, about("The mean; absent without messages", example=206)] | UnsetType = UNSET


class _Retention(Shape):
    example = {"messages": 365, "minutes": 365, "hours": 365, "days": 0}

    # In days; 0 is for ever.
    messages: Amount
    minutes: Amount
    hours: Amount
    days: Amount


class SheetObject(Shape, kw_only=True):
    shape = "DataSheet"
    example = {
        "sdtid": samples.DTID,
        "name": "Smart Light",
        "uniqueName": samples.TYPE_NAME,
        "manifestVersion": 1,
        "fields": [SheetField.example],
        "actions": [_SheetAction.example],
        "measured": {"days": 7, "devices": 2, "messages": 2_880, "perDeviceAndDay": 206},
        "retentionDays": {"messages": 365, "minutes": 365, "hours": 365, "days": 0},
        "read": _READ,
        "take": _TAKE,
        "share": _SHARE,
        "erase": _ERASE,
    }

    sdtid: TypeId
    name: str
    unique_name: str
    manifest_version: Amount
    fields: list[SheetField]
    actions: list[_SheetAction]
    measured: _Volume
    retention_days: Annotated[_Retention, about("Of messages, and of sums by minute, hour and day; 0 is for ever")]
    read: Annotated[str, about("Ways to read the data", example=_READ)]
    take: Annotated[str, about("Ways to take it along", example=_TAKE)]
    share: Annotated[str, about("Ways to share it", example=_SHARE)]
    erase: Annotated[str, about("Ways to erase it", example=_ERASE)]


class MyDataCalls(RestCalls):
    chapter = MESSAGES

    def __init__(self, device_types: DeviceTypesRoom, devices: DevicesRoom, my_data: MyDataRoom) -> None:
        self._types, self._lists = device_types.catalog, device_types.lists
        self._readers, self._sheets = devices.readers, my_data.sheets

    @RestCall(
        "GET",
        "/users/{uid}/readers",
        tokens=USER,
        on=NAMED_USER,
        summary="Readers of a user's data",
        about="Which applications have read messages of the user's devices, for whom, how often and when last: the "
        f"latest {DATA_READERS_SHOWN}. A call counts once, however many messages it answers.",
    )
    async def readers(self, user: UserRecord) -> Data[_Readers]:
        return Data(_Readers([_reader(one) for one in await self._readers.of_owner(user.key)]))

    async def _type(self, caller: Caller, dtid: str) -> DeviceType:
        type_ = await self._types.find(dtid)
        await self._lists.see(caller, type_.record)
        return type_

    @RestCall(
        "GET",
        "/devicetypes/{dtid}/sheet",
        tokens=ANY_TOKEN,
        on=_type,
        summary="The data sheet of a device type",
        about="What Regulation (EU) 2023/2854, the Data Act, has its buyer told (article 3.2): which data a device "
        "makes, how much, how long it is kept, and how to read, share and erase it. The console prints it.",
    )
    async def sheet(self, type_: DeviceType) -> Data[SheetObject]:
        return Data(_sheet(await self._sheets.sheet(type_)))


def _reader(one: DataReader) -> ReaderObject:
    return ReaderObject(
        application=UNSET if one.application is None else _Named(*one.application),
        user=UNSET if one.user is None else _Named(*one.user),
        count=one.record.count,
        first_on=one.record.first_on,
        last_on=one.record.last_on,
    )


def _sheet(sheet: Sheet) -> SheetObject:
    record, measured = sheet.type.record, sheet.measured
    return SheetObject(
        sdtid=record.id,
        name=record.name,
        unique_name=record.unique_name,
        manifest_version=sheet.type.latest.version,
        fields=[_field(one, sensitive=one.path in sheet.sensitive) for one in sheet.columns],
        actions=[_SheetAction(*one) for one in sheet.actions],
        measured=_Volume(
            days=sheet.days,
            devices=measured.devices,
            messages=measured.messages,
            per_device_and_day=UNSET if measured.per_day is None else measured.per_day,
        ),
        retention_days=_Retention(sheet.message_days, *sheet.rollup_days.values()),
        read=_READ,
        take=_TAKE,
        share=_SHARE,
        erase=_ERASE,
    )


def _field(column: Column, *, sensitive: bool) -> SheetField:
    return SheetField(
        field=column.path,
        type=column.kind,
        is_list=column.is_list,
        unit=column.unit,
        description=column.description,
        sensitive=sensitive,
    )
