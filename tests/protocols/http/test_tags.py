"""Tags and categories: reference 8.1."""

import httpx
import pytest

from broker.services import Services
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, World, build_world
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.type_world import CAROL_TOKEN, add_types


@pytest.fixture
async def world(services: Services) -> World:
    world = await build_world(services.core.database, services.core.vault)
    await add_types(services.core.database, world)
    return world


async def tags(api: httpx.AsyncClient, path: str, token: str) -> list[tuple[str, bool]]:
    answer = await api.get(path, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    return [(tag["name"], tag["isCategory"]) for tag in answer.json()["data"]["tags"]]


CATEGORIES = ["automotive", "energy", "health", "home", "industrial", "media"]


async def test_the_categories(api: httpx.AsyncClient) -> None:
    assert await tags(api, "/tags/categories", APPLICATION_TOKEN) == [(name, True) for name in CATEGORIES]


@pytest.mark.both_engines
@each_row(
    ("path", "token", "found"),
    [
        ("/tags", ADA_TOKEN, ["battery", "home", "lamp", "wired"]),
        ("/tags", CAROL_TOKEN, ["battery", "home", "industrial", "wired"]),
        ("/tags?categories=home", ADA_TOKEN, ["battery", "home", "lamp", "wired"]),
        ("/tags?categories=industrial", ADA_TOKEN, []),
        ("/tags?categories=industrial,home", CAROL_TOKEN, ["battery", "home", "industrial", "wired"]),
        ("/tags?categories=", ADA_TOKEN, ["battery", "home", "lamp", "wired"]),
        ("/tags/suggestions", ADA_TOKEN, ["battery", "home", "lamp", "wired"]),
        ("/tags/suggestions?name=B", ADA_TOKEN, ["battery"]),
        ("/tags/suggestions?name=attery", ADA_TOKEN, []),
        ("/tags/suggestions?tags=battery", ADA_TOKEN, ["home", "wired"]),
        ("/tags/suggestions?tags=battery,home&name=w", ADA_TOKEN, ["wired"]),
        ("/tags/suggestions?tags=lamp,wired", ADA_TOKEN, []),
        ("/tags/suggestions?count=1", ADA_TOKEN, ["home"]),  # the one that is used most
        ("/tags/suggestions?entity_type=devicetype&entityType=other", ADA_TOKEN, ["battery", "home", "lamp", "wired"]),
    ],
)
async def test_tags(api: httpx.AsyncClient, path: str, token: str, found: list[str]) -> None:
    assert [name for name, _ in await tags(api, path, token)] == found


async def test_at_most_ten_are_suggested_unless_more_are_asked_for(api: httpx.AsyncClient, services: Services) -> None:
    await services.provisioning.apply(
        {
            "device_types": [
                {
                    "unique_name": "example.many",
                    "organization": "Acme",
                    "published": True,
                    "tags": [f"x{number:02}" for number in range(15)],
                }
            ]
        }
    )
    assert len(await tags(api, "/tags/suggestions?name=x", ADA_TOKEN)) == 10
    assert len(await tags(api, "/tags/suggestions?name=x&count=12", ADA_TOKEN)) == 12


@each_row("query", ["count=0", "count=101", "count=x"])
async def test_a_wrong_count_is_refused(api: httpx.AsyncClient, query: str) -> None:
    answer = await api.get(f"/tags/suggestions?{query}", headers=bearer(ADA_TOKEN))
    assert answer.json()["error"]["errors"][0][0]["field"] == "count"


async def test_what_is_too_long_for_a_tag_suggests_nothing(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may be longer than a head may be."""
    monkeypatch.setattr("protocols.http.heads.HEAD_BYTES", 64 * 1024)
    assert await tags(api, f"/tags/suggestions?name={'_' * 26_000}", ADA_TOKEN) == []
