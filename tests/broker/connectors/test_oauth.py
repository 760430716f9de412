"""The OAuth client: its requests, and the answers it accepts. oauthlib is the server side of OAuth 1."""

from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import msgspec
import pytest
from oauthlib.oauth1 import RequestValidator, SignatureOnlyEndpoint

from broker.connectors.oauth import (
    AuthorizationRefusedError,
    OAuth1Client,
    OAuth2Client,
    OAuthClient,
    OperatorFaultError,
    TokenRevokedError,
    oauth_client,
)
from broker.connectors.plugin import AccessToken, Request, Response
from broker.connectors.terms import ConnectorTerms, OAuth1Terms, OAuth2Terms
from tests.rows import each_row

BACK = "https://we.example/auth"
OAUTH2 = OAuth2Terms(
    authorize_url="https://cloud.example/authorize?tenant=1",
    token_url="https://cloud.example/token",
    client_id="us",
    client_secret="hush",
    scope="a b",
    parameters={"access_type": "offline"},
    account_member="user",
)
CONSUMER, CONSUMER_SECRET = "consumerkeyofours", "consumer secret"
TOKEN, TOKEN_SECRET = "tokentokentoken", "token secret"
OAUTH1 = OAuth1Terms(
    request_token_url="https://cloud.example/request_token",
    authorize_url="https://cloud.example/authorize",
    access_token_url="https://cloud.example/access_token",
    consumer_key=CONSUMER,
    consumer_secret=CONSUMER_SECRET,
    account_member="user_id",
)
OLD = AccessToken(value="old", refresh="again", expires_on=5)


def terms(**about: Any) -> OAuth2Terms:
    changed: OAuth2Terms = msgspec.structs.replace(OAUTH2, **about)
    return changed


def answer(payload: object, status: int = 200) -> Response:
    return Response(status, {}, msgspec.json.encode(payload))


def start(client: OAuthClient, *, mobile: bool = False) -> tuple[dict[str, str], str]:
    started = client.start(redirect_uri=BACK, state="s", mobile=mobile, response=None)
    return dict(parse_qsl(urlsplit(started.url).query)), started.secret


# OAuth 2


def test_the_authorization_request() -> None:
    query, verifier = start(OAuth2Client(OAUTH2))
    challenge = query.pop("code_challenge")
    assert query == {
        "tenant": "1",
        "response_type": "code",
        "client_id": "us",
        "redirect_uri": BACK,
        "scope": "a b",
        "state": "s",
        "access_type": "offline",
        "code_challenge_method": "S256",
    }
    assert 43 <= len(verifier) <= 128
    assert len(challenge) == 43
    assert challenge != verifier


def test_without_pkce() -> None:
    client = OAuth2Client(terms(pkce=False))
    query, verifier = start(client)
    assert ("code_challenge" in query, verifier) == (False, "")
    request = client.exchange(redirect_uri=BACK, parameters={"code": "c"}, secret=verifier)
    assert b"code_verifier" not in request.body


def test_the_mobile_page() -> None:
    client = OAuth2Client(terms(mobile_authorize_url="https://m.cloud.example/"))
    started = client.start(redirect_uri=BACK, state="s", mobile=True, response=None)
    assert started.url.startswith("https://m.cloud.example/?")


@pytest.mark.parametrize(
    ("method", "header", "fields"),
    [
        ("client_secret_basic", "Basic dXM6aHVzaA==", set()),
        ("client_secret_post", None, {"client_id", "client_secret"}),
        ("none", None, {"client_id"}),
    ],
)
def test_client_authentication(method: str, header: str | None, fields: set[str]) -> None:
    client = OAuth2Client(terms(authentication=method))
    request = client.exchange(redirect_uri=BACK, parameters={"code": "c"}, secret="v")
    assert (request.method, request.url, request.headers.get("Authorization")) == ("POST", OAUTH2.token_url, header)
    body = parse_qs(request.body.decode())
    assert set(body) == {"grant_type", "redirect_uri", "code", "code_verifier"} | fields


def test_without_a_code_no_token_is_requested() -> None:
    with pytest.raises(AuthorizationRefusedError):
        OAuth2Client(OAUTH2).exchange(redirect_uri=BACK, parameters={}, secret="v")


def test_a_token() -> None:
    granted = OAuth2Client(OAUTH2).granted(
        answer({"access_token": "a", "refresh_token": "r", "expires_in": 60, "scope": "a", "user": 7}), now_ms=1000
    )
    assert granted.token == AccessToken(value="a", refresh="r", expires_on=61_000, scope="a")
    assert granted.account == "7"


@pytest.mark.parametrize("seconds", [None, "3600", True, -1, 1e300])
def test_an_invalid_expiry_is_ignored(seconds: object) -> None:
    granted = OAuth2Client(OAUTH2).granted(answer({"access_token": "a", "expires_in": seconds}), now_ms=1000)
    assert granted.token.expires_on is None


@each_row(
    "response",
    [
        answer({}),
        answer([]),
        answer({"access_token": ""}),
        answer({"access_token": 7}),
        answer({"access_token": "a", "refresh_token": 7}),
        answer({"access_token": "é"}),
        answer({"access_token": "a" * 20_000}),
        answer({"access_token": "a", "token_type": "mac"}),
        answer({"access_token": "a"}, 400),
        answer({"error": "invalid_grant"}, 400),
        Response(200, {}, b"access_token=a"),
        Response(200, {}, b"\xff"),
        Response(200, {}, b"[" * 5000),
        Response(302, {"location": "https://evil.example/"}, b"{}"),
    ],
)
def test_invalid_token_answers(response: Response) -> None:
    with pytest.raises(AuthorizationRefusedError):
        OAuth2Client(OAUTH2).granted(response, now_ms=0)


def test_refreshing() -> None:
    client = OAuth2Client(OAUTH2)
    request = client.refresh(OLD)
    assert request is not None
    assert parse_qs(request.body.decode()) == {"grant_type": ["refresh_token"], "refresh_token": ["again"]}
    assert client.refreshed(answer({"access_token": "n"}), OLD, now_ms=0) == AccessToken(value="n", refresh="again")
    assert client.refreshed(answer({"access_token": "n", "refresh_token": "m"}), OLD, now_ms=0).refresh == "m"
    assert client.refresh(AccessToken(value="v")) is None


@each_row(
    ("response", "error"),
    [
        (answer({"error": "invalid_grant"}, 400), TokenRevokedError),
        (answer({"error": "invalid_grant"}, 401), TokenRevokedError),
        (answer({"error": "invalid_token"}, 401), TokenRevokedError),
        (answer({"error": "invalid_client"}, 401), OperatorFaultError),
        (answer({"error": "invalid_client"}, 400), OperatorFaultError),
        (answer({"error": "unauthorized_client"}, 400), OperatorFaultError),
        (answer({}, 401), OperatorFaultError),
        (answer({"error": "invalid_request"}, 400), AuthorizationRefusedError),
        (answer({"error": "invalid_grant"}, 500), AuthorizationRefusedError),
        (answer({}, 503), AuthorizationRefusedError),
        (answer({}), AuthorizationRefusedError),
    ],
)
def test_errors_that_revoke_and_errors_that_may_pass(response: Response, error: type[Exception]) -> None:
    with pytest.raises(error):
        OAuth2Client(OAUTH2).refreshed(response, OLD, now_ms=0)


def test_a_bearer_token_is_added() -> None:
    signed = OAuth2Client(OAUTH2).sign(Request("GET", "https://cloud.example/", {"X": "1"}), OLD)
    assert signed.headers == {"X": "1", "Authorization": "Bearer old"}


# OAuth 1


class Cloud(RequestValidator):  # type: ignore[misc]
    """A server that knows the client and the token that it issued."""

    enforce_ssl = True
    nonce_length = 10, 100
    client_key_length = access_token_length = request_token_length = 10, 100

    def validate_client_key(self, client_key: str, _request: object) -> bool:
        return client_key == CONSUMER

    def get_client_secret(self, *_about: object) -> str:
        return CONSUMER_SECRET

    def get_access_token_secret(self, _client_key: str, token: str | None, _request: object) -> str:
        return TOKEN_SECRET if token == TOKEN else ""

    def validate_timestamp_and_nonce(self, *_about: object, **_more: object) -> bool:
        return True

    @property
    def dummy_client(self) -> str:
        return "nobody"


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "https://cloud.example/readings?b=2&a=1%202"),
        Request("POST", "https://cloud.example/lamps", {"Content-Type": "application/json"}, b'{"on": true}'),
        Request(
            "POST",
            "https://cloud.example/lamps",
            {"Content-Type": "application/x-www-form-urlencoded"},
            urlencode({"on": "yes & no", "z": "1"}).encode(),
        ),
    ],
)
def test_signatures_of_oauth_1_are_valid_for_oauthlib(request_: Request) -> None:
    signed = OAuth1Client(OAUTH1).sign(request_, AccessToken(value=TOKEN, secret=TOKEN_SECRET))
    assert (signed.method, signed.url, signed.body) == (request_.method, request_.url, request_.body)
    endpoint = SignatureOnlyEndpoint(Cloud())
    about = (signed.method, signed.body.decode(), dict(signed.headers))
    assert endpoint.validate_request(signed.url, *about)[0]
    assert not endpoint.validate_request(f"{signed.url}x", *about)[0]


def test_the_three_steps_of_oauth_1() -> None:
    client = OAuth1Client(OAUTH1)
    first = client.first_request(f"{BACK}?state=s")
    assert first.url == OAUTH1.request_token_url
    assert 'oauth_callback="https%3A%2F%2Fwe.example%2Fauth%3Fstate%3Ds"' in first.headers["Authorization"]
    assert SignatureOnlyEndpoint(Cloud()).validate_request(first.url, "POST", "", dict(first.headers))[0]

    given = urlencode({"oauth_token": TOKEN, "oauth_token_secret": TOKEN_SECRET, "oauth_callback_confirmed": "true"})
    response = Response(200, {}, given.encode())
    started = client.start(redirect_uri=BACK, state="s", mobile=False, response=response)
    assert started.url == f"{OAUTH1.authorize_url}?oauth_token={TOKEN}"

    came_back = {"oauth_token": TOKEN, "oauth_verifier": "seen", "state": "s"}
    second = client.exchange(redirect_uri=BACK, parameters=came_back, secret=started.secret)
    assert second.url == OAUTH1.access_token_url
    assert 'oauth_verifier="seen"' in second.headers["Authorization"]
    assert SignatureOnlyEndpoint(Cloud()).validate_request(second.url, "POST", "", dict(second.headers))[0]

    granted = client.granted(Response(200, {}, b"oauth_token=at&oauth_token_secret=as&user_id=42"), now_ms=0)
    assert (granted.token, granted.account) == (AccessToken(value="at", secret="as"), "42")


@pytest.mark.parametrize(
    "response",
    [
        None,
        Response(401, {}, b"oauth_token=a&oauth_token_secret=b&oauth_callback_confirmed=true"),
        Response(200, {}, b"oauth_token=a&oauth_token_secret=b"),
        Response(200, {}, b"oauth_token=a&oauth_callback_confirmed=true"),
        Response(200, {}, b"x" * 20_000),
    ],
)
def test_invalid_request_tokens(response: Response | None) -> None:
    with pytest.raises(AuthorizationRefusedError):
        OAuth1Client(OAUTH1).start(redirect_uri=BACK, state="s", mobile=False, response=response)


@pytest.mark.parametrize(
    "parameters",
    [{}, {"oauth_token": TOKEN}, {"oauth_verifier": "v"}, {"oauth_token": "other", "oauth_verifier": "v"}],
)
def test_a_callback_with_other_parameters_is_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(AuthorizationRefusedError):
        OAuth1Client(OAUTH1).exchange(redirect_uri=BACK, parameters=parameters, secret=f"{TOKEN} {TOKEN_SECRET}")


def test_only_the_user_renews_a_token_of_oauth_1() -> None:
    client = OAuth1Client(OAUTH1)
    client.refresh(OLD)
    with pytest.raises(TokenRevokedError):
        client.refreshed(answer({}), OLD, now_ms=0)


# Terms


@pytest.mark.parametrize("about", [{}, {"oauth2": OAUTH2, "oauth1": OAUTH1}])
def test_terms_have_one_way_to_authorize(about: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="oauth2 or oauth1"):
        oauth_client(ConnectorTerms(**about))


def test_terms_choose_the_client() -> None:
    assert isinstance(oauth_client(ConnectorTerms(oauth2=OAUTH2)), OAuth2Client)
    assert isinstance(oauth_client(ConnectorTerms(oauth1=OAUTH1)), OAuth1Client)


def test_a_refusal_of_the_client_is_told_from_one_of_the_token() -> None:
    one, two = OAuth1Client(OAUTH1), OAuth2Client(OAUTH2)
    rows: list[tuple[OAuthClient, str, bytes, bool]] = [
        (one, 'OAuth realm="x", oauth_problem="consumer_key_unknown"', b"", True),
        (one, "", b"oauth_problem=signature_invalid", True),
        (one, "", b"oauth_problem=token_rejected", False),
        (one, "", b"", False),
        (two, 'Bearer error="invalid_client"', b"", True),
        (two, 'Bearer error="invalid_token"', b"", False),
        (two, "", b"", False),
    ]
    for client, header, body, blames in rows:
        response = Response(401, {"www-authenticate": header}, body)
        assert client.blames_client(response) is blames, (header, body)
