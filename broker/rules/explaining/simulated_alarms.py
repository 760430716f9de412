"""The alarms that a rule would have had (reference 12.9)."""

from typing import Final

import msgspec

from broker.alarms.changes import ClearedBy
from broker.rules.language.evaluation import Outcome, TimerKey, Timers
from broker.rules.language.rule import CompiledRule
from broker.rules.language.values import View
from broker.rules.running.alarms import due_of, judged, slot_of
from storage.keys import DeviceKey, Milliseconds
from storage.records import MessageRow

ALARMS_SHOWN_MAX: Final = 100


class ReplayedAlarm(msgspec.Struct):
    """An alarm that would have been raised. `cleared_on` None: it would be open at the end of the replay."""

    device: DeviceKey
    text: str
    raised_on: Milliseconds
    row: MessageRow | None
    count: int = 1
    cleared_on: Milliseconds | None = None
    cleared_by: str = ""


class SimulatedAlarms:
    """As the engine has it, without bounds on their number. `shown` has the first 100, `raised` counts all."""

    def __init__(self, rule: CompiledRule) -> None:
        self._rule = rule
        self._open: dict[DeviceKey, ReplayedAlarm] = {}
        self.shown: list[ReplayedAlarm] = []
        self.raised = 0

    def follow(
        self, view: View, timers: Timers, outcome: Outcome, row: MessageRow | None
    ) -> list[tuple[TimerKey, Milliseconds | None]]:
        """An evaluation has happened. Returns the timers that change, and when they are due. Raises NotLoadedError
        before it changes anything."""
        rule, alarm, match = self._rule, self._rule.alarm, outcome.match
        if alarm is None:
            return []
        fired = None if match is None else rule.subject(match)
        text = "" if match is None or fired in self._open else alarm.text_in(view, match.devices)
        known = judged(rule, view, timers, [(device, False) for device in self._open], fired)
        changed = set[DeviceKey]()
        if fired is not None:
            if (found := self._open.get(fired)) is not None:
                found.count += 1
            else:
                self._raise(ReplayedAlarm(fired, text, view.now_ms, row))
            changed.add(fired)
        for device, still_holds in known:
            if alarm.clear_after is None and not still_holds:
                self.clear(device, view.now_ms, ClearedBy.CONDITION)
            elif alarm.clear_after is not None and still_holds:
                changed.add(device)
        return [(slot_of((one, False)), due_of(rule, (one, False), view.now_ms)) for one in sorted(changed)]

    def _raise(self, alarm: ReplayedAlarm) -> None:
        self._open[alarm.device] = alarm
        self.raised += 1
        if len(self.shown) < ALARMS_SHOWN_MAX:
            self.shown.append(alarm)

    def clear(self, device: DeviceKey, at_ms: Milliseconds, by: ClearedBy) -> None:
        if (alarm := self._open.pop(device, None)) is not None:
            alarm.cleared_on, alarm.cleared_by = at_ms, by
