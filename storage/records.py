"""One frozen record for each thing that is kept: the data dictionary.

`key` is the short integer that tables refer to; `id` is the opaque text the outside world sees. Times end in `_on` or
`_ms` and are milliseconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    email_verified_on: int | None = None  # None: nobody has proved yet that the address is theirs


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
class PasswordResetRecord:
    """A code that leads to a new password. `user` None: nobody has the address that was typed, and no mail went out.

    `password` marks the password that was in force: with another one the code is over.
    """

    hash: bytes
    user: int | None
    password: bytes
    expires_on: int


@dataclass(frozen=True, slots=True)
class InvitationRecord:
    """An operator's invitation to open an account for this address, and what its owner will be."""

    email: str
    hash: bytes
    organization: int | None
    role: str | None
    expires_on: int


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
    last_updated: int = 0  # when its Manifest was; when it was created, if it has none
    owner: int | None = None  # None: nobody was named; then an administrator of the organization stands in
    owner_id: str | None = None  # of the owner, or of who stands in
    vid: str = "0"
    in_store: bool | None = None  # None: as `published`
    issuer_dn: str | None = None
    latest_version: int = 0  # the highest that is approved
    approved: bool = False  # the newest Manifest is
    billing_subscription_id: str | None = None  # of the newest monetization plan that is approved


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
    shared_with: frozenset[int] = frozenset()  # the users who accepted a share

    @property
    def shared(self) -> bool:
        """At least one share is accepted."""
        return bool(self.shared_with)


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
    is_connected: bool = field(default=False, compare=False)  # `availability` is that of a connection


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """A device offered to the owner of an address. `user` is None until somebody with the address is known."""

    id: str
    device: int
    email: str
    user: int | None
    status: str  # PENDING | ACCEPTED | REJECTED
    shared_on: int
    code_hash: bytes | None = None  # of the one-time code in the invitation, until it is answered


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


@dataclass(frozen=True, slots=True)
class RegistrationRecord:
    """One attempt of a device to register with its certificate; nonce and certificate also as their SHA-256."""

    id: str
    device_type: int
    device_type_id: str
    vendor_device_id: str
    certificate: bytes  # DER
    certificate_hash: bytes
    nonce_hash: bytes
    status: str
    created_on: int
    expires_on: int
    user: int | None = None  # who entered the PIN, with which application
    application: int | None = None
    device: int | None = None
    device_id: str | None = None  # None again when the device was deleted


@dataclass(frozen=True, slots=True)
class ApprovedEntryRecord:
    """A vendor id that is allowed to become a device, and the device that has it."""

    vdid: str
    device_id: str | None
    uploaded_on: int


@dataclass(frozen=True, slots=True)
class ApprovedUploadRecord:
    """One CSV of vendor ids; its content is there until every row was looked at."""

    key: int
    id: str
    device_type: int
    status: str  # Processing | Completed | Failed
    content: bytes | None
    total: int
    succeeded: int
    failed: int


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


@dataclass(frozen=True, slots=True)
class ConnectorRecord:
    """The cloud connector of a device type."""

    device_type: int
    plugin: str
    terms: bytes  # sealed JSON


@dataclass(frozen=True, slots=True)
class ConnectorLinkRecord:
    """A device's authorization at the third party."""

    device: int
    device_id: str
    owner: int
    owner_id: str
    device_type: int
    account: bytes | None  # SHA-256 of the account's id at the third party
    sealed: bytes
    linked_on: int
    next_fetch_on: int


@dataclass(frozen=True, slots=True)
class ConnectorStateRecord:
    """A one-time state of an authorization under way, kept as its SHA-256."""

    hash: bytes
    device: int
    user: int
    referer: str
    sealed: bytes  # what the answer will be checked with
    expires_on: int


@dataclass(frozen=True, slots=True)
class TallyRecord:
    """A counter of broker/limits: how much of `name` was used from `since_ms` on; at `until_ms` it begins anew."""

    name: str
    since_ms: int
    until_ms: int
    used: int


@dataclass(frozen=True, slots=True)
class CallsRecord:
    """How many calls `name` made before `at_ms` and after its record before that."""

    name: str
    at_ms: int
    calls: int


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A version of a device type's monetization plan."""

    key: int
    id: str
    device_type: int
    version: int
    status: str  # NEW | PENDING | APPROVED | REJECTED
    contact_email: str
    contact_phone: str
    comments: str
    revenue_share_percent: int
    created_on: int
    modified_on: int


@dataclass(frozen=True, slots=True)
class TierRecord:
    """One tier of a plan. `message_limit` is messages a day; -1 is unlimited."""

    key: int
    id: str
    plan: int
    name: str
    type: str  # free | paid
    description: str
    cost: str  # a decimal number
    message_limit: int
    interval: str
    billing_interval: str
    created_on: int
    modified_on: int


@dataclass(frozen=True, slots=True)
class UpgradeTokenRecord:
    """What the one-time token of an upgrade address stands for; it ends when the access token `token` ends."""

    hash: bytes
    user: int
    token: bytes
    application: int
    device: int
    action: str  # upgrade | select | edit
    expires_on: int
    used_on: int | None = None


@dataclass(frozen=True, slots=True)
class PaymentRecord:
    """A payment for one device's paid tier; `id` is the reference people see. Costs are decimal numbers."""

    id: str
    device: int
    device_id: str
    user: int
    tier: int
    processor: str
    status: str  # pending | accepted | declined | failed | refund_due | refunded
    cost: str
    owner_share: str  # of the device type's owner
    redirect_uri: str
    code_hash: bytes
    external_id: str | None
    created_on: int
    decided_on: int | None = None


LogRow = MessageRow | ActionRow | FailedMessageRow
