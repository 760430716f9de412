"""The objects of the public LwM2M registry (OMA SpecWorks; the file NOTICE names the source and its licence).

`lwm2m-objects.json` has the objects of the OMA and of IPSO by number: names, operations, types and units.
"""

from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from broker.device_management.models import TYPES, camel_case
from broker.device_management.objects import ObjectModel, Resource

_FILE: Final = "lwm2m-objects.json"


class _Item(msgspec.Struct, frozen=True):
    name: str
    operations: str
    multiple: bool
    type: str
    unit: str = ""


class _Object(msgspec.Struct, frozen=True):
    name: str
    resources: dict[str, _Item]


@cache
def shipped_models() -> tuple[ObjectModel, ...]:
    """The objects of the registry, in the order of their numbers."""
    text = files("broker.device_management").joinpath(_FILE).read_bytes()
    objects = msgspec.json.decode(text, type=dict[str, _Object])
    return tuple(
        ObjectModel(int(number), camel_case(one.name), _resources(one), is_shipped=True)
        for number, one in sorted(objects.items(), key=lambda item: int(item[0]))
    )


def _resources(described: _Object) -> dict[int, Resource]:
    found: dict[int, Resource] = {}
    names: set[str] = set()
    for number, item in described.resources.items():
        name = camel_case(item.name)
        name = f"{name}{number}" if name in names else name
        names.add(name)
        found[int(number)] = Resource(name, item.operations, TYPES[item.type.lower()], item.multiple, unit=item.unit)
    return found


@cache
def _units() -> dict[tuple[int, int], str]:
    return {(model.number, number): one.unit for model in shipped_models() for number, one in model.resources.items()}


def unit_of(object_: int, resource: int) -> str:
    """The unit of a resource; empty when it has none."""
    return _units().get((object_, resource), "")
