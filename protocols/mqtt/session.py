"""The state of one MQTT connection without I/O: decoded packets in, typed events out.

A session waits for CONNECT, then for the server's verdict on the credentials; then it is open until one side ends it.
`_ACCEPTED_IN` has the packets that each state accepts. Any other packet raises `ProtocolViolation` and changes nothing;
the server then closes the connection, because version 3 has no other way to report an error.

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
- QoS 1: the server collects the packet ids of a commit and sends `encode_pubacks(ids)`; the session is not involved.
- QoS 2: `receive` returns `PublishReceived` for a new packet id only. After the commit, or after a refusal, which is
  acknowledged, too, the server sends `acknowledge_received(ids)`, the PUBRECs, in the order of the messages
  [MQTT-4.6.0-3]. A message that could not be stored is never acknowledged: the server ends the connection, and the
  client sends the message again on its next connection.
- `overhead` grows by what the server counts and paces (reference 21.1 and 21.5), instead of an event for each.
- The reader task always ends with `connection_lost()`, also after an error; its event has the will that is due.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from .encoding import PINGRESP, encode_connack, encode_pubcomp, encode_pubrec, encode_pubrecs, encode_unsuback
from .packets import (
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
    RequestedFilter,
    ReturnCode,
    Subscribe,
    Unsubscribe,
    UnsupportedConnect,
    Will,
)

# Version 3 cannot tell a client how many QoS 2 messages may be unacknowledged. No client needs as many as this.
RECEIVE_MAXIMUM = 1000


class MqttSessionState(Enum):
    AWAITING_CONNECT = auto()
    AWAITING_VERDICT = auto()
    OPEN = auto()
    CLOSED = auto()


class ProtocolViolation(ProtocolError):
    """A well-formed packet that the state does not allow. It changed nothing."""


# --- Events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsOffered:
    """The server must call `accept` or `refuse`. A credential that is missing or is not UTF-8 never matches."""

    level: int
    client_id: str
    device_id: str
    token: str
    keep_alive_seconds: int
    will: Will | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedLevelRefused:
    """The CONNACK is in the output; send it and close."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReceived:
    topic: bytes
    payload: bytes
    qos: int
    packet_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequested:
    """The server answers with `encode_suback`, one return code per filter."""

    packet_id: bytes
    filters: tuple[RequestedFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribed:
    """The UNSUBACK is in the output; nothing for these topics may follow it [MQTT-3.10.4-2]."""

    filters: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PingReceived:
    """The PINGRESP is in the output. The ping shows that the device is present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLeft:
    """The end, reported once. `will` is the message to publish now, None after DISCONNECT."""

    is_clean: bool
    will: Will | None = None


SessionEvent = (
    CredentialsOffered
    | UnsupportedLevelRefused
    | PublishReceived
    | SubscribeRequested
    | Unsubscribed
    | PingReceived
    | PeerLeft
)


@dataclass(frozen=True, slots=True)
class MqttSessionStatistics:
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


class MqttSession:
    """The state of one MQTT connection, without socket, clock and router."""

    __slots__ = ("_level", "_out", "_receive_maximum", "_unreleased", "_will", "overhead", "state")

    def __init__(self, *, receive_maximum: int = RECEIVE_MAXIMUM) -> None:
        self.state = MqttSessionState.AWAITING_CONNECT
        self._level = 0
        self._will: Will | None = None
        self._receive_maximum = receive_maximum
        self._unreleased: dict[bytes, bool] = {}  # QoS 2 packet id: whether its PUBREC has been sent
        self._out = b""
        #: Packets so far that no message comes of: pings, subscriptions (one for each filter), acknowledgements of
        #: nothing.
        self.overhead = 0

    @property
    def is_open(self) -> bool:
        return self.state is MqttSessionState.OPEN

    @property
    def is_closed(self) -> bool:
        return self.state is MqttSessionState.CLOSED

    def statistics(self) -> MqttSessionStatistics:
        return MqttSessionStatistics(self.state, self._level, len(self._unreleased))

    def receive(self, packet: Packet) -> tuple[SessionEvent, ...]:
        """Process a packet; return its events. Answers that need no decision go to the output.

        Raises:
            ProtocolViolation: the state does not allow this packet.
        """
        if _ACCEPTED_IN[type(packet)] is not self.state:
            raise self._misplaced(packet)
        match packet:
            case Publish():
                return self._receive_publish(packet)
            case PubRel(packet_id):
                self._release(packet_id)
                return ()
            case PubAck() | PubRec() | PubComp():
                # The server delivers with QoS 0, so these answer nothing. Version 3 names no error for that.
                self.overhead += 1
                return ()
            case PingRequest():
                self.overhead += 1
                self._out += PINGRESP
                return (PingReceived(),)
            case Subscribe(packet_id, filters):
                self.overhead += len(filters)
                return (SubscribeRequested(packet_id=packet_id, filters=filters),)
            case Unsubscribe(packet_id, topics):
                self.overhead += len(topics)
                self._out += encode_unsuback(packet_id)
                return (Unsubscribed(filters=topics),)
            case Connect():
                return (self._receive_connect(packet),)
            case UnsupportedConnect(level):
                self.state = MqttSessionState.CLOSED
                self._out += encode_connack(ReturnCode.UNACCEPTABLE_PROTOCOL)
                return (UnsupportedLevelRefused(level=level),)
            case Disconnect():
                self.state = MqttSessionState.CLOSED
                return (PeerLeft(is_clean=True),)  # and its will is discarded [MQTT-3.14.4-3]
            case _ as unreachable:
                assert_never(unreachable)

    def accept(self) -> bytes:
        """Open the session; return the CONNACK to send."""
        self._decide(MqttSessionState.OPEN)
        return encode_connack(ReturnCode.ACCEPTED)

    def refuse(self, return_code: ReturnCode) -> bytes:
        """End the session; return the CONNACK to send before the socket is closed [MQTT-3.2.2-5]."""
        if return_code is ReturnCode.ACCEPTED:
            raise ValueError("a refusal needs a reason")
        self._decide(MqttSessionState.CLOSED)
        return encode_connack(return_code)

    def acknowledge_received(self, packet_ids: Iterable[bytes]) -> bytes:
        """Return the PUBRECs for these QoS 2 messages, which are stored now; the ids are in the order of arrival."""
        stored = tuple(packet_ids)
        self._unreleased.update(dict.fromkeys(stored, True))
        return encode_pubrecs(stored)

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

    def _receive_connect(self, packet: Connect) -> CredentialsOffered:
        # Any client id is taken, also an empty one without clean session (reference 16.2), where
        # [MQTT-3.1.3-8] would have return code 2.
        self.state = MqttSessionState.AWAITING_VERDICT
        self._level = packet.level
        self._will = packet.will
        return CredentialsOffered(
            level=packet.level,
            client_id=packet.client_id,
            device_id=packet.user_name or "",
            # A token is hexadecimal text. Other bytes get the replacement character, so that they match no token.
            token=(packet.password or b"").decode(errors="replace"),
            keep_alive_seconds=packet.keep_alive_seconds,
            will=packet.will,
        )

    def _receive_publish(self, packet: Publish) -> tuple[PublishReceived, ...]:
        if packet.qos == 2:
            packet_id = packet.packet_id
            is_acknowledged = self._unreleased.get(packet_id)
            if is_acknowledged is not None:
                # A repeated message is not published again [MQTT-4.3.3-2]. Its PUBREC is repeated if it was sent.
                self.overhead += 1
                if is_acknowledged:
                    self._out += encode_pubrec(packet_id)
                return ()
            if len(self._unreleased) >= self._receive_maximum:
                raise ProtocolViolation(f"more than {self._receive_maximum} QoS 2 messages without PUBREL")
            self._unreleased[packet_id] = False
        return (
            PublishReceived(topic=packet.topic, payload=packet.payload, qos=packet.qos, packet_id=packet.packet_id),
        )

    def _release(self, packet_id: bytes) -> None:
        # An id of an earlier connection is unknown here; only PUBCOMP makes the client drop it.
        if self._unreleased.get(packet_id) is False:
            raise ProtocolViolation("PUBREL before PUBREC", "MQTT-4.3.3-1")
        if self._unreleased.pop(packet_id, None) is None:
            self.overhead += 1
        self._out += encode_pubcomp(packet_id)

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
