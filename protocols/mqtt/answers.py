"""Packets that the server sends, in the protocol version of the connection.

The server decides with the reason codes of 5.0. Version 3 has a code in CONNACK and SUBACK only, so elsewhere nothing
is left of a reason there.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from protocols.mqtt.encoding import (
    encode_acknowledgement_5,
    encode_connack,
    encode_connack_5,
    encode_disconnect_5,
    encode_pubacks,
    encode_pubcomp,
    encode_publish,
    encode_pubrecs,
    encode_pubrel,
    encode_suback,
    encode_suback_5,
    encode_unsuback,
    encode_unsuback_5,
)
from protocols.mqtt.packets import MQTT_5, SUBSCRIPTION_REFUSED, ReasonCode, ReturnCode
from protocols.mqtt.properties import encode_properties
from protocols.mqtt.values import NO_PROPERTIES, Properties

_RETURN_CODES: Final[Mapping[int, ReturnCode]] = {
    ReasonCode.SUCCESS: ReturnCode.ACCEPTED,
    ReasonCode.UNSUPPORTED_VERSION: ReturnCode.UNACCEPTABLE_PROTOCOL,
    ReasonCode.BAD_CREDENTIALS: ReturnCode.BAD_CREDENTIALS,
    ReasonCode.NOT_AUTHORIZED: ReturnCode.NOT_AUTHORIZED,
}
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70


class Reason(NamedTuple):
    """Why something was refused. `text` is for the device's own developer."""

    code: ReasonCode
    text: str = ""


Reasons = Mapping[bytes, Reason]  # by packet id


class MqttAnswers(Protocol):
    __slots__ = ()

    def connack(self, reason: Reason, properties: Properties = NO_PROPERTIES, *, is_present: bool = False) -> bytes: ...

    def publish(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 0,
        packet_id: bytes = b"",
        dup: bool = False,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> bytes:
        """Empty when the packet is larger than the peer takes [MQTT-3.1.2-25]."""
        encoded = self._encoded(properties)
        whole = encode_publish(topic, payload, qos=qos, packet_id=packet_id, dup=dup, retain=retain, properties=encoded)
        return whole if self._fits(whole) else b""

    def _encoded(self, properties: Properties) -> bytes:
        """The properties of a PUBLISH, as bytes."""

    def _fits(self, packet: bytes) -> bool:
        """Whether the peer takes a packet of this size."""

    def pubacks(self, packet_ids: Collection[bytes], reasons: Reasons | None) -> bytes: ...

    def pubrecs(self, packet_ids: Collection[bytes], reasons: Reasons | None) -> bytes: ...

    def pubrel(self, packet_id: bytes, code: ReasonCode = ReasonCode.SUCCESS) -> bytes: ...

    def pubcomp(self, packet_id: bytes, code: ReasonCode = ReasonCode.SUCCESS) -> bytes: ...

    def suback(self, packet_id: bytes, codes: Collection[int], text: str = "") -> bytes: ...

    def unsuback(self, packet_id: bytes, codes: Collection[int]) -> bytes: ...

    def disconnect(self, reason: Reason) -> bytes: ...


class Answers3(MqttAnswers):
    """Versions 3.1 and 3.1.1."""

    __slots__ = ()

    def connack(self, reason: Reason, properties: Properties = NO_PROPERTIES, *, is_present: bool = False) -> bytes:
        return encode_connack(_RETURN_CODES.get(reason.code, ReturnCode.SERVER_UNAVAILABLE), is_present=is_present)

    def _encoded(self, properties: Properties) -> bytes:
        return b""

    def _fits(self, packet: bytes) -> bool:
        return True

    def pubacks(self, packet_ids: Collection[bytes], reasons: Reasons | None) -> bytes:
        return encode_pubacks(packet_ids)

    def pubrecs(self, packet_ids: Collection[bytes], reasons: Reasons | None) -> bytes:
        return encode_pubrecs(packet_ids)

    def pubrel(self, packet_id: bytes, code: ReasonCode = ReasonCode.SUCCESS) -> bytes:
        return encode_pubrel(packet_id)

    def pubcomp(self, packet_id: bytes, code: ReasonCode = ReasonCode.SUCCESS) -> bytes:
        return encode_pubcomp(packet_id)

    def suback(self, packet_id: bytes, codes: Collection[int], text: str = "") -> bytes:
        return encode_suback(packet_id, [min(code, SUBSCRIPTION_REFUSED) for code in codes])

    def unsuback(self, packet_id: bytes, codes: Collection[int]) -> bytes:
        return encode_unsuback(packet_id)

    def disconnect(self, reason: Reason) -> bytes:
        return b""  # only clients send it


#: They know nothing of a connection, so all of these versions share them.
ANSWERS_3: Final = Answers3()


class Answers5(MqttAnswers):
    """Version 5.0.

    Args:
        maximum_packet_size: of the peer; no packet is larger.
        tells_problems: whether the peer wants reason strings in answers to its packets.
    """

    __slots__ = ("_maximum", "_tells_problems")

    def __init__(self, *, maximum_packet_size: int | None = None, tells_problems: bool = True) -> None:
        self._maximum = maximum_packet_size
        self._tells_problems = tells_problems

    def connack(self, reason: Reason, properties: Properties = NO_PROPERTIES, *, is_present: bool = False) -> bytes:
        told = _told(reason.text) if properties is NO_PROPERTIES else properties
        whole = encode_connack_5(reason.code, told, is_present=is_present)
        if not self._fits(whole):  # what remains tells the peer less than it needs, but more than silence
            return encode_connack_5(reason.code, NO_PROPERTIES, is_present=is_present)
        return whole

    def _encoded(self, properties: Properties) -> bytes:
        return encode_properties(properties)

    def pubacks(self, packet_ids: Collection[bytes], reasons: Reasons | None) -> bytes:
        return self._acknowledgements(_PUBACK, packet_ids, reasons) if reasons else encode_pubacks(packet_ids)

    def pubrecs(self, packet_ids: Collection[bytes], reasons: Reasons | None) -> bytes:
        return self._acknowledgements(_PUBREC, packet_ids, reasons) if reasons else encode_pubrecs(packet_ids)

    def _acknowledgements(self, head: int, packet_ids: Iterable[bytes], reasons: Reasons) -> bytes:
        success = Reason(ReasonCode.SUCCESS)
        return b"".join(self._acknowledgement(head, one, reasons.get(one, success)) for one in packet_ids)

    def _acknowledgement(self, head: int, packet_id: bytes, reason: Reason) -> bytes:
        told = encode_acknowledgement_5(head, packet_id, reason.code, self._problem(reason.text))
        return told if self._fits(told) else encode_acknowledgement_5(head, packet_id, reason.code)

    def pubrel(self, packet_id: bytes, code: ReasonCode = ReasonCode.SUCCESS) -> bytes:
        return encode_acknowledgement_5(_PUBREL, packet_id, code)

    def pubcomp(self, packet_id: bytes, code: ReasonCode = ReasonCode.SUCCESS) -> bytes:
        return encode_acknowledgement_5(_PUBCOMP, packet_id, code)

    def suback(self, packet_id: bytes, codes: Collection[int], text: str = "") -> bytes:
        told = encode_suback_5(packet_id, codes, self._problem(text))
        return told if self._fits(told) else encode_suback_5(packet_id, codes)

    def unsuback(self, packet_id: bytes, codes: Collection[int]) -> bytes:
        return encode_unsuback_5(packet_id, codes)

    def disconnect(self, reason: Reason) -> bytes:
        told = encode_disconnect_5(reason.code, _told(reason.text))
        return told if self._fits(told) else encode_disconnect_5(reason.code)

    def _problem(self, text: str) -> Properties:
        return _told(text) if self._tells_problems else NO_PROPERTIES

    def _fits(self, packet: bytes) -> bool:
        return self._maximum is None or len(packet) <= self._maximum


def _told(text: str) -> Properties:
    return Properties(reason_string=text) if text else NO_PROPERTIES


def answers_for(level: int, properties: Properties = NO_PROPERTIES) -> MqttAnswers:
    """`properties` are those of the CONNECT."""
    if level < MQTT_5:
        return ANSWERS_3
    return Answers5(
        maximum_packet_size=properties.maximum_packet_size,
        tells_problems=properties.request_problem_information != 0,
    )
