"""Sessions of a listener: the state of one peer, and the table of all peers with limits, eviction and due times."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from math import inf
from typing import Final, Generic, TypeVar

import msgspec

from broker.devices.registry import Device
from broker.errors import DomainError
from broker.limits.overhead import TokenBucket
from broker.registration.certificates import ClientCertificate
from broker.routing.connections import DeviceLink
from broker.trace.origin import Origin
from config.limits import COAP_SILENCE_SECONDS
from protocols.coap.blockwise import Blockwise
from protocols.coap.message_layer import MessageLayer
from protocols.coap.observe import Observation
from protocols.coap.usual import USUAL_BYTES, UsualPost

#: Datagrams without a message that one session may send. More are dropped unread: UDP cannot make a peer wait.
OVERHEAD_AT_ONCE: Final = 256
OVERHEAD_PER_SECOND: Final = 20.0
#: A session after one request, without what `bytes_held` counts separately: measured, rounded up.
_BYTES = 2048
#: Bytes that `keep` holds of a DTLS session, without the certificate of the peer.
_KEEP_BYTES = 1024


class SessionRank(IntEnum):
    """Rank of a session by its proofs. `CoapSessions.surplus` chooses by the rank which session to end.

    The sender's address in a datagram proves nothing: senders can forge it.
    """

    UNAUTHENTICATED = 0
    AUTHENTICATED = 1  # one of its requests had a valid device token
    OBSERVER = 2


@dataclass(eq=False, slots=True)
class CoapSession:
    """The state of one peer. In DTLS a peer is one connection, in plain CoAP one address.

    Args:
        key: what identifies the peer.
        message_layer: of this peer.
        send: sends a datagram or loses it, without waiting.
        end: called once, when the session ends.
        idle_seconds: after this time without a datagram a session that does not observe ends.
        is_address_verified: whether the peer is known to receive what is sent to its address.
        last_heard: seconds of the endpoint's clock.
    """

    key: Hashable
    message_layer: MessageLayer
    send: Callable[[bytes], None]
    _end: Callable[[], None]
    idle_seconds: float
    is_address_verified: bool
    last_heard: float
    origin: Origin = field(init=False)
    certificate: ClientCertificate | None = None  # the peer's, not verified
    pre_shared_key: tuple[bytes, bytes] | None = None  # the identity and the key that the peer has
    #: Takes the id of the device that the peer has proved to be, for a session that can be resumed then.
    keep: Callable[[str], None] | None = None
    rank: SessionRank = SessionRank.UNAUTHENTICATED
    lost_pings: int = 0
    is_closed: bool = False
    scheduled: float = inf  # of `CoapSessions.schedule`
    accounted: int = 0  # of `CoapSessions.account`
    observers: dict[bytes, "Observer"] = field(default_factory=dict)  # by the token of the registration
    blockwise: Blockwise | None = None
    repeated: bytes = b""  # the options of the latest POST that was not usual
    usual: UsualPost | None = None
    overhead: TokenBucket | None = None  # its allowance of datagrams that carry no message, once it sent one

    def __post_init__(self) -> None:
        self.origin = Origin(
            str(self.key[0]) if isinstance(self.key, tuple) else "", is_forgeable=not self.is_address_verified
        )

    def spend(self, now: float) -> None:
        """A datagram came that is no message, no answer and no part of one: a ping, a refused request, a duplicate."""
        if self.overhead is None:
            self.overhead = TokenBucket(at_once=OVERHEAD_AT_ONCE, per_second=OVERHEAD_PER_SECOND)
        self.overhead.charge(now, 1)

    def proved(self, device: str) -> None:
        """The peer has proved that it is this device: a request of its was not refused."""
        if self.keep is not None:
            keep, self.keep = self.keep, None
            keep(device)

    @property
    def blocks(self) -> Blockwise:
        """The block-wise transfers of the peer. Most peers have none, so it is made on demand."""
        if self.blockwise is None:
            self.blockwise = Blockwise()
        return self.blockwise

    @property
    def bytes_held(self) -> int:
        held = _BYTES + self.message_layer.bytes_held
        if self.certificate is not None:
            held += 2 * self.certificate.size  # GnuTLS keeps a copy
        if self.keep is not None:
            held += _KEEP_BYTES + (0 if self.certificate is None else self.certificate.size)
        if self.usual is not None:
            held += USUAL_BYTES
        if self.blockwise is not None:
            held += self.blockwise.bytes_held
        for observer in self.observers.values():
            held += observer.observation.bytes_held
        return held

    @property
    def silence_seconds(self) -> float:
        """How long the session may be silent: then an observer is pinged, and any other session ends."""
        return COAP_SILENCE_SECONDS if self.rank is SessionRank.OBSERVER else self.idle_seconds

    def flush(self) -> None:
        """Send what the message layer has to send."""
        for datagram in self.message_layer.take_output():
            self.send(datagram)

    def end(self) -> None:
        """Close the session. A second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            self._end()


class Observer:
    """One observation of one session, and its entry among the device's connections."""

    __slots__ = ("connection", "device", "ended_by", "is_of_wanted", "is_told", "link", "observation", "session")

    def __init__(
        self, session: CoapSession, device: Device, observation: Observation, *, is_of_wanted: bool = False
    ) -> None:
        self.is_of_wanted = is_of_wanted
        self.session = session
        self.device = device
        self.observation = observation
        self.connection = ExitStack()
        self.link: DeviceLink | None = None
        #: Whether the peer knows of it. With several nodes the others know first.
        self.is_told = False
        #: Why it has ended before the peer knew of it.
        self.ended_by: DomainError | None = None


class SessionLimits(msgspec.Struct, frozen=True):
    """Limits of one listener. `CoapSessions.surplus` chooses which sessions end when it holds more."""

    sessions: int = 10_000
    bytes_held: int = 128 * 1024 * 1024  # about 900 devices that send as much as they may
    requests_per_session: int = 64  # without an answer yet
    half_open_handshakes: int = 512


#: One part in 16 of all places and bytes is reserved for unauthenticated sessions, so that a new device can
#: authenticate while all other places are taken by authenticated ones.
_RESERVED_SHARE = 16

S = TypeVar("S", bound=CoapSession)


class CoapSessions(Generic[S]):
    """The sessions of one listener: by key, by the time of the last datagram, and by the next deadline."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._reserve = max(1, limits.sessions // _RESERVED_SHARE)
        self._bytes_reserve = limits.bytes_held // _RESERVED_SHARE
        self._by_key: dict[Hashable, S] = {}
        self._ranks: tuple[OrderedDict[Hashable, S], ...] = tuple(OrderedDict() for _ in SessionRank)
        self._due: list[tuple[float, int, S]] = []
        self._order = count()
        self._with_blocks: set[S] = set()
        self._unauthenticated_bytes = 0
        self.bytes_held = 0
        self.find = self._by_key.get

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[S]:
        return iter(tuple(self._by_key.values()))

    def count(self, rank: SessionRank) -> int:
        return len(self._ranks[rank])

    def add(self, session: S) -> None:
        self._by_key[session.key] = session
        self._ranks[session.rank][session.key] = session
        self.account(session)

    def remove(self, session: S) -> None:
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
            del self._ranks[session.rank][session.key]
            self._with_blocks.discard(session)
            self.bytes_held -= session.accounted
            if session.rank is SessionRank.UNAUTHENTICATED:
                self._unauthenticated_bytes -= session.accounted

    def heard(self, session: S, now: float) -> None:
        session.last_heard = now
        self._ranks[session.rank].move_to_end(session.key)

    def rise(self, session: S, rank: SessionRank) -> None:
        if session.rank != rank and self._by_key.get(session.key) is session:
            del self._ranks[session.rank][session.key]
            if session.rank is SessionRank.UNAUTHENTICATED:  # no session gets this rank again
                self._unauthenticated_bytes -= session.accounted
            session.rank = rank
            self._ranks[rank][session.key] = session

    def account(self, session: S) -> None:
        """Count what the session holds now. Call it after each change."""
        held = session.bytes_held
        change = held - session.accounted
        session.accounted = held
        self.bytes_held += change
        if session.rank is SessionRank.UNAUTHENTICATED:
            self._unauthenticated_bytes += change
        if session.blockwise is not None:
            if session.blockwise.bytes_held:
                self._with_blocks.add(session)
            else:
                self._with_blocks.discard(session)

    def surplus(self, latest: S) -> S | None:
        """The session to end because a limit is exceeded; None when no limit is.

        It is the one that has been silent longest among the sessions of the first of these ranks that has any:

        - unauthenticated, if they exceed their reserve: a flood of them takes no more than the reserve from the others;
        - authenticated, then observers: a new session gets in, however many there are;
        - unauthenticated.

        `latest`, whose datagram has just come, is chosen only if there is no other session.
        """
        if len(self._by_key) <= self._limits.sessions and self.bytes_held <= self._limits.bytes_held:
            return None
        unauthenticated, authenticated, observers = self._ranks
        order = (authenticated, observers, unauthenticated)
        if len(unauthenticated) > self._reserve or self._unauthenticated_bytes > self._bytes_reserve:
            order = (unauthenticated, authenticated, observers)
        for sessions in order:
            for session in sessions.values():
                if session is not latest:
                    return session
        return latest

    def with_blocks(self) -> tuple[S, ...]:
        """The sessions with block-wise transfers that have not ended."""
        return tuple(self._with_blocks)

    def silent(self, now: float, *ranks: SessionRank) -> list[S]:
        """The sessions of these ranks without a datagram for their `silence_seconds`.

        All sessions of one rank have the same `silence_seconds`, so the search ends at the first that was heard later.
        """
        found = []
        for rank in ranks:
            for session in self._ranks[rank].values():
                if session.last_heard + session.silence_seconds > now:
                    break
                found.append(session)
        return found

    def schedule(self, session: S) -> None:
        """Note the deadline of the session. A later deadline than the noted one adds no note: `due` is early then."""
        deadline = session.message_layer.deadline
        if deadline < session.scheduled:
            session.scheduled = deadline
            heapq.heappush(self._due, (deadline, next(self._order), session))

    @property
    def next_due(self) -> float:
        return self._due[0][0] if self._due else inf

    def due(self, now: float) -> list[S]:
        """The sessions whose noted deadline has passed. Their notes are removed."""
        found = []
        while self._due and self._due[0][0] <= now:
            deadline, _, session = heapq.heappop(self._due)
            if session.scheduled == deadline and not session.is_closed:
                session.scheduled = inf
                found.append(session)
        return found
