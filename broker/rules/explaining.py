"""Says how each condition came out, with the values it looked at (reference 12.7).

An explanation asks the same compiled conditions as the evaluation; it goes on where the evaluation would stop.
"""

from dataclasses import replace

from broker.rules.conditions import Choice, Condition, TimeCondition
from broker.rules.evaluation import Cause, Conditions, Group, after, device_of, holds
from broker.rules.outcomes import SEEN_MAX, ConditionReport, Explanation, Outcome, Timers
from broker.rules.values import Bound
from broker.rules.view import View
from storage.keys import DeviceKey, DeviceTypeKey


def explain(conditions: Conditions, view: View, timers: Timers, outcome: Outcome, cause: Cause) -> Explanation:
    """The reports on an outcome. `timers` are those before it."""
    now = after(timers, outcome.timers)
    bound: dict[DeviceTypeKey, DeviceKey] = {}
    for group in conditions.groups:
        device = conditions.chosen(group, view, now, cause)
        if device is None:
            device = _nearest(conditions, group, view, now, cause)
        if device is not None:
            bound[group.device_type] = device
    if outcome.match is not None:
        bound |= outcome.match.devices
    reports = (
        _every(conditions, condition, view, bound, now)
        if condition.choice is Choice.EVERY
        else _one(condition, view, device_of(condition, bound), bound, now)
        for condition in conditions.all
    )
    return Explanation(outcome, tuple(reports))


def _one(condition: Condition, view: View, device: DeviceKey, bound: Bound, timers: Timers) -> ConditionReport:
    if condition.choice is not None and not device:  # the owner has no device of the type
        return ConditionReport(condition.path, held=False)
    return ConditionReport(
        condition.path,
        holds(condition, view, device, bound, timers),
        device if condition.choice is not None else None,
        tuple(condition.looks_at(view, device, bound)[:SEEN_MAX]),
        condition.operand_value(view, bound),
        condition.output(view, device),
        timers.get((condition.index, device)),
        None if condition.duration is None else condition.holds(view, device, bound),
        condition.schedule if isinstance(condition, TimeCondition) else None,
    )


def _every(conditions: Conditions, condition: Condition, view: View, bound: Bound, timers: Timers) -> ConditionReport:
    """On a condition with `every`: one report on all devices of the type."""
    reports = [_one(condition, view, device, bound, timers) for device in conditions.every_device(condition, view)]
    reports.sort(key=lambda report: _ORDER.index(report.held))
    if not reports:
        return ConditionReport(condition.path, held=False)
    seen = {(found.device, found.field): found for report in reports for found in report.seen}
    return replace(reports[0], device=None, seen=tuple(seen.values())[:SEEN_MAX])


_ORDER = (False, None, True)


def _nearest(conditions: Conditions, group: Group, view: View, timers: Timers, cause: Cause) -> DeviceKey | None:
    """The candidate that satisfies most conditions, for the reports on a group that no device satisfies."""
    if cause.device_type == group.device_type and cause.only:
        return cause.device

    def score(device: DeviceKey) -> int:
        bound = {group.device_type: device}
        return sum(
            holds(condition, view, device_of(condition, bound), bound, timers) is True for condition in group.conditions
        )

    return max(view.devices_of(conditions.owner, group.device_type), key=score, default=None)
