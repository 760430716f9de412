"""An explanation, also after a restart, says what the plainly written reference evaluator says."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from broker.services import Services
from storage.rules import RuleRecord
from tests.broker.rules.home import Home, body
from tests.broker.rules.language.reference_evaluator import Moment, ReferenceRule
from tests.builders import ServicesOpener
from tests.factories import BOBS, HALL, KITCHEN, LIGHT_TYPE, build_world
from tests.fakes import FakeClock
from tests.properties import examples

pytestmark = pytest.mark.slow


_DEVICES = (KITCHEN, HALL, BOBS)
_OPERATORS = {"temperature": ("<", ">=", "="), "intensity": ("<", ">", "!="), "state": ("=", "!="), "text": ("=",)}
_ANY, _MATCHED, _EVERY = ({"selector": name, "dtid": LIGHT_TYPE} for name in ("any", "matched", "every"))


def _value(chance: random.Random, field: str) -> Any:
    return {
        "temperature": chance.choice([20, 20.5, 30]),
        "intensity": chance.choice([1, 2, 3]),
        "state": chance.choice([True, False]),
        "text": chance.choice(["a", "b"]),
    }[field]


def _condition(chance: random.Random, source: Any) -> dict[str, Any]:
    field = chance.choice(sorted(_OPERATORS))
    operator = chance.choice([*_OPERATORS[field], "is in message"])
    found = {"sdid": source, "field": field, "operator": operator, "operand": {"value": _value(chance, field)}}
    if chance.random() < 0.4:
        found["duration"] = {"value": chance.choice([2, 30]), "acceptUpdate": chance.random() < 0.5}
    return found


def _body(chance: random.Random) -> dict[str, Any]:
    sources: list[Any] = [chance.choice([KITCHEN, HALL])]
    sources += chance.choice(([], [_ANY], [_ANY, _MATCHED], [_EVERY], [HALL]))
    return body([_condition(chance, source) for source in sources])


def _messages(chance: random.Random, count: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Seconds before it, the device, the data."""
    for _ in range(count):
        fields = chance.sample(sorted(_OPERATORS), chance.randint(1, 3))
        yield chance.choice([1, 2, 31]), chance.choice(_DEVICES), {name: _value(chance, name) for name in fields}


class _Reference:
    """Results of the reference evaluator for one rule at each message."""

    def __init__(self, text: Mapping[str, Any], own: list[str]) -> None:
        self._rule = ReferenceRule(text)
        self._moment = Moment(own, dict.fromkeys(_DEVICES, LIGHT_TYPE))
        self.triggered = 0

    def until(self, now_ms: int) -> None:
        """Durations end."""
        self._moment.message = None
        while (due := self._rule.next_due()) is not None and due[0] <= now_ms:
            self._moment.now = due[0]
            self.triggered += self._rule.elapse(self._moment, due[1]) is not None

    def message(self, now_ms: int, device: str, data: Mapping[str, Any]) -> bool:
        moment = self._moment
        moment.now, moment.message = now_ms, (device, data)
        moment.values |= {(device, name): (value, now_ms) for name, value in data.items()}
        triggers = self._rule.message(moment) is not None
        self.triggered += triggers
        return triggers


@pytest.mark.both_engines
async def test_explanations_equal_the_reference_evaluator(opener: ServicesOpener, fake_clock: FakeClock) -> None:
    chance = random.Random(20_261_122)  # noqa: S311 - the same pairs in every run
    pairs = examples(1_700)
    rules: list[tuple[RuleRecord, dict[str, Any]]] = []
    expected: dict[tuple[str, str], bool] = {}
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        home = Home(services)
        for number in range(20):
            text = _body(chance)
            rules.append((await home.rule(text, f"Rule {number}"), text))
        devices = await services.devices.registry.owned_by(world.ada)
        own = [device.id for device in sorted(devices, key=lambda device: device.key)]
        references = {record.id: _Reference(text, own) for record, text in rules}
        watched = {record.id: await _watched(services, record) for record, _ in rules}
        for seconds, device, data in _messages(chance, 80):
            fake_clock.advance(seconds * 1000)
            mid = await home.says(data, device)
            for record, _ in rules:
                references[record.id].until(fake_clock.now)
                if device in watched[record.id]:
                    expected[record.id, mid] = references[record.id].message(fake_clock.now, device, data)
        counts = {record.id: (await services.rules.statuses.executions(record))[0] for record, _ in rules}
    async with opener() as services:
        chosen = chance.sample(sorted(expected), min(pairs, len(expected)))
        wrong = []
        for rule_id, mid in chosen:
            record = await services.rules.rulebook.find(rule_id)
            rule = await services.rules.names.compiled(record)
            why = await services.rules.explainer.of_message(record, rule, mid)
            if why.triggers is not expected[rule_id, mid]:
                wrong.append((record.body, mid, why))
        assert wrong == []
    assert sum(expected.values()) > 20, "the rules of this test trigger"
    of_reference = {id_: reference.triggered for id_, reference in references.items()}
    assert counts == of_reference, "the engine, durations included"


async def _watched(services: Services, record: RuleRecord) -> set[str]:
    """The devices whose messages concern a rule."""
    rule = await services.rules.names.compiled(record)
    found: set[str] = set()
    for watch in rule.watches:
        keys = [watch.device] if watch.device is not None else []
        found |= {id_ for key in keys if (id_ := await services.devices.registry.id_of(key))}
        if watch.device_type is not None:
            found |= {KITCHEN, HALL}
    return found
