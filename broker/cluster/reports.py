"""Reports of several nodes: each writes its own when it renews its lease, so that any of them can show all."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from storage.leases import NODE, LeaseRecord


class LogHeads(msgspec.Struct, frozen=True):
    """The latest position of the log and the number of the latest fact, as the database has given them."""

    position: int
    fact: int


class NodeReport(msgspec.Struct, frozen=True):
    """A node at its latest renewal. `behind`: stored by others, and not published by this node yet."""

    lease_seconds: float = 0.0
    is_draining: bool = False
    #: The leases of workers that it may take; None: all.
    works: tuple[str, ...] | None = None
    #: Persistent connections of devices.
    connections: int = 0
    behind_rows: int = 0
    behind_facts: int = 0
    #: Of the renewal before: one commit of the database.
    latency_seconds: float = 0.0


class NodeSeen(msgspec.Struct, frozen=True):
    """One of the nodes that serve. `leases`: the names of what it does for all. `heard_seconds`: how long ago it has
    renewed its lease. `since`: when it joined, in milliseconds."""

    node: str
    epoch: int
    version: str
    since: int
    heard_seconds: float
    leases: tuple[str, ...]
    report: NodeReport


_REPORTS: Final = msgspec.json.Decoder(NodeReport)
#: Makes the report of a node as it is now.
Report = Callable[[LogHeads], NodeReport]


def report_of(record: LeaseRecord) -> NodeReport:
    try:
        return _REPORTS.decode(record.report or "{}")
    except msgspec.DecodeError:  # of another version
        return NodeReport()


def nodes_seen(nodes: Sequence[LeaseRecord], workers: Sequence[LeaseRecord]) -> tuple[NodeSeen, ...]:
    """The nodes with the leases of workers that each holds."""
    found = []
    for one in nodes:
        report = report_of(one)
        heard = max(0.0, report.lease_seconds - one.seconds_left) if report.lease_seconds else 0.0
        held = tuple(worker.name for worker in workers if worker.node == one.node)
        found.append(
            NodeSeen(
                one.name.removeprefix(NODE), one.epoch, one.version or "", one.since, round(heard, 1), held, report
            )
        )
    return tuple(found)
