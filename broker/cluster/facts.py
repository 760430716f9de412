"""The fact log of several nodes: what this one tells, and what it hears of the others, in the order of the numbers.

A commit of this node reads what others have told before it, so it is heard first. A node that does not commit looks
once a second, and when PostgreSQL says that somebody has stored something (storage/facts.py).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final, Protocol

import msgspec
import structlog
import trio

from broker.cluster.fenced import FencedError
from broker.cluster.kinds import BY_NAME, CONNECTION_REPLACED
from broker.cluster.news import News
from broker.facts import DeviceDeleted, DeviceDisabled, DeviceHandedOver
from broker.trace.origin import origin_in
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.facts import FactPage, FactRecord, FactsLostError
from storage.keys import DeviceKey, Position
from storage.outages import Outage
from storage.peers import HeardOf, PackedFact
from storage.sql import StoreError
from storage.told import Told

_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.1
_SETTLE_SECONDS: Final = 0.002
_encode: Final = msgspec.msgpack.Encoder().encode
_log = structlog.get_logger(__name__)


class Rows(Protocol):
    """Publishes the rows of other nodes (broker/messages/follower.py)."""

    async def before(self, first: Position, last: Position, *, has_actions: bool) -> None:
        """Publish what comes before a commit of this node with these positions. Raises StoreError."""

    async def read_on(
        self, heard: int | None = None, take: Callable[[FactPage], Awaitable[object]] | None = None
    ) -> None:
        """Publish what the others have stored. Raises StoreError.

        `take` gets the facts after the number `heard`, which are read with the rows, before these are published."""

    async def messages_came(self) -> None:
        """The others have stored messages, and nothing else. Raises StoreError."""

    @property
    def is_hearing(self) -> bool:
        """Whether somebody needs to know of these at once."""

    def leave_out(self) -> None:
        """Nobody is told of a row from now on: one that comes before a commit of this node cannot be read."""


class Listener(Protocol):
    """Hears of the commits of others (storage/engines/postgresql_listening.py)."""

    async def wait(self, seconds: float, *, messages: bool) -> HeardOf:
        """The next commits of others, within this number of seconds at most. Raises StoreError."""

    def interrupt(self) -> None:
        """Have `wait` return."""


class FactLogStatistics(msgspec.Struct, frozen=True):
    """`heard`: the number of the last fact that this node knows; the others count since the start."""

    heard: int
    told: int
    refused_commits: int


class FactLog:
    """The facts as one node tells and hears them; implements `Peers` (storage/peers.py)."""

    def __init__(self, instance: str, node: str, patience_seconds: float, listener: Listener | None = None) -> None:
        """
        Args:
            instance: the name of this process.
            node: that of this node.
            patience_seconds: how long the rows of the others are waited for.
            listener: hears of the others; None: this node looks once a second.
        """
        self.instance = instance
        self.node = node
        self._patience_seconds = patience_seconds
        self._listener = listener
        self._news: News | None = None
        self._database: Database | None = None
        self.rows: Rows | None = None
        self._heard = self._told = self._refused = 0
        self._failed: StoreError | None = None
        self._wanted = trio.Event()
        self._told_changes = self._told_messages_only = False
        self._refusers: list[Refuser] = []
        self._catching_up = trio.Lock()
        #: Calls of `catch_up`: how many have begun, and how many of these a reading knows that has ended.
        self._asked = self._answered = 0
        self._enders: list[Callable[[object, Any], bool]] = []

    def refuse_with(self, refuser: "Refuser") -> None:
        """Have it say, of each commit that others have ended something before, why it is not stored."""
        self._refusers.append(refuser)

    def refuse_works_with(self, ends: Callable[[object, Any], bool]) -> None:
        """Have it say whether a fact ends what the holder of a token may do."""
        self._enders.append(ends)

    def open(self, database: Database, news: News) -> None:
        self._database, self._news = database, news

    # As `Peers`

    def begin(self, number: int) -> None:
        self._heard = number

    def packed(self, told: Told) -> PackedFact | None:
        kind, key, content = told
        name = kind.name  # type: ignore[attr-defined]
        if BY_NAME.get(name) is not kind or kind.is_own:
            return None
        return PackedFact(kind.is_fencing, name, _encode(key), _encode(content))

    def heard(self, facts: Sequence[FactRecord]) -> None:
        for fact in facts:
            if fact.number <= self._heard:
                continue
            self._heard = fact.number
            kind = BY_NAME.get(fact.kind)
            if kind is None or self._news is None:
                _log.error("fact_unknown", kind=fact.kind)
                continue
            key = _decoder(kind.key_type).decode(fact.value)
            self._news.heard_elsewhere((kind, key, _decoder(kind.content_type).decode(fact.content)))
            if kind.is_fencing:
                self._refuse_what_waits(fact, key)

    def _refuse_what_waits(self, fact: FactRecord, key: Any) -> None:
        """Refuse what was accepted before this was heard, and needs what has ended."""
        assert self._database is not None, "it is not open"  # noqa: S101 - an invariant of the caller
        for group in self._database.groups_under_way():
            group.refused = group.refused or self.refusal(group, (fact,)) or ""
            for job in group.works:
                holder = origin_in(job.context).holder
                if holder is not None and any(ends(holder, key) for ends in self._enders):
                    job.refused = "a permission has ended on another node"

    def committed(self, told: Sequence[Told | FactRecord], upto: int) -> None:
        own: list[Told] = []
        for one in told:
            if isinstance(one, FactRecord):
                self.heard((one,))
            else:
                own.append(one)
        self._told += len(own)
        self._heard = max(self._heard, upto)
        if own and self._news is not None:
            self._news.heard(own)

    def refusal(self, group: CommitGroup, facts: Sequence[FactRecord]) -> str | None:
        """A group with rows of a device that others have ended is refused as a whole: nobody in it is acknowledged, and
        who sends again is told why not, or sends over a connection that goes on."""
        ended = self._ended_by(facts)
        if ended and (
            any(row.device in ended for row in group.messages)
            or any(row.device in ended for row in group.failed)
            or any(row.source in ended or row.device in ended for row in group.actions)
        ):
            self._refused += 1
            return "a device has connected to another node, or has ended there: its messages are not stored"
        told = [_decoded(fact) for fact in facts if fact.is_fencing and fact.kind in BY_NAME]
        for refuser in self._refusers:
            if (reason := refuser(group, told)) is not None:
                self._refused += 1
                return reason
        return None

    def _ended_by(self, facts: Sequence[FactRecord]) -> set[DeviceKey]:
        found: set[DeviceKey] = set()
        for fact in facts:
            if not fact.is_fencing or (kind := BY_NAME.get(fact.kind)) is None:
                continue
            key = _decoder(kind.key_type).decode(fact.value)
            if isinstance(key, DeviceDisabled | DeviceDeleted | DeviceHandedOver) or (
                kind is CONNECTION_REPLACED and any(node == self.node for node, _ in key.replaced)
            ):
                found.add(key.device)
        return found

    async def publish(self, group: CommitGroup) -> None:
        if self.rows is None or not (number := group.row_count):
            return
        last = Position(group.head + group.base)
        failed: StoreError | None = None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._patience_seconds):
            while True:
                try:
                    await self.rows.before(Position(last - number + 1), last, has_actions=bool(group.actions))
                except StoreError as error:
                    failed = error
                else:
                    return
                await trio.sleep(_RETRY_SECONDS)
        # It goes on without them for as long as its end takes: the senders of these rows hear that they are stored.
        self.rows.leave_out()
        self._failed = failed or StoreError("the database is too slow")
        self._wanted.set()

    # Work

    async def follow_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hear the others. Raises FencedError: this node has lost touch."""
        task_status.started()
        outage = Outage("others_not_heard", "others_heard_again")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen_forever)
            while True:
                if self._failed is not None:
                    raise FencedError(f"this node cannot read what the others have stored: {self._failed}")
                try:
                    if self._told_messages_only and self.rows is not None:
                        await self.rows.messages_came()
                    else:
                        await self._look()
                    outage.succeeded()
                except FactsLostError as error:
                    raise FencedError(f"{error}: what it keeps in memory is old. Started again, it reads it") from error
                except StoreError as error:
                    outage.failed(error)
                with trio.move_on_after(_LOOK_SECONDS) as waited:
                    await self._wanted.wait()
                self._wanted = trio.Event()
                self._told_messages_only = not (waited.cancelled_caught or self._told_changes)
                self._told_changes = False

    async def _look(self) -> None:
        """An Action waits for this: facts and rows are read together."""
        if self.rows is None:
            await self.hear()
        else:
            await self.rows.read_on(self._heard, self._take)

    async def catch_up(self) -> None:
        """Hear everything that was told before this call. Calls at the same time share one reading.

        Raises StoreError: not within the patience.
        """
        self._asked += 1
        asked = self._asked
        async with self._catching_up:
            if self._answered >= asked:
                return
            upto, until = self._asked, trio.current_time() + self._patience_seconds
            while not await self.hear():
                if trio.current_time() >= until:
                    raise StoreError("a commit of this node that comes first has not ended")
                await trio.sleep(_SETTLE_SECONDS)
            self._answered = upto

    async def hear(self) -> bool:
        """Hear what others have told, up to what a commit of this node has told that is not settled yet: False. Raises
        StoreError."""
        database = self._database
        assert database is not None, "it is not open"  # noqa: S101 - an invariant of the caller
        while True:
            behind = self._heard
            found = await database.look_up(lambda tx, behind=behind: tx.facts.after(behind))  # type: ignore[misc]
            if not self._heard_up_to_own(found):
                return False
            if found.is_all:
                return True

    async def _take(self, page: FactPage) -> None:
        if self._heard_up_to_own(page) and not page.is_all:
            await self.hear()

    def _heard_up_to_own(self, page: FactPage) -> bool:
        for fact in page.facts:
            if fact.number <= self._heard:
                continue
            if fact.node == self.instance:
                return False
            self.heard((fact,))
        return True

    def listen_anew(self) -> None:
        """Somebody begins to need what others store."""
        if self._listener is not None:
            self._listener.interrupt()

    async def _listen_forever(self) -> None:
        if self._listener is None:
            return
        while True:
            messages = self.rows is not None and self.rows.is_hearing
            try:
                heard = await self._listener.wait(_LOOK_SECONDS, messages=messages)
                self._told_changes |= heard.changes
                if heard.changes or heard.messages:
                    self._wanted.set()
            except StoreError:  # `follow_forever` tells of it, and looks once a second
                await trio.sleep(_LOOK_SECONDS)

    def statistics(self) -> FactLogStatistics:
        return FactLogStatistics(self._heard, self._told, self._refused)


#: Gets a commit, and what others have told before it: kinds that end something, with their keys.
Refuser = Callable[[CommitGroup, Sequence[tuple[Any, Any]]], str | None]


def _decoded(fact: FactRecord) -> tuple[Any, Any]:
    kind = BY_NAME[fact.kind]
    return kind, _decoder(kind.key_type).decode(fact.value)


@cache
def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_)
