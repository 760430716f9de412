"""/users/self and the properties that applications keep about users."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from broker.errors import ValidationFailed
from broker.facts import UserProfileUpdated
from broker.services import Services
from storage.keys import Milliseconds
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    DASHBOARD,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

PATH = f"/users/{ADA}/properties"


async def test_the_profile_of_the_caller(api: httpx.AsyncClient) -> None:
    answer = await api.get("/users/self", headers=bearer(ADA_TOKEN))
    assert answer.json() == {
        "data": {
            "id": ADA,
            "name": "ada-example",
            "email": "ada@example.org",
            "fullName": "Ada",
            "accountType": "LOCAL",
            "createdOn": 1,
            "modifiedOn": 1,
        }
    }
    assert (await api.get("/users/self", headers=bearer(APPLICATION_TOKEN))).status_code == 403
    assert (await api.get("/users/self")).status_code == 401


def data(text: str) -> dict[str, Any]:
    return {"data": {"uid": ADA, "aid": DASHBOARD, "properties": text}}


@each_row("token", [ADA_TOKEN, APPLICATION_TOKEN])
@each_row("verb", ["POST", "PUT"])
async def test_the_life_of_properties(api: httpx.AsyncClient, token: str, verb: str) -> None:
    headers = bearer(token)
    for method in ("GET", "DELETE"):
        assert (await api.request(method, PATH, headers=headers)).status_code == 404
    for text in ("a", "ä" * 10_000, ""):
        answer = await api.request(verb, PATH, headers=headers, json={"uid": ADA, "aid": DASHBOARD, "properties": text})
        assert (answer.status_code, answer.json()) == (200, data(text))
        answer = await api.get(PATH, headers=headers, params={"aid": DASHBOARD})
        assert (answer.status_code, answer.json()) == (200, data(text))
    answer = await api.delete(PATH, headers=headers)
    assert (answer.status_code, answer.json()) == (200, data(""))
    assert (await api.get(PATH, headers=headers)).status_code == 404


async def test_self_is_the_user_of_the_token(api: httpx.AsyncClient) -> None:
    answer = await api.post("/users/self/properties", headers=bearer(ADA_TOKEN), json={"properties": "x"})
    assert answer.json() == data("x")
    answer = await api.get("/users/self/properties", headers=bearer(APPLICATION_TOKEN))
    assert answer.status_code == 404


@each_row(
    ("token", "path", "body", "status"),
    [
        (None, PATH, {"properties": "x"}, 401),
        (KITCHEN_TOKEN, PATH, {"properties": "x"}, 403),
        (BOB_TOKEN, PATH, {"properties": "x"}, 403),
        (ADA_TOKEN, "/users/" + "ff" * 16 + "/properties", {"properties": "x"}, 404),
        (APPLICATION_TOKEN, f"/users/{BOB}/properties", {"properties": "x"}, 403),  # he granted nothing
        (ADA_TOKEN, f"{PATH}?aid=" + "bb" * 16, {"properties": "x"}, 403),
        (ADA_TOKEN, PATH, {"properties": "x", "aid": "bb" * 16}, 403),
        (ADA_TOKEN, PATH, {"properties": "x", "aid": ""}, 403),
    ],
)
async def test_who_may_not(
    api: httpx.AsyncClient, token: str | None, path: str, body: Mapping[str, str], status: int
) -> None:
    headers = {} if token is None else bearer(token)
    answer = await api.post(path, headers=headers, json=body)
    assert answer.status_code == status


@each_row(
    ("body", "text"),
    [
        ({}, "Required parameter"),
        ({"properties": None}, "Required parameter"),
        ({"properties": 7}, "Text field only"),
        ({"properties": {"a": 1}}, "Text field only"),
        ({"properties": "x" * 10_001}, "Maximum length 10000"),
    ],
)
async def test_what_properties_cannot_be(api: httpx.AsyncClient, body: Mapping[str, object], text: str) -> None:
    answer = await api.put(PATH, headers=bearer(ADA_TOKEN), json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 4001
    assert answer.json()["error"]["errors"] == [[{"field": "properties", "messages": [text]}]]
    assert (await api.get(PATH, headers=bearer(ADA_TOKEN))).status_code == 404


async def test_a_changed_profile_is_a_fact(services: Services, world: World, fake_clock: FakeClock) -> None:
    facts: list[UserProfileUpdated] = []
    services.core.router.subscribe(UserProfileUpdated, facts.append)
    fake_clock.advance(5)
    renamed = {"users": [{"id": ADA, "email": "ADA@example.org", "full_name": "Ada L."}]}
    await services.provisioning.apply(renamed)
    changed = await services.accounts.users.find(ADA)
    assert (changed.full_name, changed.email, changed.modified_on) == ("Ada L.", "ada@example.org", NOW_MS + 5)
    assert facts == [UserProfileUpdated(world.ada, ADA, Milliseconds(NOW_MS + 5))]
    await services.provisioning.apply(renamed)
    taken = {"users": [{"id": ADA, "email": "BOB@example.org"}]}
    with pytest.raises(ValidationFailed, match="Validation Error"):
        await services.provisioning.apply(taken)
    assert len(facts) == 1
    await services.provisioning.apply({"users": [{"id": ADA, "email": "ada@new.example.org"}]})
    assert facts[1:] == [UserProfileUpdated(world.ada, ADA, Milliseconds(NOW_MS + 5))]
