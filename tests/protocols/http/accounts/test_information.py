"""Token information, checks, revocation and discovery."""

import httpx
import pytest

from broker.facts import TokenRevoked
from broker.secrets import token_hash
from broker.services import Services
from tests.broker.accounts.oauth_world import SERVER, WEB, OAuthWorld, basic
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, DASHBOARD, KITCHEN, KITCHEN_TOKEN, NOW_MS
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


FAR_SECONDS = NOW_MS // 1000
UNAUTHORIZED = "Please provide a valid authorization header"


@each_row("path", ["/accounts/tokenInfo", "/v1.1/accounts/tokenInfo"])
@each_row(
    ("token", "about"),
    [
        (ADA_TOKEN, {"device_id": None, "user_id": ADA, "client_id": DASHBOARD, "expires_in": FAR_SECONDS}),
        (APPLICATION_TOKEN, {"device_id": None, "user_id": None, "client_id": DASHBOARD, "expires_in": FAR_SECONDS}),
        (KITCHEN_TOKEN, {"device_id": KITCHEN, "user_id": None, "client_id": DASHBOARD, "expires_in": -1}),
    ],
)
async def test_token_information(accounts: httpx.AsyncClient, path: str, token: str, about: dict[str, object]) -> None:
    url = accounts.base_url.copy_with(path=path)
    answer = await accounts.get(url, headers=bearer(token))
    assert (answer.status_code, answer.json()) == (200, {"data": about})
    assert answer.headers["cache-control"] == "no-store"
    other = ADA_TOKEN if token == KITCHEN_TOKEN else KITCHEN_TOKEN
    answer = await accounts.get(url, params={"token": token}, headers=bearer(other))  # the query has precedence
    assert answer.json() == {"data": about}


async def test_expires_in_is_what_is_left(
    accounts: httpx.AsyncClient, oauth: OAuthWorld, fake_clock: FakeClock
) -> None:
    token = (await oauth.user_tokens())["access_token"]
    fake_clock.advance(9_500)
    answer = await accounts.get("/tokenInfo", params={"token": token})
    assert answer.json()["data"]["expires_in"] == 1_209_590
    fake_clock.advance(1_209_600_000)
    assert (await accounts.get("/tokenInfo", params={"token": token})).status_code == 401


@each_row(
    ("method", "path"),
    [
        ("GET", "/accounts/tokenInfo"),
        ("GET", "/accounts/tokenInfo?token=" + "ff" * 16),
        ("GET", "/v1.1/accounts/tokenInfo"),
        ("GET", "/v1.1/accounts/tokenInfo?token=" + ADA_TOKEN),
        ("POST", "/accounts/checkToken"),
        ("POST", "/v1.1/accounts/checkToken"),
        ("POST", "/accounts/revokeToken"),
        ("PUT", "/accounts/revokeToken?token=" + "ff" * 16),
        ("PUT", "/accounts/revokeAccessToken?token=" + ADA_TOKEN),
        ("PUT", "/accounts/revokeAccessToken?client_credentials=" + APPLICATION_TOKEN),
    ],
)
async def test_without_a_valid_token(accounts: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await accounts.request(method, f"{accounts.base_url.copy_with(path='/')}{path[1:]}")
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == UNAUTHORIZED
    assert answer.headers["cache-control"] == "no-store"


@each_row("root", ["/accounts", "/v1.1/accounts"])
@each_row("form", [True, False])
async def test_a_token_is_checked(accounts: httpx.AsyncClient, root: str, form: bool) -> None:
    url = accounts.base_url.copy_with(path=f"{root}/checkToken")

    async def check(token: str) -> httpx.Response:
        body = {"token": token}
        return await (accounts.post(url, data=body) if form else accounts.post(url, json=body))

    answer = await check(ADA_TOKEN)
    assert (answer.status_code, answer.json()) == (200, {"data": {"message": "Token is valid"}})
    assert (await check("ff" * 16)).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("where", ["query", "form", "header"])
async def test_a_token_is_revoked_at_once(
    accounts: httpx.AsyncClient, services: Services, method: str, where: str
) -> None:
    revoked: list[bytes] = []
    services.core.router.subscribe(TokenRevoked, lambda fact: revoked.append(fact.hash))

    async def revoke() -> httpx.Response:
        if where == "query":
            return await accounts.request(method, "/revokeToken", params={"token": ADA_TOKEN})
        if where == "form":
            return await accounts.request(method, "/revokeToken", data={"token": ADA_TOKEN})
        return await accounts.request(method, "/revokeToken", headers=bearer(ADA_TOKEN))

    answer = await revoke()
    assert (answer.status_code, answer.json()) == (200, {"data": {"message": "Token successfully revoked"}})
    assert revoked == [token_hash(ADA_TOKEN)]
    assert (await accounts.get("/tokenInfo", params={"token": ADA_TOKEN})).status_code == 401
    assert (await revoke()).status_code == 401


async def test_a_device_token_is_not_revoked_here(accounts: httpx.AsyncClient) -> None:
    assert (await accounts.post("/revokeToken", headers=bearer(KITCHEN_TOKEN))).status_code == 403


async def test_an_application_revokes_tokens_of_its_own(accounts: httpx.AsyncClient, oauth: OAuthWorld) -> None:
    async def revoke(client_credentials: str, token: str) -> int:
        query = {"client_credentials": client_credentials, "token": token}
        return (await accounts.put("/revokeAccessToken", params=query)).status_code

    web = (await oauth.user_tokens(WEB))["access_token"]
    answer = await oauth.token(basic(SERVER), grant_type="client_credentials")
    server: str = answer.body["access_token"]
    assert await revoke(server, web) == 403
    assert await revoke(ADA_TOKEN, ADA_TOKEN) == 403
    assert await revoke("ff" * 16, web) == 401
    assert await revoke(APPLICATION_TOKEN, ADA_TOKEN) == 200
    assert await revoke(APPLICATION_TOKEN, ADA_TOKEN) == 401
    assert await revoke(server, server) == 200


@each_row(
    ("path", "issuer"),
    [
        ("/.well-known/oauth-authorization-server", "http://localhost"),
        ("/.well-known/oauth-authorization-server/accounts", "http://localhost/accounts"),
    ],
)
async def test_discovery(accounts: httpx.AsyncClient, path: str, issuer: str) -> None:
    answer = await accounts.get(accounts.base_url.copy_with(path=path))
    about = answer.json()
    assert about["issuer"] == issuer
    assert about["token_endpoint"] == "http://localhost/accounts/token"
    assert about["code_challenge_methods_supported"] == ["S256"]
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_discovery_of_the_openid_provider(accounts: httpx.AsyncClient, oauth: OAuthWorld) -> None:
    """It says only what is true: the addresses answer, and no more is offered than there is."""
    root = accounts.base_url.copy_with(path="/.well-known/openid-configuration")
    about = (await accounts.get(root)).json()
    assert (about["issuer"], about["userinfo_endpoint"]) == ("http://localhost", "http://localhost/accounts/userinfo")
    assert about["id_token_signing_alg_values_supported"] == ["RS256"]
    assert not any(about[f"{one}_parameter_supported"] for one in ("claims", "request", "request_uri"))
    (key,) = (await accounts.get("/jwks.json")).json()["keys"]
    assert key.keys() == {"kty", "n", "e", "kid", "use", "alg"}
    code = await oauth.code(scope="openid email")
    token = (await oauth.token(basic(WEB), grant_type="authorization_code", code=code)).body["access_token"]
    for method in ("GET", "POST"):
        answer = await accounts.request(method, "/userinfo", headers={"Authorization": f"Bearer {token}"})
        assert answer.json() == {"sub": oauth.ada.id, "email": oauth.ada.email, "email_verified": True}
    without = (await oauth.user_tokens(WEB))["access_token"]
    for offered, status, error in ((without, 403, "insufficient_scope"), ("f" * 32, 401, "invalid_token")):
        answer = await accounts.get("/userinfo", headers={"Authorization": f"Bearer {offered}"})
        assert (answer.status_code, f'error="{error}"' in answer.headers["WWW-Authenticate"]) == (status, True)


@each_row(
    ("method", "path", "is_withdrawn"),
    [
        ("GET", "/signin", True),
        ("GET", f"/signin?client_id={WEB}&response_type=code", True),
        ("GET", "/signout", True),
        ("PUT", "/revokeAccessToken", True),
        ("POST", "/signin", True),  # 405
        ("GET", f"/authorize?client_id={WEB}&response_type=code", False),
        ("GET", "/logout", False),
        ("POST", "/revokeToken", False),
        ("GET", "/signin/x", False),
    ],
)
async def test_withdrawn_paths_say_so(accounts: httpx.AsyncClient, method: str, path: str, is_withdrawn: bool) -> None:
    answer = await accounts.request(method, path)
    told = (answer.headers.get("deprecation"), answer.headers.get("sunset"))
    assert told == (("@1522540800", "Sun, 01 Apr 2018 00:00:00 GMT") if is_withdrawn else (None, None))
