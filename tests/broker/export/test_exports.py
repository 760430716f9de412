"""Exports from their creation to their expiry (reference 10)."""

import csv
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs
from trio.testing import MockClock

from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.errors import Conflict, Gone, NotFound, PermissionDenied, ValidationFailed
from broker.export import exports, merging
from broker.export.exports import Export, TooManyExports
from broker.export.formats import FieldColumns, plain_file_name
from broker.export.requests import ExportRequest
from broker.export.status import ExportStatus, may_follow
from broker.messages.history import Search
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS
from broker.services import Services
from broker.trials.roles import TrialRole
from config.limits import EXPORT_ENTRY_MESSAGES
from protocols.rendering import message_entry
from storage.keys import Milliseconds, Position
from storage.records import MessageRow
from tests.builders import ServicesOpener
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
    build_world,
)
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails
from tests.rows import each_row
from tests.stored_files import stored_files
from tests.trial_world import join, new_trial
from tests.wording import INVALID

START = NOW_MS - DAY_MS
Entries = dict[str, bytes]


@pytest.fixture
async def ada(services: Services, world: World) -> Caller:
    return await services.accounts.tokens.caller(ADA_TOKEN)


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


@pytest.fixture
async def hall(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.hall)


def asking(
    *,
    uids: str | None = None,
    sdids: str | None = None,
    sdtids: str | None = None,
    start_ms: int = START,
    end_ms: int = NOW_MS,
    **more: object,
) -> ExportRequest:
    given = {"uids": uids, "sdids": sdids, "sdtids": sdtids, "start_ms": start_ms, "end_ms": end_ms} | more
    return msgspec.convert({name: value for name, value in given.items() if value is not None}, ExportRequest)


async def send(services: Services, *messages: tuple[Device, int, Mapping[str, object]]) -> None:
    for device, ts, data in messages:
        services.messages.ingest.submit(device, msgspec.json.encode(data), ts)
    await services.messages.ingest.wait_committed()


async def finished(services: Services, caller: Caller, export_id: str) -> Export:
    """The export when the worker has finished it. Needs the mock clock."""
    while True:
        export = await services.export.find(caller, export_id)
        if export.status not in {ExportStatus.RECEIVED, ExportStatus.IN_PROGRESS}:
            return export
        await trio.lowlevel.checkpoint()


async def exported(services: Services, caller: Caller, request: ExportRequest) -> Entries:
    export_id = await services.export.create(caller, request)
    export = await finished(services, caller, export_id)
    assert export.status is ExportStatus.SUCCESS
    content = await archive_of(services, caller, export_id)
    assert export.record.file_size == len(content)
    assert export.record.md5 == hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert export.record.expires_on == services.core.clock.now_ms() + DAY_MS
    return entries(content)


async def archive_of(services: Services, caller: Caller, export_id: str) -> bytes:
    _, file = await services.export.result(caller, export_id)
    return await file.read(0, file.size)


def entries(content: bytes) -> Entries:
    found: Entries = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            assert member.name not in found
            found[member.name] = file.read()
    return found


def stamps(found: Entries) -> dict[str, list[int]]:
    """Entry name to the ts of its messages."""
    loaded = {name: msgspec.json.decode(content) for name, content in found.items()}
    assert all(one["size"] == len(one["data"]) for one in loaded.values())
    return {name: [message["ts"] for message in one["data"]] for name, one in loaded.items()}


# Contents


async def test_an_entry_holds_what_a_search_answers(services: Services, ada: Caller, kitchen: Device) -> None:
    await send(
        services, (kitchen, NOW_MS - 2, {"text": 'a "quoted", ü\n'}), (kitchen, NOW_MS - 1, {"temperature": 1.5})
    )
    found = await exported(services, ada, asking(sdids=KITCHEN))
    page = await services.messages.history.messages(Search(devices=[kitchen], start_ms=Milliseconds(0), end_ms=NOW_MS))
    expected = b",".join(map(message_entry, page.messages))
    assert found == {f"{KITCHEN}-{NOW_MS - 2}.json": b'{"size":2,"data":[' + expected + b"]}"}


async def test_csv_entries(services: Services, ada: Caller, kitchen: Device) -> None:
    await send(services, (kitchen, NOW_MS - 2, {"text": 'a "quoted", ü\n'}), (kitchen, NOW_MS - 1, {"state": True}))
    found = await exported(services, ada, asking(sdids=KITCHEN, format="csv1"))
    ((name, content),) = found.items()
    assert name == f"{KITCHEN}-{NOW_MS - 2}.csv"
    assert b"\r" not in content
    lines = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert lines[0] == ["mid", "sdid", "sdtid", "uid", "ts", "cts", "mv", "data"]
    page = await services.messages.history.messages(Search(devices=[kitchen], start_ms=Milliseconds(0), end_ms=NOW_MS))
    assert lines[1:] == [
        [one.mid, one.sdid, one.sdtid, one.uid, str(one.ts), str(one.cts), str(one.mv), one.data]
        for one in page.messages
    ]
    bare = await exported(services, ada, asking(sdids=KITCHEN, format="csv1", csv_headers=False))
    assert bare[name] == content.partition(b"\n")[2]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"uids": ADA}, {ADA: [3, 2, 1]}),
        ({"uids": ADA, "sdtids": LIGHT_TYPE}, {ADA: [3, 2, 1]}),
        ({"uids": ADA, "sdtids": "example.smart_light"}, {ADA: [3, 2, 1]}),
        ({"sdids": KITCHEN}, {KITCHEN: [3, 1]}),
        ({"sdids": f" {KITCHEN} ,,{HALL}"}, {KITCHEN: [3, 1], HALL: [2]}),
        ({"uids": ADA, "sdids": HALL, "sdtids": LIGHT_TYPE}, {HALL: [2]}),
        ({"uids": ADA, "sdids": HALL}, {HALL: [2]}),
    ],
)
async def test_combinations_of_users_devices_and_types(
    services: Services,
    ada: Caller,
    kitchen: Device,
    hall: Device,
    lists: dict[str, Any],
    expected: dict[str, Sequence[int]],
) -> None:
    await send(services, (kitchen, NOW_MS - 1, {"state": True}), (hall, NOW_MS - 2, {"state": True}))
    await send(services, (kitchen, NOW_MS - 3, {"state": True}))
    found = stamps(await exported(services, ada, asking(**lists)))
    assert found == {f"{id_}-{NOW_MS - ages[0]}.json": [NOW_MS - age for age in ages] for id_, ages in expected.items()}


@pytest.mark.both_engines
async def test_both_dates_are_inclusive_and_the_order_may_be_reversed(
    services: Services, ada: Caller, kitchen: Device, hall: Device
) -> None:
    await send(
        services, *((device, ts, {"state": True}) for ts in range(START - 2, START + 4) for device in (hall, kitchen))
    )
    found = stamps(await exported(services, ada, asking(uids=ADA, end_ms=START + 2, order="desc")))
    assert found == {f"{ADA}-{START + 2}.json": [START + 2, START + 2, START + 1, START + 1, START, START]}


@pytest.mark.parametrize(("format_", "content"), [("json", b'{"size":0,"data":[]}'), ("csv1", b"")])
async def test_an_empty_result_is_one_empty_entry(
    services: Services, ada: Caller, format_: str, content: bytes
) -> None:
    found = await exported(services, ada, asking(sdids=f"{HALL},{KITCHEN}", format=format_, csv_headers=False))
    assert found == {f"{HALL}-0.{'json' if format_ == 'json' else 'csv'}": content}


@pytest.fixture
def small_entries(monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of messages in a full entry: a twentieth. As many rows less are held at once."""
    assert (EXPORT_ENTRY_MESSAGES, merging._HELD_ROWS) == (10_000, 20_000)
    monkeypatch.setattr(merging, "EXPORT_ENTRY_MESSAGES", 500)
    monkeypatch.setattr(merging, "_HELD_ROWS", 1_000)
    return 500


async def test_a_new_entry_starts_after_10000_messages(
    services: Services, ada: Caller, kitchen: Device, small_entries: int
) -> None:
    for number in range(2 * small_entries + 2):
        services.messages.ingest.submit(kitchen, b'{"state":true}', START + 2 * number // (3 * small_entries))
    await services.messages.ingest.wait_committed()
    found = stamps(await exported(services, ada, asking(sdids=KITCHEN)))
    # The first full entry, and some messages more, are of one moment: no entry hides another.
    assert {name: len(one) for name, one in found.items()} == {
        f"{KITCHEN}-{START}.json": small_entries,
        f"{KITCHEN}-{START}-1.json": small_entries,
        f"{KITCHEN}-{START + 1}.json": 2,
    }


async def test_actions_and_later_messages_are_not_exported(services: Services, ada: Caller, kitchen: Device) -> None:
    await send(services, (kitchen, START, {"state": True}))
    services.messages.ingest.submit_action(kitchen, kitchen, b'{"actions":[{"name":"setOn"}]}')
    export_id = await services.export.create(ada, asking(sdids=KITCHEN))
    await send(services, (kitchen, START + 1, {"state": True}))
    export = await finished(services, ada, export_id)
    assert export.record.total_messages == 1


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("deleted", "expected"), [([HALL], {f"{ADA}-{START}.json": [START]}), ([HALL, KITCHEN], {f"{ADA}-0.json": []})]
)
async def test_a_device_that_is_deleted_meanwhile_is_left_out(
    services: Services,
    ada: Caller,
    kitchen: Device,
    hall: Device,
    deleted: list[str],
    expected: dict[str, list[int]],
) -> None:
    await send(services, (kitchen, START, {"state": True}), (hall, START + 1, {"state": True}))
    export_id = await services.export.create(ada, asking(uids=ADA))
    listed = ", ".join(f"'{id_}'" for id_ in deleted)
    delete = f"UPDATE device SET deleted_on = 1 WHERE id IN ({listed})"  # noqa: S608 - ids of this test
    await services.core.database.write(lambda tx: tx.connection.execute(delete))
    assert (await finished(services, ada, export_id)).record.total_messages == sum(map(len, expected.values()))
    assert stamps(entries(await archive_of(services, ada, export_id))) == expected


@pytest.mark.both_engines
async def test_an_application_exports_what_it_was_granted(services: Services, ada: Caller, kitchen: Device) -> None:
    application = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    await send(services, (kitchen, START, {"state": True}))
    assert list(await exported(services, application, asking(uids=ADA))) == [f"{ADA}-{START}.json"]
    assert await services.export.history(ada, trial=None, offset=0, count=9) == ([], 0)
    assert (await services.export.history(application, trial=None, offset=0, count=9))[1] == 1


# Refusals


@each_row(
    ("request_", "finding"),
    [
        (asking(), ("uids", "Required parameter")),
        (asking(uids=" , "), ("uids", "Required parameter")),
        (asking(sdtids=LIGHT_TYPE), ("uids", "Required parameter")),
        (asking(sdids=KITCHEN, sdtids=LIGHT_TYPE), ("uids", "Required parameter")),
        (asking(uids=",".join(f"{n:032x}" for n in range(31))), ("uids", "Maximum length 30")),
        (asking(sdids=",".join(f"{n:032x}" for n in range(31))), ("sdids", "Maximum length 30")),
        (asking(uids=ADA, sdtids=",".join(f"{n:032x}" for n in range(31))), ("sdtids", "Maximum length 30")),
        (asking(uids=ADA, start_ms=2, end_ms=1), ("startDate", INVALID)),
        (asking(uids=ADA, start_ms=NOW_MS - 30 * DAY_MS - 2 * MINUTE_MS), ("startDate", INVALID)),
        (asking(uids=ADA, end_ms=START + 31 * DAY_MS + 1), ("endDate", INVALID)),
        (asking(uids=ADA, url="x" * 2001), ("url", "Maximum length 2000")),
    ],
)
async def test_bad_requests_are_refused(
    services: Services, ada: Caller, request_: ExportRequest, finding: tuple[str, str]
) -> None:
    with pytest.raises(ValidationFailed) as error:
        await services.export.create(ada, request_)
    assert [(one.field, *one.messages) for one in error.value.findings] == [finding]
    assert await services.export.history(ada, trial=None, offset=0, count=9) == ([], 0)


@each_row(
    ("lists", "refusal"),
    [
        ({"uids": BOB}, PermissionDenied),
        ({"uids": "ff" * 16}, NotFound),
        ({"sdids": BOBS}, PermissionDenied),
        ({"sdids": "ff" * 16}, NotFound),
        ({"uids": ADA, "sdtids": "no.such_type"}, NotFound),
        ({"trial_id": "ff" * 16}, NotFound),
    ],
)
async def test_permissions_are_checked(
    services: Services, ada: Caller, lists: dict[str, Any], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        await services.export.create(ada, asking(**lists))


async def test_nobody_else_sees_an_export(services: Services, ada: Caller) -> None:
    export_id = await services.export.create(ada, asking(uids=ADA))
    for token in (BOB_TOKEN, APPLICATION_TOKEN):
        with pytest.raises(PermissionDenied):
            await services.export.find(await services.accounts.tokens.caller(token), export_id)
    with pytest.raises(NotFound):
        await services.export.find(ada, "ff" * 16)


# Its states


def test_the_table_of_states() -> None:
    states = list(ExportStatus)
    assert {(a.value, b.value) for a in states for b in states if may_follow(b, a)} == {
        ("Received", "InProgress"),
        ("InProgress", "Success"),
        ("InProgress", "Failure"),
        ("Success", "Served"),
        ("Success", "Expired"),
        ("Served", "Expired"),
    }


async def test_from_success_to_served_to_expired(
    services: Services, ada: Caller, fake_clock: FakeClock, settings: object
) -> None:
    export_id = await services.export.create(ada, asking(uids=ADA))
    with pytest.raises(Conflict, match="Export is not ready"):
        await services.export.result(ada, export_id)
    await finished(services, ada, export_id)
    _, file = await services.export.result(ada, export_id)
    await services.export.served(export_id)
    await services.export.served(export_id)
    assert (await services.export.result(ada, export_id))[0].status is ExportStatus.SERVED
    fake_clock.advance(DAY_MS - 1)
    await services.export.expire()
    assert (await services.export.result(ada, export_id))[0].status is ExportStatus.SERVED
    fake_clock.advance(1)
    for _ in range(2):  # before and after the worker has expired it
        with pytest.raises(Gone):
            await services.export.result(ada, export_id)
        assert (await services.export.find(ada, export_id)).status is ExportStatus.EXPIRED
        await services.export.expire()
    await services.core.files.sweep()
    assert len(await file.read(0, file.size)) == file.size  # for a download that had begun
    fake_clock.advance(HOUR_MS)
    await services.core.files.sweep()
    assert await file.read(0, file.size) == b""


async def test_a_disk_error_fails_the_export_and_not_the_next_one(
    services: Services, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def room(_folder: Path) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(exports, "room_in", room)
    export_id = await services.export.create(ada, asking(uids=ADA))
    assert (await finished(services, ada, export_id)).status is ExportStatus.FAILURE
    with pytest.raises(Conflict, match="Export failed"):
        await services.export.result(ada, export_id)
    monkeypatch.undo()
    assert await exported(services, ada, asking(uids=ADA)) == {f"{ADA}-0.json": b'{"size":0,"data":[]}'}
    assert services.export.statistics().failed == 1


@pytest.mark.both_engines
async def test_history_is_newest_first(services: Services, ada: Caller) -> None:
    ids = [await services.export.create(ada, asking(uids=ADA)) for _ in range(3)]
    for export_id in ids:
        await finished(services, ada, export_id)
    found, total = await services.export.history(ada, trial=None, offset=1, count=1)
    assert ([one.record.id for one in found], total) == ([ids[1]], 3)
    assert await services.export.history(ada, trial="ff" * 16, offset=0, count=9) == ([], 0)


async def test_a_mail_is_queued_with_success(services: Services, ada: Caller) -> None:
    for url in ("https://app.example.org/done", None):
        export_id = await services.export.create(ada, asking(uids=ADA, url=url))
        await finished(services, ada, export_id)
    waiting = await services.core.database.read(waiting_mails)
    assert [(mail.kind, mail.recipient) for mail in waiting] == [("export_finished", "ada@example.org")] * 2


# Restarts


async def test_an_export_goes_on_after_a_restart(opener: ServicesOpener, tmp_path: Path, small_entries: int) -> None:
    export_id = ""
    total = 3 * small_entries + 5
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        for number in range(total):
            services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % number, START + number)
        await services.messages.ingest.wait_committed()
        ada = await services.accounts.tokens.caller(ADA_TOKEN)
        export_id = await services.export.create(ada, asking(sdids=KITCHEN))
        while not 0 < (begun := await services.export.find(ada, export_id)).record.total_messages < total:
            await trio.lowlevel.checkpoint()
        assert begun.status is ExportStatus.IN_PROGRESS
        assert 0 < (begun.progress or 0) < 100
        half = len((await stored_files(services))[f"exports/{export_id}"])
    with capture_logs() as logs:
        async with opener() as services:
            ada = await services.accounts.tokens.caller(ADA_TOKEN)
            done = await finished(services, ada, export_id)
            content = await archive_of(services, ada, export_id)
    resumed = next(one for one in logs if one["event"] == "export_begun")
    assert 0 < resumed["messages"] < total
    assert done.record.total_messages == total
    assert len(content) > half
    assert done.record.md5 == hashlib.md5(content, usedforsecurity=False).hexdigest()
    found = stamps(entries(content))
    assert [ts for one in found.values() for ts in one] == [START + number for number in range(total)]
    assert list(map(len, found.values())) == [small_entries] * 3 + [5]


@pytest.mark.both_engines
async def test_an_export_whose_beginning_is_lost_begins_again(opener: ServicesOpener, tmp_path: Path) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        await send(services, (kitchen, START, {"state": True}))
        ada = await services.accounts.tokens.caller(ADA_TOKEN)
        export_id = await services.export.create(ada, asking(sdids=KITCHEN))
        done = await finished(services, ada, export_id)
        behind = replace(done.record, status="InProgress", md5=None, file_size=None, expires_on=None)
        await services.core.database.write(lambda tx: tx.exports.put(behind))
        await services.core.files.clear(f"exports/{export_id}")
    async with opener() as services:
        ada = await services.accounts.tokens.caller(ADA_TOKEN)
        again = await finished(services, ada, export_id)
        assert (again.status, again.record.total_messages) == (ExportStatus.SUCCESS, 1)
        assert stamps(entries(await archive_of(services, ada, export_id))) == {f"{KITCHEN}-{START}.json": [START]}


async def test_exports_that_expire_while_the_daemon_runs_are_removed(
    services: Services, ada: Caller, fake_clock: FakeClock, autojump_clock: MockClock, tmp_path: Path
) -> None:
    export_id = await services.export.create(ada, asking(uids=ADA))
    await finished(services, ada, export_id)
    assert list(await stored_files(services)) == [f"exports/{export_id}"]
    fake_clock.advance(DAY_MS + HOUR_MS)
    await trio.sleep(61)
    fake_clock.advance(HOUR_MS)
    await trio.sleep(61)
    assert await stored_files(services) == {}


# Shared out between users, with bounds


async def test_the_exports_of_one_user_hold_up_no_other_user(
    services: Services, ada: Caller, kitchen: Device, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "EXPORT_ENTRY_MESSAGES", 2)
    await send(services, *((kitchen, NOW_MS - number, {"intensity": number % 100}) for number in range(40)))
    bob = await services.accounts.tokens.caller(BOB_TOKEN)
    of_ada = [await services.export.create(ada, asking(uids=ADA)) for _ in range(10)]
    await finished(services, bob, await services.export.create(bob, asking(uids=BOB)))
    statuses = [(await services.export.find(ada, one)).status for one in of_ada]
    assert statuses.count(ExportStatus.SUCCESS) <= 1
    for one in of_ada:
        assert (await finished(services, ada, one)).status is ExportStatus.SUCCESS


async def test_the_applications_of_one_users_trials_take_one_turn(
    services: Services,
    world: World,
    ada: Caller,
    kitchen: Device,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anybody makes a hundred trials, each with an application of its own."""
    monkeypatch.setattr(merging, "EXPORT_ENTRY_MESSAGES", 2)
    bobs = await services.devices.registry.get(world.bobs)
    for device in (kitchen, bobs):
        await send(services, *((device, NOW_MS - number, {"intensity": number % 100}) for number in range(40)))
    of_trials = []
    for _ in range(5):
        trial = await new_trial(services, world)
        await join(services, world, trial, world.bob, TrialRole.PARTICIPANT)
        application = await services.core.database.read(
            lambda tx, key=trial.record.application: tx.accounts.application(key)  # type: ignore[misc]
        )
        caller = Caller(
            TokenKind.APPLICATION,
            b"",
            None,
            application=application.key,
            application_id=application.id,
            trial_organization=application.organization,
        )
        of_trials.append((caller, await services.export.create(caller, asking(sdids=BOBS))))
    await finished(services, ada, await services.export.create(ada, asking(uids=ADA)))
    statuses = [(await services.export.find(*one)).status for one in of_trials]
    assert statuses.count(ExportStatus.SUCCESS) <= 1, statuses
    for one in of_trials:
        assert (await finished(services, *one)).status is ExportStatus.SUCCESS


async def test_exports_of_a_user_that_wait_are_bounded(
    services: Services, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "EXPORTS_WAITING_OF_USER", 2)
    async with trio.open_nursery() as nursery:  # of ten at once; the worker may end some before
        refused: list[int] = []

        async def create() -> None:
            try:
                await services.export.create(ada, asking(uids=ADA))
            except TooManyExports as error:
                refused.append(error.retry_seconds)

        for _ in range(10):
            nursery.start_soon(create)
    assert refused == [60] * 8


async def test_archives_of_a_user_are_bounded(
    services: Services, ada: Caller, kitchen: Device, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(services, (kitchen, NOW_MS, {"intensity": 1}))
    export = await finished(services, ada, await services.export.create(ada, asking(uids=ADA)))
    assert export.record.file_size is not None
    monkeypatch.setattr(exports, "EXPORT_BYTES_OF_USER", export.record.file_size + 1)
    failed = await finished(services, ada, await services.export.create(ada, asking(uids=ADA)))
    assert failed.status is ExportStatus.FAILURE
    assert "archives that are kept" in (failed.record.last_error or "")
    monkeypatch.setattr(exports, "EXPORT_BYTES_OF_USER", export.record.file_size)
    with pytest.raises(TooManyExports) as caught:
        await services.export.create(ada, asking(uids=ADA))
    assert caught.value.retry_seconds == DAY_MS // 1000 + 1


async def test_an_export_leaves_the_reserve_on_the_disk(
    services: Services, ada: Caller, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exports, "room_in", lambda _folder: -1)
    export = await finished(services, ada, await services.export.create(ada, asking(uids=ADA)))
    assert (export.status, "disk" in (export.record.last_error or "")) == (ExportStatus.FAILURE, True)
    assert await stored_files(services) == {}


async def test_csv2_has_a_column_for_each_field_and_names_for_people(
    services: Services, ada: Caller, kitchen: Device
) -> None:
    text = '=1+1, "quoted"\n'
    await send(
        services,
        (kitchen, NOW_MS - 2_000, {"text": text, "colorRGB": {"r": 1, "g": 2, "b": 3}}),
        (kitchen, NOW_MS - 1_000, {"state": True, "intensity": -5}),
    )
    found = await exported(services, ada, asking(sdids=KITCHEN, format="csv2"))
    ((name, content),) = found.items()
    assert name.startswith(f"Kitchen-light-{KITCHEN[:8]}_")
    first, second = (datetime.fromtimestamp((NOW_MS - ago) / 1000, UTC) for ago in (2_000, 1_000))
    assert name.endswith(f"_{first:%Y%m%dT%H%M%SZ}_to_{second:%Y%m%dT%H%M%SZ}.csv")
    lines = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    assert [one["ts"] for one in lines] == [str(NOW_MS - 2_000), str(NOW_MS - 1_000)]
    assert {one["device"] for one in lines} == {"Kitchen light"}
    assert (lines[0]["text"], lines[0]["colorRGB.g"], lines[0]["state"]) == (f"'{text}", "2", "")
    assert (lines[1]["state"], lines[1]["intensity"], lines[1]["more"]) == ("true", "-5", "")
    assert list(lines[0])[:5] == ["time", "ts", "cts", "sdid", "device"]
    bare = await exported(services, ada, asking(sdids=KITCHEN, format="csv2", csv_headers=False))
    assert bare[name] == content.partition(b"\n")[2]


@each_row(
    ("name", "expected"),
    [
        ("Küche: Licht/1", "Küche-Licht-1"),
        ("रसोई", "रसोई"),
        ("../../etc/passwd", "etc-passwd"),
        ("a\u202eb\x00c", "a-b-c"),
        ("<>|?*", "device"),
        ("灯" * 64, "灯" * 40),
    ],
)
async def test_names_of_files_are_safe_in_every_script(name: str, expected: str) -> None:
    assert plain_file_name(name) == expected
    assert len(plain_file_name(name).encode()) <= 120


async def test_devices_of_one_name_have_files_of_their_own(
    services: Services, ada: Caller, kitchen: Device, autojump_clock: MockClock
) -> None:
    """Ids may begin alike, and a file system may take upper and lower case for the same."""
    twin = f"{KITCHEN[:8]}{'7' * 24}"
    device = {"id": twin, "owner": ADA, "type": LIGHT_TYPE, "name": "KITCHEN light"}
    await services.provisioning.apply({"devices": [device]})
    other = await services.devices.registry.find(twin)
    await send(services, (kitchen, NOW_MS - 1_000, {"state": True}), (other, NOW_MS - 1_000, {"state": False}))
    export_id = await services.export.create(ada, asking(sdids=f"{KITCHEN},{twin}", format="csv2"))
    export = await finished(services, ada, export_id)
    assert (await services.export.file_name(export)).startswith("2-devices_")
    names = list(entries(await archive_of(services, ada, export_id)))
    assert len({name.casefold() for name in names}) == 2
    assert sorted(name.split("_")[0] for name in names) == [f"KITCHEN-light-{twin}", f"Kitchen-light-{KITCHEN}"]


async def test_csv2_loses_no_field_of_an_earlier_manifest(services: Services, ada: Caller, kitchen: Device) -> None:
    columns = FieldColumns([])
    row = MessageRow(Position(1), kitchen.key, Milliseconds(0), Milliseconds(0), 1, '{"old":{"one":1},"list":[1,2]}')
    (line,) = csv.reader(io.StringIO(columns.entry([row], {kitchen.key: kitchen}, headers=False).decode()))
    assert msgspec.json.decode(line[-1]) == {"old.one": 1, "list": [1, 2]}
