"""Rules of every REST call: tokens, CORS, methods, errors (reference 1 and 3)."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

import protocols.http
from broker.services import Services
from config.limits import MAX_BODY_BYTES, MAX_MESSAGE_BODY_BYTES
from protocols.http.application import build_app
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import Raw, bearer
from tests.rows import each_row
from tests.stores import drop_table

pytestmark = pytest.mark.slow


CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET, PUT, DELETE, OPTIONS",
    "access-control-allow-headers": (
        "Origin, X-Requested-With, Content-Type, Accept, Referer, User-Agent, Authorization, If-Match, Last-Event-ID"
    ),
}
DEVICE = f"/devices/{KITCHEN}"
MESSAGE = {"data": {"state": True}}


def error_of(answer: httpx.Response, status: int) -> dict[str, object]:
    """The error, when the answer has the documented form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    error: dict[str, object] = answer.json()["error"]
    assert re.fullmatch("[0-9a-f]{32}", str(error["id"]))
    return error


# Tokens


@each_row("authorization", ["bearer {}", "Bearer {}", "BEARER {}", "bearer    {}", "bearer \t {}"])
async def test_the_scheme_may_have_any_case_and_any_run_of_blanks(api: httpx.AsyncClient, authorization: str) -> None:
    answer = await api.get("/users/self", headers={"Authorization": authorization.format(ADA_TOKEN)})
    assert answer.status_code == 200


@each_row(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "bearer"},
        {"Authorization": ADA_TOKEN},
        {"Authorization": f"bearer{ADA_TOKEN}"},
        {"Authorization": f"basic {ADA_TOKEN}"},
        {"Authorization": f"bearer {ADA_TOKEN} more"},
        {"Authorization": f"bearer {ADA_TOKEN.upper()}x"},
        {"Authorization": "bearer " + "0" * 32},
    ],
)
async def test_without_a_valid_token_every_call_is_401(api: httpx.AsyncClient, headers: dict[str, str]) -> None:
    error = error_of(await api.get("/users/self", headers=headers), 401)
    assert (error["code"], error["message"]) == (401, "Please provide a valid authorization header")


async def test_an_expired_token_is_401(api: httpx.AsyncClient, fake_clock: FakeClock) -> None:
    fake_clock.advance(fake_clock.now)
    error_of(await api.get("/users/self", headers=bearer(ADA_TOKEN)), 401)


async def test_no_route_forgets_the_token(services: Services, api: httpx.AsyncClient) -> None:
    # The accounts calls have rules of their own (reference 2.2), and third parties have no tokens (2.12).
    # Receivers confirm subscriptions, and devices fetch images, without any (2.7, 2.10); the document needs no token.
    # The paths of a trial's sessions are switched off here, and unknown.
    others = r"subscriptions/<\w+>/validate|updates/urls/|openapi|trials/(<\w+>/)?sessions"
    rest = re.compile(f"/v1.1/(?!accounts/|cloudconnectors/|{others})")
    rules = [rule for rule in build_app(services).url_map.iter_rules() if rest.match(rule.rule)]
    assert len(rules) >= 7
    for rule in rules:
        path = re.sub("<[^>]+>", KITCHEN, rule.rule).removeprefix("/v1.1")
        for method in (rule.methods or set()) - {"OPTIONS", "HEAD"}:
            error_of(await api.request(method, path, content=b"not json"), 401)


async def test_no_route_compiles_the_functions_that_build_urls(services: Services) -> None:
    """Fails first when Werkzeug asks for them in another way than `protocols/http/application.py` expects."""
    for rule in build_app(services).url_map.iter_rules():
        for append_unknown in (False, True):
            with pytest.raises(NotImplementedError):
                rule.build({}, append_unknown)


@each_row(
    ("path", "token", "status"),
    [
        ("/users/self", ADA_TOKEN, 200),
        ("/users/self", APPLICATION_TOKEN, 403),
        ("/users/self", KITCHEN_TOKEN, 403),
        (DEVICE, ADA_TOKEN, 200),
        (DEVICE, APPLICATION_TOKEN, 200),
        (DEVICE, KITCHEN_TOKEN, 200),
        (DEVICE, HALL_TOKEN, 403),
    ],
)
async def test_each_call_takes_the_tokens_of_its_table(
    api: httpx.AsyncClient, path: str, token: str, status: int
) -> None:
    assert (await api.get(path, headers=bearer(token))).status_code == status


# Paths and methods


async def test_a_trailing_slash_is_ignored(api: httpx.AsyncClient) -> None:
    answer = await api.get(DEVICE + "/", headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200
    assert not answer.history


@each_row("path", ["/nope", "/users/self/more", f"//devices/{KITCHEN}", "/", "", "/users/%2e%2e/self"])
async def test_an_unknown_path_is_404(api: httpx.AsyncClient, path: str) -> None:
    error = error_of(await api.get(f"{api.base_url}".rstrip("/") + path), 404)
    assert (error["code"], error["message"]) == (404, "Not Found")


@each_row(
    ("method", "path", "allowed"),
    [
        ("POST", "/users/self", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PUT", "/messages", "DELETE, GET, HEAD, OPTIONS, POST"),
    ],
)
async def test_another_method_is_405(api: httpx.AsyncClient, method: str, path: str, allowed: str) -> None:
    answer = await api.request(method, path)
    error = error_of(answer, 405)
    assert (error["code"], error["message"]) == (405, "Method Not Allowed")
    assert answer.headers["allow"] == allowed


@each_row("path", ["/websocket", "/live", "/events", "/live/"])
async def test_a_websocket_path_takes_get_only(api: httpx.AsyncClient, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        answer = await api.request(method, path, headers={"Connection": "Upgrade", "Upgrade": "websocket"})
        error = error_of(answer, 405)
        assert (error["code"], error["message"]) == (405, "Method Not Allowed")
        assert answer.headers["allow"] == "GET"
    error_of(await api.get(path), 404)
    assert (await api.head(path)).status_code == 404
    preflight = await api.options(path)
    assert (preflight.status_code, preflight.content) == (200, b"")
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"


async def test_head_is_get_without_the_body(api: httpx.AsyncClient) -> None:
    got = await api.get(DEVICE, headers=bearer(ADA_TOKEN))
    head = await api.head(DEVICE, headers=bearer(ADA_TOKEN))
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(got.content))


async def test_options_needs_no_token(api: httpx.AsyncClient) -> None:
    answer = await api.options("/messages", headers={"Origin": "https://app.example.org"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert CORS.items() <= dict(answer.headers).items()


@each_row(("path", "token"), [(DEVICE, ADA_TOKEN), (DEVICE, "wrong"), ("/nope", "wrong")])
async def test_every_rest_answer_has_the_cors_headers(api: httpx.AsyncClient, path: str, token: str) -> None:
    answer = await api.get(path, headers=bearer(token))
    assert CORS.items() <= dict(answer.headers).items()


async def test_answers_are_compact_json(api: httpx.AsyncClient) -> None:
    answer = await api.get(DEVICE, headers=bearer(ADA_TOKEN))
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert '"name":"Kitchen light","manifestVersion":1' in answer.text


# Bodies


@each_row("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"])
async def test_bodies_are_json_whatever_the_content_type(api: httpx.AsyncClient, content_type: str | None) -> None:
    headers = bearer(KITCHEN_TOKEN) | ({"Content-Type": content_type} if content_type else {})
    assert (await api.post("/messages", headers=headers, content=b'{"data":{"state":true}}')).status_code == 200


async def test_an_empty_body_is_an_empty_object(api: httpx.AsyncClient) -> None:
    error = error_of(await api.post("/messages", headers=bearer(KITCHEN_TOKEN)), 400)
    assert error["errors"] == [[{"field": "data", "messages": ["Required parameter"]}]]


ENCODINGS = ["gzip", "GZIP", "deflate", "br", "zstd", "identity, gzip", "x"]


@each_row("encoding", ENCODINGS)
async def test_a_body_with_a_content_encoding_is_415_with_what_is_taken(api: httpx.AsyncClient, encoding: str) -> None:
    headers = bearer(KITCHEN_TOKEN) | {"Content-Encoding": encoding}
    packed = gzip.compress(b'{"data":{"state":true}}')
    for content in (packed, packed[:10], b"", b'{"data":{"state":true}}', in_chunks(MAX_MESSAGE_BODY_BYTES + 1)):
        answer = await api.post("/messages", headers=headers, content=content)
        assert "identity is taken" in str(error_of(answer, 415)["message"])
        assert answer.headers["Accept-Encoding"] == "identity"
    error_of(await api.post("/messages", headers=headers | bearer("wrong"), content=packed), 401)


async def test_the_encoding_that_changes_nothing_is_taken(api: httpx.AsyncClient) -> None:
    for encoding in ("identity", "Identity", "identity, identity", ""):
        headers = bearer(KITCHEN_TOKEN) | {"Content-Encoding": encoding}
        answer = await api.post("/messages", headers=headers, content=b'{"data":{"state":true}}')
        assert answer.status_code == 200


@each_row(
    ("method", "path"),
    [
        ("POST", "/v1.1/actions"),
        ("PUT", f"/v1.1/devices/{KITCHEN}"),
        ("POST", "/v1.1/messages/export"),
        ("POST", "/v1.1/devices"),
        ("POST", "/v1.1/accounts/token"),
        ("POST", "/accounts/token"),
        ("POST", "/accounts/device/code"),
        ("POST", "/accounts/revokeToken"),
    ],
)
async def test_no_path_reads_a_body_with_a_content_encoding(api: httpx.AsyncClient, method: str, path: str) -> None:
    url = api.base_url.copy_with(path=path)
    headers = bearer(ADA_TOKEN) | {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = await api.request(method, url, headers=headers, content=gzip.compress(b"{}"))
    assert answer.status_code == 415, answer.text


def test_bodies_are_read_in_one_place() -> None:
    """That place checks their length, their encoding and the room that there is."""
    readers = re.compile(r"(?<!\$)request\.(get_data|get_json|body|data|form|files|json|values)\b(?!#)")
    root = Path(protocols.http.__file__).parent
    found = {file.name for file in root.rglob("*.py") if readers.search(file.read_text(encoding="utf-8"))}
    assert found == {"bodies.py"}


async def in_chunks(size: int) -> AsyncIterator[bytes]:
    yield b'{"data":"'
    for _ in range(0, size, 4096):
        yield b"x" * 4096
    yield b'"}'


@each_row("size", [MAX_MESSAGE_BODY_BYTES + 1, MAX_BODY_BYTES + 1, 4 * MAX_BODY_BYTES])
async def test_a_long_body_is_413(api: httpx.AsyncClient, size: int) -> None:
    for content in (b" " * size, in_chunks(size)):
        error = error_of(await api.post("/messages", headers=bearer(KITCHEN_TOKEN), content=content), 413)
        assert (error["code"], error["message"]) == (413, "Request body too large")


async def test_a_long_body_of_a_stranger_is_401(api: httpx.AsyncClient) -> None:
    error_of(await api.post("/messages", content=b" " * MAX_BODY_BYTES), 401)


# Failures


async def test_a_refusal_has_its_error_id_in_the_log(api: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        error = error_of(await api.get(f"{DEVICE}?token={ADA_TOKEN}", headers=bearer(HALL_TOKEN)), 403)
    assert error["message"] == f"You don't have the right permissions: READ on device {KITCHEN}"
    assert [entry["error_id"] for entry in logs] == [error["id"]]
    assert ADA_TOKEN not in repr(logs)


async def test_a_bug_is_500_with_one_log_record(services: Services, world: World, api: httpx.AsyncClient) -> None:
    await services.core.database.write(lambda tx: tx.connection.execute("UPDATE manifest SET document = 'secret{'"))
    with capture_logs() as logs:
        answer = await api.get(DEVICE, headers=bearer(ADA_TOKEN))
    error = error_of(answer, 500)
    assert (error["code"], error["message"]) == (500, "Internal Server Error")
    assert [(entry["event"], entry["error_id"]) for entry in logs] == [("http_failed", error["id"])]
    assert "secret" not in answer.text


async def test_a_store_that_cannot_be_read_is_503(services: Services, world: World, api: httpx.AsyncClient) -> None:
    await services.core.database.write(lambda tx: drop_table(tx.connection, "presence"))
    answer = await api.get(f"{DEVICE}/status", headers=bearer(ADA_TOKEN))
    assert error_of(answer, 503)["message"] == "Service Unavailable"
    assert int(answer.headers["retry-after"]) > 0


async def test_a_store_that_cannot_be_written_is_503(services: Services, world: World, api: httpx.AsyncClient) -> None:
    await services.core.database.write(lambda tx: drop_table(tx.connection, "message"))
    answer = await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json=MESSAGE)
    assert error_of(answer, 503)["message"] == "Service Unavailable"
    assert int(answer.headers["retry-after"]) > 0


async def test_a_path_that_is_no_path_is_refused(raw: Raw) -> None:
    request = b"GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for target in (b"*", b"http://other/v1.1/nope", b"/v1.1/%ff%00", b"/v1.1/devices/%2f"):
        assert (await raw(request % target)).split(b" ")[1] == b"404"
    for target in (b"?a", b"v1.1/devices", b"ftp://a/v1.1", b"http://", b"a:443"):  # no target (RFC 9112, 3.2)
        assert (await raw(request % target)).split(b" ")[1] == b"400"
    assert (await raw(request % b"http://[/v1.1/nope")).split(b" ")[1] == b"404"


@each_row("path", [b"/v1.1/nope", b"/v1.1/n%6fpe"])  # the latter is not usual
async def test_a_host_that_is_none_is_refused(raw: Raw, path: bytes) -> None:
    request, last = b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for host in (b"a", b"a" * 63 + b":8080", b"b." * 90 + b"a.", b"[::1]:80", b"127.0.0.1", b"with_underscore"):
        assert (await raw(request % (path, host) + last)).split(b" ")[1] == b"404", host
    for host in (b"a" * 64, b"a..b", b"." + b"a" * 64 + b":80"):
        assert (await raw(request % (path, host))).split(b" ")[1] == b"400", host


@each_row("more", [{}, {"Connection": "close"}])  # the latter is not plain
async def test_the_root_with_a_capital_is_the_root(api: httpx.AsyncClient, world: World, more: dict[str, str]) -> None:
    """A proxy of the original service hard-codes `/V1.1` (reference 2)."""
    headers = bearer(ADA_TOKEN) | more
    root = str(api.base_url).rstrip("/").removesuffix("/v1.1") + "/V1.1"
    sent = await api.post(f"{root}/messages", headers=headers, json={"sdid": KITCHEN, "data": {"state": True}})
    assert sent.status_code == 200, sent.text
    found = await api.get(f"{root}/messages/last", params={"sdids": KITCHEN}, headers=headers)
    assert found.json()["data"][0]["mid"] == sent.json()["data"]["mid"]
    assert (await api.get(f"{root}/nothing", headers=headers)).status_code == 404
    assert (await api.put(f"{root}/messages", headers=headers)).status_code == 405
    assert (await api.post(f"{root}/websocket", headers=headers)).status_code == 405
