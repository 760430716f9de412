"""DELETE /messages over REST (reference 9.12)."""

from typing import Any

import httpx
import pytest
import trio

from broker.services import Services
from storage.keys import Milliseconds
from tests.factories import ADA_TOKEN, BOB_TOKEN, KITCHEN, KITCHEN_TOKEN, NOW_MS, World
from tests.protocols.http.conftest import bearer

pytestmark = pytest.mark.slow


AT = NOW_MS - 3_600_000
HEADERS = bearer(ADA_TOKEN)
CHOSEN: dict[str, Any] = {"sdid": KITCHEN, "startDate": AT - 10, "endDate": AT - 5}


async def test_from_the_call_to_the_end(api: httpx.AsyncClient, services: Services, world: World) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    for ago in (11, 10, 5, 4):
        services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % ago, Milliseconds(AT - ago))
    await services.messages.ingest.wait_committed()
    found = await api.get("/messages", params={"sdid": KITCHEN, "startDate": 0, "endDate": NOW_MS}, headers=HEADERS)
    mid = found.json()["data"][1]["mid"]
    asked = (await api.delete("/messages", params=CHOSEN, headers=HEADERS)).json()["data"]
    assert asked | {"id": ""} == CHOSEN | {"id": "", "status": "InProgress", "deleted": 0, "requestedOn": NOW_MS}
    while True:
        status = (await api.get(f"/messages/deletions/{asked['id']}", headers=HEADERS)).json()["data"]
        if status["status"] == "Success":
            break
        await trio.testing.wait_all_tasks_blocked()
    assert status == asked | {"status": "Success", "deleted": 2, "endedOn": NOW_MS}
    assert (await api.get("/messages/deletions", headers=HEADERS)).json() == {"data": {"deletions": [status]}}
    left = await api.get("/messages", params={"sdid": KITCHEN, "startDate": 0, "endDate": NOW_MS}, headers=HEADERS)
    assert [one["data"]["intensity"] for one in left.json()["data"]] == [11, 4]
    assert (await api.get("/messages", params={"mid": mid}, headers=HEADERS)).json()["size"] == 0
    where: dict[str, Any] = {
        "sdid": KITCHEN,
        "field": "intensity",
        "startDate": AT - 60_000,
        "endDate": AT + 60_000,
    }
    counted = (await api.get("/messages/analytics/aggregates", params=where, headers=HEADERS)).json()
    assert counted["data"][0]["count"] == 2


async def test_refusals(api: httpx.AsyncClient, world: World) -> None:
    for token, status in ((BOB_TOKEN, 403), (KITCHEN_TOKEN, 403)):
        assert (await api.delete("/messages", params=CHOSEN, headers=bearer(token))).status_code == status
    for wrong in ({"startDate": NOW_MS}, {"startDate": -1}, {"endDate": "x"}, {"endDate": ""}, {"sdid": ""}):
        answer = await api.delete("/messages", params=CHOSEN | wrong, headers=HEADERS)
        assert answer.status_code == 400, (wrong, answer.text)
        assert answer.json()["error"]["code"] == 4001
    unknown = await api.delete("/messages", params=CHOSEN | {"sdid": "e" * 32}, headers=HEADERS)
    assert unknown.status_code == 404
    asked = (await api.delete("/messages", params=CHOSEN, headers=HEADERS)).json()["data"]
    assert (await api.get(f"/messages/deletions/{asked['id']}", headers=bearer(BOB_TOKEN))).status_code == 403
    assert (await api.get("/messages/deletions", headers=bearer(BOB_TOKEN))).json()["data"] == {"deletions": []}
