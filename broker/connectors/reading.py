"""Extracts readings from a third party's JSON. Each item stands alone: one that cannot be read harms no other."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from broker.connectors.plugin import Event, Result, Unreadable
from broker.device_types.expressions import Expression, ExpressionFailedError, InvalidExpressionError

#: Expressions by name, evaluated on each item. None is not evaluated.
Reading = Mapping[str, str | None]

Unit = Literal["ms", "s"]

_ITEMS: Final = 1_000


class Read(msgspec.Struct, frozen=True):
    """One reading: its payload, its time in ms, and the external id of its sub-device."""

    payload: Mapping[str, Any]
    ts: int | None
    sub_device: str | None

    def event(self, kind: Literal["data", "action"], series: str) -> Event:
        return Event(self.payload, self.ts, kind, self.sub_device, series)


class ItemReader:
    """Evaluates expressions on the items at a dotted path. `unit` applies to times that are numbers.

    Raises ValueError when an expression is invalid.
    """

    def __init__(self, items: str, expressions: Reading, unit: Unit = "ms") -> None:
        self._unit = unit
        self._path = [name for name in items.split(".") if name]
        try:
            self._expressions = {name: Expression(text) for name, text in expressions.items() if text is not None}
        except InvalidExpressionError as error:
            raise ValueError(str(error)) from error
        self._lock = threading.Lock()  # an Expression must not be used by several threads at once

    def items(self, document: Any) -> Iterator[Any]:
        """The items at the path, at most `_ITEMS`. An object there is the only item. Raises ValueError."""
        found = document
        for name in self._path:
            found = found.get(name) if isinstance(found, dict) else None
        items = found if isinstance(found, list) else [found]
        if found is None or len(items) > _ITEMS:
            raise ValueError(f"there are no items, or more than {_ITEMS}")
        yield from items

    def one(self, item: Any, name: str) -> Any:
        """The result of the expression of this name; None when there is none. Raises ValueError."""
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
        return Read(payload, time_in_ms(self.one(item, "ts"), self._unit), id_text(self.one(item, "sub_device")))

    def results(self, items: Iterable[Any], kind: Literal["data", "action"], series: str = "") -> Iterator[Result]:
        """An event of each item, or the item's problem."""
        for item in items:
            try:
                yield self.reading(item).event(kind, series)
            except (ValueError, OverflowError) as error:
                yield Unreadable(item, str(error), series)


def time_in_ms(value: Any, unit: Unit) -> int | None:
    """A time in ms: from a number in `unit`, or an ISO 8601 text, in UTC if it has no offset. Raises ValueError."""
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


def id_text(value: Any) -> str | None:
    """An id as text: some third parties have numbers for ids. Raises ValueError."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError("an id is neither text nor number")
