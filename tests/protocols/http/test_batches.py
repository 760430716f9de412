"""POST /messages/batch: each entry is checked as a message is, and all that are accepted are in one commit."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
import trio

from broker.facts import MessagesStored
from broker.services import Services
from config.limits import BATCH_MESSAGES_MAX, MAX_BODY_BYTES
from config.settings import Limits, Settings
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


UNKNOWN = "ff" * 16


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, limits=Limits(messages_user="5000/100000", messages_device="3/5"))


async def post(api: httpx.AsyncClient, *entries: object, token: str = ADA_TOKEN) -> httpx.Response:
    return await api.post("/messages/batch", headers=bearer(token), json={"messages": entries})


async def results(api: httpx.AsyncClient, *entries: object, token: str = ADA_TOKEN) -> Sequence[Mapping[str, Any]]:
    answer = await post(api, *entries, token=token)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    stored = sum("mid" in one for one in data["results"])
    assert (len(data["results"]), data["stored"], data["refused"]) == (len(entries), stored, len(entries) - stored)
    found: Sequence[Mapping[str, Any]] = data["results"]
    return found


def entry(number: int, **members: object) -> dict[str, object]:
    return {"sdid": KITCHEN, "ts": NOW_MS - 100_000 + number, "data": {"intensity": number}} | members


async def of_kitchen(api: httpx.AsyncClient) -> list[tuple[str, int, dict[str, object]]]:
    query = {"sdid": KITCHEN, "startDate": "0", "endDate": str(NOW_MS)}
    found = (await api.get("/messages", headers=bearer(ADA_TOKEN), params=query)).json()["data"]
    return [(one["mid"], one["ts"], one["data"]) for one in found]


@pytest.mark.parametrize("token", [ADA_TOKEN, APPLICATION_TOKEN])
async def test_each_message_keeps_its_time_and_has_an_id(api: httpx.AsyncClient, token: str) -> None:
    answers = await results(
        api, entry(2), entry(0), entry(1, sdid=HALL), entry(3, data='{"intensity":"3"}'), token=token
    )
    mids = [one["mid"] for one in answers]
    assert mids == sorted(set(mids))
    assert await of_kitchen(api) == [
        (mids[1], NOW_MS - 100_000, {"intensity": 0}),
        (mids[0], NOW_MS - 99_998, {"intensity": 2}),
        (mids[3], NOW_MS - 99_997, {"intensity": 3}),
    ]


async def test_two_entries_of_one_time_are_two_messages(api: httpx.AsyncClient) -> None:
    first, second = await results(api, entry(1), entry(1))
    assert [mid for mid, _, _ in await of_kitchen(api)] == [first["mid"], second["mid"]]


async def test_a_device_token_needs_no_sdid_and_no_ts(api: httpx.AsyncClient) -> None:
    (answer,) = await results(api, {"data": {"intensity": 4}}, token=KITCHEN_TOKEN)
    assert await of_kitchen(api) == [(answer["mid"], NOW_MS, {"intensity": 4})]


@each_row(
    ("wrong", "code", "field", "reason"),
    [
        (7, 4001, "messages", "Invalid value: must be an object"),
        ([], 4001, "messages", "Invalid value: must be an object"),
        (None, 4001, "messages", "Invalid value: must be an object"),
        ({"data": {"intensity": 1}}, 4001, "sdid", "Required parameter"),
        (entry(1, sdid=None), 4001, "sdid", "Required parameter"),
        (entry(1, sdid=7), 4001, "sdid", "Text field only"),
        ({"sdid": KITCHEN}, 4001, "data", "Required parameter"),
        (entry(1, data=7), 4001, "data", "Invalid value: must be an object, or its JSON text"),
        (entry(1, type="action"), 4001, "type", "Invalid value: must be one of message"),
        (entry(1, sdid=UNKNOWN), 404, "sdid", "Not Found"),
        (entry(1, sdid=BOBS), 403, "sdid", f"You don't have the right permissions: WRITE on device {BOBS}"),
        (entry(1, ts=NOW_MS + 61_000), 400, "ts", "Invalid ts value (in future)"),
        (entry(1, ts=-1), 400, "ts", "Invalid ts value"),
        (entry(1, ts="yesterday"), 400, "ts", "Invalid ts value"),
        (entry(1, data={"text": "x" * 1100}), 413, "data", None),
    ],
)
async def test_a_wrong_entry_is_refused_alone(
    api: httpx.AsyncClient, wrong: object, code: int, field: str, reason: str | None
) -> None:
    """And as `POST /messages` refuses the same."""
    before, bad, behind = await results(api, entry(1), wrong, entry(2))
    assert {before["mid"], behind["mid"]} < {mid for mid, _, _ in await of_kitchen(api)} | {""}
    error = bad["error"]
    assert (set(bad), error["code"], error["field"]) == ({"error"}, code, field)
    if isinstance(wrong, dict) and wrong.get("type") is None:
        alone = (await api.post("/messages", headers=bearer(ADA_TOKEN), json=wrong)).json()["error"]
        assert alone["code"] == code
        assert error["reason"] == (alone["errors"][0][0]["messages"][0] if code == 4001 else alone["message"])
    assert error["reason"] == reason or reason is None


async def test_what_was_not_kept_is_named_and_what_fails_has_an_id(api: httpx.AsyncClient) -> None:
    lost, failed = await results(api, entry(1, data={"state": True, "opne": 1}), entry(2, data={"opne": 1}))
    assert lost["warnings"] == [{"field": "opne", "message": "not in the Manifest"}]
    assert failed["warnings"][0] == {"field": "data", "message": "nothing remained after normalization"}
    failures = (await api.get(f"/devices/{KITCHEN}/failures", headers=bearer(ADA_TOKEN))).json()["data"]["failures"]
    assert [one["mid"] for one in failures] == [failed["mid"]]


@each_row(
    ("body", "status", "field", "reason"),
    [
        ({}, 400, "messages", "Required parameter"),
        ({"messages": []}, 400, "messages", "Required parameter"),
        ({"messages": {}}, 400, "messages", "Invalid value: must be a list"),
        ({"messages": [entry(1)] * (BATCH_MESSAGES_MAX + 1)}, 400, "messages", "Maximum length 1000"),
        ([entry(1)], 400, None, "Bad Request"),
        ({"messages": [entry(1, data={"text": "x" * MAX_BODY_BYTES})]}, 413, None, None),
    ],
)
async def test_a_wrong_batch_is_refused_whole(
    api: httpx.AsyncClient, body: object, status: int, field: str | None, reason: str | None
) -> None:
    answer = await api.post("/messages/batch", headers=bearer(ADA_TOKEN), json=body)
    error = answer.json()["error"]
    assert (answer.status_code, await of_kitchen(api)) == (status, [])
    if field is not None:
        (finding,) = error["errors"][0]
        assert finding == {"field": field, "messages": [reason]}
    elif reason is not None:
        assert error["message"] == reason


async def test_all_that_are_accepted_are_in_one_commit(api: httpx.AsyncClient, services: Services) -> None:
    """Of any length: a thousand messages, a part of them refused, beside messages of others."""
    facts = list[MessagesStored]()
    services.core.router.subscribe(MessagesStored, facts.append)
    entries = [entry(number, **({} if number % 10 else {"ts": -1})) for number in range(BATCH_MESSAGES_MAX)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(post, api, *entries)
        for number in range(5):
            nursery.start_soon(post, api, entry(number, sdid=HALL))
    (whole,) = (fact for fact in facts if len(fact.rows) >= 900)
    kitchen = [row for row in whole.rows if json.loads(row.data)["intensity"] >= 5]
    assert len(kitchen) == len([one for one in entries if one["ts"] != -1 and int(str(one["ts"])) >= NOW_MS - 99_995])


async def test_others_go_on_while_a_batch_is_read(api: httpx.AsyncClient) -> None:
    """A batch is not one turn of the loop."""
    turns, is_done = 0, False

    async def count() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await trio.lowlevel.checkpoint()

    messages = [entry(number, data={"intensity": number, **{f"x{i}": i for i in range(20)}}) for number in range(1000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await post(api, *messages)
        is_done = True
    assert turns > 20


async def test_limits_count_each_entry(api: httpx.AsyncClient) -> None:
    """A device may send 3 messages in a minute, and 5 on this day."""
    answer = await post(api, *[{"data": {"intensity": number}} for number in range(5)], token=KITCHEN_TOKEN)
    assert answer.headers["X-Rate-Limit-Remaining"] == "0/2"
    outcomes = answer.json()["data"]["results"]
    assert ["mid" in one for one in outcomes] == [True, True, True, False, False]
    error = outcomes[3]["error"]
    assert (error["code"], error["reason"]) == (429, "MINUTE rate limit exceeded")
    assert 0 < error["retryAfter"] <= 60
    assert (await post(api, {"data": {"intensity": 1}}, token=KITCHEN_TOKEN)).status_code == 429
    assert len(await of_kitchen(api)) == 3


async def test_quotas_are_charged_for_each_entry(api: httpx.AsyncClient, services: Services) -> None:
    before = services.limits.quotas.statistics().units
    await results(api, entry(1), entry(2, ts=-1), entry(3), entry(4, data={"opne": 1}))
    assert services.limits.quotas.statistics().units == before + 3


async def test_the_owner_sees_what_was_refused(api: httpx.AsyncClient) -> None:
    await results(api, entry(1, ts=-1), entry(1, data=7))
    await results(api, {"data": 7}, {"sdid": KITCHEN}, token=KITCHEN_TOKEN)
    refusals = (await api.get(f"/devices/{KITCHEN}/refusals", headers=bearer(ADA_TOKEN))).json()["data"]["refusals"]
    assert {(one["code"], one["message"]) for one in refusals} == {(400, "Invalid ts value"), (400, "Validation Error")}
