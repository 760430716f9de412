"""What resources hold: the types of the OMA registry for the objects 0 to 7 and for IPSO's reusable resources.

TLV and text do not say the type of a value. A resource that is not here keeps its text, number or bytes.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from broker.device_management.sessions import ResourcePath


class Kind(Enum):
    STRING = "text"
    INTEGER = "a whole number"
    FLOAT = "a number"
    BOOLEAN = "a Boolean"
    OPAQUE = "bytes"
    TIME = "a time"


#: What a resource holds; None when it is not known. The path has an object, an instance and a resource at least.
KindOf = Callable[[ResourcePath], Kind | None]

_S, _I, _F, _B, _O, _T = Kind.STRING, Kind.INTEGER, Kind.FLOAT, Kind.BOOLEAN, Kind.OPAQUE, Kind.TIME


def _from_zero(*kinds: Kind | None) -> dict[int, Kind]:
    """By the number of the resource; None for a resource that is executed."""
    return {number: kind for number, kind in enumerate(kinds) if kind is not None}


_OBJECTS: Final[Mapping[int, Mapping[int, Kind]]] = {
    1: _from_zero(_I, _I, _I, _I, None, _I, _B, _S, None, None, _I, _S) | {23: _B},
    2: _from_zero(_I, _I, _I, _I),
    3: _from_zero(_S, _S, _S, _S, None, None, _I, _I, _I, _I, _I, _I, None, _T, _S, _S, _S, _S, _S, _S, _I, _I),
    4: _from_zero(_I, _I, _I, _I, _S, _S, _I, _S, _I, _I, _I, _I),
    5: _from_zero(_O, _S, None, _I, _B, _I, _S, _S, _I, _I),
    6: _from_zero(_F, _F, _F, _F, _O, _T, _F),
    7: _from_zero(_I, _I, _I, _I, _I, _I, None, None, _I),
}

#: Resources with several instances, which are always lists.
_MULTIPLE: Final = frozenset({(3, 6), (3, 7), (3, 8), (3, 11), (4, 1), (4, 4), (4, 5), (4, 7), (5, 8)})

#: A reusable resource has the same meaning in every object of IPSO (numbers 3200 to 3441).
_IPSO_OBJECTS: Final = range(3200, 3442)
_IPSO: Final[Mapping[int, Kind]] = {
    **dict.fromkeys((5500, 5520, 5532, 5533, 5534, 5547, 5548, 5850, 5903), _B),
    **dict.fromkeys((5501, 5541, 5543, 5544, 5546, 5551, 5821, 5851, 5852, 5854), _I),
    **dict.fromkeys((5600, 5601, 5602, 5603, 5604, 5700, 5702, 5703, 5704, 5705, 5805, 5820, 5900), _F),
    **dict.fromkeys((5514, 5515, 5517, 5527, 5545, 5549, 5701, 5706, 5750, 5751, 5853), _S),
    **dict.fromkeys((5518, 5506), _T),
    5522: _O,
}


def kind_of(path: ResourcePath) -> Kind | None:
    """A `KindOf` of this table."""
    object_, _, resource, *_ = path
    if object_ in _IPSO_OBJECTS:
        return _IPSO.get(resource)
    return _OBJECTS.get(object_, {}).get(resource)


def kind_of_either(described: KindOf) -> KindOf:
    """A `KindOf` of this table, and for what it does not have of another source, such as model files."""
    return lambda path: kind_of(path) or described(path)


def is_multiple(path: ResourcePath) -> bool:
    """Whether the resource is known to have several instances."""
    return (path[0], path[2]) in _MULTIPLE
