"""The POST that a device sends again and again: the same options, and another message id, token and payload.

The values that follow from the options alone are computed once per session: the request, the device, and its meter.
Reading, looking up and checking them for each message took a third of the time from the datagram to its submission.
"""

from typing import Final

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import DomainError
from broker.limits.meters import Channel, Meter
from broker.trace.origin import Origin
from protocols.coap.messages import CON, DATAGRAM_BYTES, CoapMessage, Code
from protocols.coap.requests import CoapRequest, check_formats, read_request
from protocols.rooms import CoapRooms

#: Before the device token in the path.
MESSAGES: Final = (b"v1.1", b"messages")
#: Most bytes of options that are kept. Longer ones are read for each message.
MAX_USUAL_BYTES: Final = 96
#: The memory of a UsualPost, rounded up.
USUAL_BYTES: Final = 1280

_POST: Final = int(Code.POST)
#: The first byte of a confirmable message with a token of 0 to 8 bytes.
_FIRST: Final = range(0x40, 0x49)


class UsualPost:
    """A confirmable POST to the messages of one device, in one datagram."""

    __slots__ = ("_encoded", "_options", "caller", "device", "meter", "origin", "request", "token")

    def __init__(
        self,
        encoded: bytes,
        options: tuple[tuple[int, bytes], ...],
        request: CoapRequest,
        known: tuple[Device, Caller],
        meter: Meter | None,
    ) -> None:
        """The common parts of a device's datagrams.

        Args:
            encoded: the options as bytes, and the payload marker.
            options: the same, decoded.
            request: what they mean.
            known: whose token is in the path. Ask `Tokens.is_current` before each use.
            meter: of the device; None when rate limits are off.
        """
        self._encoded = encoded
        self._options = options
        self.request = request
        self.token = request.path[-1].decode("ascii", "replace")
        self.device, self.caller = known
        self.meter = meter
        self.origin: Origin | None = None  # of its session, with the device; from the first message on

    def read(self, datagram: bytes) -> CoapMessage | None:
        """Decode the usual datagram; None for any other, which `decode_message` decodes."""
        size = len(datagram)
        if size < 4 or (first := datagram[0]) not in _FIRST or datagram[1] != _POST:
            return None
        start = first - 0x3C  # of the options: 4 bytes, and the token
        payload = start + len(self._encoded)
        if not payload < size <= DATAGRAM_BYTES or not datagram.startswith(self._encoded, start):
            return None
        message_id = datagram[2] << 8 | datagram[3]
        return CoapMessage(CON, _POST, message_id, datagram[4:start], self._options, datagram[payload:])


def usual_post(rooms: CoapRooms, message: CoapMessage, encoded: bytes) -> UsualPost | None:
    """The repeating parts of a message of a device whose token is in memory; None unless it is a POST in one datagram.

    Args:
        rooms: the broker.
        message: what was received.
        encoded: its options as bytes, and the payload marker.
    """
    try:
        request = read_request(message)
        check_formats(request)
    except DomainError:
        return None
    is_whole = request.block1 is None and request.block2 is None and request.echo is None
    if request.method != _POST or request.path[:-1] != MESSAGES or not is_whole:
        return None
    known = rooms.devices.registry.by_token_nowait(request.path[-1].decode("ascii", "replace"))
    if known is None:
        return None
    return UsualPost(encoded, message.options, request, known, rooms.limits.meters.of(Channel.COAP, known[1]))
