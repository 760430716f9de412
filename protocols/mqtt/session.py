"""The state of one MQTT connection without I/O: decoded packets in, typed events out.

A session waits for CONNECT, then for the server's verdict on the credentials; then it is open until one side ends it.
`_ACCEPTED_IN` has the packets that each state accepts. Any other packet raises `ProtocolViolation` and changes nothing;
the server then calls `fail` and closes the connection. A peer that speaks 5.0 is told the reason in `farewell`, its
last packet; version 3 has no way to report an error.

How the server loop uses it, with one reader task per connection:

    try:
        packets = reader.feed(received)
    except ProtocolError as fault:
        packets, ending = fault.packets, fault      # the packets before the fault are processed
    is_open = session.is_open
    for packet in packets:
        if type(packet) is Publish and packet.qos < 2 and is_open:
            ...                                     # the hot path: the session is not needed
        else:
            for event in session.receive(packet):
                ...                                 # CredentialsOffered: await the verdict, send accept() or refuse()
            is_open = session.is_open               # only `receive`, a verdict and `connection_lost` change it
            if session.is_closed: break
    send(session.take_output())

- `is_open` is read once for each batch, and after every packet that went through `receive`. A client may send PUBLISH
  directly after its CONNECT; the loop awaits the verdict before it goes on to the next packet.
- QoS 1: the server collects the packet ids of a commit and sends `answers.pubacks(ids)`; the session is not involved,
  unless the message has properties.
- QoS 2: `receive` returns `PublishReceived` for a new packet id only. After the commit, or after a refusal, which is
  acknowledged, too, the server sends `acknowledge_received(ids)`, the PUBRECs, in the order of the messages
  [MQTT-4.6.0-3]. A message that could not be stored is never acknowledged: the server ends the connection, and the
  client sends the message again on its next connection.
- `overhead` grows by what the server counts and paces (reference 21.1 and 21.5), instead of an event for each.
- The reader task always ends with `connection_lost()`, also after an error; its event has the will that is due.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import assert_never

import msgspec

from protocols.mqtt.answers import ANSWERS_3, MqttAnswers, Reason, Reasons, answers_for
from protocols.mqtt.encoding import PINGRESP, encode_connack_5
from protocols.mqtt.packets import (
    MQTT_5,
    Auth,
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
    Subscribe,
    Unsubscribe,
    UnsupportedConnect,
    Will,
)
from protocols.mqtt.values import NO_PROPERTIES, Properties

# Version 3 cannot tell a client how many QoS 2 messages may be unacknowledged. No client needs as many as this. In 5.0,
# messages of QoS 1 count, too.
RECEIVE_MAXIMUM = 1000


class MqttSessionState(Enum):
    AWAITING_CONNECT = auto()
    AWAITING_VERDICT = auto()
    OPEN = auto()
    CLOSED = auto()


@dataclass(eq=False)
class ProtocolViolation(ProtocolError):
    """A well-formed packet that the state does not allow. It changed nothing."""


# --- Events -------------------------------------------------------------------------------------------------------


class CredentialsOffered(msgspec.Struct, frozen=True, kw_only=True):
    """The server must call `accept` or `refuse`. A credential that is missing or is not UTF-8 never matches."""

    device_id: str
    token: str
    packet: Connect


class ConnectRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The CONNACK is in the output; send it and close."""

    reason: Reason


class PublishReceived(msgspec.Struct, frozen=True, kw_only=True):
    packet: Publish


class SubscribeRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The server answers with `answers.suback`, one code per filter."""

    packet: Subscribe


class UnsubscribeRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The server answers with `answers.unsuback`; nothing for these topics may follow it [MQTT-3.10.4-2]."""

    packet: Unsubscribe


class DeliveryAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """PUBACK, PUBREC or PUBCOMP, which may answer nothing."""

    packet: PubAck | PubRec | PubComp


class PublishReleased(msgspec.Struct, frozen=True, kw_only=True):
    """A message of QoS 2 is complete. When that is durable, the server sends PUBCOMP."""

    packet_id: bytes


class PingReceived(msgspec.Struct, frozen=True):
    """The PINGRESP is in the output. The ping shows that the device is present."""


class PeerLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The end, reported once. `will` is the message to publish now, None after DISCONNECT. `session_expiry` is how long
    the session outlives the connection, when a DISCONNECT of 5.0 says that."""

    is_clean: bool
    will: Will | None = None
    session_expiry: int | None = None


SessionEvent = (
    CredentialsOffered
    | ConnectRefused
    | PublishReceived
    | SubscribeRequested
    | UnsubscribeRequested
    | DeliveryAnswered
    | PublishReleased
    | PingReceived
    | PeerLeft
)


class MqttSessionStatistics(msgspec.Struct, frozen=True):
    state: MqttSessionState
    level: int
    unreleased: int  # QoS 2 packet ids between PUBLISH and PUBREL


_ACCEPTED_IN: dict[type[Packet], MqttSessionState] = {
    Connect: MqttSessionState.AWAITING_CONNECT,
    UnsupportedConnect: MqttSessionState.AWAITING_CONNECT,
    Publish: MqttSessionState.OPEN,
    PubAck: MqttSessionState.OPEN,
    PubRec: MqttSessionState.OPEN,
    PubRel: MqttSessionState.OPEN,
    PubComp: MqttSessionState.OPEN,
    Subscribe: MqttSessionState.OPEN,
    Unsubscribe: MqttSessionState.OPEN,
    PingRequest: MqttSessionState.OPEN,
    Disconnect: MqttSessionState.OPEN,
}
# `Auth` is accepted in no state: there is no authentication method.


@dataclass(eq=False, slots=True)
class MqttSession:
    """The state of one MQTT connection, without socket, clock and router."""

    receive_maximum: int = RECEIVE_MAXIMUM
    state: MqttSessionState = MqttSessionState.AWAITING_CONNECT
    #: The words of the peer's version, known since its CONNECT.
    answers: MqttAnswers = ANSWERS_3
    #: The last packet to the peer, which says why the server ends the connection; empty when nothing can be said.
    farewell: bytes = b""
    level: int = 0
    is_lasting: bool = False
    #: Packets so far that carry no message: pings, subscriptions (one for each filter), acknowledgements of nothing.
    overhead: int = 0
    _session_expiry: int = 0
    _will: Will | None = None
    _unreleased: dict[bytes, bool] = field(default_factory=dict)  # QoS 2 packet id: whether its PUBREC has been sent
    _out: bytes = b""

    @property
    def is_open(self) -> bool:
        return self.state is MqttSessionState.OPEN

    @property
    def is_closed(self) -> bool:
        return self.state is MqttSessionState.CLOSED

    def statistics(self) -> MqttSessionStatistics:
        return MqttSessionStatistics(self.state, self.level, len(self._unreleased))

    def receive(self, packet: Packet) -> tuple[SessionEvent, ...]:
        """Process a packet; return its events. Answers that need no decision go to the output.

        Raises:
            ProtocolViolation: the state does not allow this packet.
        """
        kind: type[Packet] = Publish if isinstance(packet, Publish) else type(packet)
        if _ACCEPTED_IN.get(kind) is not self.state:
            raise self._misplaced(packet)
        match packet:
            case Publish():
                return self._receive_publish(packet)
            case PubRel(packet_id):
                return self._release(packet_id)
            case PubAck() | PubRec() | PubComp():
                return (DeliveryAnswered(packet=packet),)
            case PingRequest():
                self.overhead += 1
                self._out += PINGRESP
                return (PingReceived(),)
            case Subscribe():
                self.overhead += len(packet.filters)
                return (SubscribeRequested(packet=packet),)
            case Unsubscribe():
                self.overhead += len(packet.filters)
                return (UnsubscribeRequested(packet=packet),)
            case Connect():
                return (self._receive_connect(packet),)
            case UnsupportedConnect():
                # In the words of version 3 for any level: bridges try 0x84 first, and know no CONNACK of 5.0 then.
                return (self._refuse_connect(Reason(ReasonCode.UNSUPPORTED_VERSION)),)
            case Disconnect():
                return (self._receive_disconnect(packet),)
            case Auth():
                return ()
            case _ as unreachable:
                assert_never(unreachable)

    def resume(self, received: Iterable[int]) -> None:
        """The session outlives its connections. `received` are the packet ids of an earlier connection."""
        self.is_lasting = True
        self._unreleased = {packet_id.to_bytes(2): True for packet_id in received}

    def accept(self, properties: Properties = NO_PROPERTIES, *, is_present: bool = False) -> bytes:
        """Open the session; return the CONNACK to send, with these properties in 5.0. `is_present`: an earlier session
        goes on."""
        self._decide(MqttSessionState.OPEN)
        return self.answers.connack(Reason(ReasonCode.SUCCESS), properties, is_present=is_present)

    def refuse(self, reason: Reason) -> bytes:
        """End the session; return the CONNACK to send before the socket is closed [MQTT-3.2.2-5]."""
        if reason.code < ReasonCode.UNSPECIFIED:
            raise ValueError("a refusal needs a reason")
        self._decide(MqttSessionState.CLOSED)
        return self.answers.connack(reason)

    def fail(self, fault: ProtocolError) -> None:
        """The peer has broken the protocol: the farewell names the fault."""
        if fault.is_of_connect and self.state is MqttSessionState.AWAITING_CONNECT:
            self.farewell = encode_connack_5(fault.code, Properties(reason_string=str(fault)))
        else:
            self.part(Reason(fault.code, str(fault)))

    def part(self, reason: Reason) -> None:
        """The server ends the connection: the farewell has the reason, unless there is one already."""
        if self.is_open and not self.farewell:
            self.farewell = self.answers.disconnect(reason)

    def acknowledge_received(self, packet_ids: Iterable[bytes], reasons: Reasons | None = None) -> bytes:
        """Return the PUBRECs for these QoS 2 messages, which are stored now; the ids are in the order of arrival.

        `reasons` has the refused messages. In 5.0 they end here; version 3 cannot report a refusal.
        """
        stored = tuple(packet_ids)
        self._unreleased.update(dict.fromkeys(stored, True))
        if reasons and self.level == MQTT_5:
            for packet_id in reasons:
                self._unreleased.pop(packet_id, None)
        return self.answers.pubrecs(stored, reasons)

    def connection_lost(self) -> tuple[PeerLeft, ...]:
        """The connection has ended, for any reason. Returns no event after a DISCONNECT."""
        if self.state is MqttSessionState.CLOSED:
            return ()
        due = self._will if self.is_open else None
        self.state = MqttSessionState.CLOSED
        return (PeerLeft(is_clean=False, will=due),)

    def take_output(self) -> bytes:
        """The answers of the session itself since the last call."""
        output, self._out = self._out, b""
        return output

    def _receive_connect(self, packet: Connect) -> CredentialsOffered | ConnectRefused:
        # Any client id is taken, also an empty one without clean session (reference 16.2), where
        # [MQTT-3.1.3-8] would have return code 2.
        self.answers = answers_for(packet.level, packet.properties)
        if packet.properties.authentication_method is not None:
            return self._refuse_connect(Reason(ReasonCode.BAD_AUTHENTICATION_METHOD))
        self.state = MqttSessionState.AWAITING_VERDICT
        self.level = packet.level
        self._session_expiry = packet.properties.session_expiry or 0
        self._will = packet.will
        return CredentialsOffered(
            device_id=packet.user_name or "",
            # A token is hexadecimal text. Other bytes get the replacement character, so that they match no token.
            token=(packet.password or b"").decode(errors="replace"),
            packet=packet,
        )

    def _refuse_connect(self, reason: Reason) -> ConnectRefused:
        self.state = MqttSessionState.CLOSED
        self._out += self.answers.connack(reason)
        return ConnectRefused(reason=reason)

    def _receive_disconnect(self, packet: Disconnect) -> PeerLeft:
        if packet.properties.session_expiry and not self._session_expiry:
            raise ProtocolViolation("DISCONNECT with a session expiry, and CONNECT had none", "MQTT-3.14.2-2")
        self.state = MqttSessionState.CLOSED
        # Its will is discarded [MQTT-3.14.4-3], unless a peer that speaks 5.0 has another reason than the usual one.
        will = self._will if packet.reason != ReasonCode.SUCCESS else None
        return PeerLeft(is_clean=True, will=will, session_expiry=packet.properties.session_expiry)

    def _receive_publish(self, packet: Publish) -> tuple[PublishReceived, ...]:
        if packet.qos == 2:
            packet_id = packet.packet_id
            is_acknowledged = self._unreleased.get(packet_id)
            if is_acknowledged is not None:
                # A repeated message is not published again [MQTT-4.3.3-2]. Its PUBREC is repeated if it was sent.
                self.overhead += 1
                if is_acknowledged:
                    self._out += self.answers.pubrecs((packet_id,), None)
                return ()
            if len(self._unreleased) >= self.receive_maximum:
                raise ProtocolViolation(
                    f"more than {self.receive_maximum} QoS 2 messages without PUBREL",
                    code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                )
            self._unreleased[packet_id] = False
        return (PublishReceived(packet=packet),)

    def _release(self, packet_id: bytes) -> tuple[SessionEvent, ...]:
        # An id of an earlier connection is unknown here; only PUBCOMP makes the client drop it.
        if self._unreleased.get(packet_id) is False:
            raise ProtocolViolation("PUBREL before PUBREC", "MQTT-4.3.3-1")
        code = ReasonCode.SUCCESS
        if self._unreleased.pop(packet_id, None) is None:
            self.overhead += 1
            code = ReasonCode.PACKET_ID_NOT_FOUND
        elif self.is_lasting:
            return (PublishReleased(packet_id=packet_id),)
        self._out += self.answers.pubcomp(packet_id, code)
        return ()

    def _decide(self, verdict: MqttSessionState) -> None:
        if self.state is not MqttSessionState.AWAITING_VERDICT:
            raise RuntimeError(f"a verdict while {self.state.name}")
        self.state = verdict

    def _misplaced(self, packet: Packet) -> ProtocolViolation:
        if self.state is MqttSessionState.AWAITING_CONNECT:
            clause = "MQTT-3.1.0-1"
        elif isinstance(packet, Connect | UnsupportedConnect):
            clause = "MQTT-3.1.0-2"
        else:
            clause = ""
        return ProtocolViolation(f"{type(packet).__name__} while {self.state.name}", clause)
