"""Firmware images of a device type: files outside the store, and their records (reference 18.5)."""

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog
import trio

from broker.clock import Clock
from broker.device_types.catalog import DeviceType
from broker.disk import room_in
from broker.errors import (
    REQUIRED,
    BodyTooLarge,
    Conflict,
    NotFound,
    StorageUnavailable,
    ValidationFailed,
    invalid,
)
from broker.ids import is_id, new_id
from broker.trace.audit import AuditEvent, note
from config.limits import IMAGE_BYTES_OF_ORGANIZATION, IMAGES_MAX, IMAGES_OF_ORGANIZATION
from storage.database import Database, Transaction
from storage.firmware import FirmwareImageRecord
from storage.keys import DeviceTypeKey

TOO_MANY: Final = f"A device type has at most {IMAGES_MAX} images"
TOO_MANY_OF_ORGANIZATION: Final = (
    f"An organization has at most {IMAGES_OF_ORGANIZATION} images,"
    f" and {IMAGE_BYTES_OF_ORGANIZATION // 1024**3} GiB of them"
)
T = TypeVar("T")
_CHUNK_BYTES: Final = 1024 * 1024
_LOOK_BYTES: Final = 4 * 1024 * 1024  # bytes between two checks of the free disk space
_NEARLY_FULL: Final = "the disk is nearly full: images leave room for the store"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete file that is no image yet."""

    path: Path
    size: int
    sha256: str


class Images:
    def __init__(self, database: Database, clock: Clock, folder: Path, *, max_bytes: int) -> None:
        self._database = database
        self._clock = clock
        self._folder = folder
        self.max_bytes = max_bytes

    async def resume(self) -> None:
        """Remove files that no image has: of uploads that were interrupted, and of deletions."""
        known = await self._database.read(lambda tx: tx.firmware.ids())
        _remove_strangers(self._folder, known)  # at the start, when nothing else runs

    async def add(
        self, type_: DeviceType, chunks: AsyncIterator[bytes], *, version: str, kind: str, sha256: str | None
    ) -> FirmwareImageRecord:
        """Store an image while it comes. It is durable on return.

        Raises:
            ValidationFailed: nothing came, or its SHA-256 is not `sha256`.
            BodyTooLarge: it is larger than the setting allows.
            Conflict: the type has too many images.
            StorageUnavailable: the file cannot be written, or would leave no reserve on the disk.
        """
        await self._database.read(lambda tx: _check_number(tx, type_.record.key))
        id_ = new_id()
        part = self._folder / f"{id_}.part"
        try:
            size, digest = await self._receive(part, chunks)
            if not size:
                raise ValidationFailed.of("body", REQUIRED)
            if sha256 is not None and sha256.lower() != digest:
                raise ValidationFailed.of("sha256", invalid("is not that of the image"))
            record = FirmwareImageRecord(id_, type_.record.key, version, kind, size, digest, self._clock.now_ms())
            await _in_thread(lambda: _keep(part, self.path_of(record)))
            await self._database.write(lambda tx: _put(tx, record, type_))
        except OSError as error:
            _remove_all(part, self._folder / id_)
            raise StorageUnavailable(str(error)) from error
        except BaseException:  # whatever it is: no file without an image must stay; raised again
            _remove_all(part, self._folder / id_)
            raise
        _log.info("firmware_image_added", image=id_, version=version, bytes=size)
        return record

    async def _receive(self, part: Path, chunks: AsyncIterator[bytes]) -> tuple[int, str]:
        size, looked_at, digest = 0, 0, hashlib.sha256()
        file = await _in_thread(lambda: _create(part))
        async with trio.wrap_file(file) as opened:
            async for chunk in chunks:
                size += len(chunk)
                if size > self.max_bytes:
                    raise BodyTooLarge
                if size >= looked_at:  # others fill the disk, too
                    looked_at = size + _LOOK_BYTES
                    if await _in_thread(lambda: room_in(self._folder)) < _LOOK_BYTES:
                        raise StorageUnavailable(_NEARLY_FULL)
                digest.update(chunk)
                await opened.write(chunk)
        return size, digest.hexdigest()

    async def stage(self, file: Path) -> Staged:
        """Copy a file of this machine to where images are. Raises OSError; BodyTooLarge for more than is allowed."""
        return await _in_thread(lambda: _copy(file, self._folder / f"{new_id()}.part", self.max_bytes))

    def keep(self, staged: Staged, record: FirmwareImageRecord) -> None:
        """Make a staged file that of an image, whose row is written in the same transaction. Raises OSError."""
        _keep(staged.path, self.path_of(record))

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
            note(tx, AuditEvent.IMAGE_DELETED, f"image {image.id}", now_ms=now_ms, version=image.version)

        await self._database.write(work)
        await _in_thread(lambda: self.path_of(image).unlink(missing_ok=True))

    def path_of(self, image: FirmwareImageRecord) -> Path:
        return self._folder / image.id


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


async def _in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _copy(file: Path, part: Path, max_bytes: int) -> Staged:
    size, digest = 0, hashlib.sha256()
    with file.open("rb") as source, _create(part) as target:
        while chunk := source.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > max_bytes:
                part.unlink()
                raise BodyTooLarge
            digest.update(chunk)
            target.write(chunk)
    return Staged(part, size, digest.hexdigest())


def _keep(part: Path, path: Path) -> None:
    """Give a complete file its name, both durable on return."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_all(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_strangers(folder: Path, known: set[str]) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        name = path.name.removesuffix(".part")
        if is_id(name) and path.name not in known:
            path.unlink(missing_ok=True)
