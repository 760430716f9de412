"""Each statistic has one metric, and its name follows Prometheus's conventions."""

import re

import pytest

from broker.cluster.leases import LeaseName, NodeStatus
from broker.services import Services
from protocols.coap.lwm2m.server import Lwm2mStatistics
from protocols.coap.statistics import DtlsStatistics, EndpointStatistics
from protocols.metrics.collecting import statistics_members
from protocols.metrics.table import BROKER, DAEMON, LISTENERS, Metric
from protocols.operation.interpreter import LoopStatistics
from storage.damage import DamageStatistics
from storage.engines.postgresql_contact import ContactStatistics

#: Counters of each listener, as `protocols/listening.py` registers them.
COUNTED = {
    "coap": EndpointStatistics,
    "coaps": EndpointStatistics,
    "coaps handshakes": DtlsStatistics,
    "lwm2m": Lwm2mStatistics,
    "lwm2m sessions": EndpointStatistics,
    "lwm2m handshakes": DtlsStatistics,
}
ALL = [
    (f"{part}: {statistic}", metric)
    for part, metrics in (*BROKER.items(), *DAEMON.items(), *((name, part) for name, (_, part) in LISTENERS.items()))
    for statistic, metric in metrics.items()
]


async def test_each_statistic_of_the_broker_has_a_metric(services: Services) -> None:
    found = {name: set(statistics_members(statistics)) for name, statistics in services.core.life.statistics().items()}
    assert found == {name: set(part) for name, part in BROKER.items()}


def test_each_counter_of_a_listener_has_a_metric() -> None:
    assert {name: set(kind.__struct_fields__) for name, kind in COUNTED.items()} == {
        name: set(part) for name, (_, part) in LISTENERS.items()
    }


def test_each_statistic_of_the_daemon_has_a_metric() -> None:
    assert {name: set(part) for name, part in DAEMON.items()} == {
        "loop": set(LoopStatistics.__struct_fields__),
        "damage": set(DamageStatistics.__struct_fields__),
        "database": set(ContactStatistics.__struct_fields__),
        "leases": {name.value for name in LeaseName},
        "node": set(NodeStatus.__struct_fields__) - {"node"},  # a label of `store_info`
    }


def test_names_follow_the_conventions() -> None:
    for statistic, metric in ALL:
        assert re.fullmatch(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*", metric.name), statistic
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_info")), statistic
        assert not re.search(r"_(?:ms|days|minutes|mib|kib)(?:_|$)", metric.name), statistic
        if "bytes" in statistic:
            assert metric.name.endswith("_bytes"), statistic
        assert metric.help.endswith("."), statistic


def test_statistics_share_a_metric_only_when_labels_tell_them_apart() -> None:
    by_name: dict[str, list[Metric]] = {}
    for part in (*BROKER.values(), *DAEMON.values(), *{id(part): part for _, part in LISTENERS.values()}.values()):
        for metric in part.values():
            by_name.setdefault(metric.name, []).append(metric)
    for name, metrics in by_name.items():
        assert len({metric.is_counter for metric in metrics}) == 1, name
        assert len({metric.help for metric in metrics}) == 1, name
        assert len({frozenset(metric.labels) for metric in metrics}) == 1, name
        assert len({frozenset(metric.labels.items()) for metric in metrics}) == len(metrics), name


@pytest.mark.parametrize(("name", "listener"), [("coaps", "coaps"), ("lwm2m sessions", "lwm2m_dtls")])
def test_counters_of_listeners_name_the_listener_of_the_ready_line(name: str, listener: str) -> None:
    assert LISTENERS[name][0] == listener
