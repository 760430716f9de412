"""Wanted values are written to registered devices (reference 18.7)."""

from typing import Any, Final

import msgspec
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.services import Services
from tests.broker.device_management.devices import FakeSession, Fleet

FIELDS: Final[list[dict[str, Any]]] = [
    {"name": "on", "valueClass": "Boolean", "settable": True, "lwm2m": "/3311/0/5850"},
    {"name": "level", "valueClass": "Integer", "settable": True, "lwm2m": "/3311/0/5851"},
    {"name": "other", "valueClass": "Integer", "settable": True},
]
ON, LEVEL = (3311, 0, 5850), (3311, 0, 5851)


@pytest.fixture
async def session(fleet: Fleet, services: Services) -> FakeSession:
    await services.device_types.manifests.upload(fleet.type.id, {"fields": FIELDS})
    await wait_all_tasks_blocked()
    return FakeSession(fleet.devices[0])


async def want(services: Services, fleet: Fleet, **values: object) -> None:
    data = msgspec.json.encode(values)
    await services.wanted.put(fleet.devices[0], data, expires_after=60, application_id=None)
    await wait_all_tasks_blocked()


async def shown(services: Services, fleet: Fleet) -> dict[str, str]:
    view = await services.wanted.show(fleet.devices[0])
    return {one.field: f"{one.state}" if one.state != "refused" else one.text for one in view.fields}


async def test_are_written_when_the_device_registers_and_when_they_change(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock
) -> None:
    await want(services, fleet, on=True, other=1)
    await fleet.management.registrations.registered(session)
    await wait_all_tasks_blocked()
    assert session.done == ["W /3311/0/5850 True"]
    assert await shown(services, fleet) == {"on": "sent", "other": "waiting"}
    await fleet.management.registrations.registered(session)  # an update
    await want(services, fleet, level=40)
    assert session.done == ["W /3311/0/5850 True", "W /3311/0/5851 40"]
    services.messages.ingest.submit(fleet.devices[0], b'{"on":true}')
    await services.messages.ingest.wait_committed()
    fleet.management.registrations.ended(session)
    again = FakeSession(fleet.devices[0])
    await fleet.management.registrations.registered(again)
    await wait_all_tasks_blocked()
    assert again.done == ["W /3311/0/5851 40"], "the device may have lost it, and has reported the other one"


async def test_wait_while_the_device_sleeps_and_the_newest_is_written(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock
) -> None:
    session.sleep()
    session.is_asleep = True
    await fleet.management.registrations.registered(session)
    await want(services, fleet, level=1)
    await want(services, fleet, level=2)
    assert (session.done, await shown(services, fleet)) == ([], {"level": "waiting"})
    session.is_asleep = False
    session.is_awake.set()
    await wait_all_tasks_blocked()
    assert session.values[LEVEL] == 2
    assert await shown(services, fleet) == {"level": "sent"}


@pytest.mark.both_engines
async def test_a_refusal_is_an_end_with_its_reason(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock
) -> None:
    session.refuses[ON] = "4.05"
    await fleet.management.registrations.registered(session)
    await want(services, fleet, on=True, level=1)
    assert await shown(services, fleet) == {
        "on": "The device refused the write to /3311/0/5850: 4.05.",
        "level": "sent",
    }
    assert services.wanted.document(fleet.devices[0].key) == b'{"data":{"level":1}}'
    session.refuses.clear()
    await want(services, fleet, on=True)
    assert (await shown(services, fleet))["on"] == "sent", "wanted anew"


@pytest.mark.both_engines
async def test_a_device_that_is_lost_gets_it_with_its_next_registration(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock
) -> None:
    await fleet.management.registrations.registered(session)
    session.is_over = True
    await want(services, fleet, level=1)
    assert await shown(services, fleet) == {"level": "waiting"}
    again = await fleet.register(fleet.devices[0])
    await wait_all_tasks_blocked()
    assert again.done[-1] == "W /3311/0/5851 1"


async def test_what_was_written_is_not_remembered_for_ever(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock
) -> None:
    """A registration may last for years, with a new value each minute."""
    await fleet.management.registrations.registered(session)
    for level in range(5):
        await want(services, fleet, level=level, on=True)
    assert (len(session.done), session.values[LEVEL]) == (6, 4)
    (registered,) = fleet.management.registrations._wanted._registered.values()
    assert len(registered.written) == 2
