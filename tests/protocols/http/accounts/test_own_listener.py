"""accounts.tls_bind: the accounts paths at the root of a listener of their own, with links to the same listener."""

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from broker.mail import PasswordReset
from broker.services import Services
from config.settings import Accounts, Address, Limits, Settings
from protocols.http.server import serve_http
from tests.broker.accounts.oauth_world import CALLBACK, SERVER, TV, WEB, OAuthWorld, basic, query_of
from tests.factories import World
from tests.protocols.http.accounts.browser import Browser, Form, give_password
from tests.protocols.http.accounts.test_pages import cookies_of
from tests.protocols.http.certificates import contexts
from tests.rows import each_row

ASKED = {"client_id": WEB, "response_type": "code", "state": "s"}
PUBLIC = "https://accounts.example.org"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    limits = Limits(rate_limits="off", quotas="off")
    accounts = Accounts(tls_bind=Address("127.0.0.1", 0), public_url=f"{PUBLIC}/", signup="open")
    return Settings(state_dir=tmp_path, public_url="https://cloud.example.org", accounts=accounts, limits=limits)


@pytest.fixture
async def own(
    services: Services, world: World, oauth: OAuthWorld, nursery: trio.Nursery, tmp_path: Path
) -> AsyncIterator[Browser]:
    """Ada's browser, at the accounts server's own listener."""
    await give_password(services, oauth.ada)
    server, client = contexts(tmp_path)
    serve = partial(serve_http, services, connections=nursery, websocket=None, ssl_context=server, is_accounts=True)
    browser = Browser(await nursery.start(serve, Address("127.0.0.1", 0)), own=client)
    async with browser.client:
        yield browser


async def test_signing_in(own: Browser, oauth: OAuthWorld) -> None:
    shown = await own.open("authorize", **ASKED)
    assert Form(shown.text).action == "/login"
    assert '<link rel="stylesheet" href="/static/style.css">' in shown.text
    assert 'href="/signup?client_id=' in shown.text
    assert "/accounts" not in shown.text
    key = cookies_of(shown)["trunkline_form"]
    assert (key["path"], key["secure"]) == ("/", True)
    back = await own.sign_in(shown)
    code = query_of(back.headers["location"])["code"]
    assert back.headers["location"].startswith(f"{CALLBACK}?code=")
    form = {"grant_type": "authorization_code", "code": code}
    token = await own.client.post("token", data=form, headers={"Authorization": basic(WEB)})
    assert token.status_code == 200
    about = await own.client.get("tokenInfo", params={"token": token.json()["access_token"]})
    assert about.json()["data"]["user_id"] == oauth.ada.id
    assert (await own.client.get("checkSession")).status_code == 200
    assert (await own.open("logout", redirect_uri=CALLBACK)).status_code == 302
    assert (await own.client.get("checkSession")).status_code == 401


async def test_a_device(own: Browser) -> None:
    device = (await own.client.post("device/code", data={"client_id": TV})).json()
    assert device["verification_uri"] == device["verification_url"] == f"{PUBLIC}/go"
    assert device["verification_uri_complete"] == f"{PUBLIC}/go?user_code={device['user_code']}"
    back = await own.sign_in(await own.open("go", user_code=device["user_code"]))
    assert back.headers["location"] == f"/go?user_code={device['user_code']}"
    confirm = await own.send(await own.open(back.headers["location"]))
    assert "<h1>Device connected</h1>" in (await own.send(confirm, decision="allow")).text


async def test_discovery(own: Browser) -> None:
    answer = await own.client.get(".well-known/oauth-authorization-server")
    about = answer.json()
    assert about["issuer"] == PUBLIC
    assert {name: url for name, url in about.items() if name.endswith("_endpoint")} == {
        "authorization_endpoint": f"{PUBLIC}/authorize",
        "token_endpoint": f"{PUBLIC}/token",
        "device_authorization_endpoint": f"{PUBLIC}/device/code",
        "revocation_endpoint": f"{PUBLIC}/revokeToken",
    }
    assert answer.headers["access-control-allow-origin"] == "*"
    provider = (await own.client.get(".well-known/openid-configuration")).json()
    assert (provider["issuer"], provider["jwks_uri"]) == (PUBLIC, f"{PUBLIC}/jwks.json")
    assert (await own.client.get(".well-known/oauth-authorization-server/accounts")).status_code == 404


async def test_the_accounts_paths_of_the_common_listener_do_not_change(
    own: Browser, accounts: httpx.AsyncClient
) -> None:
    about = (await accounts.get(accounts.base_url.copy_with(path="/.well-known/oauth-authorization-server"))).json()
    assert about["token_endpoint"] == "https://cloud.example.org/accounts/token"
    device = (await accounts.post("/device/code", data={"client_id": TV})).json()
    assert device["verification_uri"] == "https://cloud.example.org/accounts/go"


@each_row("path", ["accounts/token", "v1.1/users/self", "v1.1/messages", "nothing"])
async def test_nothing_else_is_there(own: Browser, path: str) -> None:
    for answer in (await own.client.get(path), await own.client.post(path, data={"grant_type": "client_credentials"})):
        assert answer.status_code == 404
        assert answer.headers["cache-control"] == "no-store"


async def test_a_websocket_upgrade_is_not_found(own: Browser) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    for _ in range(2):  # the second time on a connection that has served one
        answer = await own.client.get("v1.1/live", headers=upgrade)
        assert answer.status_code == 404
    form = {"grant_type": "client_credentials"}
    token = await own.client.post("token", data=form, headers={"Authorization": basic(SERVER)})
    assert (token.status_code, token.headers["cache-control"]) == (200, "no-store")
    assert token.headers["access-control-allow-origin"] == "*"


async def test_mails_lead_to_where_the_accounts_server_is(own: Browser, services: Services) -> None:
    link = services.mail.compose("ada@example.org", PasswordReset(code="abc", expires_on=1), cause="test")
    text = services.core.vault.open(link.record.content or b"")
    assert re.search(rf"{PUBLIC}/reset\?code=abc", text) is not None
