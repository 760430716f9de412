"""The entries of `topic_devices` in the settings, checked and compiled (reference 16.8)."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import combinations
from typing import Any, Final

import msgspec

from broker.device_types.expressions import Expression, ExpressionFailedError, InvalidExpressionError
from broker.nesting import NestedTooDeeplyError, check_nesting
from broker.topic_devices.mappings import MAPPINGS, ShippedRoute
from broker.topics.tree import is_filter, pattern_of
from config.limits import (
    MAX_DATA_BYTES,
    TOPIC_DEVICE_KEY_CHARACTERS,
    TOPIC_DEVICE_PAYLOAD_BYTES,
    TOPIC_DEVICES_MADE_MAX,
    TOPIC_DEVICES_MAX,
)
from config.loading import SettingsError
from config.settings import Settings, TopicDevice

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOOK: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LEVEL: Final = re.compile(r"topic:([1-9][0-9]?)")
_PAYLOAD: Final = "payload:"
_KEY: Final = re.compile(rf"[^\x00-\x1f\x7f]{{1,{TOPIC_DEVICE_KEY_CHARACTERS}}}")
#: Topics of this service, and those of devices in Home Assistant (reference 16.3, 16.7).
_OWN: Final = (
    *(f"{root}/{kind}/#" for root in ("/v1.1", "v1.1") for kind in ("messages", "actions", "errors", "wanted")),
    "trunkline/+/state",
    "trunkline/+/availability",
    "trunkline/+/set/+",
)
_ANNOUNCED: Final = "device/+/config"
#: A larger number is in milliseconds: it would be the year 5138 in seconds.
_SECONDS_BELOW: Final = 100_000_000_000
#: A clock that was never set says a time of its own: before 2001.
_SET_FROM_MS: Final = 1_000_000_000_000


_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:]{8})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)


class NotUnderstoodError(Exception):
    """A payload of which no message can be made. The text is a sentence without what a stranger has written."""


class MadeMessage(msgspec.Struct, frozen=True):
    """The message of a payload: the key of its device, its data, and its time; None: that of its arrival."""

    key: str
    data: bytes
    ts: int | None


class PayloadMapping(msgspec.Struct, frozen=True):
    """One compiled mapping."""

    topic: str
    pattern: re.Pattern[bytes]
    level: int  # of the topic, from 1, that is the key; 0: `key` finds it in the payload
    key: Expression | None
    data: Expression
    ts: Expression | None

    def made_of(self, topic: bytes, payload: bytes) -> MadeMessage | None:
        """None: the payload is about nothing that this mapping takes. Raises NotUnderstoodError."""
        if len(payload) > TOPIC_DEVICE_PAYLOAD_BYTES:
            raise NotUnderstoodError(f"The payload has more than {TOPIC_DEVICE_PAYLOAD_BYTES} bytes.")
        value = _decoded(payload)
        data = _evaluated(self.data, value, "data")
        if not data:
            return None
        if not isinstance(data, dict):
            raise NotUnderstoodError("The expression data makes no object.")
        data = _without_nothing(data)
        if not data:
            return None
        encoded = msgspec.json.encode(data)
        if len(encoded) > MAX_DATA_BYTES:
            raise NotUnderstoodError(f"The data of the message has more than {MAX_DATA_BYTES} bytes.")
        return MadeMessage(
            self._key_of(topic, value), encoded, None if self.ts is None else _time_of(_said(self.ts, value))
        )

    def _key_of(self, topic: bytes, value: object) -> str:
        if self.key is None:
            levels = topic.decode(errors="replace").split("/")
            found: object = levels[self.level - 1] if self.level <= len(levels) else None
        else:
            found = _evaluated(self.key, value, "key")
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or _KEY.fullmatch(found) is None:
            raise NotUnderstoodError(
                f"The payload or topic has no key of a device: a text of 1 to {TOPIC_DEVICE_KEY_CHARACTERS} characters."
            )
        return found


class TopicDeviceEntry(msgspec.Struct, frozen=True):
    """An entry of the settings with its mappings."""

    settings: TopicDevice
    mappings: tuple[PayloadMapping, ...]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_hook(self) -> bool:
        return bool(self.settings.hook)


def entries_of(settings: Settings) -> tuple[TopicDeviceEntry, ...]:
    """Raises SettingsError, with each problem of each entry."""
    found, problems = list[TopicDeviceEntry](), list[str]()
    if len(settings.topic_devices) > TOPIC_DEVICES_MAX:
        problems.append(f"topic_devices: at most {TOPIC_DEVICES_MAX} entries")
    for index, one in enumerate(settings.topic_devices):
        where = f"topic_devices[{index}]"
        wrong = list(_problems_of(one, settings))
        if one.name in {other.name for other in settings.topic_devices[:index]}:
            wrong.append("name: is there twice")
        mappings = list[PayloadMapping]()
        for route in _routes_of(one):
            try:
                mappings.append(_compiled(route, is_hook=bool(one.hook)))
            except _RouteError as error:
                wrong.append(str(error))
        problems += [f"{where}.{text}" for text in wrong]
        found.append(TopicDeviceEntry(one, tuple(mappings)))
    if not problems:
        problems += _overlaps(found)
    if problems:
        raise SettingsError(problems[0], problems[1:])
    return tuple(found)


class _RouteError(Exception):
    """The text begins with the key of the setting."""


def _problems_of(one: TopicDevice, settings: Settings) -> Iterator[str]:
    if _NAME.fullmatch(one.name) is None:
        yield "name: expected 1 to 64 letters, digits, _ and -"
    for key in ("owner", "type"):
        if not getattr(one, key).strip():
            yield f"{key}: is required"
    if one.mapping and one.mapping not in MAPPINGS:
        yield f"mapping: unknown (allowed: {', '.join(MAPPINGS)})"
    if one.hook and _HOOK.fullmatch(one.hook) is None:
        yield "hook: expected sha256: and the 64 hexadecimal digits of the secret's SHA-256"
    if one.hook and one.topic:
        yield "topic: an entry has either topic or hook"
    if not one.mapping:
        for key in ("key", "data") if one.hook else ("topic", "key", "data"):
            if not getattr(one, key):
                yield f"{key}: is required, unless mapping names a shipped one"
    yield from _other_problems_of(one, settings)


def _other_problems_of(one: TopicDevice, settings: Settings) -> Iterator[str]:
    if not 1 <= one.make_max <= TOPIC_DEVICES_MADE_MAX:
        yield f"make_max: expected 1 to {TOPIC_DEVICES_MADE_MAX}"
    if len(one.devices) > TOPIC_DEVICES_MADE_MAX:
        yield f"devices: at most {TOPIC_DEVICES_MADE_MAX}"
    if not one.hook and settings.mqtt.topics != "open":
        yield 'topic: needs mqtt.topics = "open"'
    for route in _routes_of(one):
        if not one.hook and is_filter(route.topic.encode()) and (own := _own_topic(route.topic, settings)) is not None:
            yield f"topic: {route.topic} matches topics of this service, {own}"


def _routes_of(one: TopicDevice) -> Iterator[ShippedRoute]:
    """The shipped ones, with what the entry says in their place; or its own one."""
    shipped = MAPPINGS.get(one.mapping, ())
    if not shipped:
        if one.data and one.key:
            yield ShippedRoute(one.topic, one.key, one.data, one.ts)
        return
    if one.hook or one.topic or one.data:
        shipped = shipped[:1]  # the entry says which payload it is
    for route in shipped:
        yield ShippedRoute(one.topic or route.topic, one.key or route.key, one.data or route.data, one.ts or route.ts)


def _own_topic(filter_: str, settings: Settings) -> str | None:
    announced = [f"{one.prefix}/{_ANNOUNCED}" for one in settings.home_assistant]
    return next((own for own in (*_OWN, *announced) if overlap(filter_, own)), None)


def overlap(one: str, other: str) -> bool:
    """Whether there is a topic that both filters match."""
    left, right = one.split("/"), other.split("/")
    for index in range(max(len(left), len(right))):
        if "#" in (left[index : index + 1] + right[index : index + 1]):
            return True  # also of the level above (MQTT 5.0, 4.7.1.2)
        if index >= len(left) or index >= len(right):
            return False
        if "+" not in (left[index], right[index]) and left[index] != right[index]:
            return False
    return True


def _overlaps(entries: Iterable[TopicDeviceEntry]) -> Iterator[str]:
    """Two entries for one topic of the same owner; devices of another owner are not taken by an entry."""
    routes = [
        (index, entry.settings, one)
        for index, entry in enumerate(entries)
        if not entry.is_hook
        for one in entry.mappings
    ]
    for (_, first, one), (index, second, other) in combinations(routes, 2):
        if first.owner.strip().casefold() == second.owner.strip().casefold() and overlap(one.topic, other.topic):
            yield (f"topic_devices[{index}].topic: {other.topic} and {one.topic} of {first.name} match the same topics")


def _compiled(route: ShippedRoute, *, is_hook: bool) -> PayloadMapping:
    """Raises _RouteError."""
    level, key = _LEVEL.fullmatch(route.key), None
    if level is None:
        if not route.key.startswith(_PAYLOAD):
            raise _RouteError("key: expected topic: with the number of a level, or payload: with an expression")
        key = _expression("key", route.key.removeprefix(_PAYLOAD))
    elif is_hook:
        raise _RouteError("key: a hook has no topic: expected payload: with an expression")
    encoded = route.topic.encode()
    if not is_hook and (not is_filter(encoded) or route.topic.startswith("$")):
        raise _RouteError("topic: expected a topic filter of MQTT, and none that begins with $")
    return PayloadMapping(
        route.topic,
        pattern_of(encoded) if not is_hook else re.compile(b""),
        0 if level is None else int(level[1]),
        key,
        _expression("data", route.data),
        _expression("ts", route.ts) if route.ts else None,
    )


def _expression(key: str, text: str) -> Expression:
    try:
        return Expression(text)
    except InvalidExpressionError as error:
        raise _RouteError(f"{key}: {error}") from error


# Payloads


def _decoded(payload: bytes) -> object:
    """JSON, else text: many devices publish a bare word."""
    try:
        check_nesting(payload)
        value: object = msgspec.json.decode(payload)
    except NestedTooDeeplyError as error:
        raise NotUnderstoodError("The payload is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return payload.decode()
        except UnicodeDecodeError:
            raise NotUnderstoodError("The payload is neither JSON nor text.") from None
    return value


def _evaluated(expression: Expression, value: object, name: str) -> object:
    try:
        return expression.evaluate(value)
    except ExpressionFailedError as error:
        raise NotUnderstoodError(f"The expression {name} has no result: {str(error)[:200]}") from error


def _said(expression: Expression, value: object) -> object:
    """The time is not worth a message: without a result it is that of the arrival."""
    try:
        return expression.evaluate(value)
    except ExpressionFailedError:
        return None


def _time_of(said: object) -> int | None:
    """Milliseconds since 1970 of seconds, milliseconds, or a text of RFC 3339; None for anything else."""
    if isinstance(said, str):
        if (found := _RFC3339.fullmatch(said)) is None:
            return None
        try:  # Python reads six digits of a second
            at = datetime.fromisoformat(f"{found[1]}{(found[2] or '')[:7]}{found[3]}")
        except ValueError:
            return None
        said = int(at.timestamp() * 1000)
    elif isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said):
        said = int(said * 1000) if abs(said) < _SECONDS_BELOW else int(said)
    else:
        return None
    return said if said >= _SET_FROM_MS else None


def _without_nothing(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The members that the payload has: an expression gives null for any other."""
    found = {}
    for name, value in data.items():
        kept = _without_nothing(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            found[name] = kept
    return found
