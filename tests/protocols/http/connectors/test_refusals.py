"""The refusals of provider authentication and of the connector paths; each changes nothing."""

from typing import Any

import httpx
import msgspec
import pytest

from broker.cluster.kinds import DEVICE
from broker.connectors.terms import ConnectorTerms
from broker.devices.shares import ShareStatus
from broker.services import Services
from storage.records import ShareRecord
from storage.transaction import Transaction
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS,
    HALL,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import (
    NOTIFICATIONS,
    PROVIDER_AUTH,
    REFERER,
    Browser,
    bind,
    query_of,
    signed,
)
from tests.rows import each_row
from tests.third_party_cloud import ACCOUNT, ThirdPartyCloud
from tests.wording import INVALID

pytestmark = pytest.mark.slow


CALLBACK = f"/cloudconnectors/{LIGHT_TYPE}/auth"
UNKNOWN = "ff" * 16


@each_row(
    ("method", "device", "token", "status"),
    [
        ("POST", UNKNOWN, ADA_TOKEN, 404),
        ("DELETE", UNKNOWN, ADA_TOKEN, 404),
        ("POST", BOBS, ADA_TOKEN, 403),
        ("DELETE", BOBS, ADA_TOKEN, 403),
        ("POST", KITCHEN, BOB_TOKEN, 403),
        ("POST", BOBS, APPLICATION_TOKEN, 403),
        ("POST", KITCHEN, HALL_TOKEN, 403),
        ("DELETE", KITCHEN, HALL_TOKEN, 403),
        ("POST", KITCHEN, "00" * 16, 401),
        ("DELETE", KITCHEN, "00" * 16, 401),
        ("POST", KITCHEN, ADA_TOKEN, 302),
        ("POST", KITCHEN, APPLICATION_TOKEN, 302),
        ("POST", KITCHEN, KITCHEN_TOKEN, 302),
        ("DELETE", KITCHEN, APPLICATION_TOKEN, 200),
        ("DELETE", KITCHEN, KITCHEN_TOKEN, 200),
    ],
)
async def test_who_may_link_and_unlink(
    api: httpx.AsyncClient, browser: Browser, method: str, device: str, token: str, status: int
) -> None:
    headers = bearer(token) | {"Referer": REFERER}
    answer = await api.request(method, f"/devices/{device}/providerauth", headers=headers)
    assert answer.status_code == status


@each_row("method", ["POST", "DELETE"])
@each_row("token", [ADA_TOKEN, APPLICATION_TOKEN])
async def test_users_of_a_share_and_their_applications_may_not_link_the_device(
    services: Services, world: World, api: httpx.AsyncClient, browser: Browser, method: str, token: str
) -> None:
    share = ShareRecord("5a" * 16, world.bobs, "ada@example.org", world.ada, ShareStatus.ACCEPTED, 1, None)

    def accept(tx: Transaction) -> None:
        tx.shares.put(share)
        tx.tell(DEVICE, world.bobs)

    await services.core.database.write(accept)
    headers = bearer(token) | {"Referer": REFERER}
    assert (await api.get(f"/devices/{BOBS}", headers=headers)).status_code == 200
    assert (await api.request(method, f"/devices/{BOBS}/providerauth", headers=headers)).status_code == 403


@each_row("method", ["POST", "DELETE"])
async def test_a_type_without_connector_is_a_conflict(api: httpx.AsyncClient, method: str) -> None:
    answer = await api.request(method, PROVIDER_AUTH, headers=bearer(ADA_TOKEN) | {"Referer": REFERER})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "Device type has no cloud connector.")


@each_row(
    "referer",
    [
        None,
        "",
        "https://evil.example.org/",
        "http://app.example.org/",
        "https://app.example.org.evil.org/",
        "https://app.example.org@evil.org/",
        r"https://evil.org\@app.example.org/",  # browsers take the backslash for a slash
        "//app.example.org/",
        "app.example.org",
        "https://[app.example.org",
        "https://app.example.org/" + "x" * 2000,
    ],
)
async def test_the_referer_must_be_of_the_application(
    api: httpx.AsyncClient, browser: Browser, referer: str | None
) -> None:
    headers = bearer(ADA_TOKEN) | ({} if referer is None else {"Referer": referer})
    answer = await api.post(PROVIDER_AUTH, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["errors"]) == (4001, [[{"field": "Referer", "messages": [INVALID]}]])


@each_row("referer", ["https://app.example.org/", "https://APP.example.org:8443/x?y#z"])
async def test_only_scheme_and_host_of_the_referer_count(browser: Browser, referer: str) -> None:
    assert (await browser.begin(headers={"Referer": referer})).status_code == 302


@each_row(
    "about",
    [
        {"data": {"token": ADA_TOKEN}},
        {"json": {"token": ADA_TOKEN}},
    ],
)
async def test_the_token_may_be_in_the_body(api: httpx.AsyncClient, browser: Browser, about: dict[str, Any]) -> None:
    answer = await api.post(PROVIDER_AUTH, headers={"Referer": REFERER}, **about)
    assert answer.status_code == 302


@each_row(
    ("path", "about", "page"),
    [
        (PROVIDER_AUTH, {}, "authorize"),
        (f"{PROVIDER_AUTH}?mobile=true", {}, "small"),
        (PROVIDER_AUTH, {"data": {"mobile": "true"}}, "small"),
        (PROVIDER_AUTH, {"json": {"mobile": True}}, "small"),
        (f"{PROVIDER_AUTH}?mobile=false", {"data": {"mobile": "true"}}, "authorize"),
    ],
)
async def test_mobile_asks_for_the_small_page(
    browser: Browser, world: World, cloud: ThirdPartyCloud, path: str, about: dict[str, Any], page: str
) -> None:
    await change_oauth2(browser.services, world, mobile_authorize_url=f"{cloud.url}/small")
    begun = await browser.begin(path=path, **about)
    assert begun.headers["Location"].startswith(f"{cloud.url}/{page}?")


async def test_mobile_that_is_no_boolean_is_refused(browser: Browser) -> None:
    for about in ({"path": f"{PROVIDER_AUTH}?mobile=perhaps"}, {"data": {"mobile": "perhaps"}}):
        answer = await browser.begin(**about)
        assert answer.json()["error"]["errors"] == [[{"field": "mobile", "messages": ["Boolean field only"]}]]


@each_row("body", [b"not json", b'{"mobile": 7}', b'{"token": 7}'])
async def test_an_invalid_body(api: httpx.AsyncClient, browser: Browser, body: bytes) -> None:
    assert (await browser.begin(content=body)).status_code == 400
    assert (await api.post(PROVIDER_AUTH, headers={"Referer": REFERER}, content=body)).status_code == 401


async def test_a_body_that_is_too_large(browser: Browser) -> None:
    assert (await browser.begin(content=b"x" * 20_000)).status_code == 413


async def change_oauth2(services: Services, world: World, **about: Any) -> None:
    connector = services.connectors.catalog.find(world.light_type)
    assert connector is not None
    assert connector.terms.oauth2 is not None
    changed: ConnectorTerms = msgspec.structs.replace(
        connector.terms, oauth2=msgspec.structs.replace(connector.terms.oauth2, **about)
    )
    await bind(services, changed)


# The return from the third party


def refused(answer: httpx.Response) -> bool:
    return answer.status_code == 400 and answer.json()["error"]["errors"] == [
        [{"field": "state", "messages": [INVALID]}]
    ]


@each_row("query", ["", "?state=", "?state=made-up&code=1", "?code=1"])
async def test_an_unknown_state(api: httpx.AsyncClient, browser: Browser, query: str) -> None:
    assert refused(await api.get(CALLBACK + query))


async def test_a_state_can_be_used_once(api: httpx.AsyncClient, browser: Browser) -> None:
    begun = await browser.begin()
    back = (await api.get(begun.headers["Location"])).headers["Location"]
    assert (await api.get(back)).status_code == 302
    assert refused(await api.get(back))
    assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"


async def test_a_state_expires(api: httpx.AsyncClient, browser: Browser, fake_clock: FakeClock) -> None:
    begun = await browser.begin()
    fake_clock.advance(600_000)
    assert refused(await browser.agree(begun))
    assert (await browser.device())["cloudAuthorization"] == "UNAUTHORIZED"


async def test_a_state_is_for_its_device_type(api: httpx.AsyncClient, browser: Browser) -> None:
    begun = await browser.begin()
    state = query_of(begun.headers["Location"])["state"]
    assert refused(await api.get(f"/cloudconnectors/{'dt' + 'ff' * 16}/auth?state={state}&code=1"))


async def test_a_state_ends_with_its_device(api: httpx.AsyncClient, browser: Browser) -> None:
    begun = await browser.begin()
    await api.delete(f"/devices/{KITCHEN}", headers=bearer(ADA_TOKEN))
    assert refused(await browser.agree(begun))


async def test_a_state_ends_when_the_authorization_is_revoked(api: httpx.AsyncClient, browser: Browser) -> None:
    begun = await browser.begin()
    await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    assert refused(await browser.agree(begun))


async def test_only_the_latest_states_of_a_device_are_kept(browser: Browser) -> None:
    first, *others = [await browser.begin() for _ in range(6)]
    assert refused(await browser.agree(first))
    assert (await browser.agree(others[-1])).headers["Location"] == REFERER


@each_row(
    ("query", "error"),
    [
        ("error=access_denied", "access_denied"),
        ("error=%3Cscript%3E", "server_error"),
        ("error=&code=1", "server_error"),
        ("code=made-up", "server_error"),
        ("", "server_error"),
    ],
)
async def test_a_refused_token_is_reported_to_the_application(
    api: httpx.AsyncClient, browser: Browser, query: str, error: str
) -> None:
    state = query_of((await browser.begin()).headers["Location"])["state"]
    back = await api.get(f"{CALLBACK}?state={state}&{query}")
    assert (back.status_code, back.headers["Location"]) == (302, f"{REFERER}&error={error}")
    assert (await browser.device())["cloudAuthorization"] == "UNAUTHORIZED"


async def test_a_user_who_denies_access(browser: Browser, cloud: ThirdPartyCloud) -> None:
    cloud.denies = True
    assert (await browser.authorize()).headers["Location"] == f"{REFERER}&error=access_denied"


async def test_a_callback_with_too_many_parameters(api: httpx.AsyncClient, browser: Browser) -> None:
    assert (await api.get(f"{CALLBACK}?{'a=1&' * 101}")).status_code == 400


# Notifications of third parties


@each_row(
    ("path", "status"),
    [
        (f"/cloudconnectors/{'dt' + 'ff' * 16}/thirdpartynotifications", 404),
        ("/cloudconnectors/x/thirdpartynotifications/y", 404),
    ],
)
async def test_a_notification_for_nobody(api: httpx.AsyncClient, browser: Browser, path: str, status: int) -> None:
    assert (await api.post(path, **signed({"changes": []}))).status_code == status


async def test_a_notification_for_a_type_without_connector(api: httpx.AsyncClient) -> None:
    assert (await api.post(NOTIFICATIONS)).status_code == 409


@each_row(
    ("about", "status"),
    [
        ({"content": b'{"changes":[]}'}, 403),
        ({"content": b'{"changes":[]}', "headers": {"X-Signature": "sha256=00"}}, 403),
        ({"content": b'{"changes":[]}', "headers": {"X-Signature": b"sha256=\xff"}}, 403),
        (signed({"changes": []}), 200),
        (signed({"other": []}), 400),
        (signed([1]), 400),
        (signed({"changes": [{"user": ACCOUNT, "on": True, "at": "yesterday"}]}), 200),
        (signed({"changes": [{"user": {}, "on": True}]}), 400),
        ({"content": b"x" * (256 * 1024 + 1)}, 413),
    ],
)
async def test_notifications_without_effect(
    api: httpx.AsyncClient, browser: Browser, about: dict[str, Any], status: int
) -> None:
    await browser.authorize()
    assert (await api.post(NOTIFICATIONS, **about)).status_code == status
    assert await browser.messages() == []


async def test_a_notification_of_an_account_that_nobody_linked(api: httpx.AsyncClient, browser: Browser) -> None:
    await browser.authorize()
    answer = await api.post(NOTIFICATIONS, **signed({"changes": [{"user": "eve@cloud", "on": True}]}))
    assert answer.status_code == 200
    assert await browser.messages() == []


async def test_a_challenge_is_answered(api: httpx.AsyncClient, browser: Browser) -> None:
    answer = await api.get(f"{NOTIFICATIONS}?challenge=%3Cb%3E42")
    assert (answer.status_code, answer.text) == (200, "<b>42")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_one_linked_device_does_not_reach_another(api: httpx.AsyncClient, browser: Browser) -> None:
    await browser.authorize()
    await api.post(NOTIFICATIONS, **signed({"changes": [{"user": ACCOUNT, "on": True, "at": 7}]}))
    assert await browser.messages(HALL) == []
