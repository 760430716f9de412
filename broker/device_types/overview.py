"""The operator's overview of device types, their Manifests and the messages that failed with them."""

from typing import Final

import msgspec

FAILURES_MAX: Final = 1_000


class UploadedManifest(msgspec.Struct, frozen=True):
    """The result of an upload. `is_new` is false when the document is the newest version already."""

    device_type: str
    version: int
    approved: bool
    is_new: bool


class TypeOverview(msgspec.Struct, frozen=True):
    """A type in the operator's list. `waiting` has the versions that are not approved."""

    id: str
    unique_name: str
    published: bool
    latest_version: int
    waiting: tuple[int, ...]


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that failed, and the reason. A payload that is not text is shown as `hex:…`."""

    device: str
    received_on: int
    reason: str
    payload: str
