"""POST /messages of devices with an Advanced Manifest: `data` may be anything."""

import json
from typing import Any

import httpx

from broker.services import Services
from tests.factories import KITCHEN_TOKEN, LIGHT_TYPE
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

FIELDS = [{"name": "temperature", "valueClass": "Double"}, {"name": "text", "valueClass": "String"}]
CSV = {"format": "csv", "columns": ["temperature"]}
BINARY = {"format": "binary", "encoding": "base64", "layout": [{"name": "temperature", "type": "int16"}]}
ANY_JSON = {"format": "json", "expression": "{text: to_string(@)}"}


@each_row(
    ("transform", "data", "stored"),
    [
        (CSV, "21.5", {"temperature": 21.5}),
        (CSV, 21.5, {"temperature": 21.5}),
        (BINARY, "AQA=", {"temperature": 256}),
        (ANY_JSON, [1, 2], {"text": "[1,2]"}),
        (ANY_JSON, {"a": 1}, {"text": '{"a":1}'}),
        (ANY_JSON, '{"a":1}', {"text": '{"a":1}'}),
        (ANY_JSON, True, {"text": "true"}),
        (CSV, "a,b", None),
    ],
)
async def test_whatever_comes_is_transformed(
    services: Services, api: httpx.AsyncClient, transform: dict[str, Any], data: object, stored: object
) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS, "transform": transform}, approve=True)
    answer = await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": data})
    assert answer.status_code == 200, answer.text
    mid = answer.json()["data"]["mid"]
    found = (await api.get(f"/messages?mid={mid}", headers=bearer(KITCHEN_TOKEN))).json()["data"]
    assert [message["data"] for message in found] == ([] if stored is None else [stored])


@each_row("body", [{}, {"data": None}])
async def test_nothing_is_refused_all_the_same(services: Services, api: httpx.AsyncClient, body: object) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS, "transform": CSV}, approve=True)
    error = (await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json=body)).json()["error"]
    assert error["errors"] == [[{"field": "data", "messages": ["Required parameter"]}]]


async def test_actions_are_objects_all_the_same(services: Services, api: httpx.AsyncClient) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS, "transform": CSV}, approve=True)
    actions = {"data": {"actions": [{"name": "setOn"}]}}
    for body, status in ((actions, 200), ({"data": json.dumps(actions["data"])}, 200), ({"data": "x"}, 400)):
        answer = await api.post("/actions", headers=bearer(KITCHEN_TOKEN), json=body)
        assert answer.status_code == status
