"""Wanted values end with the message that reports them, also over a crash, and each node hears of them."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.cluster.kinds import WANTED
from broker.cluster.news import NewsKind
from broker.devices.shares import ShareStatus
from broker.errors import DeviceNotFound, ValidationFailed
from broker.facts import WantedChanged
from broker.services import Services
from broker.wanted import wanted as wanted_module
from broker.wanted.following import Following
from broker.wanted.values import WantedState, read_wanted
from config.limits import WANTED_FIELDS_MAX
from storage.database import Database
from storage.keys import DeviceKey
from storage.transaction import Transaction
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


@pytest.mark.both_engines
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


async def test_it_ends_when_a_new_manifest_does_not_have_it_settable(services: Services, world: World) -> None:
    await settable(services)
    await want(services, world.kitchen, f0=1, f1=2, f2=3)
    fields = [FIELDS[0], {**FIELDS[1], "settable": False}]
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": fields}, approve=True)
    while (
        len(await stored(services, world.kitchen)) != 3
        or "refused" not in (await stored(services, world.kitchen)).values()
    ):
        await wait_all_tasks_blocked()
    assert await states(services, world.kitchen) == {"f0": "waiting", "f1": "refused", "f2": "refused"}
    assert services.wanted.document(world.kitchen) == b'{"data":{"f0":1}}'
    shown = await services.wanted.show(await services.devices.registry.get(world.kitchen))
    assert [one.text for one in shown.fields][1:] == [
        "The device's Manifest has changed: the field is not settable any more.",
        "The device's Manifest has changed: it has no such field.",
    ]


@pytest.mark.both_engines
async def test_the_end_of_a_share_withdraws_what_its_user_wanted_also_by_rules(
    services: Services, world: World
) -> None:
    await settable(services)
    database, device = services.core.database, await services.devices.registry.get(world.kitchen)
    before = await services.wanted.before(world.kitchen)

    def put(tx: Transaction) -> None:
        users = {key: tx.accounts.user(key) for key in (world.ada, world.bob)}
        manifest = device.manifest.manifest
        authors = [f"user {one.id}" for one in users.values() if one is not None]
        rows = [("ada", world.ada), ("bob", world.bob)]
        for name, key in rows:
            about = {"id": name, "key": key, "application": 1}
            tx.connection.execute(
                "INSERT INTO rule (id, owner, application, scope, name, description, body, enabled, since, created_on,"
                " modified_on, findings, stop_reason, revision) VALUES (:id, :key, :application, '', '', '', '{}', 0,"
                " 0, 0, 0, '', '', 1)",
                about,
            )
            tx.connection.execute(
                'INSERT INTO scene (id, "user", application, name, description, actions, created_on, modified_on)'
                " VALUES (:id, :key, :application, '', '', '[]', 0, 0)",
                about,
            )
            authors += [f"rule {name}", f"scene {name}"]
        authors += ["application nobody", "operator 0"]
        for number, author in enumerate(authors):
            values = read_wanted(b'{"f%d":1}' % number, manifest)
            services.wanted.put_in(tx, wanted_module.Wish(device, values, 60, author, before))

    await database.write(put)
    share = await services.devices.shares.offer(device, email="bob@example.org")
    await services.devices.shares.answer(share.id, world.bob, ShareStatus.ACCEPTED)
    await services.devices.shares.remove(share.id)
    records = await database.read(lambda tx: tx.wanted.of_device(world.kitchen))
    ada = await services.accounts.users.named("ada@example.org")
    assert {one.author for one in records} == {f"user {ada.id}", "rule ada", "scene ada", "operator 0"}


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


@pytest.mark.both_engines
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
