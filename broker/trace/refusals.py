"""Refusals in the log: one line each, at first; of a flood, one line a minute with the number (reference 28.1).

A source is the peer's address, or the caller when it has proven who it is. Each source has some lines a minute for each
kind of refusal. Refusals beyond are counted, and the count is one line at the end of the minute. While the source goes
on, only counts follow, each after twice the time, at most an hour. All sources together have a number of lines for each
kind, too; what comes beyond is one line for all of them.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from broker.clock import Clock
from broker.loops import Loop
from broker.trace.audit import AuditEvent, entry_of
from broker.trace.origin import Origin, address_key, current_listener, current_origin, enter
from storage.records import AuditRecord

LISTED_SOURCES: Final = 500
_REASON_CHARACTERS: Final = 200


@dataclass(slots=True)
class Refused:
    """How often one source was refused for one reason. Times are milliseconds since the epoch."""

    event: str
    listener: str
    source: str  # an address, or the caller who has proven who it is
    account: str  # whom the peer named, if there is such an account or device
    reason: str
    first_on: int
    last_on: int
    times: int = 0


class Tally:
    """The latest refusals by event, listener and source, in memory, for the operator's page (reference 27.21).

    It has 500; the source that was refused longest ago is forgotten first.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str, str, str], Refused] = OrderedDict()

    def add(self, event: str, listener: str, source: str, account: str, reason: str, now_ms: int) -> None:
        key = event, listener, source, reason
        found = self._found.get(key)
        if found is None:
            text = reason[:_REASON_CHARACTERS]
            found = self._found[key] = Refused(event, listener, source, account, text, now_ms, now_ms)
            if len(self._found) > LISTED_SOURCES:
                self._found.popitem(last=False)
        else:
            self._found.move_to_end(key)
        found.last_on, found.times = now_ms, found.times + 1
        found.account = account or found.account

    def latest(self) -> list[Refused]:
        """The latest first."""
        return list(reversed(self._found.values()))


INTERVAL_MS: Final = 60_000
LONGEST_INTERVAL_MS: Final = 3_600_000
LINES_OF_ONE: Final = 5  # in one interval, of one kind of refusal from one source
LINES_OF_ALL: Final = 100  # in one interval, of one kind of refusal
SOURCES: Final = 2_000
_LOOK_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Source:
    """The refusals of one source in the interval that ends at `until_ms`."""

    until_ms: int
    origin: Origin
    audited: AuditEvent | None
    interval_ms: int = INTERVAL_MS
    lines: int = 0
    unshown: int = 0
    about: Mapping[str, Any] | None = None  # of the last one that was not shown


@dataclass(slots=True)
class _All:
    """The refusals of all sources together, of one kind."""

    since_ms: int
    lines: int = 0
    unshown: int = 0


class Refusals:
    def __init__(self, clock: Clock, put: Callable[[AuditRecord], None]) -> None:
        """`put` queues an entry for the audit log."""
        self._clock = clock
        self._put = put
        self._sources: OrderedDict[tuple[str, str], _Source] = OrderedDict()
        self._counts: Counter[tuple[str, str]] = Counter()  # by event and listener
        self._all: dict[str, _All] = {}
        self.tally: Final = Tally()
        self.look_forever = Loop(self.look, every=_LOOK_SECONDS, failure="refusals_not_counted").run

    def note(
        self, event: str, *, reason: str, source: str = "", audited: AuditEvent | None = None, **about: Any
    ) -> None:
        """Count a refusal of this task's origin, and log it unless too many were.

        Args:
            event: the event in the log, and the name of its counter.
            reason: why. Never a secret, and nothing that a stranger has sent.
            source: by what it is counted, in place of the origin's address.
            audited: the audit log gets an entry for each line, too.
            about: further members of the line.
        """
        listener = current_listener()
        self._counts[event, listener] += 1
        now_ms, origin = self._clock.steady_ms(), current_origin()
        self.tally.add(
            event, listener, source or origin.actor or origin.address, origin.account, reason, self._clock.now_ms()
        )
        key = event, source or address_key(origin.address)
        found = self._sources.get(key)
        if found is not None and now_ms >= found.until_ms:
            self._end(key, found, now_ms)
            found = self._sources.get(key)
        if found is None:
            found = self._sources[key] = _Source(now_ms + INTERVAL_MS, origin, audited)
            if len(self._sources) > SOURCES:
                (oldest, _), first = self._sources.popitem(last=False)
                self._tell_unshown(oldest, first)
        about = {"reason": reason, **about}
        if origin.account:
            about["account"] = origin.account
        if found.lines < LINES_OF_ONE and self._has_line(event, now_ms):
            found.lines += 1
            self._show(event, audited, about)
        else:
            found.unshown += 1
            found.origin, found.about = origin, about

    def shows_next(self, event: str) -> bool:
        """Whether the next refusal of this kind from this origin may have a line, so that it is worth a look-up."""
        found = self._sources.get((event, address_key(current_origin().address)))
        return found is None or found.lines < LINES_OF_ONE

    def _has_line(self, event: str, now_ms: int) -> bool:
        """Whether all sources together have a line left, which is then used."""
        found = self._all.get(event)
        if found is None or now_ms - found.since_ms >= INTERVAL_MS:
            self._end_all(event)
            found = self._all[event] = _All(now_ms)
        if found.lines >= LINES_OF_ALL:
            return False
        found.lines += 1
        return True

    def _end_all(self, event: str) -> None:
        found = self._all.pop(event, None)
        if found is not None and found.unshown:
            _log.info(event, reason="from many sources", times=found.unshown)

    def _end(self, key: tuple[str, str], source: _Source, now_ms: int) -> None:
        """The source's interval is over. If it went on beyond its lines, a longer one begins, without lines."""
        if not source.unshown:
            del self._sources[key]
            return
        self._tell_unshown(key[0], source)
        source.interval_ms = min(2 * source.interval_ms, LONGEST_INTERVAL_MS)
        source.until_ms, source.lines, source.unshown = now_ms + source.interval_ms, LINES_OF_ONE, 0

    def _tell_unshown(self, event: str, source: _Source) -> None:
        """One line for the refusals of a source beyond its number of lines."""
        if not source.unshown:
            return
        if not self._has_line(event, self._clock.steady_ms()):
            self._all[event].unshown += source.unshown
            return
        origin = current_origin()
        enter(source.origin)
        try:
            self._show(event, source.audited, {**(source.about or {}), "times": source.unshown})
        finally:
            enter(origin)

    def _show(self, event: str, audited: AuditEvent | None, about: Mapping[str, Any]) -> None:
        origin = current_origin()
        _log.info(event, **{**about, "peer": origin.address})
        if audited is not None:
            account = about.get("account", "")
            details = {name: value for name, value in about.items() if name != "account"}
            self._put(
                entry_of(
                    audited,
                    f"account {account}" if account else "",
                    now_ms=self._clock.now_ms(),
                    outcome="refused",
                    of_stranger=not origin.actor,
                    **details,
                )
            )

    async def look(self) -> None:
        """Log the counts of the intervals that have ended."""
        now_ms = self._clock.steady_ms()
        for key, source in [(key, one) for key, one in self._sources.items() if one.until_ms <= now_ms]:
            self._end(key, source, now_ms)
        for event in [event for event, one in self._all.items() if now_ms - one.since_ms >= INTERVAL_MS]:
            self._end_all(event)

    async def flush(self) -> None:
        """Log all counts, at the end of the daemon."""
        for (event, _), source in self._sources.items():
            self._tell_unshown(event, source)
        self._sources.clear()
        for event in tuple(self._all):
            self._end_all(event)

    def statistics(self) -> Mapping[str, int]:
        """How often there was each kind of refusal since the start, and how many sources are in memory."""
        events: Counter[str] = Counter()
        for (event, _), times in self._counts.items():
            events[event] += times
        return {"sources": len(self._sources), **dict(sorted(events.items()))}

    def by_listener(self) -> Mapping[tuple[str, str], int]:
        """How often there was each kind of refusal since the start, by event and name of the listener."""
        return dict(sorted(self._counts.items()))
