"""/users/…/applications: seeing and revoking the applications that act for a user (reference 5.4)."""

from typing import Any

import httpx
import pytest

from broker.services import Services
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    DASHBOARD,
    KITCHEN,
    LIGHT_TYPE,
    PANEL,
    World,
    build_world,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


PANEL_TOKEN = "3c" * 16  # Ada's, too
PATH = "/users/self/applications"
OF_DASHBOARD = {
    "aid": DASHBOARD,
    "name": "Dashboard",
    "organization": "Acme",
    "permissions": [{"dtid": LIGHT_TYPE, "permissions": ["READ", "WRITE"]}],
}
OF_PANEL = {"aid": PANEL, "name": "Panel", "organization": "Acme", "permissions": []}
PROFILE = {"dtid": "profile", "permissions": ["READ", "WRITE"]}


@pytest.fixture
async def world(services: Services) -> World:
    world = await build_world(services.core.database, services.core.vault)
    token = {"value": PANEL_TOKEN, "application": PANEL, "user": "ada@example.org"}
    await services.provisioning.apply({"tokens": [token]})
    return world


async def give_profile(services: Services, application: str = PANEL) -> None:
    """As by a permission screen on which the application asked for it."""
    entry = {"user": "ada@example.org", "application": application, "device_type": "profile", "permissions": ["WRITE"]}
    await services.provisioning.apply({"grants": [entry]})


async def listed(api: httpx.AsyncClient, token: str) -> list[dict[str, Any]]:
    answer = await api.get(PATH, headers=bearer(token))
    assert answer.status_code == 200
    return [without_words(one) for one in answer.json()["data"]["applications"]]


def without_words(application: dict[str, Any]) -> dict[str, Any]:
    """They are in tests/broker/accounts/test_consent_words.py."""
    assert application["howLong"]
    assert f"devices of the types of {application['organization']} (Smart Light" in application["sentences"][-1]
    return {name: value for name, value in application.items() if name not in {"sentences", "howLong"}}


async def test_an_application_sees_itself(api: httpx.AsyncClient) -> None:
    assert await listed(api, ADA_TOKEN) == [OF_DASHBOARD]
    assert await listed(api, PANEL_TOKEN) == [OF_PANEL]
    assert await listed(api, BOB_TOKEN) == [OF_PANEL]


async def test_an_application_that_may_change_the_profile_sees_all(api: httpx.AsyncClient, services: Services) -> None:
    await give_profile(services)
    assert await listed(api, PANEL_TOKEN) == [OF_DASHBOARD, OF_PANEL | {"permissions": [PROFILE]}]
    assert await listed(api, BOB_TOKEN) == [OF_PANEL], "Ada's, not Bob's"


async def test_an_application_that_manages_trials_says_so(api: httpx.AsyncClient, services: Services) -> None:
    entry = {"user": "ada@example.org", "application": PANEL, "device_type": "trials", "permissions": ["WRITE"]}
    await services.provisioning.apply({"grants": [entry]})
    assert (await listed(api, PANEL_TOKEN))[0]["permissions"] == [{"dtid": "trials", "permissions": ["READ", "WRITE"]}]


async def test_an_application_revokes_itself(api: httpx.AsyncClient) -> None:
    answer = await api.delete(f"{PATH}/{DASHBOARD}", headers=bearer(ADA_TOKEN))
    assert (answer.status_code, without_words(answer.json()["data"])) == (200, OF_DASHBOARD)
    assert (await api.get(PATH, headers=bearer(ADA_TOKEN))).status_code == 401
    # The application's own token has lost what came from Ada, and nothing else ended.
    for path in (f"/devices/{KITCHEN}", f"/users/{ADA}/devices"):
        assert (await api.get(path, headers=bearer(APPLICATION_TOKEN))).status_code == 403
    assert await listed(api, PANEL_TOKEN) == [OF_PANEL]


async def test_only_who_may_change_the_profile_revokes_another_application(
    api: httpx.AsyncClient, services: Services
) -> None:
    path = f"{PATH}/{DASHBOARD}"
    assert (await api.delete(path, headers=bearer(PANEL_TOKEN))).status_code == 403
    assert await listed(api, ADA_TOKEN) == [OF_DASHBOARD]
    await give_profile(services)
    revoked = (await api.delete(path, headers=bearer(PANEL_TOKEN))).json()
    assert without_words(revoked["data"]) == OF_DASHBOARD
    assert (await api.get(PATH, headers=bearer(ADA_TOKEN))).status_code == 401
    assert (await api.delete(path, headers=bearer(PANEL_TOKEN))).status_code == 404, "nothing is granted any more"


@each_row(
    ("token", "path", "status"),
    [
        (BOB_TOKEN, f"/users/{ADA}/applications/{PANEL}", 403),
        (ADA_TOKEN, f"/users/{BOB}/applications/{PANEL}", 403),
        (ADA_TOKEN, f"{PATH}/{'f' * 32}", 404),
        (ADA_TOKEN, f"/users/{'f' * 32}/applications/{DASHBOARD}", 404),
        (APPLICATION_TOKEN, f"/users/{ADA}/applications/{DASHBOARD}", 403),
    ],
)
async def test_refusals(api: httpx.AsyncClient, token: str, path: str, status: int) -> None:
    assert (await api.delete(path, headers=bearer(token))).status_code == status
    assert await listed(api, ADA_TOKEN) == [OF_DASHBOARD]
