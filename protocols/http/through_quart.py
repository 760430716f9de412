"""A request that Quart has read, for the rules that do not know Quart."""

from quart import request

from broker.registration.certificates import ClientCertificate
from broker.trace.origin import Origin, enter
from protocols.http.bodies import body_within
from protocols.http.this_request import CERTIFICATE_KEY, ThisRequest, answering


def begin() -> None:
    """Call this before all others: they may use `this_request`."""
    address = request.remote_addr or ""
    shown = request.scope.get("state", {}).get(CERTIFICATE_KEY)
    answering(
        ThisRequest(
            method=request.method,
            address=address,
            authorization=request.headers.get("Authorization", ""),
            query=request.query_string,
            certificate=shown if isinstance(shown, ClientCertificate) else None,
            read_body=body_within,
            headers=request.scope["headers"],
        )
    )
    enter(Origin(address))  # what the request leads to, comes from its client
