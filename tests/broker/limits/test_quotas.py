"""Message quotas: what counts, what does not, and which organization is charged (reference 21.2)."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import msgspec
import pytest
import trio
import trio.testing

from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import (
    BadRequest,
    DomainError,
    InvalidTimestamp,
    PayloadTooLarge,
    SourceDeviceDisabled,
    TimestampInFuture,
    ValidationFailed,
)
from broker.limits.allowance import Usage
from broker.limits.periods import utc_month
from broker.limits.quotas import units_of
from broker.limits.refusals import DailyQuotaExceeded, MonthlyQuotaExceeded, PlanLimitsNotSet
from broker.services import Services
from config.settings import Limits, Settings
from storage.keys import DeviceTypeKey
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import ACME, KITCHEN, LIGHT_TYPE, NOW_MS, World, build_world, make_device
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails
from tests.rows import each_row

MESSAGE = b'{"state":true}'
ACTION = b'{"actions":[{"name":"setOn"}]}'
DAY_MS = 86_400_000
# October 2025, in which NOW_MS lies, by UTC.
OCTOBER, NOVEMBER = 1_759_276_800_000, 1_761_955_200_000
MIDNIGHT = NOW_MS - NOW_MS % DAY_MS + DAY_MS


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, limits=Limits(rate_limits="off", quotas="on"))


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


@pytest.fixture
async def hall(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.hall)


async def allow(services: Services, monthly: int) -> None:
    """Set Acme's units a month, as an operator does."""

    def change(tx: Transaction) -> None:
        acme = tx.accounts.organization_by_id(ACME)
        assert acme is not None
        tx.accounts.change_organization(acme.key, name=acme.name, monthly_messages=monthly)

    await services.core.database.write(change)
    await services.limits.quotas.reload()


def used(services: Services, device: Device) -> int:
    return services.limits.quotas.standing(device).organization.used


class Channel:
    """A connected device and the Actions delivered to it."""

    def __init__(self, services: Services, device: Device, *, takes: bool = True) -> None:
        self.actions: list[Action] = []
        self._takes = takes
        self._link = ExitStack()
        self._link.enter_context(
            services.routing.connections.connect(
                device, protocol="MQTT", token=b"", exclusive=True, deliver=self._deliver, close=lambda _reason: None
            )
        )

    def _deliver(self, action: Action) -> bool:
        if self._takes:
            self.actions.append(action)
        return self._takes

    def close(self) -> None:
        self._link.close()


@each_row(("size", "units"), [(0, 1), (1, 1), (900, 1), (1024, 1), (1025, 2), (2048, 2), (2049, 3)])
def test_a_unit_is_every_started_1024_bytes(size: int, units: int) -> None:
    assert units_of(size) == units


@pytest.mark.both_engines
async def test_accepted_messages_and_actions_count(services: Services, kitchen: Device, hall: Device) -> None:
    await allow(services, 100_000)
    services.messages.ingest.submit(kitchen, MESSAGE)
    services.messages.ingest.submit(kitchen, b'{"unknown":1}')  # normalisation leaves it empty, but it was accepted
    services.messages.ingest.submit_action(hall, kitchen, ACTION)
    await services.messages.ingest.wait_committed()
    assert services.limits.quotas.standing(kitchen).organization == Usage(3, 100_000, OCTOBER, NOVEMBER)


async def test_an_empty_payload_counts_as_well(services: Services, kitchen: Device) -> None:
    """A device whose Manifest has a transform may send an empty payload (reference 8.8): a failed message."""
    await allow(services, 100_000)
    services.limits.quotas.charge_message(kitchen, 0, NOW_MS)
    assert used(services, kitchen) == 1


@each_row(
    ("refused", "payload", "ts"),
    [
        (BadRequest, b"{", None),
        (PayloadTooLarge, b'{"text":"%s"}' % (b"x" * 1024), None),
        (InvalidTimestamp, MESSAGE, -1),
        (TimestampInFuture, MESSAGE, NOW_MS + 60_001),
    ],
)
async def test_refused_messages_do_not_count(
    services: Services, kitchen: Device, refused: type[DomainError], payload: bytes, ts: int | None
) -> None:
    with pytest.raises(refused):
        services.messages.ingest.submit(kitchen, payload, ts)
    assert used(services, kitchen) == 0


async def test_messages_of_a_disabled_device_and_empty_actions_do_not_count(
    services: Services, kitchen: Device
) -> None:
    with pytest.raises(ValidationFailed):
        services.messages.ingest.submit_action(kitchen, kitchen, b'{"actions":[]}')
    disabled = make_device(enabled=False)
    with pytest.raises(SourceDeviceDisabled):
        services.messages.ingest.submit(disabled, MESSAGE)
    assert used(services, kitchen) == used(services, disabled) == 0


async def test_later_messages_of_the_month_are_refused(
    services: Services, kitchen: Device, hall: Device, fake_clock: FakeClock
) -> None:
    await allow(services, 3)
    for device in (kitchen, hall, kitchen):
        services.messages.ingest.submit(device, MESSAGE)
    for submit in _every_way(services, kitchen, hall):
        with pytest.raises(MonthlyQuotaExceeded) as caught:
            submit()
        assert str(caught.value) == f"Plan quota exceeded for organization {ACME}. Reason: Monthly message limit"
        assert caught.value.retry_seconds == (NOVEMBER - NOW_MS) // 1000
    assert used(services, kitchen) == 3
    fake_clock.advance(NOVEMBER - NOW_MS)
    services.messages.ingest.submit(kitchen, MESSAGE)
    assert used(services, kitchen) == 1


def _every_way(services: Services, kitchen: Device, hall: Device) -> list[Callable[[], int]]:
    ingest = services.messages.ingest
    return [
        lambda: ingest.submit(kitchen, MESSAGE),
        lambda: ingest.submit(hall, b'{"unknown":1}'),
        lambda: ingest.submit_action(hall, kitchen, ACTION),
    ]


async def test_minus_one_is_unlimited_and_counts_all_the_same(services: Services, kitchen: Device) -> None:
    await allow(services, -1)
    for _ in range(5):
        services.messages.ingest.submit(kitchen, MESSAGE)
    usage = services.limits.quotas.standing(kitchen).organization
    assert (usage.used, usage.limit) == (5, -1)


async def test_an_unknown_plan_refuses_every_message(services: Services, kitchen: Device) -> None:
    await allow(services, -2)
    with pytest.raises(PlanLimitsNotSet) as caught:
        services.messages.ingest.submit(kitchen, MESSAGE)
    assert str(caught.value) == (
        f"Quota validation error for organization {ACME}. Reason: Plan limits have not been set"
    )


async def test_the_limit_of_a_new_organization_is_read(
    services: Services, world: World, autojump_clock: trio.testing.MockClock
) -> None:
    late = await services.core.database.write(lambda tx: tx.accounts.add_organization("0b" * 16, "Late", 1))
    device = make_device(organization=late.key)
    services.limits.quotas.charge_message(device, 1, NOW_MS)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(MonthlyQuotaExceeded):
        services.limits.quotas.charge_message(device, 1, NOW_MS)


# --- Outbound -----------------------------------------------------------------------------------------------------


async def test_a_delivery_is_charged_besides_the_action(services: Services, kitchen: Device, hall: Device) -> None:
    channel = Channel(services, kitchen)
    services.messages.ingest.submit_action(hall, kitchen, ACTION)
    await services.messages.ingest.wait_committed()
    assert len(channel.actions) == 1
    assert used(services, kitchen) == 2
    channel.close()
    services.messages.ingest.submit_action(hall, kitchen, ACTION)
    await services.messages.ingest.wait_committed()
    assert used(services, kitchen) == 3, "it was stored, and delivered to nobody"


async def test_an_action_that_a_device_does_not_take_is_not_charged(services: Services, kitchen: Device) -> None:
    Channel(services, kitchen, takes=False)
    services.messages.ingest.submit_action(kitchen, kitchen, ACTION)
    await services.messages.ingest.wait_committed()
    assert used(services, kitchen) == 1


async def test_an_action_needs_quota_for_its_delivery(services: Services, kitchen: Device) -> None:
    await allow(services, 3)
    channel = Channel(services, kitchen)
    services.messages.ingest.submit_action(kitchen, kitchen, ACTION)
    await services.messages.ingest.wait_committed()
    with pytest.raises(MonthlyQuotaExceeded):
        services.messages.ingest.submit_action(kitchen, kitchen, ACTION)
    services.messages.ingest.submit(kitchen, MESSAGE)
    assert len(channel.actions) == 1
    assert used(services, kitchen) == 3


async def test_a_delivery_without_quota_is_dropped(services: Services, kitchen: Device) -> None:
    await allow(services, 2)
    channel = Channel(services, kitchen)
    services.messages.ingest.submit_action(kitchen, kitchen, ACTION)
    services.messages.ingest.submit(kitchen, MESSAGE)  # before the commit
    await services.messages.ingest.wait_committed()
    assert channel.actions == []
    assert used(services, kitchen) == 2
    assert services.limits.quotas.statistics().deliveries_dropped == 1
    assert services.routing.connections.statistics().actions_dropped == 1


@pytest.mark.both_engines
async def test_wanted_values_are_charged_and_so_is_what_the_device_is_given(
    services: Services, kitchen: Device, world: World
) -> None:
    field = {"name": "intensity", "valueClass": "Integer", "settable": True}
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": [field]}, approve=True)
    await allow(services, 2)
    services.limits.quotas.set_device_limit(kitchen.key, 5)
    want = partial(services.wanted.put, kitchen, expires_after=60, application_id=None)
    await want(b'{"intensity":40}')
    assert used(services, kitchen) == 1
    for _ in range(2):  # the second one is nothing new to the device
        services.wanted.given(kitchen.key)
    standing = services.limits.quotas.standing(kitchen)
    assert (standing.organization.used, standing.device and standing.device.used) == (2, 1)
    with pytest.raises(MonthlyQuotaExceeded):
        await want(b'{"intensity":50}')
    assert [one.wanted for one in (await services.wanted.show(kitchen)).fields] == [40]
    await want(b'{"intensity":null}')  # to want nothing costs nothing
    assert used(services, kitchen) == 2


async def test_the_destination_of_another_organization_pays_for_the_delivery(
    services: Services, kitchen: Device
) -> None:
    other = await services.core.database.write(lambda tx: tx.accounts.add_organization("0b" * 16, "Other", 1))
    await services.limits.quotas.reload()
    theirs = make_device(99, type_key=DeviceTypeKey(99), organization=other.key)
    Channel(services, theirs)
    services.limits.quotas.charge_action(kitchen, theirs, len(ACTION), NOW_MS)
    assert (used(services, kitchen), used(services, theirs)) == (1, 0)
    services.limits.quotas.charge_message(theirs, 1, NOW_MS)
    with pytest.raises(MonthlyQuotaExceeded) as caught:
        services.limits.quotas.charge_action(kitchen, theirs, len(ACTION), NOW_MS)
    assert caught.value.organization_id == theirs.type.record.organization_id
    assert used(services, kitchen) == 1


# --- Devices on a plan --------------------------------------------------------------------------------------------


async def test_a_device_on_a_plan_has_so_many_messages_a_day(
    services: Services, kitchen: Device, hall: Device, fake_clock: FakeClock
) -> None:
    services.limits.quotas.set_device_limit(kitchen.key, 3)
    Channel(services, kitchen)
    services.messages.ingest.submit(kitchen, MESSAGE)
    services.messages.ingest.submit(kitchen, MESSAGE)
    services.messages.ingest.submit_action(hall, kitchen, ACTION)
    await services.messages.ingest.wait_committed()
    assert services.limits.quotas.standing(kitchen).device == Usage(3, 3, MIDNIGHT - DAY_MS, MIDNIGHT)
    message_or_action: list[Callable[[], int]] = [
        lambda: services.messages.ingest.submit(kitchen, MESSAGE),
        lambda: services.messages.ingest.submit_action(hall, kitchen, ACTION),
    ]
    for submit in message_or_action:
        with pytest.raises(DailyQuotaExceeded) as caught:
            submit()
        assert str(caught.value) == f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."
        assert caught.value.retry_seconds == (MIDNIGHT - NOW_MS) // 1000
    services.messages.ingest.submit_action(kitchen, hall, ACTION)  # an Action from it is no data message of it
    services.messages.ingest.submit(hall, MESSAGE)
    fake_clock.advance(MIDNIGHT - NOW_MS)
    services.messages.ingest.submit(kitchen, MESSAGE)


async def test_a_message_refused_by_day_is_not_charged_by_month(services: Services, kitchen: Device) -> None:
    services.limits.quotas.set_device_limit(kitchen.key, 0)
    with pytest.raises(DailyQuotaExceeded):
        services.messages.ingest.submit(kitchen, MESSAGE)
    assert used(services, kitchen) == 0


async def test_an_upgrade_lifts_the_limit_and_keeps_the_count(services: Services, kitchen: Device) -> None:
    services.limits.quotas.set_device_limit(kitchen.key, 1)
    services.messages.ingest.submit(kitchen, MESSAGE)
    services.limits.quotas.set_device_limit(kitchen.key, -1)
    services.messages.ingest.submit(kitchen, MESSAGE)
    assert services.limits.quotas.standing(kitchen).device == Usage(2, -1, MIDNIGHT - DAY_MS, MIDNIGHT)
    services.limits.quotas.set_device_limit(kitchen.key, None)
    assert services.limits.quotas.standing(kitchen).device is None
    services.messages.ingest.submit(kitchen, MESSAGE)
    services.limits.quotas.set_device_limit(kitchen.key, 2)
    with pytest.raises(DailyQuotaExceeded):
        services.messages.ingest.submit(kitchen, MESSAGE)


async def test_for_a_cloud_connectors_device_requests_count_and_messages_do_not(
    services: Services, world: World
) -> None:
    device = make_device(99)
    msgspec.structs.force_setattr(device.type.record, "has_cloud_connector", True)
    services.limits.quotas.set_device_limit(device.key, 2)
    services.limits.quotas.charge_message(device, 1, NOW_MS)
    services.limits.quotas.charge_connector_request(device)
    services.limits.quotas.charge_connector_request(device)
    with pytest.raises(DailyQuotaExceeded):
        services.limits.quotas.charge_connector_request(device)
    services.limits.quotas.charge_message(device, 1, NOW_MS)


async def test_the_owner_is_told_once_a_day_that_a_quota_is_used_up(
    services: Services, kitchen: Device, fake_clock: FakeClock
) -> None:
    async def subjects() -> list[tuple[str, str]]:
        await trio.testing.wait_all_tasks_blocked()
        waiting = await services.core.database.read(waiting_mails)
        return [(mail.kind, mail.recipient) for mail in waiting]

    services.limits.quotas.set_device_limit(kitchen.key, 2)
    services.messages.ingest.submit(kitchen, MESSAGE)
    assert await subjects() == []
    services.messages.ingest.submit(kitchen, MESSAGE)
    told = ("device_quota_used_up", "ada@example.org")
    assert await subjects() == [told]
    for _ in range(3):
        with pytest.raises(DailyQuotaExceeded):
            services.messages.ingest.submit(kitchen, MESSAGE)
    assert await subjects() == [told]
    fake_clock.advance(DAY_MS)
    for _ in range(2):
        services.messages.ingest.submit(kitchen, MESSAGE)
    assert await subjects() == [told, told]


async def test_the_owners_that_were_told_are_forgotten_after_the_day(
    services: Services, kitchen: Device, hall: Device, fake_clock: FakeClock
) -> None:
    def told() -> int:
        return services.limits.quotas.statistics().owners_told

    for device in (kitchen, hall):
        services.limits.quotas.set_device_limit(device.key, 1)
        services.messages.ingest.submit(device, MESSAGE)
    assert told() == 2
    fake_clock.advance(MIDNIGHT - NOW_MS - 1)
    assert told() == 2
    fake_clock.advance(1)
    services.messages.ingest.submit(kitchen, MESSAGE)
    assert told() == 1
    fake_clock.advance(DAY_MS)
    assert told() == 0


# --- Restarts -----------------------------------------------------------------------------------------------------


async def test_month_and_day_survive_a_restart(opener: ServicesOpener) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        await services.limits.quotas.reload()
        services.limits.quotas.set_device_limit(kitchen.key, 10)
        for _ in range(4):
            services.messages.ingest.submit(kitchen, MESSAGE)
    async with opener() as services:
        kitchen = await services.devices.registry.get(world.kitchen)
        services.limits.quotas.set_device_limit(kitchen.key, 10)
        standing = services.limits.quotas.standing(kitchen)
        assert (standing.organization.used, standing.device and standing.device.used) == (4, 4)


@pytest.mark.parametrize(
    ("now", "month"),
    [
        (OCTOBER, (OCTOBER, NOVEMBER)),
        (NOVEMBER - 1, (OCTOBER, NOVEMBER)),
        (1_709_210_096_789, (1_706_745_600_000, 1_709_251_200_000)),  # 29 February 2024
        (1_767_225_599_999, (1_764_547_200_000, 1_767_225_600_000)),  # the last moment of 2025
    ],
)
def test_a_month_is_a_calendar_month(now: int, month: tuple[int, int]) -> None:
    assert utc_month(now) == month
