"""The reported waits of a rule are true (reference 12.1)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.rules.explaining.status import RunState
from broker.services import Services
from tests.broker.device_management.devices import FakeSession
from tests.broker.rules.home import Home, body, when
from tests.factories import KITCHEN, NOW_MS, World
from tests.fakes import FakeClock
from tests.rows import each_row

WARM = when("temperature", ">", 25, duration={"value": 600})


@pytest.fixture
async def home(services: Services, world: World) -> Home:
    return Home(services)


def clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def test_a_condition_that_holds_and_whose_duration_has_not_begun(home: Home, fake_clock: FakeClock) -> None:
    await home.says({"temperature": 30})
    rule = await home.rule(body([WARM]))
    held = "rule.if.and.0: temperature > 25 holds, and its duration begins with the next message"
    assert (await home.status(rule)).waits_for == (f"{held}: temperature of {KITCHEN} is 30",)
    fake_clock.advance(1_000)
    await home.says({"temperature": 31})
    since, due = clock(NOW_MS + 1_000), clock(NOW_MS + 601_000)
    assert (await home.status(rule)).waits_for == (
        f"rule.if.and.0: temperature > 25 has held since {since}, and must until {due}: temperature of {KITCHEN} is 31",
    )
    await home.says({"temperature": 20})
    assert (await home.status(rule)).waits_for == (
        f"rule.if.and.0: temperature > 25 does not hold: temperature of {KITCHEN} is 20",
    )


async def test_a_duration_of_a_value_that_never_came(home: Home) -> None:
    rule = await home.rule(body([WARM]))
    assert (await home.status(rule)).waits_for == (
        f"rule.if.and.0: temperature > 25 is not known: temperature of {KITCHEN} is not known",
    )


@each_row(
    ("expression", "now", "sentence"),
    [
        ("30 7 * * * * TZ Asia/Kolkata", "2027-05-16T12:00", "next at 2027-05-17T02:00:00Z"),
        ("@sunrise 28.61N 77.21E +00:00 TZ Asia/Kolkata", "2027-05-16T12:00", "next at 2027-05-16T23:59:00Z"),
        (
            "@sunset 70N 30E +00:00 TZ Europe/Oslo",
            "2027-06-21T12:00",
            "the sun does not set on 2027-06-21, next at 2027-07-27T21:41:00Z",
        ),
        ("0 0 1 1 * 2020", "2027-05-16T12:00", "no next time"),
    ],
)
async def test_a_time_says_when_it_comes(
    home: Home, fake_clock: FakeClock, expression: str, now: str, sentence: str
) -> None:
    fake_clock.now = int(datetime.fromisoformat(f"{now}+00:00").timestamp()) * 1000
    rule = await home.rule(body({"field": "datetime", "operator": "=", "operand": {"value": expression}}))
    assert (await home.status(rule)).waits_for == (f"rule.if: datetime = {expression} does not hold: {sentence}",)


async def test_a_date_without_an_event_of_the_sun_is_in_the_state(home: Home, fake_clock: FakeClock) -> None:
    """The state is that of the whole rule: one condition of the sun is enough, while the rule runs."""
    sunset = {"field": "datetime", "operator": ">", "operand": {"value": "@sunset 70N 30E +00:00 TZ Europe/Oslo"}}
    rule = await home.rule(body([when("temperature", ">", 25), sunset]))
    found = []
    for day in ("2027-03-21", "2027-06-21", "2027-07-28"):
        fake_clock.now = int(datetime.fromisoformat(f"{day}T12:00+00:00").timestamp()) * 1000
        found.append((await home.status(rule)).run_state)
    assert found == [RunState.RUNNING, RunState.NO_SUN, RunState.RUNNING]


async def test_a_field_with_a_resource_says_why_no_value_comes(home: Home, services: Services) -> None:
    document: dict[str, Any] = {"fields": [{"name": "temperature", "valueClass": "Double", "lwm2m": "/3303/0/5700"}]}
    document["actions"] = [{"name": "setOn"}]
    await services.device_types.manifests.upload("example.smart_light", document)
    rule = await home.rule(body([when("temperature", ">", 25)]))

    async def reason() -> str:
        (text,) = (await home.status(rule)).waits_for
        return str(text).rpartition(f"no value of temperature of {KITCHEN} comes now: ")[2]

    assert await reason() == "The device is not registered, or its properties are being read."
    session = FakeSession(await services.devices.registry.find(KITCHEN))
    session.unobserved[(3303, 0, 5700)] = "The device does not list /3303/0."
    await services.device_management.registrations.registered(session)
    assert await reason() == "The device does not list /3303/0."
    session.unobserved.clear()
    session.is_asleep = True
    assert await reason() == "The device sleeps: a value comes when it is heard again."
    session.is_asleep = False
    assert "comes now" not in await reason()
    # An older value does not hide that no newer one comes.
    await home.says({"temperature": 20})
    services.device_management.registrations.ended(session)
    assert (
        (await home.status(rule)).waits_for[0].startswith("rule.if.and.0: temperature > 25 does not hold: temperature")
    )
    assert await reason() == "The device is not registered, or its properties are being read."
