"""Detects rules that trigger themselves, directly or through other rules (reference 12.4).

A message of a device to which rules sent Actions a short time ago counts as caused by those rules, and by the rules
that caused their messages. A rule that is triggered very often by messages that it caused itself is in a loop.
"""

from collections import OrderedDict, deque
from typing import Final

from config.limits import RULE_LOOP_SECONDS, RULE_LOOP_TRIGGERS
from storage.keys import DeviceKey, Milliseconds, RuleKey

_DEVICES_REMEMBERED: Final = 10_000
_CAUSES_MAX: Final = 64
_WINDOW_MS: Final = RULE_LOOP_SECONDS * 1000

Causes = frozenset[RuleKey]
NO_CAUSES: Final[Causes] = frozenset()


class LoopGuard:
    def __init__(self) -> None:
        self._causes: OrderedDict[DeviceKey, tuple[Milliseconds, Causes]] = OrderedDict()
        self._times: dict[RuleKey, deque[Milliseconds]] = {}

    def causes_of(self, device: DeviceKey, now_ms: Milliseconds) -> Causes:
        """The rules that may have caused a message of this device."""
        known = self._causes.get(device)
        return known[1] if known is not None and abs(now_ms - known[0]) <= _WINDOW_MS else NO_CAUSES

    def sent(self, rule: RuleKey, destination: DeviceKey, causes: Causes, now_ms: Milliseconds) -> None:
        """The rule, which a message with these causes has triggered, sends an Action."""
        caused = self.causes_of(destination, now_ms) | causes | {rule}
        if len(caused) > _CAUSES_MAX:
            caused = frozenset((*causes, rule))
        self._causes[destination] = (now_ms, caused)
        self._causes.move_to_end(destination)
        if len(self._causes) > _DEVICES_REMEMBERED:
            self._causes.popitem(last=False)

    def is_loop(self, rule: RuleKey, causes: Causes, now_ms: Milliseconds) -> bool:
        """Count that a message with these causes triggers the rule; answer whether the rule must be stopped."""
        if rule not in causes:
            return False
        times = self._times.setdefault(rule, deque())
        while times and abs(now_ms - times[0]) > _WINDOW_MS:  # the clock may have been set back
            times.popleft()
        times.append(now_ms)
        return len(times) > RULE_LOOP_TRIGGERS

    def forget(self, rule: RuleKey) -> None:
        """The rule was changed, stopped or removed."""
        self._times.pop(rule, None)
