"""Firmware images of a device type: their records, and their files in the store (reference 18.5)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog
import trio

from broker.clock import Clock
from broker.device_types.catalog import DeviceType
from broker.errors import (
    REQUIRED,
    BodyTooLarge,
    Conflict,
    NotFound,
    StorageUnavailable,
    ValidationFailed,
    invalid,
)
from broker.files import Draft, Files, room_in
from broker.ids import new_id
from broker.trace.audit import AuditEvent, note
from config.limits import IMAGE_BYTES_OF_ORGANIZATION, IMAGES_MAX, IMAGES_OF_ORGANIZATION
from storage.database import Database
from storage.firmware import FirmwareImageRecord
from storage.keys import DeviceTypeKey, Milliseconds
from storage.sql import DISK_FULL
from storage.transaction import Transaction

TOO_MANY: Final = f"A device type has at most {IMAGES_MAX} images"
TOO_MANY_OF_ORGANIZATION: Final = (
    f"An organization has at most {IMAGES_OF_ORGANIZATION} images,"
    f" and {IMAGE_BYTES_OF_ORGANIZATION // 1024**3} GiB of them"
)
_CHUNK_BYTES: Final = 1024 * 1024
_LOOK_BYTES: Final = 4 * 1024 * 1024  # bytes between two checks of the free disk space
_DOWNLOAD_MS: Final = 3_600_000  # for downloads that go on when the image is deleted
_NEARLY_FULL: Final = "the disk is nearly full: images leave room for the store"
_log = structlog.get_logger(__name__)


class Images:
    def __init__(self, database: Database, clock: Clock, files: Files, *, max_bytes: int) -> None:
        self._database = database
        self._clock = clock
        self._files = files
        files.adopts("images", lambda tx: tx.firmware.sizes())
        self.max_bytes = max_bytes

    async def add(
        self, type_: DeviceType, chunks: AsyncIterator[bytes], *, version: str, kind: str, sha256: str | None
    ) -> FirmwareImageRecord:
        """Store an image while it comes. It is durable on return.

        Raises:
            ValidationFailed: nothing came, or its SHA-256 is not `sha256`.
            BodyTooLarge: it is larger than the setting allows.
            Conflict: the type has too many images.
            StorageUnavailable: the file would leave no reserve on the disk.
            StoreError
        """
        await self._database.read(lambda tx: _check_number(tx, type_.record.key))
        draft = self._files.draft()
        try:
            await self._receive(draft, chunks)
            if not draft.size:
                raise ValidationFailed.of("body", REQUIRED)
            if sha256 is not None and sha256.lower() != draft.sha256:
                raise ValidationFailed.of("sha256", invalid("is not that of the image"))
            now_ms = self._clock.now_ms()
            record = FirmwareImageRecord(
                new_id(), type_.record.key, version, kind, draft.size, draft.sha256, Milliseconds(now_ms)
            )

            def work(tx: Transaction) -> None:
                _put(tx, record, type_)
                draft.keep(tx, file_name(record.id))

            await self._database.write(work)
        except OSError as error:
            await draft.drop()
            raise StorageUnavailable(str(error)) from error
        except BaseException:  # whatever it is: no file without an image must stay; raised again
            await draft.drop()
            raise
        _log.info("firmware_image_added", image=record.id, version=version, bytes=record.size)
        return record

    async def _receive(self, draft: Draft, chunks: AsyncIterator[bytes]) -> None:
        looked_at = 0
        async for chunk in chunks:
            if draft.size + len(chunk) > self.max_bytes:
                raise BodyTooLarge
            if draft.size >= looked_at:  # others fill the disk, too
                looked_at = draft.size + _LOOK_BYTES
                if await trio.to_thread.run_sync(room_in, self._files.folder) < _LOOK_BYTES:
                    raise StorageUnavailable(_NEARLY_FULL, DISK_FULL)
            await draft.add(chunk)
        await draft.flush()

    async def stage(self, file: Path) -> Draft:
        """Read a file of this machine into the store; `Draft.keep` makes it that of an image.

        Raises OSError, StoreError; BodyTooLarge for more than is allowed.
        """
        draft = self._files.draft()
        try:
            with file.open("rb") as source:
                while chunk := await trio.to_thread.run_sync(source.read, _CHUNK_BYTES):
                    if draft.size + len(chunk) > self.max_bytes:
                        raise BodyTooLarge
                    await draft.add(chunk)
            await draft.flush()
        except BaseException:  # whatever it is: no file without an image must stay; raised again
            await draft.drop()
            raise
        return draft

    async def find(self, type_: DeviceType, image_id: str) -> FirmwareImageRecord:
        """Raises NotFound for an image that the type does not have."""
        found = await self._database.read(lambda tx: tx.firmware.image(image_id))
        if found is None or found.device_type != type_.record.key:
            raise NotFound
        return found

    async def page(self, type_: DeviceType, *, offset: int, count: int) -> tuple[list[FirmwareImageRecord], int]:
        """A page of the type's images, newest first, and the number of all."""
        return await self._database.read(lambda tx: tx.firmware.images(type_.record.key, offset=offset, limit=count))

    async def remove(self, image: FirmwareImageRecord) -> None:
        """Delete an image. An update that has not sent its address yet fails then."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.firmware.remove(image.id)
            tx.files.end(file_name(image.id), due_on=Milliseconds(now_ms + _DOWNLOAD_MS))
            note(tx, AuditEvent.IMAGE_DELETED, f"image {image.id}", now_ms=now_ms, version=image.version)

        await self._database.write(work)


def file_name(image_id: str) -> str:
    """The name of an image's file in the store."""
    return f"images/{image_id}"


def _check_number(tx: Transaction, device_type: DeviceTypeKey, size: int = 0) -> None:
    """`size`: of the image to add, once it is known. Raises Conflict."""
    if tx.firmware.images(device_type, offset=0, limit=0)[1] >= IMAGES_MAX:
        raise Conflict(TOO_MANY)
    count, total = tx.firmware.of_organization(device_type)
    if count >= IMAGES_OF_ORGANIZATION or total + size > IMAGE_BYTES_OF_ORGANIZATION:
        raise Conflict(TOO_MANY_OF_ORGANIZATION)


def _put(tx: Transaction, record: FirmwareImageRecord, type_: DeviceType) -> None:
    _check_number(tx, record.device_type, record.size)
    tx.firmware.put(record)
    details = {"device_type": type_.record.id, "version": record.version, "sha256": record.sha256}
    note(tx, AuditEvent.IMAGE_UPLOADED, f"image {record.id}", now_ms=record.created_on, **details)
