"""Where specification and compatibility rules differ, both are served as far as that is possible.

The rows are those of section 25.2 of the rules. What concerns other protocols than REST is tested with them: rows 8
(test_presence.py), 9 (test_feeds.py), 11 (test_quotas.py), 12 (test_waiting.py) and 16 (test_channels.py); so is row 14
(test_engine.py).
"""

from typing import Any

import httpx
import msgspec
import pytest

from broker.services import Services
from config.settings import Limits, Settings
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    DASHBOARD,
    HALL,
    KITCHEN,
    World,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


HEADERS = bearer(ADA_TOKEN)
UNKNOWN = "f" * 32


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, limits=Limits(rate_limits="on"))


@each_row("policy", ["DEVICE", "LATEST"])
async def test_row_4_a_change_without_a_policy_keeps_it(api: httpx.AsyncClient, world: World, policy: str) -> None:
    path = f"/devices/{KITCHEN}"
    await api.put(path, headers=HEADERS, json={"manifestVersionPolicy": policy})
    answer = await api.put(path, headers=HEADERS, json={"name": "Lamp"})
    assert answer.json()["data"]["manifestVersionPolicy"] == policy


@each_row(("aid", "status"), [(None, 200), (DASHBOARD, 200), (UNKNOWN, 403)])
async def test_row_5_the_application_of_properties(
    api: httpx.AsyncClient, world: World, aid: str | None, status: int
) -> None:
    body = {"properties": "x"} | ({} if aid is None else {"aid": aid})
    for verb in ("POST", "PUT"):
        answer = await api.request(verb, f"/users/{ADA}/properties", headers=HEADERS, json=body)
        assert answer.status_code == status, answer.text
        if status == 200:
            assert answer.json()["data"]["aid"] == DASHBOARD


async def test_row_6_an_application_may_say_whose_message_it_looks_for(api: httpx.AsyncClient, world: World) -> None:
    sent = await api.post("/messages", headers=HEADERS, json={"sdid": KITCHEN, "data": {"intensity": 1}})
    mid = sent.json()["data"]["mid"]
    found: dict[str | None, Any] = {}
    for uid in (None, ADA, BOB):
        query = {"mid": mid} | ({} if uid is None else {"uid": uid})
        found[uid] = await api.get("/messages", headers=bearer(APPLICATION_TOKEN), params=query)
    assert [found[one].json()["size"] for one in (None, ADA)] == [1, 1]
    assert found[BOB].status_code == 403


async def test_row_7_a_test_run_is_announced_as_it_will_end(
    api: httpx.AsyncClient, world: World, services: Services
) -> None:
    """The application may not send, or the device of the rule is gone."""
    condition = {"sdid": HALL, "field": "temperature", "operator": ">", "operand": {"value": 25}}
    rule = {"if": condition, "then": {"ddid": KITCHEN, "action": "setOn"}}
    made = (await api.post("/rules", headers=HEADERS, json={"name": "n", "rule": rule})).json()["data"]
    path = f"/rules/{made['id']}/actions"

    async def agree(says: bool, status: int) -> None:
        announced = (await api.get(path, headers=HEADERS)).json()["data"]
        assert announced == {"testable": says}
        assert (await api.post(path, headers=HEADERS)).status_code == status

    await agree(True, 200)
    await api.delete(f"/devices/{KITCHEN}", headers=HEADERS)
    await agree(False, 400)


async def test_row_10_what_is_refused_for_its_content_counts(api: httpx.AsyncClient, world: World) -> None:
    remaining = []
    of_kitchen = f'{{"sdid":"{KITCHEN}","data":'
    for body in ("{}", '{"sdid":', of_kitchen + "7}", of_kitchen + "{}}"):
        answer = await api.post("/messages", headers=HEADERS, content=body)
        remaining.append(int(answer.headers["X-Rate-Limit-Remaining"].partition("/")[0]))
    assert remaining == list(range(remaining[0], remaining[0] - 4, -1))
    for _ in range(remaining[-1]):
        await api.post("/messages", headers=HEADERS, content="{}")
    refused = [await api.post("/messages", headers=HEADERS, content="{}") for _ in range(3)]
    assert {one.status_code for one in refused} == {429}
    assert {one.headers["X-Rate-Limit-Remaining"].partition("/")[2] for one in refused} == {
        refused[0].headers["X-Rate-Limit-Remaining"].partition("/")[2]
    }


async def test_row_13_a_device_without_a_token(api: httpx.AsyncClient, world: World) -> None:
    path = f"/devices/{KITCHEN}/tokens"
    await api.delete(path, headers=HEADERS)
    assert (await api.get(path, headers=HEADERS)).status_code == 404
    made = (await api.put(path, headers=HEADERS)).json()["data"]
    assert (await api.get(path, headers=HEADERS)).json()["data"] == made


@each_row("content", [b"", b"{}", b" { } "])
async def test_row_15_a_scene_is_activated_with_an_empty_object_or_nothing(
    api: httpx.AsyncClient, world: World, content: bytes
) -> None:
    scene = {"name": "Evening", "actions": [{"ddid": KITCHEN, "action": "setOn"}]}
    made = (await api.post("/scenes", headers=HEADERS, json=scene)).json()["data"]
    answer = await api.post(f"/scenes/{made['id']}", headers=HEADERS, content=content)
    assert (answer.status_code, answer.json()["data"]["id"]) == (200, made["id"])
