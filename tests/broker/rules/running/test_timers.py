"""Timers: the first one first, and no memory for replaced or dropped ones."""

from broker.rules.running.evaluator import TimerHeap
from storage.keys import DeviceKey, Milliseconds, RuleKey

FIRST, SECOND = RuleKey(1), RuleKey(2)
SLOT, OTHER = (0, DeviceKey(1)), (1, DeviceKey(1))


def test_they_come_in_the_order_of_their_times() -> None:
    timers = TimerHeap()
    timers.set(FIRST, SLOT, Milliseconds(30))
    timers.set(SECOND, SLOT, Milliseconds(10))
    timers.set(FIRST, OTHER, Milliseconds(20))
    assert timers.next_due() == 10
    assert timers.pop_due(Milliseconds(5)) is None
    assert [timers.pop_due(Milliseconds(25)) for _ in range(3)] == [(10, (SECOND, SLOT)), (20, (FIRST, OTHER)), None]
    assert len(timers) == 1


def test_a_timer_that_is_set_anew_or_dropped_counts_once_or_not() -> None:
    timers = TimerHeap()
    timers.set(FIRST, SLOT, Milliseconds(10))
    timers.set(FIRST, SLOT, Milliseconds(20))
    timers.set(FIRST, OTHER, Milliseconds(15))
    timers.drop(FIRST, OTHER)
    timers.drop(FIRST, OTHER)
    assert timers.pop_due(Milliseconds(100)) == (20, (FIRST, SLOT))
    assert timers.pop_due(Milliseconds(100)) is None


def test_the_timers_of_one_rule_are_dropped_together() -> None:
    timers = TimerHeap()
    for rule in (FIRST, SECOND):
        for slot in (SLOT, OTHER):
            timers.set(rule, slot, Milliseconds(10))
    timers.drop_all_of(FIRST)
    assert [timers.pop_due(Milliseconds(10)) for _ in range(3)] == [(10, (SECOND, SLOT)), (10, (SECOND, OTHER)), None]


def test_ten_thousand_changes_of_a_timer_leave_a_small_heap() -> None:
    timers = TimerHeap()
    for number in range(10_000):
        timers.set(FIRST, SLOT, Milliseconds(number))
        timers.drop_all_of(SECOND)
        timers.set(SECOND, SLOT, Milliseconds(number))
    assert len(timers._heap) < 200
