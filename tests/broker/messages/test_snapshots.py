"""Snapshots: the last value of every field (reference 9.4), for any order of messages, flushes and restarts."""

import json
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.cluster.leases import Lease, LeaseName
from broker.devices.registry import Device
from broker.facts import Router
from broker.messages.folds import Fields
from broker.messages.projections import WRITE_SECONDS, Projector
from broker.services import Services
from storage.keys import DeviceKey, Milliseconds, Position
from storage.transaction import Transaction
from tests.builders import ServicesOpener, opener_in
from tests.factories import NOW_MS, build_world
from tests.fakes import FakeClock, HeldRunner
from tests.properties import examples
from tests.tickets import at


async def send(services: Services, device: Device, data: Mapping[str, object], ts: int | None = None) -> Position:
    position = services.messages.ingest.submit(device, json.dumps(data).encode(), ts)
    await services.messages.ingest.wait_committed()
    return at(position)


async def test_a_device_without_messages_has_no_fields(services: Services, kitchen: Device) -> None:
    assert await services.messages.snapshots.of(kitchen.key) == {}


async def test_a_value_is_visible_as_soon_as_it_is_acknowledged(
    services: Services, kitchen: Device, mock_clock: MockClock
) -> None:
    position = await send(services, kitchen, {"intensity": 7}, 5)
    assert services.messages.projector.statistics().held_rows == 1
    assert await services.messages.snapshots.of(kitchen.key) == {"intensity": (5, position, 7)}
    await services.messages.projector.flush()
    assert services.messages.projector.statistics().held_rows == 0
    assert services.messages.projector.statistics().position == position
    assert await services.messages.snapshots.of(kitchen.key) == {"intensity": (5, position, 7)}


async def test_a_late_message_fills_gaps_and_overwrites_nothing_newer(services: Services, kitchen: Device) -> None:
    newer = await send(services, kitchen, {"intensity": 7}, 100)
    late = await send(services, kitchen, {"intensity": 1, "state": True}, 50)
    assert await services.messages.snapshots.of(kitchen.key) == {
        "intensity": (100, newer, 7),
        "state": (50, late, True),
    }


@pytest.mark.parametrize("flushed", [(), (0,), (0, 1), (1,)])
async def test_values_of_a_clock_that_was_ahead_give_way_to_later_messages(
    services: Services, kitchen: Device, fake_clock: FakeClock, flushed: tuple[int, ...]
) -> None:
    """Whatever of it was projected by then (reference 27.7)."""
    hour_ms = 3_600_000
    fake_clock.now += hour_ms
    ahead = await send(services, kitchen, {"intensity": 1, "text": "ahead"})
    if 0 in flushed:
        await services.messages.projector.flush()
    fake_clock.now -= hour_ms
    position = await send(services, kitchen, {"intensity": 2})
    late = await send(services, kitchen, {"intensity": 3, "state": True}, NOW_MS - hour_ms)
    if 1 in flushed:
        await services.messages.projector.flush()
    assert await services.messages.snapshots.of(kitchen.key) == {
        "intensity": (NOW_MS, position, 2),
        "text": (NOW_MS + hour_ms, ahead, "ahead"),
        "state": (NOW_MS - hour_ms, late, True),
    }


async def test_of_equal_ts_the_last_received_counts(services: Services, kitchen: Device) -> None:
    await send(services, kitchen, {"intensity": 1}, 100)
    await services.messages.projector.flush()
    last = await send(services, kitchen, {"intensity": 2}, 100)
    assert await services.messages.snapshots.of(kitchen.key) == {"intensity": (100, last, 2)}


async def test_groups_are_projected_field_by_field_and_collections_as_a_whole(
    services: Services, kitchen: Device
) -> None:
    first = await send(services, kitchen, {"colorRGB": {"r": 1, "g": 2}, "samples": [1, 2]}, 1)
    second = await send(services, kitchen, {"colorRGB": {"g": 3}, "samples": []}, 2)
    expected = {"colorRGB.r": (1, first, 1), "colorRGB.g": (2, second, 3), "samples": (2, second, [])}
    assert await services.messages.snapshots.of(kitchen.key) == expected
    await services.messages.projector.flush()
    assert await services.messages.snapshots.of(kitchen.key) == expected


async def test_a_failed_message_leaves_no_trace(services: Services, kitchen: Device) -> None:
    await send(services, kitchen, {"unknown": 1})
    assert await services.messages.snapshots.of(kitchen.key) == {}


async def test_devices_do_not_mix(services: Services, kitchen: Device, hall: Device) -> None:
    await send(services, kitchen, {"intensity": 1})
    assert await services.messages.snapshots.of(hall.key) == {}


async def test_snapshots_are_written_once_a_minute(
    services: Services, kitchen: Device, autojump_clock: MockClock
) -> None:
    position = await send(services, kitchen, {"intensity": 1})
    await trio.sleep(WRITE_SECONDS - 1)
    statistics = services.messages.projector.statistics()
    assert (statistics.held_rows, statistics.position) == (0, position)
    assert (statistics.unwritten_devices, statistics.written_position) == (1, 0)
    await trio.sleep(3)
    statistics = services.messages.projector.statistics()
    assert (statistics.unwritten_devices, statistics.written_position) == (0, position)


async def test_rows_that_come_during_a_flush_are_not_lost(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        await send(services, kitchen, {"intensity": 1})
        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.messages.projector.flush)
            last = await send(services, kitchen, {"intensity": 2})
            runner.reads.set()
        assert await services.messages.snapshots.of(kitchen.key) == {"intensity": (NOW_MS, last, 2)}
        await services.messages.projector.flush()
        assert await services.messages.snapshots.of(kitchen.key) == {"intensity": (NOW_MS, last, 2)}


async def test_rows_not_projected_before_a_crash_are_projected_after_the_next_start(
    opener: ServicesOpener,
) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        positions = [await send(services, kitchen, {"intensity": number}, number) for number in range(5)]
        await services.messages.projector.flush()

        def go_back(tx: Transaction) -> None:
            tx.messages.set_consumer_position("folds", Position(positions[1]))

        await services.core.database.write(go_back)
        behind = Projector(services.core.database, Lease(LeaseName.FOLDS), Router())
        await behind.resume()
        assert behind.statistics().position == positions[1]
        await behind.flush()
        assert behind.statistics().position == positions[-1]
        assert await services.messages.snapshots.of(kitchen.key) == {"intensity": (4, positions[-1], 4)}


@dataclass(frozen=True)
class Send:
    device: DeviceKey
    ts: int
    data: Mapping[str, object]


data = st.dictionaries(st.sampled_from(["state", "intensity"]), st.integers(0, 1)).flatmap(
    lambda flat: st.one_of(
        st.just({**flat, "text": "x"}),
        st.lists(st.integers(0, 3), max_size=2).map(lambda items: {**flat, "samples": items}),
        st.dictionaries(st.sampled_from("rgb"), st.integers(0, 3), min_size=1).map(
            lambda group: {**flat, "colorRGB": group}
        ),
    )
)
steps = st.lists(
    st.one_of(
        st.builds(Send, st.integers(0, 1), st.integers(0, 4), data),
        st.builds(Send, st.integers(0, 1), st.integers(0, 4), data),
        st.builds(Send, st.integers(0, 1), st.integers(0, 4), data),
        st.sampled_from(["flush", "restart", "restart and fold everything again"]),
    ),
    max_size=20,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps)
def test_snapshots_equal_a_plain_recomputation(steps: list[Send | str]) -> None:
    trio.run(_compare_with_recomputation, steps)


async def _compare_with_recomputation(steps: list[Send | str]) -> None:
    expected: list[Fields] = [{}, {}]
    keys: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        opener = opener_in(Path(folder))
        async with AsyncExitStack() as stack:

            async def start() -> Services:
                await stack.aclose()
                return await stack.enter_async_context(opener())

            services = await start()
            world = await build_world(services.core.database, services.core.vault)
            keys = [world.kitchen, world.hall]
            for step in steps:
                if isinstance(step, Send):
                    device = await services.devices.registry.get(DeviceKey(keys[step.device]))
                    position = await send(services, device, step.data, step.ts)
                    row = await services.core.database.read(lambda tx, p=position: tx.messages.message(p))  # type: ignore[misc]
                    assert row is not None
                    for path, value in _leaves(json.loads(row.data)):
                        known = expected[step.device].get(path)
                        if known is None or (step.ts, position) > known[:2]:
                            expected[step.device][path] = (Milliseconds(step.ts), position, value)
                elif step == "flush":
                    await services.messages.projector.flush()
                else:
                    if step != "restart":
                        await services.core.database.write(
                            lambda tx: tx.messages.set_consumer_position("folds", Position(0))
                        )
                    services = await start()
                assert [await services.messages.snapshots.of(DeviceKey(key)) for key in keys] == expected


def _leaves(group: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in group.items():
        leaves += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return leaves
