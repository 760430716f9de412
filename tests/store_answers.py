"""Questions to a daemon about its messages, whose answers are the same wherever its store is."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id

_DAY_MS: Final = 86_400_000
_FILTERS: Final = ("text=usual", "state=true", "intensity=7", "text=usual,state=false", "temperature=21.5", "none=1")


@dataclass(frozen=True, slots=True)
class Questions:
    """`count` random searches of the days before `end_ms`, and a tenth of that of snapshots and aggregates."""

    devices: int
    end_ms: int
    count: int
    seed: int = 1

    def answers(self, daemon: Daemon) -> dict[str, Any]:
        """Status and body of each answer, by question."""
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=120) as client:
            found = {}
            for path, parameters in self._all():
                answer = client.get(path, params=parameters)
                found[f"{path} {parameters}"] = answer.status_code, answer.content
        return found

    def _all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        chance = Random(self.seed)  # noqa: S311 - the same questions each time
        ids = [device_id(number) for number in range(self.devices)]
        for _ in range(self.count):
            yield "/messages", self._search(chance, ids)
        for _ in range(max(1, self.count // 10)):
            some = chance.sample(ids, min(len(ids), chance.randint(1, 20)))
            yield "/messages/snapshots", {"sdids": ",".join(some), "includeTimestamp": chance.choice(("true", "false"))}
            yield "/messages/last", {"sdids": ",".join(some), "count": chance.randint(1, 50)}
            field = {"sdid": chance.choice(ids), "field": chance.choice(("temperature", "intensity"))}
            yield "/messages/analytics/aggregates", field | self._times(chance, 30)
            for interval, days in (("day", 29), ("hour", 1)):
                times = self._times(chance, days) | {"interval": interval}
                yield "/messages/analytics/histogram", field | times
                yield "/messages/presence", times

    def _times(self, chance: Random, days: int) -> dict[str, int]:
        """A range of up to so many days, in the last 31."""
        end = self.end_ms - chance.randint(0, (31 - days) * _DAY_MS)
        return {"startDate": end - chance.randint(1, days * _DAY_MS), "endDate": end}

    def _search(self, chance: Random, ids: list[str]) -> dict[str, Any]:
        asked = self._times(chance, 30) | {"count": chance.randint(1, 100), "order": chance.choice(("asc", "desc"))}
        if chance.random() < 0.8:
            asked["sdid"] = chance.choice(ids)
        if chance.random() < 0.3:
            asked["filter"] = chance.choice(_FILTERS)
        if chance.random() < 0.2:
            asked["fieldPresence"] = chance.choice(("temperature", "colorRGB", "text"))
        return asked
