"""Reads Manifests that people upload, so that a large one holds up nobody else: 256 KB take 0.1 s.

A short document is read at once. Long ones are read in a thread, one at a time, fairly by user.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from broker.device_types.manifest import Manifest
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.resources import ResourceModels, check_resources
from broker.threads import RunInThread, run_in_thread
from broker.trace.origin import on_whose_account
from storage.fair_places import FairPlaces

T = TypeVar("T")
#: A document of this length takes 2 ms.
_SHORT_BYTES: Final = 4 * 1024


@lru_cache(maxsize=16)
def parsed_manifest(text: str) -> Manifest:
    """The Manifest of an uploaded document. The last ones are kept: each is read again after its upload."""
    return parse_manifest(msgspec.json.decode(text))


class DeviceTypeDocument(msgspec.Struct, frozen=True):
    """The JSON text of a document, and the Manifest that it is."""

    text: bytes
    manifest: Manifest

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "DeviceTypeDocument":
        """Raises ValidationFailed with every problem of the document."""
        text = msgspec.json.encode(document)
        return cls(text, parsed_manifest(text.decode()))


class DeviceTypeDocuments:
    def __init__(self, run: RunInThread = run_in_thread) -> None:
        self._run = run
        self._places = FairPlaces(1)
        #: Of LWM2M; device management sets it.
        self.models: ResourceModels | None = None

    async def read(self, document: Mapping[str, Any]) -> DeviceTypeDocument:
        """Raises ValidationFailed with every problem of the document."""
        return await self.run(document, lambda: self.checked(document))

    def checked(self, document: Mapping[str, Any]) -> DeviceTypeDocument:
        """As `read`, at once."""
        found = DeviceTypeDocument.of(document)
        check_resources(found.manifest, self.models)
        return found

    async def run(self, document: Mapping[str, Any], work: Callable[[], T]) -> T:
        """Run what reads a document."""
        if len(msgspec.json.encode(document)) <= _SHORT_BYTES:
            return work()
        async with self._places.of(on_whose_account()):
            return await self._run(work)
