"""The example device types that ship with the product (reference 8.7).

Each is a file in `shipped/`. They belong to the organization `example`.
"""

from importlib.resources import files
from operator import attrgetter

import msgspec

from broker.device_types.manifest import Manifest
from broker.device_types.manifest_parser import parse_manifest


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A word by which device types are found."""

    name: str
    is_category: bool


class ExampleDeviceType(msgspec.Struct, frozen=True, kw_only=True):
    """A shipped device type. `manifest_document` is the JSON text that `manifest` was read from."""

    unique_name: str
    name: str
    description: str
    published: bool
    approved: bool
    rsp: bool
    device_properties_enabled: bool
    tags: tuple[Tag, ...]
    manifest_document: str
    manifest: Manifest


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    unique_name: str
    name: str
    description: str
    published: bool
    approved: bool
    tags: tuple[Tag, ...]
    manifest: dict[str, object]
    rsp: bool = False
    device_properties_enabled: bool = False


def load_examples() -> tuple[ExampleDeviceType, ...]:
    """Every shipped device type, by unique name."""
    contents = (
        entry.read_bytes()
        for entry in files("broker.device_types").joinpath("shipped").iterdir()
        if entry.name.endswith(".json")
    )
    return tuple(sorted(map(_read, contents), key=attrgetter("unique_name")))


def _read(content: bytes) -> ExampleDeviceType:
    source = msgspec.json.decode(content, type=_File)
    return ExampleDeviceType(
        unique_name=source.unique_name,
        name=source.name,
        description=source.description,
        published=source.published,
        approved=source.approved,
        rsp=source.rsp,
        device_properties_enabled=source.device_properties_enabled,
        tags=source.tags,
        manifest_document=msgspec.json.encode(source.manifest).decode(),
        manifest=parse_manifest(source.manifest),
    )
