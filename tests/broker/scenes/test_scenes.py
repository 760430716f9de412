"""Scenes without REST: what facts make invalid, what activation sends, and the provision file (reference 12.5)."""

from typing import Any, Final

import msgspec
import pytest
import trio

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.envelope import Action
from broker.errors import DomainError, Finding, ValidationFailed
from broker.facts import ActionStored, SharesChanged
from broker.limits.refusals import MonthlyQuotaExceeded
from broker.scenes.invalidation import SceneStatistics
from broker.scenes.scenes import Scene
from broker.scenes.sending import SceneInvalid
from broker.services import Services
from config.settings import Limits, Settings
from storage.records import ManifestRecord
from storage.scenes import SceneRecord
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, DASHBOARD, HALL, KITCHEN, LIGHT_MANIFEST, LIGHT_TYPE, NOW_MS, World, build_world
from tests.fakes import FakeClock
from tests.rows import each_row

ON: Final = {"ddid": KITCHEN, "action": "setOn"}
EVERY: Final = {"ddid": {"selector": "every", "dtid": LIGHT_TYPE}, "action": "setOn"}
WRITE: Final = (Permission.WRITE,)


@pytest.fixture
async def ada(services: Services, world: World) -> Caller:
    return await services.accounts.tokens.caller(ADA_TOKEN)


@pytest.fixture
def sent(services: Services) -> list[Action]:
    found: list[Action] = []
    services.core.router.subscribe(ActionStored, lambda fact: found.append(fact.action))
    return found


async def make(services: Services, caller: Caller, *actions: Any) -> Scene:
    return await services.scenes.scenes.create(caller, {"name": "Evening", "actions": list(actions)})


async def stored(services: Services, scene: Scene) -> SceneRecord:
    """The row as it is, without judging it."""
    found = await services.core.database.read(lambda tx: tx.scenes.by_id(scene.record.id))
    assert found is not None
    return found


async def worked_through(services: Services) -> None:
    with trio.fail_after(10):
        while _statistics(services).devices_waiting:
            await trio.lowlevel.checkpoint()


def _statistics(services: Services) -> SceneStatistics:
    found = services.core.life.statistics()["scenes"]
    assert isinstance(found, SceneStatistics)
    return found


async def test_a_deleted_device_marks_its_scenes_without_a_reader(
    services: Services, ada: Caller, fake_clock: FakeClock
) -> None:
    first, second = await make(services, ada, ON), await make(services, ada, ON | {"ddid": HALL})
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    with trio.fail_after(10):
        while (await stored(services, first)).invalidated_on is None:
            await trio.lowlevel.checkpoint()
    assert (await stored(services, first)).invalidated_on == NOW_MS
    assert (await stored(services, second)).invalidated_on is None
    fake_clock.advance(1_000)
    found = await services.scenes.scenes.find(ada, first.record.id, WRITE)
    assert found.record.invalidated_on == NOW_MS


async def test_a_change_of_shares_that_takes_nothing_away_leaves_scenes_valid(
    services: Services, world: World, ada: Caller
) -> None:
    scene = await make(services, ada, ON)
    services.core.router.publish(SharesChanged(world.kitchen))
    await worked_through(services)
    assert (await stored(services, scene)).invalidated_on is None


async def test_a_scene_that_became_invalid_while_the_daemon_was_off_is_found_so(
    opener: ServicesOpener, fake_clock: FakeClock
) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        scene = await make(services, await services.accounts.tokens.caller(ADA_TOKEN), ON)
        await services.core.database.write(lambda tx: tx.devices.set_deleted(world.kitchen, NOW_MS))
    async with opener() as services:
        ada = await services.accounts.tokens.caller(ADA_TOKEN)
        found = await services.scenes.scenes.find(ada, scene.record.id, WRITE)
        assert found.findings == (Finding("actions.0.ddid", (f'Device "{KITCHEN}" does not exist',)),)
        with pytest.raises(SceneInvalid):
            await services.scenes.scenes.activate(found)


@pytest.mark.both_engines
async def test_an_action_that_its_manifest_lost_makes_a_scene_invalid(
    services: Services, world: World, ada: Caller
) -> None:
    scene = await make(services, ada, EVERY)
    document = msgspec.json.encode(dict(LIGHT_MANIFEST) | {"actions": [{"name": "setOff"}]}).decode()
    manifest = ManifestRecord(world.light_type, 2, document, True, 1)
    await services.core.database.write(lambda tx: tx.device_types.add_manifest(manifest))
    await services.device_types.catalog.reload()
    found = await services.scenes.scenes.find(ada, scene.record.id, WRITE)
    assert found.findings == (Finding("actions.0.action", ('Action "setOn" does not exist',)),)


@pytest.mark.both_engines
async def test_a_change_meanwhile_is_not_marked_for_what_it_replaced(services: Services, ada: Caller) -> None:
    scene = await make(services, ada, ON)
    await services.scenes.scenes.change(ada, scene, {"actions": [EVERY]})
    await services.core.database.write(lambda tx: tx.scenes.invalidate(scene.record, now_ms=NOW_MS, findings="[]"))
    assert (await stored(services, scene)).invalidated_on is None


@pytest.mark.both_engines
async def test_an_activation_has_at_most_1000_messages(
    services: Services, ada: Caller, sent: list[Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await make(services, ada, EVERY, ON)
    for most in (2, 1):  # two lights of Ada's, and one of them again
        monkeypatch.setattr("broker.scenes.sending.SCENE_MESSAGES_MAX", most)
        with pytest.raises(SceneInvalid, match="more than"):
            await services.scenes.scenes.activate(scene)
    assert sent == []
    monkeypatch.setattr("broker.scenes.sending.SCENE_MESSAGES_MAX", 3)
    monkeypatch.setattr("broker.scenes.sending._SENT_AT_ONCE", 2)
    await services.scenes.scenes.activate(scene)
    assert [one.ddid for one in sent] == [KITCHEN, HALL, KITCHEN]


class TestQuotas:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(state_dir=settings.state_dir, limits=Limits(rate_limits="off"))

    async def test_what_a_quota_refuses_does_not_stop_the_others_and_is_told(
        self, services: Services, ada: Caller, sent: list[Action]
    ) -> None:
        await services.provisioning.apply({"organizations": [{"name": "Acme", "monthly_messages": 1}]})
        scene = await make(services, ada, ON, ON | {"ddid": HALL})
        with pytest.raises(MonthlyQuotaExceeded):
            await services.scenes.scenes.activate(scene)
        assert [one.ddid for one in sent] == [KITCHEN]


def entry(**members: Any) -> dict[str, Any]:
    return {
        "scenes": [{"owner": "ada@example.org", "application": DASHBOARD, "name": "Night", "actions": [ON]} | members]
    }


@pytest.mark.both_engines
async def test_a_provisioned_scene_stands_for_the_one_with_its_name(services: Services, ada: Caller) -> None:
    counts = []
    for document in (entry(), entry(), entry(description="Dark"), entry(), entry(actions=[EVERY]), entry(name="Day")):
        table = (await services.provisioning.apply(document)).tables["scenes"]
        counts.append((table.created, table.changed, table.unchanged))
    assert counts == [(1, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    scenes, total = await services.scenes.scenes.page(ada, ada.user or 0, offset=0, count=10)  # type: ignore[arg-type]
    assert [(one.record.name, one.record.description) for one in scenes] == [("Night", "Dark"), ("Day", "")]
    assert msgspec.json.decode(scenes[0].record.actions) == [EVERY]
    assert total == 2


async def test_a_provisioned_scene_names_devices_of_the_same_file(services: Services, world: World) -> None:
    device = {"id": "7" * 32, "owner": "ada@example.org", "type": LIGHT_TYPE, "name": "New light"}
    document = {"devices": [device], **entry(actions=[{"ddid": "7" * 32, "action": "setOn"}])}
    await services.provisioning.apply(document)
    (record,) = await services.core.database.read(lambda tx: tx.scenes.of_user(world.ada))
    key = (await services.devices.registry.find("7" * 32)).key
    named = await services.core.database.read(lambda tx: tx.scenes.valid_with_device(key, after=0, limit=9))
    assert [one.id for one in named] == [record.id]


@each_row(
    ("members", "field"),
    [
        ({"owner": "nobody@example.org"}, "scenes[0].owner"),
        ({"application": "Nothing"}, "scenes[0].application"),
        ({"id": "x"}, "scenes[0].id"),
        ({"actions": []}, "scenes[0].actions"),
        ({"actions": [ON | {"ddid": "7" * 32}]}, "scenes[0].actions.0.ddid"),
        ({"actions": [ON | {"parameters": {"a": {"value": float("inf")}}}]}, "scenes[0].actions.0.parameters.a"),
        ({"owner": "bob@example.org"}, "scenes[0].actions.0.ddid"),
    ],
)
async def test_a_provisioned_scene_is_checked_as_one_of_a_call(
    services: Services, world: World, members: dict[str, Any], field: str
) -> None:
    with pytest.raises(DomainError) as refused:
        await services.provisioning.apply(entry(**members))
    assert isinstance(refused.value, ValidationFailed)
    assert [one.field for one in refused.value.findings] == [field]


async def test_an_id_of_another_users_scene_is_refused(services: Services, ada: Caller) -> None:
    scene = await make(services, ada, ON)
    foreign = entry(id=scene.record.id, owner="bob@example.org", actions=[EVERY])
    with pytest.raises(ValidationFailed, match="Validation Error"):
        await services.provisioning.apply(foreign)
    assert (await stored(services, scene)).user == scene.record.user
