"""Which of several nodes does which of the works that one does for all: each has its share of the leases.

Nodes decide alone, by the same table: who has the fewest leases takes a free one, and who has two more than another one
gives one away. So a lease never goes to and fro between two nodes that both live.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from broker.cluster.reports import report_of
from storage.leases import LeaseRecord

#: Nodes by name, with the leases that each may take.
Candidates = Mapping[str, frozenset[str]]


def candidates_of(nodes: Sequence[LeaseRecord], names: Sequence[str]) -> Candidates:
    """The nodes that live, and do not leave."""
    reports = {one.node: report_of(one) for one in nodes if one.seconds_left > 0}
    return {
        node: frozenset(names if one.works is None else one.works)
        for node, one in reports.items()
        if not one.is_draining
    }


def takers(names: Sequence[str], holders: Mapping[str, str], nodes: Candidates) -> dict[str, str]:
    """For each lease that nobody has, the node that is to take it. `holders`: of the others, by name."""
    counts, found = Counter(holders.values()), dict[str, str]()
    for name in names:
        able = [node for node, works in nodes.items() if name in works]
        if name not in holders and able:
            found[name] = node = min(able, key=lambda one: (counts[one], one))
            counts[node] += 1
    return found


def to_give_away(node: str, names: Sequence[str], holders: Mapping[str, str], nodes: Candidates) -> list[str]:
    """The leases that this node has and another one is to have, of which it gives one."""
    counts = Counter(holders.values())
    mine = [name for name in reversed(names) if holders.get(name) == node]
    return [
        name
        for name in mine
        if name not in nodes.get(node, ())
        or any(name in works and counts[other] + 2 <= counts[node] for other, works in nodes.items())
    ]
