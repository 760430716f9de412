"""Publishes Actions of taken-over devices at the command topics of their clients (reference 16.9).

An Action is published after its commit. `_SAVED`, a position in the log, says which ones were; it is written in the
commit that has the deliveries to devices whose sessions last. So a kill between the two loses no command: the next run
publishes what is behind the position, as soon as the client is there. A client may get a command twice then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from broker.clock import Clock
from broker.device_sessions.sessions import DeviceSessions
from broker.loops import Wakeup
from broker.topics.space import TopicMessage, TopicSpace
from config.limits import FOUND_COMMAND_SECONDS, FOUND_COMMANDS_WAITING
from storage.database import Database
from storage.keys import BY_CLOUD, DeviceKey, Position, UserKey
from storage.records import ActionRow
from storage.transaction import Transaction

_SAVED: Final = "found commands"
#: An older Action is not published after a restart.
_OLDEST_MS: Final = 600_000
#: How far a restart looks back in the log.
_POSITIONS: Final = 1_000_000
_LOOK_SECONDS: Final = 0.5
#: The service as the source of a message: no device has this key.
_SERVICE: Final = DeviceKey(-2)


class Command(msgspec.Struct, frozen=True):
    """The message that a client gets for an Action. `lost` is called when nobody could be given it in time."""

    topic: bytes
    payload: bytes
    client: DeviceKey
    owner: UserKey
    lost: Callable[[], object]


class _Waiting(msgspec.Struct, frozen=True):
    position: Position
    until: float
    command: Command


class FoundCommands:
    """The caller says which Action is which command: `put`, in the order of the log."""

    def __init__(self, database: Database, space: TopicSpace, sessions: DeviceSessions, clock: Clock) -> None:
        self._database, self._space, self._sessions, self._clock = database, space, sessions, clock
        self._waiting: list[_Waiting] = []
        self._last = Position(0)  # of all Actions that were seen
        self._first: float = math.inf  # of the Actions of this run
        self._saved = Position(0)
        self._has_resumed = False
        self._wakeup = Wakeup()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def saw(self, position: Position) -> None:
        """An Action is stored, of whatever device; `put` comes after."""
        self._last = max(self._last, position)
        self._first = min(self._first, position)

    def put(self, position: Position, commands: Iterable[Command], *, is_late: bool = False) -> None:
        """Publish the commands of an Action. While the client is away they wait for a minute.

        `is_late`: the Action is of an earlier run, so its client has to connect and to subscribe again.
        """
        until = trio.current_time() + FOUND_COMMAND_SECONDS
        for one in commands:
            is_there = not is_late and self._sessions.is_connected(one.client)
            if (is_there and not self._waits_for(one.topic)) or self._space.reaches(one.topic, one.client):
                self._publish(one)
            elif len(self._waiting) < FOUND_COMMANDS_WAITING:
                self._waiting.append(_Waiting(position, until, one))
                self._wakeup.set()
            else:
                one.lost()
        self._save()

    def _waits_for(self, topic: bytes) -> bool:
        return any(one.command.topic == topic for one in self._waiting)

    def _publish(self, command: Command) -> bool:
        """Whether anybody gets it."""
        before = self._space.statistics().deliveries
        message = TopicMessage(command.topic, command.payload, 1, False, b"", None)
        self._space.publish(message, _SERVICE, command.owner, audience=frozenset({command.owner}))
        return self._space.statistics().deliveries > before

    def _save(self) -> None:
        """With the next commit, which has the deliveries."""
        if not self._has_resumed:
            return
        first = min((one.position for one in self._waiting), default=self._last + 1)
        if (position := Position(min(self._last, first - 1))) != self._saved:
            self._saved = position
            self._database.write_nowait(lambda tx: tx.messages.set_consumer_position(_SAVED, position))

    async def resume(self, commands_of: Callable[[ActionRow], Sequence[Command]]) -> None:
        """Publish what an earlier run has not; when that is done, save how far this one is, so that a restart has
        little to read. Raises StoreError."""
        if self._has_resumed:
            self._save()
            return
        since_ms = self._clock.now_ms() - _OLDEST_MS
        saved, last, rows = await self._database.read(partial(_unsent, since_ms))
        for row in rows:
            if row.position < self._first and row.source != BY_CLOUD:
                self.put(row.position, commands_of(row), is_late=True)
        self._saved, self._last, self._has_resumed = saved, max(self._last, last), True
        self._save()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await self._wakeup.wait(_LOOK_SECONDS if self._waiting else math.inf)
            if self._waiting:
                self.look()

    def look(self) -> None:
        """Publish what waits and can be given to its client, in its order, and what has waited long enough."""
        now, kept = trio.current_time(), list[_Waiting]()
        behind = set[bytes]()
        for one in self._waiting:
            command = one.command
            if now >= one.until:
                if not self._publish(command):
                    command.lost()
            elif command.topic not in behind and self._space.reaches(command.topic, command.client):
                self._publish(command)
            else:
                behind.add(command.topic)
                kept.append(one)
        if len(kept) < len(self._waiting):
            self._waiting = kept
            self._save()


def _unsent(since_ms: int, tx: Transaction) -> tuple[Position, Position, list[ActionRow]]:
    saved, last = tx.messages.consumer_position(_SAVED), tx.messages.last_position("action")
    first = max(saved, last - _POSITIONS)
    rows = tx.messages.read_on("action", first, FOUND_COMMANDS_WAITING, " AND cts >= :since", {"since": since_ms})
    return saved, last, [ActionRow(*row) for row in rows]
