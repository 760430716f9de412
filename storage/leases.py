"""Leases: which node does the work that one node does at a time.

Each statement is a transaction of its own, and its time is that of the store, which is the same for all nodes.
"""

from typing import Protocol

import msgspec

from storage.keys import Milliseconds
from storage.sql import StaleLeaseError, Store


class HeldLease(msgspec.Struct, frozen=True):
    """A lease as its holder has it."""

    name: str
    node: str
    epoch: int


class LeaseRecord(msgspec.Struct, frozen=True):
    """A lease as anybody sees it. `seconds_left` is negative when it is over; `is_given_back`: its holder ended it."""

    name: str
    node: str
    instance: str
    epoch: int
    since: Milliseconds
    until: Milliseconds
    seconds_left: float

    @property
    def is_given_back(self) -> bool:
        return not self.until


class Holder(Protocol):
    """The one for whom a work is written that only the holder of a lease may write."""

    @property
    def held(self) -> HeldLease | None:
        """None: nobody else can have it, and there is nothing to check. Raises StaleLeaseError."""


class LeaseStore(Store):
    def take(
        self, name: str, node: str, instance: str, seconds: float, *, former: LeaseRecord | None
    ) -> HeldLease | None:
        """Take the lease if it is as `former` still, or if a node of the same name has it; else None. `former`: as it
        was found, and the caller knows that it is over; None: there was none.

        Waits for the transactions in which the former holder writes now.
        """
        now = self._db.now_ms()
        row = self._db.execute(
            f"INSERT INTO lease (name, node, instance, epoch, since, until)"  # noqa: S608 - an expression of the engine
            f" VALUES (:name, :node, :instance, 1, {now}, {now} + :ms)"
            " ON CONFLICT (name) DO UPDATE SET node = excluded.node, instance = excluded.instance,"
            " epoch = lease.epoch + 1, since = excluded.since, until = excluded.until"
            " WHERE (lease.epoch = :epoch AND lease.until = :until) OR lease.node = excluded.node RETURNING epoch",
            {
                "name": name,
                "node": node,
                "instance": instance,
                "ms": round(seconds * 1000),
                "epoch": -1 if former is None else former.epoch,
                "until": 0 if former is None else former.until,
            },
        ).one()
        return None if row is None else HeldLease(name, node, int(row["epoch"]))

    def renew(self, held: HeldLease, seconds: float) -> bool:
        """Have the lease last for `seconds` from now on; False when another node has it."""
        row = self._db.execute(
            f"UPDATE lease SET until = {self._db.now_ms()} + :ms WHERE {_IS_HELD} RETURNING epoch",  # noqa: S608 - as above
            {"name": held.name, "node": held.node, "epoch": held.epoch, "ms": round(seconds * 1000)},
        ).one()
        return row is not None

    def give_back(self, held: HeldLease) -> None:
        """Let anybody take the lease at once. Its epoch is kept."""
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
        row = self._db.execute(
            f"SELECT name, node, instance, epoch, since, until, until - {self._db.now_ms()} AS left_ms FROM lease"  # noqa: S608
            " WHERE name = :name",
            {"name": name},
        ).one()
        if row is None:
            return None
        columns = ("name", "node", "instance", "epoch", "since", "until")
        return LeaseRecord(
            **{column: row[column] for column in columns},
            seconds_left=row["left_ms"] / 1000,
        )


_IS_HELD = "name = :name AND node = :node AND epoch = :epoch"
