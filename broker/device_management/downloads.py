"""The addresses of firmware images: one for each device task, open for a day after its end (reference 18.5)."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from broker.clock import Clock
from broker.device_management.images import file_name
from broker.errors import NotFound
from broker.facts import Router, TaskProgressed
from broker.files import StoredFile
from broker.loops import Loop
from broker.trace.origin import address_key
from config.limits import DOWNLOAD_KEPT_HOURS
from storage.database import Database
from storage.firmware import FirmwareImageRecord
from storage.tasks import DeviceTaskRecord
from storage.transaction import Transaction

T = TypeVar("T")
_FLUSH_SECONDS: Final = 5.0
_KEPT_MS: Final = DOWNLOAD_KEPT_HOURS * 3_600_000


class Download(msgspec.Struct, frozen=True):
    entry: DeviceTaskRecord
    image: FirmwareImageRecord
    file: StoredFile


class DownloadStatistics(msgspec.Struct, frozen=True):
    """Since the start: requests for images, and bytes of images that were sent."""

    requests: int
    bytes_sent: int


class Downloads:
    def __init__(self, database: Database, clock: Clock, router: Router) -> None:
        self._database = database
        self._clock = clock
        self._router = router
        # How far each device has fetched its image, where that is not yet in the store.
        self._fetched: dict[int, int] = {}
        # From where, for those of which the store does not know it yet.
        self._proved: dict[int, str] = {}
        self._requests = self._bytes_sent = 0
        self.flush_forever = Loop(self.flush, every=_FLUSH_SECONDS, failure="downloads_not_saved").run

    async def find(self, download_id: str) -> Download:
        """Raises NotFound when there is no such address, or when it or its image is gone."""

        def read(tx: Transaction) -> tuple[DeviceTaskRecord, FirmwareImageRecord, StoredFile] | None:
            entry = tx.tasks.entry_of_download(download_id)
            task = None if entry is None else tx.tasks.task(entry.task)
            image = None if task is None or task.image is None else tx.firmware.image(task.image)
            file = None if image is None else tx.files.find(file_name(image.id))
            if entry is None or image is None or file is None:
                return None
            return entry, image, StoredFile(self._database, *file)

        found = await self._database.read(read)
        if found is None:
            raise NotFound
        entry, image, file = found
        if entry.ended_on is not None and entry.ended_on + _KEPT_MS <= self._clock.now_ms():
            raise NotFound
        self._requests += 1
        return Download(entry, image, file)

    def sent(self, entry: DeviceTaskRecord, position: int, size: int) -> None:
        """`size` bytes up to `position` of the image were sent."""
        self._bytes_sent += size
        if position > self.fetched(entry):
            self._fetched[entry.key] = position
            self._router.publish(TaskProgressed(entry.task))

    def fetched(self, entry: DeviceTaskRecord) -> int:
        """How many bytes of its image the device has fetched."""
        return max(self._fetched.get(entry.key, 0), entry.fetched)

    def proved(self, entry: DeviceTaskRecord, address: str) -> None:
        """The device fetches from this IP address, and has proved that it is there."""
        if not self.has_proved(entry, address):
            self._proved[entry.key] = address

    def has_proved(self, entry: DeviceTaskRecord, address: str) -> bool:
        """Whether the device is at this IP address as far as is known, also from before a restart of the daemon."""
        known = self._proved.get(entry.key, entry.fetched_from)
        return known is not None and address_key(known) == address_key(address)

    async def flush(self) -> None:
        """Store how far the devices are, and where. Raises StoreError."""
        fetched, proved = dict(self._fetched), dict(self._proved)
        if fetched or proved:
            await self._database.write(lambda tx: _store(tx, fetched, proved))
            _forget(self._fetched, fetched)
            _forget(self._proved, proved)

    def statistics(self) -> DownloadStatistics:
        return DownloadStatistics(self._requests, self._bytes_sent)


def _store(tx: Transaction, fetched: Mapping[int, int], proved: Mapping[int, str]) -> None:
    tx.tasks.set_fetched(fetched)
    tx.tasks.set_fetched_from(proved)


def _forget(kept: dict[int, T], stored: Mapping[int, T]) -> None:
    for key, value in stored.items():
        if kept.get(key) == value:
            del kept[key]
