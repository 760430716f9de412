"""An installed plug-in that signs its own requests, and third parties with OAuth 1."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.connectors.plugin import Request, Response
from broker.connectors.port import ThirdParty, ThirdPartyUnreachableError
from broker.connectors.terms import ConnectorTerms
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, World
from tests.plugin_distribution import install_plugins
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import (
    NOTIFICATIONS,
    PROVIDER_AUTH,
    REFERER,
    Browser,
    bind,
    pull,
    pull_forever,
    quiet,
)
from tests.rows import each_row
from tests.third_party_cloud import ACCOUNT

pytestmark = pytest.mark.slow


PLUGIN = """
from broker.connectors.plugin import ActionDefinition, ConnectorPlugin, Event, Notification, Notified, Request

class Clockwork(ConnectorPlugin):
    pulls = False

    def sign_and_prepare(self, request, device, phase):
        headers = {"X-Key": device.token.value, "X-Phase": phase.value}
        return Request(request.method, request.url, headers, request.body, request.tag)

    def subscribe(self, device):
        return [Request("PUT", "https://cloud.example/" + device.id)]

    def notification(self, request):
        if request.body == b"crash":
            raise SystemExit(1)
        ask = Request("GET", "https://cloud.example/state", tag="state")
        return Notification([Notified(device=request.query["did"], requests=[ask])], status=202, body=b"soon")

    def fetch_response(self, device, request, response):
        assert request.tag == "state"
        return [Event({"state": response.json()["on"]}, ts=5), ActionDefinition("setOn")]
"""
OAUTH2 = {
    "authorize_url": "https://cloud.example/authorize",
    "token_url": "https://cloud.example/token",
    "client_id": "us",
}
OAUTH1 = {
    "request_token_url": "https://cloud.example/request_token",
    "authorize_url": "https://cloud.example/authorize",
    "access_token_url": "https://cloud.example/access_token",
    "consumer_key": "us",
    "consumer_secret": "hush",
    "account_member": "user",
}


class Cloud:
    """A third party that answers by path."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.may_answer = trio.Event()
        self.answers: dict[str, bytes] = {
            "/token": b'{"access_token":"t1"}',
            "/request_token": b"oauth_token=rt&oauth_token_secret=rs&oauth_callback_confirmed=true",
            "/access_token": urlencode({"oauth_token": "at", "oauth_token_secret": "as", "user": ACCOUNT}).encode(),
            "/state": b'{"on":true}',
        }

    def asked_for(self, path: str) -> list[Request]:
        return [request for request in self.asked if urlsplit(request.url).path == path]

    async def send(self, request: Request) -> Response:
        self.asked.append(request)
        if "/pulled/" in request.url:
            await self.may_answer.wait()
        answer = self.answers.get(urlsplit(request.url).path, b"{}")
        if answer == b"nobody there":
            raise ThirdPartyUnreachableError("nobody is there")
        return Response(200, {}, answer)


@pytest.fixture
def outside() -> Cloud:
    return Cloud()


@pytest.fixture
def way_out(outside: Cloud) -> ThirdParty:
    return outside


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugins(
        tmp_path,
        monkeypatch,
        modules={"clockwork_plugin": PLUGIN},
        plugins={"clockwork": "clockwork_plugin:Clockwork"},
    )


async def come_back(browser: Browser, begun: httpx.Response, parameters: Mapping[str, str]) -> httpx.Response:
    """The browser returns from the third party's page with these parameters and the state."""
    query = parse_qs(urlsplit(begun.headers["Location"]).query)
    return await browser.api.get(f"{query['redirect_uri'][0]}?{urlencode({'state': query['state'][0], **parameters})}")


@pytest.fixture
async def linked(browser: Browser, world: World, _installed: None) -> Browser:
    await bind(browser.services, msgspec.convert({"plugin": "clockwork", "oauth2": OAUTH2}, ConnectorTerms))
    back = await come_back(browser, await browser.begin(), {"code": "c"})
    assert back.headers["Location"] == REFERER
    return browser


async def test_an_installed_plug_in_signs_by_itself(linked: Browser, outside: Cloud) -> None:
    (subscribed,) = outside.asked_for(f"/{KITCHEN}")
    assert subscribed.headers == {"X-Key": "t1", "X-Phase": "subscribe"}


async def test_a_plug_in_without_pulls_is_not_pulled(linked: Browser, outside: Cloud) -> None:
    await pull(linked.services)
    assert outside.asked_for("/state") == []


async def test_a_notification_may_send_requests(linked: Browser, outside: Cloud) -> None:
    answer = await linked.api.post(f"{NOTIFICATIONS}?did={KITCHEN}")
    assert (answer.status_code, answer.text) == (202, "soon")
    await quiet(linked.services)
    assert [one["data"] for one in await linked.messages()] == [{"state": True}]
    assert [one["data"] for one in await linked.actions()] == [{"actions": [{"name": "setOn"}]}]


async def test_a_notification_hook_that_crashes_is_answered_with_503(linked: Browser) -> None:
    for query, body in ((f"?did={KITCHEN}", b"crash"), ("", b"")):
        answer = await linked.api.post(f"{NOTIFICATIONS}{query}", content=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "Service Unavailable"
    assert linked.services.connectors.statistics().failed_notifications == 2


@pytest.fixture
async def oauth1(browser: Browser, world: World) -> Browser:
    await bind(browser.services, msgspec.convert({"oauth1": OAUTH1}, ConnectorTerms))
    return browser


def callback_of(request: Request) -> str:
    (found,) = [part for part in request.headers["Authorization"].split(", ") if "oauth_callback=" in part]
    return unquote(found.partition("=")[2].strip('"'))


async def test_a_third_party_that_speaks_oauth_1(oauth1: Browser, outside: Cloud) -> None:
    begun = await oauth1.begin()
    assert begun.headers["Location"] == "https://cloud.example/authorize?oauth_token=rt"
    callback = callback_of(outside.asked[0])
    assert not refused(await oauth1.api.get(f"{callback}&oauth_token=rt&oauth_verifier=v"))
    assert (await oauth1.device())["cloudAuthorization"] == "AUTHORIZED"


@pytest.mark.parametrize("parameters", ["", "&oauth_token=other&oauth_verifier=v", "&oauth_token=rt"])
async def test_a_verifier_for_another_request_token(oauth1: Browser, outside: Cloud, parameters: str) -> None:
    await oauth1.begin()
    back = await oauth1.api.get(callback_of(outside.asked[0]) + parameters)
    assert back.headers["Location"] == f"{REFERER}&error=access_denied"
    assert (await oauth1.device())["cloudAuthorization"] == "UNAUTHORIZED"


@each_row("answer", [b"", b"oauth_token=rt", b"nobody there"])
async def test_no_request_token_is_a_bad_gateway(oauth1: Browser, outside: Cloud, answer: bytes) -> None:
    outside.answers["/request_token"] = answer
    begun = await oauth1.api.post(PROVIDER_AUTH, headers=bearer(ADA_TOKEN) | {"Referer": REFERER})
    assert (begun.status_code, begun.json()["error"]["message"]) == (502, "Bad Gateway")


def refused(answer: httpx.Response) -> bool:
    location: Any = answer.headers.get("Location", "")
    return answer.status_code != 302 or "error=" in location


async def test_pulls_without_room_follow_when_there_is_room(
    browser: Browser, world: World, outside: Cloud, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.connectors.fetches._LOOK_SECONDS", inf)
    await nursery.start(pull_forever, browser.services.connectors.fetches)
    parameters = {"fetch": [{"url": "https://cloud.example/pulled/{did}", "payload": "@"}]}
    terms = msgspec.convert({"oauth2": OAUTH2, "parameters": parameters}, ConnectorTerms)
    await bind(browser.services, terms)
    devices = [KITCHEN]
    for number in range(20):
        new = {"dtid": LIGHT_TYPE, "name": f"Light {number}"}
        created = await browser.api.post("/devices", headers=bearer(ADA_TOKEN), json=new)
        devices.append(created.json()["data"]["id"])
    for device in devices:
        begun = await browser.begin(path=f"/devices/{device}/providerauth")
        assert (await come_back(browser, begun, {"code": "c"})).headers["Location"] == REFERER
    with trio.fail_after(60):
        while sum(len(outside.asked_for(f"/pulled/{device}")) for device in devices) < 8:
            await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    assert sum(len(outside.asked_for(f"/pulled/{device}")) for device in devices) == 8
    outside.may_answer.set()
    with trio.fail_after(60):
        while not all(outside.asked_for(f"/pulled/{device}") for device in devices):
            await trio.lowlevel.checkpoint()
