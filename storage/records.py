"""One frozen record for each kind of stored object: the data dictionary.

`key` is the short integer that tables refer to; `id` is the opaque text that clients see. Times end in `_on` or
`_ms` and are milliseconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, Position, UserKey

#: The `key` of a record that is not stored yet: the store gives it one.
NEW_KEY: Final[Any] = 0


class OrganizationRecord(msgspec.Struct, frozen=True):
    key: OrganizationKey
    id: str
    name: str
    monthly_messages: int  # -1: unlimited


class UserRecord(msgspec.Struct, frozen=True):
    key: UserKey
    id: str
    email: str
    name: str
    full_name: str
    account_type: str
    password_hash: str | None
    created_on: int
    modified_on: int
    email_verified_on: int | None = None  # None: the user has not proved yet to own the address
    disabled_on: int | None = None  # None: the user may sign in
    language: str | None = None  # of the pages; None: as the browser wants it


def user_record(row: Mapping[str, Any]) -> UserRecord:
    """A row of `user`, without the form in which its address is compared."""
    return UserRecord(**{name: row[name] for name in UserRecord.__struct_fields__})


class ApplicationRecord(msgspec.Struct, frozen=True):
    key: ApplicationKey
    id: str
    organization: OrganizationKey
    name: str
    secret: bytes  # sealed, not hashed: the client secret also signs subscription calls
    methods: tuple[str, ...]
    redirect_uris: tuple[str, ...]
    permissions: tuple[Mapping[str, object], ...]
    any_loopback_port: bool = False  # its loopback redirect URIs fit with any port (RFC 8252, 7.3)
    manages_organization: bool = False  # its own tokens have an administrator's rights


class TokenRecord(msgspec.Struct, frozen=True):
    """A user or application token, kept as its SHA-256."""

    hash: bytes
    application: ApplicationKey
    user: UserKey | None
    created_on: int
    expires_on: int
    family: int | None = None  # None: provisioned, of a session, or issued to an application itself
    session: bytes | None = None  # the hash of the browser session with which a token of the console ends


class RefreshTokenRecord(msgspec.Struct, frozen=True):
    """A refresh token, kept as its SHA-256, with its family's user, application and way of authorization.

    A family is all tokens that come from one authorization: refreshing adds to it, and a replay ends all of it. A used
    refresh token is kept, so that a replay is recognised.
    """

    hash: bytes
    family: int
    usable_until: int
    used_on: int | None
    salt: bytes | None  # of its use: the tokens that it was exchanged for come of it and the token in the clear
    application: ApplicationKey
    user: UserKey
    method: str


class AuthorizationCodeRecord(msgspec.Struct, frozen=True):
    """An authorization code, kept as its SHA-256; a used one refers to the family that came from it."""

    hash: bytes
    application: ApplicationKey
    user: UserKey
    redirect_uri: str
    code_challenge: str | None
    expires_on: int
    used_on: int | None = None
    family: int | None = None
    scope: str = ""  # of OpenID Connect; empty: plain OAuth 2
    nonce: str | None = None
    signed_in_on: int | None = None


class DeviceCodeRecord(msgspec.Struct, frozen=True):
    """A request of the limited-input flow. The device's code is kept as its SHA-256, the user's code as it is shown."""

    hash: bytes
    user_code: str
    application: ApplicationKey
    interval_seconds: int
    expires_on: int
    state: str = "pending"  # pending | approved | denied | used
    user: UserKey | None = None
    polled_on: int | None = None


class SessionRecord(msgspec.Struct, frozen=True):
    """A browser session.

    `password` is a mark of the password in force: when the password changes, the session ends. `proof` is how the
    person proved who they are: `password`, `code` (password and second factor) or `provider`.
    """

    hash: bytes
    user: UserKey
    password: bytes
    proof: str
    address: str
    user_agent: str
    created_on: int
    used_on: int
    expires_on: int


class SecondFactorRecord(msgspec.Struct, frozen=True):
    user: UserKey
    secret: bytes  # sealed
    last_step: int  # the latest time step (RFC 6238) of which a code was used
    created_on: int


class PasswordResetRecord(msgspec.Struct, frozen=True):
    """A code for setting a new password. `user` None: no user has the address that was entered, and no mail was sent.

    `password` is a mark of the password in force at that time: when the password changes, the code becomes invalid.
    """

    hash: bytes
    user: UserKey | None
    password: bytes
    expires_on: int


class InvitationRecord(msgspec.Struct, frozen=True):
    """An operator's invitation to open an account for this address, with the organization and role of the new user."""

    email: str
    hash: bytes
    organization: OrganizationKey | None
    role: str | None
    expires_on: int


class GrantRecord(msgspec.Struct, frozen=True):
    """A user's grant for an application; `device_type` None stands for every type.

    The grant of a sign-in has no device type, and neither READ nor WRITE; any grant covers the types of the
    application's own organization. `profile`: the application may change the user's profile; `trials`: it may manage
    the user's trials; both only without a type.
    """

    user: UserKey
    application: ApplicationKey
    device_type: DeviceTypeKey | None
    read: bool
    write: bool
    profile: bool = False
    trials: bool = False


class DeviceTypeRecord(msgspec.Struct, frozen=True):
    key: DeviceTypeKey
    id: str
    unique_name: str
    name: str
    organization: OrganizationKey
    organization_id: str
    published: bool
    protected: bool
    rsp: bool
    description: str | None
    tags: tuple[str, ...]
    created_on: int
    has_cloud_connector: bool = False
    last_updated: int = 0  # when its Manifest changed last; without a Manifest, when the type was created
    owner: UserKey | None = None  # None: no owner was named; an administrator of the organization acts as the owner
    owner_id: str | None = None  # of the owner, or of that administrator
    vid: str = "0"
    in_store: bool | None = None  # None: as `published`
    issuer_dn: str | None = None
    latest_version: int = 0  # the highest approved version
    approved: bool = False  # the newest Manifest is approved
    billing_subscription_id: str | None = None  # of the newest approved monetization plan


class ManifestRecord(msgspec.Struct, frozen=True):
    device_type: DeviceTypeKey
    version: int
    document: str
    approved: bool
    created_on: int


class DeviceRecord(msgspec.Struct, frozen=True):
    key: DeviceKey
    id: str
    owner: UserKey
    owner_id: str
    device_type: DeviceTypeKey
    name: str
    manifest_version: int
    manifest_version_policy: str  # LATEST | DEVICE
    enabled: bool
    created_on: int
    eid: str | None = None  # the external id of a connector's device
    vdid: str | None = None  # the vendor's id
    cloud_authorization: str = "NO_AUTHORIZATION"  # | AUTHORIZED | UNAUTHORIZED
    certificate: bytes | None = None  # DER; the certificate of a securely registered device
    shared_with: frozenset[UserKey] = frozenset()  # the users who accepted a share

    @property
    def shared(self) -> bool:
        """At least one share is accepted."""
        return bool(self.shared_with)


class DeviceTokenRecord(msgspec.Struct, frozen=True):
    device: DeviceKey
    hash: bytes
    sealed: bytes
    application: ApplicationKey | None
    created_on: int


@dataclass(frozen=True, slots=True)
class PresenceRecord:
    device: DeviceKey
    availability: str  # online | offline | unknown
    last_time_online: int | None
    protocol: str | None
    last_seen_on: int | None
    is_connected: bool = field(default=False, compare=False)  # `availability` comes from a connection


class ShareRecord(msgspec.Struct, frozen=True):
    """A device offered to the owner of an address. `user` is None until a user with the address exists.

    `uid`: the user id by which it was offered; the owner of the device does not see the address behind it.
    """

    id: str
    device: DeviceKey
    email: str
    user: UserKey | None
    status: str  # PENDING | ACCEPTED | REJECTED
    shared_on: int
    code_hash: bytes | None = None  # SHA-256 of the one-time code in the invitation, until the invitation is answered
    uid: str | None = None


class MailRecord(msgspec.Struct, frozen=True):
    """An outgoing mail. The mail waits while `next_on` is set; its content is erased when it is sent or given up."""

    message_id: str  # without angle brackets
    kind: str
    recipient: str  # in the form in which addresses are compared (reference 5.1)
    cause: str  # the user or object that the mail is about: rates are counted by cause
    content: bytes | None  # sealed, because its links contain one-time codes
    created_on: int
    next_on: int | None
    attempts: int = 0
    outcome: str | None = None  # sent | given up
    last_error: str | None = None


class RegistrationRecord(msgspec.Struct, frozen=True):
    """A device's attempt to register with its certificate; the nonce is kept as its SHA-256."""

    id: str
    device_type: DeviceTypeKey
    device_type_id: str
    vendor_device_id: str
    certificate: bytes  # DER
    certificate_hash: bytes
    nonce_hash: bytes
    status: str
    created_on: int
    expires_on: int
    user: UserKey | None = None  # the user who entered the PIN, and the application
    application: ApplicationKey | None = None
    device: DeviceKey | None = None
    device_id: str | None = None  # None again when the device was deleted


class ApprovedEntryRecord(msgspec.Struct, frozen=True):
    """A vendor id that may be registered, and the device that has it."""

    vdid: str
    device_id: str | None
    uploaded_on: int


class ApprovedUploadRecord(msgspec.Struct, frozen=True):
    """One CSV of vendor ids; `content` is None when every row was read."""

    key: int
    id: str
    device_type: DeviceTypeKey
    status: str  # Processing | Completed | Failed
    content: bytes | None
    total: int
    succeeded: int
    failed: int


class MessageRow(msgspec.Struct, array_like=True, gc=False):
    """One data message of the log. Array-like and not tracked by the garbage collector, because there are many.

    Until the commit, rows of the log have their tickets in the place of positions.
    """

    position: Position
    device: DeviceKey
    ts: Milliseconds
    cts: Milliseconds
    mv: int
    data: str  # compact JSON


class ActionRow(msgspec.Struct, array_like=True, gc=False):
    """One Action message: `device` is the destination (ddid), `source` the sending device (sdid)."""

    position: Position
    device: DeviceKey
    source: DeviceKey
    ts: Milliseconds
    cts: Milliseconds
    mv: int
    data: str  # compact JSON: {"actions":[…]}


class FailedMessageRow(msgspec.Struct, array_like=True, gc=False):
    """A message that normalisation left empty: acknowledged and counted, but not visible."""

    position: Position
    device: DeviceKey
    cts: Milliseconds
    reason: str
    payload: str
    #: The time that its device gave it; None: it is not read again with another Manifest.
    ts: Milliseconds | None = None


class SnapshotRow(NamedTuple):
    """Snapshot and rollup state of a device as of `position`, both as JSON (broker/messages/folds.py).

    `open` has the newest bucket of each level, which the rollups do not have; None in a store from before.
    """

    device: DeviceKey
    position: Position
    fields: str
    open: str | None


class RollupRow(msgspec.Struct, frozen=True):
    """One field of one device in one bucket of `level` minute, hour or day; `bucket` is where it starts (ms).

    `count` is the number of messages with the field, `numbers` of those in which the field is a number; without any,
    the other members are None. broker/messages/aggregates.py defines them.
    """

    device: DeviceKey
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


class ExportRecord(msgspec.Struct, frozen=True):
    """One export. `request`, `plan` and `written` are JSON of broker/export: the request, the devices, the progress."""

    id: str
    user: UserKey | None  # the user of the token that asked for the export; None: the application itself
    application: ApplicationKey | None
    trial: str | None
    request: str
    plan: str
    status: str
    created_on: int
    head: Position  # messages after this log position are not exported
    written: str | None = None
    expected_messages: int | None = None
    total_messages: int = 0
    file_size: int | None = None
    md5: str | None = None
    expires_on: int | None = None
    last_error: str | None = None


class ConnectorRecord(msgspec.Struct, frozen=True):
    """The cloud connector of a device type."""

    device_type: DeviceTypeKey
    plugin: str
    terms: bytes  # sealed JSON


class ConnectorLinkRecord(msgspec.Struct, frozen=True):
    """A device's authorization at the third party."""

    device: DeviceKey
    device_id: str
    owner: UserKey
    owner_id: str
    device_type: DeviceTypeKey
    account: bytes | None  # SHA-256 of the account's id at the third party
    sealed: bytes
    linked_on: int
    next_fetch_on: int


class ConnectorStateRecord(msgspec.Struct, frozen=True):
    """A one-time state of an authorization under way, kept as its SHA-256."""

    hash: bytes
    device: DeviceKey
    user: UserKey
    referer: str
    application: str | None  # the id of the application whose token began it
    sealed: bytes  # sealed JSON that the third party's answer is checked with
    expires_on: int


class TallyRecord(msgspec.Struct, frozen=True):
    """A counter of broker/limits: how much of `name` was used since `since_ms`; the counter restarts at `until_ms`."""

    name: str
    since_ms: int
    until_ms: int
    used: int


class CallsRecord(msgspec.Struct, frozen=True):
    """How many calls `name` made up to `at_ms`, since its previous record."""

    name: str
    at_ms: int
    calls: int


class PlanRecord(msgspec.Struct, frozen=True):
    """A version of a device type's monetization plan."""

    key: int
    id: str
    device_type: DeviceTypeKey
    version: int
    status: str  # NEW | PENDING | APPROVED | REJECTED
    contact_email: str
    contact_phone: str
    comments: str
    revenue_share_percent: int
    created_on: int
    modified_on: int


class TierRecord(msgspec.Struct, frozen=True):
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


class UpgradeTokenRecord(msgspec.Struct, frozen=True):
    """The one-time token of an upgrade address; the token ends when the access token `token` ends."""

    hash: bytes
    user: UserKey
    token: bytes
    application: ApplicationKey
    device: DeviceKey
    action: str  # upgrade | select | edit
    expires_on: int
    used_on: int | None = None


class PaymentRecord(msgspec.Struct, frozen=True):
    """A payment for one device's paid tier; `id` is the reference that users see. Costs are decimal numbers."""

    id: str
    device: DeviceKey
    device_id: str
    user: UserKey | None  # None: the user was deleted
    tier: int
    processor: str
    status: str  # pending | accepted | declined | failed | refund_due | refunded
    cost: str
    owner_share: str  # the share of the device type's owner
    redirect_uri: str
    code_hash: bytes
    external_id: str | None
    created_on: int
    decided_on: int | None = None


class AuditRecord(msgspec.Struct, frozen=True):
    """One entry of the audit log. An actor or object is a word and an id, as in `device 0123`."""

    at_ms: int
    event: str
    actor: str  # empty: a stranger, or the daemon itself
    address: str
    object: str
    outcome: str  # done | refused | failed
    details: Mapping[str, Any] = msgspec.field(default_factory=dict)
    of_stranger: bool = False


class AuditFilter(msgspec.Struct, frozen=True):
    """Which entries of the audit log are wanted; what is empty matches all."""

    since_ms: int
    until_ms: int
    limit: int
    actor: str = ""
    event: str = ""
    object: str = ""
    outcome: str = ""
