"""The audit log: in the transaction of the change, bounded, and found by filters (reference 28.2)."""

import re
from pathlib import Path

import pytest
import trio

from broker.errors import DeviceNotFound
from broker.services import Services
from broker.trace.audit import AuditEvent, entry_of, note
from broker.trace.origin import Origin, enter, set_actor
from config.settings import Audit, Settings
from storage.records import AuditFilter, AuditRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import ADA, ADA_TOKEN, KITCHEN, NOW_MS, World
from tests.fakes import FakeClock

REFERENCE = Path(__file__).parents[3] / "broker" / "reference" / "28-logs-and-audit.md"


async def entries(services: Services, **wanted: str) -> list[AuditRecord]:
    return await services.core.audit.find(AuditFilter(0, 2**62, 100_000, **wanted))


async def test_an_entry_has_actor_address_time_object_and_details(services: Services, world: World) -> None:
    enter(Origin("192.0.2.1"))
    (await services.accounts.tokens.caller(ADA_TOKEN)).act()
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.tokens.renew(device, application=None)
    entry = (await entries(services))[-1]
    assert (entry.at_ms, entry.event, entry.address, entry.object, entry.outcome) == (
        NOW_MS,
        "device_token_replaced",
        "192.0.2.1",
        f"device {KITCHEN}",
        "done",
    )
    assert re.fullmatch(r"user \w{32}", entry.actor)
    assert re.fullmatch(r"\w{32}", entry.details["application"])


async def test_a_change_that_fails_leaves_no_entry(services: Services, world: World) -> None:
    def work(tx: Transaction) -> None:
        note(tx, AuditEvent.DEVICE_DELETED, "device 1", now_ms=NOW_MS)
        raise DeviceNotFound

    with pytest.raises(DeviceNotFound):
        await services.core.database.write(work)
    assert await entries(services) == []


async def test_concurrent_writes_have_the_origin_of_their_own_task(services: Services) -> None:
    async def change(number: int) -> None:
        enter(Origin(f"192.0.2.{number}"))
        set_actor(f"user {number}")
        await trio.lowlevel.checkpoint()
        await services.core.database.write(lambda tx: note(tx, AuditEvent.SIGN_OUT, f"account {number}", now_ms=NOW_MS))

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(change, number)
    found = await entries(services)
    assert sorted((one.actor, one.address, one.object) for one in found) == sorted(
        (f"user {number}", f"192.0.2.{number}", f"account {number}") for number in range(50)
    )


@pytest.mark.both_engines
async def test_the_e_mail_address_of_a_user_finds_what_the_user_did_and_what_was_done_to_it(
    services: Services, world: World
) -> None:
    for event, actor, about in (
        (AuditEvent.SIGN_OUT, f"user {ADA}", ""),
        (AuditEvent.LOCK_OUT, "", f"account {ADA}"),
        (AuditEvent.COMMAND, "operator 0", "device d1"),
    ):
        enter(Origin("192.0.2.1", actor))
        await services.core.audit.write(entry_of(event, about, now_ms=NOW_MS))
    assert [one.event for one in await entries(services, actor="ada@example.org")] == ["sign_out"]
    assert [one.event for one in await entries(services, object="ADA@EXAMPLE.ORG")] == ["lock_out"]
    assert await entries(services, actor="nobody@example.net") == []


@pytest.mark.both_engines
async def test_filters(services: Services) -> None:
    for number, (event, outcome) in enumerate(
        [(AuditEvent.SIGN_IN, "done"), (AuditEvent.SIGN_IN, "refused"), (AuditEvent.COMMAND, "failed")]
    ):
        enter(Origin("192.0.2.1", f"user u{number}"))
        await services.core.audit.write(entry_of(event, f"device d{number}", now_ms=NOW_MS + number, outcome=outcome))
    for wanted, found in (
        ({"event": "sign_in"}, [0, 1]),
        ({"outcome": "failed"}, [2]),
        ({"actor": "user u1"}, [1]),
        ({"actor": "u1"}, [1]),
        ({"actor": "u_"}, []),
        ({"actor": "%"}, []),
        ({"object": "d2"}, [2]),
        ({"object": "device d2", "event": "sign_in"}, []),
    ):
        assert [one.at_ms - NOW_MS for one in await entries(services, **wanted)] == found, wanted
    between = AuditFilter(NOW_MS + 1, NOW_MS + 2, 10)
    assert [one.at_ms - NOW_MS for one in await services.core.audit.find(between)] == [1]
    latest = AuditFilter(0, 2**62, 2)
    assert [one.at_ms - NOW_MS for one in await services.core.audit.find(latest)] == [1, 2]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, audit=Audit(keep_days=10, keep_entries=1_000))


async def add(
    services: Services, number: int, *, at_ms: int = NOW_MS, of_stranger: bool = False, actor: str = ""
) -> None:
    entry = AuditRecord(at_ms, "sign_in", actor, "", "", "done", {}, of_stranger=of_stranger)

    def work(tx: Transaction) -> None:
        for _ in range(number):
            tx.audit.add(entry)

    await services.core.database.write(work)


async def test_old_entries_are_removed(services: Services, fake_clock: FakeClock) -> None:
    await add(services, 1_200, at_ms=NOW_MS)
    fake_clock.advance(10 * 86_400_000 + 1)
    await add(services, 3, at_ms=fake_clock.now)
    await services.core.audit.sweep()
    assert len(await entries(services)) == 3


@pytest.mark.both_engines
async def test_the_oldest_entries_beyond_the_number_are_removed(services: Services) -> None:
    for batch in range(3):
        await add(services, 700, at_ms=NOW_MS + batch)
    await services.core.audit.sweep()
    found = await entries(services)
    assert len(found) == 1_000
    assert {one.at_ms for one in found} == {NOW_MS + 1, NOW_MS + 2}


@pytest.mark.both_engines
async def test_a_flood_by_strangers_pushes_out_nothing_of_others(services: Services) -> None:
    await add(services, 700)
    await add(services, 5_000, of_stranger=True)
    await services.core.audit.sweep()
    found = await entries(services)
    assert [one.of_stranger for one in found].count(False) == 700
    assert [one.of_stranger for one in found].count(True) == 250


@pytest.mark.both_engines
async def test_a_flood_by_one_actor_pushes_out_nothing_of_others(services: Services) -> None:
    await add(services, 300, actor="user u1")
    await add(services, 2_000, actor="application a1")
    await services.core.audit.sweep()
    found = [one.actor for one in await entries(services)]
    assert (found.count("user u1"), found.count("application a1")) == (300, 700)


async def test_what_waits_for_the_worker_is_bounded(services: Services) -> None:
    for _ in range(5_000):
        services.core.audit.put(entry_of(AuditEvent.SIGN_IN, now_ms=NOW_MS, of_stranger=True))
    assert services.core.audit.statistics().waiting == 1_000
    assert services.core.audit.statistics().lost == 4_000
    assert len(await entries(services)) == 1_000


async def test_what_waits_is_written_when_the_services_end(opener: ServicesOpener) -> None:
    async with opener() as services:
        services.core.refusals.note("sign_in_refused", reason="wrong", audited=AuditEvent.SIGN_IN)
    async with opener() as services:
        assert [one.event for one in await entries(services)] == ["sign_in"]


def test_the_reference_has_every_event() -> None:
    (_, section) = REFERENCE.read_text(encoding="utf-8").split("## 28.2")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"\w+", row)) == sorted(AuditEvent)
