"""Who is calling: the bearer token of a REST call (reference 1.3 and 2)."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quart import g, request

from broker.accounts.tokens import Caller, TokenKind, Tokens
from broker.errors import PermissionDenied, Unauthorized
from broker.limits.meters import Channel, Meters
from broker.limits.refusals import RateLimitExceeded
from broker.registration.admission import Admission
from protocols.http.peers import request_certificate

USER, APPLICATION, DEVICE = TokenKind.USER, TokenKind.APPLICATION, TokenKind.DEVICE

_BEARER = re.compile(r"\s*bearer\s+(\S+)\s*", re.IGNORECASE | re.ASCII)


def bearer_token() -> str | None:
    """The bearer token that the request came with, whatever it is worth."""
    given = _BEARER.fullmatch(request.headers.get("Authorization", ""))
    return given[1] if given is not None else None


class Guard:
    """Every REST call asks it first."""

    def __init__(self, tokens: Tokens, admission: Admission, meters: Meters | None = None) -> None:
        """`meters` count every call, valid or not; None is for paths whose calls are not counted."""
        self._tokens = tokens
        self._admission = admission
        self._meters = meters

    async def caller(self, *accepted: TokenKind, channel: Channel = Channel.REST) -> Caller:
        """The holder of the request's token, for calls whose path names no object: `before_limit` is for the others.

        Args:
            accepted: the kinds of token that the path table has for this call.
            channel: the row of the rate limits that the call is counted in.

        Raises:
            Unauthorized: there is no valid token.
            PermissionDenied: this call does not accept its kind, or its device must show a certificate and has not.
            RateLimitExceeded: it has made too many calls.
        """
        caller, refusal = await self._admitted(accepted, channel)
        if refusal is not None:
            raise refusal
        return caller

    @asynccontextmanager
    async def before_limit(self, *accepted: TokenKind, offered: str | None = None) -> AsyncIterator[Caller]:
        """The same, for calls on an object: the block looks up what the path names, and checks the permission for it.

        It does nothing else; query and body are read after it. A caller over its limit is refused where the block
        ends, because reference 3.2 has this order: token, path object, permission, rate limit, body.

        `offered` is the token of a call that may have it in its body; the header's counts first.
        """
        caller, refusal = await self._admitted(accepted, Channel.REST, offered)
        yield caller
        if refusal is not None:
            raise refusal

    async def _admitted(
        self, accepted: tuple[TokenKind, ...], channel: Channel, offered: str | None = None
    ) -> tuple[Caller, RateLimitExceeded | None]:
        """The caller, whose call is counted; and the refusal that is due once there is no other one."""
        token = bearer_token() or offered
        if token is None:
            raise Unauthorized
        caller = await self._tokens.caller(token)
        refusal = self._count(caller, channel)
        if caller.kind not in accepted:
            raise PermissionDenied(f"{' or '.join(kind.value for kind in accepted)} token")
        await self._admission.check_caller(caller, request_certificate())
        return caller, refusal

    def _count(self, caller: Caller, channel: Channel) -> RateLimitExceeded | None:
        """Count the call, once however often its caller is asked for; its answer will tell where the caller stands."""
        if self._meters is None or "channel" in g:
            return None
        g.channel = channel
        meter = self._meters.of(channel, caller)
        if meter is None:
            return None
        try:
            meter.count()
        except RateLimitExceeded as refusal:
            g.rate_standing = refusal.standing
            return refusal
        g.rate_standing = meter.standing()
        return None
