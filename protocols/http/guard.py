"""Who is calling: the bearer token of a REST call (compatibility.md 1.3 and section 2)."""

import re

from quart import request

from broker.accounts.tokens import Caller, TokenKind, Tokens
from broker.errors import PermissionDenied, Unauthorized

USER, APPLICATION, DEVICE = TokenKind.USER, TokenKind.APPLICATION, TokenKind.DEVICE

_BEARER = re.compile(r"\s*bearer\s+(\S+)\s*", re.IGNORECASE | re.ASCII)


def bearer_token() -> str | None:
    """The bearer token that the request came with, whatever it is worth."""
    given = _BEARER.fullmatch(request.headers.get("Authorization", ""))
    return given[1] if given is not None else None


class Guard:
    """Every REST call asks it first."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def caller(self, *accepted: TokenKind) -> Caller:
        """The holder of the request's token.

        Raises:
            Unauthorized: there is no valid token.
            PermissionDenied: this call does not accept its kind.
        """
        token = bearer_token()
        if token is None:
            raise Unauthorized
        caller = await self._tokens.caller(token)
        if caller.kind not in accepted:
            raise PermissionDenied(f"{' or '.join(kind.value for kind in accepted)} token")
        return caller
