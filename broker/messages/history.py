"""Reading back: by id, by device and time, and what came last (specification, GET /messages)."""

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Literal

from broker.devices.registry import Device, Devices
from broker.envelope import Message
from broker.errors import ValidationFailed
from broker.messages.mids import Mids
from config.limits import CURSOR_MAX_CHARACTERS
from storage.database import Database, Transaction
from storage.records import MessageRow

Order = Literal["asc", "desc"]
_DEVICES_PER_STATEMENT = 100
_Bound = tuple[int, int]  # (ts, position): the order of every search


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a search. A cursor is None where there is nothing more on that side."""

    messages: tuple[Message, ...]
    next: str | None
    prev: str | None


class Cursors:
    """Opaque texts that name a place between two messages. A keyed tag keeps strangers' texts out."""

    _FORM = struct.Struct(">?qq")

    def __init__(self, key: bytes) -> None:
        self._key = key

    def text(self, *, backwards: bool, bound: _Bound) -> str:
        packed = self._FORM.pack(backwards, *bound)
        return urlsafe_b64encode(packed + self._tag(packed)).rstrip(b"=").decode()

    def read(self, text: str) -> tuple[bool, _Bound]:
        """Raises ValidationFailed naming `offset`."""
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) <= CURSOR_MAX_CHARACTERS else b""
            backwards, ts, position = self._FORM.unpack(raw[: self._FORM.size])
            given_out = self.text(backwards=backwards, bound=(ts, position))
            ours = hmac.compare_digest(given_out, text)
        except (Base64Error, ValueError, struct.error) as error:
            raise ValidationFailed.of("offset", "Invalid value") from error
        if not ours:
            raise ValidationFailed.of("offset", "Invalid value")
        return backwards, (ts, position)

    def _tag(self, packed: bytes) -> bytes:
        return blake2b(packed, digest_size=8, key=self._key, person=b"cursor").digest()


class History:
    """What was stored, as the outside sees it. Rights are the caller's business: pass only readable devices."""

    def __init__(self, database: Database, devices: Devices, mids: Mids, cursors: Cursors) -> None:
        self._database = database
        self._devices = devices
        self._mids = mids
        self._cursors = cursors

    async def by_mid(self, mid: str) -> tuple[Message, Device] | None:
        """A message and its device, or None when there is none (any more)."""
        position = self._mids.position(mid)
        if position is None:
            return None
        row = await self._database.read(lambda tx: tx.messages.message(position))
        if row is None:
            return None
        device = await self._devices.get(row.device)
        return self.view(row, device), device

    async def search(
        self,
        devices: Sequence[Device],
        *,
        start_ms: int,
        end_ms: int,
        order: Order = "asc",
        count: int = 100,
        cursor: str = "",
    ) -> Page:
        """Messages with `start_ms <= ts <= end_ms`, by ts and, where that is equal, by arrival.

        Raises ValidationFailed naming `offset` for a cursor that is not ours.
        """
        backwards, bound = self._cursors.read(cursor) if cursor not in {"", "0"} else (False, None)
        by_key = {device.key: device for device in devices}  # each once, however often it was asked for
        search = _Search(tuple(by_key), _stored(start_ms), _stored(end_ms), descending=order == "desc")
        rows, has_before, has_after = await self._database.read(
            partial(_page, search, count=count, bound=bound, backwards=backwards)
        )
        return Page(
            messages=tuple(self.view(row, by_key[row.device]) for row in rows),
            next=self._cursors.text(backwards=False, bound=_place(rows[-1])) if has_after else None,
            prev=self._cursors.text(backwards=True, bound=_place(rows[0])) if has_before else None,
        )

    async def latest(self, devices: Sequence[Device], *, count: int, field: str | None = None) -> tuple[Message, ...]:
        """The messages received last from all of `devices` together, newest first."""
        by_key = {device.key: device for device in devices}
        rows = await self._database.read(lambda tx: tx.messages.latest(tuple(by_key), limit=count, field_path=field))
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


@dataclass(frozen=True, slots=True)
class _Search:
    devices: tuple[int, ...]
    start_ms: int
    end_ms: int
    descending: bool

    def rows(self, tx: Transaction, *, limit: int, beyond: _Bound | None, backwards: bool = False) -> list[MessageRow]:
        """At most `limit` rows beyond a place, nearest first; `backwards` looks against the order of the search."""
        descending = self.descending is not backwards
        found: list[MessageRow] = []
        for index in range(0, len(self.devices), _DEVICES_PER_STATEMENT):
            found += tx.messages.page(
                self.devices[index : index + _DEVICES_PER_STATEMENT],
                start_ms=self.start_ms,
                end_ms=self.end_ms,
                limit=limit,
                after=None if descending else beyond,
                before=beyond if descending else None,
                descending=descending,
            )
        if len(self.devices) > _DEVICES_PER_STATEMENT:
            found.sort(key=_place, reverse=descending)
        return found[:limit]


def _page(
    search: _Search, tx: Transaction, *, count: int, bound: _Bound | None, backwards: bool
) -> tuple[list[MessageRow], bool, bool]:
    """The rows of a page in the order of the search, and whether there are more before and after it."""
    rows = search.rows(tx, limit=count + 1, beyond=bound, backwards=backwards)
    more, rows = len(rows) > count, rows[:count]
    if backwards:
        rows.reverse()
    if not rows:
        return rows, False, False
    # Messages may have been deleted since the cursor was given out, so the side it came from is looked at again.
    behind = bound is not None and bool(
        search.rows(tx, limit=1, beyond=_place(rows[-1] if backwards else rows[0]), backwards=not backwards)
    )
    return (rows, more, behind) if backwards else (rows, behind, more)


def _stored(ms: int) -> int:
    """A time that engines can compare with: they count in 64 bits, and no message is as early or as late as these."""
    return min(max(ms, -1), 2**62)


def _place(row: MessageRow) -> _Bound:
    return row.ts, row.position
