"""The doctor about several nodes: a line for each, and one for each part that is not as it should be."""

from msgspec.structs import replace

from broker.cluster.leases import LeaseName
from broker.cluster.reports import NodeReport, NodeSeen
from protocols.doctor.cluster import of_several
from protocols.doctor.patient import CheckResult

REPORT = NodeReport(8.0, connections=1_200, behind_rows=2, behind_facts=1, latency_seconds=0.0042)
ALL = tuple(one.value for one in LeaseName)
A = NodeSeen("a", 3, "1.0", 1_764_000_000_000, 0.8, ALL[:4], REPORT)
B = NodeSeen("b", 1, "1.0", 1_764_000_000_000, 1.9, ALL[4:], REPORT)


def problems(*nodes: NodeSeen, name: str = "a") -> list[str]:
    return [one.text for one in of_several(nodes, name) if not one.ok]


def test_nodes_that_are_well_have_a_line_each() -> None:
    first, second, apart = of_several((A, B), "a")
    assert first == CheckResult(
        "cluster",
        True,
        "node a (this one), epoch 3, Trunkline 1.0, since 2025-11-24 16:00 UTC, heard 0.8 s ago; does for all: folds,"
        " rules, subscriptions, mails; 1,200 connections of devices, 2 messages and 1 changes behind, a commit takes"
        " 4.2 ms",
    )
    assert second.text.startswith("node b, epoch 1, ")
    assert apart.text.startswith("of each node alone: ")
    assert all(one.ok for one in (first, second, apart))


def test_each_thing_that_can_go_wrong_is_told() -> None:
    (silent, alone, free) = problems(A, replace(B, heard_seconds=8.1))
    assert "It is silent" in silent
    assert alone.startswith("node a serves alone")
    assert free.startswith("no node does this for all: models, connectors, tasks, upkeep")
    (lags,) = problems(A, replace(B, report=replace(REPORT, behind_rows=10_001)))
    assert "It does not follow the others" in lags
    (deaf,) = problems(A, replace(B, report=replace(REPORT, behind_facts=10_001)))
    assert "It does not follow the others" in deaf
    (slow,) = problems(A, replace(B, report=replace(REPORT, latency_seconds=0.3)))
    assert "Each acknowledgement waits" in slow
    (versions,) = problems(A, replace(B, version="2.0"))
    assert versions == "nodes of several versions serve: 1.0, 2.0"


def test_a_node_that_drains_or_does_not_run_is_no_fault() -> None:
    drains = replace(B, report=replace(REPORT, is_draining=True))
    assert problems(A, drains) == []
    assert any(
        one.text.endswith("It drains: it moves its connections to the others, and ends")
        for one in of_several((A, drains), "a")
    )
    assert [one.text for one in of_several((A, B), "c") if "does not run" in one.text] == ["this node, c, does not run"]
