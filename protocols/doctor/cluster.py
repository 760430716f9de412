"""Which daemons serve the database."""

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Final

from broker.cluster.apart import APART
from broker.cluster.keeper import DAEMON
from broker.cluster.leases import LeaseName
from broker.cluster.membership import SEVERAL
from broker.cluster.reports import NodeSeen, nodes_seen
from protocols.doctor.patient import CheckResult, Patient
from storage.engines import engine_of
from storage.leases import LeaseRecord, LeaseStore
from storage.sql import StoreError

#: A node that is behind by more has not the time to follow the others.
BEHIND_ROWS: Final = 10_000
#: One commit of the database.
SLOW_SECONDS: Final = 0.25
#: Of the lease of a node that has not said how long it is.
_LEASE_SECONDS: Final = 60.0


def look_at_cluster(patient: Patient) -> Iterator[CheckResult]:
    settings = patient.settings
    if not settings.storage.is_postgresql:
        return
    name, nodes = settings.cluster.name, tuple[NodeSeen, ...]()
    try:
        with engine_of(settings).snapshot() as snapshot:
            leases = LeaseStore(snapshot.rows)
            holder = leases.find(DAEMON) if snapshot.has("lease", "node") else None
            if holder is not None and holder.node == SEVERAL and snapshot.has("lease", "report"):
                nodes = nodes_seen(leases.nodes(), leases.of_workers([one.value for one in LeaseName]))
    except StoreError as error:
        yield CheckResult("cluster", False, str(error))
        return
    if nodes:
        yield from of_several(nodes, name)
    elif settings.cluster.nodes == "several" and (holder is None or holder.seconds_left <= 0):
        yield CheckResult("cluster", True, "no node serves")
    else:
        yield CheckResult("cluster", True, _of_one(holder, name, stands_by=patient.standing_by is not None))


def _of_one(holder: LeaseRecord | None, name: str, *, stands_by: bool) -> str:
    if holder is None:
        return "no daemon has served this database yet"
    if holder.is_given_back or holder.seconds_left <= 0:
        return f"no daemon serves: node {holder.node} did so last (epoch {holder.epoch})"
    if holder.node == name:
        return f"this node, {name}, serves (epoch {holder.epoch})"
    does = "stands by" if stands_by else "does not run"
    return f"node {holder.node} serves (epoch {holder.epoch}); this node, {name}, {does}"


def of_several(nodes: Sequence[NodeSeen], name: str) -> Iterator[CheckResult]:
    """A line for each node, and one for each part that is not as it should be. `name`: of this node."""
    for one in nodes:
        problem = _problem(one)
        yield CheckResult("cluster", not problem or one.report.is_draining, f"{_about(one, name)}{problem}")
    living = [one for one in nodes if not _is_silent(one)]
    if all(one.node != name for one in living):
        yield CheckResult("cluster", True, f"this node, {name}, does not run")
    if len(living) == 1:
        yield CheckResult("cluster", False, f"node {living[0].node} serves alone: start another one, which could go on")
    if len(versions := sorted({one.version for one in living})) > 1:
        yield CheckResult("cluster", False, f"nodes of several versions serve: {', '.join(versions)}")
    held = {lease for one in living for lease in one.leases}
    if free := [one.value for one in LeaseName if one.value not in held]:
        yield CheckResult(
            "cluster",
            False,
            f"no node does this for all: {', '.join(free)}. One takes it within seconds, unless cluster.workers of each"
            " leaves it out",
        )
    yield CheckResult("cluster", True, f"of each node alone: {' '.join(APART)}")


def _is_silent(one: NodeSeen) -> bool:
    return one.heard_seconds > (one.report.lease_seconds or _LEASE_SECONDS)


def _about(one: NodeSeen, name: str) -> str:
    report, since = one.report, dt.datetime.fromtimestamp(one.since / 1000, dt.UTC)
    version, this = one.version.partition(" ")[0], " (this one)" if one.node == name else ""
    return (
        f"node {one.node}{this}, epoch {one.epoch}, Trunkline {version}, since {since:%Y-%m-%d %H:%M} UTC, heard"
        f" {one.heard_seconds:.1f} s ago; does for all: {', '.join(one.leases) or '-'}; {report.connections:,}"
        f" connections of devices, {report.behind_rows:,} messages and {report.behind_facts:,} changes behind, a commit"
        f" takes {report.latency_seconds * 1000:,.1f} ms"
    )


def _problem(one: NodeSeen) -> str:
    report = one.report
    if _is_silent(one):
        return ". It is silent, and the others take its place: look at that machine"
    if report.behind_rows > BEHIND_ROWS or report.behind_facts > BEHIND_ROWS:
        return ". It does not follow the others: its processor or its way to the database is too slow"
    if report.latency_seconds > SLOW_SECONDS:
        return (
            ". Each acknowledgement waits for that: look at the disk and the load of the server, and at the way to it"
        )
    return ". It drains: it moves its connections to the others, and ends" if report.is_draining else ""
