"""State of a rule before a position of the log, with few reads."""

import random
from collections.abc import Sequence
from functools import partial

import pytest

from broker.messages.decoding import Decoded, decoded
from broker.rules.running import last_values as state
from broker.rules.running.last_values import Fields, merge_message, values_at
from broker.services import Services
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.transaction import Transaction
from tests.broker.rules.home import Home
from tests.factories import HALL, KITCHEN, NOW_MS, build_world
from tests.fakes import FakeClock
from tests.properties import examples
from tests.tickets import at

pytestmark = pytest.mark.slow


_FIELDS = ("temperature", "intensity", "state", "text")
_VALUES = {"temperature": 20.5, "intensity": 3, "state": True, "text": "a"}


def _expected(tx: Transaction, device: DeviceKey, position: Position) -> Fields:
    """By the definition: every row up to the position, one after the other."""
    fields: Fields = {}
    rows = [row for row in tx.messages.after(Position(0)) if row.device == device and row.position <= position]
    for row, data in decoded(rows):
        merge_message(fields, data, row)
    return fields


@pytest.mark.both_engines
async def test_values_before_any_position_are_those_of_all_rows_up_to_it(
    services: Services, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_PAGE", 2)
    monkeypatch.setattr(state, "_LOOKED_AT", 3)
    world = await build_world(services.core.database, services.core.vault)
    home, chance = Home(services), random.Random(43_09)  # noqa: S311 - the same in every run
    for _ in range(examples(420)):
        fake_clock.advance(chance.choice([1, 1_000, 61_000, 3_600_000]))
        names = chance.sample(_FIELDS[: chance.choice([1, 1, 1, 4])], 1)
        late = chance.choice([0, 0, 0, 0, 30_000, 7_200_000])
        await home.says({name: _VALUES[name] for name in names}, chance.choice([KITCHEN, HALL]), fake_clock.now - late)
        if chance.random() < 0.1:
            await services.messages.projector.flush()

    def work(tx: Transaction) -> None:
        for position in range(tx.messages.head() + 1):
            for device in (world.kitchen, world.hall):
                found = values_at(tx, device, Position(position))
                assert found == _expected(tx, device, Position(position)), (position, device)

    await services.core.database.read(work)


def _execute(sql: str, parameters: dict[str, str], tx: Transaction) -> None:
    tx.connection.execute(sql, parameters)


@pytest.mark.both_engines
async def test_a_value_of_long_ago_is_found_among_few_rows(
    services: Services, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether thousands of messages came since, or thousands without the field before; also when retention has deleted
    the rollups of finer levels."""
    world = await build_world(services.core.database, services.core.vault)
    kitchen = await services.devices.registry.get(world.kitchen)
    ingest = services.messages.ingest

    async def sends(field: bytes, count: int) -> Position:
        for _ in range(count):
            fake_clock.advance(30_000)
            position = at(ingest.submit(kitchen, b'{"%s":1}' % field))
        await ingest.wait_committed()
        await services.messages.projector.flush()
        return position

    rare = await sends(b"intensity", 1)
    middle = await sends(b"temperature", 6_000)
    await sends(b"intensity", 3_000)
    await sends(b"temperature", 1)
    read = 0

    def counting(rows: Sequence[MessageRow]) -> Decoded:
        nonlocal read
        read += len(rows)
        return decoded(rows)

    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    monkeypatch.setattr(state, "decoded", counting)
    at_ms = Milliseconds(NOW_MS + 30_000 * 6_001)
    for gone in ("none", "minute", "hour"):
        delete = "DELETE FROM rollup WHERE level = :level"
        await services.core.database.write(partial(_execute, delete, {"level": gone}))
        read = checks = 0
        found = await services.core.database.read(
            lambda tx: values_at(tx, world.kitchen, middle, upto_ms=at_ms, check=check)
        )
        assert {field: position for field, (_, position, _, _) in found.items()} == {
            "intensity": rare,
            "temperature": middle,
        }, gone
        assert read <= 2 * 20, gone
        assert checks <= 4, gone
