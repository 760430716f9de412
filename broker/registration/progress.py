"""The status of a registration, and the results of its steps (reference 7.1)."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from storage.records import RegistrationRecord


class Status(StrEnum):
    PENDING_USER_CONFIRMATION = "PENDING_USER_CONFIRMATION"
    PENDING_DEVICE_COMPLETION = "PENDING_DEVICE_COMPLETION"
    REGISTERED = "REGISTERED"
    REVOKED = "REVOKED"
    EXPIRED = "EXPIRED"


_PENDING: Final = frozenset({Status.PENDING_USER_CONFIRMATION, Status.PENDING_DEVICE_COMPLETION})
_WITH_DEVICE: Final = frozenset({Status.PENDING_DEVICE_COMPLETION, Status.REGISTERED})


@dataclass(frozen=True, slots=True)
class BegunRegistration:
    """The answer to step 1. The user enters the PIN; the device sends the nonce with step 4."""

    id: str
    pin: str = field(repr=False)
    nonce: str = field(repr=False)
    expires_on: int


class RegistrationResult(msgspec.Struct, frozen=True):
    status: Status
    device_id: str | None


@dataclass(frozen=True, slots=True)
class Completed:
    token: str = field(repr=False)
    owner_id: str
    device_id: str


def status_of(registration: RegistrationRecord, now_ms: int) -> Status:
    """The status now: EXPIRED when its time is over, REVOKED when its device was deleted."""
    status = Status(registration.status)
    if status in _PENDING and registration.expires_on <= now_ms:
        return Status.EXPIRED
    if status in _WITH_DEVICE and registration.device_id is None:
        return Status.REVOKED
    return status
