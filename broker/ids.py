"""Opaque ids and secrets in the forms that reference 1.1 fixes."""

import re
import secrets

_HEX32 = re.compile(r"[0-9a-f]{32}\Z")
_DEVICE_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_UNIQUE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+\Z")


def new_id() -> str:
    """A fresh id or secret: 32 lower-case hexadecimal characters."""
    return secrets.token_hex(16)


def new_device_type_id() -> str:
    return "dt" + secrets.token_hex(16)


def is_id(text: str) -> bool:
    return _HEX32.match(text) is not None


def is_device_type_id(text: str) -> bool:
    """Whether the text may be the id of a device type. Imported device types may have any plain name as their id."""
    return _DEVICE_TYPE.match(text) is not None


def is_unique_name(text: str) -> bool:
    return len(text) <= 128 and _UNIQUE_NAME.match(text) is not None
