"""Refuses at its head a form that is too long for the token endpoints, before Hypercorn and Quart see the request.

No caller is authenticated there before the form is read, so strangers decide how many come, and one such request takes
Hypercorn a hundred steps of tasks. The answer has the same bytes on both ways: tests/protocols/http/test_long_forms.py.
"""

import time
from contextlib import suppress
from typing import Final

import trio

from broker.errors import BodyTooLarge
from broker.site import AccountsRoot
from broker.trace.origin import Origin, enter
from broker.trace.refusals import Refusals
from config.limits import MAX_FORM_BYTES
from protocols.http.accounts.token import ENDPOINTS, refusal_answer
from protocols.http.direct import SEND_SECONDS
from protocols.http.forwarded import Forwarded
from protocols.http.heads import date_line
from protocols.http.hypercorn_connection import linger
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.plain_requests import plain_request
from protocols.metrics.vitals import Traffic
from protocols.streams.lingering import LINGERING_BYTES
from protocols.streams.listeners import Stream, end_gently
from protocols.streams.peers import current_peer
from protocols.streams.proxies import TrustedProxies

_LINGER_SECONDS: Final = 1.0


class LongForms:
    """Refuses long forms on one listener."""

    def __init__(
        self,
        root: AccountsRoot,
        refusals: Refusals,
        timeouts: PeerTimeouts,
        traffic: Traffic,
        proxies: TrustedProxies,
        *,
        hsts_seconds: int = 0,
    ) -> None:
        """`root` is where the accounts paths of the listener are."""
        self._paths = frozenset(f"{root.path}{endpoint}" for endpoint in ENDPOINTS)
        self._refusals = refusals
        self._timeouts = timeouts
        self._traffic = traffic
        self._proxies = proxies
        self._hsts = f"strict-transport-security: max-age={hsts_seconds}\r\n".encode() if hsts_seconds else b""

    async def refuse(self, received: bytes, stream: Stream) -> bool:
        """Answer a request with a form that is too long, and end the connection.

        Returns whether these bytes begin such a request; otherwise nothing is done about it.

        Raises:
            BrokenResourceError: the peer has gone, or does not read.
        """
        asked = plain_request(received, longest_body=None)
        if (
            asked is None
            or asked.method != "POST"
            or asked.path not in self._paths
            or asked.body_length <= MAX_FORM_BYTES
        ):
            return False
        began, peer = time.perf_counter(), current_peer()
        if peer.is_proxy:
            enter(Origin(Forwarded(asked.headers).client(peer.address, self._proxies)))
        answer = self._answer()
        self._traffic.answered(time.perf_counter() - began, int(BodyTooLarge.status))
        with self._timeouts.limit(SEND_SECONDS, in_flight=True) as scope:
            await stream.send_all(answer)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the peer does not read")
        if asked.body_length > LINGERING_BYTES:
            await linger(stream, self._timeouts)
        else:
            with trio.move_on_after(_LINGER_SECONDS), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await end_gently(stream)
        return True

    def _answer(self) -> bytes:
        answer = refusal_answer(BodyTooLarge(), self._refusals)
        return b"".join(
            (
                b"HTTP/1.1 %d \r\ncontent-type: %b\r\ncontent-length: %d\r\n"
                % (answer.status, answer.content_type.encode(), len(answer.body)),
                self._hsts,
                b"cache-control: no-store\r\npragma: no-cache\r\naccess-control-allow-origin: *\r\n",
                b"connection: close\r\n",
                date_line(),
                b"\r\n",
                answer.body,
            )
        )
