"""The message log and what folds over it keep. The caller holds the transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import Connection

_MESSAGE = ("position", "device", "ts", "cts", "mv", "data")
_ACTION = ("position", "device", "source", "ts", "cts", "mv", "data")
_FAILED = ("position", "device", "cts", "reason", "payload")


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

    def after(self, position: int, *, limit: int = -1, device: int | None = None) -> list[MessageRow]:
        """The log, or one device's part of it, from behind `position` on, in order; all of it with limit -1."""
        condition = "position > :position" + (" AND device = :device" if device is not None else "")
        rows = self._db.execute(
            f"SELECT * FROM message WHERE {condition} ORDER BY position LIMIT :limit",  # noqa: S608 - ours
            {"position": position, "limit": limit, "device": device},
        )
        return [_message(row) for row in rows]

    # By position

    def message(self, position: int) -> MessageRow | None:
        row = self._db.execute("SELECT * FROM message WHERE position = :position", {"position": position}).one()
        return _message(row) if row else None

    def action(self, position: int) -> ActionRow | None:
        row = self._db.execute("SELECT * FROM action WHERE position = :position", {"position": position}).one()
        return ActionRow(*(row[name] for name in _ACTION)) if row else None

    # By device and time

    def page(
        self,
        devices: Sequence[int],
        *,
        start_ms: int,
        end_ms: int,
        limit: int,
        after: tuple[int, int] | None = None,
        before: tuple[int, int] | None = None,
        descending: bool,
    ) -> list[MessageRow]:
        """Messages with `start_ms <= ts <= end_ms` in the order of (ts, position).

        `after` and `before` are exclusive bounds in that order. At most `limit` rows, from the end that `descending`
        names.
        """
        parameters: dict[str, Any] = {"start": start_ms, "end": end_ms, "limit": limit}
        bounds = ""
        for name, bound, sign in (("after", after, ">"), ("before", before, "<")):
            if bound is not None:
                bounds += f" AND (ts {sign}= :{name}_ts AND (ts {sign} :{name}_ts OR position {sign} :{name}_position))"
                parameters |= {f"{name}_ts": bound[0], f"{name}_position": bound[1]}
        direction = "DESC" if descending else "ASC"
        parts = []
        for index, device in enumerate(devices):
            parameters[f"device_{index}"] = device
            parts.append(
                f"SELECT * FROM (SELECT * FROM message WHERE device = :device_{index}"  # noqa: S608 - only our names
                f" AND ts BETWEEN :start AND :end{bounds}"
                f" ORDER BY ts {direction}, position {direction} LIMIT :limit)"
            )
        if not parts:
            return []
        sql = " UNION ALL ".join(parts) + f" ORDER BY ts {direction}, position {direction} LIMIT :limit"
        return [_message(row) for row in self._db.execute(sql, parameters)]

    def latest(self, devices: Sequence[int], *, limit: int, field_path: str | None = None) -> list[MessageRow]:
        """The messages received last from all of `devices` together, newest first."""
        parameters: dict[str, Any] = {"limit": limit}
        condition = ""
        if field_path is not None:
            condition = f" AND {self._db.json_has('data', 'path')}"
            parameters["path"] = field_path
        parts = []
        for index, device in enumerate(devices):
            parameters[f"device_{index}"] = device
            parts.append(
                f"SELECT * FROM (SELECT * FROM message WHERE device = :device_{index}{condition}"  # noqa: S608 - ours
                " ORDER BY position DESC LIMIT :limit)"
            )
        if not parts:
            return []
        sql = " UNION ALL ".join(parts) + " ORDER BY position DESC LIMIT :limit"
        return [_message(row) for row in self._db.execute(sql, parameters)]

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

    def put_snapshot(self, device: int, fields: str) -> None:
        self._db.execute(
            "INSERT INTO snapshot (device, fields) VALUES (:device, :fields)"
            " ON CONFLICT (device) DO UPDATE SET fields = excluded.fields",
            {"device": device, "fields": fields},
        )


def _message(row: Mapping[str, Any]) -> MessageRow:
    return MessageRow(row["position"], row["device"], row["ts"], row["cts"], row["mv"], row["data"])
