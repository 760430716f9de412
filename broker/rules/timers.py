"""The moments at which rules are due, in one heap (reference 12.4).

A timer belongs to a slot of a rule: a condition with a duration on one device, or the schedule of the rule. Setting or
dropping a timer leaves its old entry in the heap, where it counts for nothing; the heap is built anew before such
entries outnumber the timers.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from broker.rules.rule import TimerKey
from storage.keys import Milliseconds, RuleKey

_SLACK: Final = 64

Slot = tuple[RuleKey, TimerKey]


class Timers:
    def __init__(self) -> None:
        self._due: dict[Slot, Milliseconds] = {}
        self._of_rule: dict[RuleKey, set[TimerKey]] = {}
        self._heap: list[tuple[Milliseconds, Slot]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, rule: RuleKey, name: TimerKey, due_ms: Milliseconds) -> None:
        slot = (rule, name)
        if self._due.get(slot) == due_ms:
            return
        self._due[slot] = due_ms
        self._of_rule.setdefault(rule, set()).add(name)
        heappush(self._heap, (due_ms, slot))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._rebuild()

    def drop(self, rule: RuleKey, name: TimerKey) -> None:
        if self._due.pop((rule, name), None) is not None:
            names = self._of_rule[rule]
            names.remove(name)
            if not names:
                del self._of_rule[rule]

    def drop_all_of(self, rule: RuleKey) -> None:
        for name in self._of_rule.pop(rule, ()):
            del self._due[rule, name]
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._rebuild()

    def next_due(self) -> Milliseconds | None:
        """The moment of the first timer; None without a timer."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, until_ms: Milliseconds) -> tuple[Milliseconds, Slot] | None:
        """Take the first timer that is due at `until_ms`; None when none is."""
        due_ms = self.next_due()
        if due_ms is None or due_ms > until_ms:
            return None
        _, slot = heappop(self._heap)
        self.drop(*slot)
        return due_ms, slot

    def _rebuild(self) -> None:
        self._heap = [(due_ms, slot) for slot, due_ms in self._due.items()]
        heapify(self._heap)
