"""The page with the objects of the LwM2M registry: their names as device properties, types and units."""

from collections.abc import Iterator, Mapping
from functools import cache
from operator import itemgetter

from broker.device_management.objects import ObjectMap, Resource
from broker.device_management.registry import shipped_models, unit_of
from protocols.http.docs.guides import REFERENCE, Guide

_ABOUT = """# LWM2M objects

Devices report these objects over LWM2M, and a resource is a device property:
`deviceProperties.temperature.0.sensorValue` is `/3303/0/5700`. Objects 3 to 7 have no instance in their names. Each
line has number, name, operations, type and unit of a resource. Source: the LwM2M registry of OMA SpecWorks (BSD
3-Clause).
"""


@cache
def objects_guide() -> Guide:
    """The page, the same at every address."""
    groups = sorted(ObjectMap(shipped_models()).groups(), key=itemgetter(0))
    text = _ABOUT + "\n".join(line for group in groups for line in _lines(*group))
    return Guide("lwm2m-objects", REFERENCE, "lwm2m-objects", text, ())


def _lines(object_: int, name: str, resources: Mapping[int, Resource]) -> Iterator[str]:
    yield f"\n## {object_} {name}\n"
    yield "```"
    for number, one in resources.items():
        words = (str(number), one.name, one.operations, one.type.value, one.unit or unit_of(object_, number))
        yield " ".join(filter(None, words))
    yield "```"
