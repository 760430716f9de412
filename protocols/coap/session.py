"""One peer, and all of them: who came when, who may stay, and what is due."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from math import inf

from broker.devices.registry import Device
from broker.registration.certificates import ClientCertificate
from protocols.coap.blockwise import Blockwise
from protocols.coap.exchange import Exchange
from protocols.coap.observe import Observation

_BYTES = 2048  # a session that has said one thing, beside its account of what it holds: measured, rounded up


class Rank(IntEnum):
    """Who goes first when there are too many. An address in a datagram is no proof of anything."""

    STRANGER = 0
    MEMBER = 1  # it has shown a valid device token
    OBSERVER = 2


class Session:
    """What we hold for one peer."""

    __slots__ = (
        "_end",
        "accounted",
        "blockwise",
        "certificate",
        "exchange",
        "idle_seconds",
        "is_closed",
        "is_verified",
        "key",
        "last_heard",
        "lost_pings",
        "observers",
        "rank",
        "scheduled",
        "send",
    )

    def __init__(
        self,
        key: Hashable,
        exchange: Exchange,
        send: Callable[[bytes], None],
        end: Callable[[], None],
        *,
        idle_seconds: float,
        is_verified: bool,
        now: float,
    ) -> None:
        """`send` takes a datagram at once, `end` is called when the session is let go of; neither may wait."""
        self.key = key
        self.exchange = exchange
        self.send = send
        self._end = end
        self.idle_seconds = idle_seconds
        self.is_verified = is_verified  # it receives what we send to this address
        self.last_heard = now
        self.certificate: ClientCertificate | None = None  # what it has shown; nobody has looked into it
        self.rank = Rank.STRANGER
        self.lost_pings = 0
        self.is_closed = False
        self.scheduled = inf
        self.accounted = 0
        self.observers: dict[bytes, Observer] = {}  # by the token of their request
        self.blockwise: Blockwise | None = None

    @property
    def blocks(self) -> Blockwise:
        if self.blockwise is None:
            self.blockwise = Blockwise()
        return self.blockwise

    @property
    def bytes_held(self) -> int:
        held = _BYTES + self.exchange.bytes_held
        if self.certificate is not None:
            held += 2 * self.certificate.size  # GnuTLS has its own
        if self.blockwise is not None:
            held += self.blockwise.bytes_held
        for observer in self.observers.values():
            held += observer.observation.bytes_held
        return held

    def flush(self) -> None:
        for datagram in self.exchange.take_output():
            self.send(datagram)

    def end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._end()


class Observer:
    """One observation of one session, and its place among the device's connections."""

    __slots__ = ("connection", "device", "observation", "session")

    def __init__(self, session: Session, device: Device, observation: Observation) -> None:
        self.session = session
        self.device = device
        self.observation = observation
        self.connection = ExitStack()


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one listener holds at most. Who goes first is `Sessions.surplus`."""

    sessions: int = 10_000
    bytes_held: int = 128 * 1024 * 1024  # some 900 devices that send all they may
    requests_per_session: int = 64  # that it has no answer to yet
    half_open_handshakes: int = 512


#: Whoever is new must be heard, be all the others known: strangers have this part of all places for themselves.
_STRANGERS_SHARE = 16


class Sessions:
    """Every session of one listener, by its key, by when it was last heard, and by when it has something to do."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._reserve = max(1, limits.sessions // _STRANGERS_SHARE)
        self._bytes_reserve = limits.bytes_held // _STRANGERS_SHARE
        self._by_key: dict[Hashable, Session] = {}
        self._ranks: tuple[OrderedDict[Hashable, Session], ...] = tuple(OrderedDict() for _ in Rank)
        self._due: list[tuple[float, int, Session]] = []
        self._order = count()
        self._with_blocks: set[Session] = set()
        self._strangers_bytes = 0
        self.bytes_held = 0
        self.find = self._by_key.get

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_key.values()))

    def count(self, rank: Rank) -> int:
        return len(self._ranks[rank])

    def add(self, session: Session) -> None:
        self._by_key[session.key] = session
        self._ranks[session.rank][session.key] = session
        self.account(session)

    def remove(self, session: Session) -> None:
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
            del self._ranks[session.rank][session.key]
            self._with_blocks.discard(session)
            self.bytes_held -= session.accounted
            if session.rank is Rank.STRANGER:
                self._strangers_bytes -= session.accounted

    def heard(self, session: Session, now: float) -> None:
        session.last_heard = now
        self._ranks[session.rank].move_to_end(session.key)

    def rise(self, session: Session, rank: Rank) -> None:
        if session.rank != rank and self._by_key.get(session.key) is session:
            del self._ranks[session.rank][session.key]
            if session.rank is Rank.STRANGER:  # nobody becomes one again
                self._strangers_bytes -= session.accounted
            session.rank = rank
            self._ranks[rank][session.key] = session

    def account(self, session: Session) -> None:
        """It may hold more or less than before."""
        held = session.bytes_held
        change = held - session.accounted
        session.accounted = held
        self.bytes_held += change
        if session.rank is Rank.STRANGER:
            self._strangers_bytes += change
        if session.blockwise is not None and session.blockwise.bytes_held:
            self._with_blocks.add(session)

    def surplus(self, latest: Session) -> Session | None:
        """Whom to let go of because there is too much: the oldest idle, and `latest` only if there is nobody else.

        Strangers beyond their reserve go first, so that a flood of them costs nobody else more than the reserve; then
        those who only send, then those who observe, so that whoever is new gets in among any number of others.
        """
        if len(self._by_key) <= self._limits.sessions and self.bytes_held <= self._limits.bytes_held:
            return None
        strangers, members, observers = self._ranks
        order = (members, observers, strangers)
        if len(strangers) > self._reserve or self._strangers_bytes > self._bytes_reserve:
            order = (strangers, members, observers)
        for sessions in order:
            for session in sessions.values():
                if session is not latest:
                    return session
        return latest

    def forget_blocks(self, now: float) -> None:
        """Bodies that were begun too long ago go, for no further block may ever come that would ask."""
        for session in tuple(self._with_blocks):
            session.blocks.forget(now)
            self.account(session)
            if not session.blocks.bytes_held:
                self._with_blocks.discard(session)

    def idle(self, now: float) -> list[Session]:
        """Those without observation that have said nothing for their time."""
        found = []
        for rank in (Rank.STRANGER, Rank.MEMBER):
            for session in self._ranks[rank].values():
                if session.last_heard + session.idle_seconds > now:
                    break
                found.append(session)
        return found

    def silent_observers(self, now: float, seconds: float) -> list[Session]:
        found = []
        for session in self._ranks[Rank.OBSERVER].values():
            if session.last_heard + seconds > now:
                break
            found.append(session)
        return found

    def schedule(self, session: Session) -> None:
        """Note when it has something to do. A note is only ever added for an earlier moment than the one there is."""
        deadline = session.exchange.deadline
        if deadline < session.scheduled:
            session.scheduled = deadline
            heapq.heappush(self._due, (deadline, next(self._order), session))

    @property
    def next_due(self) -> float:
        return self._due[0][0] if self._due else inf

    def due(self, now: float) -> list[Session]:
        """Those that may have something to do now; they have no note any more."""
        found = []
        while self._due and self._due[0][0] <= now:
            deadline, _, session = heapq.heappop(self._due)
            if session.scheduled == deadline and not session.is_closed:
                session.scheduled = inf
                found.append(session)
        return found
