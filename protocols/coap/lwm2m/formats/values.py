"""Values of resources: from what a format can say to what a resource holds, and collecting them by path."""

import base64
import binascii
import math
from typing import Final, NamedTuple, cast

from broker.device_management.sessions import Reading, Readings, ResourcePath, ResourceValue
from protocols.coap.lwm2m.kinds import Kind, KindOf, is_multiple
from storage.keys import Milliseconds

#: One value, as a format gives it.
Scalar = str | int | float | bool | bytes

#: Most values that are read from one answer.
MAX_VALUES: Final = 2048
_MAX_NUMBER: Final = 65_535
_MILLISECONDS: Final = 1000
_ABSOLUTE_SECONDS: Final = 2**28
_LARGEST: Final = 2**64
_INTEGERS: Final = range(-(2**63), _LARGEST)
_MOST_SECONDS: Final = 2**63 // _MILLISECONDS
#: Of kinds that do not have all integers; a time fits in milliseconds.
_WITHIN: Final = {Kind.UNSIGNED_INTEGER: range(_LARGEST), Kind.TIME: range(-_MOST_SECONDS, _MOST_SECONDS)}
_DEPTH: Final = 4  # object, instance, resource, resource instance
_RESOURCE_DEPTH: Final = 3


class UnreadablePayload(ValueError):
    """A payload is not what its format says. The text completes the sentence "The answer …"."""


def path_text(path: ResourcePath) -> str:
    """`/3/0/9`."""
    return "/" + "/".join(map(str, path))


def parse_path(text: str) -> ResourcePath:
    """Numbers of a path, with or without slashes around them. Raises Unreadable."""
    numbers = text.strip("/").split("/") if text.strip("/") else []
    if len(numbers) > _DEPTH or not all(one.isascii() and one.isdecimal() and len(one) <= 5 for one in numbers):
        raise UnreadablePayload(f"names {text[:40]!r}, which is not a path")
    path = tuple(map(int, numbers))
    if any(number > _MAX_NUMBER for number in path):
        raise UnreadablePayload(f"names {text[:40]!r}, which is not a path")
    return path


def is_within(path: ResourcePath, asked: ResourcePath) -> bool:
    """Whether a value at `path` answers a request for `asked`."""
    return path[: len(asked)] == asked


def fit_value(path: ResourcePath, value: Scalar, kind: Kind | None) -> Scalar:
    """The value as a resource of this kind holds it: numbers of its type, times in milliseconds. Raises Unreadable."""
    if isinstance(value, str):
        value = _text(path, value)
    if kind is None:
        return _storable(path, value)
    match kind, value:
        case Kind.BOOLEAN, bool():
            return value
        case Kind.BOOLEAN, (0 | 1) as number:
            return bool(number)
        case ((Kind.INTEGER | Kind.UNSIGNED_INTEGER | Kind.TIME | Kind.FLOAT), bool()):
            pass
        case Kind.INTEGER | Kind.UNSIGNED_INTEGER | Kind.TIME, int() | float() as number:
            within = _WITHIN.get(kind, _INTEGERS)
            # Compared before it is converted: JSON has integers that are too large for a double, and infinite numbers.
            if abs(number) <= _LARGEST and number == int(number) and int(number) in within:
                return int(number) * (_MILLISECONDS if kind is Kind.TIME else 1)
        case Kind.FLOAT, int() | float() as number:
            return _finite(path, number)
        case Kind.STRING, str():
            return value
        case Kind.OPAQUE, bytes():
            return value
        case Kind.OPAQUE, str() as text:  # LWM2M JSON has bytes as BASE64 in a string
            return from_base64(path, text)
    raise UnreadablePayload(f"has {value!r:.40} at {path_text(path)}, which should be {kind.value}")


def _text(path: ResourcePath, text: str) -> str:
    """The text without the end of a text of C, which some devices send."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UnreadablePayload(f"has text at {path_text(path)} with half of a surrogate pair") from None
    return text.rstrip("\0")


def _storable(path: ResourcePath, value: Scalar) -> Scalar:
    """A value of an unknown kind."""
    if isinstance(value, float):
        return _finite(path, value)
    if isinstance(value, int) and value not in _INTEGERS:
        raise UnreadablePayload(f"has a number at {path_text(path)} of more than 64 bits")
    return value


def _finite(path: ResourcePath, number: float) -> float:
    try:
        found = float(number)
    except OverflowError:
        found = math.inf
    if math.isfinite(found):
        return found
    raise UnreadablePayload(f"has a number at {path_text(path)} that is not finite")


def from_base64(path: ResourcePath, text: str) -> bytes:
    """BASE64, also with the alphabet of URLs and without padding (RFC 8428, 5). Raises Unreadable."""
    plain = text.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise UnreadablePayload(f"has no BASE64 at {path_text(path)}") from None


class Collected:
    """The values of one answer by time and path. Instances of one resource become a list in their order."""

    def __init__(self, asked: ResourcePath, kind_of: KindOf, now_ms: Milliseconds) -> None:
        self._asked = asked
        self.kind_of = kind_of
        self._now_ms = now_ms
        self._moments: dict[int, _Moment] = {}
        self._count = 0

    def add(self, path: ResourcePath, value: Scalar, seconds: float = 0) -> None:
        """A value at a resource or at a resource instance.

        `seconds` is its time (RFC 8428, 4.5.3): since 1970 from 2**28 on, before that relative to now.

        Raises:
            Unreadable: the path is not below what was asked, or the value does not fit.
        """
        if len(path) < _RESOURCE_DEPTH:
            raise UnreadablePayload(f"has a value at {path_text(path)}, which is not a resource")
        if not is_within(path, self._asked):
            raise UnreadablePayload(f"has {path_text(path)}, and {path_text(self._asked)} was asked for")
        self.take_room()
        resource, instance = path[:_RESOURCE_DEPTH], path[_RESOURCE_DEPTH:]
        value = fit_value(path, value, self.kind_of(path))
        moment = self._moment(seconds)
        if instance:
            moment.multiple.setdefault(resource, {})[instance[0]] = value
        elif is_multiple(resource):
            moment.multiple.setdefault(resource, {})[0] = value
        else:
            moment.single[resource] = value

    def add_empty(self, path: ResourcePath) -> None:
        """A resource that has several instances, and none now."""
        self.take_room()
        self._moment(0).multiple.setdefault(path, {})

    def _moment(self, seconds: float) -> "_Moment":
        at_ms = round(seconds * _MILLISECONDS) + (self._now_ms if seconds < _ABSOLUTE_SECONDS else 0)
        return self._moments.setdefault(at_ms, _Moment({}, {}))

    def take_room(self) -> None:
        """Count an entry. Raises Unreadable when there are too many."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise UnreadablePayload(f"has more than {MAX_VALUES} values")

    def readings(self) -> Readings:
        """The values by their times. The time of present and future values is None, so that a clock that is ahead does
        not keep them out.

        An instance of a resource that has several stays what it was before until a later record names it.
        """
        found: dict[Milliseconds | None, dict[ResourcePath, ResourceValue]] = {}
        lists: dict[ResourcePath, dict[int, Scalar]] = {}
        for at_ms in sorted(self._moments):
            moment = self._moments[at_ms]
            values = found.setdefault(None if at_ms >= self._now_ms else Milliseconds(max(at_ms, 0)), {})
            values.update(moment.single)
            for path, instances in moment.multiple.items():
                known = lists.setdefault(path, {})
                known.update(instances)
                values[path] = cast("ResourceValue", [known[number] for number in sorted(known)])
        return [Reading(ts, values) for ts, values in found.items()]


class _Moment(NamedTuple):
    """The values of one time."""

    single: dict[ResourcePath, Scalar]
    multiple: dict[ResourcePath, dict[int, Scalar]]
