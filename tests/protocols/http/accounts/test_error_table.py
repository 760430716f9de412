"""The error table of /authorize (reference 3.3), row by row, as a browser sees it.

The one of /token is in tests/broker/accounts/test_oauth_grants.py and, over HTTP, in test_token.py.
"""

from typing import NoReturn
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from tests.broker.accounts.oauth_world import CALLBACK, MOBILE, PAGE, PAGE_CALLBACK, WEB, OAuthWorld
from tests.protocols.http.accounts.browser import Browser
from tests.protocols.http.accounts.test_pages import ask_for_their_locks
from tests.rows import each_row

STATE = "a b+ü/%"
CODE = {"client_id": WEB, "response_type": "code", "state": STATE}
IMPLICIT = {"client_id": PAGE, "response_type": "token", "state": STATE}
BOTH_FLOWS = pytest.mark.parametrize("asked", [CODE, IMPLICIT], ids=["code", "implicit"])


def told(answer: httpx.Response, asked: dict[str, str]) -> dict[str, str]:
    """The parameters of the redirect: in the query, or in the fragment of the implicit flow."""
    assert answer.status_code == 302
    location = urlsplit(answer.headers["location"])
    is_implicit = asked["response_type"] == "token"
    assert location._replace(query="", fragment="").geturl() == (PAGE_CALLBACK if is_implicit else CALLBACK)
    assert not (location.query if is_implicit else location.fragment)
    return dict(parse_qsl(location.fragment if is_implicit else location.query, strict_parsing=True))


@BOTH_FLOWS
async def test_400_redirect_uri(browser: Browser, asked: dict[str, str]) -> None:
    answer = await browser.open("authorize", **asked, redirect_uri="https://evil.example.org/")
    assert (answer.status_code, "location" in answer.headers) == (400, False)
    assert "Invalid parameter: redirect_uri" in answer.text


@BOTH_FLOWS
async def test_302_server_error(
    browser: Browser, oauth: OAuthWorld, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    shown = await browser.open("authorize", **asked)
    monkeypatch.setattr(oauth.services.accounts.authorize, "allow", _fail)
    assert told(await browser.sign_in(shown), asked) == {"error": "server_error", "state": STATE}


@BOTH_FLOWS
async def test_500_without_a_valid_redirect_uri(
    browser: Browser, oauth: OAuthWorld, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    monkeypatch.setattr(oauth.services.accounts.authorize, "read", _fail)
    answer = await browser.open("authorize", **asked)
    assert (answer.status_code, "location" in answer.headers) == (500, False)
    assert "Something went wrong here." in answer.text
    assert "the store is on fire" not in answer.text


@each_row(
    ("asked", "more"),
    [
        (CODE, "&prompt=never"),
        (CODE, "&prompt=login&prompt=login"),
        (CODE, "&code_challenge_method=S256"),
        (CODE, "&code_challenge=x&code_challenge_method=S256"),
        (IMPLICIT, "&prompt=never"),
        (IMPLICIT, "&account_type=a&account_type=b"),
    ],
)
async def test_302_invalid_request(browser: Browser, asked: dict[str, str], more: str) -> None:
    url = f"authorize?{httpx.QueryParams(asked)}{more}"
    assert told(await browser.open(url), asked) == {"error": "invalid_request", "state": STATE}


@each_row("missing", ["", "id_token"])
async def test_302_invalid_request_of_the_response_type(browser: Browser, missing: str) -> None:
    answer = await browser.open("authorize", **CODE | {"response_type": missing})
    assert told(answer, CODE) == {"error": "invalid_request", "state": STATE}


@each_row(
    ("client_id", "response_type", "begins"),
    [
        (WEB, "token", f"{CALLBACK}#"),
        (PAGE, "code", f"{PAGE_CALLBACK}?"),
        (MOBILE, "code", "myapp:///done?"),  # it has no secret, and sends no challenge
    ],
)
async def test_302_unauthorized_client(browser: Browser, client_id: str, response_type: str, begins: str) -> None:
    answer = await browser.open("authorize", client_id=client_id, response_type=response_type, state="s")
    assert (answer.status_code, answer.headers["location"]) == (302, f"{begins}error=unauthorized_client&state=s")


@BOTH_FLOWS
async def test_302_access_denied(browser: Browser, oauth: OAuthWorld, asked: dict[str, str]) -> None:
    await ask_for_their_locks(oauth, asked["client_id"])
    shown = await browser.sign_in(await browser.open("authorize", **asked))
    assert told(await browser.send(shown, decision="deny"), asked) == {"error": "access_denied", "state": STATE}


async def _fail(*_arguments: object, **_named: object) -> NoReturn:
    raise RuntimeError("the store is on fire")
