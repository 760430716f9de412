"""Types of resources, from the public registry (broker/device_management/registry.py).

TLV and text do not say the type of a value. In TLV, a resource whose type is not known keeps its bytes.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Final

from broker.device_management.objects import ObjectMap
from broker.device_management.registry import shipped_models
from broker.device_management.sessions import ResourcePath


class Kind(Enum):
    """The members have the names of ValueType."""

    STRING = "text"
    INTEGER = "a whole number"
    UNSIGNED_INTEGER = "a whole number from 0 on"
    FLOAT = "a number"
    BOOLEAN = "a Boolean"
    OPAQUE = "bytes"
    TIME = "a time"


#: Returns the type of a resource; None if unknown. The path has an object, an instance and a resource at least.
KindOf = Callable[[ResourcePath], Kind | None]

_IPSO: Final = range(3200, 3442)
#: From here on, a resource has the same meaning in every object of IPSO.
_REUSABLE: Final = 5500


@cache
def _table() -> tuple[Mapping[tuple[int, int], Kind], Mapping[int, Kind], frozenset[tuple[int, int]]]:
    """Types by object and resource, types by reusable resource, and the resources that have several instances."""
    kinds: dict[tuple[int, int], Kind] = {}
    reusable: dict[int, Kind] = {}
    multiple = set()
    described = [(model.number, model.resources) for model in shipped_models()]
    described += [(object_, resources) for object_, _, resources in ObjectMap().groups()]  # what 1.0 had besides
    for object_, resources in described:
        for number, resource in resources.items():
            kind = Kind.__members__.get(resource.type.name)
            if kind is None:  # it is executed
                continue
            kinds[object_, number] = kind
            if object_ in _IPSO and number >= _REUSABLE:
                reusable[number] = kind
            if resource.is_multiple:
                multiple.add((object_, number))
    return kinds, reusable, frozenset(multiple)


def kind_of(path: ResourcePath) -> Kind | None:
    """A `KindOf` of the registry."""
    object_, _, resource, *_ = path
    kinds, reusable, _ = _table()
    found = kinds.get((object_, resource))
    return reusable.get(resource) if found is None and object_ in _IPSO else found


def kind_of_either(described: KindOf) -> KindOf:
    """A `KindOf` of another source, such as model files, and of the registry for what that does not have."""
    return lambda path: described(path) or kind_of(path)


def is_multiple(path: ResourcePath) -> bool:
    """Whether the resource is known to have several instances."""
    return (path[0], path[2]) in _table()[2]
