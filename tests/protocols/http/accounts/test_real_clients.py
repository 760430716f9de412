"""Clients that others wrote complete every flow over real sockets: Authlib's, and requests-oauthlib.

The person's part (sign-in, consent) calls `Authorize` and `DeviceCodes`, as the pages do.
"""

import re
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pytest
import requests
import trio
from requests_oauthlib import OAuth2Session

from broker.accounts.authorize import AuthorizationRequest, Redirect
from config.settings import Address
from tests.broker.accounts.oauth_world import (
    CALLBACK,
    MOBILE,
    MOBILE_CALLBACK,
    PAGE,
    PAGE_CALLBACK,
    SECRETS,
    SERVER,
    TV,
    WEB,
    OAuthWorld,
)
from tests.factories import ADA
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Authlib warns about the version of httpx
    from authlib.common.errors import AuthlibBaseError
    from authlib.common.security import generate_token
    from authlib.integrations.httpx_client import AsyncOAuth2Client


@pytest.fixture
def token_url(door: Address) -> str:
    return f"http://{door}/accounts/token"


async def agree(oauth: OAuthWorld, url: str) -> str:
    """The URL that the browser is redirected to after Ada signed in and agreed."""
    decided = await oauth.services.accounts.authorize.read(urlsplit(url).query.encode())
    assert isinstance(decided, AuthorizationRequest), decided
    outcome = await oauth.services.accounts.authorize.allow(decided, oauth.ada.key)
    assert isinstance(outcome, Redirect)
    return outcome.url


async def whose(client: Any, door: Address) -> str:
    answer = await client.get(f"http://{door}/v1.1/users/self")
    assert answer.status_code == 200, answer.text
    user_id: str = answer.json()["data"]["id"]
    return user_id


@each_row("proof", ["client_secret_basic", "client_secret_post"])
async def test_authorization_code_and_refresh(
    door: Address, oauth: OAuthWorld, token_url: str, fake_clock: FakeClock, proof: str
) -> None:
    async with AsyncOAuth2Client(WEB, SECRETS[WEB], redirect_uri=CALLBACK, token_endpoint_auth_method=proof) as client:
        url, state = client.create_authorization_url(f"http://{door}/accounts/authorize")
        back = await agree(oauth, url)
        token = await client.fetch_token(token_url, authorization_response=back, state=state)
        assert await whose(client, door) == ADA
        refreshed = await client.refresh_token(token_url)
        assert refreshed["access_token"] != token["access_token"]
        assert await whose(client, door) == ADA
        fake_clock.advance(60_000)
        with pytest.raises(AuthlibBaseError, match="invalid_grant"):
            await client.refresh_token(token_url, token["refresh_token"])


# Refreshing over a lossy line


class Lossy:
    """A proxy between a client and the daemon: it takes the whole answer to the first `lost` requests, and cuts."""

    def __init__(self, door: Address, lost: int) -> None:
        self.lost = lost
        self._door = door

    async def serve(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream(self._door.host, self._door.port) as daemon:
            while request := await _receive(client):
                await daemon.send_all(request)
                answer = await _receive(daemon)
                if self.lost:
                    self.lost -= 1
                    return
                await client.send_all(answer)


async def _receive(stream: trio.SocketStream) -> bytes:
    """One request or answer with its body; empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := await stream.receive_some()):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    while length is not None and len(body) < int(length[1]):
        body += await stream.receive_some()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def lossy_proxy(door: Address, lost: int) -> AsyncIterator[str]:
    """The token endpoint behind a `Lossy`."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, Lossy(door, lost).serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/accounts/token"
        nursery.cancel_scope.cancel()


@each_row("lost", [1, 2])
async def test_authlib_goes_on_after_a_lost_answer(door: Address, oauth: OAuthWorld, lost: int) -> None:
    tokens = await oauth.user_tokens(WEB)
    async with lossy_proxy(door, lost) as url, AsyncOAuth2Client(WEB, SECRETS[WEB], token=tokens) as client:
        for _ in range(lost):
            with pytest.raises(httpx.TransportError):
                await client.refresh_token(url)
        await client.refresh_token(url)
        assert await whose(client, door) == ADA
        await client.refresh_token(url)  # the family lives
        assert await whose(client, door) == ADA


async def test_requests_oauthlib_goes_on_after_a_lost_answer(
    door: Address, oauth: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    session = OAuth2Session(WEB, token=await oauth.user_tokens(WEB))
    async with lossy_proxy(door, 1) as url:
        refresh = partial(session.refresh_token, url, auth=(WEB, SECRETS[WEB]))
        with pytest.raises(requests.ConnectionError):
            await trio.to_thread.run_sync(refresh)
        for _ in range(2):
            await trio.to_thread.run_sync(refresh)
            answer = await trio.to_thread.run_sync(session.get, f"http://{door}/v1.1/users/self")
            assert answer.json()["data"]["id"] == ADA
    session.close()


async def test_two_workers_that_refresh_at_once_get_the_same_tokens(
    door: Address, oauth: OAuthWorld, token_url: str
) -> None:
    tokens, found = await oauth.user_tokens(WEB), []

    async def worker() -> None:
        async with AsyncOAuth2Client(WEB, SECRETS[WEB], token=dict(tokens)) as client:
            new = await client.refresh_token(token_url)
            assert await whose(client, door) == ADA
            found.append((new["access_token"], new["refresh_token"]))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(worker)
    assert len(set(found)) == 1


async def test_pkce(door: Address, oauth: OAuthWorld, token_url: str) -> None:
    async with AsyncOAuth2Client(
        MOBILE, redirect_uri=MOBILE_CALLBACK, code_challenge_method="S256", token_endpoint_auth_method="none"
    ) as client:
        verifier = generate_token(48)
        url, state = client.create_authorization_url(f"http://{door}/accounts/authorize", code_verifier=verifier)
        back = await agree(oauth, url)
        assert back.startswith(f"{MOBILE_CALLBACK}?code=")
        await client.fetch_token(token_url, authorization_response=back, state=state, code_verifier=verifier)
        assert await whose(client, door) == ADA
        await client.refresh_token(token_url)
        assert await whose(client, door) == ADA


async def test_implicit_and_its_refresh(door: Address, oauth: OAuthWorld, token_url: str) -> None:
    async with AsyncOAuth2Client(PAGE, redirect_uri=PAGE_CALLBACK, token_endpoint_auth_method="none") as client:
        url, state = client.create_authorization_url(f"http://{door}/accounts/authorize", response_type="token")
        client.token_from_fragment(await agree(oauth, url), state)
        assert await whose(client, door) == ADA
        old = client.token["access_token"]
        await client.refresh_token(token_url, body=urlencode({"old_access_token": old}))
        assert client.token["access_token"] != old
        assert await whose(client, door) == ADA


async def test_client_credentials(door: Address, oauth: OAuthWorld, token_url: str) -> None:
    async with AsyncOAuth2Client(SERVER, SECRETS[SERVER]) as client:
        token = await client.fetch_token(token_url, grant_type="client_credentials")
        assert "refresh_token" not in token
        answer = await client.get(f"http://{door}/v1.1/users/self")
        assert answer.status_code == 403


async def test_limited_input(door: Address, oauth: OAuthWorld, token_url: str, fake_clock: FakeClock) -> None:
    async with AsyncOAuth2Client(TV, token_endpoint_auth_method="none") as client:
        started = (
            await client.request(
                "POST", f"http://{door}/accounts/device/code", data={"client_id": TV}, withhold_token=True
            )
        ).json()
        poll = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": started["device_code"]}
        with pytest.raises(AuthlibBaseError, match="authorization_pending"):
            await client.fetch_token(token_url, **poll)
        with pytest.raises(AuthlibBaseError, match="slow_down"):
            await client.fetch_token(token_url, **poll)
        waiting = await oauth.services.accounts.device_codes.find(started["user_code"], address="192.0.2.1")
        await oauth.services.accounts.device_codes.approve(waiting, oauth.ada.key, address="192.0.2.1")
        await client.fetch_token(token_url, **poll)
        assert await whose(client, door) == ADA
        await client.refresh_token(token_url)
        assert await whose(client, door) == ADA


async def test_a_client_configures_itself(door: Address, oauth: OAuthWorld) -> None:
    async with AsyncOAuth2Client(SERVER, SECRETS[SERVER]) as client:
        about = (
            await client.request("GET", f"http://{door}/.well-known/oauth-authorization-server", withhold_token=True)
        ).json()
        endpoint = urlsplit(about["token_endpoint"])
        # public_url is not set in tests, so the port is not the one that was bound.
        await client.fetch_token(f"http://{door}{endpoint.path}", grant_type="client_credentials")
        await client.revoke_token(f"http://{door}{urlsplit(about['revocation_endpoint']).path}")
        answer = await client.get(
            f"http://{door}/v1.1/accounts/tokenInfo", headers=bearer(client.token["access_token"])
        )
        assert answer.status_code == 401
