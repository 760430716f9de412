"""All checks, in the order in which they are shown."""

from collections.abc import Callable, Iterator
from typing import Final

from protocols.doctor.certificates import look_at_certificates
from protocols.doctor.cluster import look_at_cluster
from protocols.doctor.forwarding import look_at_edges, look_at_forwards
from protocols.doctor.machine import look_at_clock, look_at_descriptors, look_at_gnutls, look_at_ports, look_at_unit
from protocols.doctor.patient import CheckResult, Patient
from protocols.doctor.state import look_at_disk, look_at_state, look_at_store
from protocols.doctor.topic_devices import look_at_topic_devices

CHECKS: Final[dict[str, Callable[[Patient], Iterator[CheckResult]]]] = {
    "state": look_at_state,
    "store": look_at_store,
    "cluster": look_at_cluster,
    "disk": look_at_disk,
    "clock": look_at_clock,
    "port": look_at_ports,
    "certificate": look_at_certificates,
    "gnutls": look_at_gnutls,
    "descriptors": look_at_descriptors,
    "unit": look_at_unit,
    "topic devices": look_at_topic_devices,
    "forward": look_at_forwards,
    "edge": look_at_edges,
}


def examine(patient: Patient) -> Iterator[CheckResult]:
    for name, look in CHECKS.items():
        try:
            yield from look(patient)
        except Exception as error:  # noqa: BLE001 - one check that fails must not hide what the others find
            yield CheckResult(name, False, f"could not be checked: {type(error).__name__}: {error}")
