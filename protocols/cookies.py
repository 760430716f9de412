"""The cookie of a browser session (reference 4.2), for every front end that a page of the console speaks to."""

from typing import Final

SESSION_COOKIE: Final = "trunkline_session"


def cookie_in(header: str, name: str) -> str:
    """The value of a cookie in a `Cookie` header; empty if there is none."""
    for part in header.split(";"):
        given, _, value = part.strip().partition("=")
        if given == name:
            return value.strip('"')
    return ""
