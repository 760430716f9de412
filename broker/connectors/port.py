"""The way out to third parties, which `protocols/outbound` goes."""

from typing import Protocol

from broker.connectors.plugin import Request, Response


class ThirdPartyUnreachableError(Exception):
    """No usable answer: refused address, no connection, too slow, too large. The text has no secrets in it."""


class ThirdParty(Protocol):
    async def send(self, request: Request) -> Response:
        """Send one request and read its whole answer, within bounds of time and size. Redirects are not followed.

        Raises ThirdPartyUnreachableError.
        """
