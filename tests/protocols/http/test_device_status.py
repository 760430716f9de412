"""Status and presence over REST (reference 6.4)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from broker.facts import AvailabilityChanged
from broker.services import Services
from storage.keys import DeviceKey
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.wording import INVALID

pytestmark = pytest.mark.slow


DEVICE = f"/devices/{KITCHEN}"


@contextmanager
def connected(services: Services, key: int) -> Iterator[None]:
    device = services.devices.registry.get_nowait(DeviceKey(key))
    assert device is not None
    with services.routing.connections.connect(
        device, protocol="MQTT", token=b"", exclusive=True, deliver=lambda _action: True, close=lambda _reason: None
    ):
        yield


async def data_of(api: httpx.AsyncClient, path: str = "/status") -> dict[str, object]:
    data: dict[str, object] = (await api.get(f"{DEVICE}{path}", headers=bearer(ADA_TOKEN))).json()["data"]
    return data


async def test_the_status_of_a_device_that_never_did_anything(api: httpx.AsyncClient) -> None:
    answer = await api.get(f"{DEVICE}/status", headers=bearer(KITCHEN_TOKEN))
    assert answer.json() == {"did": KITCHEN, "data": {"availability": "unknown", "snapshot": {}}}


async def test_the_status_of_a_device_that_did(
    services: Services, world: World, api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    for ts in (7, 5):
        body = {"data": {"state": ts == 7, "colorRGB": {"r": 1}}, "ts": ts}
        await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json=body)
    action = {"data": {"actions": [{"name": "setOn"}]}, "ts": 9}
    await api.post("/actions", headers=bearer(KITCHEN_TOKEN), json=action)
    with connected(services, world.kitchen):
        fake_clock.advance(10)
        data = await data_of(api)
        assert (data["availability"], data["lastTimeOnline"]) == ("online", NOW_MS + 10)
    fake_clock.advance(10)
    assert await data_of(api) == {
        "lastMessageTs": 5,
        "lastActionTs": 9,
        "availability": "offline",
        "lastTimeOnline": NOW_MS + 10,
        "snapshot": {"state": {"value": True, "ts": 7}, "colorRGB": {"r": {"value": 1, "ts": 7}}},
    }


@pytest.mark.parametrize("ahead_ms", [3_600_000, 365 * 86_400_000])
async def test_no_time_stays_ahead_after_the_clock_was_set_back(
    services: Services, world: World, api: httpx.AsyncClient, fake_clock: FakeClock, ahead_ms: int
) -> None:
    await data_of(api)  # the registry knows the device
    fake_clock.advance(ahead_ms)
    with connected(services, world.kitchen):
        await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": {"state": True}})
        await api.post("/actions", headers=bearer(KITCHEN_TOKEN), json={"data": {"actions": [{"name": "setOn"}]}})
    fake_clock.advance(-ahead_ms)

    async def times() -> list[int]:
        data = await data_of(api)
        answer = await api.get(f"/devices/{KITCHEN}/presence", headers=bearer(KITCHEN_TOKEN))
        names = ("lastMessageTs", "lastActionTs", "lastTimeOnline")
        return [*(data[name] for name in names), answer.json()["data"]["lastSeenOn"]]

    assert await times() == [NOW_MS] * 4
    await services.devices.presence.flush()
    fake_clock.advance(1_000)
    await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": {"state": True}})
    fake_clock.advance(1_000)
    message, _, online, seen = await times()
    assert (message, seen) == (NOW_MS + 1_000, NOW_MS + 1_000)
    assert online == NOW_MS, "as it was written while it was ahead"


@each_row(
    ("query", "snapshot"),
    [
        ("", {"state": {"value": True, "ts": 7}}),
        ("includeSnapshot=true", {"state": {"value": True, "ts": 7}}),
        ("includeSnapshotTimestamp=0", {"state": {"value": True}}),
        ("includeSnapshot=FALSE", None),
        ("includeSnapshot=false&includeSnapshotTimestamp=true", None),
    ],
)
async def test_the_snapshot_is_shown_as_asked_for(
    api: httpx.AsyncClient, query: str, snapshot: dict[str, object] | None
) -> None:
    await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": {"state": True}, "ts": 7})
    assert (await data_of(api, f"/status?{query}")).get("snapshot") == snapshot
    (one,) = (await api.get(f"/devices/status?dids={KITCHEN}&{query}", headers=bearer(ADA_TOKEN))).json()["data"]
    assert one["data"].get("snapshot") == snapshot


@each_row("token", [ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN])
async def test_a_status_is_set_and_answered(api: httpx.AsyncClient, fake_clock: FakeClock, token: str) -> None:
    steps = (
        ({"data": {"availability": "online"}}, NOW_MS),
        ({"availability": "offline"}, NOW_MS),
        ({"availability": "unknown"}, NOW_MS),
    )
    for body, last in steps:
        answer = await api.put(f"{DEVICE}/status", headers=bearer(token), json=body)
        availability = body.get("availability") or body["data"]["availability"]  # type: ignore[index]
        assert answer.json() == {
            "did": KITCHEN,
            "data": {"availability": availability, "lastTimeOnline": last, "snapshot": {}},
        }
        assert await data_of(api) == answer.json()["data"]


@each_row(
    ("body", "field", "text"),
    [
        ({}, "availability", "Required parameter"),
        ({"availability": None}, "availability", "Required parameter"),
        ({"data": {}}, "data.availability", "Required parameter"),
        ({"data": []}, "data", INVALID),
        ({"data": "online"}, "data", INVALID),
        ({"availability": "Online"}, "availability", INVALID),
        ({"availability": "away"}, "availability", INVALID),
        ({"availability": True}, "availability", INVALID),
        ({"data": {"availability": ["online"]}}, "data.availability", INVALID),
    ],
)
async def test_a_status_that_is_refused(api: httpx.AsyncClient, body: dict[str, object], field: str, text: str) -> None:
    answer = await api.put(f"{DEVICE}/status", headers=bearer(ADA_TOKEN), json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 4001)
    assert answer.json()["error"]["errors"] == [[{"field": field, "messages": [text]}]]
    assert (await data_of(api))["availability"] == "unknown"


async def test_a_disabled_device_does_not_set_its_own_status(api: httpx.AsyncClient) -> None:
    await api.put(DEVICE, headers=bearer(ADA_TOKEN), json={"connected": False})
    body = {"availability": "online"}
    answer = await api.put(f"{DEVICE}/status", headers=bearer(KITCHEN_TOKEN), json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (403, "Source device is disconnected")
    assert (await api.put(f"{DEVICE}/status", headers=bearer(ADA_TOKEN), json=body)).status_code == 200


async def test_a_status_that_is_set_is_told_when_it_shows(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    told: list[str] = []
    services.core.router.subscribe(AvailabilityChanged, lambda fact: told.append(fact.availability))
    with ExitStack() as connection:
        for availability in ("online", "online", "offline"):
            await api.put(f"{DEVICE}/status", headers=bearer(ADA_TOKEN), json={"availability": availability})
        assert told == ["online", "offline"]
        connection.enter_context(connected(services, world.kitchen))
        answer = await api.put(f"{DEVICE}/status", headers=bearer(ADA_TOKEN), json={"availability": "offline"})
        assert answer.json()["data"]["availability"] == "online"  # it is connected
        assert told[2:] == ["online"]
    assert told[3:] == ["offline"]


# Many at once


async def test_the_statuses_of_many_are_those_that_the_caller_may_read(api: httpx.AsyncClient) -> None:
    for token, shown in ((ADA_TOKEN, [HALL, KITCHEN]), (BOB_TOKEN, [BOBS]), (APPLICATION_TOKEN, [HALL, KITCHEN])):
        dids = f"{HALL},{BOBS},{'ff' * 16},{KITCHEN},{HALL}, ,"
        answer = await api.get("/devices/status", headers=bearer(token), params={"dids": dids})
        assert answer.json() == {
            "data": [{"did": did, "data": {"availability": "unknown", "snapshot": {}}} for did in shown],
            "total": len(shown),
            "offset": 0,
            "count": len(shown),
        }


@each_row(
    ("query", "text"),
    [("", "Required parameter"), ("dids=,", "Required parameter"), (f"dids={'a,' * 101}", "Maximum length 100")],
)
async def test_the_list_of_devices_has_one_to_a_hundred(api: httpx.AsyncClient, query: str, text: str) -> None:
    answer = await api.get(f"/devices/status?{query}", headers=bearer(ADA_TOKEN))
    assert answer.json()["error"]["errors"] == [[{"field": "dids", "messages": [text]}]]


async def test_the_list_is_not_for_devices(api: httpx.AsyncClient) -> None:
    assert (await api.get(f"/devices/status?dids={KITCHEN}", headers=bearer(KITCHEN_TOKEN))).status_code == 403


# Presence


async def test_presence_is_about_connections(
    services: Services, world: World, api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    assert (await api.get(f"{DEVICE}/presence", headers=bearer(KITCHEN_TOKEN))).json() == {
        "sdid": KITCHEN,
        "data": {"connected": False},
    }
    await api.put(f"{DEVICE}/status", headers=bearer(ADA_TOKEN), json={"availability": "online"})
    assert await data_of(api, "/presence") == {"connected": False}
    with connected(services, world.kitchen):
        assert await data_of(api, "/presence") == {"lastSeenOn": NOW_MS, "connected": True}
        fake_clock.advance(5)
    assert await data_of(api, "/presence") == {"lastSeenOn": NOW_MS + 5, "connected": False}
    fake_clock.advance(5)
    await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": {"state": True}, "ts": 1})
    assert await data_of(api, "/presence") == {"lastSeenOn": NOW_MS + 10, "connected": False}
