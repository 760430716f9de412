"""Aggregates, histogram, presence and snapshots over REST (reference 9.4 and 9.5): shapes and refusals."""

from typing import Any

import httpx
import pytest

from broker.devices.registry import Device
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS
from broker.services import Services
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, BOBS, HALL, KITCHEN, KITCHEN_TOKEN, NOW_MS, World
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.wording import INVALID

pytestmark = pytest.mark.slow


HOUR = NOW_MS - 3 * HOUR_MS - NOW_MS % HOUR_MS
ADA = bearer(ADA_TOKEN)


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


@pytest.fixture
async def steps(services: Services, kitchen: Device) -> None:
    """1, 5 and 9 in one hour, and 20 in the next."""
    for data, ts in (("1", HOUR), ("5", HOUR + MINUTE_MS), ("9", HOUR + 59 * MINUTE_MS), ("20", HOUR + HOUR_MS)):
        services.messages.ingest.submit(kitchen, b'{"intensity":%s}' % data.encode(), ts)
    await services.messages.ingest.wait_committed()


async def findings(api: httpx.AsyncClient, path: str, params: dict[str, Any]) -> list[tuple[str, str]]:
    answer = await api.get(path, params=params, headers=ADA)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == (4001, "Validation Error")
    return [(one["field"], *one["messages"]) for one in error["errors"][0]]


# Aggregates


async def test_aggregates(api: httpx.AsyncClient, steps: None) -> None:
    params: dict[str, Any] = {"sdid": KITCHEN, "field": "intensity", "startDate": HOUR + 1, "endDate": HOUR + HOUR_MS}
    answer = await api.get("/messages/analytics/aggregates", params=params, headers=ADA)
    assert answer.status_code == 200
    assert answer.text == (
        f'{{"sdid":"{KITCHEN}","startDate":{HOUR},"endDate":{HOUR + HOUR_MS},"field":"intensity","size":1,'
        '"data":[{"count":3,"min":1,"max":9,"mean":5,"sum":15,"variance":10.666666666666666}]}'
    )


async def test_aggregates_of_nothing(api: httpx.AsyncClient) -> None:
    params: dict[str, Any] = {"sdid": KITCHEN, "field": "intensity", "startDate": 59_999, "endDate": "60001.5"}
    answer = await api.get("/messages/analytics/aggregates", params=params, headers=bearer(APPLICATION_TOKEN))
    assert answer.json() == {
        "sdid": KITCHEN,
        "startDate": 0,
        "endDate": 60_000,
        "field": "intensity",
        "size": 0,
        "data": [],
    }


async def test_a_device_asks_about_itself(api: httpx.AsyncClient, steps: None) -> None:
    params: dict[str, Any] = {"field": "intensity", "startDate": HOUR, "endDate": NOW_MS}
    answer = await api.get("/messages/analytics/aggregates", params=params, headers=bearer(KITCHEN_TOKEN))
    assert answer.json()["data"][0]["count"] == 4
    refused = await api.get(
        "/messages/analytics/aggregates", params=params | {"sdid": HALL}, headers=bearer(KITCHEN_TOKEN)
    )
    assert refused.status_code == 403


@pytest.mark.usefixtures("world")
async def test_missing_parameters_are_all_named(api: httpx.AsyncClient) -> None:
    required = "Required parameter"
    assert await findings(api, "/messages/analytics/aggregates", {}) == [
        ("sdid", required),
        ("field", required),
        ("startDate", required),
        ("endDate", required),
    ]
    assert await findings(api, "/messages/analytics/histogram", {"sdid": KITCHEN, "endDate": "x"}) == [
        ("field", required),
        ("interval", required),
        ("startDate", required),
        ("endDate", "Numeric field only"),
    ]
    assert await findings(api, "/messages/presence", {}) == [
        ("interval", required),
        ("startDate", required),
        ("endDate", required),
    ]
    assert await findings(api, "/messages/snapshots", {"sdids": " , "}) == [("sdids", required)]


@each_row(
    ("changed", "finding"),
    [
        ({"field": "state"}, ("field", "Numeric field only")),
        ({"field": "unknown"}, ("field", INVALID)),
        ({"startDate": NOW_MS + 1}, ("startDate", INVALID)),
        ({"startDate": NOW_MS - 31 * DAY_MS - MINUTE_MS}, ("endDate", INVALID)),
        ({"startDate": -1}, ("startDate", "Minimum value 0")),
        ({"startDate": 2**63}, ("startDate", INVALID)),
    ],
)
async def test_what_aggregates_refuse(
    api: httpx.AsyncClient, changed: dict[str, Any], finding: tuple[str, str]
) -> None:
    params = {"sdid": KITCHEN, "field": "intensity", "startDate": HOUR, "endDate": NOW_MS} | changed
    assert await findings(api, "/messages/analytics/aggregates", params) == [finding]


@each_row(("sdid", "status"), [("ff" * 16, 404), (BOBS, 403)])
async def test_devices_that_are_not_there_or_not_ones_own(api: httpx.AsyncClient, sdid: str, status: int) -> None:
    for path in ("analytics/aggregates", "analytics/histogram", "presence"):
        assert (await api.get(f"/messages/{path}", params={"sdid": sdid}, headers=ADA)).status_code == status
    answer = await api.get("/messages/snapshots", params={"sdids": f"{KITCHEN},{sdid}"}, headers=ADA)
    assert answer.status_code == status


# Histogram


async def test_histogram(api: httpx.AsyncClient, steps: None) -> None:
    params: dict[str, Any] = {
        "sdid": KITCHEN,
        "field": "intensity",
        "interval": "HOUR",
        "startDate": HOUR - HOUR_MS,
        "endDate": HOUR + 2 * HOUR_MS,
    }
    answer = await api.get("/messages/analytics/histogram", params=params, headers=ADA)
    assert answer.text == (
        f'{{"sdid":"{KITCHEN}","startDate":{HOUR - HOUR_MS},"endDate":{HOUR + 2 * HOUR_MS},"field":"intensity",'
        '"interval":"hour","size":2,"data":['
        f'{{"count":3,"min":1,"max":9,"mean":5,"sum":15,"variance":10.666666666666666,"ts":{HOUR}}},'
        f'{{"count":1,"min":20,"max":20,"mean":20,"sum":20,"variance":0,"ts":{HOUR + HOUR_MS}}}]}}'
    )


@each_row(
    ("interval", "limit_ms"), [("minute", HOUR_MS), ("hour", DAY_MS), ("day", 31 * DAY_MS), ("month", 366 * DAY_MS)]
)
async def test_histogram_ranges(api: httpx.AsyncClient, interval: str, limit_ms: int) -> None:
    params: dict[str, Any] = {"sdid": KITCHEN, "field": "intensity", "interval": interval, "endDate": NOW_MS}
    allowed = await api.get(
        "/messages/analytics/histogram", params=params | {"startDate": NOW_MS - limit_ms}, headers=ADA
    )
    assert allowed.status_code == 200
    longer = params | {"startDate": NOW_MS - limit_ms - MINUTE_MS}
    assert await findings(api, "/messages/analytics/histogram", longer) == [("endDate", INVALID)]


async def test_an_interval_that_is_none(api: httpx.AsyncClient) -> None:
    params = {"sdid": KITCHEN, "field": "intensity", "interval": "week", "startDate": 0, "endDate": 0}
    assert await findings(api, "/messages/analytics/histogram", params) == [("interval", INVALID)]


# Presence


async def test_presence(api: httpx.AsyncClient, steps: None) -> None:
    params: dict[str, Any] = {"interval": "hour", "startDate": HOUR - HOUR_MS, "endDate": HOUR + 2 * HOUR_MS}
    about: dict[str, Any] = {
        "interval": "HOUR",
        "startDate": HOUR - HOUR_MS,
        "endDate": HOUR + 2 * HOUR_MS,
        "size": 2,
        "data": [{"startDate": HOUR}, {"startDate": HOUR + HOUR_MS}],
    }
    answer = await api.get("/messages/presence", params=params, headers=ADA)
    assert answer.json() == about
    chosen = {"sdid": KITCHEN, "fieldPresence": "intensity"}
    answer = await api.get("/messages/presence", params=params | chosen, headers=ADA)
    assert answer.json() == chosen | about
    empty: dict[str, Any] = {"size": 0, "data": []}
    for chosen in ({"sdid": HALL}, {"fieldPresence": "state"}):
        answer = await api.get("/messages/presence", params=params | chosen, headers=ADA)
        assert answer.json() == chosen | about | empty


async def test_an_application_names_the_device_whose_presence_it_wants(api: httpx.AsyncClient) -> None:
    params: dict[str, Any] = {"interval": "hour", "startDate": 0, "endDate": 0}
    answer = await api.get("/messages/presence", params=params, headers=bearer(APPLICATION_TOKEN))
    assert answer.json()["error"]["errors"] == [[{"field": "sdid", "messages": ["Required parameter"]}]]


# Snapshots


async def test_snapshots(api: httpx.AsyncClient, services: Services, kitchen: Device) -> None:
    services.messages.ingest.submit(kitchen, b'{"intensity":500,"colorRGB":{"r":1},"samples":[1,2.50]}', 7)
    await services.messages.ingest.wait_committed()
    answer = await api.get("/messages/snapshots", params={"sdids": f"{KITCHEN},,{HALL}"}, headers=ADA)
    assert answer.json() == {
        "sdids": f"{KITCHEN},{HALL}",
        "size": 2,
        "data": [
            {
                "sdid": KITCHEN,
                "data": {
                    "intensity": {"ts": 7, "value": 500},
                    "colorRGB": {"r": {"ts": 7, "value": 1}},
                    "samples": {"ts": 7, "value": [1, 2.5]},
                },
            },
            {"sdid": HALL, "data": {}},
        ],
    }
    answer = await api.get("/messages/snapshots", params={"sdids": KITCHEN, "includeTimestamp": "FALSE"}, headers=ADA)
    assert answer.json()["data"][0]["data"]["intensity"] == {"value": 500}


@pytest.mark.usefixtures("world")
async def test_snapshots_of_more_than_100_devices_are_refused(api: httpx.AsyncClient) -> None:
    assert await findings(api, "/messages/snapshots", {"sdids": ",".join([KITCHEN] * 101)}) == [
        ("sdids", "Maximum length 100")
    ]
    assert await findings(api, "/messages/snapshots", {"sdids": KITCHEN, "includeTimestamp": "maybe"}) == [
        ("includeTimestamp", "Boolean field only")
    ]


# Time zones


async def test_a_time_zone_is_echoed_and_a_wrong_one_named(api: httpx.AsyncClient, steps: None) -> None:
    params: dict[str, Any] = {
        "sdid": KITCHEN,
        "interval": "day",
        "startDate": NOW_MS - DAY_MS,
        "endDate": NOW_MS + DAY_MS,
    }
    for path, more in (("/messages/analytics/histogram", {"field": "intensity"}), ("/messages/presence", {})):
        here = await api.get(path, params=params | more | {"timezone": "Asia/Kolkata"}, headers=ADA)
        assert here.status_code == 200, here.text
        found = here.json()
        assert found["timezone"] == "Asia/Kolkata"
        (bucket,) = found["data"]
        assert bucket.get("ts", bucket.get("startDate")) % DAY_MS == DAY_MS - 5.5 * HOUR_MS
        assert "timezone" not in (await api.get(path, params=params | more, headers=ADA)).json()
        for zone in ("Mars/Base", "Europe", "../../etc/passwd", "x" * 200, ""):
            answer = await api.get(path, params=params | more | {"timezone": zone}, headers=ADA)
            if zone:
                assert [one["field"] for one in answer.json()["error"]["errors"][0]] == ["timezone"], zone
            else:
                assert answer.status_code == 200
