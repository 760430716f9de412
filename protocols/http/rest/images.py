"""Firmware images of a device type, and the addresses from which devices fetch them (reference 2.10 and 18.5)."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from quart import Response

from broker.accounts.tokens import Caller
from broker.device_management.downloads import Download, Downloads
from broker.device_management.images import TOO_MANY
from broker.device_types.catalog import DeviceType
from config.limits import DOWNLOAD_KEPT_HOURS, NAME_MAX_CHARACTERS
from protocols.http.calls import NO_TOKEN, NOTHING, USER_OR_APPLICATION, Accepts, Answers, Chunks, Counted, RestCall
from protocols.http.openapi import samples
from protocols.http.ranges import answer_to_range
from protocols.http.request_context import current_request
from protocols.http.rest.managed import CONFIGURED_TYPE, CONFIGURERS, ManagementCalls
from protocols.http.schema import (
    Count,
    Data,
    Id,
    NumberedPage,
    Offset,
    Shape,
    Timestamp,
    TypeId,
    about,
    integer,
    text,
)
from storage.firmware import FirmwareImageRecord

_IMAGES: Final = "/devicemgmt/devicetypes/{dtid}/images"
_OCTETS: Final = "application/octet-stream"
_CHUNK_BYTES: Final = 64 * 1024
_SHA256: Final = "^[0-9a-fA-F]{64}$"


class ImageObject(Shape, kw_only=True):
    shape = "FirmwareImage"
    example = {
        "updateId": samples.IMAGE,
        "dtid": samples.DTID,
        "version": "1.2.0",
        "type": "Application",
        "size": 524_288,
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "createdOn": samples.TS,
    }

    update_id: Id
    dtid: TypeId
    version: Annotated[str, text("As the device reports it", longest=NAME_MAX_CHARACTERS)]
    type: Annotated[str, text(longest=NAME_MAX_CHARACTERS)]
    size: Annotated[int, integer("Bytes", lowest=1)]
    sha256: Annotated[str, text("Of the image, in hexadecimal", pattern="^[0-9a-f]{64}$")]
    created_on: Timestamp


class _Images(Shape):
    images: list[ImageObject]


class _Listed(Shape):
    count: Count = 100
    offset: Offset = 0


class _Uploaded(Shape):
    version: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=NAME_MAX_CHARACTERS,
            description="What the device reports when it runs the image",
            examples=["1.2.0"],
        ),
    ]
    type: Annotated[str, Meta(max_length=NAME_MAX_CHARACTERS, description="What kind of image it is")] = "Application"
    sha256: Annotated[str, Meta(pattern=_SHA256, description="Of the body: another body is refused")] | None = None


class FoundImage(msgspec.Struct, frozen=True):
    record: FirmwareImageRecord
    type: DeviceType


class ImageCalls(ManagementCalls):
    path_names = {
        "updateId": (Annotated[Id, about("A firmware image")], samples.IMAGE),
        "downloadId": (Annotated[str, text("Of one update of one device", pattern="^[0-9a-f]{9}$")], samples.DOWNLOAD),
    }

    async def _image(self, caller: Caller, dtid: str, update_id: str) -> FoundImage:
        type_ = await self._types.find(dtid)
        image = await self._management.images.find(type_, update_id)
        await self._permissions.require_role(caller, type_.record, CONFIGURERS)
        return FoundImage(image, type_)

    @RestCall(
        "POST",
        _IMAGES,
        tokens=USER_OR_APPLICATION,
        on=CONFIGURED_TYPE,
        summary="Upload a firmware image",
        about="The body is the image. For administrators and developers of the organization that owns the type.",
        accepts=Accepts({_OCTETS: Annotated[str, about("The image", format="binary")]}, "firmware"),
        refusals={409: TOO_MANY, 413: "The image is larger than `device_management.image_max_bytes`."},
    )
    async def upload(self, type_: DeviceType, query: _Uploaded, body: Chunks) -> Data[ImageObject]:
        async with aclosing(body(self._management.images.max_bytes)) as chunks:
            image = await self._management.images.add(
                type_, chunks, version=query.version, kind=query.type, sha256=query.sha256
            )
        return Data(_object(image, type_))

    @RestCall(
        "GET",
        _IMAGES,
        tokens=USER_OR_APPLICATION,
        on=CONFIGURED_TYPE,
        summary="Firmware images of a device type",
        about="Newest first.",
    )
    async def of_type(self, type_: DeviceType, query: _Listed) -> NumberedPage[_Images]:
        found, total = await self._management.images.page(type_, offset=query.offset, count=query.count)
        return NumberedPage(_Images([_object(one, type_) for one in found]), total, query.offset, len(found))

    @RestCall(
        "DELETE",
        f"{_IMAGES}/{{updateId}}",
        tokens=USER_OR_APPLICATION,
        on=_image,
        summary="Delete a firmware image",
        about="Updates that have not sent its address to a device yet fail.",
    )
    async def remove(self, found: FoundImage) -> Data[ImageObject]:
        await self._management.images.remove(found.record)
        return Data(_object(found.record, found.type))

    @RestCall(
        "GET",
        "/updates/urls/{downloadId}",
        tokens=NO_TOKEN,
        on=NOTHING,
        counted=Counted.ADDRESS,
        summary="Fetch a firmware image",
        about="For devices, which are given the address. With `Range` the answer is 206 with a part of the image; "
        f"with `If-Range` and another ETag it is the whole. The address is gone {DOWNLOAD_KEPT_HOURS} hours after "
        "the update has ended.",
        answers=Answers(
            type=Annotated[str, about("", format="binary")],
            content_type=_OCTETS,
            headers={
                "ETag": Annotated[str, about("Changes with the image")],
                "Accept-Ranges": Annotated[str, about("bytes")],
            },
            about="The image",
        ),
        refusals={404: "There is no such address, or it is gone.", 416: "The image is shorter."},
    )
    async def fetch(self, download_id: str) -> Response:
        download = await self._management.downloads.find(download_id)
        answer, wanted = answer_to_range(download.image.size, download.image.sha256)
        if wanted is not None and current_request().method != "HEAD":
            answer.response = Response(_sent(self._management.downloads, download, wanted)).response
            answer.timeout = None  # the device may read slowly
        answer.headers["Content-Type"] = _OCTETS
        answer.headers["Content-Length"] = str(0 if wanted is None else len(wanted))
        return answer


async def _sent(downloads: Downloads, download: Download, wanted: range) -> AsyncIterator[bytes]:
    """Less than was asked for when the image is deleted: the device sees that it has not all."""
    position = wanted.start
    async with aclosing(download.file.pieces(wanted)) as pieces:
        async for piece in pieces:
            yield piece
            position += len(piece)
            downloads.sent(download.entry, position, len(piece))


def _object(image: FirmwareImageRecord, type_: DeviceType) -> ImageObject:
    return ImageObject(
        update_id=image.id,
        dtid=type_.record.id,
        version=image.version,
        type=image.type,
        size=image.size,
        sha256=image.sha256,
        created_on=image.created_on,
    )
