"""The message log and what folds over it keep. The caller holds the transaction."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import Connection

_MESSAGE = ("position", "device", "ts", "cts", "mv", "data")
_ACTION = ("position", "device", "source", "ts", "cts", "mv", "data")
_FAILED = ("position", "device", "cts", "reason", "payload")

_NEWEST = 1_000  # positions at the end of the log
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")

Table = Literal["message", "action"]
_COLUMNS: Mapping[Table, str] = {"message": ", ".join(_MESSAGE), "action": ", ".join(_ACTION)}


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
            self._db.insert_many("message", _MESSAGE, messages)
        if actions:
            self._db.insert_many("action", _ACTION, actions)
        if failed:
            self._db.insert_many("failed_message", _FAILED, failed)
        self._db.execute(
            "INSERT INTO counter (name, value) VALUES ('head', :head)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            {"head": head},
        )

    def head(self) -> int:
        """The highest position ever given out: positions never come twice, not even after everything was deleted."""
        row = self._db.execute("SELECT value FROM counter WHERE name = 'head'").one()
        return int(row["value"]) if row else 0

    def last_cts(self) -> int:
        row = self._db.execute(
            "SELECT max(cts) AS cts FROM (SELECT cts FROM message WHERE position = (SELECT max(position) FROM message)"
            " UNION ALL SELECT cts FROM action WHERE position = (SELECT max(position) FROM action))"
        ).one()
        return int(row["cts"] or 0) if row else 0

    def mid_key(self) -> bytes:
        row = self._db.execute("SELECT value FROM secret WHERE name = 'mid'").one()
        return bytes(row["value"]) if row else b""

    def after(self, position: int, *, limit: int | None = None, device: int | None = None) -> list[MessageRow]:
        """The log, or one device's part of it, from behind `position` on, in order."""
        condition = "position > :position" + (" AND device = :device" if device is not None else "")
        rows = self._db.execute(
            f"SELECT {_COLUMNS['message']} FROM message WHERE {condition}"  # noqa: S608 - ours
            f" ORDER BY position{_limit(limit)}",
            {"position": position, "limit": limit, "device": device},
        )
        return [MessageRow(*row) for row in rows.tuples()]

    def last_position(self) -> int:
        """Of the messages that are there; 0 when there are none."""
        row = self._db.execute("SELECT max(position) AS position FROM message").one()
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
            "SELECT count(*) AS count FROM message WHERE device = :device AND ts BETWEEN :start AND :end",
            {"device": device, "start": start_ms, "end": end_ms},
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
            # The plus keeps the devices' own index out of it.
            f"SELECT {_COLUMNS['message']} FROM message WHERE position > :behind"  # noqa: S608 - only our names
            f" AND +device IN ({', '.join(f':{name}' for name in names)}){conditions}"
            " ORDER BY position DESC LIMIT :limit",
            {"behind": self.last_position() - _NEWEST, "limit": limit, "field": match.field} | names,
        )
        return [MessageRow(*row) for row in rows.tuples()]

    def _found(self, table: Table, devices: Sequence[int], search: Range) -> Iterator[Sequence[Any]]:
        if not devices:
            return iter(())
        conditions = "".join(f" AND {condition}" for condition in (*search.conditions(), *self._matching(search.match)))
        columns = ("position",) if search.by_arrival else ("ts", "position")
        order = ", ".join(f"{column} {'DESC' if search.descending else 'ASC'}" for column in columns)
        chosen = _COLUMNS[table] if len(devices) == 1 else ", ".join(columns)
        parts = [
            f"SELECT {chosen} FROM {table} WHERE device = :device_{index}{conditions}"  # noqa: S608 - only our names
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
        parameters = search.parameters() | {f"device_{index}": device for index, device in enumerate(devices)}
        return self._db.execute(sql, parameters).tuples()

    def _matching(self, match: Match) -> Iterator[str]:
        if match.field is not None:
            yield self._db.json_has("data", "field")
        for index in range(len(match.values)):
            yield self._db.json_matches("data", f"path_{index}", f"text_{index}", f"number_{index}")
        if match.action is not None:
            yield self._db.json_any_named("data", "actions", "action")

    def last_ts(self, table: str, device: int) -> int | None:
        """The highest `ts` of the device in `message` or `action`."""
        row = self._db.execute(f"SELECT max(ts) AS ts FROM {table} WHERE device = :device", {"device": device}).one()  # noqa: S608
        return row["ts"] if row else None

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
