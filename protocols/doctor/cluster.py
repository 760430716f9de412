"""Which daemon serves the database."""

from collections.abc import Iterator

from broker.cluster.keeper import DAEMON
from protocols.doctor.patient import CheckResult, Patient
from storage.engines import engine_of
from storage.leases import LeaseStore
from storage.sql import StoreError


def look_at_cluster(patient: Patient) -> Iterator[CheckResult]:
    settings = patient.settings
    if not settings.storage.is_postgresql:
        return
    name = settings.cluster.name
    try:
        with engine_of(settings).snapshot() as snapshot:
            holder = LeaseStore(snapshot.rows).find(DAEMON) if snapshot.has("lease", "node") else None
    except StoreError as error:
        yield CheckResult("cluster", False, str(error))
        return
    if holder is None:
        text = "no daemon has served this database yet"
    elif holder.is_given_back or holder.seconds_left <= 0:
        text = f"no daemon serves: node {holder.node} did so last (epoch {holder.epoch})"
    elif holder.node == name:
        text = f"this node, {name}, serves (epoch {holder.epoch})"
    else:
        does = "does not run" if patient.standing_by is None else "stands by"
        text = f"node {holder.node} serves (epoch {holder.epoch}); this node, {name}, {does}"
    yield CheckResult("cluster", True, text)
