"""The port through which requests leave for third parties. `protocols/outbound` implements it."""

from typing import Protocol

from broker.connectors.plugin import Request, Response


class ThirdPartyUnreachableError(Exception):
    """No usable answer: address refused, no connection, too slow, or too large. The text contains no secrets."""


class ThirdPartySilentError(ThirdPartyUnreachableError):
    """No connection, or no answer in time: a later attempt may succeed."""


class ThirdParty(Protocol):
    async def send(self, request: Request) -> Response:
        """Send one request and read its whole answer, within bounds of time and size. Redirects are not followed.

        Raises ThirdPartyUnreachableError; ThirdPartySilentError where a later attempt may succeed.
        """
