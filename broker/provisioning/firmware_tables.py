"""The table `firmware` of the provision file: firmware images of device types, from files of this machine."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from broker.device_management.images import Images, file_name
from broker.errors import BodyTooLarge
from broker.files import Draft
from broker.ids import new_id
from broker.provisioning.document import FirmwareEntry
from broker.provisioning.reading import EntryLocation, ReadTables
from broker.provisioning.report import compared
from broker.provisioning.run import ProvisioningRun
from storage.firmware import FirmwareImageRecord
from storage.keys import Milliseconds
from storage.records import DeviceTypeRecord
from storage.sql import ALL_ROWS

_KIND = "Application"


@asynccontextmanager
async def staged_images(reading: ReadTables, images: Images) -> AsyncIterator[Mapping[int, Draft]]:
    """Copies of the files, by the index of the entry; the ones that were not kept are removed at the end of the block.

    An entry whose file cannot be read, is empty or too large is refused.
    """
    staged: dict[int, Draft] = {}
    try:
        for at, entry in reading.of("firmware"):
            try:
                staged[at.index] = await images.stage(Path(entry.file))
            except OSError as error:
                reading.refuse(at, entry, at.refusal("file", f"{entry.file}: {error.strerror}"))
                continue
            except BodyTooLarge:
                reading.refuse(at, entry, at.refusal("file", "is larger than device_management.image_max_bytes"))
                continue
            if not staged[at.index].size:
                reading.refuse(at, entry, at.refusal("file", "is empty"))
        yield staged
    finally:
        for one in staged.values():
            await one.drop()


class FirmwareTables(msgspec.Struct, frozen=True):
    run: ProvisioningRun
    staged: Mapping[int, Draft]

    def put_image(self, at: EntryLocation, entry: FirmwareEntry) -> None:
        """Add an image, or change what is said of one. The bytes of an image never change."""
        run = self.run
        type_ = run.type_of(at, "device_type", entry.device_type)
        new, kind = self.staged[at.index], entry.type or _KIND
        name = f"{type_.unique_name} {kind} {entry.version}"
        known = self._known(entry, type_, kind)
        if known is None:
            id_ = entry.id or run.generate(at, entry.version, "id", new_id())
            record = FirmwareImageRecord(
                id_, type_.key, entry.version, kind, new.size, new.sha256, Milliseconds(run.now_ms)
            )
            run.tx.firmware.put(record)
            if not run.report.dry_run:
                new.keep(run.tx, file_name(id_))
            return run.created(at, id_, name)
        if known.device_type != type_.key:
            raise at.refusal("id", "an image of another device type has this id")
        if known.sha256 != new.sha256:
            raise at.refusal("file", "differs from the image with this id; another image needs another id")
        changed = replace(known, version=entry.version, type=kind)
        run.tx.firmware.put(changed)
        return run.found(at, known.id, name, compared(known, changed, ("version", "type")))

    def _known(self, entry: FirmwareEntry, type_: DeviceTypeRecord, kind: str) -> FirmwareImageRecord | None:
        """The image with the entry's id; without an id, the one with its device type, version and type."""
        if entry.id is not None:
            return self.run.tx.firmware.image(entry.id)
        found, _ = self.run.tx.firmware.images(type_.key, offset=0, limit=ALL_ROWS)
        return next((image for image in found if (image.version, image.type) == (entry.version, kind)), None)
