"""Finding readings in a third party's JSON, and not finding the same ones twice."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from broker.connectors.plugin import Event, LinkedDevice
from broker.device_types.expressions import Expression, ExpressionFailedError, InvalidExpressionError

#: By name, the expressions of what is read from each item. None is not read.
Reading = Mapping[str, str | None]

Unit = Literal["ms", "s"]

_ITEMS: Final = 1_000
_SUB_DEVICES: Final = 100  # whose newest reading is remembered


@dataclass(frozen=True, slots=True)
class Read:
    """One item: its payload, when it was in ms, and whose it is."""

    payload: Mapping[str, Any]
    ts: int | None
    sub_device: str | None

    def event(self, kind: Literal["data", "action"]) -> Event:
        return Event(self.payload, self.ts, kind, self.sub_device)


class Reader:
    """Reads the items at a dotted path. `unit` is that of times which are numbers.

    Raises ValueError when an expression is none.
    """

    def __init__(self, items: str, expressions: Reading, unit: Unit = "ms") -> None:
        self._unit = unit
        self._path = [name for name in items.split(".") if name]
        try:
            self._expressions = {name: Expression(text) for name, text in expressions.items() if text is not None}
        except InvalidExpressionError as error:
            raise ValueError(str(error)) from error
        self._lock = threading.Lock()  # an expression is for one thread at a time

    def items(self, document: Any) -> Iterator[Any]:
        """At most so many; an object at the path is the only item. Raises ValueError."""
        found = document
        for name in self._path:
            found = found.get(name) if isinstance(found, dict) else None
        items = found if isinstance(found, list) else [found]
        if found is None or len(items) > _ITEMS:
            raise ValueError(f"there are no items, or more than {_ITEMS}")
        yield from items

    def one(self, item: Any, name: str) -> Any:
        """What the expression of this name finds; None without one. Raises ValueError."""
        expression = self._expressions.get(name)
        if expression is None:
            return None
        try:
            with self._lock:
                return expression.evaluate(item)
        except ExpressionFailedError as error:
            raise ValueError(f"{name}: {error}") from error

    def reading(self, item: Any) -> Read:
        """Raises ValueError."""
        payload = self.one(item, "payload")
        if not isinstance(payload, dict):
            raise ValueError("the payload is no object")
        return Read(payload, milliseconds(self.one(item, "ts"), self._unit), text_of(self.one(item, "sub_device")))

    def readings(self, document: Any) -> Iterator[Read]:
        """Raises ValueError."""
        return map(self.reading, self.items(document))


class Since:
    """The newest reading of each sub-device that a fetch has brought, so that the next one does not bring it again."""

    def __init__(self, name: str, newest: dict[str, int]) -> None:
        self._name = name
        self._newest = newest

    @classmethod
    def of(cls, device: LinkedDevice, fetch: int) -> "Since":
        name = f"since.{fetch}"
        return cls(name, msgspec.json.decode(device.remembered.get(name) or "{}", type=dict[str, int]))

    @property
    def newest(self) -> int:
        return max(self._newest.values(), default=0)

    def newer(self, readings: Iterable[Read], kind: Literal["data", "action"]) -> list[Event]:
        """The events of what was not there before; from now on it was."""
        before = dict(self._newest)
        events = []
        for reading in readings:
            name = reading.sub_device or ""
            if reading.ts is not None and reading.ts <= before.get(name, -1):
                continue
            if reading.ts is not None:
                self._newest[name] = max(reading.ts, self._newest.get(name, 0))
            events.append(reading.event(kind))
        return events

    def remembered(self) -> tuple[str, str]:
        """Name and value to remember; whoever has been silent for longest is forgotten first."""
        latest = sorted(self._newest.items(), key=lambda one: one[1])[-_SUB_DEVICES:]
        return self._name, msgspec.json.encode(dict(latest)).decode()


def milliseconds(value: Any, unit: Unit) -> int | None:
    """A number in `unit`, or an ISO 8601 text, in UTC if it does not say. Raises ValueError."""
    match value:
        case None:
            return None
        case bool():
            raise ValueError("ts is a boolean")
        case int() | float():
            return int(value * 1000 if unit == "s" else value)
        case str():
            parsed = datetime.fromisoformat(value)
            return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
    raise ValueError("ts is no time")


def text_of(value: Any) -> str | None:
    """An id as text: some third parties have numbers for ids. Raises ValueError."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError("an id is neither text nor number")
