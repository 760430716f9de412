"""A connection on a stream, from its first byte to its last: the same life for every protocol.

A *conversation* is the protocol, and a subclass of `StreamConnection`: one object, because thousands may be idle.
`take` gets the bytes that have come, never waits, and says by a `Need` what it needs before it goes on. The *driver* is
this class. It meets the need in the one loop of `_converse`, and calls `take` again:

- READ: it waits for bytes. A plain socket with an authenticated peer is parked: the hub (hub.py) reads, and calls
  `take` in its own turn for as long as that needs nothing but bytes. Else the connection's task reads.
- STORE, DRAIN, PACE: it waits until the store has room (`wait_store`), until the peer has read what waits for it, and
  for what the peer owes in overhead. Nothing is read during a wait: that is the back-pressure.
- TURN: others have their turn. There are bytes left.
- TASK: it awaits `work`, which may do anything.
- END: nothing more is read.

`end` does the same from outside: the broker, the store or the writer ends the connection. A `take` under way goes on to
its return, and the `work` that it asks for then is done; whatever else the connection waits for is over.

A connection has one task. It sends through its outbox, and a second task writes as soon as the operating
system has not taken all at once. Each time limit (silence, pings, the limit of a stranger) is an alarm
(alarms.py): `due` says when, and `beat` runs then in a task that lasts as long as that takes. `stop` is called when the
daemon stops, and `move` before, where other nodes go on.

Every connection ends in one order: `finish` waits for the last answers; `farewell` is sent behind all that waits;
`hear_out` reads what the peer still sends. The last two have GOODBYE_SECONDS. A peer that is gone gets no goodbye.
`leave` is called at the very end, whatever has happened. An exception in a connection ends this connection only.

`MOVES` has the phases that may follow each phase.
"""

import math
import os
from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum, auto
from typing import ClassVar, Final, Generic, TypeVar

import structlog
import trio

from broker.limits.overhead import Pace
from config.settings import Address
from protocols.rooms import DeviceRooms
from protocols.streams.alarms import AlarmEntry
from protocols.streams.hub import Hub
from protocols.streams.listeners import Entrance, end_gently, serve_tcp
from protocols.streams.outbox import Outbox
from protocols.streams.peers import current_peer, turn_of_strangers
from protocols.streams.tls import TlsContext

R = TypeVar("R", bound=DeviceRooms)
_log = structlog.get_logger(__name__)


class Need(Enum):
    """The need of a conversation before it goes on; see above."""

    READ = auto()
    STORE = auto()
    DRAIN = auto()
    PACE = auto()
    TURN = auto()
    TASK = auto()
    END = auto()


class LifePhase(Enum):
    OPENING = auto()  # waits for bytes of a stranger, whose socket may be closed at any time
    READING = auto()  # waits for bytes, parked or alone
    TAKING = auto()  # is in `take`
    WAITING = auto()  # for any other need
    ENDING = auto()  # says goodbye
    CLOSED = auto()


_OPEN: Final = frozenset({LifePhase.OPENING, LifePhase.READING, LifePhase.TAKING, LifePhase.WAITING})
#: From TAKING back into READING without more is the hub's way. Whatever fails, closes.
MOVES: Final[Mapping[LifePhase, frozenset[LifePhase]]] = {
    LifePhase.OPENING: frozenset({LifePhase.TAKING, LifePhase.ENDING, LifePhase.CLOSED}),
    LifePhase.READING: frozenset({LifePhase.TAKING, LifePhase.ENDING, LifePhase.CLOSED}),
    LifePhase.TAKING: frozenset(
        {
            LifePhase.OPENING,
            LifePhase.READING,
            LifePhase.WAITING,
            LifePhase.ENDING,
            LifePhase.CLOSED,
        }
    ),
    LifePhase.WAITING: frozenset({LifePhase.TAKING, LifePhase.ENDING, LifePhase.CLOSED}),
    LifePhase.ENDING: frozenset({LifePhase.CLOSED}),
    LifePhase.CLOSED: frozenset(),
}


class StreamConnection(Outbox):
    """Driver of the conversation that a subclass is."""

    __slots__ = (
        "_scope",
        "_socket",
        "_task",
        "_writing",
        "alarm_entry",
        "has_left",
        "hub",
        "is_broken",
        "is_ended",
        "need",
        "pace",
        "state",
        "stream",
    )

    #: For the farewell, and for the peer to close.
    GOODBYE_SECONDS: ClassVar[float] = 1.0
    #: Read at a time, where the hub does not read.
    READ_BYTES: ClassVar[int] = 64 * 1024
    #: In the log.
    PROTOCOL: ClassVar[str]

    #: Whether the hub reads while the peer is authenticated: where most bytes need no task.
    parks: bool = True

    pace: Pace  # before `take` returns Need.PACE

    def __init__(self, stream: trio.abc.Stream, hub: Hub) -> None:
        """The hub is that of the listener."""
        super().__init__()
        self.stream = stream
        self.hub = hub
        self.state = LifePhase.OPENING
        self.need = Need.READ  # the latest one
        self.has_left = False  # the peer has closed its side: nothing more comes
        self.is_broken = False  # nothing can be sent
        self.is_ended = False  # nothing more is to be read
        self.alarm_entry: AlarmEntry | None = None
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._task: trio.lowlevel.Task | None = None
        self._writing: trio.CancelScope | None = None  # of the task that writes, once there is one
        self._scope = trio.CancelScope()  # of what `end` ends

    # --- The conversation --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The connection begins; nothing was awaited since it was made."""

    @abstractmethod
    def take(self, data: bytes | bytearray) -> Need:
        """Process what has come, as much as one turn may have, and return what is needed before the next call.

        Called first without bytes, and then after each need but READ; what is left of earlier bytes is processed then.
        """

    def heard_end(self) -> Need:
        """The peer has closed its side of the stream. As `take`; READ is END from now on."""
        return self.take(b"")

    async def work(self) -> None:
        """Do what `take` has asked for by Need.TASK. Cancelled if the connection ends."""

    async def wait_store(self) -> None:
        """Wait until the store has room. A conversation that returns Need.STORE overrides it."""
        raise NotImplementedError

    def due(self) -> float:
        """The time of the next call of `beat`, on trio's clock."""
        return math.inf

    async def beat(self, now: float) -> None:
        """The time has come, or was before it was put off. Ends the connection, unless a conversation overrides it."""
        if now >= self.due():
            self.end()

    def stop(self) -> None:
        """The daemon begins to stop. Neither waits nor raises."""
        self.end()

    def move(self) -> bool:
        """The peer is to connect to another node. Neither waits nor raises. False: not now, it is asked again."""
        self.stop()
        return True

    async def finish(self) -> None:
        """Stop reading and wait for the last answers."""

    def farewell(self) -> bytes:
        """The last bytes to a peer that has not closed."""
        return b""

    async def hear_out(self) -> None:
        """Everything was sent: read on until the peer closes, so that the connection is not reset."""
        await end_gently(self.stream)

    def leave(self) -> None:
        """The connection has ended, for any reason. Called once or more often."""

    # --- The life ----------------------------------------------------------------------------------------------------

    async def run(self, early: bytes = b"") -> None:
        """Serve the connection to its end. `early` is what has come already."""
        self._task = trio.lowlevel.current_task()
        try:
            self.begin()
            with self._scope:
                self.set_alarm()
                await self._converse(early)
            self.is_ended = True
            self._move(LifePhase.ENDING)
            await self.finish()
            with trio.CancelScope(deadline=trio.current_time() + self.GOODBYE_SECONDS) as self._scope:
                await self._part()
        finally:
            self.is_ended = True
            self._move(LifePhase.CLOSED)
            self.hub.alarms.unset(self)
            self.leave()
            self.discard()
            if self._writing is not None:
                self._writing.cancel()

    async def _converse(self, early: bytes) -> None:
        need = self._take(early)
        while need is not Need.END and (need is Need.TASK or not self.is_ended):
            if need is Need.READ:
                if self.has_left:
                    return
                need = await self._read()
                continue
            self._move(LifePhase.WAITING)
            match need:
                case Need.STORE:
                    await self.wait_store()
                case Need.DRAIN:
                    await self.wait_empty()
                case Need.PACE:
                    await self.pace.wait()
                case Need.TURN:
                    await trio.lowlevel.checkpoint()
                case Need.TASK:
                    await self.work()
            need = self._take(b"")

    def _move(self, state: LifePhase) -> None:
        if state not in MOVES[self.state]:
            raise RuntimeError(f"{state.name} after {self.state.name}")
        self.state = state

    def _take(self, data: bytes | bytearray) -> Need:
        self.state = LifePhase.TAKING
        self.need = self.take(data)
        return self.need

    def _take_parked(self, data: bytes) -> bool:
        """`take` for the hub: whether it may go on."""
        self.state = LifePhase.TAKING
        self.need = need = self.take(data) if data else self._hear_end()
        if need is Need.READ and not self.is_ended:
            self.state = LifePhase.READING
            return True
        return False

    def _hear_end(self) -> Need:
        self.has_left = True
        need = self.heard_end()
        return Need.END if need is Need.READ else need

    async def _read(self) -> Need:
        """Wait for bytes, and take them."""
        is_stranger = current_peer().place is not None
        self._move(LifePhase.OPENING if is_stranger else LifePhase.READING)
        try:
            if (
                self._socket is not None
                and self.parks
                and not is_stranger
                and await self.hub.read(self._socket, self._take_parked)
            ):
                return self.need
            received = await self.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.is_broken = True
            received = b""
        if received:
            return self._take(received)
        self.state = LifePhase.TAKING
        self.need = self._hear_end()
        return self.need

    async def receive(self) -> bytes | bytearray:
        """The received bytes, at least one; empty at the end. Raises BrokenResourceError, ClosedResourceError."""
        received = await self.receive_some()
        await turn_of_strangers()
        return received

    async def receive_some(self) -> bytes | bytearray:
        """As `receive`, without the turn of strangers, so that a cancellation loses nothing."""
        if self._socket is None:
            return await self.stream.receive_some(self.READ_BYTES)
        return await _read_when_ready(self._socket, self.READ_BYTES)

    def end(self) -> None:
        """Stop reading and waiting."""
        self.is_ended = True
        if self.state is not LifePhase.TAKING:
            self._scope.cancel()

    async def _part(self) -> None:
        if not (self.has_left or self.is_broken):
            self.put(self.farewell())
        if not self.is_broken:
            await self.wait_empty()
            if not self.has_left:
                await self.hear_out()

    # --- Time --------------------------------------------------------------------------------------------------------

    def set_alarm(self) -> None:
        """Call `beat` when the conversation says now that it is due."""
        self.hub.alarms.set(self, self.due())

    def ring(self) -> None:
        """The alarm of the connection; called by `Alarms`."""
        if self.hub.life.stopping.is_set():
            self.stop()
        elif self.state in _OPEN and not self.is_ended and self._task is not None:
            self._task.context.run(self.hub.connections.start_soon, self._beat)

    async def _beat(self) -> None:
        await trio.lowlevel.checkpoint()  # what has come by now is read first
        if self.state not in _OPEN:
            return
        try:
            await self.beat(trio.current_time())
        except Exception:  # noqa: BLE001 - a bug must end only its connection
            _log.exception("connection_failed", protocol=self.PROTOCOL)
            self.is_broken = True
            self.end()
        if self.state is LifePhase.CLOSED:  # it has ended, and `beat` may have begun something again
            self.leave()
        elif self.state in _OPEN and not self.is_ended:
            self.set_alarm()

    # --- The outbox --------------------------------------------------------------------------------------------------

    def _send_now(self, data: bytes) -> int:
        if self.state is LifePhase.CLOSED or self.is_broken:  # commits may still acknowledge what the peer has sent
            return len(data)
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:  # full or broken: the task that writes waits, or gets the error
            return 0

    def _want(self) -> None:
        super()._want()
        if self._writing is None:
            self._writing = trio.CancelScope()
            self.hub.connections.start_soon(self._write, self._writing)

    async def _send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _write(self, writing: trio.CancelScope) -> None:
        """Send what waits. The nursery has tasks of other connections: no error leaves this one."""
        with writing:
            try:
                await self.send_forever()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                pass  # the peer has gone
            except Exception:  # noqa: BLE001 - as in `_beat`
                _log.exception("connection_failed", protocol=self.PROTOCOL)
            self.is_broken = True
            self.discard()
            self.end()


class DeviceConnection(StreamConnection, Generic[R]):
    """A connection with the rooms of the broker, and a listener of its own."""

    __slots__ = ("_ingest", "_rooms")

    def __init__(self, rooms: R, stream: trio.abc.Stream, hub: Hub) -> None:
        super().__init__(stream, hub)
        self._rooms = rooms
        self._ingest = rooms.messages.ingest

    async def wait_store(self) -> None:
        await self._ingest.wait_room()

    @classmethod
    async def serve(
        cls,
        rooms: R,
        bind: Address,
        *,
        connections: trio.Nursery,
        ssl_context: TlsContext | None = None,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections of devices until cancelled.

        Args:
            rooms: the broker.
            bind: where to listen.
            connections: the nursery in which connections go on when this listener has ended.
            ssl_context: for TLS; None for plain text.
            task_status: told the bound address.

        Raises:
            OSError: the address cannot be bound.
        """
        hub = Hub(connections, rooms.core.life)
        await serve_tcp(
            bind,
            lambda stream: cls(rooms, stream, hub).run(),  # a coroutine around it would be held for as long
            protocol=cls.PROTOCOL,
            refusals=rooms.core.refusals,
            life=rooms.core.life,
            connections=connections,
            entrance=Entrance.of(rooms.limits.strangers, rooms.limits.sockets, rooms.core.settings),
            ssl_context=ssl_context,
            ends_with_move=True,
            task_status=task_status,
        )


async def _read_when_ready(socket: trio.socket.SocketType, size: int) -> bytes:
    """Wait for bytes and return them; empty at the end.

    A device mostly sends its next messages after the answers to its last ones. So this waits first, where
    `SocketStream.receive_some` tries to read, fails, waits, and reads: a third of its time.
    """
    while socket.fileno() >= 0:  # strangers lose their sockets when there are too many
        await trio.lowlevel.wait_readable(socket)
        try:
            return os.read(socket.fileno(), size)  # if closed during the wait, its number may be another one's
        except BlockingIOError:
            continue
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
    return b""
