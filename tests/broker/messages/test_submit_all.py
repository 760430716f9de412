"""Messages that are submitted together are accepted, refused, counted and told of as messages that come one by one.

Two runs of the daemon get the same messages: one with `submit_all`, as the front ends call it, the other with `submit`
alone.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import msgspec
import pytest
import trio
from hypothesis import example, given
from hypothesis import settings as tries
from hypothesis import strategies as st

from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device
from broker.errors import DomainError
from broker.services import Services
from config.limits import CLOCK_STEP_MS, JSON_NESTING_MAX, MAX_DATA_BYTES
from config.settings import Limits, Settings
from storage.keys import Milliseconds, Position
from storage.records import ManifestRecord, MessageRow
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import ACME, LIGHT_MANIFEST, NOW_MS, build_world
from tests.fakes import FakeClock
from tests.properties import examples
from tests.stores import MigratedEngine
from tests.tickets import at

pytestmark = pytest.mark.slow


DAY_MS = 86_400_000
ON = b'{"state":true}'
PLAIN, TRANSFORMED = LIGHT_MANIFEST, {**LIGHT_MANIFEST, "transform": {"format": "csv", "columns": ["intensity"]}}
ROOM = MAX_DATA_BYTES - len(b'{"text":""}')

PAYLOADS = [
    ON,
    b'{"intensity":1,"colorRGB":{"r":1}}',
    b' { "state" : true } ',
    '{"text":"é"}'.encode(),
    b'{"text":"{}"}',
    b'{"state":"TRUE"}',
    b'{"state":true,"unknown":1}',
    b'{"state":true,"colorRGB":{}}',
    b'{"samples":[1,"x"]}',
    b'{"state":null}',
    b'{"unknown":1}',
    b"{}",
    b"",
    b"7",
    b"[1]",
    b'{"state":',
    b'{"text":"\xff"}',
    b'{"text":"\\ud800"}',
    b'{"text":"%s"}' % (b"x" * ROOM),
    b'{"text":"%s"}' % (b"x" * (ROOM + 1)),
    b'{"state":true%s}' % (b" " * MAX_DATA_BYTES),
    b" " * 2 * MAX_DATA_BYTES,
    b'{"unknown":%s}' % (b"[" * JSON_NESTING_MAX + b"]" * JSON_NESTING_MAX),
]
STAMPS = [None, 0, 1.9, NOW_MS, NOW_MS + 60_001, -1, -0.5, True, float("nan"), float("inf"), 1e300, 10**400, "1"]


@dataclass(frozen=True)
class Batch:
    """Messages of one read, their stamps, and whether their sender is told which fields are not kept."""

    messages: Sequence[tuple[bytes, object]]
    is_told: bool


@dataclass(frozen=True)
class ClockSet:
    """The clock of the machine is set: so much forward, or back."""

    by_ms: int


@dataclass(frozen=True)
class DeviceEnabled:
    enabled: bool


@dataclass(frozen=True)
class Plan:
    """Messages of the device a day; None is no plan."""

    daily: int | None


@dataclass(frozen=True)
class Allowance:
    """Units of the organization a month."""

    monthly: int


Step: TypeAlias = Batch | ClockSet | DeviceEnabled | Plan | Allowance
#: The position of a message or why it was refused, and which of its fields were not kept.
Result: TypeAlias = tuple[Position | tuple[type, str], tuple[DroppedField, ...]]


class Run:
    """One run of the daemon, with one device."""

    def __init__(self, services: Services, clock: FakeClock, device: Device, *, is_together: bool) -> None:
        self._services = services
        self._ingest = services.messages.ingest
        self._clock = clock
        self.device = device
        self._is_together = is_together
        #: How many messages were accepted together.
        self.together = 0

    def tick(self) -> None:
        """From now on the clock goes forward with each reading."""
        ticks = count(NOW_MS + 1)
        self._ingest._now_ms = lambda: Milliseconds(next(ticks))

    async def take(self, step: Step) -> Sequence[Result]:
        match step:
            case Batch(messages, is_told):
                return self.submit_all(messages, is_told=is_told)
            case ClockSet(by_ms):
                self._clock.now += by_ms
            case DeviceEnabled(enabled):
                self.device.refresh(msgspec.structs.replace(self.device.record, enabled=enabled), self.device.type)
            case Plan(daily):
                self._services.limits.quotas.set_device_limit(self.device.key, daily)
            case Allowance(monthly):
                await self._services.core.database.write(partial(_allow, monthly))
                await self._services.limits.quotas.reload()
        return ()

    def submit_all(self, messages: Sequence[tuple[bytes, object]], *, is_told: bool = False) -> Sequence[Result]:
        """Submit messages as the front ends do, or one by one."""
        if not self._is_together:
            return [self._submit(*message, is_told=is_told) for message in messages]
        results, payloads, stamps = list[Result](), [one for one, _ in messages], [ts for _, ts in messages]
        for index, tickets in self._ingest.submit_all(self.device, payloads, stamps, is_told=is_told):
            assert index == len(results)
            results += [(at(ticket), ()) for ticket in tickets]
            self.together += len(tickets)
            if not tickets:
                results.append(self._submit(*messages[index], is_told=is_told))
        return results

    def _submit(self, payload: bytes, ts: object, *, is_told: bool) -> Result:
        dropped: list[DroppedField] | None = [] if is_told else None
        try:
            return at(self._ingest.submit(self.device, payload, ts, dropped)), tuple(dropped or ())
        except DomainError as error:
            return (type(error), str(error)), ()

    async def known(self) -> Mapping[str, object]:
        """All that anyone can see of the messages."""
        await self._ingest.wait_committed()
        quotas = self._services.limits.quotas
        return {
            "rows": await self.rows(),
            "failed": await self._services.core.database.read(
                lambda tx: [dict(row) for row in tx.connection.execute("SELECT * FROM failed_message")]
            ),
            "statistics": self._ingest.statistics(),
            "head": self._ingest.head,
            "refused": self._ingest.refused.of(self.device),
            "lost": self._ingest.lost_fields.of(self.device),
            "quotas": quotas.statistics(),
            "standing": quotas.standing(self.device),
        }

    def waiting(self) -> tuple[int, int]:
        """The rows that wait for the writer, and their bytes."""
        group = self._services.core.database.open_group
        return group.row_count, group.bytes_held

    async def rows(self) -> Sequence[MessageRow]:
        return await self._services.core.database.read(lambda tx: list(tx.messages.after(Position(0))))


def _allow(monthly: int, tx: Transaction) -> None:
    acme = tx.accounts.organization_by_id(ACME)
    assert acme is not None
    tx.accounts.change_organization(acme.key, name=acme.name, monthly_messages=monthly)


@asynccontextmanager
async def running(folder: Path, manifest: Mapping[str, object], *, is_together: bool) -> AsyncIterator[Run]:
    path, clock = folder / f"{is_together}", FakeClock(NOW_MS)
    path.mkdir()
    limits = Limits(rate_limits="off", quotas="on")
    opener = ServicesOpener(Settings(state_dir=path, limits=limits), MigratedEngine(path / "store.sqlite"), clock.clock)
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        await services.core.database.write(
            lambda tx: tx.device_types.add_manifest(
                ManifestRecord(world.light_type, 2, json.dumps(manifest), True, NOW_MS)
            )
        )
        device = await services.devices.registry.get(world.kitchen)
        await services.limits.quotas.reload()
        assert device.manifest.version == 2
        yield Run(services, clock, device, is_together=is_together)


@asynccontextmanager
async def both(folder: Path, manifest: Mapping[str, object] = PLAIN) -> AsyncIterator[tuple[Run, Run]]:
    """The run that submits together, and the one that submits one by one."""
    async with running(folder, manifest, is_together=True) as many, running(folder, manifest, is_together=False) as one:
        yield many, one


async def play(folder: Path, manifest: Mapping[str, object], steps: Sequence[Step]) -> None:
    async with both(folder, manifest) as (many, one):
        for step in steps:
            assert await many.take(step) == await one.take(step), step
        assert await many.known() == await one.known()


PAYLOAD = st.just(ON) | st.sampled_from(PAYLOADS)
STAMP = st.none() | st.sampled_from(STAMPS)
BATCH = st.builds(Batch, st.lists(st.tuples(PAYLOAD, STAMP), min_size=2, max_size=12), st.booleans())
CLOCK_SET = st.sampled_from([1, 10_000, 2 * DAY_MS, -1, -9_999, -CLOCK_STEP_MS - 1, -2 * DAY_MS]).map(ClockSet)
STEPS = st.lists(
    BATCH
    | BATCH
    | CLOCK_SET
    | st.booleans().map(DeviceEnabled)
    | st.sampled_from([None, 0, 3, 8, -1]).map(Plan)
    | st.sampled_from([0, 3, 8, -1, -2]).map(Allowance),
    max_size=8,
)
MANY = Batch([(ON, None)] * 4, is_told=False)
TOLD = replace(MANY, is_told=True)


@tries(max_examples=examples(20))
@given(st.sampled_from([PLAIN, TRANSFORMED]), STEPS)
@example(PLAIN, [MANY, Plan(6), MANY, MANY])
@example(PLAIN, [MANY, Allowance(6), TOLD, TOLD])
@example(PLAIN, [MANY, ClockSet(9), MANY, ClockSet(-5), MANY, TOLD])
@example(PLAIN, [MANY, DeviceEnabled(enabled=False), MANY, TOLD, DeviceEnabled(enabled=True), MANY])
@example(TRANSFORMED, [Batch([(b"7", None), (b"x,y,z\n1", None), (b"\xff", None), (b"8", None)] * 2, is_told=True)])
def test_messages_that_come_together_are_as_those_that_come_one_by_one(
    manifest: Mapping[str, object], steps: list[Step]
) -> None:
    with TemporaryDirectory() as folder:
        trio.run(play, Path(folder), manifest, steps)


@pytest.mark.parametrize("is_told", [False, True])
async def test_any_message_among_usual_ones_is_as_if_it_came_alone(tmp_path: Path, *, is_told: bool) -> None:
    usual = [(ON, None)] * 3
    around = [Batch([*usual, (payload, None), *usual, (payload, None)], is_told=is_told) for payload in PAYLOADS]
    await play(tmp_path, PLAIN, [MANY, *around])


async def test_usual_messages_that_come_together_are_accepted_at_once(tmp_path: Path) -> None:
    async with both(tmp_path) as (many, _):
        await many.take(MANY)  # the first message of a device is looked at for lost fields
        assert many.together == 0
        await many.take(MANY)
        await many.take(TOLD)
        assert many.together == 8


async def test_the_sender_of_messages_that_came_together_is_known_when_they_are_stored(
    services: Services, kitchen: Device
) -> None:
    ingest = services.messages.ingest
    ingest.lost_fields.look(kitchen.key, NOW_MS)
    ((first, positions),) = ingest.submit_all(kitchen, [ON, ON])
    assert (first, len(positions)) == (0, 2)
    senders = list[Device | None]()
    ingest.after_commit(lambda _: senders.append(ingest.sender(kitchen.key)))
    await ingest.wait_committed()
    assert senders == [kitchen]


async def test_messages_that_wait_for_the_writer_take_as_much_room(tmp_path: Path) -> None:
    async with both(tmp_path) as runs:
        for run in runs:
            run.submit_all([(payload, None) for payload in PAYLOADS * 2], is_told=True)
        many, one = (run.waiting() for run in runs)
        assert many == one > (0, 0)


async def test_messages_that_come_together_have_one_cts_which_never_goes_back(tmp_path: Path) -> None:
    async with running(tmp_path, PLAIN, is_together=True) as run:
        run.submit_all([(ON, None)])
        run.tick()
        run.submit_all([(ON, None), (ON, 5), *[(ON, None)] * 6, (b"7", None), (ON, None), (ON, None)])
        await run.known()
        _, *rows = await run.rows()
    at = rows[0].cts
    assert [(row.ts, row.cts) for row in rows[:3]] == [(at, at), (5, at), (at, at)]
    assert {row.cts for row in rows[3:8]} == {at}
    assert rows[8].cts == rows[9].cts > at


async def test_messages_before_one_that_meets_a_defect_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, PLAIN, is_together=True) as run:
        run.submit_all([(ON, None)])
        normalize = run.device.manifest.normalize

        def fail(payload: bytes) -> bytes | None:
            if payload == b"7":
                raise ZeroDivisionError
            return normalize(payload)

        monkeypatch.setattr(run.device.manifest, "normalize", fail)
        with pytest.raises(ZeroDivisionError):
            run.submit_all([*[(ON, None)] * 4, (b"7", None)])
        await run.known()
        assert (len(await run.rows()), run.together) == (5, 4)
