"""Live feeds without holes: everything stored after a position, in the order of the log, then live (reference 19.6).

A feed is behind, or live. While it is behind it reads pages of the log, users in turn, and goes on only when its client
has taken the page before. A live feed collects what is published (broker/routing/feeds.py), and sends it in the next
turn of the loop, when the whole commit is published. Whatever would break the order sends it back to the log, from the
position up to which everything was sent: a client that does not read, an Action that is published behind messages with
higher positions, a commit of which nobody knew for a while whether it was stored. So nothing comes twice, and nothing
is left out.

The seam: a feed collects before it reads the page that reaches the end of the log. Collected messages that are in the
page are dropped by their positions.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
import trio

from broker.accounts.permissions import Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.core import Core
from broker.devices.readers import DataReaders
from broker.devices.registry import Device, Devices
from broker.devices.room import DevicesRoom
from broker.errors import DeviceNotFound, TryLater, ValidationFailed, invalid
from broker.facts import ActionStored, FactPhase, MessagesStored, Router
from broker.messages.history import MessageHistory
from broker.messages.mids import Mids
from broker.messages.retention import deleted_upto
from broker.messages.room import MessagesRoom
from broker.routing.connections import CloseReason
from broker.routing.feeds import FeedEncoding, Feeds, Subscriber
from broker.routing.named_devices import NamedDevices
from broker.routing.room import RoutingRoom
from config.limits import LOG_FEEDS_OF_ONE_USER
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.fair_places import FairPlaces
from storage.keys import BY_CLOUD, DeviceKey, DeviceTypeKey, Milliseconds, Position, UserKey
from storage.message_searches import Range
from storage.outages import Outage
from storage.records import ActionRow, MessageRow
from storage.sql import StoreDamagedError, StoreError
from storage.transaction import Transaction

#: Most rows of each table in a page. With the index these are rows of the feed's devices; else rows of any device.
_PAGE: Final = 500
#: A feed of more devices reads all rows of the log, and not each device's.
_DEVICES_READ_BY_INDEX: Final = 100
#: Messages that are encoded before the client's room is looked at.
_ENCODED_AT_ONCE: Final = 25
#: Most bytes that a feed collects until it sends them.
_COLLECTED_BYTES: Final = 256 * 1024
#: Pages that are read at once, and those of one user.
_READS: Final = 2
_RETRY_SECONDS: Final = 1.0
_FULL_SECONDS: Final = 60
#: A client is told a position without a message when this number of rows lies behind the last one that it knows.
_TOLD_EVERY: Final = 1_000
_MS: Final = 2**53

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class TooManyLogFeeds(TryLater):
    """One more feed from a position than a user, an application or the devices of an owner may have."""

    template = "Too many feeds of this {kind} that read the log: at most {limit}"
    kind: str
    limit: int


class Gap(msgspec.Struct, frozen=True):
    """Messages behind `behind` and up to `upto` may be missing: retention has deleted messages of this part."""

    behind: Position
    upto: Position


class Watched(Protocol):
    """The selection of a feed, as of now."""

    @property
    def reach(self) -> Reach: ...
    @property
    def devices(self) -> frozenset[DeviceKey] | None: ...
    @property
    def owner(self) -> UserKey | None: ...
    @property
    def with_shared(self) -> bool: ...
    @property
    def named(self) -> NamedDevices: ...
    def watches(self, device: Device) -> bool: ...


@dataclass(frozen=True, eq=False)
class LogFeedForm:
    """A wire form: of messages and Actions, of a gap, and of the mid up to which everything was sent."""

    encoding: FeedEncoding
    gap: Callable[[Gap], bytes]
    position: Callable[[Position], bytes]


class FeedOutbox(Protocol):
    """The outbox of the connection."""

    @property
    def has_room(self) -> bool: ...
    def put(self, data: bytes) -> None: ...
    async def wait_empty(self) -> None: ...


class Begin(msgspec.Struct, frozen=True):
    """The position behind which a feed begins. Of messages up to `deleted`, retention has deleted only older ones than
    were asked for."""

    position: Position
    deleted: Position = Position(0)


class LogFeedStatistics(msgspec.Struct, frozen=True):
    """`feeds` are open, `behind` of them read the log now. `pages`, `rows`: read since the start; `gaps`: told."""

    feeds: int
    behind: int
    pages: int
    rows: int
    gaps: int


class _Part(NamedTuple):
    """Published frames that follow each other."""

    frames: bytes
    first: Position
    last: Position


class _Page(msgspec.Struct, frozen=True):
    """All rows of the log behind the last page, up to `upto`. `deleted`: up to where retention has deleted."""

    rows: Sequence[MessageRow | ActionRow]
    upto: Position
    is_last: bool
    deleted: Position


class LogFeeds:
    """The feeds from a position on, of all clients of this node."""

    def __init__(
        self,
        database: Database,
        router: Router,
        clock: Clock,
        devices: Devices,
        readers: DataReaders,
        history: MessageHistory,
        mids: Mids,
        feeds: Feeds,
        future_grace_ms: int,
        peers: FactLog | None = None,
    ) -> None:
        """`peers`: what other nodes have ended; None: there are none."""
        self._database = database
        self._peers = peers
        self._clock = clock
        self._future_grace_ms = future_grace_ms
        self._mids = mids
        self.devices = devices
        self.readers = readers
        self.history = history
        self.feeds = feeds
        self._reads = FairPlaces(_READS, of_one=1)
        self._open: dict[LogFeed, None] = {}
        self._of: Counter[str] = Counter()
        self.published = Position(0)
        self.pages = self.rows = self.gaps = 0
        router.subscribe(MessagesStored, self._messages_stored, FactPhase.STATE)
        router.subscribe(ActionStored, self._action_stored, FactPhase.STATE)
        database.on_commit(self._committed)

    def _messages_stored(self, fact: MessagesStored) -> None:
        self.published = max(self.published, fact.rows[-1].position)

    def _action_stored(self, fact: ActionStored) -> None:
        self.published = max(self.published, fact.action.position)

    def _committed(self, group: CommitGroup) -> None:
        if group.error is not None:  # it was in doubt: its Actions are not published, and not all its messages
            for feed in self._open:
                feed.read_again()

    async def begin(self, after: str | None, since: str | None, *, named: str = "after") -> Begin:
        """Where a feed begins: behind this mid, with what was stored at this time or later, or, with neither, now.

        Raises ValidationFailed naming `since`, or what gives the mid, and StoreError.
        """
        if after is not None and since is not None:
            raise ValidationFailed.of("since", invalid("give `after` or `since`, not both"))
        if since is not None:
            since_ms = self._checked_since(since)
            return await self._database.read(partial(_begin_at, since_ms, self._clock.now_ms()))
        head = await self._database.look_up(lambda tx: tx.messages.head())
        if after is None:
            return Begin(head)
        position = self._mids.position(after)
        if position is None:
            raise ValidationFailed.of(named, invalid("is not the mid of a message or an Action of this store"))
        if position > head:
            raise ValidationFailed.of(
                named, invalid("is a mid that this store has not given yet: an older backup was restored")
            )
        return Begin(position)

    def _checked_since(self, text: str) -> Milliseconds:
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MS)) and int(text) < _MS):
            raise ValidationFailed.of("since", invalid("must be a time in milliseconds"))
        if int(text) > self._clock.now_ms() + self._future_grace_ms:
            raise ValidationFailed.of("since", invalid("is in the future"))
        return Milliseconds(int(text))

    def check_room(self, caller: Caller) -> None:
        """Raises TooManyLogFeeds when the caller may not open another feed."""
        if self._of[_account(caller)] >= LOG_FEEDS_OF_ONE_USER:
            kind = "user" if caller.kind is TokenKind.DEVICE else caller.kind.value
            raise TooManyLogFeeds(_FULL_SECONDS, kind, LOG_FEEDS_OF_ONE_USER)

    def add(self, feed: "LogFeed") -> None:
        self._open[feed] = None
        self._of[feed.account] += 1

    def remove(self, feed: "LogFeed") -> None:
        if feed in self._open:
            del self._open[feed]
            self._of[feed.account] -= 1
            if not self._of[feed.account]:
                del self._of[feed.account]

    async def page(self, account: str, behind: Position, watched: Watched) -> _Page:
        """Read the next page. Raises StoreError."""
        async with self._reads.of(account):
            page = await self._database.read(partial(_page, behind, watched))
        if self._peers is not None:  # rows may be of after the end of a share or grant, or of a new owner
            await self._peers.catch_up()
        self.pages += 1
        self.rows += len(page.rows)
        return page

    def statistics(self) -> LogFeedStatistics:
        behind = sum(feed.is_behind for feed in self._open)
        return LogFeedStatistics(len(self._open), behind, self.pages, self.rows, self.gaps)


class LogFeed:
    """The feed of one client. `open` and `select` do not wait; `run` is a task for as long as the feed is open."""

    __slots__ = (
        "_client",
        "_close",
        "_collected",
        "_deleted",
        "_feeds",
        "_form",
        "_is_collecting",
        "_position",
        "_scope",
        "_size",
        "_subscription",
        "_told",
        "_wakeup",
        "_was_live",
        "_watched",
        "account",
        "is_behind",
    )

    def __init__(
        self,
        feeds: LogFeeds,
        begin: Begin,
        watched: Watched,
        form: LogFeedForm,
        client: FeedOutbox,
        close: Callable[[CloseReason], object],
    ) -> None:
        """`close` is called when the token ends, or a device that the selection names is no longer the caller's."""
        self._feeds = feeds
        self._watched = watched
        self._form = form
        self._client = client
        self._close = close
        self.account = _account(watched.reach.caller)
        self.is_behind = True
        self._position = begin.position  # everything up to here was sent
        self._deleted = begin.deleted  # what retention has deleted up to here is told
        self._told = begin.position  # the position that the client knows
        self._was_live = False
        self._is_collecting = False
        self._collected: list[_Part] = []
        self._size = 0
        self._subscription = ExitStack()
        self._wakeup = trio.Event()
        self._scope = trio.CancelScope()

    def open(self, nursery: trio.Nursery) -> None:
        """Begin. The task in the nursery ends with `end`."""
        self._feeds.add(self)
        self._subscribe()
        nursery.start_soon(self._run)

    def end(self) -> None:
        """The client has gone. Called once or more often."""
        self._subscription.close()
        self._feeds.remove(self)
        self._scope.cancel()

    def select(self, watched: Watched, form: LogFeedForm | None = None) -> None:
        """Go on with another selection, or form."""
        self._watched = watched
        if form is not None and form is not self._form:
            self._form = form
            self.read_again()  # what was collected has the old form
        self._subscribe()

    def read_again(self) -> None:
        """Go on from the log."""
        self._drop()
        self.is_behind = True
        self._wakeup.set()

    def tell_position(self) -> bool:
        """Tell the client a position, so that it need not go on from one far behind; whether it was told."""
        if not (self.is_behind or self._collected):
            self._position = max(self._position, self._feeds.published)
        if self._position - self._told < _TOLD_EVERY:
            return False
        self._tell_position()
        return True

    def _tell_position(self) -> None:
        self._client.put(self._form.position(self._position))
        self._told = self._position

    # Collecting

    def _subscribe(self) -> None:
        """Replace the subscription without waiting in between."""
        self._subscription.close()
        watched = self._watched
        subscriber = Subscriber(
            watched.watches,
            self._offer,
            self._form.encoding,
            watched.reach.caller.token,
            self._close,
            watched.named,
            self._reader,
        )
        self._subscription.enter_context(self._feeds.feeds.subscribe(subscriber))

    def _reader(self) -> Caller | None:
        """Whoever is behind gets messages later, from the log."""
        return self._watched.reach.caller if self._is_collecting else None

    def _offer(self, frames: bytes, _count: int, first: Position, last: Position) -> None:
        if not self._is_collecting:
            return
        self._size += len(frames)
        if self._size > _COLLECTED_BYTES:
            self.read_again()
            return
        self._collected.append(_Part(frames, first, last))
        self._wakeup.set()

    def _drop(self) -> None:
        self._is_collecting = False
        self._collected, self._size = [], 0

    # Sending

    async def _run(self) -> None:
        outage = Outage("live_feed_not_read")
        with self._scope:
            try:
                while True:
                    try:
                        await self._step()
                        outage.succeeded()
                    except StoreError as error:
                        outage.failed(error)
                        await trio.sleep(_RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - the nursery has tasks of other connections: no error leaves this one
                _log.exception("live_feed_failed")
                self._close(CloseReason.SHUTDOWN)

    async def _step(self) -> None:
        if self.is_behind:
            await self._client.wait_empty()
            await self._catch_up()
            return
        await self._wakeup.wait()
        self._wakeup = trio.Event()
        if not self.is_behind:
            self._send_collected()

    def _send_collected(self) -> None:
        """Send what was published since the last turn, if that is all in order."""
        parts, self._collected, self._size = self._collected, [], 0
        last = self._position
        new = [part for part in parts if part.last > last]
        for part in new:
            if part.first <= last or not self._client.has_room:
                self.read_again()
                return
            last = part.last
        for part in new:
            self._client.put(part.frames)
            self._position = self._told = part.last

    async def _catch_up(self) -> None:
        """Read a page, and send what the client has room for."""
        self._collected, self._size, self._is_collecting = [], 0, True
        page = await self._feeds.page(self.account, self._position, self._watched)
        self._tell_gap(page)
        devices = await self._held(page.rows)
        if await self._send_rows(page.rows, devices):
            self._position = max(self._position, page.upto)
            if page.is_last and self._is_collecting:
                self.is_behind = False
                if not self._was_live:
                    self._was_live = True
                    self._tell_position()
                self._send_collected()
                return
        self._drop()

    def _tell_gap(self, page: _Page) -> None:
        behind, self._deleted = max(self._position, self._deleted), max(page.deleted, self._deleted)
        if page.deleted <= behind:
            return
        gap = Gap(behind, page.deleted)
        self._feeds.gaps += 1
        self._client.put(self._form.gap(gap))

    async def _held(self, rows: Sequence[MessageRow | ActionRow]) -> dict[DeviceKey, Device]:
        """The devices of the rows that are there still."""
        found: dict[DeviceKey, Device] = {}
        devices = self._feeds.devices
        keys = {row.device for row in rows} | {row.source for row in rows if isinstance(row, ActionRow)}
        for key in keys - {BY_CLOUD}:
            try:
                found[key] = devices.get_nowait(key) or await devices.get(key)
            except DeviceNotFound:
                continue
        return found

    async def _send_rows(self, rows: Sequence[MessageRow | ActionRow], devices: dict[DeviceKey, Device]) -> bool:
        """Send the rows of watched devices; whether there was room for all of them. Their owners see who has read."""
        read: dict[DeviceKey, Device] = {}
        try:
            return await self._send_noting(rows, devices, read)
        finally:
            if read:
                self._feeds.readers.note(self._watched.reach.caller, read.values())

    async def _send_noting(
        self,
        rows: Sequence[MessageRow | ActionRow],
        devices: dict[DeviceKey, Device],
        read: dict[DeviceKey, Device],
    ) -> bool:
        """As `_send_rows`; `read` gets the devices of what is sent."""
        encoding = self._form.encoding
        pairs: list[tuple[MessageRow, Device]] = []

        def send_messages() -> None:
            if pairs:
                self._client.put(encoding.messages(pairs))
                self._position = self._told = pairs[-1][0].position
                pairs.clear()

        for row in rows:
            if encoding is not self._form.encoding:  # the client wants another form now
                return False
            source = row.device if isinstance(row, MessageRow) or row.source == BY_CLOUD else row.source
            device, destination = devices.get(source), devices.get(row.device)
            if device is None or destination is None or not self._watched.watches(device):
                continue
            read[device.key] = device
            if isinstance(row, MessageRow):
                pairs.append((row, device))
                if len(pairs) < _ENCODED_AT_ONCE:
                    continue
                send_messages()
            else:
                send_messages()
                action = await self._feeds.history.action_view(row, destination)
                self._client.put(encoding.action(action))
                self._position = self._told = row.position
            if not self._client.has_room:
                return False
        send_messages()
        return True


def _account(caller: Caller) -> str:
    """For whom a feed counts: a user with the user's devices, or an application."""
    return caller.payer or caller.actor


def _begin_at(since_ms: Milliseconds, now_ms: int, tx: Transaction) -> Begin:
    return Begin(tx.messages.before_time(since_ms), deleted_upto(tx, None, since_ms=since_ms, now_ms=now_ms))


def _page(behind: Position, watched: Watched, tx: Transaction) -> _Page:
    head = max(tx.messages.head(), behind)
    keys = _keys(tx, watched)
    actions = tx.messages.actions_after(behind, limit=_PAGE)
    messages = _of_devices(tx, keys, behind) if keys is not None else None
    if messages is None:
        messages = tx.messages.after(behind, limit=_PAGE)
    upto = min([head, *(rows[-1].position for rows in (messages, actions) if len(rows) >= _PAGE)])
    rows: list[MessageRow | ActionRow] = [*messages, *actions]
    rows = sorted((row for row in rows if row.position <= upto), key=lambda row: row.position)
    types = None if watched.devices is None else _types(tx, watched.devices)
    return _Page(rows, upto, upto == head, deleted_upto(tx, types))


def _of_devices(tx: Transaction, keys: Sequence[DeviceKey], behind: Position) -> list[MessageRow] | None:
    """The next messages of these devices; None when the index cannot be read."""
    try:
        return tx.message_searches.page(keys, Range(None, None, limit=_PAGE, behind=behind, by_arrival=True))
    except StoreDamagedError:
        return None


def _keys(tx: Transaction, watched: Watched) -> Sequence[DeviceKey] | None:
    """All devices that the feed can have, and perhaps others; None: these are many."""
    caller = watched.reach.caller
    if caller.device is not None:
        return [caller.device]
    if watched.devices is not None:
        keys: Collection[DeviceKey] = watched.devices
    elif watched.owner is not None and not watched.with_shared:
        keys = tx.devices.keys(owner=watched.owner, limit=_DEVICES_READ_BY_INDEX + 1)
    else:
        return None
    return None if len(keys) > _DEVICES_READ_BY_INDEX else sorted(keys)


def _types(tx: Transaction, devices: Collection[DeviceKey]) -> set[DeviceTypeKey]:
    return {known.device_type for key in devices if (known := tx.devices.device(key)) is not None}


def open_log_feeds(core: Core, devices: DevicesRoom, messages: MessagesRoom, routing: RoutingRoom) -> LogFeeds:
    feeds = LogFeeds(
        core.database,
        core.router,
        core.clock,
        devices.registry,
        devices.readers,
        messages.history,
        messages.mids,
        routing.feeds,
        core.settings.limits.future_grace_seconds * 1000,
        core.peers,
    )
    core.life.observe("log feeds", feeds.statistics)
    return feeds
