"""Packets of the server, compared with amqtt's codec."""

from typing import Any

import pytest
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.pingresp import PingRespPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.pubcomp import PubcompPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.pubrec import PubrecPacket
from amqtt.mqtt.pubrel import PubrelPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.unsuback import UnsubackPacket
from hypothesis import given
from hypothesis import strategies as st

from protocols.mqtt.encoding import (
    PINGRESP,
    encode_connack,
    encode_pubacks,
    encode_pubcomp,
    encode_publish,
    encode_pubrecs,
    encode_pubrel,
    encode_suback,
    encode_unsuback,
)
from protocols.mqtt.packets import (
    SUBSCRIPTION_REFUSED,
    Packet,
    ReturnCode,
)
from tests.protocols.mqtt.packets_by_amqtt import TOPIC, amqtt_decode, encoded_again, packet_ids, publishes, unhurried
from tests.rows import each_row


@unhurried
@given(publishes())
def test_a_publish_is_written_as_amqtt_writes_it(pair: tuple[bytes, Packet]) -> None:
    wire, packet = pair
    assert encoded_again(packet) == wire


@each_row("payload_size", [0, 1, 76, 79, 16_331, 16_335, 70_000])
def test_amqtt_reads_a_publish_as_it_was_meant(payload_size: int) -> None:
    read = amqtt_decode(encode_publish(TOPIC, b"x" * payload_size, qos=2, packet_id=b"\x12\x34", dup=True, retain=True))
    assert isinstance(read, PublishPacket)
    assert (read.topic_name, read.data) == (TOPIC.decode(), b"x" * payload_size)
    assert (read.qos, read.packet_id, read.dup_flag, read.retain_flag) == (2, 0x1234, True, True)


@each_row("return_code", list(ReturnCode))
def test_amqtt_reads_a_connack_as_it_was_meant(return_code: ReturnCode) -> None:
    read = amqtt_decode(encode_connack(return_code))
    assert isinstance(read, ConnackPacket)
    assert read.variable_header is not None
    assert (read.variable_header.return_code, read.variable_header.session_parent) == (return_code, 0)


@pytest.mark.parametrize(
    ("encode", "kind"),
    [
        (lambda packet_id: encode_pubacks([packet_id]), PubackPacket),
        (lambda packet_id: encode_pubrecs([packet_id]), PubrecPacket),
        (encode_pubcomp, PubcompPacket),
        (encode_unsuback, UnsubackPacket),
    ],
)
def test_amqtt_reads_an_acknowledgement_as_it_was_meant(encode: Any, kind: Any) -> None:
    read = amqtt_decode(encode(b"\x12\x34"))
    assert type(read) is kind
    assert read.variable_header.packet_id == 0x1234
    assert read.to_bytes() == encode(b"\x12\x34")


@pytest.mark.parametrize("count", [1, 2, 125, 126, 16_382])
def test_amqtt_reads_a_suback_as_it_was_meant(count: int) -> None:
    return_codes = [0, SUBSCRIPTION_REFUSED] * (count // 2) + [0] * (count % 2)
    read = amqtt_decode(encode_suback(b"\x00\x07", return_codes))
    assert isinstance(read, SubackPacket)
    assert read.variable_header is not None
    assert read.payload is not None
    assert (read.variable_header.packet_id, read.payload.return_codes) == (7, return_codes)


@unhurried
@given(packet_ids, st.lists(st.sampled_from([0, 1, 2, SUBSCRIPTION_REFUSED]), min_size=1, max_size=150), st.booleans())
def test_answers_are_written_as_amqtt_writes_them(number: int, codes: list[int], is_present: bool) -> None:
    packet_id = number.to_bytes(2)
    pairs = {
        encode_suback(packet_id, codes): SubackPacket.build(number, codes),
        encode_unsuback(packet_id): UnsubackPacket.build(number),
        encode_pubacks([packet_id]): PubackPacket.build(number),
        encode_pubrecs([packet_id]): PubrecPacket.build(number),
        encode_pubrel(packet_id): PubrelPacket.build(number),
        encode_pubcomp(packet_id): PubcompPacket.build(number),
        encode_connack(ReturnCode.ACCEPTED, is_present=is_present): ConnackPacket.build(int(is_present), 0),
        PINGRESP: PingRespPacket.build(),
    }
    assert {ours: theirs.to_bytes() for ours, theirs in pairs.items()} == {ours: ours for ours in pairs}


def test_amqtt_reads_a_pingresp() -> None:
    assert isinstance(amqtt_decode(PINGRESP), PingRespPacket)


def test_many_acknowledgements_are_one_piece_in_their_order() -> None:
    ids = [b"\x00\x02", b"\x00\x01", b"\xff\xff"]
    assert encode_pubacks(ids) == b"".join(encode_pubacks([one]) for one in ids)
    assert encode_pubrecs(iter(ids)) == b"".join(encode_pubrecs([one]) for one in ids)
    assert encode_pubacks([]) == b""


def test_a_packet_that_no_length_field_can_hold_is_not_written() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encode_suback(b"\x00\x01", range(0x0FFF_FFFF))
