"""Ingest (reference 9.1): what is refused, what is stored, and when the sender is answered."""

import json
import math

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from broker.devices.presence import SEEN_SECONDS
from broker.devices.registry import Device
from broker.errors import (
    BadRequest,
    DestinationDeviceDisabled,
    DomainError,
    InvalidTimestamp,
    PayloadTooLarge,
    SourceDeviceDisabled,
    StorageUnavailable,
    TimestampInFuture,
    ValidationFailed,
)
from broker.facts import ActionStored, MessagesStored
from broker.messages.history import Search
from broker.messages.ingest import IngestStatistics
from broker.messages.projections import WRITE_SECONDS
from broker.services import Services
from config.limits import CLOCK_STEP_MS, JSON_NESTING_MAX, MAX_DATA_BYTES
from storage.engines.sqlite import SqliteEngine
from storage.keys import Milliseconds, Position
from storage.records import ActionRow, MessageRow
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import ACME, HALL, KITCHEN, LIGHT_TYPE, NOW_MS, World, build_world
from tests.fakes import BreakableEngine, FakeClock
from tests.rows import each_row
from tests.tickets import JUMP, at

GRACE_MS = 60_000
STATE = b'{"state":true}'
SET_ON = b'{"actions":[{"name":"setOn"}]}'


async def stored_message(services: Services, position: int) -> MessageRow | None:
    return await services.core.database.read(lambda tx: tx.messages.message(Position(position)))


async def stored_action(services: Services, position: int) -> ActionRow | None:
    return await services.core.database.read(lambda tx: tx.messages.action(Position(position)))


async def failed_rows(services: Services) -> list[tuple[int, int, int, str, str]]:
    return await services.core.database.read(
        lambda tx: [
            (row["position"], row["device"], row["cts"], row["reason"], row["payload"])
            for row in tx.connection.execute("SELECT * FROM failed_message")
        ]
    )


def disable(device: Device) -> None:
    device.refresh(replace(device.record, enabled=False), device.type)


async def expect_nothing_was_kept(services: Services) -> None:
    await services.messages.ingest.wait_committed()
    assert await services.core.database.read(lambda tx: tx.messages.head()) == 0
    assert services.messages.ingest.statistics() == IngestStatistics(0, 0, 0)


# Data messages


async def test_a_message_is_stored_as_normalised(services: Services, kitchen: Device) -> None:
    position = at(
        services.messages.ingest.submit(
            kitchen, b' { "state" : "TRUE", "unknown": 1, "colorRGB": {"r": 3, "x": 1} } ', 5
        )
    )
    await services.messages.ingest.wait_committed()
    assert await stored_message(services, position) == MessageRow(
        position, kitchen.key, Milliseconds(5), NOW_MS, 1, '{"state":true,"colorRGB":{"r":3}}'
    )


async def test_a_message_without_ts_gets_the_present_time(services: Services, kitchen: Device) -> None:
    position = at(services.messages.ingest.submit(kitchen, STATE))
    await services.messages.ingest.wait_committed()
    row = await stored_message(services, position)
    assert row is not None
    assert (row.ts, row.cts) == (NOW_MS, NOW_MS)


async def test_the_same_message_twice_is_two_messages(services: Services, kitchen: Device) -> None:
    positions = [services.messages.ingest.submit(kitchen, STATE, 1) for _ in range(2)]
    await services.messages.ingest.wait_committed()
    assert positions == [1, 2]
    assert None not in [await stored_message(services, position) for position in positions]


@each_row(
    ("ts", "kept"),
    [
        (0, 0),
        (1, 1),
        (1.9, 1),
        (-0.0, 0),
        (NOW_MS, NOW_MS),
        (NOW_MS + GRACE_MS, NOW_MS + GRACE_MS),
        (NOW_MS + GRACE_MS + 0.9, NOW_MS + GRACE_MS),
    ],
)
async def test_ts_is_kept_in_whole_milliseconds(services: Services, kitchen: Device, ts: object, kept: int) -> None:
    position = at(services.messages.ingest.submit(kitchen, STATE, ts))
    await services.messages.ingest.wait_committed()
    row = await stored_message(services, position)
    assert row is not None
    assert row.ts == kept


@each_row(
    ("ts", "refusal"),
    [
        (-1, InvalidTimestamp),
        (-0.5, InvalidTimestamp),
        (math.nan, InvalidTimestamp),
        (math.inf, InvalidTimestamp),
        (-math.inf, InvalidTimestamp),
        ("soon", InvalidTimestamp),
        ("", InvalidTimestamp),
        (True, InvalidTimestamp),
        (False, InvalidTimestamp),
        ([], InvalidTimestamp),
        ({}, InvalidTimestamp),
        (NOW_MS + GRACE_MS + 1, TimestampInFuture),
        (1e300, TimestampInFuture),
        (10**400, TimestampInFuture),
    ],
)
async def test_a_bad_ts_is_refused(services: Services, kitchen: Device, ts: object, refusal: type[DomainError]) -> None:
    with pytest.raises(refusal):
        services.messages.ingest.submit(kitchen, STATE, ts)
    with pytest.raises(refusal):
        services.messages.ingest.submit_action(kitchen, kitchen, SET_ON, ts)
    await expect_nothing_was_kept(services)


def text_payload(size: int) -> bytes:
    empty = b'{"text":""}'
    return empty[:-2] + b"x" * (size - len(empty)) + empty[-2:]


async def test_data_of_1024_bytes_is_accepted(services: Services, kitchen: Device) -> None:
    position = at(services.messages.ingest.submit(kitchen, text_payload(1024)))
    await services.messages.ingest.wait_committed()
    assert await stored_message(services, position) is not None


async def test_data_of_1025_bytes_is_refused(services: Services, kitchen: Device) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        services.messages.ingest.submit(kitchen, text_payload(1025))
    assert (caught.value.organization_id, caught.value.device_id) == (ACME, KITCHEN)
    with pytest.raises(PayloadTooLarge):
        services.messages.ingest.submit_action(kitchen, kitchen, text_payload(1025))
    await expect_nothing_was_kept(services)


async def test_size_is_measured_in_bytes_of_utf8(services: Services, kitchen: Device) -> None:
    with pytest.raises(PayloadTooLarge):
        services.messages.ingest.submit(kitchen, json.dumps({"text": "ä" * 600}, ensure_ascii=False).encode())
    await expect_nothing_was_kept(services)


@each_row(
    "payload",
    [
        b'{"text" : "x"' + b" " * 5000 + b"}",
        b"\n" * 2000 + STATE,
        json.dumps({"text": "ä" * 400}).encode(),  # six bytes each as an escape, two in UTF-8
        b'{"intensity":1,"unknown":' + b"1" * 900 + b" " * 200 + b"}",
    ],
)
async def test_size_is_that_of_compact_json(services: Services, kitchen: Device, payload: bytes) -> None:
    assert len(payload) > 1024
    position = at(services.messages.ingest.submit(kitchen, payload))
    await services.messages.ingest.wait_committed()
    assert await stored_message(services, position) is not None


@each_row("blanks", [0, 2000])
@each_row(
    "payload",
    [
        b"",
        b"{",
        b"nothing",
        b"[]",
        b'"text"',
        b"1",
        b"null",
        b'{"text":"\xff"}',
        b'{"other":"\xff"}',
        b'{"a":1}x',
        b"[" * 900,
    ],
)
async def test_what_is_no_json_object_is_refused(
    services: Services, kitchen: Device, payload: bytes, blanks: int
) -> None:
    with pytest.raises(BadRequest):
        services.messages.ingest.submit(kitchen, payload + b" " * blanks)
    await expect_nothing_was_kept(services)


async def test_a_disabled_device_sends_nothing(services: Services, kitchen: Device, hall: Device) -> None:
    disable(kitchen)
    with pytest.raises(SourceDeviceDisabled):
        services.messages.ingest.submit(kitchen, STATE)
    with pytest.raises(SourceDeviceDisabled):
        services.messages.ingest.submit_action(kitchen, hall, SET_ON)
    await expect_nothing_was_kept(services)


async def test_a_disabled_device_gets_no_actions(services: Services, kitchen: Device, hall: Device) -> None:
    disable(kitchen)
    with pytest.raises(DestinationDeviceDisabled):
        services.messages.ingest.submit_action(kitchen, kitchen, SET_ON)
    with pytest.raises(DestinationDeviceDisabled):
        services.messages.ingest.submit_action(hall, kitchen, SET_ON)
    await expect_nothing_was_kept(services)


async def test_a_message_that_normalisation_leaves_empty_has_a_position_and_is_not_visible(
    services: Services, kitchen: Device
) -> None:
    facts: list[MessagesStored] = []
    services.core.router.subscribe(MessagesStored, facts.append)
    first = at(services.messages.ingest.submit(kitchen, b'{"unknown":1}'))
    second = at(services.messages.ingest.submit(kitchen, STATE))
    await services.messages.ingest.wait_committed()
    assert (first, second) == (1, 2)
    assert await failed_rows(services) == [
        (first, kitchen.key, NOW_MS, "nothing remained after normalization", '{"unknown":1}')
    ]
    assert await stored_message(services, first) is None
    assert await services.messages.history.by_mid(services.messages.ingest.mid(first)) is None
    assert [row.position for fact in facts for row in fact.rows] == [second]
    assert services.messages.ingest.statistics() == IngestStatistics(messages=1, failed_messages=1, actions=0)


@pytest.mark.both_engines
async def test_a_device_type_without_manifest_takes_messages_that_all_fail(services: Services, world: World) -> None:
    await services.core.database.write(lambda tx: tx.connection.execute("DELETE FROM manifest"))
    kitchen = await services.devices.registry.get(world.kitchen)
    services.messages.ingest.submit(kitchen, STATE)
    await services.messages.ingest.wait_committed()
    assert [reason for _, _, _, reason, _ in await failed_rows(services)] == ["no Manifest"]


# Time


async def stored_times(services: Services, *positions: Position) -> list[tuple[int, int]]:
    """`ts` and `cts` of messages, as differences to NOW_MS."""
    await services.messages.ingest.wait_committed()
    rows = [await stored_message(services, position) for position in positions]
    return [(row.ts - NOW_MS, row.cts - NOW_MS) for row in rows if row is not None]


async def test_cts_stands_still_while_the_clock_is_a_little_behind(
    services: Services, kitchen: Device, fake_clock: FakeClock
) -> None:
    sent = [at(services.messages.ingest.submit(kitchen, STATE))]
    for milliseconds in (-CLOCK_STEP_MS, CLOCK_STEP_MS - 1, 2):
        fake_clock.advance(milliseconds)
        sent.append(at(services.messages.ingest.submit(kitchen, STATE)))
    assert await stored_times(services, *sent) == [(0, 0), (-CLOCK_STEP_MS, 0), (-1, 0), (1, 1)]


async def test_a_clock_that_was_ahead_poisons_nothing(
    services: Services, kitchen: Device, fake_clock: FakeClock
) -> None:
    """Later messages have the time of the clock; `ts` is bounded by this time, too."""
    ingest, hour_ms = services.messages.ingest, 3_600_000
    fake_clock.advance(hour_ms)
    sent = [at(ingest.submit(kitchen, STATE))]
    fake_clock.advance(-hour_ms)
    sent.append(at(ingest.submit(kitchen, STATE)))
    action = ingest.submit_action(kitchen, kitchen, SET_ON)
    with pytest.raises(TimestampInFuture):
        ingest.submit(kitchen, STATE, NOW_MS + hour_ms - 60_000)
    fake_clock.advance(7)
    sent.append(at(ingest.submit(kitchen, STATE)))
    assert await stored_times(services, *sent) == [(hour_ms, hour_ms), (0, 0), (7, 7)]
    stored = await stored_action(services, action)
    assert stored is not None
    assert (stored.ts, stored.cts) == (NOW_MS, NOW_MS)


@pytest.mark.parametrize("last", ["message", "action"])
@pytest.mark.parametrize(("back_ms", "cts"), [(CLOCK_STEP_MS, 0), (1_000_000, -1_000_000)])
async def test_a_clock_that_was_set_back_while_no_daemon_ran(
    opener: ServicesOpener, fake_clock: FakeClock, last: str, back_ms: int, cts: int
) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        if last == "message":
            services.messages.ingest.submit(kitchen, STATE)
        else:
            services.messages.ingest.submit_action(kitchen, kitchen, SET_ON)
        await services.messages.ingest.wait_committed()
    fake_clock.advance(-back_ms)
    async with opener() as services:
        kitchen = await services.devices.registry.get(world.kitchen)
        position = at(services.messages.ingest.submit(kitchen, STATE))
        assert await stored_times(services, position) == [(-back_ms, cts)]
        assert position == 2


# Actions


@pytest.mark.both_engines
async def test_an_action_is_stored_and_published_with_everything_its_receivers_need(
    services: Services, kitchen: Device, hall: Device
) -> None:
    facts: list[ActionStored] = []
    services.core.router.subscribe(ActionStored, facts.append)
    position = at(services.messages.ingest.submit_action(kitchen, hall, b' {"actions": [ {"name" : "setOn"} ] } ', 7))
    assert facts == []
    await services.messages.ingest.wait_committed()
    assert await stored_action(services, position) == ActionRow(
        position, hall.key, kitchen.key, Milliseconds(7), NOW_MS, 1, SET_ON.decode()
    )
    (fact,) = facts
    action = fact.action
    assert (fact.source, fact.destination) == (kitchen.key, hall.key)
    assert (action.sdid, action.ddid, action.ddtid, action.boid) == (KITCHEN, HALL, LIGHT_TYPE, ACME)
    assert (action.uid, action.mid) == (hall.owner_id, services.messages.ingest.mid(position))
    assert (action.position, action.ts, action.cts, action.mv, action.data) == (
        position,
        7,
        NOW_MS,
        1,
        SET_ON.decode(),
    )


@each_row(
    ("given", "kept"),
    [
        ('{"actions":[{"name":""}]}', '{"actions":[{"name":""}]}'),
        ('{"actions":[{"name":"no such action"}]}', '{"actions":[{"name":"no such action"}]}'),
        ('{"actions":[{"name":"a","parameters":{}}]}', '{"actions":[{"name":"a","parameters":{}}]}'),
        ('{"actions":[{"name":"a","parameters":null}]}', '{"actions":[{"name":"a"}]}'),
        ('{"actions":[{"name":"a","extra":1}],"more":2}', '{"actions":[{"name":"a"}]}'),
        (
            ' {"actions" : [ { "parameters" : { "b" : [ 1 , { "c d" : " e  f " } ] } , "name" : "a" } ] } ',
            '{"actions":[{"name":"a","parameters":{"b":[1,{"c d":" e  f "}]}}]}',
        ),
        (
            '{"actions":[{"name":"a","parameters":{"n":123456789012345678901234567890,"f":1.10,"e":1E400,"z":null}}]}',
            '{"actions":[{"name":"a","parameters":{"n":123456789012345678901234567890,"f":1.10,"e":1E400,"z":null}}]}',
        ),
        (
            '{"actions":[{"name":"\\u00e4","parameters":{"ß":"€"}}]}',
            '{"actions":[{"name":"ä","parameters":{"ß":"€"}}]}',
        ),
    ],
)
async def test_actions_are_routed_unchanged_and_compact(
    services: Services, kitchen: Device, given: str, kept: str
) -> None:
    position = at(services.messages.ingest.submit_action(kitchen, kitchen, given.encode()))
    await services.messages.ingest.wait_committed()
    row = await stored_action(services, position)
    assert row is not None
    assert row.data == kept


def actions(count: int) -> bytes:
    return json.dumps({"actions": [{"name": "a"}] * count}).encode()


@pytest.mark.both_engines
async def test_twenty_actions_are_accepted(services: Services, kitchen: Device) -> None:
    position = at(services.messages.ingest.submit_action(kitchen, kitchen, actions(20)))
    await services.messages.ingest.wait_committed()
    assert await stored_action(services, position) is not None


@each_row(
    ("data", "field"),
    [
        (actions(21), "data.actions"),
        (actions(0), "data.actions"),
        (b"{}", "data.actions"),
        (b"[]", "data"),
        (b'"x"', "data"),
        (b'{"actions":{}}', "data.actions"),
        (b'{"actions":null}', "data.actions"),
        (b'{"actions":["setOn"]}', "data.actions.0"),
        (b'{"actions":[{}]}', "data.actions.0.name"),
        (b'{"actions":[{"name":"a"},{"parameters":{}}]}', "data.actions.1.name"),
        (b'{"actions":[{"name":1}]}', "data.actions.0.name"),
        (b'{"actions":[{"name":null}]}', "data.actions.0.name"),
        (b'{"actions":[{"name":"a","parameters":[]}]}', "data.actions.0.parameters"),
        (b'{"actions":[{"name":"a","parameters":"x"}]}', "data.actions.0.parameters"),
    ],
)
async def test_actions_that_are_refused_name_the_member(
    services: Services, kitchen: Device, data: bytes, field: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        services.messages.ingest.submit_action(kitchen, kitchen, data)
    assert [finding.field for finding in caught.value.findings] == [field]
    assert caught.value.code == 4001
    await expect_nothing_was_kept(services)


@each_row("blanks", [0, 2000])
@each_row(
    "data",
    [
        b"",
        b"{",
        b'{"actions":[{"name":"a"}]}x',
        b'{"actions":[{"name":"\xff"}]}',
        b'{"actions":[{"name":"a","parameters":{"x":"\xff"}}]}',
        b'{"actions":[{"name":"a","parameters":{"x":NaN}}]}',
        b'{"actions":[{"name":"a"}],"more":"\xff"}',
        b'{"actions":[{"name":"a","parameters":{"x":"\x01"}}]}',
    ],
)
async def test_actions_that_are_no_json_are_refused(
    services: Services, kitchen: Device, data: bytes, blanks: int
) -> None:
    with pytest.raises(BadRequest):
        services.messages.ingest.submit_action(kitchen, kitchen, data + b" " * blanks)
    await expect_nothing_was_kept(services)


def deep_parameters(levels: int) -> bytes:
    """Actions whose text nests this deep, and longer than `data` may be."""
    inner = levels - 5  # the levels of `data`, `actions`, the entry, `parameters` and `x` come before
    return b'{"actions":[{"name":"a","parameters":{"x":[' + b"[" * inner + b"]" * inner + b"]}}]}"


async def test_parameters_as_deep_as_data_can_hold_are_kept(services: Services, kitchen: Device) -> None:
    data = deep_parameters(480)
    assert len(data) <= MAX_DATA_BYTES
    services.messages.ingest.submit_action(kitchen, kitchen, data)
    await services.messages.ingest.wait_committed()
    assert services.messages.ingest.statistics().actions == 1


@pytest.mark.parametrize(
    ("levels", "refusal"), [(JSON_NESTING_MAX, PayloadTooLarge), (JSON_NESTING_MAX + 1, BadRequest)]
)
async def test_nesting_is_refused_before_size(
    services: Services, kitchen: Device, levels: int, refusal: type[DomainError]
) -> None:
    with pytest.raises(refusal):
        services.messages.ingest.submit_action(kitchen, kitchen, deep_parameters(levels))
    with pytest.raises(refusal):
        services.messages.ingest.submit(kitchen, b"[" * levels + b"]" * levels)
    await expect_nothing_was_kept(services)


# Acknowledged means stored


async def test_no_sender_is_answered_before_the_commit(services: Services, kitchen: Device) -> None:
    heard: list[str] = []
    services.core.router.subscribe(MessagesStored, lambda fact: heard.append(f"stored {len(fact.rows)}"))
    services.core.router.subscribe(ActionStored, lambda _fact: heard.append("action"))
    for _ in range(2):
        services.messages.ingest.submit(kitchen, STATE)
        services.messages.ingest.after_commit(lambda error: heard.append(f"told {error}"))
    services.messages.ingest.submit_action(kitchen, kitchen, SET_ON)
    services.messages.ingest.after_commit(lambda error: heard.append(f"told {error}"))
    assert heard == []
    await services.messages.ingest.wait_committed()
    assert heard == ["stored 2", "told None", "told None", "action", "told None"]


@pytest.mark.both_engines
@pytest.mark.usefixtures("positions_jump")
async def test_rows_have_their_positions_behind_the_commit(services: Services, kitchen: Device) -> None:
    """A ticket is none: others take positions, and a commit that fails gives none."""
    ingest, facts = services.messages.ingest, list[MessagesStored]()
    services.core.router.subscribe(MessagesStored, facts.append)
    for number in range(1, 4):
        group, tickets = ingest.group, [ingest.submit(kitchen, STATE) for _ in range(2)]
        await ingest.wait_committed()
        assert group.positions(tickets) == [ticket + number * JUMP for ticket in tickets]
        assert [row.position for row in facts[-1].rows] == group.positions(tickets)
        assert ingest.head == group.position(tickets[-1])
        for position in group.positions(tickets):
            assert await services.messages.history.by_mid(ingest.mid(position)) is not None


async def test_what_is_acknowledged_can_be_read_at_once(services: Services, kitchen: Device) -> None:
    position = at(services.messages.ingest.submit(kitchen, b'{"intensity":5}'))
    await services.messages.ingest.wait_committed()
    assert await services.messages.history.by_mid(services.messages.ingest.mid(position)) is not None
    assert len(await services.messages.history.latest([kitchen], count=1)) == 1
    assert (
        len(
            (
                await services.messages.history.messages(
                    Search(devices=[kitchen], start_ms=Milliseconds(0), end_ms=NOW_MS)
                )
            ).messages
        )
        == 1
    )
    assert (await services.messages.snapshots.of(kitchen.key))["intensity"] == (NOW_MS, position, 5)


async def test_a_store_that_fails_refuses_what_was_submitted_and_goes_on(
    opener: ServicesOpener, engine: SqliteEngine
) -> None:
    breakable = BreakableEngine(engine)
    facts: list[object] = []
    told: list[StoreError | None] = []
    async with opener(engine=breakable) as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        services.core.router.subscribe(MessagesStored, facts.append)
        services.core.router.subscribe(ActionStored, facts.append)
        breakable.error = StoreError("disk full")
        services.messages.ingest.submit(kitchen, STATE)
        services.messages.ingest.submit_action(kitchen, kitchen, SET_ON)
        services.messages.ingest.after_commit(told.append)
        with pytest.raises(StorageUnavailable) as caught:
            await services.messages.ingest.wait_committed()
        assert caught.value.reason == "disk full"
        assert "disk" not in str(caught.value)
        assert [type(one) for one in told] == [StoreError]
        assert facts == []
        assert await services.messages.snapshots.of(kitchen.key) == {}

        breakable.error = None
        services.messages.ingest.submit(kitchen, STATE)
        await services.messages.ingest.wait_committed()
        assert len(facts) == 1


async def test_the_workers_go_on_after_a_store_failed_for_a_while(
    opener: ServicesOpener, engine: SqliteEngine, autojump_clock: MockClock
) -> None:
    breakable = BreakableEngine(engine)
    async with opener(engine=breakable) as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        position = at(services.messages.ingest.submit(kitchen, b'{"intensity":5}'))
        await services.messages.ingest.wait_committed()
        breakable.error = StoreError("disk full")
        await trio.sleep(WRITE_SECONDS + 2)
        assert services.messages.projector.statistics().written_position < position
        assert services.devices.presence.statistics().unwritten == 1
        breakable.error = None
        await trio.sleep(SEEN_SECONDS + 1)
        assert services.messages.projector.statistics().written_position == position
        assert services.devices.presence.statistics().unwritten == 0
        assert "intensity" in await services.messages.snapshots.of(kitchen.key)
        services.messages.ingest.submit(kitchen, b'{"intensity":6}')
        await services.messages.ingest.wait_committed()
        breakable.error = StoreError("disk full")
    # The next run projects again what the last run could not save.
    breakable.error = None
    async with opener(engine=breakable) as services:
        assert (await services.messages.snapshots.of(kitchen.key))["intensity"][2] == 6


async def test_the_device_of_a_stored_row_is_held_when_the_row_is_published(
    services: Services, kitchen: Device, hall: Device
) -> None:
    senders: list[Device | None] = []
    services.core.router.subscribe(
        MessagesStored, lambda fact: senders.extend(services.messages.ingest.sender(row.device) for row in fact.rows)
    )
    services.core.router.subscribe(
        ActionStored, lambda fact: senders.append(services.messages.ingest.sender(fact.source))
    )
    for _ in range(3):
        services.messages.ingest.submit(kitchen, STATE)
        await services.messages.ingest.wait_committed()
    services.messages.ingest.submit_action(hall, kitchen, SET_ON)
    await services.messages.ingest.wait_committed()
    assert senders == [kitchen] * 3 + [hall]


async def test_the_source_of_an_action_is_held_even_if_another_commit_was_under_way(
    services: Services, kitchen: Device, hall: Device
) -> None:
    senders: list[Device | None] = []
    services.core.router.subscribe(
        ActionStored, lambda fact: senders.append(services.messages.ingest.sender(fact.source))
    )

    def answer(_fact: MessagesStored) -> None:
        services.messages.ingest.submit_action(hall, kitchen, SET_ON)

    services.core.router.subscribe(MessagesStored, answer)
    services.messages.ingest.submit(kitchen, STATE)
    await services.messages.ingest.wait_committed()  # the Action came after its group was closed
    await services.messages.ingest.wait_committed()
    assert senders == [hall]
