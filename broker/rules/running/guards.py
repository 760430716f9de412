"""Guards against rules that harm others: loops, floods of Actions, and processor time (reference 12.4).

Loops: a message of a device to which rules sent Actions a short time ago counts as caused by those rules, and by the
rules that caused their messages. A rule that is triggered very often by messages that it caused itself is in a loop.
"""

from collections import Counter, OrderedDict, deque
from typing import Final

from config.limits import (
    ALARMS_A_MINUTE_OF_RULE,
    ALARMS_A_MINUTE_OF_USER,
    ALARMS_OPEN_OF_RULE,
    ALARMS_OPEN_OF_USER,
    RULE_ACTIONS_A_MINUTE,
    RULE_COST_SECONDS,
    RULE_LOOP_SECONDS,
    RULE_LOOP_TRIGGERS,
)
from storage.keys import DeviceKey, Milliseconds, RuleKey, UserKey

_DEVICES_REMEMBERED: Final = 10_000
_CAUSES_MAX: Final = 64
_MINUTE_MS: Final = 60_000
_WINDOW_MS: Final = RULE_LOOP_SECONDS * 1000

_CHEAP_SECONDS: Final = 0.0005  # an evaluation that takes less is counted, and stops no rule

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
        """Count that a message with these causes triggers the rule; return whether the rule must be stopped."""
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


class ActionBudget:
    """Counts the Action messages of each user's rules in the minute of the log that is evaluated."""

    def __init__(self) -> None:
        self._minute = 0
        self._sent: Counter[UserKey] = Counter()

    def is_spent(self, owner: UserKey, at_ms: Milliseconds) -> bool:
        minute = at_ms // _MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._sent.clear()
        return self._sent[owner] >= RULE_ACTIONS_A_MINUTE

    def spend(self, owner: UserKey, messages: int) -> None:
        self._sent[owner] += messages


class AlarmGuard:
    """Bounds the open alarms of rules and users, and how many are raised in a minute of the log."""

    def __init__(self) -> None:
        self._minute = 0
        self._raised_of_rule: Counter[RuleKey] = Counter()
        self._raised_of_user: Counter[UserKey] = Counter()
        self._open: dict[RuleKey, tuple[UserKey, int]] = {}
        self._open_of_user: Counter[UserKey] = Counter()

    def note_open(self, rule: RuleKey, owner: UserKey, number: int) -> None:
        """So many alarms of the rule are open."""
        known = self._open.pop(rule, None)
        if known is not None:
            self._open_of_user[known[0]] -= known[1]
            if not self._open_of_user[known[0]]:
                del self._open_of_user[known[0]]
        if number:
            self._open[rule] = owner, number
            self._open_of_user[owner] += number

    def may_raise(self, rule: RuleKey, owner: UserKey, at_ms: Milliseconds) -> bool:
        """Whether the rule may raise another alarm; if so, it is counted."""
        minute = at_ms // _MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._raised_of_rule.clear()
            self._raised_of_user.clear()
        is_much = (
            self._raised_of_rule[rule] >= ALARMS_A_MINUTE_OF_RULE
            or self._raised_of_user[owner] >= ALARMS_A_MINUTE_OF_USER
            or self._open.get(rule, (owner, 0))[1] >= ALARMS_OPEN_OF_RULE
            or self._open_of_user[owner] >= ALARMS_OPEN_OF_USER
        )
        if not is_much:
            self._raised_of_rule[rule] += 1
            self._raised_of_user[owner] += 1
        return not is_much


class CostGuard:
    """Measures the processor time of rules that look at all devices of a type, minute by minute.

    Other rules look at few values, whose number the length of a body bounds.
    """

    def __init__(self) -> None:
        self._minute = 0
        self._seconds: dict[UserKey, dict[RuleKey, float]] = {}

    def charge(self, owner: UserKey, rule: RuleKey, seconds: float, steady_seconds: float) -> RuleKey | None:
        """Count an evaluation's time; return the rule that must be stopped, if any: the user's costliest one."""
        minute = int(steady_seconds // 60)
        if minute != self._minute:
            self._minute = minute
            self._seconds.clear()
        of_rules = self._seconds.setdefault(owner, {})
        of_rules[rule] = of_rules.get(rule, 0.0) + seconds
        if seconds < _CHEAP_SECONDS or sum(of_rules.values()) <= RULE_COST_SECONDS:
            return None
        costliest = max(of_rules, key=lambda key: of_rules[key])
        del of_rules[costliest]
        return costliest
