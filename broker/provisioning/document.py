"""Decoding the provision file (reference 26): one class for the entries of each table, and the rules for their keys.

A key that an entry leaves out is `None`: a new object gets the default or a generated value, an existing object keeps
its value.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from broker.accounts.applications import Method
from broker.accounts.permissions import Role
from broker.accounts.sign_up import has_email_form, is_password
from broker.connectors.terms import ConnectorEntry
from broker.errors import ValidationFailed
from broker.ids import is_device_type_id, is_id, is_unique_name
from broker.monetization.plans import is_price
from broker.subscriptions.addresses import is_stream_key, is_stream_name, is_stream_region, is_stream_secret
from config.limits import (
    DESCRIPTION_MAX_CHARACTERS,
    FORBIDDEN_IN_NAMES,
    NAME_MAX_CHARACTERS,
    PASSWORD_MAX_CHARACTERS,
    PASSWORD_MIN_CHARACTERS,
    RULE_DESCRIPTION_MAX_CHARACTERS,
    SUBSCRIPTION_DESCRIPTION_CHARACTERS,
)
from config.mail import mail_address

_Access = Literal["READ", "WRITE"]

_MAX_MONTHLY = 10**15  # a JSON number holds it exactly
_MAX_SECONDS = 10**10


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class OrganizationEntry(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    name: str
    monthly_messages: int | None = None


class UserEntry(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    email: str
    full_name: str | None = None
    password: str | None = None
    organization: str | None = None
    role: Role | None = None


class InvitationEntry(_Entry, frozen=True, kw_only=True):
    """`again`: send a new code, also when the address has an unexpired invitation."""

    email: str
    organization: str | None = None
    role: Role | None = None
    again: bool = False


class PermissionRequest(_Entry, frozen=True, kw_only=True):
    """What an application asks for on one device type, or on all (`EVERY_TYPE`)."""

    device_type: str
    permissions: tuple[_Access, ...]


class ApplicationEntry(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    name: str
    organization: str
    secret: str | None = None
    redirect_uri: str | None = None
    methods: tuple[Method, ...] | None = None
    permissions: tuple[PermissionRequest, ...] | None = None


class DeviceTypeEntry(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    unique_name: str
    name: str | None = None
    organization: str
    description: str | None = None
    published: bool | None = None
    protected: bool | None = None
    tags: tuple[str, ...] | None = None
    retention_days: int | None = None
    owner: str | None = None
    vid: str | None = None
    in_store: bool | None = None
    rsp: bool | None = None
    ca: str | None = None  # the PEM text itself
    manifest: dict[str, Any] | None = None


class DeviceEntry(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    owner: str
    type: str
    name: str | None = None
    token: str | None = None


class TokenEntry(_Entry, frozen=True, kw_only=True):
    value: str | None = None
    application: str
    user: str | None = None
    expires_in: int | None = None


class GrantEntry(_Entry, frozen=True, kw_only=True):
    user: str
    application: str
    device_type: str
    permissions: tuple[_Access, ...]


class ShareEntry(_Entry, frozen=True, kw_only=True):
    """A device, and a user with whom it is shared, without an invitation."""

    device: str
    with_: str = msgspec.field(name="with")


class PlanEntry(_Entry, frozen=True, kw_only=True):
    """How many messages the devices of a type may send for free, and what unlimited messages cost."""

    device_type: str
    free_messages_per_day: int
    paid_cost: str | None = None


class FirmwareEntry(_Entry, frozen=True, kw_only=True):
    """A firmware image. `file` is a path on the machine of the daemon."""

    id: str | None = None
    device_type: str
    version: str
    type: str | None = None
    file: str


class RuleEntry(_Entry, frozen=True, kw_only=True):
    """A rule, with its body as on the wire."""

    id: str | None = None
    owner: str
    application: str
    name: str
    description: str | None = None
    scope: Literal["allApplications", "thisApplication"] | None = None
    enabled: bool | None = None
    rule: dict[str, Any]


class SceneEntry(_Entry, frozen=True, kw_only=True):
    """A scene, with its Actions as in a call."""

    id: str | None = None
    owner: str
    application: str
    name: str
    description: str | None = None
    actions: tuple[dict[str, Any], ...]


class SubscriptionEntry(_Entry, frozen=True, kw_only=True):
    """A subscription, with the members of a call in snake case."""

    id: str | None = None
    owner: str
    application: str
    subscription_type: Literal["httpCallback", "cloudStream"] | None = None
    message_type: Literal["message", "action"] = "message"
    sdtid: str | None = None
    sdid: str | None = None
    ddid: str | None = None
    include_shared_devices: bool | None = None
    description: str | None = None
    payload: Literal["messages", "notification"] | None = None
    callback_url: str | None = None
    cloud_key: str | None = None
    cloud_secret: str | None = None
    cloud_region: str | None = None
    cloud_stream_name: str | None = None


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    organizations: tuple[OrganizationEntry, ...] = ()
    users: tuple[UserEntry, ...] = ()
    invitations: tuple[InvitationEntry, ...] = ()
    applications: tuple[ApplicationEntry, ...] = ()
    device_types: tuple[DeviceTypeEntry, ...] = ()
    devices: tuple[DeviceEntry, ...] = ()
    tokens: tuple[TokenEntry, ...] = ()
    connectors: tuple[ConnectorEntry, ...] = ()
    grants: tuple[GrantEntry, ...] = ()
    shares: tuple[ShareEntry, ...] = ()
    plans: tuple[PlanEntry, ...] = ()
    firmware: tuple[FirmwareEntry, ...] = ()
    rules: tuple[RuleEntry, ...] = ()
    scenes: tuple[SceneEntry, ...] = ()
    subscriptions: tuple[SubscriptionEntry, ...] = ()


#: What may stand at keys with few values; the error about another value names them.
_CHOICES: Mapping[str, Sequence[str]] = {
    "role": tuple(Role),
    "methods": tuple(Method),
    "permissions": get_args(_Access),
}


def read_document(document: Mapping[str, Any]) -> Document:
    """Decode a parsed provision file and check each entry by itself.

    Raises:
        ValidationFailed: the field of its finding is table, index and key: `users[0].password`.
    """
    try:
        decoded = msgspec.convert(document, Document)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from error
    for table, rules in _RULES.items():
        for index, entry in enumerate(getattr(decoded, table)):
            for key, check in rules.items():
                value = getattr(entry, key)
                if value is not None and (problem := check(value)):
                    raise ValidationFailed.of(f"{table}[{index}].{key}", problem)
    return decoded


def _located(text: str) -> ValidationFailed:
    """Split msgspec's ``Expected `str`, got `int` - at `$.users[0].email` `` into field and problem."""
    problem, _, place = text.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if (missing := re.match(r"Object (contains unknown|missing required) field `(.*)`", problem)) is not None:
        problem = "unknown key" if missing[1] == "contains unknown" else "required"
        field = f"{field}.{missing[2]}".lstrip(".")
    elif problem.startswith("Invalid enum value") and (choices := _CHOICES.get(re.findall(r"[a-z_]+", field)[-1])):
        problem += f" (allowed: {', '.join(choices)})"
    return ValidationFailed.of(field or "file", problem[:1].lower() + problem[1:].replace("`", ""))


def _name(text: str) -> str | None:
    if not FORBIDDEN_IN_NAMES.isdisjoint(text):
        return f"must not contain any of {' '.join(sorted(FORBIDDEN_IN_NAMES))}"
    return _full_name(text)


def _full_name(text: str) -> str | None:
    """Unlike `_name`, with apostrophes, which names of people have."""
    if not 1 <= len(text) <= NAME_MAX_CHARACTERS:
        return f"must have 1 to {NAME_MAX_CHARACTERS} characters"
    return None if text.isprintable() else "must not contain control characters"


def _must(fits: Callable[[str], bool], form: str) -> Callable[[str], str | None]:
    return lambda text: None if fits(text) else f"must be {form}"


def _password(text: str) -> str | None:
    return None if is_password(text) else f"must have {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters"


def _email(text: str) -> str | None:
    return None if has_email_form(text) else "must be an e-mail address"


def _mail_address(text: str) -> str | None:
    """Stricter than `_email`: the address must be one that a mail can be sent to."""
    try:
        mail_address(text)
    except ValueError as error:
        return f"is {error}"
    return _email(text)


def _monthly(count: int) -> str | None:
    return None if -1 <= count <= _MAX_MONTHLY else f"must be -1 (unlimited) to {_MAX_MONTHLY}"


def _per_day(count: int) -> str | None:
    return None if count == -1 or 1 <= count <= _MAX_MONTHLY else f"must be -1 (unlimited) or 1 to {_MAX_MONTHLY}"


def _cost(text: str) -> str | None:
    return None if is_price(text) and float(text) > 0 else 'must be a price with at most two decimals, such as "2.99"'


def _seconds(count: int) -> str | None:
    return None if 1 <= count <= _MAX_SECONDS else f"must be 1 to {_MAX_SECONDS} seconds"


def _tags(entries: tuple[str, ...]) -> str | None:
    """Tags without commas, because commas separate tags in queries."""
    return next((problem for tag in entries if (problem := _tag(tag)) is not None), None)


def _tag(text: str) -> str | None:
    return "must not contain commas" if "," in text else _name(text)


def _some(entries: tuple[str, ...]) -> str | None:
    return None if entries else "must have READ, WRITE or both"


def _requests(entries: tuple[PermissionRequest, ...]) -> str | None:
    return next((_some(entry.permissions) for entry in entries if not entry.permissions), None)


def _uri(text: str) -> str | None:
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S+\Z", text) else "must be an absolute URI"


_ID = _must(is_id, "32 lower-case hexadecimal characters")
_SECRET = _must(lambda text: 1 <= len(text) <= 128, "1 to 128 characters")

_RULES: Mapping[str, Mapping[str, Callable[[Any], str | None]]] = {
    "organizations": {"id": _ID, "name": _name, "monthly_messages": _monthly},
    "users": {"id": _ID, "email": _email, "full_name": _full_name, "password": _password},
    "invitations": {"email": _mail_address},
    "applications": {
        "id": _ID,
        "name": _name,
        "secret": _SECRET,
        "redirect_uri": _uri,
        "permissions": _requests,
    },
    "device_types": {
        "id": _must(is_device_type_id, "1 to 64 characters of A-Z a-z 0-9 _ . -"),
        "unique_name": _must(is_unique_name, "a lower-case dotted name such as example.smart_light"),
        "name": _name,
        "description": _must(
            lambda text: len(text) <= DESCRIPTION_MAX_CHARACTERS, f"at most {DESCRIPTION_MAX_CHARACTERS} characters"
        ),
        "tags": _tags,
        "vid": _must(lambda text: 1 <= len(text) <= NAME_MAX_CHARACTERS, f"1 to {NAME_MAX_CHARACTERS} characters"),
    },
    "devices": {"id": _ID, "name": _name, "token": _ID},
    "tokens": {"value": _ID, "expires_in": _seconds},
    "grants": {"permissions": _some},
    "plans": {"free_messages_per_day": _per_day, "paid_cost": _cost},
    "firmware": {"id": _ID, "version": _name, "type": _name},
    "rules": {
        "id": _ID,
        "name": _must(lambda text: 1 <= len(text) <= NAME_MAX_CHARACTERS, f"1 to {NAME_MAX_CHARACTERS} characters"),
        "description": _must(
            lambda text: len(text) <= RULE_DESCRIPTION_MAX_CHARACTERS,
            f"at most {RULE_DESCRIPTION_MAX_CHARACTERS} characters",
        ),
    },
    "scenes": {"id": _ID},
    "subscriptions": {
        "id": _ID,
        "description": _must(
            lambda text: len(text) <= SUBSCRIPTION_DESCRIPTION_CHARACTERS,
            f"at most {SUBSCRIPTION_DESCRIPTION_CHARACTERS} characters",
        ),
        "cloud_key": _must(is_stream_key, "1 to 128 visible characters of ASCII"),
        "cloud_secret": _must(is_stream_secret, "1 to 256 visible characters of ASCII"),
        "cloud_region": _must(is_stream_region, "a region such as eu-west-1"),
        "cloud_stream_name": _must(is_stream_name, "1 to 128 characters of A-Z a-z 0-9 _ . -"),
    },
}
