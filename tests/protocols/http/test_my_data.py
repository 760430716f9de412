"""Readers of a user's data (reference 5.9), imports over REST (10.5) and the sheet of a type (8.9)."""

import httpx
import pytest
import trio

from broker.my_data.imports import ImportStatistics
from broker.services import Services
from storage.keys import Milliseconds
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    DASHBOARD,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.tickets import at

pytestmark = pytest.mark.slow


HEADERS = bearer(ADA_TOKEN)


async def test_readers_are_counted_by_application(
    api: httpx.AsyncClient, services: Services, world: World, fake_clock: FakeClock
) -> None:
    async def readers() -> list[dict[str, object]]:
        answer = await api.get(f"/users/{ADA}/readers", headers=HEADERS)
        found: list[dict[str, object]] = answer.json()["data"]["readers"]
        return found

    assert await readers() == []
    chosen: dict[str, str | int] = {"sdid": KITCHEN, "startDate": 0, "endDate": NOW_MS}
    for token in (ADA_TOKEN, KITCHEN_TOKEN, ADA_TOKEN, BOB_TOKEN):
        await api.get("/messages", params=chosen, headers=bearer(token))
    fake_clock.advance(5)
    await api.get("/messages/snapshots", params={"sdids": KITCHEN}, headers=HEADERS)
    await api.post("/messages/export", json={"uids": ADA, "startDate": NOW_MS - 9, "endDate": NOW_MS}, headers=HEADERS)
    await api.get("/values", params={"sdids": KITCHEN}, headers=HEADERS)
    await api.get("/values", headers=bearer(KITCHEN_TOKEN))
    (one,) = await readers()
    assert isinstance(one["application"], dict)
    assert one["application"]["id"] == DASHBOARD
    assert (one["count"], one["firstOn"], one["lastOn"]) == (5, NOW_MS, NOW_MS + 5)
    kitchen = await services.devices.registry.get(world.kitchen)
    mid = services.messages.ingest.mid(at(services.messages.ingest.submit(kitchen, b'{"intensity":1}')))
    await services.messages.ingest.wait_committed()
    for params in ({"mid": mid}, {"mid": "ff" * 16}):
        await api.get("/messages", params=params, headers=HEADERS)
    assert [one["count"] for one in await readers()] == [6]
    assert (await api.get(f"/users/{ADA}/readers", headers=bearer(BOB_TOKEN))).status_code == 403


async def test_a_file_over_rest(api: httpx.AsyncClient, services: Services, world: World) -> None:
    headers = HEADERS | {"Content-Type": "text/csv"}
    content = b"time,intensity\n2020-01-01T00:00Z,5\n2020-01-01T00:00Z,x\n"
    made = (await api.post("/messages/import", params={"sdid": KITCHEN}, content=content, headers=headers)).json()
    path = f"/messages/import/{made['data']['id']}/status"
    with trio.fail_after(20):
        while (state := (await api.get(path, headers=HEADERS)).json()["data"])["status"] == "InProgress":
            await trio.lowlevel.checkpoint()
    assert (state["stored"], state["wrong"], state["progress"]) == (1, 1, 100)
    assert services.my_data.imports.statistics() == ImportStatistics(1, 0, 1, 0, 1)
    assert state["wrongLines"] == [{"line": 3, "reason": "column 2, “intensity”: “x” is not an integer"}]
    assert (await api.get("/messages/import/history", headers=HEADERS)).json()["data"]["imports"] == [state]
    assert (await api.get(path, headers=bearer(BOB_TOKEN))).status_code == 403
    wrong = await api.post("/messages/import", params={"sdid": KITCHEN}, content=b"time,no\n", headers=headers)
    assert wrong.json()["error"]["errors"][0][0]["field"] == "header"


@pytest.mark.both_engines
async def test_the_sheet_of_a_type(api: httpx.AsyncClient, services: Services, world: World) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    for days in (1, 1, 2):
        services.messages.ingest.submit(kitchen, b'{"intensity":1}', Milliseconds(NOW_MS - days * 86_400_000))
    services.messages.ingest.submit(kitchen, b'{"intensity":1}')
    await services.messages.ingest.wait_committed()
    await services.messages.projector.flush()
    for token in (ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN):
        sheet = (await api.get(f"/devicetypes/{LIGHT_TYPE}/sheet", headers=bearer(token))).json()["data"]
    assert sheet["fields"][2] | {"description": ""} == {
        "field": "temperature",
        "type": "number",
        "isList": False,
        "unit": "",
        "description": "",
        "sensitive": False,
    }
    assert sheet["actions"] == [{"name": "setOn", "description": ""}]
    assert sheet["measured"] == {"days": 7, "devices": 1, "messages": 3, "perDeviceAndDay": 1.5}
    assert set(sheet["retentionDays"]) == {"messages", "minutes", "hours", "days"}
