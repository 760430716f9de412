"""An import, a deletion and an export of the same time beside each other, while the device sends."""

from random import Random

import pytest
import trio

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.export.status import TO_DO, ExportStatus
from broker.messages import recounts
from broker.messages.intervals import HOUR_MS, MINUTE_MS
from broker.my_data import erasures, imports
from broker.services import Services
from tests.broker.export.test_exports import ada, asking, hall, kitchen, send
from tests.broker.my_data.test_erasures import START, counted, erased, expected, rounded, rows_of
from tests.broker.my_data.test_imports import brought, counts
from tests.factories import ADA

pytestmark = pytest.mark.slow


__all__ = ["ada", "hall", "kitchen"]


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(2))
async def test_rollups_say_what_the_messages_say(
    services: Services, ada: Caller, kitchen: Device, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - the same in each run
    for module, name, number in (
        (recounts, "_ROWS", 7),
        (recounts, "_STEP_CELLS", 9),
        (recounts, "_STEP_ROLLUPS", 5),
        (erasures, "_STEP_ROWS", 4),
        (imports, "_LINES_OF_TURN", 3),
    ):
        monkeypatch.setattr(module, name, number)
    times = [START + number * 11 * MINUTE_MS for number in range(60)]
    for ts in times[::2]:
        await send(services, (kitchen, ts, {"intensity": random.randrange(90), "text": "sent"}))
    first, last = START + HOUR_MS, START + 7 * HOUR_MS + random.randrange(HOUR_MS)
    table = "time,intensity\n" + "".join(f"{ts},{number}\n" for number, ts in enumerate(times))

    async def bring() -> None:
        assert counts(await brought(services, ada, table, kitchen)) == (60, 0, 0)

    async def delete() -> None:
        for _ in range(2):
            await erased(services, ada, kitchen, first, last)

    async def export() -> None:
        for _ in range(3):
            id_ = await services.export.create(ada, asking(uids=ADA, start_ms=0, format="csv"))
            while (await services.export.find(ada, id_)).status in TO_DO:
                await trio.testing.wait_all_tasks_blocked()

    async def go_on() -> None:
        for _ in range(20):
            await send(services, (kitchen, random.choice(times) + 1, {"intensity": random.randrange(90)}))

    async with trio.open_nursery() as nursery:
        for work in (bring, delete, export, go_on):
            nursery.start_soon(work)
    record = await erased(services, ada, kitchen, first, last)  # whatever came since
    rows = await services.core.database.read(lambda tx: rows_of(kitchen.key, tx))
    assert not [row for row in rows if first <= row.ts <= last]
    buckets, fields = await counted(services, kitchen.key)
    assert (rounded(buckets), fields) == (rounded(expected(rows)[0]), expected(rows)[1])
    exports, _ = await services.export.history(ada, trial=None, offset=0, count=9)
    assert {one.status for one in exports} <= {ExportStatus.EXPIRED, ExportStatus.FAILURE}, record
