"""Wanted values end with the message that reports them, also over a crash, and each node hears of them."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.cluster.kinds import WANTED
from broker.cluster.news import NewsKind
from broker.errors import DeviceNotFound, ValidationFailed
from broker.facts import WantedChanged
from broker.services import Services
from broker.wanted import wanted as wanted_module
from broker.wanted.following import Following
from broker.wanted.values import WantedState
from config.limits import WANTED_FIELDS_MAX
from storage.database import Database
from storage.keys import DeviceKey
from tests.builders import ServicesOpener
from tests.factories import LIGHT_TYPE, NOW_MS, World, build_world
from tests.fakes import FakeClock

FIELDS: Final[list[dict[str, Any]]] = [
    {"name": f"f{number}", "valueClass": "Integer", "settable": True} for number in range(100)
]


async def settable(services: Services) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS}, approve=True)
    await wait_all_tasks_blocked()


async def want(services: Services, key: DeviceKey, **values: int) -> dict[str, WantedState]:
    device = await services.devices.registry.get(key)
    data = msgspec.json.encode(values)
    await services.wanted.put(device, data, expires_after=60, application_id=None)
    return await states(services, key)


async def report(services: Services, key: DeviceKey, **values: int) -> None:
    device = await services.devices.registry.get(key)
    services.messages.ingest.submit(device, msgspec.json.encode(values))
    await services.messages.ingest.wait_committed()


async def states(services: Services, key: DeviceKey) -> dict[str, WantedState]:
    shown = await services.wanted.show(await services.devices.registry.get(key))
    return {one.field: one.state for one in shown.fields}


async def stored(services: Services, key: DeviceKey) -> dict[str, str]:
    found = await services.core.database.read(lambda tx: tx.wanted.of_device(key))
    return {one.field: one.state for one in found}


async def nothing(*_: object) -> bool:
    return False


@pytest.mark.parametrize("when", ["stored", "before the worker", "before the news"])
async def test_a_report_before_a_crash_is_not_lost(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The ends, or even the wish itself, were not heard when the daemon ended."""
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        await settable(services)
        with monkeypatch.context() as patched:
            if when != "stored":
                patched.setattr(Following, "_store_ends", nothing)
            if when == "before the news":
                patched.setattr(Following, "_compare", lambda *_: None)
            await want(services, world.kitchen, f0=1, f1=2)
            await report(services, world.kitchen, f0=1, f1=3)
            await wait_all_tasks_blocked()
            assert (await stored(services, world.kitchen))["f0"] == ("reached" if when == "stored" else "waiting")
    async with opener() as services:
        await wait_all_tasks_blocked()
        assert await stored(services, world.kitchen) == {"f0": "reached", "f1": "waiting"}
        assert services.wanted.document(world.kitchen) == b'{"data":{"f1":2}}'
        await report(services, world.kitchen, f1=2)
        await wait_all_tasks_blocked()
        assert await stored(services, world.kitchen) == {"f0": "reached", "f1": "reached"}


async def test_a_message_that_comes_while_the_wish_is_stored_counts(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is behind the position up to which the device's values were looked at."""
    await settable(services)
    write: Callable[..., Awaitable[Any]] = Database.write

    async def with_report(database: Database, work: Any, **more: Any) -> Any:
        if "Wanted.put" in getattr(work, "__qualname__", ""):
            monkeypatch.undo()
            await report(services, world.kitchen, f0=1)
        return await write(database, work, **more)

    monkeypatch.setattr(Database, "write", with_report)
    await want(services, world.kitchen, f0=1)
    await wait_all_tasks_blocked()
    assert await stored(services, world.kitchen) == {"f0": "reached"}


async def test_each_change_is_told_once_and_equal_ones_are_not(services: Services, world: World) -> None:
    await settable(services)
    told: list[bytes] = []
    services.core.router.subscribe(WantedChanged, lambda fact: told.append(fact.document))
    await want(services, world.kitchen, f0=1)
    await want(services, world.kitchen, f0=1)
    services.wanted.given(world.kitchen)
    await wait_all_tasks_blocked()
    assert await states(services, world.kitchen) == {"f0": "sent"}
    await want(services, world.kitchen, f0=1)
    assert await states(services, world.kitchen) == {"f0": "sent"}, "it goes on"
    await want(services, world.kitchen, f0=2, f1=1)
    await report(services, world.kitchen, f0=2)
    await report(services, world.kitchen, f1=1)
    await wait_all_tasks_blocked()
    documents = [b'{"data":{"f0":1}}', b'{"data":{"f0":2,"f1":1}}', b'{"data":{"f1":1}}', b'{"data":{}}']
    assert told == documents


async def test_another_node_hears_of_all_that_is_open(services: Services, world: World) -> None:
    """News of another node: the record says all."""
    await settable(services)
    heard: list[tuple[DeviceKey, object]] = []
    services.core.news.listen(WANTED, lambda key, records: heard.append((key, records)))
    await want(services, world.kitchen, f0=1)
    kind: NewsKind[Any, Any] = WANTED
    key, records = heard[0]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(records), type=kind.content_type)
    assert (key, again) == (world.kitchen, records)
    await services.core.database.write(lambda tx: tx.wanted.drop(world.kitchen))
    services.core.news.heard([(kind, world.kitchen, ())])
    assert services.wanted.document(world.kitchen) is None


async def test_what_a_device_and_a_user_may_have_is_bounded(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settable(services)
    await want(services, world.kitchen, **{f"f{number}": 1 for number in range(WANTED_FIELDS_MAX)})
    with pytest.raises(ValidationFailed) as refused:
        await want(services, world.kitchen, f70=1)
    assert refused.value.findings[0].messages == (f"Maximum length {WANTED_FIELDS_MAX}",)
    await want(services, world.kitchen, f0=2)
    monkeypatch.setattr(wanted_module, "WANTED_OF_USER", WANTED_FIELDS_MAX + 1)
    await want(services, world.hall, f0=1)
    with pytest.raises(ValidationFailed) as refused:
        await want(services, world.hall, f1=1)
    assert refused.value.findings[0].field == "data"
    assert await states(services, world.hall) == {"f0": "waiting"}


async def test_it_ends_with_the_owner(services: Services, world: World) -> None:
    """And a wish that was checked before is not put into the new owner's device."""
    await settable(services)
    await want(services, world.kitchen, f0=1)
    device = await services.devices.registry.get(world.kitchen)
    before = await services.wanted.before(world.kitchen)
    assert NOW_MS
    wish = wanted_module.Wish(device, {}, 60, "user x", before)

    def hand_over(tx: Any) -> None:
        tx.transfers.hand_over(world.kitchen, world.bob)
        tx.tell(WANTED, world.kitchen)

    await services.core.database.write(hand_over)
    assert services.wanted.document(world.kitchen) is None
    with pytest.raises(DeviceNotFound):
        await services.core.database.write(lambda tx: services.wanted.put_in(tx, wish))


async def test_as_many_as_expire_at_once_end_though_others_were_reached(
    services: Services, world: World, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of a step are of messages whose ends are still to be stored; the rest expires with the next step."""
    monkeypatch.setattr("broker.wanted.following._ENDS_AT_ONCE", 2)
    await settable(services)
    await want(services, world.kitchen, f0=1, f1=1, f2=1, f3=1, f4=1)
    with monkeypatch.context() as patched:
        patched.setattr(Following, "_store_ends", nothing)
        await report(services, world.kitchen, f0=1)
        fake_clock.advance(60_000)
        await services.wanted.step()
        assert (await states(services, world.kitchen))["f0"] == "reached"
    await services.wanted.step()
    assert await stored(services, world.kitchen) == {"f0": "reached"} | dict.fromkeys(
        ("f1", "f2", "f3", "f4"), "expired"
    )
