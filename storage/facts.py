"""The fact log: the changes that each of several nodes hears of, written in the transaction of the change.

Whoever writes facts holds the lock of the works until the commit, so the numbers of committed facts have no gaps and
grow in the order of the commits. Facts that end something move the sequence `fence` under the lock of the log: a commit
of rows that does not know it there stores nothing (storage/engines/postgresql.py).
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from storage.records import ActionRow
from storage.sql import Store, StoreError

#: Facts of one reading.
_MOST: Final = 5_000
#: Rows of four kinds, each after the number of its kind, as a join of them takes twice as long.
_TIP: Final = """SELECT 0 AS part, last_value AS number, (SELECT coalesce(max(head), 0) FROM batch) AS head,
  NULL::bigint AS source, NULL::bigint AS ts, NULL::bigint AS cts, NULL::bigint AS mv, NULL AS text, NULL AS node,
  NULL::bytea AS value, NULL::bytea AS content FROM fence
UNION ALL (SELECT 1, number, is_fencing, NULL, NULL, NULL, NULL, kind, node, value, content
  FROM fact WHERE number > :number ORDER BY number LIMIT :most)
UNION ALL (SELECT 2, position, device, source, ts, cts, mv, data, NULL, NULL, NULL
  FROM action WHERE position > :position ORDER BY position LIMIT :limit)
UNION ALL (SELECT DISTINCT 3, head, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL, NULL,
  NULL::bytea, NULL::bytea FROM batch WHERE node >= :first AND node < :last AND head > :behind)"""
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


class Tip(msgspec.Struct, frozen=True):
    """The latest of the store. `head`: the highest position that a commit has given; `own_heads`: of these,
    the ones of commits of this process, the lowest first; `actions`: up to a number, in order."""

    facts: FactPage
    head: int
    own_heads: Sequence[int]
    actions: Sequence[ActionRow]


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
            "SELECT s.last_value AS fence, f.number, f.is_fencing, f.kind, f.node, f.value, f.content FROM fence AS s"
            " LEFT JOIN (SELECT * FROM fact WHERE number > :number ORDER BY number LIMIT :most) AS f ON TRUE"
            " ORDER BY f.number",
            {"number": number, "most": _MOST},
        )
        found = list(rows.tuples())
        facts = [_fact(*row[1:]) for row in found if row[1] is not None]
        return _page(number, facts, found[0][0])

    def tip(self, number: int, *, behind: int, instance: str, own_behind: int, limit: int) -> Tip:
        """The facts after a number; the Actions behind a position, at most `limit`; and the heads behind another one
        that commits of this process have given. In one statement: an Action waits for this on its way to a device."""
        named = {**_names_of(instance), "number": number, "most": _MOST, "position": behind, "limit": limit}
        parts: tuple[list[Sequence[Any]], ...] = ([], [], [], [])
        for part, *row in self._db.execute(_TIP, {**named, "behind": own_behind}).tuples():
            parts[part].append(row)
        for rows in parts:
            rows.sort(key=itemgetter(0))
        fence, head, *_ = parts[0][0]
        facts = [_fact(*row[:2], *row[6:]) for row in parts[1]]
        actions = [ActionRow(*row[:7]) for row in parts[2]]
        return Tip(_page(number, facts, fence), head, [row[0] for row in parts[3]], actions)

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
            {**_names_of(instance), "behind": behind},
        )
        found = [(int(row["head"]), row["own"]) for row in rows]
        return found[0][0], [int(own) for _, own in found if own is not None]


def _fact(number: int, is_fencing: int, kind: str, node: str, value: bytes, content: bytes) -> FactRecord:
    return FactRecord(number, bool(is_fencing), kind, bytes(value), bytes(content), node)


def _page(number: int, found: Sequence[FactRecord], fence: int) -> FactPage:
    """Behind this number. Raises FactsLostError."""
    if found and found[0].number != number + 1:
        raise FactsLostError("this node has not heard the others for too long")
    return FactPage(tuple(found), fence, is_all=len(found) < _MOST)


def _names_of(instance: str) -> dict[str, str]:
    """Between which the names of the connections of a process are."""
    return {"first": f"{instance}.", "last": f"{instance}/"}  # '/' follows '.' in ASCII
