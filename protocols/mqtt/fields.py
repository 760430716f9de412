"""The fields of a packet's body, read one after the other. Not for the hot path."""

from config.limits import MQTT_FILTERS_MAX
from protocols.mqtt.packets import MalformedPacket

_NO_ID = b"\x00\x00"


def truncated(what: str) -> MalformedPacket:
    return MalformedPacket(f"{what} ends inside one of its fields", "MQTT-4.8.0-1")


def decode_text(raw: bytes, clause: str) -> str:
    try:
        decoded = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket("a string that is not UTF-8", clause) from error
    if "\x00" in decoded:
        raise MalformedPacket("a string with U+0000", "MQTT-1.5.3-2")
    return decoded


def check_topic(topic: bytes, clause: str) -> None:
    if not topic:
        raise MalformedPacket("an empty topic", "MQTT-4.7.3-1")
    decode_text(topic, clause)


class Fields:
    """`most_filters`: how many topic filters the packet may have."""

    __slots__ = ("_body", "at", "most_filters")

    def __init__(self, body: bytes, at: int = 0, most_filters: int = MQTT_FILTERS_MAX) -> None:
        self._body = body
        self.at = at
        self.most_filters = most_filters

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self._body)

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self._body):
            raise truncated("the packet")
        return self._body[start : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2))

    def long(self) -> int:
        return int.from_bytes(self.take(4))

    def variable(self) -> int:
        """A variable byte integer, of at most four bytes."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise MalformedPacket("an integer in more bytes than it needs", "MQTT-1.5.5-1")
                return value
        raise MalformedPacket("an integer of more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.short())

    def text(self, clause: str) -> str:
        return decode_text(self.binary(), clause)

    def topic(self, clause: str) -> bytes:
        topic = self.binary()
        check_topic(topic, clause)
        return topic

    def packet_id(self, clause: str) -> bytes:
        packet_id = self.take(2)
        if packet_id == _NO_ID:
            raise MalformedPacket("packet id 0", clause)
        return packet_id

    def finish(self) -> None:
        if not self.is_at_end:
            raise MalformedPacket("bytes behind the last field", "MQTT-4.8.0-1")

    def skip(self) -> None:
        self.at = len(self._body)
