"""The session: every packet in every state, the verdict, QoS 2, and the ways in which it ends."""

import pytest

from protocols.mqtt.answers import Reason
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.encoding import (
    PINGRESP,
    encode_connack,
    encode_pubcomp,
    encode_publish,
    encode_pubrecs,
)
from protocols.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    PingRequest,
    ProtocolError,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    RequestedFilter,
    ReturnCode,
    Subscribe,
    Unsubscribe,
    UnsupportedConnect,
    Will,
)
from protocols.mqtt.session import (
    ConnectRefused,
    CredentialsOffered,
    DeliveryAnswered,
    MqttSession,
    MqttSessionState,
    PeerLeft,
    PingReceived,
    ProtocolViolation,
    PublishReceived,
    SessionEvent,
    SubscribeRequested,
    UnsubscribeRequested,
)
from tests.rows import each_row

ID = b"\x00\x07"
TOPIC = b"/v1.1/messages/d1"
WILL = Will(TOPIC, b'{"state":false}', 1, False)


def a_connect(
    *,
    level: int = 4,
    client_id: str = "",
    is_clean: bool = True,
    will: Will | None = None,
    user_name: str | None = "d1",
    password: bytes | None = b"t1",
) -> Connect:
    return Connect(
        level=level,
        client_id=client_id,
        is_clean=is_clean,
        keep_alive_seconds=30,
        will=will,
        user_name=user_name,
        password=password,
    )


def a_publish(qos: int, packet_id: bytes = ID, *, dup: bool = False) -> Publish:
    return Publish(TOPIC, b"{}", packet_id if qos else b"", qos, 0x30 | dup << 3 | qos << 1)


def session_in(state: MqttSessionState, *, will: Will | None = None, receive_maximum: int = 1000) -> MqttSession:
    session = MqttSession(receive_maximum=receive_maximum)
    if state is MqttSessionState.AWAITING_CONNECT:
        return session
    session.receive(a_connect(will=will))
    if state is MqttSessionState.AWAITING_VERDICT:
        return session
    session.accept()
    if state is MqttSessionState.CLOSED:
        session.receive(Disconnect())
    return session


PACKETS: list[Packet] = [
    a_connect(),
    UnsupportedConnect(5),
    a_publish(0),
    a_publish(1),
    a_publish(2),
    PubAck(ID),
    PubRec(ID),
    PubRel(ID),
    PubComp(ID),
    Subscribe(ID, (RequestedFilter(b"a", 0),)),
    Unsubscribe(ID, (b"a",)),
    PingRequest(),
    Disconnect(),
]

FIRST = (Connect, UnsupportedConnect)


def is_legal(state: MqttSessionState, packet: Packet) -> bool:
    if state is MqttSessionState.AWAITING_CONNECT:
        return isinstance(packet, FIRST)
    return state is MqttSessionState.OPEN and not isinstance(packet, FIRST)


@each_row("packet", PACKETS)
@each_row("state", list(MqttSessionState))
def test_every_packet_in_every_state(state: MqttSessionState, packet: Packet) -> None:
    session = session_in(state)
    if is_legal(state, packet):
        session.receive(packet)
        return
    before = session.statistics()
    with pytest.raises(ProtocolViolation):
        session.receive(packet)
    assert session.statistics() == before
    assert session.take_output() == b""


@each_row(
    ("state", "packet", "clause"),
    [
        (MqttSessionState.AWAITING_CONNECT, PingRequest(), "MQTT-3.1.0-1"),
        (MqttSessionState.AWAITING_CONNECT, a_publish(1), "MQTT-3.1.0-1"),
        (MqttSessionState.AWAITING_VERDICT, a_connect(), "MQTT-3.1.0-2"),
        (MqttSessionState.OPEN, a_connect(), "MQTT-3.1.0-2"),
        (MqttSessionState.OPEN, UnsupportedConnect(5), "MQTT-3.1.0-2"),
        (MqttSessionState.CLOSED, a_publish(0), ""),
    ],
)
def test_a_violation_names_its_clause(state: MqttSessionState, packet: Packet, clause: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        session_in(state).receive(packet)
    assert caught.value.clause == clause


@each_row(
    ("packet", "events", "output"),
    [
        (a_publish(0), (PublishReceived(packet=a_publish(0)),), b""),
        (a_publish(1), (PublishReceived(packet=a_publish(1)),), b""),
        (a_publish(2), (PublishReceived(packet=a_publish(2)),), b""),
        (PubAck(ID), (DeliveryAnswered(packet=PubAck(ID)),), b""),
        (PubRec(ID), (DeliveryAnswered(packet=PubRec(ID)),), b""),
        (PubComp(ID), (DeliveryAnswered(packet=PubComp(ID)),), b""),
        (PubRel(ID), (), encode_pubcomp(ID)),
        (
            Subscribe(ID, (RequestedFilter(b"a", 1), RequestedFilter(b"b", 0))),
            (SubscribeRequested(packet=Subscribe(ID, (RequestedFilter(b"a", 1), RequestedFilter(b"b", 0)))),),
            b"",
        ),
        (Unsubscribe(ID, (b"a", b"b")), (UnsubscribeRequested(packet=Unsubscribe(ID, (b"a", b"b"))),), b""),
        (PingRequest(), (PingReceived(),), PINGRESP),
        (Disconnect(), (PeerLeft(is_clean=True),), b""),
    ],
)
def test_what_an_open_session_makes_of_a_packet(
    packet: Packet, events: tuple[SessionEvent, ...], output: bytes
) -> None:
    session = session_in(MqttSessionState.OPEN)
    assert session.receive(packet) == events
    assert session.take_output() == output
    assert session.take_output() == b""


# --- CONNECT and the verdict ----------------------------------------------------------------------------------------


def test_credentials_are_user_name_and_password() -> None:
    session = MqttSession()
    packet = a_connect(level=3, client_id="c", will=WILL)
    assert session.receive(packet) == (CredentialsOffered(device_id="d1", token="t1", packet=packet),)
    assert session.state is MqttSessionState.AWAITING_VERDICT
    assert session.take_output() == b""


@pytest.mark.parametrize(
    ("user_name", "password", "device_id", "token"),
    [(None, None, "", ""), ("d1", None, "d1", ""), ("d1", b"\xff", "d1", "\ufffd"), ("", b"", "", "")],
)
def test_missing_credentials_are_offered_as_wrong_ones(
    user_name: str | None, password: bytes | None, device_id: str, token: str
) -> None:
    (offered,) = MqttSession().receive(a_connect(user_name=user_name, password=password))
    assert isinstance(offered, CredentialsOffered)
    assert (offered.device_id, offered.token) == (device_id, token)


@each_row("level", [3, 4])
@each_row("client_id", ["", "one", "x" * 500])
@each_row("is_clean", [True, False])
def test_any_client_id_is_accepted_into_a_clean_session(level: int, client_id: str, is_clean: bool) -> None:
    session = MqttSession()
    session.receive(a_connect(level=level, client_id=client_id, is_clean=is_clean))
    assert session.accept() == b"\x20\x02\x00\x00"
    assert session.is_open
    assert session.statistics().level == level


@pytest.mark.parametrize(
    ("code", "return_code"),
    [
        (ReasonCode.UNSUPPORTED_VERSION, ReturnCode.UNACCEPTABLE_PROTOCOL),
        (ReasonCode.BAD_CREDENTIALS, ReturnCode.BAD_CREDENTIALS),
        (ReasonCode.NOT_AUTHORIZED, ReturnCode.NOT_AUTHORIZED),
        (ReasonCode.QUOTA_EXCEEDED, ReturnCode.SERVER_UNAVAILABLE),
        (ReasonCode.SERVER_UNAVAILABLE, ReturnCode.SERVER_UNAVAILABLE),
    ],
)
def test_a_refusal_closes(code: ReasonCode, return_code: ReturnCode) -> None:
    session = session_in(MqttSessionState.AWAITING_VERDICT, will=WILL)
    assert session.refuse(Reason(code)) == encode_connack(return_code)
    assert session.is_closed
    assert session.connection_lost() == ()


def test_a_refusal_cannot_say_accepted() -> None:
    session = session_in(MqttSessionState.AWAITING_VERDICT)
    with pytest.raises(ValueError, match="reason"):
        session.refuse(Reason(ReasonCode.SUCCESS))
    assert session.state is MqttSessionState.AWAITING_VERDICT


@pytest.mark.parametrize("state", [MqttSessionState.AWAITING_CONNECT, MqttSessionState.OPEN, MqttSessionState.CLOSED])
def test_a_verdict_is_for_offered_credentials_only(state: MqttSessionState) -> None:
    session = session_in(state, will=WILL)
    with pytest.raises(RuntimeError, match=state.name):
        session.accept()
    with pytest.raises(RuntimeError, match=state.name):
        session.refuse(Reason(ReasonCode.NOT_AUTHORIZED))
    assert session.state is state


@pytest.mark.parametrize("level", [0, 2, 6, 0x7F, 0x83, 0x84, 0xFF])
def test_another_protocol_level_is_refused_in_the_words_of_version_3(level: int) -> None:
    session = MqttSession()
    refused = ConnectRefused(reason=Reason(ReasonCode.UNSUPPORTED_VERSION))
    assert session.receive(UnsupportedConnect(level)) == (refused,)
    assert session.take_output() == bytes.fromhex("20 02 00 01")  # [MQTT-3.1.2-2]
    assert session.is_closed


# --- QoS 2 ----------------------------------------------------------------------------------------------------------


def test_qos_2_is_published_once_and_acknowledged_after_it_is_stored() -> None:
    session = session_in(MqttSessionState.OPEN)
    assert len(session.receive(a_publish(2))) == 1
    assert session.take_output() == b""
    assert session.acknowledge_received([ID]) == encode_pubrecs([ID])
    assert session.receive(PubRel(ID)) == ()
    assert session.take_output() == encode_pubcomp(ID)
    assert session.statistics().unreleased == 0


@pytest.mark.parametrize("dup", [True, False])
def test_qos_2_sent_again_before_it_is_stored_waits_for_the_first_pubrec(dup: bool) -> None:
    session = session_in(MqttSessionState.OPEN)
    session.receive(a_publish(2))
    assert session.receive(a_publish(2, dup=dup)) == ()
    assert session.take_output() == b""


@pytest.mark.parametrize("dup", [True, False])
def test_qos_2_sent_again_after_it_is_stored_repeats_the_pubrec(dup: bool) -> None:
    session = session_in(MqttSessionState.OPEN)  # [MQTT-4.3.3-2]: the packet id decides, not DUP
    session.receive(a_publish(2))
    session.acknowledge_received([ID])
    assert session.receive(a_publish(2, dup=dup)) == ()
    assert session.take_output() == encode_pubrecs([ID])


def test_a_released_packet_id_is_a_new_message() -> None:
    session = session_in(MqttSessionState.OPEN)
    session.receive(a_publish(2))
    session.acknowledge_received([ID])
    session.receive(PubRel(ID))
    assert len(session.receive(a_publish(2))) == 1


def test_many_messages_are_acknowledged_in_their_order() -> None:
    session = session_in(MqttSessionState.OPEN)
    ids = [b"\x00\x03", b"\x00\x01", b"\x00\x02"]
    for packet_id in ids:
        session.receive(a_publish(2, packet_id))
    assert session.acknowledge_received(iter(ids)) == b"".join(encode_pubrecs([one]) for one in ids)  # [MQTT-4.6.0-3]
    assert session.acknowledge_received([]) == b""


def test_pubrel_of_an_unknown_packet_id_is_completed() -> None:
    session = session_in(MqttSessionState.OPEN)
    session.receive(PubRel(b"\x00\x63"))
    assert session.take_output() == encode_pubcomp(b"\x00\x63")


def test_pubrel_before_pubrec_is_a_violation_and_releases_nothing() -> None:
    session = session_in(MqttSessionState.OPEN)
    session.receive(a_publish(2))
    with pytest.raises(ProtocolViolation, match=r"MQTT-4\.3\.3-1"):
        session.receive(PubRel(ID))
    assert session.statistics().unreleased == 1
    assert session.take_output() == b""


def test_unreleased_messages_are_bounded() -> None:
    session = session_in(MqttSessionState.OPEN, receive_maximum=2)
    session.receive(a_publish(2, b"\x00\x01"))
    session.receive(a_publish(2, b"\x00\x02"))
    assert session.receive(a_publish(2, b"\x00\x02")) == ()  # held already: takes no further place
    assert len(session.receive(a_publish(1, b"\x00\x03"))) == 1  # QoS 1 holds nothing
    before = session.statistics()
    with pytest.raises(ProtocolViolation, match="more than 2"):
        session.receive(a_publish(2, b"\x00\x03"))
    assert session.statistics() == before


def test_a_released_packet_id_makes_room() -> None:
    session = session_in(MqttSessionState.OPEN, receive_maximum=1)
    session.receive(a_publish(2, b"\x00\x01"))
    session.acknowledge_received([b"\x00\x01"])
    session.receive(PubRel(b"\x00\x01"))
    assert len(session.receive(a_publish(2, b"\x00\x02"))) == 1


# --- The end --------------------------------------------------------------------------------------------------------


def test_disconnect_discards_the_will() -> None:
    session = session_in(MqttSessionState.OPEN, will=WILL)
    assert session.receive(Disconnect()) == (PeerLeft(is_clean=True, will=None),)  # [MQTT-3.14.4-3]
    assert session.connection_lost() == ()


def test_an_open_session_that_is_lost_reports_its_will_once() -> None:
    session = session_in(MqttSessionState.OPEN, will=WILL)
    assert session.connection_lost() == (PeerLeft(is_clean=False, will=WILL),)  # [MQTT-3.1.2-8]
    assert session.connection_lost() == ()
    assert session.is_closed


def test_a_violation_leaves_the_will_to_connection_lost() -> None:
    session = session_in(MqttSessionState.OPEN, will=WILL)
    with pytest.raises(ProtocolViolation):
        session.receive(a_connect())
    assert session.connection_lost() == (PeerLeft(is_clean=False, will=WILL),)


@pytest.mark.parametrize("state", [MqttSessionState.AWAITING_CONNECT, MqttSessionState.AWAITING_VERDICT])
def test_a_session_that_was_never_accepted_has_no_will(state: MqttSessionState) -> None:
    assert session_in(state, will=WILL).connection_lost() == (PeerLeft(is_clean=False, will=None),)


# --- Together with the reader ---------------------------------------------------------------------------------------


def test_one_piece_of_input_may_hold_a_whole_session() -> None:
    # Clients may send before they have their CONNACK; the server's loop is the one of the module docstring.
    received = (
        bytes.fromhex("10 14 0004 4d515454 04 c2 001e 0000 00026431 00027431")
        + encode_publish(TOPIC, b"1", qos=1, packet_id=b"\x00\x01")
        + encode_publish(TOPIC, b"2", qos=2, packet_id=b"\x00\x02")
        + encode_publish(TOPIC, b"3")
        + b"\xc0\x00\xe0\x00"
    )
    session = MqttSession()
    is_open = session.is_open
    stored: list[bytes] = []
    sent = b""
    for packet in PacketReader().feed(received):
        if type(packet) is Publish and packet.qos < 2 and is_open:
            stored.append(packet.payload)
            continue
        for event in session.receive(packet):
            if isinstance(event, CredentialsOffered):
                sent += session.accept()
            elif isinstance(event, PublishReceived):
                stored.append(event.packet.payload)
                sent += session.acknowledge_received([event.packet.packet_id])
        is_open = session.is_open
    assert stored == [b"1", b"2", b"3"]
    assert sent + session.take_output() == encode_connack(0) + encode_pubrecs([b"\x00\x02"]) + PINGRESP
    assert session.is_closed
