"""The last value of every field of a device, exactly as of a position in the log, and the view of it that rules have.

The snapshots are ahead of the rules or behind them. A device's values are taken from its snapshot; the rows that are
not projected yet are added, and a value that is newer than the position is looked up in the log (reference 12.4).
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.messages.decoding import decoded
from broker.messages.intervals import FIRST_MS, LAST_MS
from broker.messages.snapshots import newest_bucket_end, saved_with_rows
from broker.rules.language.values import CurrentMessage, Value
from config.limits import CLOCK_AHEAD_MS
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, RuleKey, UserKey
from storage.message_searches import FieldMatch, Range, SortKey, sort_key
from storage.records import MessageRow
from storage.transaction import Transaction

_PAGE: Final = 20
#: Rows, before the next minute that has the field is looked up.
_LOOKED_AT: Final = 1_000


#: The last value of a field (reference 9.4): ts and position of its message, the value, cts of its message. Of the
#: highest ts, of equal ones the last received. A plain tuple, because each message makes one for each of its fields.
Known = tuple[Milliseconds, Position, Value, Milliseconds]
Fields = dict[str, Known]
Devices = MutableMapping[DeviceKey, Fields]
#: The answer of a condition's model to a value of its field at a time; None: the model is not ready.
Output = Callable[[RuleKey, int, DeviceKey, Value, Milliseconds], Value | None]
Members = MutableMapping[tuple[UserKey, DeviceTypeKey], tuple[DeviceKey, ...]]


class NotLoadedError(Exception):
    """An evaluation needs values, or the devices of a type, that are not in memory yet."""

    def __init__(
        self, devices: Collection[DeviceKey] = (), members: tuple[UserKey, DeviceTypeKey] | None = None
    ) -> None:
        super().__init__("values that a rule needs are not loaded")
        self.devices = devices
        self.members = members


@dataclass(eq=False, slots=True)
class StateView:
    """The `View` of the engine and of simulations. Raises NotLoadedError for a value that is not in memory."""

    now_ms: Milliseconds
    message: CurrentMessage | None
    _devices: Devices
    _members: Members
    _output: Output
    _asked: tuple[DeviceKey, ...] = ()

    def value(self, device: DeviceKey, field: str) -> Value | None:
        if (fields := self._devices.get(device)) is None:
            raise self._missing(device)
        known = fields.get(field)
        return None if known is None else known[2]

    def value_ms(self, device: DeviceKey, field: str) -> Milliseconds | None:
        if (fields := self._devices.get(device)) is None:
            raise self._missing(device)
        known = fields.get(field)
        return None if known is None else known[3]

    def _missing(self, device: DeviceKey) -> NotLoadedError:
        # A rule that asked for the devices of a type will look at all of them.
        return NotLoadedError({device, *(one for one in self._asked if one not in self._devices)})

    def devices_of(self, owner: UserKey, device_type: DeviceTypeKey) -> Collection[DeviceKey]:
        found = self._members.get((owner, device_type))
        if found is None:
            raise NotLoadedError(members=(owner, device_type))
        self._asked += found
        return found

    def model_output(self, rule: int, condition: int, device: DeviceKey, field: str) -> Value | None:
        value = self.value(device, field)
        return None if value is None else self._output(RuleKey(rule), condition, device, value, self.now_ms)


def merge_message(fields: Fields, data: Mapping[str, Any], row: MessageRow) -> None:
    """Update fields with a message's, by dotted path. Messages may come in any order and repeatedly.

    A value whose `ts` is far ahead of the time at which a later message came is of a clock that was set back: the later
    message counts (reference 27.7).
    """
    ts, position, cts = row.ts, row.position, row.cts
    for path, value in data.items():
        known = fields.get(path)
        if known is None:
            counts = True
        elif position > known[1]:
            counts = ts >= known[0] or known[0] > cts + CLOCK_AHEAD_MS
        else:
            counts = known[0] < ts <= known[3] + CLOCK_AHEAD_MS
        if counts:
            fields[path] = (ts, position, value, cts)


def values_at(
    tx: Transaction,
    device: DeviceKey,
    position: Position,
    *,
    since_ms: Milliseconds = FIRST_MS,
    upto_ms: Milliseconds = LAST_MS,
    check: Callable[[], object] = lambda: None,
) -> Fields:
    """The values that were the last ones when the log ended with `position`.

    Args:
        tx: a transaction for reading.
        device: whose values.
        position: of the last row that counts.
        since_ms: values that are older may be missing, if newer ones came after `position`.
        upto_ms: no row up to `position` is of a later `ts`.
        check: called after every few rows; it raises to end this.
    """
    fields: Fields = {}
    saved, rows = saved_with_rows(tx, device, position)
    there = tx.messages.messages_at({brought_by for _, brought_by, _ in saved.values() if brought_by <= position})
    for path, (ts, brought_by, value) in saved.items():
        if brought_by <= position:
            row = there.get(brought_by)  # the retention sweep may have removed it
            fields[path] = (ts, brought_by, value, ts if row is None else row.cts)
    if newer := {path for path, (_, brought_by, _) in saved.items() if brought_by > position}:
        fields |= _Before(tx, device, position, since_ms, upto_ms, check).values_of(newer)
    for row, data in rows:
        if row.position <= position:
            merge_message(fields, data, row)
    return fields


class _Before(msgspec.Struct, frozen=True):
    """Looks up what a device's values were before a position: in its rows and, for a field that few messages have, in
    the rollups, which say in which minutes there are any."""

    tx: Transaction
    device: DeviceKey
    position: Position
    since_ms: Milliseconds
    upto_ms: Milliseconds
    check: Callable[[], object]

    def values_of(self, paths: Collection[str]) -> Fields:
        """The fields that had a value."""
        newest = self._range(FieldMatch(), self.upto_ms)
        rows = self.tx.message_searches.page([self.device], newest)
        found: Fields = {}
        for row, data in decoded(rows):
            for path in data.keys() & paths:
                found.setdefault(path, (row.ts, row.position, data[path], row.cts))
        if len(rows) == _PAGE:
            for path in sorted(set(paths) - found.keys()):
                if (known := self._value_of(path, sort_key(rows[-1]))) is not None:
                    found[path] = known
        return found

    def _value_of(self, path: str, before: SortKey) -> Known | None:
        upto_ms = before[0]
        while True:
            self.check()
            search = self._range(FieldMatch(path), upto_ms, before)
            part = self.tx.message_searches.some([self.device], search, most=_LOOKED_AT)
            for row, data in decoded(part.rows):
                if path in data:  # in another version of the Manifest it may have been a group
                    return row.ts, row.position, data[path], row.cts
            if len(part.rows) == _PAGE:
                before = sort_key(part.rows[-1])
                upto_ms = before[0]
                continue
            if not isinstance(part.upto, tuple):
                return None
            before = part.upto
            end_ms = newest_bucket_end(self.tx, self.device, path, before[0])
            if end_ms is None:
                return None
            upto_ms = min(before[0], end_ms)

    def _range(self, match: FieldMatch, upto_ms: Milliseconds, before: SortKey | None = None) -> Range:
        return Range(
            self.since_ms,
            upto_ms,
            match=match,
            limit=_PAGE,
            before=before,
            until=self.position,
            descending=True,
        )


def members_of(
    tx: Transaction, owner: UserKey, device_type: DeviceTypeKey, check: Callable[[], object] | None = None
) -> tuple[DeviceKey, ...]:
    """The devices of a type that a user owns. `check` is called after each of them."""
    found: list[DeviceKey] = []
    for key in tx.devices.keys_of_owner(owner):
        if check is not None:
            check()
        one = tx.devices.device(key)
        if one is not None and one.device_type == device_type:
            found.append(one.key)
    return tuple(found)
