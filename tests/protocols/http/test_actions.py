"""Searching Actions, and messages by their content, over REST (reference 9.3)."""

import json
from typing import Any

import httpx
import pytest

from broker.devices.registry import Device
from broker.services import Services
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.tickets import at
from tests.wording import INVALID

pytestmark = pytest.mark.slow


ALL: dict[str, Any] = {"startDate": 0, "endDate": NOW_MS}


@pytest.fixture
async def lights(services: Services, world: World) -> tuple[Device, Device]:
    return await services.devices.registry.get(world.kitchen), await services.devices.registry.get(world.hall)


@pytest.fixture
async def mids(services: Services, lights: tuple[Device, Device]) -> list[str]:
    """setOn to the kitchen from the hall, setOff to the kitchen, both at once to the hall."""
    kitchen, hall = lights
    on, off = b'{"name":"setOn","parameters":{"level":1.50}}', b'{"name":"setOff"}'
    positions = [
        services.messages.ingest.submit_action(hall, kitchen, b'{"actions":[' + on + b"]}", 10),
        services.messages.ingest.submit_action(kitchen, kitchen, b'{"actions":[' + off + b"]}", 20),
        services.messages.ingest.submit_action(hall, hall, b'{"actions":[' + off + b"," + on + b"]}", 30),
    ]
    await services.messages.ingest.wait_committed()
    return [services.messages.ingest.mid(at(position)) for position in positions]


async def search(api: httpx.AsyncClient, token: str = ADA_TOKEN, path: str = "/actions", **params: Any) -> Any:
    answer = await api.get(path, params=params, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert float(answer.headers["request-time"]) >= 0
    return answer.json()


async def findings(api: httpx.AsyncClient, path: str = "/actions", **params: Any) -> list[tuple[str, str]]:
    answer = await api.get(path, params=params, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 400
    return [(one["field"], *one["messages"]) for one in answer.json()["error"]["errors"][0]]


def found(answer: Any) -> list[str]:
    assert answer["size"] == len(answer["data"])
    return [entry["mid"] for entry in answer["data"]]


# By id


async def test_by_mid(api: httpx.AsyncClient, mids: list[str]) -> None:
    answer = await api.get("/actions", params={"mid": mids[0]}, headers=bearer(ADA_TOKEN))
    action = (
        f'{{"type":"action","cts":{NOW_MS},"ts":10,"mid":"{mids[0]}","sdid":"{HALL}","ddid":"{KITCHEN}",'
        '"data":{"actions":[{"name":"setOn","parameters":{"level":1.50}}]},'
        f'"ddtid":"{LIGHT_TYPE}","uid":"{ADA}","mv":1}}'
    )
    assert action in answer.text
    assert answer.json() == {
        "mid": mids[0],
        "uid": ADA,
        "count": 100,
        "order": "asc",
        "size": 1,
        "data": [json.loads(action)],
    }


@each_row("mid", ["00" * 16, "x"])
async def test_an_unknown_mid_is_nothing(api: httpx.AsyncClient, mids: list[str], mid: str) -> None:
    assert await search(api, mid=mid) == {
        "mid": mid,
        "uid": ADA,
        "count": 100,
        "order": "asc",
        "size": 0,
        "data": [],
    }


async def test_the_mid_of_a_message_is_no_action(
    api: httpx.AsyncClient, services: Services, lights: tuple[Device, Device]
) -> None:
    mid = services.messages.ingest.mid(at(services.messages.ingest.submit(lights[0], b'{"state":true}')))
    await services.messages.ingest.wait_committed()
    assert found(await search(api, mid=mid)) == []


async def test_mids_by_application_device_and_stranger(api: httpx.AsyncClient, mids: list[str]) -> None:
    assert found(await search(api, APPLICATION_TOKEN, mid=mids[0])) == [mids[0]]
    assert found(await search(api, APPLICATION_TOKEN, mid=mids[0], uid=ADA)) == [mids[0]]
    assert found(await search(api, KITCHEN_TOKEN, mid=mids[0])) == [mids[0]]
    for token in (KITCHEN_TOKEN, BOB_TOKEN):
        answer = await api.get("/actions", params={"mid": mids[2]}, headers=bearer(token))
        assert answer.status_code == 403


# By destination, name and time


async def test_by_destination(api: httpx.AsyncClient, mids: list[str]) -> None:
    answer = await search(api, ddid=KITCHEN, **ALL)
    entries = answer.pop("data")
    assert answer == {
        "uid": ADA,
        "ddid": KITCHEN,
        "startDate": 0,
        "endDate": NOW_MS,
        "count": 100,
        "order": "asc",
        "size": 2,
    }
    assert [entry["mid"] for entry in entries] == mids[:2]
    assert found(await search(api, ddid=KITCHEN, order="DESC", **ALL)) == mids[1::-1]
    assert found(await search(api, ddid=KITCHEN, startDate=10, endDate=19)) == mids[:1]


async def test_without_a_destination_all_readable_devices_of_the_user(api: httpx.AsyncClient, mids: list[str]) -> None:
    for token, params in ((ADA_TOKEN, {}), (ADA_TOKEN, {"uid": "self"}), (APPLICATION_TOKEN, {"uid": ADA})):
        answer = await search(api, token, **params, **ALL)
        assert (answer["uid"], "ddid" in answer, found(answer)) == (ADA, False, mids)
    assert found(await search(api, KITCHEN_TOKEN, **ALL)) == mids[:2]
    assert found(await search(api, BOB_TOKEN, **ALL)) == []


@each_row("parameter", ["action", "name"])
async def test_by_name(api: httpx.AsyncClient, mids: list[str], parameter: str) -> None:
    assert found(await search(api, **{parameter: "setOn"}, **ALL)) == [mids[0], mids[2]]
    assert found(await search(api, **{parameter: "setOn"}, ddid=KITCHEN, **ALL)) == [mids[0]]
    assert found(await search(api, **{parameter: "seton"}, **ALL)) == []
    assert found(await search(api, **{parameter: "' OR 1 --"}, **ALL)) == []


@pytest.mark.both_engines
async def test_by_the_device_that_sent_them(api: httpx.AsyncClient, mids: list[str]) -> None:
    assert found(await search(api, sdid=HALL, **ALL)) == [mids[0], mids[2]]
    assert found(await search(api, sdid=HALL, ddid=KITCHEN, **ALL)) == [mids[0]]
    assert found(await search(api, sdid=HALL, action="setOff", **ALL)) == [mids[2]]
    assert found(await search(api, sdid="ff" * 16, **ALL)) == []


async def test_pages_stay_as_they_are_while_actions_arrive(
    api: httpx.AsyncClient, services: Services, lights: tuple[Device, Device], mids: list[str]
) -> None:
    first = await search(api, count=1, **ALL)
    assert "prev" not in first
    services.messages.ingest.submit_action(lights[0], lights[0], b'{"actions":[{"name":"setOn"}]}', 5)
    services.messages.ingest.submit_action(lights[0], lights[0], b'{"actions":[{"name":"setOn"}]}', 40)
    await services.messages.ingest.wait_committed()
    second = await search(api, count=1, offset=first["next"], **ALL)
    assert found(second) == mids[1:2]
    assert found(await search(api, count=1, offset=second["prev"], **ALL)) == mids[:1]
    last = await search(api, count=9, offset=second["next"], **ALL)
    assert found(last)[0] == mids[2]
    assert last["size"] == 2
    assert "next" not in last


async def test_refusals_name_the_parameter(api: httpx.AsyncClient, mids: list[str]) -> None:
    required = "Required parameter"
    assert await findings(api) == [("startDate", required), ("endDate", required)]
    assert await findings(api, startDate=2, endDate=1) == [("startDate", INVALID)]
    assert await findings(api, count=0, **ALL) == [("count", "Minimum value 1")]
    assert await findings(api, count=101, **ALL) == [("count", "Maximum value 100")]
    assert await findings(api, order="up", **ALL) == [("order", INVALID)]
    assert await findings(api, action="setOn", name="setOff", **ALL) == [("name", INVALID)]
    assert await findings(api, ddid=BOBS.replace("3", "1"), uid=BOB, **ALL) == [("uid", INVALID)]
    cursor = (await search(api, count=1, **ALL))["next"]
    for text in ("x", cursor[:-1], cursor + "A", ("B" if cursor[0] == "A" else "A") + cursor[1:], "ü" * 20):
        assert await findings(api, offset=text, **ALL) == [("offset", INVALID)]


@each_row(
    ("token", "params", "status"),
    [
        (ADA_TOKEN, {"ddid": BOBS}, 403),
        (ADA_TOKEN, {"ddid": "ff" * 16}, 404),
        (ADA_TOKEN, {"uid": BOB}, 403),
        (ADA_TOKEN, {"uid": "ff" * 16}, 404),
        (APPLICATION_TOKEN, {"uid": BOB}, 403),
        (APPLICATION_TOKEN, {}, 400),
        (KITCHEN_TOKEN, {"ddid": HALL}, 403),
        ("ff" * 16, {}, 401),
    ],
)
async def test_whom_actions_are_shown_to(
    api: httpx.AsyncClient, token: str, params: dict[str, str], status: int
) -> None:
    answer = await api.get("/actions", params=params | ALL, headers=bearer(token))
    assert answer.status_code == status


# Messages by content


@pytest.fixture
async def sent(services: Services, lights: tuple[Device, Device]) -> None:
    for ts, data in enumerate(
        (
            b'{"state":true,"intensity":48,"text":"as usual"}',
            b'{"state":false,"intensity":4,"temperature":48.0}',
            b'{"temperature":21.50,"colorRGB":{"r":48},"text":"48 as"}',
            b'{"samples":[48],"text":"true"}',
        )
    ):
        services.messages.ingest.submit(lights[0], data, ts)
    await services.messages.ingest.wait_committed()


@pytest.mark.both_engines
@each_row(
    ("params", "expected"),
    [
        ({"fieldPresence": "intensity"}, [0, 1]),
        ({"fieldPresence": "colorRGB.r"}, [2]),
        ({"fieldPresence": "colorRGB"}, [2]),
        ({"fieldPresence": "nothing"}, []),
        ({"filter": "text=as"}, [0, 2]),
        ({"filter": "text=AS"}, []),
        ({"filter": "intensity=48"}, [0]),
        ({"filter": "intensity=4"}, [1]),
        ({"filter": "temperature=48"}, [1]),
        ({"filter": "temperature=21.5"}, [2]),
        ({"filter": "temperature=2.15e1"}, [2]),
        ({"filter": "temperature=abc"}, []),
        ({"filter": "colorRGB.r=48"}, [2]),
        ({"filter": "state=true"}, [0]),
        ({"filter": "state=false"}, [1]),
        ({"filter": "state=1"}, []),
        ({"filter": "text=true"}, [3]),
        ({"filter": "samples=[48]"}, [3]),
        ({"filter": "text=as, intensity=48 ,"}, [0]),
        ({"filter": "text=as,intensity=4"}, []),
        ({"filter": "text=%"}, []),
        ({"filter": "text=as", "fieldPresence": "temperature"}, [2]),
        ({"filter": "(+_exists_:intensity +_exists_:temperature)"}, [1]),
        ({"filter": "( _exists_:intensity  _exists_:text)"}, [0]),
        ({"filter": "(+_exists_:colorRGB.r)"}, [2]),
        ({"filter": "+_exists_:text,intensity=48"}, [0]),
        ({"filter": "(+_exists_:text +_exists_:nothing)"}, []),
    ],
)
async def test_messages_by_content(
    api: httpx.AsyncClient, sent: None, params: dict[str, str], expected: list[int]
) -> None:
    for chosen in ({}, {"sdid": KITCHEN}):
        answer = await search(api, path="/messages", **params, **chosen, **ALL)
        assert [entry["ts"] for entry in answer["data"]] == expected


@pytest.mark.both_engines
async def test_pages_of_a_filtered_search_have_no_holes(api: httpx.AsyncClient, sent: None) -> None:
    first = await search(api, path="/messages", filter="text=as", count=1, **ALL)
    second = await search(api, path="/messages", filter="text=as", count=1, offset=first["next"], **ALL)
    assert [entry["ts"] for entry in first["data"] + second["data"]] == [0, 2]
    assert "next" not in second


@pytest.mark.usefixtures("world")
@each_row("text", ["intensity", "=1", "a b=1", 'a"=1', "a[0]=1", "intensity=", "a=1,b"])
async def test_a_filter_that_is_none(api: httpx.AsyncClient, text: str) -> None:
    assert await findings(api, "/messages", filter=text, **ALL) == [("filter", INVALID)]


@pytest.mark.usefixtures("world")
@each_row("field", ["a b", 'a"', "a.", "$.a", "a[0]"])
async def test_a_field_that_is_none(api: httpx.AsyncClient, field: str) -> None:
    assert await findings(api, "/messages", fieldPresence=field, **ALL) == [("fieldPresence", INVALID)]
