"""One frozen record for each thing that is kept: the data dictionary.

`key` is the short integer that tables refer to; `id` is the opaque text the outside world sees. Times end in `_on` or
`_ms` and are milliseconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class OrganizationRecord:
    key: int
    id: str
    name: str
    monthly_messages: int  # -1: unlimited


@dataclass(frozen=True, slots=True)
class UserRecord:
    key: int
    id: str
    email: str
    name: str
    full_name: str
    account_type: str
    password_hash: str | None
    created_on: int
    modified_on: int


@dataclass(frozen=True, slots=True)
class ApplicationRecord:
    key: int
    id: str
    organization: int
    name: str
    secret: bytes  # sealed: the client secret also signs subscription calls, so it must be readable again
    methods: tuple[str, ...]
    redirect_uris: tuple[str, ...]
    permissions: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A user or application token, kept as its SHA-256."""

    hash: bytes
    application: int
    user: int | None
    created_on: int
    expires_on: int
    family: int | None = None  # None: provisioned, or an application's own


@dataclass(frozen=True, slots=True)
class RefreshTokenRecord:
    """A refresh token, kept as its SHA-256, with what its family says: whose it is and how they got it.

    A family is everything that one authorization led to: refreshing goes on in it, and a replay ends all of it. A used
    refresh token is kept, so that a replay is recognised.
    """

    hash: bytes
    family: int
    usable_until: int
    used_on: int | None
    application: int
    user: int
    method: str


@dataclass(frozen=True, slots=True)
class AuthorizationCodeRecord:
    """A code, kept as its SHA-256; a used one points to the family it led to."""

    hash: bytes
    application: int
    user: int
    redirect_uri: str
    code_challenge: str | None
    expires_on: int
    used_on: int | None = None
    family: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceCodeRecord:
    """A request of the limited-input flow. The device's code is kept as its SHA-256, the person's as it is shown."""

    hash: bytes
    user_code: str
    application: int
    interval_seconds: int
    expires_on: int
    state: str = "pending"  # pending | approved | denied | used
    user: int | None = None
    polled_on: int | None = None


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """What a user allows an application; `device_type` None stands for every type."""

    user: int
    application: int
    device_type: int | None
    read: bool
    write: bool


@dataclass(frozen=True, slots=True)
class DeviceTypeRecord:
    key: int
    id: str
    unique_name: str
    name: str
    organization: int
    organization_id: str
    published: bool
    protected: bool
    rsp: bool
    description: str | None
    tags: tuple[str, ...]
    created_on: int
    has_cloud_connector: bool = False
    last_updated: int = 0


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    device_type: int
    version: int
    document: str
    approved: bool
    created_on: int


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    key: int
    id: str
    owner: int
    owner_id: str
    device_type: int
    name: str
    manifest_version: int
    manifest_version_policy: str  # LATEST | DEVICE
    enabled: bool
    created_on: int
    eid: str | None = None  # external id of a device that belongs to a connector
    vdid: str | None = None  # the id its vendor gave it
    cloud_authorization: str = "NO_AUTHORIZATION"  # | AUTHORIZED | UNAUTHORIZED
    certificate: bytes | None = None  # DER; what a securely registered device proves itself with
    shared: bool = False  # at least one share is accepted


@dataclass(frozen=True, slots=True)
class DeviceTokenRecord:
    device: int
    hash: bytes
    sealed: bytes
    application: int | None
    created_on: int


@dataclass(frozen=True, slots=True)
class PresenceRecord:
    device: int
    availability: str  # online | offline | unknown
    last_time_online: int | None
    protocol: str | None
    last_seen_on: int | None


@dataclass(frozen=True, slots=True)
class MailRecord:
    """An outgoing mail. It waits while `next_on` is set; when it is done, its content is erased."""

    message_id: str  # without angle brackets
    kind: str
    recipient: str
    cause: str  # who or what made us send it: rates are counted by it
    content: bytes | None  # sealed: its links carry one-time codes
    created_on: int
    next_on: int | None
    attempts: int = 0
    outcome: str | None = None  # sent | given up
    last_error: str | None = None


class MessageRow(msgspec.Struct, array_like=True, gc=False):
    """One data message as the log keeps it. Array-like and untracked, because there are many of them."""

    position: int
    device: int
    ts: int
    cts: int
    mv: int
    data: str  # compact JSON


class ActionRow(msgspec.Struct, array_like=True, gc=False):
    """One Action message: `device` is the destination (ddid), `source` the sending device (sdid)."""

    position: int
    device: int
    source: int
    ts: int
    cts: int
    mv: int
    data: str  # compact JSON: {"actions":[…]}


class FailedMessageRow(msgspec.Struct, array_like=True, gc=False):
    """A message of which nothing remained after normalisation: acknowledged and counted, but not visible."""

    position: int
    device: int
    cts: int
    reason: str
    payload: str


@dataclass(frozen=True, slots=True)
class RollupRow:
    """One field of one device in one bucket of `level` minute, hour or day; `bucket` is where it starts (ms).

    `count` is of messages with the field, `numbers` of those where it is a number; without any, the rest is None.
    broker/messages/aggregates.py says what the rest means.
    """

    device: int
    field: int
    level: str
    bucket: int
    count: int
    numbers: int = 0
    min: int | float | None = None
    max: int | float | None = None
    sum: int | float | None = None
    mean_high: float | None = None
    mean_low: float | None = None
    m2: float | None = None


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """One export. `request`, `plan` and `written` are JSON of broker/export: asked for, to be read, and done so far."""

    id: str
    user: int | None  # whose token asked for it; None is the application
    application: int | None
    trial: str | None
    request: str
    plan: str
    status: str
    created_on: int
    head: int  # nothing behind this log position is exported
    written: str | None = None
    expected_messages: int | None = None
    total_messages: int = 0
    file_size: int | None = None
    md5: str | None = None
    expires_on: int | None = None
    last_error: str | None = None


LogRow = MessageRow | ActionRow | FailedMessageRow
