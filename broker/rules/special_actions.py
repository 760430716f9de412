"""The special Actions `httpRequest` and `sendEmail`: their values, checked (reference 12.11)."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from broker.rules.actions import CallHttp, SendMail, UnfitValueError
from broker.rules.values import UnknownValueError, as_text
from broker.rules.view import NestedValue
from config.mail import mail_address

HTTP_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE"})
MAX_URL_CHARACTERS: Final = 2_048
MAX_HEADERS: Final = 20
MAX_HEADER_CHARACTERS: Final = 1_024
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER_VALUE: Final = re.compile(rf"[\t\x20-\x7e]{{0,{MAX_HEADER_CHARACTERS}}}")
#: Headers that say where a request ends or where it goes: whoever sends the request sets them.
_HEADERS_OF_THE_SENDER: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_BLANKS: Final = re.compile(r"\s+")


def http_request(index: int, values: Mapping[str, NestedValue]) -> CallHttp:
    """Raises UnfitValueError."""
    headers = values.get("headers", [])
    if not isinstance(headers, list) or len(headers) > MAX_HEADERS:
        raise UnfitValueError("the headers are not valid")
    return CallHttp(
        index,
        method=checked_method(values["method"]),
        url=checked_url(values["url"]),
        headers=tuple(map(checked_header, headers)),
        body=None if "body" not in values else _body(values["body"]),
    )


def send_email(index: int, values: Mapping[str, NestedValue]) -> SendMail:
    """Raises UnfitValueError, UnknownValueError."""
    return SendMail(
        index,
        to=checked_recipient(values.get("to", "")),
        subject=_BLANKS.sub(" ", _text(values.get("subject", ""))).strip(),
        body=_text(values.get("body", "")),
    )


def checked_method(value: NestedValue) -> str:
    if not isinstance(value, str) or value not in HTTP_METHODS:
        raise UnfitValueError("the method is not valid")
    return value


def checked_url(value: NestedValue) -> str:
    if not isinstance(value, str) or len(value) > MAX_URL_CHARACTERS or not value.isprintable() or " " in value:
        raise UnfitValueError("the url is no address of http or https")
    try:
        parts = urlsplit(value)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is no number
        is_complete = False
    if not is_complete or "@" in parts.netloc:
        raise UnfitValueError("the url is no address of http or https")
    return value


def checked_header(value: object) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise UnfitValueError("the headers are not valid")
    name, text = value.get("key"), value.get("value")
    if not isinstance(name, str) or _HEADER_NAME.fullmatch(name) is None or name.lower() in _HEADERS_OF_THE_SENDER:
        raise UnfitValueError("the headers are not valid")
    if isinstance(text, bool | int | float):
        text = as_text(text)
    if not isinstance(text, str) or _HEADER_VALUE.fullmatch(text) is None:
        raise UnfitValueError("the headers are not valid")
    return name, text


def checked_recipient(value: NestedValue) -> str | None:
    """An address; None: the rule's owner."""
    if not isinstance(value, str):
        raise UnfitValueError("the recipient is no e-mail address")
    try:
        return mail_address(value) if value else None
    except ValueError as error:
        raise UnfitValueError("the recipient is no e-mail address") from error


def _body(value: NestedValue) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else _text(value)


def _text(value: NestedValue) -> str:
    if isinstance(value, dict):
        raise UnknownValueError("a group cannot be made a text")
    return as_text(value)
