"""/operator: how the service is, for its operator at the console (reference 27.21)."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from broker.cluster.apart import APART
from broker.cluster.leases import LeaseName, NodeStatus
from broker.cluster.reports import NodeSeen
from broker.connectors.service import Connectors
from broker.core import Core
from broker.operating.overview import Overview
from broker.operating.room import OperatingRoom
from broker.trace.refusals import Refused
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import ONLY_OPERATORS
from protocols.http.schema import Amount, Data, Shape, Timestamp, TypeId, about, one_of, time_ms
from storage.records import AuditFilter, AuditRecord

_ENTRIES_MAX: Final = 10_000
_ENTRIES: Final = 1_000
_DIAGNOSED_ENTRIES: Final = 500
_FOREVER_MS: Final = 2**62
_Counts = Annotated[dict[str, Any], about("By name; as `trunkline statistics` prints them", additionalProperties=True)]

OPERATOR: Final = Chapter(
    "Operator",
    "How this service is, and what waits for a decision: what the page `/operator` shows. Only for the users that the "
    "setting `console.operators` names, with a token of the console; every other caller gets 403.",
)


class _Listener(Shape):
    name: str
    address: str
    problem: Annotated[str, about("Why it does not listen; empty when it does")]
    answers: Annotated[dict[str, int], about("Of HTTP, by status, since the start")]


class _Consumer(Shape):
    name: Annotated[str, about("Who reads the log")]
    position: Amount
    behind: Annotated[Amount, about("Rows of the log that it has not read yet")]


class _RoomPart(Shape):
    name: Annotated[str, about("messages, index, minute rollups, hour rollups, day rollups, free pages, audit, …")]
    bytes: Amount
    bytes_a_day: Annotated[Amount, about("What comes; 0 where that is not known")]


class _Room(Shape):
    store_bytes: Amount
    available_bytes: Amount
    bytes_a_day: Annotated[int, about("What comes, also what is deleted later; null while the log is too young")] | None
    retention_days: Annotated[Amount, about("0 keeps everything")]
    full_on: (
        Annotated[int, time_ms("When the disk is full, as the store grew in the last week and retention deletes")]
        | None
    )
    parts: Annotated[list[_RoomPart], about("What takes the room; large parts of SQLite are estimates")]
    sentence: Annotated[str, about("The same in a sentence, with what to do")]


class _FailingConnector(Shape):
    dtid: TypeId
    unique_name: str
    problem: Annotated[str, about("What failed last, in a sentence")]
    last_on: Annotated[int, time_ms("When; null where the plug-in cannot be used")] | None


class _ServingNode(Shape):
    name: str
    epoch: Annotated[Amount, about("Each start of the node and each burial raises it")]
    version: str
    since: Annotated[int, time_ms("When it joined")]
    heard_seconds: Annotated[float, about("How long ago it had renewed its lease when this node looked last")]
    lease_seconds: Annotated[float, about("A node that is not heard of for so long is given up; it renews four times")]
    is_draining: Annotated[bool, about("It moves its connections to the others, and ends")]
    connections: Annotated[Amount, about("Persistent connections of devices")]
    behind_rows: Annotated[Amount, about("Messages and Actions of the others that it has not published yet")]
    behind_changes: Annotated[
        Amount, about("Changes of the others, such as a new permission, that it does not know yet")
    ]
    latency_seconds: Annotated[float, about("How long its latest renewal took: one commit of the database")]
    leases: Annotated[list[str], about("The work that it does for all nodes (reference 27.25)")]


class _Node(Shape):
    name: Annotated[str, about("Of this machine: `cluster.node`")]
    lease_epoch: Annotated[Amount, about("Each take-over raises it")]
    lease_left_seconds: Annotated[float, about("How long the lease lasts that is not renewed")]
    latency_seconds: Annotated[
        float, about("How long the latest renewal of the lease took: one commit of the database")
    ]
    standbys: Annotated[list[str], about("Names of the nodes that stand by")]
    oldest_snapshot_seconds: Annotated[
        float, about("For how long the oldest transaction of the database has been open, also one of others")
    ]
    nodes: Annotated[list[_ServingNode], about("The nodes that serve together; none where one serves")]
    free_leases: Annotated[list[str], about("Work for all nodes that none of them does now")]
    apart: Annotated[list[str], about("What each of several nodes has for itself, in sentences")]


class OperatorsOverview(Shape):
    example = {
        "version": "0.1.0",
        "now": samples.TS,
        "startedOn": samples.TS,
        "problem": "",
        "listeners": [{"name": "http", "address": "127.0.0.1:8080", "problem": "", "answers": {"200": 12}}],
        "consumers": [{"name": "rules", "position": 41, "behind": 1}],
        "room": {
            "storeBytes": 4_096,
            "availableBytes": 1_000_000_000,
            "bytesADay": None,
            "retentionDays": 0,
            "fullOn": None,
            "parts": [{"name": "messages", "bytes": 2_048, "bytesADay": 0}],
            "sentence": "954 MiB are free; the log is too young for a forecast",
        },
        "engine": "postgresql",
        "node": {
            "name": "a",
            "leaseEpoch": 3,
            "leaseLeftSeconds": 7.2,
            "latencySeconds": 0.004,
            "standbys": [],
            "oldestSnapshotSeconds": 0.2,
            "nodes": [
                {
                    "name": "a",
                    "epoch": 3,
                    "version": "0.1.0",
                    "since": samples.TS,
                    "heardSeconds": 0.8,
                    "leaseSeconds": 8,
                    "isDraining": False,
                    "connections": 120,
                    "behindRows": 0,
                    "behindChanges": 0,
                    "latencySeconds": 0.004,
                    "leases": ["folds", "rules"],
                }
            ],
            "freeLeases": [],
            "apart": ["Refused at the start: mqtt.topics = open."],
        },
        "connectors": [],
        "statistics": {"ingest": {"messages": 42}},
    }

    version: str
    now: Timestamp
    started_on: Timestamp
    problem: Annotated[str, about("Why the service is not ready; empty when it is")]
    listeners: list[_Listener]
    consumers: list[_Consumer]
    room: _Room
    engine: Annotated[str, one_of(("sqlite", "postgresql"))]
    node: Annotated[_Node, about("Over PostgreSQL: the node that serves; null over SQLite")] | None
    connectors: Annotated[list[_FailingConnector], about("Cloud connectors that fail, of every organization")]
    statistics: _Counts


class _Refused(Shape):
    example = {
        "event": "http_credentials_refused",
        "listener": "http",
        "source": "192.0.2.7",
        "account": "",
        "reason": "no valid token",
        "firstOn": samples.TS,
        "lastOn": samples.TS,
        "times": 3,
    }

    event: str
    listener: str
    source: Annotated[str, about("An address, or the caller who has proven who it is")]
    account: Annotated[str, about("Which account or device it named")]
    reason: str
    first_on: Timestamp
    last_on: Timestamp
    times: Amount


class _Refusals(Shape):
    refusals: Annotated[list[_Refused], about("The latest 500 since the start, the latest first")]


class _Entry(Shape):
    example = {
        "at": samples.TS,
        "event": "sign_in",
        "actor": f"user {samples.UID}",
        "address": "192.0.2.7",
        "object": f"account {samples.UID}",
        "outcome": "done",
        "details": {},
    }

    at: Timestamp
    event: str
    actor: str
    address: str
    object: str
    outcome: Annotated[str, one_of(("done", "refused", "failed"))]
    details: Annotated[dict[str, Any], about("", additionalProperties=True)]


class _Entries(Shape):
    entries: Annotated[list[_Entry], about("The latest first")]


_Text = Annotated[str, Meta(max_length=128)]


class _Wanted(Shape):
    since: Annotated[int, Meta(ge=0, description="Milliseconds since the epoch")] = 0
    until: Annotated[int, Meta(ge=0, description="Milliseconds since the epoch")] = _FOREVER_MS
    actor: Annotated[_Text, about("An id, word and id, or the e-mail address of a user")] = ""
    object: Annotated[_Text, about("An id, word and id, or the e-mail address of a user")] = ""
    event: _Text = ""
    outcome: Literal["", "done", "refused", "failed"] = ""
    count: Annotated[int, Meta(ge=1, le=_ENTRIES_MAX, description="Number of latest entries")] = _ENTRIES


class _Check(Shape):
    check: str
    ok: bool
    text: Annotated[str, about("What was found, or what to do")]


class _Checks(Shape):
    example = {"checks": [{"check": "store", "ok": True, "text": "no damage"}]}

    checks: list[_Check]


class _Diagnostics(Shape, kw_only=True):
    example = {
        "createdOn": samples.TS,
        "platform": "Linux",
        "python": "3.11",
        "settings": {"storage": {"retention_days": 0, "url": "set"}},
        "overview": OperatorsOverview.example,
        "checks": _Checks.example["checks"],
        "refusals": [_Refused.example],
        "entries": [_Entry.example],
    }

    created_on: Timestamp
    platform: str
    python: str
    settings: Annotated[dict[str, Any], about("Numbers and switches; of texts whether they are set")]
    overview: OperatorsOverview
    checks: list[_Check]
    refusals: list[_Refused]
    entries: list[_Entry]


class OperatorCalls(RestCalls):
    chapter = OPERATOR

    def __init__(self, core: Core, operating: OperatingRoom, connectors: Connectors) -> None:
        self._core = core
        self._connectors = connectors
        self._operating = operating

    @RestCall("GET", "/operator/overview", tokens=USER, on=ONLY_OPERATORS, summary="How the service is")
    async def overview(self) -> Data[OperatorsOverview]:
        return Data(_overview(await self._operating.overview(), self._failing()))

    def _failing(self) -> list[_FailingConnector]:
        found = []
        for type_ in self._connectors.types():
            standing = self._connectors.standing(type_)
            if standing.sentence is not None:
                last_on = standing.problems[0].last_on if standing.problems else None
                found.append(_FailingConnector(type_.id, type_.record.unique_name, standing.sentence, last_on))
        return found

    @RestCall(
        "GET",
        "/operator/refusals",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="What was refused, and from where",
    )
    async def refusals(self) -> Data[_Refusals]:
        return Data(_Refusals([_refused(one) for one in self._operating.core.refusals.tally.latest()]))

    @RestCall("GET", "/operator/audit", tokens=USER, on=ONLY_OPERATORS, summary="The audit log")
    async def audit(self, query: _Wanted) -> Data[_Entries]:
        wanted = AuditFilter(
            query.since, query.until, query.count, query.actor, query.event, query.object, query.outcome
        )
        return Data(_Entries([_entry(one) for one in reversed(await self._operating.core.audit.find(wanted))]))

    @RestCall(
        "GET",
        "/operator/doctor",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="What `trunkline doctor` finds",
        about="It looks at the store for at most 10 s. The result is kept for half a minute.",
    )
    async def doctor(self) -> Data[_Checks]:
        return Data(_Checks([_Check(*one) for one in await _checks(self._operating)]))

    @RestCall(
        "GET",
        "/operator/diagnostics",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="All of it in one file, without secrets",
        about="For a report of a problem. It has addresses of peers, ids and e-mail addresses; no message, token, "
        "password or key.",
    )
    async def diagnostics(self) -> Data[_Diagnostics]:
        latest = AuditFilter(0, _FOREVER_MS, _DIAGNOSED_ENTRIES)
        return Data(
            _Diagnostics(
                created_on=self._core.clock.now_ms(),
                platform=platform.platform(),
                python=platform.python_version(),
                settings=masked_settings(msgspec.to_builtins(self._core.settings, enc_hook=str)),
                overview=_overview(await self._operating.overview(), self._failing()),
                checks=[_Check(*one) for one in await _checks(self._operating)],
                refusals=[_refused(one) for one in self._operating.core.refusals.tally.latest()],
                entries=[_entry(one) for one in reversed(await self._operating.core.audit.find(latest))],
            )
        )


async def _checks(operating: OperatingRoom) -> list[tuple[str, bool, str]]:
    return [(one.check, one.ok, one.text) for one in await operating.the_machine().examine()]


def masked_settings(value: Any) -> Any:
    """Settings as they may be shown to others: any text could be a secret or have one in it."""
    if isinstance(value, dict):
        return {name: masked_settings(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return f"{len(value)} set"
    if isinstance(value, str):
        return "set" if value else ""
    return value


def _overview(found: Overview, connectors: list[_FailingConnector]) -> OperatorsOverview:
    room = found.room
    return OperatorsOverview(
        version=found.version,
        now=found.now,
        started_on=found.started_on,
        problem=found.problem,
        listeners=[_Listener(one.name, one.address, one.problem, dict(one.answers)) for one in found.listeners],
        consumers=[_Consumer(one.name, one.position, one.behind) for one in found.consumers],
        room=_Room(
            room.store,
            room.available,
            room.grows,
            found.retention_days,
            found.full_on,
            [_RoomPart(one.name, one.size, one.grows) for one in room.parts],
            room.sentence,
        ),
        engine=found.engine,
        node=None if found.node is None else _node(found.node, found.nodes),
        connectors=connectors,
        statistics=msgspec.to_builtins(dict(found.statistics), str_keys=True, enc_hook=str),
    )


def _node(found: NodeStatus, nodes: Sequence[NodeSeen]) -> _Node:
    held = {name for one in nodes for name in one.leases}
    return _Node(
        name=found.node,
        lease_epoch=found.lease_epoch,
        lease_left_seconds=round(found.lease_left_seconds, 1),
        latency_seconds=round(found.latency_seconds, 4),
        standbys=list(found.standbys),
        oldest_snapshot_seconds=found.oldest_snapshot_seconds,
        nodes=[_serving(one) for one in nodes],
        free_leases=[one.value for one in LeaseName if one.value not in held] if nodes else [],
        apart=list(APART) if nodes else [],
    )


def _serving(one: NodeSeen) -> _ServingNode:
    report = one.report
    return _ServingNode(
        name=one.node,
        epoch=one.epoch,
        version=one.version,
        since=one.since,
        heard_seconds=one.heard_seconds,
        lease_seconds=report.lease_seconds,
        is_draining=report.is_draining,
        connections=report.connections,
        behind_rows=report.behind_rows,
        behind_changes=report.behind_facts,
        latency_seconds=round(report.latency_seconds, 4),
        leases=list(one.leases),
    )


def _refused(one: Refused) -> _Refused:
    return _Refused(**asdict(one))


def _entry(one: AuditRecord) -> _Entry:
    return _Entry(one.at_ms, one.event, one.actor, one.address, one.object, one.outcome, dict(one.details))
