"""Who hears of what is committed, and that another node could hear it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.cluster import kinds
from broker.cluster.kinds import DEVICE, FACTS, SESSION_EXPIRED, publish
from broker.cluster.news import NewsKind, event, state
from broker.device_sessions.session import DeviceSession
from broker.facts import Fact, TokenRevoked
from broker.services import Services
from storage.keys import DeviceKey, UserKey
from storage.transaction import Transaction
from tests.broker.rules.home import Home, body, when
from tests.builders import ServicesOpener
from tests.factories import World, build_world
from tests.fakes import HeldRunner

#: The listeners of each kind in the order in which they hear. Facts are heard through the router, phase by phase.
WHO_HEARS_OF_WHAT = {
    "ApplicationGrantsChanged": ["Permissions._many_changed", "Feeds._grants_changed", "Connections._grants_changed"],
    "BackupProgressed": ["ProgressFeed._progressed"],
    "DeliveriesProgressed": ["ProgressFeed._progressed"],
    "DeviceActionDelivered": ["Events._device_fact"],
    "DeviceActionFailed": ["Events._device_fact"],
    "DeviceChanged": [
        "Tokens._forget_device",
        "Feeds._device_changed",
        "Reader._device_changed",
        "Connections._end_disabled",
    ],
    "DeviceCreated": [
        "Tiers._device_created",
        "Events._device_fact",
        "RuleInvalidator._members_changed",
        "EdgeActions._device_created",
    ],
    "DeviceDeleted": [
        "Presence._deleted",
        "Tiers.__init__.<locals>.<lambda>",
        "Training._deleted",
        "Endings._device_deleted",
        "close_with_facts.<locals>.device_deleted",
        "Events._device_fact",
        "close_with_facts.<locals>.device_deleted",
        "Connectors._device_deleted",
        "DeviceActions._gone",
        "ManagementEngine._device_deleted",
        "Invalidation._changed",
        "AlarmUpkeep._lost",
        "RuleInvalidator._members_changed",
        "RuleInvalidator._device_changed",
    ],
    "DeviceDisabled": ["Events._device_fact"],
    "DeviceEnabled": ["Events._device_fact"],
    "DeviceHandedOver": [
        "RefusedMessages._handed_over",
        "Endings._device_handed_over",
        "Events._device_fact",
        "DeviceActions._gone",
        "AlarmUpkeep._lost",
        "RuleInvalidator._members_changed",
    ],
    "DeviceTakenOver": ["Events._device_fact", "RuleInvalidator._members_changed"],
    "DeviceUpdated": ["Events._device_fact", "RuleInvalidator._device_changed"],
    "DeviceWanted": ["Events._device_fact"],
    "GrantsChanged": [
        "Permissions._grants_changed",
        "Feeds._grants_changed",
        "Endings._grants_changed",
        "Reader.__post_init__.<locals>.<lambda>",
        "Connections._grants_changed",
    ],
    "MQTT session began": ["DeviceSessions._session_began"],
    "MQTT session expired": ["DeviceSessions._session_expired"],
    "ManagementConfigured": [],
    "PlanApproved": ["Tiers._plan_approved"],
    "ProviderAuthRemoved": ["Endings._provider_auth_removed", "Connectors.__init__.<locals>.<lambda>"],
    "connector problems": ["Problems._heard"],
    "AlarmReported": ["Events._alarm_reported"],
    "alarm ended": ["RuleEngine._alarm_ended"],
    "RuleReported": ["Events._rule_reported"],
    "SessionsEnded": ["Console._sessions_ended"],
    "SharesChanged": [
        "Training._shares_changed",
        "Reader._device_changed",
        "Connections._shares_changed",
        "close_with_facts.<locals>.shares_changed",
        "close_with_facts.<locals>.shares_changed",
        "Invalidation._changed",
        "AlarmUpkeep._lost",
        "RuleInvalidator._device_changed",
    ],
    "SubscriptionReported": ["Events._subscription_reported"],
    "TaskProgressed": ["ProgressFeed._progressed"],
    "TokenRevoked": [
        "Tokens.__init__.<locals>.<lambda>",
        "Connections._end_revoked",
        "close_with_facts.<locals>.token_revoked",
        "close_with_facts.<locals>.token_revoked",
    ],
    "UploadProgressed": ["ProgressFeed._progressed"],
    "UserProfileUpdated": ["Events._profile_updated"],
    "account closed": ["Inventory._account_closed"],
    "device": ["Devices._changed"],
    "device task moved": ["ManagementEngine._settled"],  # by other nodes: ManagementEngine._settled_elsewhere
    "devices have tasks": ["ManagementEngine._wake"],
    "node buried": ["ManagementEngine._node_buried"],
    "management": ["Configurations._heard"],
    "model": ["Shelf.changed", "Training._model_changed"],
    "connection replaced": [],  # by other nodes: ConnectionClaims._replaced
    "availability": [],  # of several nodes: Events._changed_somewhere
    "work waits": [],  # by other nodes: Mails._waits, Knock._waits
    "device type changed": [],  # by other nodes: TypesElsewhere._note
    "provisioned": [],  # by other nodes: ProvisionedElsewhere._note
    "models of a rule": ["Training._rule_models_changed"],
    "notifications replayed": ["open_subscriptions.<locals>.replayed"],
    "roll-out changed": ["ManagementEngine._rollout_changed"],
    "rule compiled": ["RuleLoader.changed"],
    "rule": ["RuleLoader.changed"],
    "rule failed": ["RuleEngine._rule_failed"],
    "subscription": ["Subscriptions.changed"],
    "task added": ["ManagementEngine._task_added"],  # by other nodes: ManagementEngine._changed_elsewhere
    "tier": ["Tiers.tier_changed"],
    "wanted": ["Following._changed"],
    "token shortened": ["Tokens._shortened"],
}

#: They end something: a node must have heard of it before it commits anything more.
FENCING = {
    "rule",
    "subscription",
    "provisioned",
    "connection replaced",
    "ApplicationGrantsChanged",
    "DeviceDeleted",
    "DeviceDisabled",
    "DeviceHandedOver",
    "GrantsChanged",
    "SessionsEnded",
    "SharesChanged",
    "TokenRevoked",
}


def every_kind() -> list[NewsKind[Any, Any]]:
    others = [one for one in vars(kinds).values() if isinstance(one, NewsKind)]
    return sorted([*others, *FACTS.values()], key=lambda kind: kind.name)


def heard_by(services: Services, kind: NewsKind[Any, Any]) -> list[str]:
    is_fact = FACTS.get(kind.key_type) is kind
    listeners = (services.core.router.handlers if is_fact else services.core.news.listeners)(
        kind.key_type if is_fact else kind  # type: ignore[arg-type]
    )
    return [name_of(one) for one in listeners]


def name_of(listener: Any) -> str:
    while isinstance(listener, partial):
        listener = listener.func
    return str(listener.__qualname__)


async def test_who_hears_of_what(services: Services) -> None:
    assert {kind.name: heard_by(services, kind) for kind in every_kind()} == WHO_HEARS_OF_WHAT


def test_kinds_that_end_something_are_fencing() -> None:
    assert {kind.name for kind in every_kind() if kind.is_fencing} == FENCING


def test_each_kind_can_go_to_another_node() -> None:
    """Its key and its content are of types that MessagePack holds."""
    problems = [
        f"{kind.name}: {problem}"
        for kind in every_kind()
        for type_ in (kind.key_type, kind.content_type)
        for problem in unknown_types(msgspec.inspect.type_info(type_))
    ]
    assert problems == []
    unknown = event("closure", Iterator[int])  # type: ignore[type-abstract]
    assert list(unknown_types(msgspec.inspect.type_info(unknown.key_type))) != []


def unknown_types(info: Any) -> Iterator[str]:
    """What of a type no other process can read."""
    if isinstance(info, msgspec.inspect.CustomType | msgspec.inspect.AnyType):
        yield repr(info)
    elif isinstance(info, msgspec.inspect.Field):
        yield from unknown_types(info.type)
    elif isinstance(info, msgspec.inspect.Type):
        for name in info.__struct_fields__:
            part = getattr(info, name)
            for one in part if isinstance(part, tuple) else (part,):
                if isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
                    yield from unknown_types(one)


async def test_a_state_is_that_of_the_end_of_the_group(services: Services, world: World) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    heard: list[object] = []
    services.core.news.listen(DEVICE, lambda key, record: heard.append((key, record and record.enabled)))

    def work(tx: Transaction) -> None:
        tx.tell(DEVICE, world.kitchen)
        tx.devices.put_device(replace(kitchen.record, enabled=False))
        tx.tell(DEVICE, world.kitchen)

    await services.core.database.write(work)
    assert heard == [(world.kitchen, False)]
    assert not kitchen.enabled


async def test_facts_and_states_are_heard_in_the_order_in_which_they_were_told(services: Services) -> None:
    heard: list[object] = []
    services.core.router.subscribe(TokenRevoked, heard.append)
    services.core.news.listen(SESSION_EXPIRED, lambda key, _content: heard.append(key))

    def work(tx: Transaction) -> None:
        publish(tx, TokenRevoked(b"1"))
        tx.tell(SESSION_EXPIRED, DeviceKey(2))
        publish(tx, TokenRevoked(b"3"), TokenRevoked(b"1"))

    await services.core.database.write(work)
    assert heard == [TokenRevoked(b"1"), 2, TokenRevoked(b"3"), TokenRevoked(b"1")]


async def test_a_listener_that_fails_keeps_no_other_from_hearing(services: Services) -> None:
    news, heard = services.core.news, list[int]()

    def fail(_key: DeviceKey, _content: None) -> None:
        raise LookupError

    news.listen(SESSION_EXPIRED, fail)
    news.listen(SESSION_EXPIRED, lambda key, _content: heard.append(key))
    with capture_logs() as logs:
        await services.core.database.write(lambda tx: tx.tell(SESSION_EXPIRED, DeviceKey(2)))
    assert heard == [2]
    assert [log["event"] for log in logs] == ["news_listener_failed"]


def test_a_kind_takes_its_types_from_its_reader() -> None:
    def read(_tx: Transaction, key: UserKey) -> tuple[str, ...]:
        return (str(key),)

    kind = state("names", read)
    assert (kind.key_type, kind.content_type) == (UserKey, tuple[str, ...])


def test_each_fact_has_a_kind_of_its_own_name() -> None:
    assert all(isinstance(fact, type) and issubclass(fact, Fact) for fact in FACTS)
    assert len({kind.name for kind in every_kind()}) == len(every_kind())


async def test_a_rule_whose_task_was_cancelled_runs(opener: ServicesOpener) -> None:
    """What its task had compiled is gone when the commit is heard of."""
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(home.rule, body([when("intensity", ">", 50)]))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        runner.commits.set()
        await wait_all_tasks_blocked()
        await home.says({"intensity": 60})
        assert await home.count() == 1


@pytest.mark.both_engines
async def test_a_session_whose_task_was_cancelled_begins(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)
        begun: list[bool] = []

        async def begin() -> None:
            await services.device_sessions.all.begin(
                DeviceSession(world.kitchen, "client", 60),
                is_clean=False,
                is_actions=lambda _filter: False,
                written=str.encode,
                begun=lambda _session, is_present: begun.append(is_present),
            )

        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert begun == []
        runner.commits.set()
        await wait_all_tasks_blocked()
        await begin()
        assert begun == [False, True]
