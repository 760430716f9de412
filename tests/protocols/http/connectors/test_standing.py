"""Status of a connector for the developers of its type and for the operator (reference 27.21)."""

from typing import Any, Final

import httpx
import pytest

from broker.services import Services
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, BOB_TOKEN, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import NOTIFICATIONS, Browser, bind, pull, quiet, terms
from tests.protocols.http.connectors.test_failures import HOUR_MS, SET_ON, answering
from tests.protocols.http.connectors.test_restart import link
from tests.protocols.http.test_developer import set_role
from tests.third_party_cloud import ThirdPartyCloud

pytestmark = pytest.mark.slow


PATH: Final = f"/developer/devicetypes/{LIGHT_TYPE}/connector"


@pytest.fixture
async def ada(browser: Browser, world: World) -> Browser:
    """She is a developer of the lights' organization, too."""
    await set_role(browser.services, world, "developer")
    return browser


async def standing(browser: Browser) -> dict[str, Any]:
    answer = await browser.api.get(PATH, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    listed = await browser.api.get("/developer/organizations", headers=bearer(ADA_TOKEN))
    (organization,) = listed.json()["data"]["organizations"]
    lines = await browser.api.get(
        f"/developer/organizations/{organization['id']}/connectors", headers=bearer(ADA_TOKEN)
    )
    assert lines.json()["data"] == [{key: value for key, value in found.items() if key != "problems"}]
    return found


async def test_a_pull_that_fails_is_told_until_one_succeeds(
    ada: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    await ada.authorize()
    await pull(ada.services)
    good = {"dtid": LIGHT_TYPE, "name": "Smart Light", "status": "WORKING", "linked": 1, "problems": []}
    assert await standing(ada) == good
    cloud.answers["/readings"] = answering(b'{"error":"pin 1234"}', 503)
    fake_clock.advance(HOUR_MS)
    await pull(ada.services)
    begun_ms = fake_clock.clock.now_ms()
    fake_clock.advance(HOUR_MS)
    await pull(ada.services)
    found = await standing(ada)
    sentence, last_ms = "The third party answered 503.", begun_ms + HOUR_MS
    times = {"firstOn": begun_ms, "lastOn": last_ms, "times": 2}
    (problem,) = found["problems"]
    assert problem == {"did": KITCHEN, "doing": "fetch", "problem": sentence, **times}
    assert (found["status"], found["problem"], found["lastOn"]) == ("FAILING", sentence, last_ms)
    cloud.answers.clear()
    fake_clock.advance(HOUR_MS)
    await pull(ada.services)
    assert await standing(ada) == good


async def test_an_action_that_is_refused_is_told_until_one_is_taken(ada: Browser, cloud: ThirdPartyCloud) -> None:
    await ada.authorize()
    for status in (422, 200):
        cloud.answers = {path: answering(b"{}", status) for path in ("/lamps/", f"/lamps/{KITCHEN}")}
        answer = await ada.api.post("/actions", headers=bearer(ADA_TOKEN), json=SET_ON)
        assert answer.status_code == 200
        await quiet(ada.services)
        told = [(one["doing"], one["problem"]) for one in (await standing(ada))["problems"]]
        assert told == ([("action", "The third party answered 422.")] if status == 422 else [])


async def test_an_account_that_cannot_be_linked_is_told_but_not_that_its_user_denies_it(
    ada: Browser, cloud: ThirdPartyCloud
) -> None:
    cloud.denies = True
    await ada.authorize()
    assert (await standing(ada))["status"] == "WORKING"
    cloud.denies = False
    cloud.answers["/token"] = answering(b'{"error":"invalid_client"}', 401)
    await ada.authorize()
    (problem,) = (await standing(ada))["problems"]
    assert problem["doing"] == "authorization"
    assert "did" not in problem  # the next user who links a device shows that it works again
    assert problem["problem"].startswith("The third party refuses the client of this connector")
    cloud.answers.clear()
    await ada.authorize()
    assert (await standing(ada))["problems"] == []


async def test_what_fails_ends_with_the_link_and_with_the_device(ada: Browser, cloud: ThirdPartyCloud) -> None:
    for path in (f"/devices/{KITCHEN}/providerauth", f"/devices/{KITCHEN}"):
        cloud.answers["/readings"] = answering(b"no JSON")
        await ada.authorize()
        await pull(ada.services)
        found = await standing(ada)
        assert found["problem"].startswith("The connector's plug-in failed in its hook fetch_response;")
        assert found["linked"] == 1
        assert (await ada.api.delete(path, headers=bearer(ADA_TOKEN))).status_code == 200
        found = await standing(ada)
        assert (found["status"], found["problems"]) == ("WORKING", [])
    assert found["linked"] == 0


async def test_a_restart_forgets_nothing(
    opener: ServicesOpener, services: Services, world: World, cloud: ThirdPartyCloud
) -> None:
    del services
    async with opener() as first:
        await bind(first, terms(cloud))
        cloud.answers["/readings"] = answering(b"{}", 500)
        await link(first)
        await pull(first)
        (before,) = first.connectors.problems.of(first.connectors.types()[0].key)
    async with opener() as second:
        (after,) = second.connectors.problems.of(second.connectors.types()[0].key)
        assert after == before
        assert after.sentence == "The third party answered 500."


async def test_a_connector_whose_plug_in_is_gone_fails(
    ada: Browser, cloud: ThirdPartyCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.connectors.catalog.GENERIC", "no plug-in has this name")
    await ada.services.connectors.catalog.reload()
    found = await standing(ada)
    assert (found["status"], found["problems"]) == ("FAILING", [])
    assert found["problem"] == "The connector's plug-in cannot be used; the log of the operator has the reason."


async def test_only_developers_of_the_type_see_it(
    api: httpx.AsyncClient, services: Services, ada: Browser, world: World
) -> None:
    for token in (BOB_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN):
        assert (await api.get(PATH, headers=bearer(token))).status_code == 403, token
    await set_role(services, world, "viewer")
    assert (await api.get(PATH, headers=bearer(ADA_TOKEN))).status_code == 403


async def test_a_strangers_notification_is_no_failure(ada: Browser) -> None:
    """Whoever cannot sign it makes no noise on the developers' page."""
    for body in (b"", b"[" * 5_000, b'{"changes":[]}'):
        await ada.api.post(NOTIFICATIONS, content=body)
    assert (await standing(ada))["status"] == "WORKING"
