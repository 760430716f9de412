"""The message log and what folds over it keep. The caller holds the transaction.

A row is appended without an entry in an index, because the rows of one commit are of many devices, and each of them
would change another page of every index. When some two thousand such rows have come, or a fold asks for it, all get
their entries at once. Whoever searches by device looks into the index, and then through the rows that have none yet.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Literal

from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import Connection

_MESSAGE = ("position", "device", "ts", "cts", "mv", "data")
_ACTION = ("position", "device", "source", "ts", "cts", "mv", "data")
_FAILED = ("position", "device", "cts", "reason", "payload")

_NEWEST = 1_000  # positions at the end of the log
_UNINDEXED = 2_000  # more do not stay without an entry: to look through so many takes 0.1 to 0.4 ms
_AT_FIRST = {"indexed": 0}
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")

Table = Literal["message", "action"]
_TABLES: Sequence[Table] = ("message", "action")
_COLUMNS: Mapping[Table, str] = {"message": ", ".join(_MESSAGE), "action": ", ".join(_ACTION)}
_TS: Mapping[Table, int] = {"message": _MESSAGE.index("ts"), "action": _ACTION.index("ts")}


@dataclass(frozen=True, slots=True)
class Match:
    """What a row's `data` must have to be found: all of it. Paths are dotted."""

    field: str | None = None
    values: tuple[tuple[str, str], ...] = ()  # path and text; broker/messages/history.py says when they match
    action: str | None = None  # the name of one of its Actions


EVERYTHING = Match()


@dataclass(frozen=True, slots=True)
class Range:
    """Rows with `start_ms <= ts <= end_ms` in the order of (ts, position), or all of them in that of arrival.

    `after` and `before` are exclusive bounds in the order of (ts, position). At most `limit` rows, from the end that
    `descending` names.
    """

    start_ms: int | None
    end_ms: int | None
    match: Match = EVERYTHING
    limit: int | None = None
    after: tuple[int, int] | None = None
    before: tuple[int, int] | None = None
    descending: bool = False
    by_arrival: bool = False

    def conditions(self) -> Iterator[str]:
        # The index is searched by one range of `ts`, so a page costs the same however deep it lies.
        if self.start_ms is not None:
            yield "ts BETWEEN :start AND :end"
        if self.after is not None:
            yield "(ts > :after_ts OR position > :after_position)"
        if self.before is not None:
            yield "(ts < :before_ts OR position < :before_position)"

    def parameters(self) -> dict[str, Any]:
        start, end = self.start_ms, self.end_ms
        parameters: dict[str, Any] = {"limit": self.limit, "field": self.match.field, "action": self.match.action}
        if self.after is not None:
            start = self.after[0] if start is None else max(start, self.after[0])
            parameters |= {"after_ts": self.after[0], "after_position": self.after[1]}
        if self.before is not None:
            end = self.before[0] if end is None else min(end, self.before[0])
            parameters |= {"before_ts": self.before[0], "before_position": self.before[1]}
        for index, (path, text) in enumerate(self.match.values):
            number = text if _NUMBER.fullmatch(text) else None
            parameters |= {f"path_{index}": path, f"text_{index}": text, f"number_{index}": number}
        return parameters | {"start": start, "end": end}


class MessageStore:
    def __init__(self, db: Connection) -> None:
        self._db = db

    # The log

    def append(
        self,
        messages: Sequence[MessageRow],
        actions: Sequence[ActionRow],
        failed: Sequence[FailedMessageRow],
        *,
        head: int,
    ) -> None:
        """Add rows that already have their positions; `head` is the highest position ever given out."""
        if messages:
            self._db.insert_many("message", _MESSAGE, messages, same=_AT_FIRST)
        if actions:
            self._db.insert_many("action", _ACTION, actions, same=_AT_FIRST)
        if failed:
            self._db.insert_many("failed_message", _FAILED, failed)
        self._set_counter("head", head)
        if head - self._counter("indexed") >= _UNINDEXED:
            self.index()

    def head(self) -> int:
        """The highest position ever given out: positions never come twice, not even after everything was deleted."""
        return self._counter("head")

    def index(self) -> None:
        """Give all rows their entries in the indexes."""
        head, indexed = self.head(), self._counter("indexed")
        if head == indexed:
            return
        for table in _TABLES:
            self._db.execute(
                f"UPDATE {table} SET indexed = 1 WHERE position > :indexed AND position <= :head",  # noqa: S608 - ours
                {"indexed": indexed, "head": head},
            )
        self._set_counter("indexed", head)

    def _counter(self, name: str) -> int:
        row = self._db.execute("SELECT value FROM counter WHERE name = :name", {"name": name}).one()
        return int(row["value"]) if row else 0

    def _set_counter(self, name: str, value: int) -> None:
        self._db.execute(
            "INSERT INTO counter (name, value) VALUES (:name, :value)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            {"name": name, "value": value},
        )

    def last_cts(self) -> int:
        row = self._db.execute(
            "SELECT max(cts) AS cts FROM (SELECT cts FROM message WHERE position = (SELECT max(position) FROM message)"
            " UNION ALL SELECT cts FROM action WHERE position = (SELECT max(position) FROM action))"
        ).one()
        return int(row["cts"] or 0) if row else 0

    def mid_key(self) -> bytes:
        row = self._db.execute("SELECT value FROM secret WHERE name = 'mid'").one()
        return bytes(row["value"]) if row else b""

    def after(self, position: int, *, limit: int | None = None) -> list[MessageRow]:
        """The log from behind `position` on, in order."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS['message']} FROM message WHERE position > :position"  # noqa: S608 - ours
            f" ORDER BY position{_limit(limit)}",
            {"position": position, "limit": limit},
        )
        return [MessageRow(*row) for row in rows.tuples()]

    def after_of(self, devices: Collection[int], position: int) -> list[MessageRow]:
        """The devices' rows of the log from behind `position` on, each device's in order."""
        if (last := self.last_position()) <= position:
            return []  # without a look into the index of each device
        found: list[MessageRow] = []
        if (indexed := self._counter("indexed")) > position:
            for device in devices:
                rows = self._db.execute(
                    f"SELECT {_COLUMNS['message']} FROM message"  # noqa: S608 - ours
                    " WHERE indexed = 1 AND device = :device AND position > :position ORDER BY position",
                    {"position": position, "device": device},
                )
                found += [MessageRow(*row) for row in rows.tuples()]
        if last > indexed:
            wanted = set(devices)
            found += [row for row in self.after(max(position, indexed)) if row.device in wanted]
        return found

    def last_position(self, table: Table = "message") -> int:
        """Of the rows that are there; 0 when there are none."""
        row = self._db.execute(f"SELECT max(position) AS position FROM {table}").one()  # noqa: S608 - ours
        return int(row["position"] or 0) if row else 0

    # By position

    def message(self, position: int) -> MessageRow | None:
        row = self._db.execute("SELECT * FROM message WHERE position = :position", {"position": position}).one()
        return _message(row) if row else None

    def action(self, position: int) -> ActionRow | None:
        row = self._db.execute("SELECT * FROM action WHERE position = :position", {"position": position}).one()
        return _action(row) if row else None

    # By device and time

    def page(self, devices: Sequence[int], search: Range) -> list[MessageRow]:
        return [MessageRow(*row) for row in self._found("message", devices, search)]

    def action_page(self, devices: Sequence[int], search: Range) -> list[ActionRow]:
        """The Actions whose destination is one of `devices`."""
        return [ActionRow(*row) for row in self._found("action", devices, search)]

    def count(self, device: int, *, start_ms: int, end_ms: int) -> int:
        row = self._db.execute(
            "SELECT (SELECT count(*) FROM message WHERE indexed = 1 AND device = :device"
            " AND ts BETWEEN :start AND :end) + (SELECT count(*) FROM message WHERE position > :indexed"
            " AND device = :device AND ts BETWEEN :start AND :end) AS count",
            {"device": device, "start": start_ms, "end": end_ms, "indexed": self._counter("indexed")},
        ).one()
        return int(row["count"]) if row else 0

    def latest(self, devices: Sequence[int], *, limit: int, field_path: str | None = None) -> list[MessageRow]:
        """The messages received last from all of `devices` together, newest first."""
        match = Match(field_path)
        # Most who ask for many devices ask for those that are sending: the end of the log is read in one run.
        if len(devices) > 1 and len(newest := self._among_newest(devices, match, limit)) == limit:
            return newest
        search = Range(None, None, match=match, limit=limit, by_arrival=True, descending=True)
        return [MessageRow(*row) for row in self._found("message", devices, search)]

    def _among_newest(self, devices: Sequence[int], match: Match, limit: int) -> list[MessageRow]:
        """Those of `latest` that are at the very end of the log."""
        conditions = "".join(f" AND {condition}" for condition in self._matching(match))
        names = {f"device_{index}": device for index, device in enumerate(devices)}
        rows = self._db.execute(
            f"SELECT {_COLUMNS['message']} FROM message WHERE position > :behind"  # noqa: S608 - only our names
            f" AND device IN ({', '.join(f':{name}' for name in names)}){conditions}"
            " ORDER BY position DESC LIMIT :limit",
            {"behind": self.last_position() - _NEWEST, "limit": limit, "field": match.field} | names,
        )
        return [MessageRow(*row) for row in rows.tuples()]

    def _found(self, table: Table, devices: Sequence[int], search: Range) -> Iterator[Sequence[Any]]:
        """What the index has, and laid in between what is not there yet."""
        if not devices:
            return iter(())
        parameters = search.parameters() | {f"device_{index}": device for index, device in enumerate(devices)}
        conditions = "".join(f" AND {condition}" for condition in (*search.conditions(), *self._matching(search.match)))
        columns = ("position",) if search.by_arrival else ("ts", "position")
        order = ", ".join(f"{column} {'DESC' if search.descending else 'ASC'}" for column in columns)
        chosen = _COLUMNS[table] if len(devices) == 1 else ", ".join(columns)
        parts = [
            f"SELECT {chosen} FROM {table} WHERE indexed = 1 AND device = :device_{index}{conditions}"  # noqa: S608 - ours
            f" ORDER BY {order}{_limit(search.limit)}"
            for index in range(len(devices))
        ]
        sql = parts[0]
        if len(devices) > 1:
            # Each device by its own index, merged; then only what was found is read from the log.
            merged = " UNION ALL ".join(f"SELECT * FROM ({part}) AS of_{index}" for index, part in enumerate(parts))  # noqa: S608
            sql = (
                f"SELECT {_COLUMNS[table]} FROM {table} WHERE position IN"  # noqa: S608 - only our names
                f" (SELECT position FROM ({merged} ORDER BY {order}{_limit(search.limit)}) AS found) ORDER BY {order}"
            )
        rows = self._db.execute(sql, parameters).tuples()
        if self.last_position(table) <= (indexed := self._counter("indexed")):
            return rows
        late = self._db.execute(
            f"SELECT {_COLUMNS[table]} FROM {table} WHERE position > :indexed"  # noqa: S608 - only our names
            f" AND device IN ({', '.join(f':device_{index}' for index in range(len(devices)))}){conditions}"
            f" ORDER BY {order}{_limit(search.limit)}",
            parameters | {"indexed": indexed},
        ).tuples()
        ts = _TS[table]
        place = (lambda row: row[0]) if search.by_arrival else (lambda row: (row[ts], row[0]))
        return islice(merge(rows, late, key=place, reverse=search.descending), search.limit)

    def _matching(self, match: Match) -> Iterator[str]:
        if match.field is not None:
            yield self._db.json_has("data", "field")
        for index in range(len(match.values)):
            yield self._db.json_matches("data", f"path_{index}", f"text_{index}", f"number_{index}")
        if match.action is not None:
            yield self._db.json_any_named("data", "actions", "action")

    def last_ts(self, table: Table, devices: Collection[int]) -> dict[int, int]:
        """The highest `ts` of each of these devices that has a row."""
        found: dict[int, int] = {}
        for device in devices:
            row = self._db.execute(
                f"SELECT max(ts) AS ts FROM {table} WHERE indexed = 1 AND device = :device",  # noqa: S608 - ours
                {"device": device},
            ).one()
            if row is not None and row["ts"] is not None:
                found[device] = row["ts"]
        late = self._db.execute(
            f"SELECT device, max(ts) AS ts FROM {table} WHERE position > :indexed GROUP BY device",  # noqa: S608 - ours
            {"indexed": self._counter("indexed")},
        )
        wanted = set(devices)
        for row in late:
            if row["device"] in wanted:
                found[row["device"]] = max(row["ts"], found.get(row["device"], 0))
        return found

    # Consumers of the log and their snapshots

    def consumer_position(self, name: str) -> int:
        row = self._db.execute("SELECT position FROM consumer WHERE name = :name", {"name": name}).one()
        return int(row["position"]) if row else 0

    def set_consumer_position(self, name: str, position: int) -> None:
        self._db.execute(
            "INSERT INTO consumer (name, position) VALUES (:name, :position)"
            " ON CONFLICT (name) DO UPDATE SET position = excluded.position",
            {"name": name, "position": position},
        )

    def snapshot(self, device: int) -> str | None:
        row = self._db.execute("SELECT fields FROM snapshot WHERE device = :device", {"device": device}).one()
        return str(row["fields"]) if row else None

    def put_snapshots(self, snapshots: Sequence[tuple[int, str]]) -> None:
        """Fields as JSON, by device."""
        self._db.put_many("snapshot", ("device", "fields"), ("device",), snapshots)


def _message(row: Mapping[str, Any]) -> MessageRow:
    return MessageRow(row["position"], row["device"], row["ts"], row["cts"], row["mv"], row["data"])


def _action(row: Mapping[str, Any]) -> ActionRow:
    return ActionRow(*(row[name] for name in _ACTION))


def _limit(limit: int | None) -> str:
    return "" if limit is None else " LIMIT :limit"
