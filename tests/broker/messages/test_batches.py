"""Batches: what was true when a batch was read need not be true when it is stored."""

from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from msgspec.structs import replace

from broker.devices.registry import Device
from broker.errors import DomainError, PermissionDenied, SourceDeviceDisabled
from broker.messages.batches import BatchMessage
from broker.messages.ingest import Ingest
from broker.services import Services
from tests.factories import LIGHT_TYPE, NOW_MS, World
from tests.tickets import at

CELSIUS: Final = {"fields": [{"name": "celsius", "valueClass": "Integer"}]}


def wait_for(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """The store has no room until `meanwhile` has happened."""
    is_over = False

    async def wait(_ingest: Ingest) -> None:
        nonlocal is_over
        await meanwhile()
        is_over = True

    monkeypatch.setattr(Ingest, "has_room", property(lambda _ingest: is_over))
    monkeypatch.setattr(Ingest, "wait_room", wait)


def may(_device: Device) -> DomainError | None:
    return None


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


@pytest.fixture
def messages(kitchen: Device) -> list[BatchMessage]:
    return [BatchMessage(kitchen, b'{"intensity":7,"celsius":20}', NOW_MS - number) for number in range(3)]


async def test_the_manifest_at_the_end_counts(
    services: Services, messages: list[BatchMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meanwhile() -> None:
        await services.device_types.manifests.upload(LIGHT_TYPE, CELSIUS)

    wait_for(monkeypatch, meanwhile)
    tickets = await services.messages.batches.submit(messages, may)
    await services.messages.ingest.wait_committed()
    positions = [at(ticket) for ticket in tickets if not isinstance(ticket, DomainError)]
    rows = await services.core.database.read(lambda tx: [tx.messages.message(position) for position in positions])
    assert [row and (row.mv, row.data) for row in rows] == [(2, '{"celsius":20}')] * 3
    assert [one.field for one in messages[0].dropped] == ["intensity"]


async def test_a_device_that_is_disabled_meanwhile_sends_nothing(
    services: Services, kitchen: Device, messages: list[BatchMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meanwhile() -> None:
        kitchen.refresh(replace(kitchen.record, enabled=False), kitchen.type)

    wait_for(monkeypatch, meanwhile)
    refusals = await services.messages.batches.submit(messages, may)
    assert [type(one) for one in refusals] == [SourceDeviceDisabled] * 3


async def test_a_permission_that_ends_meanwhile_is_none(
    services: Services, messages: list[BatchMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended = False

    async def meanwhile() -> None:
        nonlocal has_ended
        has_ended = True

    def refused(_device: Device) -> DomainError | None:
        return PermissionDenied("WRITE") if has_ended else None

    wait_for(monkeypatch, meanwhile)
    refusals = await services.messages.batches.submit(messages, refused)
    assert [type(one) for one in refusals] == [PermissionDenied] * 3
    assert services.messages.ingest.statistics().messages == 0
