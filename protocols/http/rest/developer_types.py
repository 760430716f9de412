"""/developer and /devicetypes: device types that members make, their Manifests and failures (reference 27.21)."""

import binascii
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from broker.accounts.organizations import Membership
from broker.device_types.catalog import DeviceType
from broker.device_types.making import TOO_MANY, TOO_MANY_VERSIONS, TypeChanges, manifest_tag
from broker.device_types.manifest_parser import MAX_DOCUMENT_BYTES
from broker.device_types.room import DeviceTypesRoom
from broker.errors import Finding, ValidationFailed, invalid
from broker.ids import is_unique_name
from broker.names import plain_name_problem
from config.limits import DESCRIPTION_MAX_CHARACTERS, MAX_DATA_BYTES
from protocols.http.calls import USER, USER_OR_APPLICATION, RestCall, RestCalls
from protocols.http.conditional import or_present, tagged
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule, Valid
from protocols.http.rest.developer import DEVELOPER, CheckedName
from protocols.http.rest.named import DEVELOPED_TYPE, OWN_ORGANIZATION
from protocols.http.schema import (
    Amount,
    Data,
    Id,
    NumberedPage,
    Paging,
    Shape,
    Timestamp,
    TypeId,
    about,
    absent_if_none,
    integer,
    numbered,
    text,
    time_ms,
)
from storage.records import DeviceTypeRecord, ManifestRecord

_MANIFESTS: Final = "/devicetypes/{dtid}/manifests"
_TAGS_MAX: Final = 50
_FAILURES_MAX: Final = 1_000
_MANIFEST: Final[dict[str, Any]] = {
    "fields": [{"name": "intensity", "type": "CUSTOM", "valueClass": "Integer", "isCollection": False}],
    "messageFormat": "json",
    "actions": [],
}


_TAG: Final = "must be 1 to 64 characters, no comma, none of < > & ' \", no control characters, and not blank"


def _tags_are_names(given: Given) -> Iterator[Finding]:
    for index, tag in enumerate((given.values["tags"] or ())[: _TAGS_MAX + 1]):
        if index == _TAGS_MAX:
            yield Finding("tags", (f"At most {_TAGS_MAX}",))
        elif not 1 <= len(tag) <= 64 or "," in tag or plain_name_problem(tag):
            yield Finding(
                f"tags.{index}",
                (
                    invalid(
                        "must be 1 to 64 characters, no comma, no control characters, none of < > & ' \", and not blank"
                    ),
                ),
            )


_Description = Annotated[str, Meta(max_length=DESCRIPTION_MAX_CHARACTERS)]
_Tags = Annotated[list[str], about("", example=["home"]), Rule(_tags_are_names)]


class MadeType(Shape):
    example = {
        "id": samples.DTID,
        "uniqueName": samples.TYPE_NAME,
        "name": "Smart Light",
        "description": "",
        "published": False,
        "protected": False,
        "tags": ["home"],
        "latestVersion": 0,
    }

    id: TypeId
    unique_name: str
    name: str
    description: Annotated[str, text(longest=DESCRIPTION_MAX_CHARACTERS)] | None
    published: bool
    protected: bool
    tags: list[str]
    latest_version: Amount


class _NewType(Shape):
    example = {"uniqueName": "acme.heater", "name": "Heater"}

    unique_name: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="Lower case, with a dot: `acme.heater`"),
        Valid(is_unique_name, "must be lower-case words with dots between, such as acme.light"),
    ]
    name: CheckedName
    description: _Description | None = None
    published: bool | None = None
    protected: bool | None = None
    tags: _Tags | None = None


class _TypeChange(Shape):
    example = {"published": True}

    name: CheckedName | None = None
    description: _Description | None = None
    published: Annotated[bool, about("Everybody may make devices of it")] | None = None
    protected: Annotated[bool, about("Only for users of the organization's applications")] | None = None
    tags: _Tags | None = None


class ManifestDocument(Shape):
    example = {"version": 2, "approved": True, "createdOn": samples.TS, "manifest": _MANIFEST}

    version: Annotated[int, integer(lowest=1)]
    approved: Annotated[bool, about("Devices use the newest version that is approved")]
    created_on: Timestamp
    manifest: Annotated[dict[str, Any], about("As it was uploaded")]


class _Upload(Shape):
    example = {"manifest": _MANIFEST}

    manifest: Annotated[dict[str, Any], about("The document (reference 8.2)")]


class _UploadedManifest(Shape):
    example = {"version": 3, "approved": True, "isNew": True}

    version: Annotated[int, integer(lowest=1)]
    approved: Annotated[bool, about("False: an Advanced Manifest waits for an operator")]
    is_new: Annotated[bool, about("False: the newest version is the same")]


class _Trial(Shape):
    example = {"manifest": _MANIFEST, "payload": '{"intensity":"7"}'}

    manifest: Annotated[dict[str, Any], about("The document; it is not stored")]
    payload: Annotated[str, Meta(max_length=2 * MAX_DATA_BYTES, description="What a device would send")]
    encoding: Annotated[str, Meta(pattern="^(text|hex)$", description="How `payload` is written here: text or hex")] = (
        "text"
    )


class _Tried(Shape):
    example = {"data": {"intensity": 7}}

    data: Annotated[dict[str, Any], about("What would be stored")] | UnsetType = UNSET
    reason: Annotated[str, about("Why a message with it would fail")] | UnsetType = UNSET


class _Failure(Shape):
    example = {"did": samples.DID, "cts": samples.TS, "reason": "no field of the Manifest"}

    did: Id
    cts: Timestamp
    reason: str


class _ReadAgain(Shape):
    example = {"version": 2, "looked": 240, "fit": 212, "beganOn": samples.TS, "endedOn": samples.TS + 900}

    version: Annotated[Amount, about("The version of the Manifest with which they are read again")]
    looked: Annotated[Amount, about("Failed messages that were read again")]
    fit: Annotated[Amount, about("Those that are messages now, each with its own `ts`")]
    began_on: Timestamp
    ended_on: Annotated[int, time_ms("The end; absent while it goes on")] | UnsetType = UNSET


class _Failures(NumberedPage[list[_Failure]]):
    read_again: Annotated[_ReadAgain, about("Absent when none was read again")] | UnsetType = UNSET


class DeveloperTypeCalls(RestCalls):
    chapter = DEVELOPER

    def __init__(self, device_types: DeviceTypesRoom) -> None:
        self._making = device_types.making
        self._manifests = device_types.manifests

    @RestCall(
        "POST",
        "/developer/organizations/{oid}/devicetypes",
        tokens=USER,
        on=OWN_ORGANIZATION,
        summary="Create a device type",
        refusals={409: f"{TOO_MANY}."},
    )
    async def create(self, membership: Membership, body: _NewType) -> Data[MadeType]:
        made = await self._making.add(membership.organization, body.unique_name, body.name, _changes(body))
        return Data(_object(made))

    @RestCall(
        "PUT",
        "/developer/devicetypes/{dtid}",
        tokens=USER,
        on=DEVELOPED_TYPE,
        summary="Change a device type",
        about="Only the members that are sent change.",
    )
    async def change(self, type_: DeviceType, body: _TypeChange) -> Data[MadeType]:
        return Data(_object(await self._making.change(type_, _changes(body))))

    @RestCall(
        "GET",
        "/developer/devicetypes/{dtid}/failures",
        tokens=USER,
        on=DEVELOPED_TYPE,
        summary="Messages of a type's devices that failed",
        about=f"The last {_FAILURES_MAX} of 7 days, newest first. The content of a message is for its device's owner. "
        "`readAgain` has the outcome of the newest version of the Manifest.",
    )
    async def failures(self, type_: DeviceType, query: Paging) -> _Failures:
        found = await self._manifests.failed_of(type_.key, limit=_FAILURES_MAX)
        page = numbered(found.messages, query, lambda one: _Failure(one.device, one.received_on, one.reason))
        reading = found.reading
        return _Failures(
            page.data,
            page.total,
            page.offset,
            page.count,
            UNSET
            if reading is None
            else _ReadAgain(
                reading.version, reading.looked, reading.fit, reading.began_on, absent_if_none(reading.ended_on)
            ),
        )

    @RestCall(
        "GET",
        _MANIFESTS,
        tokens=USER_OR_APPLICATION,
        on=DEVELOPED_TYPE,
        summary="The Manifests of a device type",
        about="Every version with its document, newest first. For administrators, developers and applications of the "
        "organization that owns the type.",
        is_tagged=True,
    )
    async def documents(self, type_: DeviceType, query: Paging) -> NumberedPage[list[ManifestDocument]]:
        found = await self._manifests.documents(type_.key)
        tagged(manifest_tag(next(iter(found), None)))
        return numbered(found, query, _document)

    async def _newest(self, type_: DeviceType) -> ManifestDocument | None:
        """The newest version of the Manifest, with its tag."""
        newest = next(iter(await self._manifests.documents(type_.key)), None)
        tagged(manifest_tag(newest))
        return None if newest is None else _document(newest)

    @RestCall(
        "POST",
        _MANIFESTS,
        tokens=USER_OR_APPLICATION,
        on=DEVELOPED_TYPE,
        summary="Upload a Manifest",
        about="It is the next version, and in use at once. One with a `transform` waits for an operator's approval.",
        body_limit=2 * MAX_DOCUMENT_BYTES,
        refusals={409: f"{TOO_MANY_VERSIONS}."},
        is_tagged=True,
        is_conditional=True,
    )
    async def upload(self, type_: DeviceType, body: _Upload) -> Data[_UploadedManifest]:
        async with or_present(partial(self._newest, type_)):
            found = await self._making.upload(type_, body.manifest)
        await self._newest(type_)
        return Data(_UploadedManifest(found.version, found.approved, found.is_new))

    @RestCall(
        "POST",
        f"{_MANIFESTS}/try",
        tokens=USER_OR_APPLICATION,
        on=DEVELOPED_TYPE,
        summary="Try a Manifest",
        about="What the document makes of a payload. Nothing is stored.",
        body_limit=2 * MAX_DOCUMENT_BYTES + 4 * MAX_DATA_BYTES,
    )
    async def try_it(self, body: _Trial) -> Data[_Tried]:
        payload = body.payload.encode()
        if body.encoding == "hex":
            try:
                payload = binascii.unhexlify("".join(body.payload.split()))
            except ValueError as error:
                raise ValidationFailed.of("payload", "not a hexadecimal text") from error
        tried = await self._making.try_out(body.manifest, payload)
        return Data(_Tried(reason=tried.reason) if tried.reason else _Tried(data=tried.data))


def _changes(body: _NewType | _TypeChange) -> TypeChanges:
    return TypeChanges(
        name=body.name,
        description=body.description,
        published=body.published,
        protected=body.protected,
        tags=body.tags,
    )


def _object(record: DeviceTypeRecord) -> MadeType:
    return MadeType(
        record.id,
        record.unique_name,
        record.name,
        record.description,
        record.published,
        record.protected,
        list(record.tags),
        record.latest_version,
    )


def _document(record: ManifestRecord) -> ManifestDocument:
    return ManifestDocument(
        record.version, record.approved, record.created_on, msgspec.json.decode(record.document, type=dict[str, Any])
    )
