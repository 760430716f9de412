"""Checks of an external identity provider's entry in the configuration (OpenID Connect Core, Discovery)."""

import re
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import urlsplit

from config.mail import is_loopback

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, 3.3


def provider_problems(
    name: str, issuer: str, client_id: str, scopes: Collection[str], *, taken: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Key and problem for each broken rule. `taken` are the names of earlier entries, in lower case."""
    if _NAME.fullmatch(name) is None:
        # The name is part of addresses and of `accountType`.
        yield "name", "must be 1 to 32 characters of A-Z a-z 0-9 _ . -"
    elif name.lower() in taken:
        yield "name", f"{name!r} is taken"
    if not is_issuer(issuer):
        yield "issuer", "must be an https URL without query or fragment (http on loopback)"
    if not client_id:
        yield "client_id", "must not be empty"
    if "openid" not in scopes or any(_SCOPE.fullmatch(scope) is None for scope in scopes):
        yield "scopes", "must be scopes, openid among them"


def is_issuer(url: str) -> bool:
    """OpenID Connect Discovery 1.0, 3; plain http is allowed on loopback only, where no one else can read it."""
    return is_trustworthy(url) and "?" not in url and "#" not in url


def is_trustworthy(url: str) -> bool:
    """Whether secrets may be sent to this address."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not parts.hostname or parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
