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


class FailedReading(msgspec.Struct, frozen=True):
    """The failed messages of a type are read again with this version: `fit` of `looked` are messages now. `ended_on` is
    None while it goes on."""

    version: int
    looked: int
    fit: int
    began_on: int
    ended_on: int | None


class FailedMessages(msgspec.Struct, frozen=True):
    """Newest first. `reading` is None when none was read again."""

    messages: tuple["FailedMessage", ...]
    reading: FailedReading | None


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that failed, and the reason. A payload that is not text is shown as `hex:…`."""

    device: str
    received_on: int
    reason: str
    payload: str
