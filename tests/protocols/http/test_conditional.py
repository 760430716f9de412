"""ETag and If-Match: who has not seen the present object does not overwrite it (reference 1.5)."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
import pytest
import trio

from broker.errors import ValidationFailed
from broker.services import Services
from protocols.http.conditional import expected_tags
from storage.records import GrantRecord
from tests.factories import ADA_TOKEN, HALL, KITCHEN, LIGHT_MANIFEST, LIGHT_TYPE, World, allow
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row

pytestmark = pytest.mark.slow


HEADERS: Final = bearer(ADA_TOKEN)
ON: Final = {"ddid": HALL, "action": "setOn", "parameters": {}}
WARM: Final = {"sdid": KITCHEN, "field": "temperature", "operator": ">", "operand": {"value": 25}}
OTHER: Final = dict(LIGHT_MANIFEST) | {"fields": [{"name": "other", "valueClass": "Integer"}]}
THIRD: Final = dict(LIGHT_MANIFEST) | {"fields": [{"name": "third", "valueClass": "Integer"}]}

#: Of each kind: the path to read, the call that changes, two changes, and where an answer shows the change.
Kind = tuple[str, str, str, dict[str, Any], dict[str, Any], Callable[[Any], Any]]
Maker = Callable[[httpx.AsyncClient, Services], Awaitable[Kind]]


async def made(api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await api.post(path, json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def named(path: str) -> Kind:
    return path, "PUT", path, {"name": "Mine"}, {"name": "Theirs"}, lambda data: data["name"]


async def a_rule(api: httpx.AsyncClient, _services: Services) -> Kind:
    body = {"name": "Warm", "rule": {"if": {"and": [WARM]}, "then": [ON]}}
    return named(f"/rules/{(await made(api, '/rules', body))['id']}")


async def a_scene(api: httpx.AsyncClient, _services: Services) -> Kind:
    return named(f"/scenes/{(await made(api, '/scenes', {'name': 'Evening', 'actions': [ON]}))['id']}")


async def a_trial(api: httpx.AsyncClient, _services: Services) -> Kind:
    return named(f"/trials/{(await made(api, '/trials', {'name': 'Sleep'}))['id']}")


async def an_application(api: httpx.AsyncClient, services: Services) -> Kind:
    organization = await services.core.database.read(lambda tx: tx.accounts.organization_named("Acme"))
    assert organization is not None
    body = {"name": "Board", "methods": ["pkce"], "redirectUris": [], "permissions": []}
    found = await made(api, f"/developer/organizations/{organization.id}/applications", body)
    return named(f"/developer/applications/{found['id']}")


async def a_manifest(api: httpx.AsyncClient, _services: Services) -> Kind:
    path = f"/devicetypes/{LIGHT_TYPE}/manifests"
    return path, "POST", path, {"manifest": OTHER}, {"manifest": THIRD}, shown_field


def shown_field(data: Any) -> str:
    """Of a list of versions or of one: what the newest one's first field stands for."""
    newest = data[0] if isinstance(data, list) else data
    return {"other": "Mine", "third": "Theirs"}[newest["manifest"]["fields"][0]["name"]]


KINDS: Final = [a_rule, a_scene, a_trial, an_application, a_manifest]


@pytest.fixture
async def ada(services: Services, world: World) -> None:
    """Ada administers Acme, and lets the Dashboard manage her trials."""
    acme = await services.core.database.read(lambda tx: tx.accounts.organization_named("Acme"))
    assert acme is not None
    await services.core.database.write(lambda tx: tx.accounts.set_role(acme.key, world.ada, "administrator"))
    await allow(
        services, GrantRecord(world.ada, world.application, None, read=True, write=True, profile=True, trials=True)
    )


@pytest.mark.parametrize("maker", KINDS)
async def test_the_later_of_two_changes_is_refused_with_what_there_is(
    api: httpx.AsyncClient, services: Services, ada: None, maker: Maker
) -> None:
    path, method, change, mine, theirs, shown = await maker(api, services)
    read = await api.get(path, headers=HEADERS)
    tag = read.headers["etag"]
    assert tag.startswith('"')
    assert "ETag" in read.headers["access-control-expose-headers"].split(", ")  # for pages of other origins
    first = await api.request(method, change, json=theirs, headers=HEADERS | {"If-Match": tag})
    assert first.status_code == 200, first.text
    late = await api.request(method, change, json=mine, headers=HEADERS | {"If-Match": tag})
    error_of(late, 412)
    assert shown(late.json()["data"]) == "Theirs"
    again = await api.get(path, headers=HEADERS)
    assert shown(again.json()["data"]) == "Theirs"
    assert late.headers["etag"] == again.headers["etag"] == first.headers["etag"] != tag
    # Whoever has seen it may.
    seen = await api.request(method, change, json=mine, headers=HEADERS | {"If-Match": f'"x", {again.headers["etag"]}'})
    assert seen.status_code == 200, seen.text
    assert shown((await api.get(path, headers=HEADERS)).json()["data"]) == "Mine"


@pytest.mark.parametrize("maker", KINDS)
async def test_without_the_header_and_with_any_tag_it_is_as_before(
    api: httpx.AsyncClient, services: Services, ada: None, maker: Maker
) -> None:
    path, method, change, mine, theirs, shown = await maker(api, services)
    for body, headers in ((theirs, {}), (mine, {"If-Match": "*"})):
        answer = await api.request(method, change, json=body, headers=HEADERS | headers)
        assert answer.status_code == 200, answer.text
    assert shown((await api.get(path, headers=HEADERS)).json()["data"]) == "Mine"


@pytest.mark.parametrize("maker", KINDS)
async def test_of_many_at_once_one_wins(api: httpx.AsyncClient, services: Services, ada: None, maker: Maker) -> None:
    path, method, change, mine, theirs, _shown = await maker(api, services)
    tag = (await api.get(path, headers=HEADERS)).headers["etag"]
    answers: list[int] = []

    async def put(body: dict[str, Any]) -> None:
        answers.append((await api.request(method, change, json=body, headers=HEADERS | {"If-Match": tag})).status_code)

    async with trio.open_nursery() as nursery:
        for body in (mine, theirs, mine, theirs):
            nursery.start_soon(put, body)
    assert sorted(answers) == [200, 412, 412, 412]


@each_row("header", ["x", '"x', "W/x", '"a" "b"', '"a",,"b"', '"a' + "x" * 1000 + '"'])
async def test_a_header_that_cannot_be_read_is_refused_by_name(header: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        expected_tags(header)
    assert [one.field for one in caught.value.findings] == ["If-Match"]


@each_row(
    ("header", "tags"), [("*", {"*"}), ('"a"', {"a"}), (' "a" , "b"', {"a", "b"}), ('W/"a", "b"', {"b"}), ('""', {""})]
)
def test_the_tags_of_a_header(header: str, tags: set[str]) -> None:
    assert expected_tags(header) == tags


async def test_a_tag_says_nothing_of_what_a_call_cannot_change(
    api: httpx.AsyncClient, services: Services, ada: None
) -> None:
    path, *_ = await a_rule(api, services)
    tag = (await api.get(path, headers=HEADERS)).headers["etag"]
    device = await services.devices.registry.find(KITCHEN)
    services.messages.ingest.submit(device, json.dumps({"temperature": 30}).encode())
    await services.messages.ingest.wait_committed()
    assert (await api.get(path, headers=HEADERS)).headers["etag"] == tag
