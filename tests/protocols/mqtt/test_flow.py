"""Deliveries of QoS 1 and 2: the window, the order, what is dropped, and what is sent again."""

from config.limits import MQTT_WAITING_BYTES, MQTT_WAITING_MESSAGES
from protocols.mqtt.answers import Answers3, Answers5
from protocols.mqtt.encoding import encode_publish, encode_pubrel
from protocols.mqtt.flow import UNDER_WAY_BYTES, Flow, packet_id_of
from storage.mqtt_sessions import DeliveryRecord
from tests.factories import NOW_MS


def a_delivery(number: int, qos: int = 1, payload: bytes = b"x") -> DeliveryRecord:
    return DeliveryRecord(number, b"t", payload, qos)


def wire(number: int, qos: int = 1, payload: bytes = b"x", *, dup: bool = False) -> bytes:
    return encode_publish(b"t", payload, qos=qos, packet_id=packet_id_of(number), dup=dup)


class Log:
    def __init__(self, *, window: int = 2, sent_until: int = 0) -> None:
        self.dropped: list[int] = []
        self.settled: list[int] = []
        self.flow = Flow(
            answers=Answers3(),
            window=window,
            dropped=self.dropped.append,
            settled=self.settled.append,
            sent_until=sent_until,
            now_ms=lambda: NOW_MS,
        )


def test_no_more_are_on_their_way_than_the_window_allows() -> None:
    log = Log()
    assert [log.flow.add(a_delivery(number)) for number in range(1, 5)] == [wire(1), wire(2), b"", b""]
    assert log.flow.puback(packet_id_of(2)) == wire(3)
    assert log.flow.puback(packet_id_of(1)) == wire(4)
    assert log.flow.puback(packet_id_of(1)) is None
    assert (log.settled, log.dropped, log.flow.sent_until) == ([2, 1], [], 4)


def test_qos_2_keeps_its_place_until_pubcomp() -> None:
    log = Log(window=1)
    assert log.flow.add(a_delivery(1, 2)) == wire(1, 2)
    assert log.flow.add(a_delivery(2)) == b""
    packet_id = packet_id_of(1)
    assert log.flow.puback(packet_id) is None
    assert log.flow.pubcomp(packet_id) is None
    assert log.flow.pubrec(packet_id) == 1
    assert log.flow.pubrec(packet_id) == 1  # again: the PUBREL is repeated
    assert log.settled == []
    assert log.flow.pubcomp(packet_id) == wire(2)
    assert log.settled == [1]
    assert log.flow.pubrec(packet_id) is None


def test_a_device_may_refuse_a_delivery_of_qos_2() -> None:
    log = Log(window=1)
    log.flow.add(a_delivery(1, 2))
    log.flow.add(a_delivery(2))
    assert log.flow.refused(packet_id_of(1)) == wire(2)
    assert log.flow.refused(packet_id_of(1)) is None
    assert log.settled == [1]


def test_of_too_many_that_wait_the_oldest_is_dropped() -> None:
    log = Log(window=1)
    for number in range(1, MQTT_WAITING_MESSAGES + 4):
        log.flow.add(a_delivery(number))
    assert log.dropped == [2, 3]  # the first one is on its way
    assert log.flow.puback(packet_id_of(1)) == wire(4)


def test_of_too_many_bytes_that_wait_the_oldest_are_dropped() -> None:
    log = Log(window=1)
    half = b"x" * (MQTT_WAITING_BYTES // 2 - 1)  # and the topic
    for number in range(1, 5):
        log.flow.add(a_delivery(number, payload=half))
    assert log.dropped == [2]


def test_topics_and_properties_count_as_payloads_do() -> None:
    log = Log(window=1)
    third = b"x" * (MQTT_WAITING_BYTES // 3 - 1)
    log.flow.add(a_delivery(1))
    for number in range(2, 5):
        log.flow.add(DeliveryRecord(number, b"t", b"", 1, properties=third))
    log.flow.add(DeliveryRecord(5, third, b"", 1))
    assert log.dropped == [2]


def test_the_window_is_bounded_whatever_the_device_takes() -> None:
    log = Log(window=0xFFFF)
    sent = [log.flow.add(a_delivery(number)) != b"" for number in range(1, MQTT_WAITING_MESSAGES + 3)]
    assert sent == [True] * MQTT_WAITING_MESSAGES + [False] * 2


def test_what_an_earlier_connection_left_is_bounded_too() -> None:
    log = Log(window=1)
    log.flow.resume(map(a_delivery, range(1, MQTT_WAITING_MESSAGES + 4)))
    assert log.dropped == [1, 2, 3]


def test_few_bytes_are_on_their_way_however_many_deliveries_the_device_takes() -> None:
    log = Log(window=0xFFFF)
    large = b"x" * (UNDER_WAY_BYTES // 2)
    assert [bool(log.flow.add(a_delivery(number, payload=large))) for number in range(1, 5)] == [
        True,
        True,
        False,
        False,
    ]
    assert log.flow.puback(packet_id_of(1)) == wire(3, payload=large)


def test_what_an_earlier_connection_left_is_sent_again_in_order() -> None:
    log = Log(window=2, sent_until=3)
    left = [DeliveryRecord(1, b"t", b"x", 2, is_released=True), a_delivery(3), a_delivery(4)]
    assert log.flow.resume(left) == encode_pubrel(packet_id_of(1)) + wire(3, dup=True)
    assert log.flow.pubcomp(packet_id_of(1)) == wire(4)


def test_a_delivery_that_the_device_does_not_take_is_dropped() -> None:
    dropped: list[int] = []
    flow = Flow(
        answers=Answers5(maximum_packet_size=20),
        window=1,
        dropped=dropped.append,
        settled=lambda _: None,
        now_ms=lambda: NOW_MS,
    )
    assert flow.add(a_delivery(1, payload=b"x" * 20)) == b""
    assert flow.add(a_delivery(2)) != b""
    assert dropped == [1]


def test_packet_ids_are_never_0_and_differ_within_the_window() -> None:
    ids = [packet_id_of(number) for number in range(0xFFFF)]
    assert len(set(ids)) == 0xFFFF
    assert b"\0\0" not in ids
