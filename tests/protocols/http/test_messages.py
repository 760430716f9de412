import json
from typing import Any

import httpx
import pytest

from broker.facts import ActionStored
from broker.services import Services
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    BOBS_TOKEN,
    HALL,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.wording import INVALID

pytestmark = pytest.mark.slow


DATA = {"state": True}
ACTIONS = {"actions": [{"name": "setOn"}]}
UNKNOWN = "ff" * 16


async def post(api: httpx.AsyncClient, path: str = "/messages", *, token: str = ADA_TOKEN, **body: Any) -> Any:
    return await api.post(path, headers=bearer(token), json=body)


async def sent(api: httpx.AsyncClient, *, fits: bool = True, **body: Any) -> str:
    answer = await post(api, **({"sdid": KITCHEN, "data": DATA} | body))
    assert answer.status_code == 200, answer.text
    mid: str = answer.json()["data"]["mid"]
    assert (answer.text == f'{{"data":{{"mid":"{mid}"}}}}') == fits
    return mid


async def get(api: httpx.AsyncClient, path: str, *, token: str = ADA_TOKEN, **query: Any) -> Any:
    answer = await api.get(path, headers=bearer(token), params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def by_range(api: httpx.AsyncClient, **query: Any) -> Any:
    return await get(api, "/messages", **({"startDate": 0, "endDate": NOW_MS} | query))


def findings(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["message"], len(error["errors"])) == (4001, "Validation Error", 1)
    return {finding["field"]: finding["messages"][0] for finding in error["errors"][0]}


def refusal(answer: httpx.Response) -> tuple[int, int, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


# POST /messages


@pytest.mark.usefixtures("positions_jump")
async def test_mids_are_those_of_the_positions_that_the_commit_gives(
    api: httpx.AsyncClient, services: Services
) -> None:
    facts = list[ActionStored]()
    services.core.router.subscribe(ActionStored, facts.append)
    for number in range(3):
        mid = await sent(api, data={"state": number == 1})
        (found,) = (await get(api, "/messages", mid=mid))["data"]
        assert (found["mid"], found["data"]) == (mid, {"state": number == 1})
    action = await sent(api, type="action", ddid=KITCHEN, data=ACTIONS)
    (found,) = (await get(api, "/actions", mid=action))["data"]
    assert (found["mid"], found["data"], [fact.action.mid for fact in facts]) == (action, ACTIONS, [action])


@pytest.mark.parametrize("token", [ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN])
async def test_an_acknowledged_message_is_visible_everywhere(api: httpx.AsyncClient, token: str) -> None:
    answer = await post(api, token=token, sdid=KITCHEN, data={"state": True, "unknown": 1}, ts=5)
    message = {
        "mid": answer.json()["data"]["mid"],
        "data": {"state": True},
        "ts": 5,
        "sdtid": LIGHT_TYPE,
        "cts": NOW_MS,
        "uid": ADA,
        "mv": 1,
        "sdid": KITCHEN,
    }
    assert (await get(api, "/messages", mid=message["mid"]))["data"] == [message]
    assert (await by_range(api, sdid=KITCHEN))["data"] == [message]
    assert (await get(api, "/messages/last", sdids=KITCHEN))["data"] == [message]
    status = await get(api, f"/devices/{KITCHEN}/status")
    assert status["data"]["snapshot"] == {"state": {"value": True, "ts": 5}}


async def test_a_device_token_needs_no_sdid(api: httpx.AsyncClient) -> None:
    mid = (await post(api, token=KITCHEN_TOKEN, data=DATA)).json()["data"]["mid"]
    assert (await get(api, "/messages", mid=mid))["sdid"] == KITCHEN


@each_row("kind", [None, "message", "MESSAGE", ""])
async def test_a_message_goes_to_nobody_even_with_a_ddid(api: httpx.AsyncClient, kind: str | None) -> None:
    mid = await sent(api, type=kind, ddid=UNKNOWN)
    assert (await get(api, "/messages", mid=mid))["size"] == 1


@each_row(
    ("data", "stored"),
    [
        ({"intensity": "7"}, {"intensity": 7}),
        ('{"intensity": 7}', {"intensity": 7}),
        (' {"text": "\\u00e4"}', {"text": "ä"}),
        ({"colorRGB": {"r": 1, "x": 2}}, {"colorRGB": {"r": 1}}),
    ],
)
async def test_data_is_an_object_or_the_text_of_one(api: httpx.AsyncClient, data: object, stored: object) -> None:
    mid = (await post(api, sdid=KITCHEN, data=data)).json()["data"]["mid"]
    assert (await get(api, "/messages", mid=mid))["data"][0]["data"] == stored


@each_row(
    ("data", "warnings"),
    [
        ({"state": True, "intensity": "7"}, None),  # a conversion loses nothing
        ({"state": None, "intensity": 7}, None),
        ({"state": True, "opne": 1}, [("opne", "not in the Manifest")]),
        ('{"state":true,"opne":1}', [("opne", "not in the Manifest")]),
        ({"state": "perhaps", "intensity": 7}, [("state", "is not a Boolean")]),
        (
            {"opne": True, "state": "perhaps"},
            [
                ("data", "nothing remained after normalization"),
                ("opne", "not in the Manifest"),
                ("state", "is not a Boolean"),
            ],
        ),
        ({}, [("data", "nothing remained after normalization")]),
    ],
)
async def test_fields_that_are_not_kept_are_named_in_warnings(
    api: httpx.AsyncClient, data: object, warnings: list[tuple[str, str]] | None
) -> None:
    answer = (await post(api, sdid=KITCHEN, data=data)).json()
    assert list(answer["data"]) == ["mid"]
    expected = None if warnings is None else [{"field": field, "message": message} for field, message in warnings]
    assert answer.get("warnings") == expected


async def test_an_action_has_no_warnings(api: httpx.AsyncClient) -> None:
    answer = await post(api, ddid=KITCHEN, type="action", data=ACTIONS)
    assert list(answer.json()) == ["data"]


@each_row(("ts", "stored"), [(5, 5), (5.9, 5), ("5", 5), ("5.9", 5), (0, 0), (None, NOW_MS)])
async def test_ts_is_truncated(api: httpx.AsyncClient, ts: object, stored: int) -> None:
    mid = await sent(api, ts=ts)
    assert (await get(api, "/messages", mid=mid))["data"][0]["ts"] == stored


@each_row("ts", [NOW_MS // 1000, f" {NOW_MS // 1000}.5 ", 978_307_200])
async def test_a_time_in_seconds_is_stored_and_told(api: httpx.AsyncClient, ts: object) -> None:
    answer = await post(api, sdid=KITCHEN, data=DATA, ts=ts)
    told = {"field": "ts", "message": "is in seconds; it was taken as milliseconds, as the reference has it"}
    assert answer.json()["warnings"] == [told]
    stored = (await get(api, "/messages", mid=answer.json()["data"]["mid"]))["data"][0]
    assert stored["ts"] == int(float(str(ts)))
    dropped = (await get(api, f"/devices/{KITCHEN}/dropped"))["data"]["fields"]
    assert dropped == [{"ts": NOW_MS, **told}]


@each_row("path", ["/actions", "/messages"])
async def test_a_time_of_an_action_in_seconds_is_told(api: httpx.AsyncClient, path: str) -> None:
    body = {"type": "action", "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}, "ts": NOW_MS // 1000}
    answer = await api.post(path, json=body, headers=bearer(ADA_TOKEN))
    assert (answer.status_code, [one["field"] for one in answer.json()["warnings"]]) == (200, ["ts"])
    now = await api.post(path, json=body | {"ts": NOW_MS}, headers=bearer(ADA_TOKEN))
    assert set(now.json()) == {"data"}


@each_row("ts", [5, 978_307_199, NOW_MS // 1000 + 86_400, NOW_MS - 86_400_000])
async def test_no_other_time_is_taken_for_seconds(api: httpx.AsyncClient, ts: int) -> None:
    assert "warnings" not in (await post(api, sdid=KITCHEN, data=DATA, ts=ts)).json()


@each_row("ts", ["-1", "true", '""', '"soon"', "[]", "{}", "1e400", "-0.5"])
async def test_an_invalid_ts_is_refused(api: httpx.AsyncClient, ts: str) -> None:
    body = f'{{"sdid":"{KITCHEN}","data":{{"state":true}},"ts":{ts}}}'
    answer = await api.post("/messages", headers=bearer(ADA_TOKEN), content=body)
    assert refusal(answer) == (400, 400, "Invalid ts value")


@each_row(("ahead", "status"), [(60_000, 200), (60_001, 400)])
async def test_ts_may_be_ahead_by_the_grace_period(api: httpx.AsyncClient, ahead: int, status: int) -> None:
    answer = await post(api, sdid=KITCHEN, data=DATA, ts=NOW_MS + ahead)
    assert answer.status_code == status
    if status == 400:
        assert refusal(answer) == (400, 400, "Invalid ts value (in future)")


@each_row("content", [b"{", b"[]", b'"text"', b"\xff", b'{"sdid":"\xff"}', b"[" * 10_000])
async def test_a_body_that_is_no_json_object_is_refused(api: httpx.AsyncClient, content: bytes) -> None:
    answer = await api.post("/messages", headers=bearer(ADA_TOKEN), content=content)
    assert refusal(answer) == (400, 400, "Bad Request")


@each_row(
    ("body", "expected"),
    [
        ({}, {"sdid": "Required parameter", "data": "Required parameter"}),
        ({"sdid": None, "data": None}, {"sdid": "Required parameter", "data": "Required parameter"}),
        ({"sdid": 5, "data": DATA}, {"sdid": "Text field only"}),
        ({"sdid": KITCHEN, "data": DATA, "type": 5}, {"type": "Text field only"}),
        ({"sdid": KITCHEN, "data": DATA, "type": "event"}, {"type": INVALID}),
        ({"sdid": KITCHEN, "data": 5}, {"data": INVALID}),
        ({"sdid": KITCHEN, "data": [DATA]}, {"data": INVALID}),
        ({"sdid": KITCHEN, "data": "text"}, {"data": INVALID}),
        ({"sdid": KITCHEN, "data": '{"half'}, {"data": INVALID}),
        ({"type": "action", "sdid": KITCHEN, "data": ACTIONS}, {"ddid": "Required parameter"}),
    ],
)
async def test_findings_name_the_member(api: httpx.AsyncClient, body: dict[str, Any], expected: dict[str, str]) -> None:
    assert findings(await post(api, **body)) == expected


@each_row(
    ("token", "body", "refused"),
    [
        (ADA_TOKEN, {"sdid": UNKNOWN}, (404, 404, "Not Found")),
        (KITCHEN_TOKEN, {"sdid": UNKNOWN}, (404, 404, "Not Found")),
        (ADA_TOKEN, {"sdid": BOBS}, (403, 403, f"You don't have the right permissions: WRITE on device {BOBS}")),
        (
            APPLICATION_TOKEN,
            {"sdid": BOBS},
            (403, 403, f"You don't have the right permissions: WRITE on device {BOBS}"),
        ),
        (HALL_TOKEN, {"sdid": KITCHEN}, (403, 403, f"You don't have the right permissions: WRITE on device {KITCHEN}")),
    ],
)
async def test_a_device_that_is_unknown_or_not_the_callers_is_refused(
    api: httpx.AsyncClient, token: str, body: dict[str, str], refused: tuple[int, int, str]
) -> None:
    assert refusal(await post(api, token=token, data=DATA, **body)) == refused


async def test_data_over_the_limit_is_413(api: httpx.AsyncClient) -> None:
    assert (await post(api, sdid=KITCHEN, data={"text": "x" * 1013})).status_code == 200  # 1,024 bytes
    status, code, message = refusal(await post(api, sdid=KITCHEN, data={"text": "x" * 1014}))
    assert (status, code) == (413, 413)
    assert message.endswith("Reason: Max payload size limit")


async def disable(services: Services, device_id: str) -> None:
    await services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE device SET enabled = 0 WHERE id = :id", {"id": device_id})
    )
    await services.devices.registry.reload()


async def test_a_disabled_device_may_not_send_but_be_read(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    await sent(api)
    await disable(services, KITCHEN)
    assert refusal(await post(api, sdid=KITCHEN, data=DATA)) == (403, 403, "Source device is disconnected")
    assert (await by_range(api, sdid=KITCHEN))["size"] == 1


async def test_a_message_without_known_fields_is_acknowledged_and_invisible(api: httpx.AsyncClient) -> None:
    mid = await sent(api, fits=False, data={"nothing": 1})
    found = await get(api, "/messages", mid=mid)
    assert found == {"mid": mid, "uid": ADA, "count": 100, "order": "asc", "size": 0, "data": []}


# POST /actions


@each_row(
    ("path", "token", "body", "sdid"),
    [
        ("/actions", ADA_TOKEN, {"ddid": HALL}, HALL),
        ("/actions", ADA_TOKEN, {"ddid": HALL, "type": "Action"}, HALL),
        ("/actions", ADA_TOKEN, {"ddid": HALL, "sdid": KITCHEN}, KITCHEN),
        ("/actions", APPLICATION_TOKEN, {"ddid": HALL}, HALL),
        ("/actions", HALL_TOKEN, {}, HALL),
        ("/messages", ADA_TOKEN, {"ddid": HALL, "type": "action"}, HALL),
        ("/messages", ADA_TOKEN, {"ddid": HALL, "type": "ACTION", "sdid": KITCHEN}, KITCHEN),
    ],
)
async def test_an_action_is_stored_and_routed(
    services: Services, api: httpx.AsyncClient, path: str, token: str, body: dict[str, str], sdid: str
) -> None:
    facts: list[ActionStored] = []
    services.core.router.subscribe(ActionStored, facts.append)
    answer = await post(api, path, token=token, data=ACTIONS, ts=5, **body)
    assert answer.status_code == 200, answer.text
    action = facts[0].action
    assert (action.mid, action.sdid, action.ddid, action.ts) == (answer.json()["data"]["mid"], sdid, HALL, 5)
    assert json.loads(action.data) == ACTIONS
    status = await get(api, f"/devices/{HALL}/status")
    assert status["data"]["lastActionTs"] == 5


@each_row(
    ("body", "expected"),
    [
        ({}, {"ddid": "Required parameter", "data": "Required parameter"}),
        ({"ddid": HALL, "data": {}}, {"data.actions": "Required parameter"}),
        ({"ddid": HALL, "data": {"actions": []}}, {"data.actions": "Required parameter"}),
        ({"ddid": HALL, "data": {"actions": {}}}, {"data.actions": INVALID}),
        ({"ddid": HALL, "data": {"actions": [{}]}}, {"data.actions.0.name": "Required parameter"}),
        ({"ddid": HALL, "data": {"actions": [{"name": 5}]}}, {"data.actions.0.name": "Text field only"}),
        ({"ddid": HALL, "data": ACTIONS, "type": "message"}, {"type": INVALID}),
    ],
)
async def test_findings_of_an_action_name_the_member(
    api: httpx.AsyncClient, body: dict[str, Any], expected: dict[str, str]
) -> None:
    assert findings(await post(api, "/actions", **body)) == expected


@each_row(
    ("token", "body", "status"),
    [
        (ADA_TOKEN, {"ddid": UNKNOWN}, 404),
        (ADA_TOKEN, {"ddid": HALL, "sdid": UNKNOWN}, 404),
        (ADA_TOKEN, {"ddid": BOBS}, 403),
        (ADA_TOKEN, {"ddid": HALL, "sdid": BOBS}, 403),
        (BOBS_TOKEN, {"ddid": HALL}, 403),
        (HALL_TOKEN, {"sdid": KITCHEN}, 403),
    ],
)
async def test_an_action_needs_write_on_both_devices(
    api: httpx.AsyncClient, token: str, body: dict[str, str], status: int
) -> None:
    assert (await post(api, "/actions", token=token, data=ACTIONS, **body)).status_code == status


async def test_a_disabled_device_gets_no_action(services: Services, world: World, api: httpx.AsyncClient) -> None:
    await disable(services, HALL)
    answer = await post(api, "/actions", ddid=HALL, data=ACTIONS)
    assert refusal(answer) == (403, 403, "Destination device is disconnected")


# GET /messages?mid=


async def test_a_search_by_mid_answers_a_flat_page(api: httpx.AsyncClient) -> None:
    mid = await sent(api)
    found = await get(api, "/messages", mid=mid)
    entries = found.pop("data")
    assert found == {"mid": mid, "uid": ADA, "sdid": KITCHEN, "count": 100, "order": "asc", "size": 1}
    assert entries[0]["mid"] == mid


@each_row("mid", ["0" * 32, "nonsense", UNKNOWN])
async def test_an_unknown_mid_is_an_empty_page(api: httpx.AsyncClient, mid: str) -> None:
    assert (await get(api, "/messages", mid=mid))["data"] == []
    assert (await get(api, "/messages", token=APPLICATION_TOKEN, mid=mid))["size"] == 0


@each_row(
    ("token", "query", "status", "size"),
    [
        (ADA_TOKEN, {}, 200, 1),
        (ADA_TOKEN, {"uid": ADA}, 200, 1),
        (ADA_TOKEN, {"uid": BOB}, 403, 0),
        (ADA_TOKEN, {"uid": UNKNOWN}, 404, 0),
        (BOB_TOKEN, {}, 403, 0),
        (BOB_TOKEN, {"uid": BOB}, 200, 0),
        (APPLICATION_TOKEN, {}, 200, 1),
        (APPLICATION_TOKEN, {"uid": ADA}, 200, 1),
        (APPLICATION_TOKEN, {"uid": BOB}, 403, 0),
        (KITCHEN_TOKEN, {}, 200, 1),
        (KITCHEN_TOKEN, {"uid": ADA}, 200, 1),
        (KITCHEN_TOKEN, {"uid": BOB}, 403, 0),
        (HALL_TOKEN, {}, 403, 0),
    ],
)
async def test_who_may_search_by_mid(
    api: httpx.AsyncClient, token: str, query: dict[str, str], status: int, size: int
) -> None:
    mid = await sent(api)
    answer = await api.get("/messages", headers=bearer(token), params={"mid": mid} | query)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["size"] == size
    if query.get("uid") == UNKNOWN:
        assert refusal(answer) == (404, 1201, "User does not exist.")


# GET /messages by range


async def test_a_range_is_inclusive_and_ordered_by_ts(api: httpx.AsyncClient) -> None:
    for ts in (30, 10, 20, 40):
        await sent(api, ts=ts)
    found = await by_range(api, sdid=KITCHEN, startDate=10, endDate=30)
    assert [entry["ts"] for entry in found.pop("data")] == [10, 20, 30]
    assert found == {
        "uid": ADA,
        "sdid": KITCHEN,
        "startDate": 10,
        "endDate": 30,
        "count": 100,
        "order": "asc",
        "size": 3,
    }
    descending = await by_range(api, sdid=KITCHEN, order="DESC")
    assert [entry["ts"] for entry in descending["data"]] == [40, 30, 20, 10]
    assert descending["order"] == "desc"


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_cursors_walk_there_and_back(api: httpx.AsyncClient, order: str) -> None:
    for ts in range(5):
        await sent(api, ts=ts)
    pages: list[list[int]] = []
    offset = "0"
    while True:
        page = await by_range(api, sdid=KITCHEN, order=order, count=2, offset=offset)
        assert ("prev" in page) is bool(pages)
        pages.append([entry["ts"] for entry in page["data"]])
        if "next" not in page:
            break
        offset = page["next"]
    there = [[0, 1], [2, 3], [4]] if order == "asc" else [[4, 3], [2, 1], [0]]
    assert pages == there
    back = await by_range(api, sdid=KITCHEN, order=order, count=2, offset=page["prev"])
    assert [entry["ts"] for entry in back["data"]] == there[1]


async def test_searches_have_their_own_headers(api: httpx.AsyncClient) -> None:
    for path in (f"/messages?mid={UNKNOWN}", f"/messages/last?sdids={KITCHEN}"):
        answer = await api.get(path, headers=bearer(ADA_TOKEN))
        assert answer.headers["content-type"] == "application/json"
        seconds, _, decimals = answer.headers["request-time"].partition(".")
        assert seconds.isdecimal()
        assert len(decimals) == 3


async def test_a_range_without_a_device_is_about_all_readable_ones(api: httpx.AsyncClient) -> None:
    for sdid, owner in ((KITCHEN, ADA_TOKEN), (HALL, ADA_TOKEN), (BOBS, BOB_TOKEN)):
        await post(api, token=owner, sdid=sdid, data=DATA)
    queries: list[tuple[str, dict[str, str], set[str]]] = [
        (ADA_TOKEN, {}, {KITCHEN, HALL}),
        (ADA_TOKEN, {"uid": ADA}, {KITCHEN, HALL}),
        (BOB_TOKEN, {}, {BOBS}),
        (APPLICATION_TOKEN, {"uid": ADA}, {KITCHEN, HALL}),
        (APPLICATION_TOKEN, {"sdid": HALL}, {HALL}),
        (KITCHEN_TOKEN, {}, {KITCHEN}),
        (KITCHEN_TOKEN, {"sdid": KITCHEN, "uid": ADA}, {KITCHEN}),
    ]
    for token, query, found in queries:
        page = await by_range(api, token=token, **query)
        assert {entry["sdid"] for entry in page["data"]} == found, (token, query)


@each_row(
    ("token", "query", "refused"),
    [
        (ADA_TOKEN, {"sdid": UNKNOWN}, (404, 404, "Not Found")),
        (ADA_TOKEN, {"sdid": BOBS}, (403, 403, f"You don't have the right permissions: READ on device {BOBS}")),
        (KITCHEN_TOKEN, {"sdid": HALL}, (403, 403, f"You don't have the right permissions: READ on device {HALL}")),
        (ADA_TOKEN, {"uid": UNKNOWN}, (404, 1201, "User does not exist.")),
        (ADA_TOKEN, {"sdid": KITCHEN, "uid": UNKNOWN}, (404, 1201, "User does not exist.")),
        (ADA_TOKEN, {"uid": BOB}, (403, 403, "You don't have the right permissions: access to this user")),
        (APPLICATION_TOKEN, {"uid": BOB}, (403, 403, "You don't have the right permissions: access to this user")),
    ],
)
async def test_a_range_of_others_is_refused(
    api: httpx.AsyncClient, token: str, query: dict[str, str], refused: tuple[int, int, str]
) -> None:
    answer = await api.get("/messages", headers=bearer(token), params={"startDate": "0", "endDate": "1"} | query)
    assert refusal(answer) == refused


@each_row(
    ("token", "query", "expected"),
    [
        (ADA_TOKEN, "", {"startDate": "Required parameter", "endDate": "Required parameter"}),
        (ADA_TOKEN, "startDate=&endDate=1", {"startDate": "Required parameter"}),
        (ADA_TOKEN, "startDate=a&endDate=1", {"startDate": "Numeric field only"}),
        (ADA_TOKEN, "startDate=2&endDate=1", {"startDate": INVALID}),
        (ADA_TOKEN, "startDate=0&endDate=1&count=0", {"count": "Minimum value 1"}),
        (ADA_TOKEN, "startDate=0&endDate=1&count=101", {"count": "Maximum value 100"}),
        (ADA_TOKEN, "startDate=0&endDate=1&order=up", {"order": INVALID}),
        (ADA_TOKEN, "startDate=0&endDate=1&offset=5", {"offset": INVALID}),
        (ADA_TOKEN, "startDate=0&endDate=1&offset=" + "A" * 200, {"offset": INVALID}),
        (ADA_TOKEN, "startDate=0&endDate=1&offset=%C3%A4", {"offset": INVALID}),
        (APPLICATION_TOKEN, "startDate=0&endDate=1", {"uid": "Required parameter"}),
    ],
)
async def test_findings_of_a_range_name_the_parameter(
    api: httpx.AsyncClient, token: str, query: str, expected: dict[str, str]
) -> None:
    assert findings(await api.get(f"/messages?{query}", headers=bearer(token))) == expected


async def test_stray_parameters_are_ignored(api: httpx.AsyncClient) -> None:
    await sent(api, ts=5)
    answer = await api.get(
        f"/messages??sdid={KITCHEN}&&foo&=x&startDate=9&startDate=0.9&endDate=9&%zz", headers=bearer(ADA_TOKEN)
    )
    assert answer.json()["startDate"] == 0
    assert answer.json()["size"] == 1


# GET /messages/last


async def test_the_last_messages_are_those_received_last(api: httpx.AsyncClient, fake_clock: FakeClock) -> None:
    for sdid, ts in ((KITCHEN, 30), (HALL, 10), (KITCHEN, 20)):
        fake_clock.advance(1)
        await sent(api, sdid=sdid, ts=ts)
    found = await get(api, "/messages/last", sdids=f"{KITCHEN}, ,{HALL},", count=2)
    assert [(entry["sdid"], entry["ts"]) for entry in found.pop("data")] == [(KITCHEN, 20), (HALL, 10)]
    assert found == {"sdids": f"{KITCHEN},{HALL}", "count": 2, "size": 2}


async def test_a_repeated_list_is_joined_and_each_device_counts_once(api: httpx.AsyncClient) -> None:
    await sent(api)
    answer = await api.get(f"/messages/last?sdids={KITCHEN}&sdids={KITCHEN}", headers=bearer(KITCHEN_TOKEN))
    assert answer.json()["sdids"] == f"{KITCHEN},{KITCHEN}"
    assert answer.json()["size"] == 1


async def test_the_last_messages_may_be_those_with_a_field(api: httpx.AsyncClient) -> None:
    await sent(api, data={"colorRGB": {"r": 1}})
    await sent(api, data={"state": True})
    found = await get(api, "/messages/last", sdids=KITCHEN, fieldPresence="colorRGB.r")
    assert [entry["data"] for entry in found["data"]] == [{"colorRGB": {"r": 1}}]
    assert (await get(api, "/messages/last", sdids=KITCHEN, fieldPresence="unknown"))["data"] == []


@each_row(
    ("query", "expected"),
    [
        ("", {"sdids": "Required parameter"}),
        ("sdids=,", {"sdids": "Required parameter"}),
        ("sdids=" + f"{KITCHEN}," * 101, {"sdids": "Maximum length 100"}),
        (f"sdids={KITCHEN}&count=ten", {"count": "Numeric field only"}),
        (f"sdids={KITCHEN}&fieldPresence=a%22b", {"fieldPresence": INVALID}),
        (f"sdids={KITCHEN}&fieldPresence=a[0]", {"fieldPresence": INVALID}),
    ],
)
async def test_findings_of_last_name_the_parameter(
    api: httpx.AsyncClient, query: str, expected: dict[str, str]
) -> None:
    assert findings(await api.get(f"/messages/last?{query}", headers=bearer(ADA_TOKEN))) == expected


@each_row(("sdids", "status"), [(UNKNOWN, 404), (f"{KITCHEN},{UNKNOWN}", 404), (BOBS, 403)])
async def test_last_of_others_is_refused(api: httpx.AsyncClient, sdids: str, status: int) -> None:
    answer = await api.get("/messages/last", headers=bearer(ADA_TOKEN), params={"sdids": sdids})
    assert answer.status_code == status
