"""/token and /device/code on the wire: bodies, headers and where parameters come from."""

from collections.abc import AsyncIterator

import httpx
import pytest
import structlog

from broker.errors import StorageUnavailable
from broker.services import Services
from storage.sql import StoreError
from tests.broker.accounts.oauth_world import CALLBACK, PAGE, SECRETS, SERVER, TV, WEB, OAuthWorld, basic
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def check_headers(answer: httpx.Response, *, cors: bool = True) -> None:
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["pragma"] == "no-cache"
    assert answer.headers.get("access-control-allow-origin") == ("*" if cors else None)
    assert "access-control-allow-methods" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("x-rate-limit")]


async def test_a_token_answer(accounts: httpx.AsyncClient) -> None:
    answer = await accounts.post(
        "/token", data={"grant_type": "client_credentials"}, headers={"Authorization": basic(SERVER)}
    )
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.text.startswith('{"access_token":"')
    assert set(answer.json()) == {"access_token", "token_type", "expires_in"}
    check_headers(answer)


@each_row("headers", [{}, FORM, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}])
async def test_all_parameters_may_be_in_the_query(accounts: httpx.AsyncClient, headers: dict[str, str]) -> None:
    query = {"grant_type": "client_credentials", "client_id": SERVER, "client_secret": SECRETS[SERVER]}
    answer = await accounts.post("/token", params=query, headers=headers)
    assert answer.status_code == 200
    answer = await accounts.post("/device/code", params={"client_id": TV}, headers=headers)
    assert answer.status_code == 200


async def test_a_form_is_read_with_any_content_type(accounts: httpx.AsyncClient) -> None:
    answer = await accounts.post(
        "/token/?grant_type=password",
        content="grant_type=client_credentials",
        headers={"Content-Type": "text/plain", "Authorization": basic(SERVER)},
    )
    assert answer.status_code == 200


async def test_secrets_of_the_query_are_in_no_log(accounts: httpx.AsyncClient) -> None:
    query = {"grant_type": "nonsense", "client_id": WEB, "client_secret": "do-not-log-me"}
    with structlog.testing.capture_logs() as logs:
        await accounts.post("/token", params=query)
        await accounts.post("/revokeToken", params={"token": "do-not-log-me"})
        await accounts.get("/tokenInfo", params={"token": "do-not-log-me"})
    assert "do-not-log-me" not in repr(logs)


async def test_a_refusal_is_flat(accounts: httpx.AsyncClient) -> None:
    answer = await accounts.post("/token", data={"grant_type": "client_credentials", "client_id": SERVER})
    assert answer.status_code == 401
    assert answer.json() == {"error": "invalid_client", "error_description": "The client secret is missing"}
    assert answer.headers["www-authenticate"] == 'Basic realm="accounts"'
    check_headers(answer)


async def test_an_unknown_grant_type_is_a_redirect_with_a_body(accounts: httpx.AsyncClient) -> None:
    answer = await accounts.post("/token", data={"grant_type": "password", "client_id": WEB})
    assert (answer.status_code, answer.json()["error"]) == (302, "unsupported_grant_type")
    assert answer.headers["location"] == f"{CALLBACK}?error=unsupported_grant_type"
    answer = await accounts.post("/token", data={"grant_type": "password"})
    assert (answer.status_code, answer.json()["error"]) == (302, "unsupported_grant_type")
    assert "location" not in answer.headers


async def test_an_unexpected_failure_is_a_server_error(
    accounts: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: object, **_options: object) -> None:
        raise ValueError("device_code")

    with monkeypatch.context() as patch:
        patch.setattr(services.core.database, "write", fail)
        answer = await accounts.post("/device/code", data={"client_id": TV})
    assert (answer.status_code, answer.json()["error"]) == (400, "server_error")
    assert "device_code" not in answer.json()["error_description"]
    check_headers(answer)


@each_row(("method", "path", "status"), [("GET", "/token", 405), ("GET", "/nothing", 404)])
async def test_every_refusal_forbids_storing(accounts: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await accounts.request(method, path)
    assert answer.status_code == status
    check_headers(answer)


async def test_a_body_that_is_too_long(accounts: httpx.AsyncClient) -> None:
    answer = await accounts.post("/token", content=b"a" * (1024 * 1024 + 1), headers=FORM)
    assert answer.status_code == 413


# The refresh call of the REST root


async def test_an_implicit_token_is_refreshed_on_the_rest_root(api: httpx.AsyncClient, oauth: OAuthWorld) -> None:
    tokens = await oauth.user_tokens(PAGE)
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    answer = await api.post("/accounts/token", data=form, headers=bearer(tokens["access_token"]))
    assert answer.status_code == 200
    assert answer.json()["scope"] == "read,write"
    check_headers(answer, cors=False)


async def test_other_tokens_are_not_refreshed_on_the_rest_root(api: httpx.AsyncClient, oauth: OAuthWorld) -> None:
    tokens = await oauth.user_tokens(WEB)
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    answer = await api.post("/accounts/token", data=form, headers=bearer(tokens["access_token"]))
    assert answer.status_code == 400
    assert answer.json() == {"error": {"code": "invalid_request", "message": "This API works only with implicit apps."}}
    check_headers(answer, cors=False)


@each_row("path", ["/token", "/device/code"])
@each_row("is_known", [True, False])
async def test_a_body_that_is_too_long_is_a_flat_refusal_without_a_traceback(
    accounts: httpx.AsyncClient, path: str, is_known: bool
) -> None:
    """Whether its length is said before or not."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(33):
            yield b"a" * 32_768

    with structlog.testing.capture_logs() as logs:
        answer = await accounts.post(path, content=b"a" * (33 * 32_768) if is_known else pieces(), headers=FORM)
    assert (answer.status_code, answer.json()["error"]) == (413, "invalid_request")
    assert "exc_info" not in repr(logs)


@each_row("error", [StorageUnavailable, StoreError])
async def test_a_store_that_fails_is_temporarily_unavailable(
    accounts: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async def fail(*_arguments: object, **_options: object) -> None:
        raise error("the disk is full")

    form = {"grant_type": "client_credentials"}
    with monkeypatch.context() as patch:
        patch.setattr(services.core.database, "write", fail)
        answer = await accounts.post("/token", data=form, headers={"Authorization": basic(SERVER)})
    assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
    assert "disk" not in answer.text


SECRET_QUERIES = [
    {"client_id": SERVER, "client_secret": SECRETS[SERVER], "grant_type": "client_credentials"},
    {"client_id": WEB, "client_secret": "wrong", "grant_type": "client_credentials"},
    {"client_id": WEB, "code": "0" * 32, "grant_type": "authorization_code"},
    {"client_id": TV, "device_code": "x", "grant_type": "device_code"},
    {"refresh_token": "0" * 32, "grant_type": "refresh_token"},
    {"old_access_token": "0" * 32, "refresh_token": "0" * 32},
]


@each_row("path", ["/accounts/token", "/accounts/device/code", "/v1.1/accounts/token"])
@each_row("query", SECRET_QUERIES)
async def test_secrets_in_the_address_are_read_and_answered_with_a_warning(
    accounts: httpx.AsyncClient, path: str, query: dict[str, str]
) -> None:
    url = accounts.base_url.copy_with(path=path)
    with structlog.testing.capture_logs() as logs:
        misplaced, right = await accounts.post(url, params=query), await accounts.post(url, data=query)
    assert misplaced.headers["warning"].startswith('299 - "Secrets belong in the form body')
    assert "warning" not in right.headers
    assert misplaced.status_code == right.status_code
    assert not [name for name in ("client_secret", "code", "refresh_token") if query.get(name, "none") in repr(logs)]


async def test_what_is_no_secret_may_stand_in_the_address(accounts: httpx.AsyncClient) -> None:
    answer = await accounts.post("/device/code", params={"client_id": TV})
    assert (answer.status_code, "warning" in answer.headers) == (200, False)
