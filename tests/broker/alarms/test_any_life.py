"""Any messages, any crashes, any people: the alarms are those that follow from the log (reference 12.12)."""

import random
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.rules.running.engine import RuleEngine
from tests.broker.alarms.test_life import alarms, ringing
from tests.broker.rules.home import Home
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, build_world
from tests.fakes import FakeClock
from tests.properties import examples

pytestmark = pytest.mark.slow


_AFTER_SECONDS: Final = 20
_STEPS: Final = 60

#: When an alarm was raised and cleared, and how often its rule triggered in between.
Alarm = tuple[int, int | None, int]


class Model:
    """The alarms of a rule that triggers at values below 10."""

    def __init__(self, clear_after: int | None) -> None:
        self._after_ms = None if clear_after is None else clear_after * 1000
        self._last_ms = 0
        self.value = 99
        self.alarms: list[Alarm] = []

    @property
    def _open(self) -> Alarm | None:
        return self.alarms[-1] if self.alarms and self.alarms[-1][1] is None else None

    def _clear(self, at_ms: int) -> None:
        if (one := self._open) is not None:
            self.alarms[-1] = (one[0], at_ms, one[2])

    def passes(self, now_ms: int) -> None:
        if self._after_ms is not None and now_ms >= self._last_ms + self._after_ms:
            self._clear(self._last_ms + self._after_ms)

    def message(self, value: int, now_ms: int) -> None:
        self.passes(now_ms)
        self.value = value
        if value >= 10:
            if self._after_ms is None:
                self._clear(now_ms)
            return
        self._last_ms = now_ms
        if (one := self._open) is not None:
            self.alarms[-1] = (one[0], None, one[2] + 1)
        else:
            self.alarms.append((now_ms, None, 1))

    def by_hand(self, now_ms: int) -> None:
        self._clear(now_ms)


@pytest.mark.parametrize("clear_after", [None, _AFTER_SECONDS])
@pytest.mark.parametrize("seed", range(examples(20)))
async def test_alarms_follow_from_the_log(
    opener: ServicesOpener,
    fake_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    clear_after: int | None,
    seed: int,
) -> None:
    """A crash forgets what the engine has not committed: nothing is saved at the end."""

    async def nothing(_self: Any) -> None:
        """As after a kill."""

    monkeypatch.setattr(RuleEngine, "save", nothing)
    chance, model, is_made = random.Random(seed), Model(clear_after), False  # noqa: S311 - no secret
    steps = _STEPS
    while steps > 0:
        async with opener() as services:
            if not is_made:
                await build_world(services.core.database, services.core.vault)
                more = {} if clear_after is None else {"clearAfter": clear_after}
                await Home(services).rule(ringing(**more))
                is_made = True
            home = Home(services)
            await wait_all_tasks_blocked()
            for _ in range(chance.randint(1, 15)):
                steps -= 1
                fake_clock.advance(chance.choice((0, 1, 900, 5_000, 19_999, 20_000, 70_000)))
                if chance.random() < 0.1:
                    await home.says({"temperature": 1})  # the rule looks at the last value
                    model.message(model.value, fake_clock.now)
                    for one in await alarms(services):
                        if one.cleared_on is None and not one.is_storm:
                            await services.alarms.alarms.clear_by_hand(one, by="user ada")
                    await wait_all_tasks_blocked()
                    model.by_hand(fake_clock.now)
                    continue
                value = chance.choice((3, 30))
                await home.says({"intensity": value})
                model.message(value, fake_clock.now)
    async with opener() as services:
        await wait_all_tasks_blocked()
        found = [(one.raised_on, one.cleared_on, one.count) for one in reversed(await alarms(services))]
    assert found == model.alarms
    assert found[0][0] >= NOW_MS
