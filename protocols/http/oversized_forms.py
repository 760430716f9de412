"""Refuses at its head a form that is too long for the token endpoints, before Hypercorn and Quart see the request.

No caller is authenticated there before the form is read, so strangers decide how many come, and one such request takes
Hypercorn a hundred steps of tasks. The answer has the bytes of the slow path:
tests/protocols/http/test_oversized_forms.py.
"""

import time
from typing import NamedTuple

from broker.errors import BodyTooLarge
from broker.site import AccountsRoot
from broker.trace.origin import Origin, enter
from broker.trace.refusals import Refusals
from config.limits import MAX_FORM_BYTES
from protocols.http.accounts.token import ENDPOINTS, token_refusal
from protocols.http.forwarded import Forwarded
from protocols.http.heads import date_line, parse_head
from protocols.metrics.vitals import Traffic
from protocols.streams.peers import current_peer
from protocols.streams.proxies import TrustedProxies


class OversizedForm(NamedTuple):
    answer: bytes
    length: int


class OversizedForms:
    """Refuses them on one listener."""

    def __init__(
        self,
        root: AccountsRoot,
        refusals: Refusals,
        traffic: Traffic,
        proxies: TrustedProxies,
        *,
        hsts_seconds: int = 0,
    ) -> None:
        """`root` is where the accounts paths of the listener are."""
        self._paths = frozenset(f"{root.path}{endpoint}" for endpoint in ENDPOINTS)
        self._refusals = refusals
        self._traffic = traffic
        self._proxies = proxies
        self._hsts = f"strict-transport-security: max-age={hsts_seconds}\r\n".encode() if hsts_seconds else b""

    def refusal(self, received: bytes) -> "OversizedForm | None":
        """The last answer of a connection, if these bytes begin a request with a form that is too long."""
        head = parse_head(received, longest_body=None)
        if head is None or head.method != "POST" or head.path not in self._paths or head.body_length <= MAX_FORM_BYTES:
            return None
        began, peer = time.perf_counter(), current_peer()
        if peer.is_proxy:
            enter(Origin(Forwarded(head.headers).client(peer.address, self._proxies)))
        answer = self._answer()
        self._traffic.answered(time.perf_counter() - began, int(BodyTooLarge.status))
        return OversizedForm(answer, head.body_length)

    def _answer(self) -> bytes:
        answer = token_refusal(BodyTooLarge(), self._refusals)
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
