"""HTTP requests of cloud connectors to third parties."""

import ssl
from math import inf

import httpx
import trio

from broker.connectors.plugin import Request, Response
from broker.connectors.port import ThirdParty, ThirdPartySilentError, ThirdPartyUnreachableError
from config.limits import CONNECTOR_ANSWER_BYTES, CONNECTOR_SECONDS
from config.settings import Settings
from protocols.outbound.http import HttpFailedError, OutboundHttp


def third_party(settings: Settings, tls: ssl.SSLContext) -> ThirdParty:
    return HttpThirdParty(OutboundHttp(tls, allow_private=settings.outbound.allow_private_addresses))


class HttpThirdParty:
    def __init__(self, http: OutboundHttp, *, seconds: float = CONNECTOR_SECONDS) -> None:
        self._http = http
        self._seconds = seconds

    async def send(self, request: Request) -> Response:
        with trio.move_on_after(self._seconds):
            return await self._answer(request)
        raise ThirdPartySilentError(f"no answer within {self._seconds:g} s")

    async def _answer(self, request: Request) -> Response:
        try:
            answer = await self._http.send(
                request.method,
                request.url,
                headers=request.headers,
                body=request.body,
                seconds=inf,
                most_bytes=CONNECTOR_ANSWER_BYTES,
            )
        except HttpFailedError as error:
            is_silent = isinstance(error.__cause__, httpx.TransportError | OSError)
            raise (ThirdPartySilentError if is_silent else ThirdPartyUnreachableError)(str(error)) from error
        return Response(answer.status, answer.headers, answer.body)
