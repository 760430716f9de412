"""The counts and problems of one forward, for its operator."""

from datetime import UTC, datetime
from typing import Final

import structlog

from broker.clock import Clock
from broker.forwarding.lag import Lag
from broker.forwarding.status import ForwardStatus
from config.settings import Forward
from storage.outages import Outage

_SAID_SECONDS: Final = 120.0  # a longer wait is said
_log = structlog.get_logger(__name__)


class ForwardReport:
    """Counts are since the start."""

    def __init__(self, entry: Forward, clock: Clock) -> None:
        self.sent = self.actions = self.refused_actions = 0
        self.lag = Lag()
        self.clock_ahead_seconds = 0.0
        self._entry, self._clock = entry, clock
        self._state, self._problem = "waits", "The service has just begun."
        self._notes: dict[str, str] = {}
        self._failures = 0
        self._sent_on: int | None = None
        self._outage = Outage("forward_failed", "forwards_again")

    def status(self) -> ForwardStatus:
        return ForwardStatus(
            name=self._entry.name,
            to=self._entry.to,
            state=self._state,
            problem=" ".join(filter(None, (self._problem, *self._notes.values()))),
            sent=self.sent,
            actions=self.actions,
            refused_actions=self.refused_actions,
            failures=self._failures,
            behind=self.lag.rows,
            behind_seconds=self.lag.seconds,
            deletes_on=self.lag.deletes_on,
            lost=self.lag.lost,
            sent_on=self._sent_on,
            clock_ahead_seconds=self.clock_ahead_seconds,
        )

    def failed(self, text: str, seconds: float = 0.0) -> None:
        """It is tried again after `seconds`."""
        self._failures += 1
        self._state, self._problem = "waits", text if text.endswith(".") else f"{text}."
        if seconds >= _SAID_SECONDS:
            when = datetime.fromtimestamp(self._clock.now_ms() / 1000 + seconds, UTC)
            self._problem += f" The next try is at {when:%H:%M} UTC."
        self._outage.failed(text, forward=self._entry.name)

    def works(self) -> None:
        self._state, self._problem = "sends", ""
        self._outage.succeeded(forward=self._entry.name)

    def waits(self) -> None:
        """It has stopped, or begins again."""
        self._state, self._problem = "waits", ""

    def count_sent(self, number: int) -> None:
        self.sent += number
        self._sent_on = self._clock.now_ms()

    def refused_action(self, **about: str) -> None:
        self.refused_actions += 1
        _log.warning("forwarded_action_refused", forward=self._entry.name, **about)

    def note(self, about: str, text: str, *, is_logged: bool = True) -> None:
        """Say something beside the problem; a later note about the same replaces it, and an empty one removes it."""
        if not text:
            self._notes.pop(about, None)
        elif text != self._notes.get(about):
            self._notes[about] = text
            if is_logged:
                _log.warning("forward_notice", forward=self._entry.name, reason=text)

    def set_lag(self, lag: Lag) -> None:
        if lag.lost > self.lag.lost:
            self.note("lost", f"Retention has deleted up to {lag.lost} rows before they were sent.")
        self.lag = lag
