"""The provision file of reference 26, decoded: one entry for each table, and what may stand in it.

What an entry leaves out is `None`: a new object gets its default or a generated value, an existing one keeps what it
has.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from broker.connectors.terms import ConnectorEntry
from broker.errors import ValidationFailed
from broker.ids import is_device_type_id, is_id, is_unique_name
from broker.monetization.plans import is_price
from config.limits import DESCRIPTION_MAX_CHARACTERS, FORBIDDEN_IN_NAMES, NAME_MAX_CHARACTERS
from config.mail import mail_address

Access = Literal["READ", "WRITE"]
Method = Literal["authorization_code", "pkce", "implicit", "client_credentials", "limited_input"]

EVERY_TYPE = "*"
_MIN_PASSWORD = 8
_MAX_PASSWORD = 1024
_MAX_EMAIL = 254
_MAX_MONTHLY = 10**15  # what a JSON number holds exactly
_MAX_SECONDS = 10**10
_EMAIL = re.compile(r"[^\s@<>]+@[^\s@<>]+\Z")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Organization(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    name: str
    monthly_messages: int | None = None


class User(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    email: str
    full_name: str | None = None
    password: str | None = None
    organization: str | None = None
    role: Literal["administrator", "developer", "viewer"] | None = None


class Invitation(_Entry, frozen=True, kw_only=True):
    """`again`: a new code and a new mail, although an invitation waits already."""

    email: str
    organization: str | None = None
    role: Literal["administrator", "developer", "viewer"] | None = None
    again: bool = False


class Request(_Entry, frozen=True, kw_only=True):
    """What an application asks for on one device type, or on every one."""

    device_type: str
    permissions: tuple[Access, ...]


class Application(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    name: str
    organization: str
    secret: str | None = None
    redirect_uri: str | None = None
    methods: tuple[Method, ...] | None = None
    permissions: tuple[Request, ...] | None = None


class DeviceType(_Entry, frozen=True, kw_only=True):
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


class Device(_Entry, frozen=True, kw_only=True):
    id: str | None = None
    owner: str
    type: str
    name: str | None = None
    token: str | None = None


class Token(_Entry, frozen=True, kw_only=True):
    value: str | None = None
    application: str
    user: str | None = None
    expires_in: int | None = None


class Grant(_Entry, frozen=True, kw_only=True):
    user: str
    application: str
    device_type: str
    permissions: tuple[Access, ...]


class Share(_Entry, frozen=True, kw_only=True):
    """A device, and a user who shares it without being asked."""

    device: str
    with_: str = msgspec.field(name="with")


class Plan(_Entry, frozen=True, kw_only=True):
    """What the devices of a type may send for free and for money."""

    device_type: str
    free_messages_per_day: int
    paid_cost: str | None = None


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    organizations: tuple[Organization, ...] = ()
    users: tuple[User, ...] = ()
    invitations: tuple[Invitation, ...] = ()
    applications: tuple[Application, ...] = ()
    device_types: tuple[DeviceType, ...] = ()
    devices: tuple[Device, ...] = ()
    tokens: tuple[Token, ...] = ()
    connectors: tuple[ConnectorEntry, ...] = ()
    grants: tuple[Grant, ...] = ()
    shares: tuple[Share, ...] = ()
    plans: tuple[Plan, ...] = ()
    # Tables of the design that later versions bring; refused by name rather than as unknown.
    firmware: tuple[Any, ...] = ()


_NOT_YET = ("firmware",)


def read_document(document: Mapping[str, Any]) -> Document:
    """Decode a parsed provision file and check what each entry says by itself.

    Raises:
        ValidationFailed: its finding's field is table, index and key: `users[0].password`.
    """
    try:
        decoded = msgspec.convert(document, Document)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from error
    for table in _NOT_YET:
        if getattr(decoded, table):
            raise ValidationFailed.of(table, f"this version of trunkline does not have {table} yet")
    for table, rules in _RULES.items():
        for index, entry in enumerate(getattr(decoded, table)):
            for key, check in rules.items():
                value = getattr(entry, key)
                if value is not None and (problem := check(value)):
                    raise ValidationFailed.of(f"{table}[{index}].{key}", problem)
    return decoded


def _located(text: str) -> ValidationFailed:
    """Turn msgspec's ``Expected `str`, got `int` - at `$.users[0].email` `` round: the place first."""
    problem, _, place = text.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if (missing := re.match(r"Object (contains unknown|missing required) field `(.*)`", problem)) is not None:
        problem = "unknown key" if missing[1] == "contains unknown" else "required"
        field = f"{field}.{missing[2]}".lstrip(".")
    return ValidationFailed.of(field or "file", problem[:1].lower() + problem[1:].replace("`", ""))


def _name(text: str) -> str | None:
    if not FORBIDDEN_IN_NAMES.isdisjoint(text):
        return f"must not contain any of {' '.join(sorted(FORBIDDEN_IN_NAMES))}"
    return _full_name(text)


def _full_name(text: str) -> str | None:
    """People have apostrophes in their names."""
    if not 1 <= len(text) <= NAME_MAX_CHARACTERS:
        return f"must have 1 to {NAME_MAX_CHARACTERS} characters"
    return None if text.isprintable() else "must not contain control characters"


def _must(fits: Callable[[str], bool], form: str) -> Callable[[str], str | None]:
    return lambda text: None if fits(text) else f"must be {form}"


def _password(text: str) -> str | None:
    if _MIN_PASSWORD <= len(text) <= _MAX_PASSWORD:
        return None
    return f"must have {_MIN_PASSWORD} to {_MAX_PASSWORD} characters"


def _email(text: str) -> str | None:
    return None if len(text) <= _MAX_EMAIL and _EMAIL.match(text) else "must be an e-mail address"


def _mail_address(text: str) -> str | None:
    """More than `_email` asks for: a mail must be able to get there."""
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
    """A comma separates tags in queries, so no tag has one."""
    return next((problem for tag in entries if (problem := _tag(tag)) is not None), None)


def _tag(text: str) -> str | None:
    return "must not contain commas" if "," in text else _name(text)


def _some(entries: tuple[str, ...]) -> str | None:
    return None if entries else "must have READ, WRITE or both"


def _requests(entries: tuple[Request, ...]) -> str | None:
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
}
