"""Formats of the values in the provision file. Each has its check, and as much of it as JSON Schema can express."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.accounts.sign_up import has_email_form, is_password
from broker.ids import is_device_type_id, is_id, is_unique_name
from broker.messages.retention import LONGEST_DAYS
from broker.monetization.plans import is_price
from broker.names import name_problem, plain_name_problem
from broker.subscriptions.addresses import is_stream_key, is_stream_name, is_stream_region, is_stream_secret
from broker.topics.space import SERVICE
from broker.topics.tree import is_filter
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

_MAX_MONTHLY: Final = 10**15  # a JSON number holds it exactly
_MAX_SECONDS: Final = 10**10
_SECRET_MAX: Final = 128


class Form(msgspec.Struct, frozen=True, eq=False):
    """`check` returns what is wrong with a value, or None. `schema` has members of a JSON Schema."""

    check: Callable[[Any], str | None]
    schema: Mapping[str, Any] = msgspec.field(default_factory=dict)


def key_about(text: str, **schema: Any) -> msgspec.Meta:
    """The description of a key in the schema of the file."""
    return msgspec.Meta(description=text, extra_json_schema=schema or None)


#: The command replaces the name of a file by its content.
FILE_OR_TABLE: Final = Form(lambda _value: None, {"type": ["object", "string"]})


def _must(fits: Callable[[str], bool], form: str, **schema: Any) -> Form:
    return Form(lambda text: None if fits(text) else f"must be {form}", schema)


def _characters(least: int, most: int, verb: str = "must have") -> Form:
    span = f"at most {most}" if least == 0 else f"{least} to {most}"
    problem = f"{verb} {span} characters"
    return Form(lambda text: None if least <= len(text) <= most else problem, {"minLength": least, "maxLength": most})


def _full_name(text: str) -> str | None:
    if not 1 <= len(text) <= NAME_MAX_CHARACTERS:
        return f"must have 1 to {NAME_MAX_CHARACTERS} characters"
    return name_problem(text)


def _name(text: str) -> str | None:
    return plain_name_problem(text) or _full_name(text)


def _password(text: str) -> str | None:
    return None if is_password(text) else f"must have {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters"


def _email(text: str) -> str | None:
    return None if has_email_form(text) else "must be an e-mail address"


def _mail_address(text: str) -> str | None:
    try:
        mail_address(text)
    except ValueError as error:
        return f"is {error}"
    return _email(text)


def _tags(entries: tuple[str, ...]) -> str | None:
    return next((problem for tag in entries if (problem := _tag(tag)) is not None), None)


def _tag(text: str) -> str | None:
    return "must not contain commas" if "," in text else _name(text)


def _numbers(least: int, most: int, form: str) -> Form:
    bounds = {"minimum": least, "maximum": most}
    return Form(lambda count: None if least <= count <= most else f"must be {form}", bounds)


_LENGTH: Final = {"minLength": 1, "maxLength": NAME_MAX_CHARACTERS}
_HEX32: Final = {"pattern": "^[0-9a-f]{32}$"}

ID: Final = _must(is_id, "32 lower-case hexadecimal characters", **_HEX32)
TYPE_ID: Final = _must(is_device_type_id, "1 to 64 characters of A-Z a-z 0-9 _ . -", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
UNIQUE_NAME: Final = _must(
    is_unique_name,
    "a lower-case dotted name such as example.smart_light",
    pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$",
    maxLength=128,
)
NAME: Final = Form(_name, {**_LENGTH, "pattern": f"^[^{re.escape(''.join(sorted(FORBIDDEN_IN_NAMES)))}]*$"})
#: Unlike other names, with apostrophes, which names of people have.
FULL_NAME: Final = Form(_full_name, _LENGTH)
#: Of rules, scenes and vendors.
PLAIN_NAME: Final = FULL_NAME
KEY: Final = Form(_full_name, _LENGTH)
TOPIC: Final = _must(
    lambda text: is_filter(text.encode()) and not text.encode().startswith(SERVICE),
    "a topic filter, and none of the service's own topics",
    minLength=1,
)
DESCRIPTION: Final = _characters(0, DESCRIPTION_MAX_CHARACTERS, "must be")
RULE_DESCRIPTION: Final = _characters(0, RULE_DESCRIPTION_MAX_CHARACTERS, "must be")
SUBSCRIPTION_DESCRIPTION: Final = _characters(0, SUBSCRIPTION_DESCRIPTION_CHARACTERS, "must be")
STREAM_KEY: Final = _must(is_stream_key, "1 to 128 visible characters of ASCII", minLength=1, maxLength=128)
STREAM_SECRET: Final = _must(is_stream_secret, "1 to 256 visible characters of ASCII", minLength=1, maxLength=256)
STREAM_REGION: Final = _must(is_stream_region, "a region such as eu-west-1", minLength=1)
STREAM_NAME: Final = _must(
    is_stream_name, "1 to 128 characters of A-Z a-z 0-9 _ . -", pattern=r"^[A-Za-z0-9_.-]{1,128}$"
)
SECRET: Final = _characters(1, _SECRET_MAX, "must be")
PASSWORD: Final = Form(_password, {"minLength": PASSWORD_MIN_CHARACTERS, "maxLength": PASSWORD_MAX_CHARACTERS})
EMAIL: Final = Form(_email, {"pattern": "^[^\\s@<>]+@[^\\s@<>]+$"})
#: Stricter: the address must be one that a mail can be sent to.
MAIL_ADDRESS: Final = Form(_mail_address, {"pattern": "^[^\\s@<>]+@[^\\s@<>]+$"})
#: Tags without commas, because commas separate tags in queries.
TAGS: Final = Form(_tags, {"items": {"type": "string", **_LENGTH, "pattern": "^[^,]*$"}})
URI: Final = _must(
    lambda text: re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S+\Z", text) is not None,
    "an absolute URI",
    pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:\S+$",
)
SOME: Final = Form(lambda entries: None if entries else "must have READ, WRITE or both", {"minItems": 1})
MONTHLY: Final = _numbers(-1, _MAX_MONTHLY, f"-1 (unlimited) to {_MAX_MONTHLY}")
PER_DAY: Final = Form(
    lambda count: (
        None if count == -1 or 1 <= count <= _MAX_MONTHLY else f"must be -1 (unlimited) or 1 to {_MAX_MONTHLY}"
    ),
    {"minimum": -1, "maximum": _MAX_MONTHLY, "not": {"const": 0}},
)
SECONDS: Final = _numbers(1, _MAX_SECONDS, f"1 to {_MAX_SECONDS} seconds")
DAYS: Final = Form(
    lambda days: None if 0 <= days <= LONGEST_DAYS else f"0 (for ever) to {LONGEST_DAYS}",
    {"minimum": 0, "maximum": LONGEST_DAYS},
)
COST: Final = Form(
    lambda text: (
        None if is_price(text) and float(text) > 0 else 'must be a price with at most two decimals, such as "2.99"'
    ),
    {"pattern": r"^[0-9]+(\.[0-9]{1,2})?$"},
)
