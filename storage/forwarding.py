"""Forwarding: how far this store is at its upstreams, and which stores forward to it.

The caller holds the transaction.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from storage.keys import DeviceKey, Milliseconds, OrganizationKey, Position, UserKey
from storage.sql import Store, record_values

#: Parts of a log: the rows with `after < position <= upto`, in order, none of them next to another.
Ranges = tuple[tuple[int, int], ...]


class PendingBatch(msgspec.Struct, frozen=True):
    """A batch that may be under way: `after < position <= upto`. `of_gap`: it is the end of the last gap."""

    id: str
    after: int
    upto: int
    of_gap: bool


class ForwardRecord(msgspec.Struct, frozen=True):
    """A row of `forward`."""

    name: str
    target: str
    store: str | None
    mark: int
    gaps: Ranges
    batch: str
    pending: PendingBatch | None
    actions_after: int | None
    changed_on: Milliseconds


class EdgeRecord(msgspec.Struct, frozen=True):
    """A row of `edge`. `organization`: device types that are not known here are made in it."""

    key: int
    name: str
    owner: UserKey
    token_hash: bytes
    organization: OrganizationKey | None
    devices_max: int
    store: str | None
    batch: str | None
    batch_upto: int | None
    ranges: Ranges
    accepts: bool
    messages: int
    dropped: int
    actions_upto: int | None
    created_on: Milliseconds
    seen_on: Milliseconds | None

    @property
    def upto(self) -> int:
        """Everything of the edge up to this position is here."""
        return self.ranges[0][1] if self.ranges else 0


class EdgeDeviceRecord(msgspec.Struct, frozen=True):
    """A device of an edge. `device` None: it was deleted here."""

    remote: str
    device: DeviceKey | None
    path: tuple[str, ...]


class EdgeOrigin(msgspec.Struct, frozen=True):
    """A message here, and its mid at the edge that sent it."""

    edge: str
    store: str
    remote_mid: str
    position: Position


_FORWARD: Final = ForwardRecord.__struct_fields__
_MID_BYTES: Final = 16


class ForwardingStore(Store):
    # This store at its upstreams

    def forward(self, name: str) -> ForwardRecord | None:
        row = self._db.execute("SELECT * FROM forward WHERE name = :name", {"name": name}).one()
        return None if row is None else _forward(row)

    def forwards(self) -> list[ForwardRecord]:
        return [_forward(row) for row in self._db.execute("SELECT * FROM forward ORDER BY name")]

    def put_forward(self, record: ForwardRecord) -> None:
        values = record_values(record)
        values["gaps"] = json.dumps(record.gaps)
        values["pending"] = None if record.pending is None else msgspec.json.encode(record.pending).decode()
        self._db.put_many("forward", _FORWARD, ("name",), [[values[name] for name in _FORWARD]])

    def set_actions_after(self, name: str, position: int) -> None:
        self._db.execute(
            "UPDATE forward SET actions_after = :position WHERE name = :name", {"name": name, "position": position}
        )

    def deleted_upto(self) -> int:
        """The highest position of a message that retention has deleted, of some device types or of all."""
        row = self._db.execute(
            "SELECT max(position) AS upto FROM retention WHERE name LIKE 'message/%' ESCAPE '!'"
        ).one()
        return int(row["upto"] or 0) if row else 0

    # Stores that forward to this one

    def edge(self, key: int) -> EdgeRecord | None:
        row = self._db.execute("SELECT * FROM edge WHERE key = :key", {"key": key}).one()
        return None if row is None else _edge(row)

    def edge_named(self, name: str) -> EdgeRecord | None:
        row = self._db.execute("SELECT * FROM edge WHERE name = :name", {"name": name}).one()
        return None if row is None else _edge(row)

    def edge_of_token(self, token_hash: bytes) -> EdgeRecord | None:
        row = self._db.execute("SELECT * FROM edge WHERE token_hash = :hash", {"hash": token_hash}).one()
        return None if row is None else _edge(row)

    def edges(self, *, limit: int) -> list[EdgeRecord]:
        return [
            _edge(row) for row in self._db.execute("SELECT * FROM edge ORDER BY name LIMIT :limit", {"limit": limit})
        ]

    def edge_of_store(self, store: str) -> EdgeRecord | None:
        row = self._db.execute("SELECT * FROM edge WHERE store = :store", {"store": store}).one()
        return None if row is None else _edge(row)

    def count_edges(self) -> int:
        return self._number_of("FROM edge")

    def add_edge(self, record: EdgeRecord) -> None:
        self._insert("edge", self._edge_values(record))

    def put_edge(self, record: EdgeRecord) -> None:
        values = self._edge_values(record)
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        self._db.execute(f"UPDATE edge SET {assignments} WHERE key = :key", {**values, "key": record.key})  # noqa: S608 - names of columns

    def note_seen(self, key: int, *, actions_upto: int | None, now_ms: int) -> None:
        self._db.execute(
            "UPDATE edge SET actions_upto = :upto, seen_on = :now WHERE key = :key",
            {"key": key, "upto": actions_upto, "now": now_ms},
        )

    def remove_edge(self, key: int) -> None:
        for table in ("edge_batch", "edge_device"):
            self._db.execute(f"DELETE FROM {table} WHERE edge = :key", {"key": key})  # noqa: S608 - constants
        self._db.execute("DELETE FROM edge WHERE key = :key", {"key": key})

    def edges_of(self, owner: UserKey) -> list[EdgeRecord]:
        return [
            _edge(row)
            for row in self._db.execute("SELECT * FROM edge WHERE owner = :owner ORDER BY name", {"owner": owner})
        ]

    @staticmethod
    def _edge_values(record: EdgeRecord) -> dict[str, Any]:
        values = record_values(record)
        del values["key"]
        values["ranges"] = json.dumps(record.ranges)
        values["accepts"] = int(record.accepts)
        return values

    # Their devices

    def edge_devices(self, edge: int, remotes: Collection[str]) -> dict[str, EdgeDeviceRecord]:
        chosen = self._db.texts_in("remotes")
        rows = self._db.execute(
            f"SELECT remote, device, path FROM edge_device WHERE edge = :edge AND remote IN ({chosen})",  # noqa: S608 - a form of the engine
            {"edge": edge, "remotes": self._db.texts(remotes)},
        )
        return {row["remote"]: _edge_device(row) for row in rows}

    def all_edge_devices(self, edge: int) -> list[EdgeDeviceRecord]:
        rows = self._db.execute("SELECT remote, device, path FROM edge_device WHERE edge = :edge", {"edge": edge})
        return [_edge_device(row) for row in rows]

    def count_edge_devices(self, edge: int) -> int:
        return self._number_of("FROM edge_device WHERE edge = :edge", {"edge": edge})

    def put_edge_device(self, edge: int, record: EdgeDeviceRecord) -> None:
        columns = ("edge", "remote", "device", "path")
        row = (edge, record.remote, record.device, json.dumps(record.path))
        self._db.put_many("edge_device", columns, ("edge", "remote"), [row])

    def paths_of(self, devices: Collection[DeviceKey]) -> dict[DeviceKey, tuple[str, ...]]:
        """The paths of those of the devices that are of other stores."""
        rows = self._db.execute(
            f"SELECT device, path FROM edge_device WHERE device IN ({self._db.numbers_in('devices')})",  # noqa: S608 - a form of the engine
            {"devices": json.dumps(list(devices))},
        )
        return {DeviceKey(row["device"]): tuple(json.loads(row["path"])) for row in rows}

    def remotes_of(self, edge: int, devices: Collection[DeviceKey]) -> dict[DeviceKey, str]:
        """The ids at the edge of those of the devices that are its own."""
        chosen = self._db.numbers_in("devices")
        rows = self._db.execute(
            f"SELECT device, remote FROM edge_device WHERE edge = :edge AND device IN ({chosen})",  # noqa: S608 - a form of the engine
            {"edge": edge, "devices": json.dumps(list(devices))},
        )
        return {DeviceKey(row["device"]): row["remote"] for row in rows}

    # Mids

    def add_batch(self, edge: int, *, first: int, last: int, remote: tuple[int, int], mids: bytes) -> None:
        self._insert(
            "edge_batch",
            {
                "first": first,
                "last": last,
                "edge": edge,
                "remote_first": remote[0],
                "remote_last": remote[1],
                "mids": mids,
            },
        )

    def forget_batches(self, *, before: int, limit: int) -> None:
        """Forget the mids of messages that retention has deleted."""
        self._db.execute(
            "DELETE FROM edge_batch WHERE first IN"
            " (SELECT first FROM edge_batch WHERE last < :before ORDER BY first LIMIT :limit)",
            {"before": before, "limit": limit},
        )

    def origin_of(self, position: Position) -> EdgeOrigin | None:
        """Of the message at this position."""
        row = self._db.execute(
            "SELECT b.first, b.last, b.mids, e.name, e.store FROM edge_batch b JOIN edge e ON e.key = b.edge"
            " WHERE b.first = (SELECT max(first) FROM edge_batch WHERE first <= :position)",
            {"position": position},
        ).one()
        if row is None or position > row["last"]:
            return None
        at = (position - row["first"]) * _MID_BYTES
        return EdgeOrigin(row["name"], row["store"], bytes(row["mids"])[at : at + _MID_BYTES].hex(), position)

    def message_of(self, edge: EdgeRecord, mid: bytes) -> EdgeOrigin | None:
        """Of the message that has this mid at the edge."""
        remote = int.from_bytes(mid[:8])
        rows = self._db.execute(
            "SELECT first, mids FROM edge_batch WHERE edge = :edge AND remote_first <= :remote"
            " AND remote_last >= :remote",
            {"edge": edge.key, "remote": remote},
        )
        for row in rows:
            packed = bytes(row["mids"])
            for at in range(0, len(packed), _MID_BYTES):
                if packed[at : at + _MID_BYTES] == mid:
                    position = Position(row["first"] + at // _MID_BYTES)
                    return EdgeOrigin(edge.name, edge.store or "", mid.hex(), position)
        return None


def _forward(row: Mapping[str, Any]) -> ForwardRecord:
    pending = row["pending"]
    return ForwardRecord(
        **{
            **{name: row[name] for name in _FORWARD},
            "gaps": _ranges(row["gaps"]),
            "pending": None if pending is None else msgspec.json.decode(pending, type=PendingBatch),
        }
    )


def _edge(row: Mapping[str, Any]) -> EdgeRecord:
    values = {name: row[name] for name in EdgeRecord.__struct_fields__}
    return EdgeRecord(
        **{
            **values,
            "token_hash": bytes(row["token_hash"]),
            "ranges": _ranges(row["ranges"]),
            "accepts": bool(row["accepts"]),
        }
    )


def _edge_device(row: Mapping[str, Any]) -> EdgeDeviceRecord:
    return EdgeDeviceRecord(row["remote"], row["device"], tuple(json.loads(row["path"])))


def _ranges(text: str) -> Ranges:
    return tuple((after, upto) for after, upto in json.loads(text))


def merged(ranges: Sequence[tuple[int, int]], after: int, upto: int) -> Ranges:
    """The ranges with one more."""
    found = list[tuple[int, int]]()
    for one in sorted((*ranges, (after, upto))):
        if found and one[0] <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], one[1]))
        else:
            found.append(one)
    return tuple(found)
