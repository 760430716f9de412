"""The fact log: the changes that each of several nodes hears of, written in the transaction of the change.

Whoever writes facts holds the lock of the works until the commit, so the numbers of committed facts have no gaps and
grow in the order of the commits. Facts that end something move the sequence `fence` under the lock of the log: a commit
of rows that does not know it there stores nothing (storage/engines/postgresql.py).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from storage.sql import Store, StoreError

#: Facts of one reading.
_MOST: Final = 5_000
#: Every living node has heard of facts of this age: one that has not heard anything for `cluster.lease_seconds` ends.
KEPT_SECONDS: Final = 600


class FactRecord(msgspec.Struct, frozen=True):
    """A row of `fact`. `value` and `content` are MessagePack."""

    number: int
    is_fencing: bool
    kind: str
    value: bytes
    content: bytes
    node: str


class FactPage(msgspec.Struct, frozen=True):
    """Facts in the order of their numbers, and the fence behind them: who has heard these may commit."""

    facts: tuple[FactRecord, ...]
    fence: int
    is_all: bool


class FactsLostError(StoreError):
    """Facts that this node has not heard are deleted: what it keeps in memory is old."""


class StoreBehindError(StoreError):
    """Another node has ended something that this one has not heard of. Nothing was stored: hear it, and try again."""

    def __init__(self, facts: Sequence[FactRecord] = ()) -> None:
        super().__init__("another node has told a change that comes first")
        self.facts = facts


class StoreOvertakenError(StoreError):
    """Another node has ended what the commit needed, such as the connection of a device. Nothing of it was stored."""


class FactStore(Store):
    def latest(self) -> tuple[int, int]:
        """The number of the latest fact, and the fence. Under the lock of the works."""
        row = self._db.execute(
            "SELECT last_value AS fence, (SELECT coalesce(max(number), 0) FROM fact) AS number FROM fence"
        ).one()
        assert row is not None, "a sequence has one row"  # noqa: S101 - as the engine makes it
        return int(row["number"]), int(row["fence"])

    def after(self, number: int) -> FactPage:
        """The facts after this number.

        Under the lock of the log or of the works nobody is about to commit a fact that moved the fence. Raises
        FactsLostError.
        """
        rows = self._db.execute(
            "SELECT s.last_value AS fence, f.number, f.is_fencing, f.kind, f.value, f.content, f.node FROM fence AS s"
            " LEFT JOIN (SELECT * FROM fact WHERE number > :number ORDER BY number LIMIT :most) AS f ON TRUE"
            " ORDER BY f.number",
            {"number": number, "most": _MOST},
        )
        found, fence = [], 0
        for row in rows:
            fence = int(row["fence"])
            if row["number"] is not None:
                found.append(
                    FactRecord(
                        int(row["number"]),
                        bool(row["is_fencing"]),
                        row["kind"],
                        bytes(row["value"]),
                        bytes(row["content"]),
                        row["node"],
                    )
                )
        if found and found[0].number != number + 1:
            raise FactsLostError("this node has not heard the others for too long")
        return FactPage(tuple(found), fence, is_all=len(found) < _MOST)

    def add(self, facts: Sequence[FactRecord]) -> None:
        columns = ("number", "is_fencing", "kind", "value", "content", "node")
        rows = [(one.number, int(one.is_fencing), one.kind, one.value, one.content, one.node) for one in facts]
        self._db.insert_many("fact", columns, rows)

    def forget_old(self) -> None:
        """Delete facts that every node has heard. The latest one stays: the next one follows it."""
        self._db.execute(
            f"DELETE FROM fact WHERE at < {self._db.now_ms()} - :kept AND number < (SELECT max(number) FROM fact)",  # noqa: S608
            {"kept": KEPT_SECONDS * 1000},
        )

    def heads(self, instance: str, behind: int) -> tuple[int, list[int]]:
        """The highest position that a commit has given; and the heads behind a position that commits of this process
        have given, the lowest first."""
        rows = self._db.execute(
            "SELECT a.head, o.head AS own FROM (SELECT coalesce(max(head), 0) AS head FROM batch) AS a LEFT JOIN"
            " (SELECT DISTINCT head FROM batch WHERE node >= :first AND node < :last AND head > :behind) AS o ON TRUE"
            " ORDER BY o.head",
            {"first": f"{instance}.", "last": f"{instance}/", "behind": behind},  # '/' follows '.' in ASCII
        )
        found = [(int(row["head"]), row["own"]) for row in rows]
        return found[0][0], [int(own) for _, own in found if own is not None]
