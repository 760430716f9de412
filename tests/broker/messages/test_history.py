"""Searches (reference 9.3 and 9.4): pages in the order of ts, then arrival; and the last messages."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from broker.devices.registry import Device
from broker.envelope import Message
from broker.errors import ValidationFailed
from broker.messages import history
from broker.messages.history import Cursors, MessagePage, Search
from broker.services import Services
from broker.trace.origin import Origin, enter, on_whose_account
from config.limits import CURSOR_MAX_CHARACTERS
from storage import log_index, message_searches
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import EVERYTHING, FieldMatch, SortKey
from storage.records import MessageRow
from storage.transaction import Transaction
from tests.builders import opener_in
from tests.factories import ACME, KITCHEN, LIGHT_TYPE, NOW_MS, World, build_world, new_device
from tests.properties import examples
from tests.stores import index
from tests.tickets import at

Order = Literal["asc", "desc"]


async def send(services: Services, *messages: tuple[Device, int]) -> list[Position]:
    """Store a message of each device with each ts; return their positions."""
    positions = [at(services.messages.ingest.submit(device, b'{"state":true}', ts)) for device, ts in messages]
    await services.messages.ingest.wait_committed()
    return positions


def places(messages: Sequence[Message]) -> list[tuple[int, int]]:
    return [(message.ts, message.position) for message in messages]


async def page(
    services: Services,
    devices: Sequence[Device],
    *,
    start: int = 0,
    end: int = NOW_MS,
    order: Order = "asc",
    count: int = 100,
    cursor: str = "",
    match: FieldMatch = EVERYTHING,
) -> MessagePage[Message]:
    return await services.messages.history.messages(
        Search(
            devices=devices,
            start_ms=Milliseconds(start),
            end_ms=Milliseconds(end),
            order=order,
            count=count,
            cursor=cursor,
            match=match,
        )
    )


# By id


async def test_a_message_is_found_by_its_mid(services: Services, kitchen: Device) -> None:
    (position,) = await send(services, (kitchen, 5))
    mid = services.messages.ingest.mid(Position(position))
    assert await services.messages.history.by_mid(mid) == (
        Message(
            position=Position(position),
            mid=mid,
            sdid=KITCHEN,
            sdtid=LIGHT_TYPE,
            uid=kitchen.owner_id,
            boid=ACME,
            ts=Milliseconds(5),
            cts=NOW_MS,
            mv=1,
            data='{"state":true}',
        ),
        kitchen,
    )


async def test_an_action_or_a_deleted_message_is_not_found_by_mid(services: Services, kitchen: Device) -> None:
    (position,) = await send(services, (kitchen, 5))
    action = services.messages.ingest.submit_action(kitchen, kitchen, b'{"actions":[{"name":"a"}]}')
    await services.messages.ingest.wait_committed()
    await services.core.database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
    for number in (position, action, action + 1):
        assert await services.messages.history.by_mid(services.messages.ingest.mid(Position(number))) is None
    assert await services.messages.history.by_mid("x") is None


# Pages


async def test_without_messages_there_is_one_empty_page(services: Services, kitchen: Device) -> None:
    assert await page(services, [kitchen]) == MessagePage((), None, None)
    assert await page(services, []) == MessagePage((), None, None)


async def test_both_ends_of_a_range_belong_to_it(services: Services, kitchen: Device) -> None:
    await send(services, (kitchen, 10), (kitchen, 20), (kitchen, 30))
    for start, end, found in (
        (0, NOW_MS, [10, 20, 30]),
        (10, 30, [10, 20, 30]),
        (11, 29, [20]),
        (20, 20, [20]),
        (21, 29, []),
        (30, 10, []),
        (-(10**30), 10**30, [10, 20, 30]),
        (10**30, 10**31, []),
        (-(10**31), -(10**30), []),
    ):
        messages = (await page(services, [kitchen], start=start, end=end)).messages
        assert [message.ts for message in messages] == found, (start, end)


async def test_equal_ts_are_ordered_by_arrival(services: Services, kitchen: Device, hall: Device) -> None:
    positions = await send(services, (kitchen, 5), (hall, 5), (kitchen, 5), (hall, 1))
    first, second, third, late = positions
    assert places((await page(services, [hall, kitchen])).messages) == [(1, late), (5, first), (5, second), (5, third)]


async def test_a_search_returns_messages_of_the_given_devices_only(
    services: Services, kitchen: Device, hall: Device
) -> None:
    await send(services, (kitchen, 1), (hall, 2))
    assert [message.sdid for message in (await page(services, [hall])).messages] == [hall.id]


@pytest.mark.both_engines
async def test_a_device_that_is_named_twice_counts_once(services: Services, kitchen: Device, hall: Device) -> None:
    await send(services, (kitchen, 1), (hall, 2))
    twice = [kitchen, hall, kitchen]
    assert [message.ts for message in (await page(services, twice)).messages] == [1, 2]
    assert [message.ts for message in await services.messages.history.latest(twice, count=9)] == [2, 1]


@pytest.mark.both_engines
async def test_a_full_last_page_has_no_next(services: Services, kitchen: Device) -> None:
    await send(services, *((kitchen, ts) for ts in range(4)))
    first = await page(services, [kitchen], count=2)
    assert first.prev is None
    assert first.next is not None
    last = await page(services, [kitchen], count=2, cursor=first.next)
    assert [message.ts for message in last.messages] == [2, 3]
    assert last.next is None
    assert last.prev is not None


@pytest.mark.parametrize("cursor", ["", "0"])
async def test_no_offset_means_the_first_page(services: Services, kitchen: Device, cursor: str) -> None:
    await send(services, (kitchen, 1))
    assert len((await page(services, [kitchen], cursor=cursor)).messages) == 1


async def test_a_page_whose_messages_were_deleted_is_empty_and_the_last(services: Services, kitchen: Device) -> None:
    await send(services, *((kitchen, ts) for ts in range(4)))
    first = await page(services, [kitchen], count=2)
    await services.core.database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
    assert await page(services, [kitchen], count=2, cursor=first.next or "") == MessagePage((), None, None)


@pytest.mark.both_engines
async def test_prev_is_absent_when_the_messages_before_were_deleted(services: Services, kitchen: Device) -> None:
    await send(services, *((kitchen, ts) for ts in range(4)))
    first = await page(services, [kitchen], count=2)
    await services.core.database.write(lambda tx: tx.connection.execute("DELETE FROM message WHERE ts < 2"))
    second = await page(services, [kitchen], count=2, cursor=first.next or "")
    assert [message.ts for message in second.messages] == [2, 3]
    assert second.prev is None


@pytest.mark.both_engines
async def test_a_search_takes_more_devices_than_one_statement(services: Services, world: World) -> None:
    def add_devices(tx: Transaction) -> list[int]:
        return [
            tx.devices.put_device(
                new_device(
                    f"{number:032x}",
                    owner=world.ada,
                    device_type=world.light_type,
                    name="Light",
                    manifest_version=1,
                    manifest_version_policy="LATEST",
                    enabled=True,
                    now_ms=1,
                )
            )
            for number in range(250)
        ]

    keys = await services.core.database.write(add_devices)
    devices = [await services.devices.registry.get(DeviceKey(key)) for key in keys]
    # Equal ts throughout, so that every page has messages from all statements.
    positions = await send(services, *((device, 7) for device in reversed(devices)))
    orders: list[Order] = ["asc", "desc"]
    for order in orders:
        found: list[int] = []
        cursor: str | None = ""
        while cursor is not None:
            current = await page(services, devices, order=order, cursor=cursor)
            found += [message.position for message in current.messages]
            cursor = current.next
        assert found == (positions if order == "asc" else positions[::-1])
    latest = await services.messages.history.latest(devices[:100], count=2)
    assert [message.sdid for message in latest] == [devices[0].id, devices[1].id]


@dataclass(frozen=True)
class Sent:
    device: DeviceKey
    ts: int


sent = st.builds(Sent, st.integers(0, 2), st.integers(0, 6))


def run_with_devices(test: object, *arguments: object) -> None:
    """Run an async test with services on a file of its own and the three lights of the small world."""

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with opener_in(Path(folder))() as services:
                world = await build_world(services.core.database, services.core.vault)
                devices = [await services.devices.registry.get(key) for key in (world.kitchen, world.hall, world.bobs)]
                await test(services, devices, *arguments)  # type: ignore[operator]

    trio.run(main)


@settings(max_examples=examples(60, run=3), deadline=None)
@given(
    st.lists(sent, max_size=25),
    st.sets(st.integers(0, 2), min_size=1),
    st.sampled_from(["asc", "desc"]),
    st.integers(1, 8),
    st.integers(0, 4),
    st.integers(2, 6),
)
def test_walking_to_the_end_and_back_gives_every_message_once_and_in_order(
    messages: list[Sent], chosen: set[int], order: Order, count: int, start: int, end: int
) -> None:
    async def walk(services: Services, devices: list[Device]) -> None:
        positions = await send(services, *((devices[one.device], one.ts) for one in messages))
        expected = sorted(
            (one.ts, position)
            for one, position in zip(messages, positions, strict=True)
            if one.device in chosen and start <= one.ts <= end
        )
        if order == "desc":
            expected.reverse()
        asked = [devices[index] for index in chosen]

        pages = [await page(services, asked, start=start, end=end, order=order, count=count)]
        while (cursor := pages[-1].next) is not None:
            pages.append(await page(services, asked, start=start, end=end, order=order, count=count, cursor=cursor))
        assert [place for one in pages for place in places(one.messages)] == expected
        assert [len(one.messages) for one in pages[:-1]] == [count] * (len(pages) - 1)
        assert pages[-1].messages or not expected
        assert [one.prev is None for one in pages] == [True] + [False] * (len(pages) - 1)

        back = [pages[-1]]
        while (cursor := back[-1].prev) is not None:
            back.append(await page(services, asked, start=start, end=end, order=order, count=count, cursor=cursor))
        assert back[::-1] == pages

    run_with_devices(walk)


@pytest.mark.both_engines
@settings(max_examples=examples(40, run=2), deadline=None)
@given(
    st.lists(sent, min_size=1, max_size=12),
    st.lists(st.lists(sent, max_size=4), max_size=6),
    st.sampled_from(["asc", "desc"]),
    st.integers(1, 5),
)
def test_messages_that_come_meanwhile_shift_and_repeat_nothing(
    messages: list[Sent], meanwhile: list[list[Sent]], order: Order, count: int
) -> None:
    async def walk(services: Services, devices: list[Device]) -> None:
        await send(services, *((devices[one.device], one.ts) for one in messages))
        present = places((await page(services, devices, order=order)).messages)
        seen: list[tuple[int, int]] = []
        cursor: str | None = ""
        additions = iter(meanwhile)
        while cursor is not None:
            current = await page(services, devices, order=order, count=count, cursor=cursor)
            seen += places(current.messages)
            cursor = current.next
            await send(services, *((devices[one.device], one.ts) for one in next(additions, [])))
        assert seen == sorted(set(seen), reverse=order == "desc")
        assert [place for place in seen if place in set(present)] == present

    run_with_devices(walk)


# Searches with conditions look at few messages for each page

_INTENSE = FieldMatch("intensity")


@pytest.mark.both_engines
@settings(max_examples=examples(60, run=3), deadline=None)
@given(
    st.lists(st.tuples(sent, st.booleans()), max_size=25),
    st.sets(st.integers(0, 2), min_size=1),
    st.sampled_from(["asc", "desc"]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 25),
)
def test_pages_with_conditions_give_every_message_once_in_both_directions(
    messages: list[tuple[Sent, bool]], chosen: set[int], order: Order, count: int, looked_at: int, indexed: int
) -> None:
    async def walk(services: Services, devices: list[Device]) -> None:
        expected: list[tuple[int, int]] = []
        for number, (one, matches) in enumerate(messages):
            data = b'{"intensity":5}' if matches else b'{"state":true}'
            position = services.messages.ingest.submit(devices[one.device], data, one.ts)
            await services.messages.ingest.wait_committed()
            if matches and one.device in chosen:
                expected.append((one.ts, position))
            if number == indexed:
                await services.core.database.write(lambda tx: index(tx.messages))
        expected.sort(reverse=order == "desc")
        asked = [devices[one] for one in chosen]
        pages = [await page(services, asked, order=order, count=count, match=_INTENSE)]
        while (cursor := pages[-1].next) is not None:
            pages.append(await page(services, asked, order=order, count=count, match=_INTENSE, cursor=cursor))
            assert len(pages) <= 2 * len(messages) + 1
        assert [place for one in pages for place in places(one.messages)] == expected
        assert pages[0].prev is None
        back, cursor = [pages[-1]], pages[-1].prev
        while cursor is not None:
            back.append(await page(services, asked, order=order, count=count, match=_INTENSE, cursor=cursor))
            cursor = back[-1].prev
            assert len(back) <= 2 * len(messages) + 2
        assert [place for one in reversed(back) for place in places(one.messages)] == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "SEARCH_ROWS", looked_at)
        patch.setattr(history, "_LOOKED_BEHIND", 1)
        patch.setattr(message_searches, "_FIRST_ROWS", 1)
        patch.setattr(log_index, "ROWS", 2)
        run_with_devices(walk)


@pytest.mark.both_engines
async def test_a_page_may_be_empty_and_say_where_the_search_goes_on(
    services: Services, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SEARCH_ROWS", 20)
    for first in range(0, 100_000, 10_000):
        await send(services, *((kitchen, first + ts) for ts in range(10)))
        await services.core.database.write(lambda tx: index(tx.messages))
    services.messages.ingest.submit(kitchen, b'{"intensity":5}', 100_000)
    await services.messages.ingest.wait_committed()
    await services.core.database.write(lambda tx: index(tx.messages))
    sizes: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        found = await page(services, [kitchen], match=_INTENSE, cursor=cursor)
        sizes.append(len(found.messages))
        cursor = found.next
    assert sizes == [0] * (len(sizes) - 1) + [1]
    assert 5 < len(sizes) <= 11  # a page may look once more at what is around its cursor


async def test_searches_with_conditions_of_one_user_follow_each_other(
    services: Services, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, running, most = trio.Event(), Counter[str | None](), Counter[str | None]()
    read = services.core.database.read

    async def slow(work: Callable[[Transaction], object]) -> object:
        if (user := on_whose_account()) is None:  # a worker of the daemon
            return await read(work)
        running[user] += 1
        most[user] = max(most[user], running[user])
        await may_end.wait()
        running[user] -= 1
        return await read(work)

    monkeypatch.setattr(services.core.database, "read", slow)
    async with trio.open_nursery() as nursery:
        for user in ("eve", "eve", "eve", "ada"):
            enter(Origin("192.0.2.1", user))
            nursery.start_soon(partial(page, services, [kitchen], match=_INTENSE))
        await wait_all_tasks_blocked()
        assert running == {"eve": 1, "ada": 1}
        enter(Origin("192.0.2.1", "eve"))
        nursery.start_soon(page, services, [kitchen])  # without conditions
        await wait_all_tasks_blocked()
        assert running == {"eve": 2, "ada": 1}
        may_end.set()
    assert most == {"eve": 2, "ada": 1}


@pytest.mark.both_engines
async def test_latest_with_a_field_looks_at_so_many_of_the_newest_messages(
    services: Services, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.messages.ingest.submit(kitchen, b'{"intensity":5}', 1)
    for _ in range(4):
        await send(services, *((kitchen, ts) for ts in range(10)))
        await services.core.database.write(lambda tx: index(tx.messages))
    assert len(await services.messages.history.latest([kitchen], count=9, field="intensity")) == 1
    monkeypatch.setattr(history, "SEARCH_ROWS", 10)
    assert await services.messages.history.latest([kitchen], count=9, field="intensity") == ()


# Cursors

bounds = st.tuples(st.integers(0, 2**62).map(Milliseconds), st.integers(0, 2**62).map(Position))


@given(st.booleans(), bounds)
def test_a_cursor_is_read_back_as_the_place_it_was_made_of(backwards: bool, bound: SortKey) -> None:
    cursors = Cursors(b"k" * 32)
    text = cursors.text(backwards=backwards, bound=bound)
    assert len(text) <= CURSOR_MAX_CHARACTERS
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert cursors.read(text) == (backwards, bound)


def refuse(text: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        Cursors(b"k" * 32).read(text)
    assert [finding.field for finding in caught.value.findings] == ["offset"]


@given(st.booleans(), bounds, st.integers(0, 33), st.characters(max_codepoint=0x17F))
def test_a_tampered_cursor_is_refused(backwards: bool, bound: SortKey, index: int, character: str) -> None:
    text = Cursors(b"k" * 32).text(backwards=backwards, bound=bound)
    for changed in (text[:index] + character + text[index + 1 :], text[:index] + character + text[index:]):
        if changed != text:
            refuse(changed)


@given(st.booleans(), bounds)
def test_a_truncated_cursor_or_one_of_another_store_is_refused(backwards: bool, bound: SortKey) -> None:
    text = Cursors(b"k" * 32).text(backwards=backwards, bound=bound)
    for length in range(len(text)):
        refuse(text[:length])
    refuse(Cursors(b"o" * 32).text(backwards=backwards, bound=bound))
    refuse(text + "=")
    refuse(text * 4)


@given(st.text())
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    refuse(text)


async def test_a_search_refuses_a_bad_cursor(services: Services, kitchen: Device) -> None:
    for cursor in ("1", "00", " ", "x" * 1000, "ä"):
        with pytest.raises(ValidationFailed):
            await page(services, [kitchen], cursor=cursor)


# The last messages


async def test_latest_goes_by_arrival_whatever_ts_says(services: Services, kitchen: Device, hall: Device) -> None:
    positions = await send(services, (kitchen, 900), (hall, 5), (kitchen, 1), (hall, 700))
    latest = await services.messages.history.latest([kitchen, hall], count=3)
    assert [message.position for message in latest] == positions[:0:-1]
    assert [message.sdid for message in latest] == [hall.id, kitchen.id, hall.id]
    assert await services.messages.history.latest([], count=3) == ()


@pytest.mark.both_engines
async def test_latest_finds_devices_that_sent_long_ago(services: Services, kitchen: Device, hall: Device) -> None:
    rows = [
        *(
            MessageRow(Position(position), kitchen.key, Milliseconds(1), Milliseconds(position), 1, '{"state":true}')
            for position in (1, 2)
        ),
        *(
            MessageRow(Position(position), hall.key, Milliseconds(1), Milliseconds(position), 1, "{}")
            for position in range(3, 1_503)
        ),
    ]
    await services.core.database.write(lambda tx: tx.messages.append(rows, (), (), head=rows[-1].position))

    async def latest(count: int, field: str | None = None) -> list[int]:
        found = await services.messages.history.latest([kitchen, hall], count=count, field=field)
        return [message.position for message in found]

    assert await latest(2) == [1_502, 1_501]
    assert await latest(1_501) == list(range(1_502, 1, -1))
    assert await latest(2, "state") == [2, 1]
    assert await latest(1, "state") == [2]


@pytest.mark.both_engines
async def test_latest_with_a_field_takes_only_messages_that_contain_it(services: Services, kitchen: Device) -> None:
    sent_data: list[Mapping[str, object]] = [
        {"intensity": 1},
        {"colorRGB": {"g": 2}},
        {"intensity": 0, "text": "colorRGB.r"},
        {"samples": []},
        {"state": False},
    ]
    for data in sent_data:
        services.messages.ingest.submit(kitchen, json.dumps(data).encode())
    await services.messages.ingest.wait_committed()
    for field, found in (
        ("intensity", [3, 1]),
        ("colorRGB", [2]),
        ("colorRGB.g", [2]),
        ("colorRGB.r", []),
        ("samples", [4]),
        ("samples[0]", []),
        ("samples.0", []),
        ("state", [5]),
        ("nothing", []),
        ("a[", []),
        ('"', []),
        ("", []),
        ("colorRGB.", []),
    ):
        latest = await services.messages.history.latest([kitchen], count=100, field=field)
        assert [message.position for message in latest] == found, field


async def test_a_view_shows_the_device_as_it_is_now(services: Services, kitchen: Device) -> None:
    await send(services, (kitchen, 1))
    kitchen.refresh(replace(kitchen.record, owner_id="0e" * 16), kitchen.type)
    assert (await services.messages.history.latest([kitchen], count=1))[0].uid == "0e" * 16
