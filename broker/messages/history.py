"""Reading stored messages: by id, by device and time, and the last ones (reference 9.3)."""

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec

from broker.devices.registry import Device, Devices
from broker.envelope import Action, Message
from broker.errors import DeviceNotFound, ValidationFailed, invalid
from broker.messages.heavy_reads import HeavyReads
from broker.messages.mids import Mids
from config.limits import CURSOR_MAX_CHARACTERS, SEARCH_ROWS
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import EVERYTHING, FieldMatch, MessageSearches, Part, Range, SortKey, sort_key
from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.transaction import Transaction

SortOrder = Literal["asc", "desc"]
_Row = TypeVar("_Row", MessageRow, ActionRow)
_Entry = TypeVar("_Entry", Message, Action)
T = TypeVar("T")
_DEVICES_PER_STATEMENT = 100
_LOOKED_BEHIND: Final = 1_000  # rows

_CURSORS: Final = "must be next or prev of an answer to the same search"


class MessagePage(msgspec.Struct, Generic[_Entry], frozen=True):
    """One page of a search. A cursor is None when there are no more messages on its side.

    With conditions on `data`, a page may have fewer entries than asked for, or none, and a cursor: the search has
    looked at as many messages as one call may.
    """

    messages: tuple[_Entry, ...]
    next: str | None
    prev: str | None


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Criteria of a search: entries with `start_ms <= ts <= end_ms`, by ts and, where that is equal, by arrival.

    `cursor` is that of a page, or empty for the first one.
    """

    devices: Sequence[Device]
    start_ms: Milliseconds
    end_ms: Milliseconds
    order: SortOrder = "asc"
    count: int = 100
    cursor: str = ""
    match: FieldMatch = EVERYTHING


class Cursors:
    """Opaque texts for a place between two messages. A keyed tag prevents forged cursors."""

    _FORM = struct.Struct(">?qq")

    def __init__(self, key: bytes) -> None:
        self._key = key

    def text(self, *, backwards: bool, bound: SortKey) -> str:
        packed = self._FORM.pack(backwards, *bound)
        return urlsafe_b64encode(packed + self._tag(packed)).rstrip(b"=").decode()

    def read(self, text: str) -> tuple[bool, SortKey]:
        """The direction and place of a cursor. Raises ValidationFailed naming `offset`."""
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) <= CURSOR_MAX_CHARACTERS else b""
            backwards, ts, position = self._FORM.unpack(raw[: self._FORM.size])
            given_out = self.text(backwards=backwards, bound=(ts, position))
            is_authentic = hmac.compare_digest(given_out, text)
        except (Base64Error, ValueError, struct.error) as error:
            raise ValidationFailed.of("offset", invalid(_CURSORS)) from error
        if not is_authentic:
            raise ValidationFailed.of("offset", invalid(_CURSORS))
        return backwards, (ts, position)

    def _tag(self, packed: bytes) -> bytes:
        return blake2b(packed, digest_size=8, key=self._key, person=b"cursor").digest()


@dataclass(eq=False)
class MessageHistory:
    """Stored messages as clients see them. Callers check permissions: pass only devices that the caller may read."""

    _database: Database
    _devices: Devices
    _mids: Mids
    _cursors: Cursors
    _heavy_reads: HeavyReads

    async def by_mid(self, mid: str) -> tuple[Message, Device] | None:
        """A message and its device; None when the message does not exist or was deleted."""
        position = self._mids.position(mid)
        row = None if position is None else await self._database.read(lambda tx: tx.messages.message(position))
        device = None if row is None else await self._shown(row.device)
        return None if row is None or device is None else (self.view(row, device), device)

    async def action_by_mid(self, mid: str) -> tuple[Action, Device] | None:
        """An Action and its destination; None when the Action does not exist or was deleted."""
        position = self._mids.position(mid)
        row = None if position is None else await self._database.read(lambda tx: tx.messages.action(position))
        destination = None if row is None else await self._shown(row.device)
        return None if row is None or destination is None else (await self.action_view(row, destination), destination)

    async def failed(
        self, device: Device, *, offset: int, limit: int
    ) -> tuple[list[tuple[str, FailedMessageRow]], int]:
        """A page of the failed messages of a device (reference 8.4) with their ids, newest first; and their number."""
        rows, total = await self._database.read(lambda tx: tx.messages.failed(device.key, offset=offset, limit=limit))
        return [(self._mids.mid(row.position), row) for row in rows], total

    async def _shown(self, key: DeviceKey) -> Device | None:
        """The device; None when it was deleted, because no query returns its messages then (reference 6.1)."""
        try:
            return await self._devices.get(key)
        except DeviceNotFound:
            return None

    async def messages(self, search: Search) -> MessagePage[Message]:
        """Messages of the devices. Raises ValidationFailed naming `offset` for a cursor that is not valid."""
        devices, rows, after, before = await self._page(MessageSearches.some, search)
        return MessagePage(tuple(self.view(row, devices[row.device]) for row in rows), after, before)

    async def actions(self, search: Search) -> MessagePage[Action]:
        """Actions sent to the devices. Raises as `messages` does."""
        devices, rows, after, before = await self._page(MessageSearches.some_actions, search)
        return MessagePage(tuple([await self.action_view(row, devices[row.device]) for row in rows]), after, before)

    async def _page(
        self, find: "_Find[_Row]", search: Search
    ) -> tuple[dict[DeviceKey, Device], list[_Row], str | None, str | None]:
        """The devices, the rows of a page, the cursor after it and the cursor before it."""
        devices = {device.key: device for device in search.devices}  # a device that is given twice counts once
        backwards, bound = self._cursors.read(search.cursor) if search.cursor not in {"", "0"} else (False, None)
        statements = _Statements(find, tuple(devices), search)
        is_heavy = search.match != EVERYTHING or len(devices) > _DEVICES_PER_STATEMENT
        found = await self._read(is_heavy, partial(_page, statements, bound=bound, backwards=backwards))
        return (
            devices,
            found.rows,
            None if found.after is None else self._cursors.text(backwards=False, bound=found.after),
            None if found.before is None else self._cursors.text(backwards=True, bound=found.before),
        )

    async def _read(self, is_heavy: bool, work: Callable[[Transaction], T]) -> T:
        return await (self._heavy_reads if is_heavy else self._database).read(work)

    async def latest(self, devices: Sequence[Device], *, count: int, field: str | None = None) -> tuple[Message, ...]:
        """The messages received last from all of `devices` together, newest first; with a `field`, messages that have
        it among as many of the newest ones as one call may look at."""
        by_key = {device.key: device for device in devices}
        rows = await self._read(
            field is not None,
            lambda tx: tx.message_searches.latest(tuple(by_key), limit=count, field_path=field, most=SEARCH_ROWS),
        )
        return tuple(self.view(row, by_key[row.device]) for row in rows)

    def view(self, row: MessageRow, device: Device) -> Message:
        return Message(
            position=row.position,
            mid=self._mids.mid(row.position),
            sdid=device.id,
            sdtid=device.type.id,
            uid=device.owner_id,
            boid=device.type.record.organization_id,
            ts=row.ts,
            cts=row.cts,
            mv=row.mv,
            data=row.data,
        )

    async def action_view(self, row: ActionRow, destination: Device) -> Action:
        # When the source was removed for good, the Action is shown as one without a source device.
        source_id = None if row.source == row.device else await self._devices.id_of(row.source)
        return action_of(row, source_id or destination.id, destination, self._mids)


def action_of(row: ActionRow, source_id: str, destination: Device, mids: Mids) -> Action:
    """The Action of a row."""
    return Action(
        position=row.position,
        mid=mids.mid(row.position),
        sdid=source_id,
        ddid=destination.id,
        ddtid=destination.type.id,
        uid=destination.owner_id,
        boid=destination.type.record.organization_id,
        ts=row.ts,
        cts=row.cts,
        mv=row.mv,
        data=row.data,
    )


class _Find(Protocol[_Row]):
    def __call__(
        self, searches: MessageSearches, devices: Sequence[DeviceKey], search: Range, /, *, most: int
    ) -> Part[_Row]: ...


class _Statements(msgspec.Struct, Generic[_Row], frozen=True):
    """A search as statements over at most `_DEVICES_PER_STATEMENT` devices each."""

    find: _Find[_Row]
    devices: tuple[DeviceKey, ...]
    search: Search

    def rows(
        self, tx: Transaction, *, limit: int, beyond: SortKey | None, backwards: bool, most: int
    ) -> tuple[list[_Row], SortKey | None]:
        """Up to `limit` rows beyond a place, nearest first; with `backwards`, against the order of the search.

        The place up to which all rows were looked at, if about `most` of them were not enough.
        """
        descending = (self.search.order == "desc") is not backwards
        range_ = Range(
            _stored(self.search.start_ms),
            _stored(self.search.end_ms),
            match=self.search.match,
            limit=limit,
            after=None if descending else beyond,
            before=beyond if descending else None,
            descending=descending,
        )
        starts = range(0, len(self.devices), _DEVICES_PER_STATEMENT)
        parts = [
            self.find(
                tx.message_searches,
                self.devices[index : index + _DEVICES_PER_STATEMENT],
                range_,
                most=most // len(starts),
            )
            for index in starts
        ]
        found = [row for part in parts for row in part.rows]
        if len(parts) > 1:
            found.sort(key=sort_key, reverse=descending)
        places = [part.upto for part in parts if isinstance(part.upto, tuple)]
        if not places:
            return found[:limit], None
        upto = max(places) if descending else min(places)
        found = [row for row in found if (sort_key(row) >= upto if descending else sort_key(row) <= upto)]
        return found[:limit], upto


class _Found(msgspec.Struct, Generic[_Row], frozen=True):
    """The rows of a page in the order of the search, and the places from which the next and the one before go on."""

    rows: list[_Row]
    after: SortKey | None
    before: SortKey | None


def _page(statements: _Statements[_Row], tx: Transaction, *, bound: SortKey | None, backwards: bool) -> _Found[_Row]:
    search = statements.search
    rows, upto = statements.rows(tx, limit=search.count + 1, beyond=bound, backwards=backwards, most=SEARCH_ROWS)
    if len(rows) > search.count:
        rows = rows[: search.count]
        upto = sort_key(rows[-1])
    behind = None if bound is None else _behind(statements, tx, rows, bound, backwards=backwards)
    if backwards:
        rows.reverse()
        return _Found(rows, behind, upto)
    return _Found(rows, upto, behind)


def _behind(
    statements: _Statements[_Row], tx: Transaction, rows: Sequence[_Row], bound: SortKey, *, backwards: bool
) -> SortKey | None:
    """The place from which the page on the side that the cursor came from goes on; None when there is nothing.

    Messages may have been deleted since the cursor was made, so there is a short look.
    """
    if not rows and statements.search.match == EVERYTHING:
        return None
    # The entry at the cursor belongs to that side.
    step = 1 if (statements.search.order == "asc") is not backwards else -1
    place = sort_key(rows[0]) if rows else (bound[0], Position(bound[1] + step))
    found, upto = statements.rows(tx, limit=1, beyond=place, backwards=not backwards, most=_LOOKED_BEHIND)
    return place if found or upto is not None else None


def _stored(ms: int) -> Milliseconds:
    """The time, limited to what 64 bits can hold; no message has a `ts` outside of these bounds."""
    return Milliseconds(min(max(ms, -1), 2**62))
