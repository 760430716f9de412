"""Deleting messages: what is left is counted as if the others had never come (reference 9.12)."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from broker.accounts.tokens import Caller
from broker.cluster.leases import LeaseName
from broker.devices.registry import Device
from broker.errors import PermissionDenied, ValidationFailed
from broker.export.status import ExportStatus
from broker.messages import recounts
from broker.messages.decoding import decoded
from broker.messages.folds import Fields, merge_fields, open_buckets, saved_fields
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS
from broker.messages.rollups import LEVELS, Buckets, Cells, collect, merge_into, summarised, summary_of
from broker.my_data import erasures
from broker.my_data.erasures import ErasureStatistics, TooManyErasures
from broker.services import Services
from storage.erasures import ErasureRecord, ErasureStore
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import Range
from storage.records import AuditFilter, MessageRow, RollupRow
from storage.rollups import RollupStore
from storage.transaction import Transaction
from tests.broker.export.test_exports import ada, asking, finished, hall, kitchen, send
from tests.factories import BOB_TOKEN, BOBS, KITCHEN, NOW_MS
from tests.properties import examples

pytestmark = pytest.mark.slow


__all__ = ["ada", "hall", "kitchen"]

START = NOW_MS - 3 * DAY_MS


def rows_of(device: DeviceKey, tx: Transaction) -> list[MessageRow]:
    return tx.message_searches.page([device], Range(None, None, by_arrival=True))


async def erased(services: Services, caller: Caller, device: Device, start_ms: int, end_ms: int) -> ErasureRecord:
    """What was asked for, when it is done."""
    asked = await services.my_data.erasures.create(caller, device, start_ms, end_ms)
    while True:
        record = (await services.my_data.erasures.find(caller, asked.record.id)).record
        if record.ended_on is not None:
            return record
        await trio.testing.wait_all_tasks_blocked()


async def counted(services: Services, device: DeviceKey) -> tuple[dict[Any, Any], dict[str, Any]]:
    """All rollups of a device, and its snapshot, as reads put them together."""
    await services.messages.projector.flush()

    def read(tx: Transaction) -> tuple[Buckets, Fields]:
        buckets: Buckets = {}
        for level, _ in LEVELS:
            for _field, first in tx.erasures.first_buckets(device, level, 0, 2**60):
                bucket: int | None = first
                while bucket is not None:
                    found: Cells = {path: summary_of(row) for path, row in tx.rollups.in_bucket(device, level, bucket)}
                    buckets[level, bucket] = found
                    bucket = tx.rollups.first(
                        device, _field, level, start_ms=Milliseconds(bucket + 1), end_ms=Milliseconds(2**60)
                    )
        saved = tx.snapshots.of(device)
        buckets |= open_buckets(saved)
        return buckets, {}

    buckets, _ = await services.core.database.read(read)
    _, fields = services.messages.projector.fields_of([device])
    if device in fields:
        snapshot = dict(fields[device][1])
    else:
        snapshot, _ = await services.core.database.read(lambda tx: saved_fields(tx, device))
    return buckets, snapshot


def expected(rows: list[MessageRow]) -> tuple[Buckets, Fields]:
    buckets: Buckets = {}
    fields: Fields = {}
    for minute, values in collect(decoded(rows)).items():
        for level, width in LEVELS:
            merge_into(buckets.setdefault((level, minute - minute % width), {}), summarised(values))
    for row, data in decoded(rows):
        merge_fields(fields, data, row)
    return buckets, fields


def rounded(buckets: Buckets) -> dict[Any, Any]:
    """Without what differs by the order in which numbers were added."""
    return {
        place: {
            path: (one.count, one.numbers and (one.numbers.count, one.numbers.min, one.numbers.max, one.numbers.sum))
            for path, one in cells.items()
        }
        for place, cells in buckets.items()
        if cells
    }


@pytest.mark.parametrize("seed", range(examples(20)))
async def test_what_is_left_is_counted_as_if_the_others_had_never_come(
    services: Services, ada: Caller, kitchen: Device, hall: Device, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - the same in each run
    monkeypatch.setattr(recounts, "_ROWS", 7)
    monkeypatch.setattr(recounts, "_STEP_ROLLUPS", 3)
    monkeypatch.setattr(erasures, "_STEP_ROWS", 5)

    async def some(number: int) -> None:
        fields: list[dict[str, object]] = [
            {"intensity": random.randrange(100)},
            {"temperature": float(random.randrange(-9, 9)), "text": random.choice("abc")},
            {"state": random.random() < 0.5, "colorRGB": {"r": random.randrange(9)}},
        ]
        for _ in range(number):
            ts = START + random.choice((MINUTE_MS, HOUR_MS, 3 * DAY_MS)) * random.randrange(1, 60) // 60
            await send(services, (random.choice((kitchen, hall)), ts, random.choice(fields)))
            if random.random() < 0.1:
                await services.messages.projector.flush()

    await some(60)
    for _ in range(3):
        await some(10)
        first = START + random.choice((0, MINUTE_MS, HOUR_MS, DAY_MS)) + random.randrange(HOUR_MS)
        last = first + random.choice((0, MINUTE_MS, HOUR_MS, 2 * DAY_MS))
        before = await services.core.database.read(partial(rows_of, kitchen.key))
        record = await erased(services, ada, kitchen, first, last)
        gone = [row for row in before if first <= row.ts <= last]
        assert record.deleted == len(gone)
        await some(3)
        rows = await services.core.database.read(partial(rows_of, kitchen.key))
        assert not {row.position for row in gone} & {row.position for row in rows}
        buckets, fields = await counted(services, kitchen.key)
        assert (rounded(buckets), fields) == (rounded(expected(rows)[0]), expected(rows)[1])
    rows = await services.core.database.read(partial(rows_of, hall.key))
    buckets, fields = await counted(services, hall.key)
    assert (rounded(buckets), fields) == (rounded(expected(rows)[0]), expected(rows)[1])


@pytest.mark.both_engines
async def test_a_device_that_goes_on_sending_is_counted_to_its_last_message(
    services: Services, ada: Caller, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages come while it is counted than may be added while the projector waits."""
    monkeypatch.setattr(recounts, "_ROWS", 20)
    monkeypatch.setattr(recounts, "_MORE_ROWS", 4)
    monkeypatch.setattr(recounts, "_STEP_ROLLUPS", 10)
    monkeypatch.setattr(erasures, "_PAUSE_SECONDS", 0.01)  # in which the device sends
    for number in range(40):
        await send(services, (kitchen, START + number * MINUTE_MS, {"intensity": number, "temperature": 1.0}))
    await services.messages.projector.flush()

    async def go_on() -> None:
        number = 0
        while True:
            number += 1
            await send(services, (kitchen, START + number % 40 * MINUTE_MS + 7, {"intensity": number}))
            await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        record = await erased(services, ada, kitchen, START, START + DAY_MS)
        nursery.cancel_scope.cancel()
    assert record.deleted >= 40
    rows = await services.core.database.read(partial(rows_of, kitchen.key))
    assert len(rows) > recounts._MORE_ROWS
    buckets, fields = await counted(services, kitchen.key)
    assert (rounded(buckets), fields) == (rounded(expected(rows)[0]), expected(rows)[1])


async def test_a_recount_is_in_small_steps_between_which_others_commit(
    services: Services, ada: Caller, kitchen: Device, hall: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("_ROWS", 20), ("_STEP_ROLLUPS", 10), ("_STEP_CELLS", 12), ("_MORE_ROWS", 5)):
        monkeypatch.setattr(recounts, name, number)
    for number in range(120):
        ts = START + number * 7 * MINUTE_MS
        await send(services, (kitchen, ts, {"intensity": number, "temperature": 1.0, "text": "a"}))
    await services.messages.projector.flush()
    before = await counted(services, kitchen.key)
    sizes, steps = list[int](), 0
    put_all, delete = RollupStore.put_all, ErasureStore.delete_buckets

    def put_some(store: RollupStore, rows: Iterable[RollupRow]) -> None:
        rows = list(rows)
        sizes.append(len([one for one in rows if one.device == kitchen.key]))
        put_all(store, rows)

    def delete_some(store: ErasureStore, device: DeviceKey, level: str, fields: Iterable[int], *of: int) -> None:
        sizes.append(len(list(fields)))
        delete(store, device, level, fields, *of)

    monkeypatch.setattr(RollupStore, "put_all", put_some)
    monkeypatch.setattr(ErasureStore, "delete_buckets", delete_some)

    @asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        nonlocal steps
        yield
        await send(services, (hall, START + steps, {"intensity": steps}))  # comes back when it is stored
        steps += 1

    everything = recounts.Erased(kitchen.key, Milliseconds(START), Milliseconds(START + DAY_MS), Position(0))
    await recounts.Recounts(
        services.core.database, services.messages.projector, services.core.leases.of(LeaseName.FOLDS)
    ).recount(everything, turn)
    assert steps > 100
    assert max(sizes) <= 12
    after = await counted(services, kitchen.key)
    assert (rounded(after[0]), after[1]) == (rounded(before[0]), before[1])


@pytest.mark.both_engines
async def test_a_small_deletion_ends_while_a_large_one_of_another_user_goes_on(
    services: Services, ada: Caller, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recounts, "_ROWS", 1)
    monkeypatch.setattr(erasures, "_PAUSE_SECONDS", 0.01)  # in which the other one is looked at
    bob = await services.accounts.tokens.caller(BOB_TOKEN)
    bobs = await services.devices.registry.find(BOBS)
    for number in range(200):
        await send(services, (kitchen, START + number * MINUTE_MS, {"intensity": number}))
    await send(services, (bobs, START, {"intensity": 1}))
    large = await services.my_data.erasures.create(ada, kitchen, START, START)
    assert (await erased(services, bob, bobs, START, START)).deleted == 1
    goes_on = (await services.my_data.erasures.find(ada, large.record.id)).record
    assert (goes_on.deleted, goes_on.ended_on) == (1, None)


@pytest.mark.both_engines
async def test_failed_messages_go_and_exports_end_and_the_audit_log_knows(
    services: Services, ada: Caller, kitchen: Device
) -> None:
    await send(services, (kitchen, START, {"intensity": 1}), (kitchen, START + 1, {"unknown": 1}))
    inside = await services.export.create(ada, asking(sdids=KITCHEN, start_ms=START))
    beside = await services.export.create(ada, asking(sdids=KITCHEN, start_ms=START + 5))
    for one in (inside, beside):
        assert (await finished(services, ada, one)).status is ExportStatus.SUCCESS
    await erased(services, ada, kitchen, START, START + 2)
    assert (await finished(services, ada, inside)).status is ExportStatus.EXPIRED
    assert (await finished(services, ada, beside)).status is ExportStatus.SUCCESS
    failed, _ = await services.core.database.read(lambda tx: tx.messages.failed(kitchen.key, offset=0, limit=9))
    assert failed == []
    assert services.my_data.erasures.statistics() == ErasureStatistics(finished=1, messages=1)
    (entry,) = await services.core.audit.find(AuditFilter(0, 2**60, 9, event="messages_deleted"))
    assert (entry.object, entry.details["startDate"]) == (f"device {KITCHEN}", START)


@pytest.mark.both_engines
async def test_another_user_sees_no_deletion(services: Services, ada: Caller, kitchen: Device) -> None:
    record = await erased(services, ada, kitchen, 0, 1)
    bob = await services.accounts.tokens.caller("32" * 16)
    with pytest.raises(PermissionDenied):
        await services.my_data.erasures.find(bob, record.id)
    assert await services.my_data.erasures.latest(bob) == []
    with pytest.raises(ValidationFailed):
        await services.my_data.erasures.create(ada, kitchen, 2, 1)


async def test_a_user_has_a_bound_of_deletions(
    services: Services, ada: Caller, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "ERASURES_OF_USER", 0)
    with pytest.raises(TooManyErasures):
        await services.my_data.erasures.create(ada, kitchen, 0, 1)
