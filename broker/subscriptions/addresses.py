"""Which callback addresses an application may use, and the forms of a stream's names (reference 11.2)."""

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from config.limits import CALLBACK_URL_CHARACTERS

_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")  # a name without characters that libraries read in different ways
#: The members of a stream: patterns, and the most characters.
STREAM_KEY: Final = (r"^[!-~]+$", 128)
STREAM_SECRET: Final = (r"^[!-~]+$", 256)
STREAM_REGION: Final = (r"^[a-z0-9]+(-[a-z0-9]+)*$", 64)
STREAM_NAME: Final = (r"^[a-zA-Z0-9_.\-]+$", 128)


def is_stream_key(text: str) -> bool:
    return _has_form(text, *STREAM_KEY)


def is_stream_secret(text: str) -> bool:
    return _has_form(text, *STREAM_SECRET)


def is_stream_region(text: str) -> bool:
    return _has_form(text, *STREAM_REGION)


def is_stream_name(text: str) -> bool:
    return _has_form(text, *STREAM_NAME)


def _has_form(text: str, pattern: str, most: int) -> bool:
    return len(text) <= most and "\n" not in text and re.match(pattern, text) is not None


def is_allowed_callback(url: str, redirect_uri: str | None, *, allow_private: bool) -> bool:
    """Whether a callback may have this address.

    HTTPS, and the scheme and the two top domain levels of the application's main redirect URI; an IP address and a
    name of one level must be equal as a whole. `allow_private` also allows HTTP to this machine and private addresses.
    """
    asked, main = _split(url), _split(redirect_uri or "")
    if asked is None or main is None or len(url) > CALLBACK_URL_CHARACTERS:
        return False
    host, main_host = asked.hostname or "", main.hostname or ""
    if asked.scheme != main.scheme or asked.username is not None or asked.password is not None or asked.fragment:
        return False
    if asked.scheme != "https" and not (asked.scheme == "http" and allow_private and _is_local(host)):
        return False
    if not allow_private and _is_local(host):
        return False
    return _HOST.fullmatch(host) is not None and _top(host) == _top(main_host)


def callback_problem(url: str, redirect_uri: str | None) -> str:
    """Why a callback may not have this address."""
    main = _split(redirect_uri or "")
    if main is None or not main.hostname:
        return "the application has no main redirect URI, whose domain callbacks have"
    domain = ".".join(_top(main.hostname))
    if len(url) > CALLBACK_URL_CHARACTERS:
        return f"must have at most {CALLBACK_URL_CHARACTERS} characters"
    return (
        f"must be an address with {main.scheme}, on the domain {domain} of the application's main redirect URI, without"
        " user name, password and fragment"
    )


def _split(url: str) -> SplitResult | None:
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port that is none
    except ValueError:
        return None
    return parts


def _top(host: str) -> tuple[str, ...]:
    levels = tuple(host.lower().rstrip(".").split("."))
    return (host.lower(),) if _is_ip(host) else levels[-2:]


def _is_local(host: str) -> bool:
    """Whether the text names this machine or a private network. The addresses behind a name are checked later."""
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    return _is_ip(host) and not ip_address(host).is_global


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
