"""Leases: which node does the work that one node does at a time.

Each statement is a transaction of its own, and its time is that of the store, which is the same for all nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from storage.keys import Milliseconds
from storage.sql import StaleLeaseError, Store


class HeldLease(msgspec.Struct, frozen=True):
    """A lease as its holder has it."""

    name: str
    node: str
    epoch: int


class LeaseRecord(msgspec.Struct, frozen=True):
    """A lease as its row has it. `seconds_left` is negative when it is over; `is_given_back`: its holder ended it."""

    name: str
    node: str
    instance: str
    epoch: int
    since: Milliseconds
    until: Milliseconds
    seconds_left: float
    version: str | None = None
    report: str | None = None  # of a node, JSON (broker/cluster/reports.py)

    @property
    def is_given_back(self) -> bool:
        return not self.until


class Holder(Protocol):
    """The holder of a lease, as `Database.write_own` checks it."""

    @property
    def held(self) -> HeldLease | None:
        """None: nobody else can have it, and there is nothing to check. Raises StaleLeaseError."""


class LeaseStore(Store):
    def take(
        self,
        name: str,
        node: str,
        instance: str,
        seconds: float,
        *,
        former: LeaseRecord | None,
        told: tuple[str, str] | None = None,
    ) -> HeldLease | None:
        """Take the lease if it is as `former` still, or if a node of the same name has it; else None. `former`: as it
        was found, and the caller knows that it is over; None: there was none. `told`: version and first
        report of a node among several, which the others look at.

        Waits for the transactions in which the former holder writes now.
        """
        now = self._db.now_ms()
        # The one that serves alone may do so before the schema has the columns.
        column, value, change = ("", "", "") if told is None else _TOLD
        row = self._db.execute(
            f"INSERT INTO lease (name, node, instance, epoch, since, until{column})"  # noqa: S608 - constants
            f" VALUES (:name, :node, :instance, 1, {now}, {now} + :ms{value})"
            f" ON CONFLICT (name) DO UPDATE SET node = excluded.node, instance = excluded.instance{change},"
            " epoch = lease.epoch + 1, since = excluded.since, until = excluded.until"
            " WHERE (lease.epoch = :epoch AND lease.until = :until) OR lease.node = excluded.node RETURNING epoch",
            {
                "name": name,
                "node": node,
                "instance": instance,
                "ms": round(seconds * 1000),
                "epoch": -1 if former is None else former.epoch,
                "until": 0 if former is None else former.until,
                **({} if told is None else {"version": told[0], "report": told[1]}),
            },
        ).one()
        return None if row is None else HeldLease(name, node, int(row["epoch"]))

    def renew(self, held: HeldLease, seconds: float, report: str | None = None) -> bool:
        """Have the lease last for `seconds` from now on; False when another node has it. `report` is noted with it."""
        said = "" if report is None else ", report = :report"
        row = self._db.execute(
            f"UPDATE lease SET until = {self._db.now_ms()} + :ms{said} WHERE {_IS_HELD} RETURNING epoch",  # noqa: S608 - as above
            {"name": held.name, "node": held.node, "epoch": held.epoch, "ms": round(seconds * 1000)}
            | ({} if report is None else {"report": report}),
        ).one()
        return row is not None

    def give_back(self, held: HeldLease) -> None:
        """Another node may take the lease at once. Its epoch is kept."""
        self._db.execute(
            f"UPDATE lease SET until = 0 WHERE {_IS_HELD}",  # noqa: S608 - a constant
            {"name": held.name, "node": held.node, "epoch": held.epoch},
        )

    def require(self, held: HeldLease) -> None:
        """Within a transaction: nobody takes the lease before its end. Raises StaleLeaseError: somebody has."""
        found = self._db.execute(
            f"SELECT 1 AS held FROM lease WHERE {_IS_HELD}{self._db.key_share}",  # noqa: S608 - a word of the engine
            {"name": held.name, "node": held.node, "epoch": held.epoch},
        ).one()
        if found is None:
            raise StaleLeaseError(f"node {held.node} does not have the lease {held.name} any more")

    def find(self, name: str) -> LeaseRecord | None:
        return next(iter(self._found("name = :name", {"name": name})), None)

    def _found(self, condition: str, parameters: Mapping[str, Any], columns: Sequence[str] = ()) -> list[LeaseRecord]:
        """`columns`: further ones. A daemon that stands by looks at the store of an older version, which lacks them."""
        wanted = (*_COLUMNS, *columns)
        rows = self._db.execute(
            f"SELECT {', '.join(wanted)}, until - {self._db.now_ms()} AS left_ms FROM lease"  # noqa: S608 - constants
            f" WHERE {condition} ORDER BY name",
            parameters,
        )
        return [
            LeaseRecord(**{column: row[column] for column in wanted}, seconds_left=row["left_ms"] / 1000)
            for row in rows
        ]

    # Several nodes that serve

    def join(self, name: str, group: str, seconds: float, *, former: LeaseRecord | None) -> HeldLease | None:
        """Take a lease that all nodes of a group hold together, or hold it with them; None: somebody else has it.
        `former`: as for `take`."""
        now = self._db.now_ms()
        row = self._db.execute(
            f"INSERT INTO lease (name, node, instance, epoch, since, until)"  # noqa: S608 - an expression of the engine
            f" VALUES (:name, :node, :node, 1, {now}, {now} + :ms)"
            " ON CONFLICT (name) DO UPDATE SET node = excluded.node, instance = excluded.instance, since = CASE"
            " WHEN lease.node = excluded.node THEN lease.since ELSE excluded.since END, epoch = CASE"
            " WHEN lease.node = excluded.node THEN lease.epoch ELSE lease.epoch + 1 END, until = CASE"
            " WHEN lease.node = excluded.node AND lease.until > excluded.until THEN lease.until ELSE excluded.until END"
            " WHERE (lease.epoch = :epoch AND lease.until = :until) OR lease.node = excluded.node RETURNING epoch",
            {
                "name": name,
                "node": group,
                "ms": round(seconds * 1000),
                "epoch": -1 if former is None else former.epoch,
                "until": 0 if former is None else former.until,
            },
        ).one()
        return None if row is None else HeldLease(name, group, int(row["epoch"]))

    def leave(self, held: HeldLease) -> None:
        """Give a lease of a group back, unless another node of the group lives."""
        self._db.execute(
            f"UPDATE lease SET until = 0 WHERE {_IS_HELD} AND NOT EXISTS (SELECT 1 FROM lease AS other"  # noqa: S608
            f" WHERE {_OF_NODE.format(name='other.name')} AND other.until > {self._db.now_ms()})",
            {"name": held.name, "node": held.node, "epoch": held.epoch},
        )

    def nodes(self) -> list[LeaseRecord]:
        """The nodes that have joined and have not left, by name."""
        return self._found(f"{_OF_NODE.format(name='name')} AND until <> 0", {}, ("version", "report"))

    def now_ms(self) -> Milliseconds:
        """The time of the store."""
        row = self._db.execute(f"SELECT {self._db.now_ms()} AS now").one()
        assert row is not None, "it has one row"  # noqa: S101 - as it is written
        return Milliseconds(row["now"])

    def heads(self) -> tuple[int, int]:
        """The latest position that was given, and the number of the latest fact."""
        row = self._db.execute(
            "SELECT last_value AS position, (SELECT coalesce(max(number), 0) FROM fact) AS fact FROM log"
        ).one()
        assert row is not None, "a sequence has one row"  # noqa: S101 - as the engine makes it
        return int(row["position"]), int(row["fact"])

    def of_workers(self, names: Sequence[str]) -> list[LeaseRecord]:
        """The leases of workers that somebody has."""
        return [one for one in self._found("until <> 0", {}) if one.name in names]

    def take_worker(self, name: str, node: str, instance: str) -> HeldLease | None:
        """Take the lease of a worker that nobody has; else None. It is held for as long as the node's own."""
        now = self._db.now_ms()
        row = self._db.execute(
            f"INSERT INTO lease (name, node, instance, epoch, since, until)"  # noqa: S608 - an expression of the engine
            f" VALUES (:name, :node, :instance, 1, {now}, 1)"
            " ON CONFLICT (name) DO UPDATE SET node = excluded.node, instance = excluded.instance,"
            " epoch = lease.epoch + 1, since = excluded.since, until = 1 WHERE lease.until = 0 RETURNING epoch",
            {"name": name, "node": node, "instance": instance},
        ).one()
        return None if row is None else HeldLease(name, node, int(row["epoch"]))

    def bury(self, record: LeaseRecord) -> bool:
        """End a node whose lease is over, and free those of its workers; False: it was renewed since, or another node
        has done it. It may be held by transactions of the node, whose sessions have ended."""
        row = self._db.execute(
            "UPDATE lease SET until = 0, epoch = epoch + 1 WHERE name = :name AND epoch = :epoch AND until = :until"
            " RETURNING epoch",
            {"name": record.name, "epoch": record.epoch, "until": record.until},
        ).one()
        if row is None:
            return False
        self.free(record.node)
        return True

    def free(self, node: str) -> None:
        """The workers of a node have ended."""
        self._db.execute("UPDATE lease SET until = 0 WHERE node = :node AND until = 1", {"node": node})


_COLUMNS = ("name", "node", "instance", "epoch", "since", "until")
_TOLD = ", version, report", ", :version, :report", ", version = excluded.version, report = excluded.report"
#: The lease of a node begins with this word.
NODE = "node "
_OF_NODE = f"substr({{name}}, 1, {len(NODE)}) = '{NODE}'"
_IS_HELD = "name = :name AND node = :node AND epoch = :epoch"
