"""The parts of the service that each of several nodes has for itself, as an operator reads them."""

from typing import Final

APART: Final = (
    "Statistics, /metrics and the list of refusals are of the node that is asked.",
    "The curves of the last day are of the node that has the lease upkeep.",
    "Refused at the start: mqtt.topics = open.",
    "Sessions of CoAP and DTLS, and connections of LWM2M, are on the node that has begun them.",
)
