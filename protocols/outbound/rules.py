"""HTTP requests of rules to addresses that their owners choose (reference 12.2)."""

import ssl

from broker.rules.sending.requests import HttpContent, RuleRequestFailedError, RuleRequests
from config.limits import RULE_REQUEST_ANSWER_BYTES, RULE_REQUEST_SECONDS
from config.settings import Settings
from protocols.outbound.http import HttpFailedError, OutboundHttp


def rule_requests(settings: Settings, tls: ssl.SSLContext) -> RuleRequests:
    return HttpRuleRequests(OutboundHttp(tls, allow_private=settings.outbound.allow_private_addresses))


class HttpRuleRequests:
    def __init__(self, http: OutboundHttp, *, seconds: float = RULE_REQUEST_SECONDS) -> None:
        self._http = http
        self._seconds = seconds

    async def send(self, request: HttpContent) -> int:
        try:
            answer = await self._http.send(
                request.method,
                request.url,
                headers=dict(request.headers),
                body=request.body.encode(),
                seconds=self._seconds,
                most_bytes=RULE_REQUEST_ANSWER_BYTES,
            )
        except HttpFailedError as error:
            raise RuleRequestFailedError(str(error)) from error
        return answer.status
