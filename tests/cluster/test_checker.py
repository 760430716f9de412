"""The checker finds a history that breaks a rule, for each of them, and none in one that keeps all."""

from collections.abc import Callable

import pytest

from tests.cluster.checker import (
    PREDICATES,
    Count,
    Epoch,
    Event,
    Fold,
    Period,
    Record,
    Span,
    StoredRow,
    Tables,
    due_effects,
    problems,
)

_CUT = Span("cut", "cut", frozenset("a"), 10.0, 30.0)
_FOLD = Fold(2, 1, 3, 4, 3)
_PAUSE = Span("pause", "pause", frozenset("a"), 40.0, 60.0)


def history() -> tuple[Record, Tables]:
    """Device 1 goes from a to b; device 2 has the rule and the callback; 3 and 4 have sessions, with QoS 1 and 2."""
    record = Record(rule=(2, 1), called={2: 1}, once={4}, patience=3.0)
    for number, (node, link) in enumerate([("a", 1), ("a", 1), ("b", 2), ("b", 2)], 1):
        record.events += [
            Event(number, "sent", 1, number, node, link),
            Event(number + 0.1, "acknowledged", 1, number, node, link),
            Event(number + 0.2, "received", 1, number, "c", 9),
        ]
    record.events += [
        Event(5.0, "used", 2, 1, "a", text="token"),
        Event(5.1, "acknowledged", 2, 1, "a"),
        Event(5.2, "received", 2, 1, "c", 9),
        Event(5.3, "read", 2, 1, "b"),
        Event(5.4, "notified", 2, 1, "", text="notification"),
        Event(5.5, "revoked", 2, 1, "b", text="token"),
        Event(20.0, "refused", 2, 2, "a", text="503"),
        *(Event(at, what, 1, 4, "b", 2) for at in range(40, 61, 2) for what in ("acknowledged", "changed")),
    ]
    record.events += [
        *(Event(at, "delivered", 3, 1, "b", 5) for at in (12.0, 31.0)),  # it was under way when the node was cut off
        Event(6.0, "delivered", 4, 1, "b", 6),
    ]
    record.counts.append(Count("a", 1, 2, 2))
    record.spans += [_CUT, _PAUSE]
    record.epochs += [Epoch("folds", 1, "p", 90.0), Epoch("folds", 2, "q", 91.0)]
    rows = [StoredRow(position, 1, position) for position in range(1, 5)]
    tables = Tables([*rows, StoredRow(5, 2, 1)], [1], [1, 2], {"a": 2, "b": 2}, {"a": _FOLD, "b": _FOLD}, _FOLD)
    tables.periods, tables.due = [Period(2, 0, 900), Period(4, 2_000, 3_500), Period(6, 5_000, 6_100)], [4]
    tables.tasks, tables.actions = {1: ["REQUESTED", "QUEUED", "PROCESSING", "SUCCEEDED"]}, {3: [1], 4: [1]}
    return record, tables


def a_position_twice(_record: Record, tables: Tables) -> None:
    tables.rows[1] = tables.rows[1]._replace(position=1)


def a_row_that_a_feed_left_out(record: Record, _tables: Tables) -> None:
    record.events.remove(Event(2.2, "received", 1, 2, "c", 9))


def a_row_before_one_that_was_read(_record: Record, tables: Tables) -> None:
    tables.rows[1:3] = [StoredRow(2, 1, 3), StoredRow(3, 1, 2)]


def a_lost_message(record: Record, tables: Tables) -> None:
    record.events.remove(Event(4.2, "received", 1, 4, "c", 9))
    tables.rows.remove(StoredRow(4, 1, 4))


def a_message_that_is_stored_twice(_record: Record, tables: Tables) -> None:
    tables.rows.append(StoredRow(6, 1, 4))


def a_row_of_a_former_connection(record: Record, tables: Tables) -> None:
    record.events.append(Event(3.5, "sent", 1, 7, "a", 1))
    tables.rows.append(StoredRow(6, 1, 7))


def two_holders(record: Record, _tables: Tables) -> None:
    record.epochs.append(Epoch("folds", 2, "r"))


def an_older_epoch(record: Record, _tables: Tables) -> None:
    record.epochs.append(Epoch("folds", 1, "p"))


def a_fact_that_is_not_heard(_record: Record, tables: Tables) -> None:
    tables.heard["b"] = 1


def a_fact_that_is_missing(_record: Record, tables: Tables) -> None:
    tables.facts[:] = [1, 3]


def a_revoked_token(record: Record, tables: Tables) -> None:
    record.events += [Event(6.0, "used", 2, 2, "a", text="token"), Event(6.1, "acknowledged", 2, 2, "a")]
    record.events.append(Event(6.2, "notified", 2, 2, "", text="another"))
    tables.rows.append(StoredRow(6, 2, 2))
    tables.effects.append(2)


def a_read_with_a_revoked_token(record: Record, _tables: Tables) -> None:
    record.events += [Event(6.0, "shown", 2, 1, "a", text="token"), Event(35.0, "shown", 2, 1, "a", text="token")]


def an_effect_that_is_left_out(_record: Record, tables: Tables) -> None:
    tables.effects.clear()


def an_effect_too_many(_record: Record, tables: Tables) -> None:
    tables.effects.append(1)


def no_notification(record: Record, _tables: Tables) -> None:
    record.events.remove(Event(5.4, "notified", 2, 1, "", text="notification"))


def two_notifications(record: Record, _tables: Tables) -> None:
    record.events.append(Event(5.6, "notified", 2, 1, "", text="another"))


def a_notification_that_came_twice_without_a_fault(record: Record, _tables: Tables) -> None:
    record.spans.clear()
    record.events.append(Event(5.6, "notified", 2, 1, "", text="notification"))


def notifications_out_of_order(record: Record, tables: Tables) -> None:
    record.spans.clear()
    record.events.append(Event(5.35, "notified", 2, 2, "", text="another"))
    tables.rows.append(StoredRow(6, 2, 2))


def a_duration_without_its_effect(_record: Record, tables: Tables) -> None:
    tables.due.clear()


def a_duration_that_ended_early(_record: Record, tables: Tables) -> None:
    tables.periods[1] = Period(4, 2_000, 2_700)


def a_duration_with_two_effects(_record: Record, tables: Tables) -> None:
    tables.due.append(4)


def a_task_that_was_done_twice(_record: Record, tables: Tables) -> None:
    tables.tasks[1] += ["PROCESSING", "SUCCEEDED"]


def a_task_that_nobody_begins(_record: Record, tables: Tables) -> None:
    del tables.tasks[1][1:]


def an_action_that_does_not_come(record: Record, tables: Tables) -> None:
    tables.actions[3].append(2)


def an_action_that_comes_twice(record: Record, _tables: Tables) -> None:
    record.events.append(Event(31.0, "delivered", 4, 1, "c", 7))


def an_action_that_comes_again_without_a_fault(record: Record, _tables: Tables) -> None:
    record.spans.clear()


def a_count_that_lacks_messages(record: Record, _tables: Tables) -> None:
    record.counts.append(Count("b", 3, 2, 4))


def a_fold_that_is_not_as_the_log(_record: Record, tables: Tables) -> None:
    tables.folds["b"] = _FOLD._replace(sum=7)


def an_acknowledgement_of_a_node_that_is_cut_off(record: Record, _tables: Tables) -> None:
    record.events.append(Event(12.0, "acknowledged", 1, 4, "a", 1))


def a_refusal_without_its_reason(record: Record, _tables: Tables) -> None:
    record.events.append(Event(21.0, "refused", 2, 2, "a", text="500"))


def a_message_that_another_node_does_not_show(record: Record, _tables: Tables) -> None:
    record.events.append(Event(5.3, "missing", 2, 1, "b"))


def others_that_wait(record: Record, _tables: Tables) -> None:
    record.events = [one for one in record.events if not 42 < one.at < 54]


def works_of_others_that_wait(record: Record, _tables: Tables) -> None:
    record.events = [one for one in record.events if not (42 < one.at < 54 and one.what == "changed")]


_BREAKS: dict[Callable[[Record, Tables], None], str] = {
    a_position_twice: "R1",
    a_row_that_a_feed_left_out: "R1",
    a_row_before_one_that_was_read: "R1",
    a_lost_message: "R2",
    a_message_that_is_stored_twice: "R2",
    a_row_of_a_former_connection: "R3",
    two_holders: "R4",
    an_older_epoch: "R4",
    a_fact_that_is_not_heard: "R5",
    a_fact_that_is_missing: "R5",
    a_revoked_token: "R6",
    a_read_with_a_revoked_token: "R6",
    an_effect_that_is_left_out: "R7",
    an_effect_too_many: "R7",
    no_notification: "R7",
    two_notifications: "R7",
    a_notification_that_came_twice_without_a_fault: "R7",
    notifications_out_of_order: "R7",
    a_duration_without_its_effect: "R7",
    a_duration_that_ended_early: "R7",
    a_duration_with_two_effects: "R7",
    a_task_that_was_done_twice: "R7",
    a_task_that_nobody_begins: "R7",
    an_action_that_does_not_come: "R2",
    an_action_that_comes_twice: "R2",
    an_action_that_comes_again_without_a_fault: "R2",
    a_count_that_lacks_messages: "R9",
    a_fold_that_is_not_as_the_log: "R9",
    an_acknowledgement_of_a_node_that_is_cut_off: "R8",
    a_refusal_without_its_reason: "R8",
    a_message_that_another_node_does_not_show: "R9",
    others_that_wait: "R11",
    works_of_others_that_wait: "R11",
}


def test_a_history_that_keeps_all_rules_has_no_problem() -> None:
    assert problems(*history()) == []


def test_a_message_that_is_stored_late_repeats_the_newest_value() -> None:
    """A node that was away had received it before others stored newer ones."""
    rows = [StoredRow(1, 2, 1, ts=1), StoredRow(2, 2, 3, ts=3), StoredRow(3, 2, 2, ts=2), StoredRow(4, 2, 4, ts=4)]
    assert due_effects(rows, 2, 1) == {1: 1, 3: 2, 4: 1}


def test_the_end_of_a_duration_that_is_stored_late_may_be_missed() -> None:
    record, tables = history()
    tables.periods[1] = Period(4, 2_000, 2_700)
    assert any(problems(record, tables))
    record.events += [Event(70.0, "sent", 3, -5, "a"), Event(71.0, "acknowledged", 3, -5, "a")]
    tables.rows.append(StoredRow(7, 3, -5))
    assert not [one for one in problems(record, tables) if "duration" in one]


@pytest.mark.parametrize("break_", _BREAKS, ids=lambda break_: break_.__name__)
def test_a_history_that_breaks_a_rule_is_found(break_: Callable[[Record, Tables], None]) -> None:
    record, tables = history()
    break_(record, tables)
    found = {problem.split(":")[0] for problem in problems(record, tables)}
    assert _BREAKS[break_] in found


def test_each_rule_has_a_history_that_breaks_it() -> None:
    assert set(_BREAKS.values()) == set(PREDICATES)
