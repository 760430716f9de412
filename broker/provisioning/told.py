"""Facts of a provision file, as another node gets them with PROVISIONED (broker/cluster/kinds.py)."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from broker.cluster.kinds import FACTS
from broker.facts import DeviceTypeChanged, Fact

#: By their names. The others are of open topics, which several nodes do not have.
_KINDS: Final[tuple[type[Fact], ...]] = (*FACTS, DeviceTypeChanged)
_TYPES: Final = {kind.__name__: kind for kind in _KINDS}


def encode_facts(facts: Sequence[Fact]) -> tuple[tuple[str, bytes], ...]:
    named = ((type(fact).__name__, fact) for fact in facts)
    return tuple((name, msgspec.msgpack.encode(fact)) for name, fact in named if name in _TYPES)


def decode_facts(facts: Sequence[tuple[str, bytes]]) -> Iterator[Fact]:
    for name, content in facts:
        yield msgspec.msgpack.decode(content, type=_TYPES[name])
