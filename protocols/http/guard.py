"""The token of a call: who calls, and whether the caller has calls left (reference 1.3, 2 and 21.1)."""

import re
from collections.abc import Collection

from broker.accounts.tokens import Caller, TokenKind, Tokens
from broker.errors import PermissionDenied, Unauthorized
from broker.limits.meters import Channel, Meters
from broker.limits.refusals import RateLimitExceeded
from broker.registration.admission import Admission
from protocols.http.request_context import RequestContext, current_request
from protocols.streams.peers import authenticated

_BEARER = re.compile(r"\s*bearer\s+(\S+)\s*", re.IGNORECASE | re.ASCII)


def token_in_header() -> str | None:
    """The bearer token in the header of the request, which need not be valid."""
    return bearer(current_request().authorization)


def bearer(authorization: str) -> str | None:
    """The bearer token in this header."""
    given = _BEARER.fullmatch(authorization)
    return given[1] if given is not None else None


class Guard:
    """Identifies the caller by the token of the request, and counts the caller's calls."""

    def __init__(self, tokens: Tokens, admission: Admission, meters: Meters | None = None) -> None:
        """Count calls by `meters`; None: count none."""
        self._tokens = tokens
        self._admission = admission
        self._meters = meters

    async def caller(self, *accepted: TokenKind) -> Caller:
        """The caller of a request that is not counted. Raises Unauthorized, PermissionDenied."""
        caller, _ = await self.admitted(accepted)
        return caller

    async def admitted(
        self, accepted: Collection[TokenKind], channel: Channel | None = None, offered: str | None = None
    ) -> tuple[Caller, RateLimitExceeded | None]:
        """The caller, whose call is counted, and the refusal that is due when the caller has made too many calls.

        The refusal is not raised: what a call is on and the permission for that are checked first (reference 3.2).

        Args:
            accepted: the kinds of token that the call takes.
            channel: the row of the rate limits that the call is counted in; None for a call that is not counted.
            offered: a token that came in another place than the header; the header's goes first.

        Raises:
            Unauthorized: there is no valid token.
            PermissionDenied: the call does not take this kind of token, or the token's device must show a certificate
                and has not.
        """
        token = token_in_header() or offered
        if token is None:
            raise Unauthorized
        request = current_request()
        caller = request.caller = await self._tokens.caller(token)
        caller.act()
        authenticated(caller)
        refusal = None if channel is None else self.count(request, caller, channel)
        if caller.kind not in accepted:
            raise PermissionDenied(f"{' or '.join(kind.value for kind in accepted)} token")
        await self._admission.check_caller(caller, request.certificate)
        return caller, refusal

    def admitted_nowait(self, request: RequestContext, accepted: Collection[TokenKind]) -> Caller | None:
        """The caller of a call that is not counted yet, if all that `admitted` looks up is in memory, and it would
        admit; None: nothing was noted."""
        caller = request.known
        if caller is None or not self._tokens.is_current(caller):
            token = bearer(request.authorization)
            caller = None if token is None else self._tokens.caller_nowait(token)
        if (
            caller is None
            or caller.kind not in accepted
            or not self._admission.admits_nowait(caller, request.certificate)
        ):
            return None
        request.caller = caller
        caller.act()
        authenticated(caller)
        return caller

    async def check_again(self) -> None:
        """Time has passed since `admitted`. Raises Unauthorized: the token in the header is valid no more."""
        if (token := token_in_header()) is not None:
            await self._tokens.caller(token)

    def count(self, request: RequestContext, caller: Caller, channel: Channel) -> RateLimitExceeded | None:
        """Count the call, and note where the caller stands for the headers of the answer."""
        request.channel = channel
        meter = None if self._meters is None else self._meters.of(channel, caller)
        if meter is None:
            return None
        try:
            meter.count()
        except RateLimitExceeded as refusal:
            request.standing = refusal.standing
            return refusal
        request.standing = meter.standing()
        return None
