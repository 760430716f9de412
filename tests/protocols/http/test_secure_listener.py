"""The secure listener over real TLS: who gets in, and registering there (reference 1.2 and 7.1)."""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import wrap_client_stream

from broker.services import Services
from config.settings import Address
from protocols.http.server import serve_http
from protocols.streams.hub import Hub
from protocols.streams.tls import PeerContext
from protocols.websocket.server import serve_websocket_connection
from tests.certificates import DAY, Authority, Issued
from tests.factories import ADA, ADA_TOKEN, BOB_TOKEN, HALL, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.protocols.http.certificates import contexts
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type

pytestmark = pytest.mark.slow


Open = Callable[[Issued | None], AbstractAsyncContextManager[httpx.AsyncClient]]
BEGIN = {"deviceTypeId": SECURE_TYPE, "vendorDeviceId": "vendor-1"}


@dataclass(frozen=True)
class Listener:
    address: Address
    folder: Path

    def context(self, issued: Issued | None) -> ssl.SSLContext:
        """Of a client that trusts the listener and has this certificate."""
        context = ssl.create_default_context(cafile=str(self.folder / "cert.pem"))
        if issued is not None:
            context.load_cert_chain(*issued.files(self.folder, "client"))
        return context

    async def connect(self, issued: Issued) -> trio.SSLStream[trio.SocketStream]:
        return await trio.open_ssl_over_tcp_stream(
            self.address.host, self.address.port, ssl_context=self.context(issued), https_compatible=True
        )


@pytest.fixture
def authority() -> Authority:
    return Authority(now=NOW)


@pytest.fixture
def issued(authority: Authority) -> Issued:
    return authority.issue()


@pytest.fixture
async def listener(
    services: Services, world: World, authority: Authority, nursery: trio.Nursery, tmp_path: Path
) -> Listener:
    await provision_secure_type(services, authority)
    contexts(tmp_path)
    serve = partial(
        serve_http,
        services,
        Address("127.0.0.1", 0),
        nursery,
        websocket=partial(serve_websocket_connection, services, hub=Hub(nursery, services.core.life)),
        ssl_context=PeerContext(tmp_path / "cert.pem", tmp_path / "key.pem", required=True),
        is_secure=True,
    )
    return Listener(await nursery.start(serve), tmp_path)


@pytest.fixture
def secure(listener: Listener) -> Open:
    """Clients of the secure listener, each with a certificate of its own."""

    @asynccontextmanager
    async def open_client(issued: Issued | None) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(
            base_url=f"https://{listener.address}/v1.1", verify=listener.context(issued)
        ) as client:
            yield client

    return open_client


@dataclass(frozen=True)
class Registered:
    issued: Issued
    token: str
    id: str
    rid: str


@pytest.fixture
async def board(secure: Open, api: httpx.AsyncClient, issued: Issued) -> Registered:
    """A device that has registered, as devices and people do it."""
    async with secure(issued) as client:
        begun = (await client.post("/cert/devices/registrations", json=BEGIN)).json()["data"]
        pin = {"pin": begun["pin"], "deviceName": "Board"}
        confirmed = await api.put("/devices/registrations/pin", json=pin, headers=bearer(ADA_TOKEN))
        assert confirmed.json() == {"data": {"rid": begun["rid"]}}
        path = f"/cert/devices/registrations/{begun['rid']}"
        done = (await client.put(path, json={"nonce": begun["nonce"]})).json()["data"]
    return Registered(issued, done["accessToken"], done["did"], begun["rid"])


def fields_of(error: Any) -> list[str]:
    return [finding["field"] for finding in error["errors"][0]]


# Admission


@each_row("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_nobody_gets_in_without_a_certificate(listener: Listener, version: ssl.TLSVersion) -> None:
    context = listener.context(None)
    context.minimum_version = context.maximum_version = version
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        async with httpx.AsyncClient(verify=context) as client:
            await client.get(f"https://{listener.address}/v1.1/users/self", headers=bearer(ADA_TOKEN))


@each_row("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@each_row("kind", ["ec", "rsa"])
async def test_whoever_has_one_gets_in_whoever_issued_it(
    listener: Listener, version: ssl.TLSVersion, kind: Any
) -> None:
    context = listener.context(Authority("Anybody", now=NOW).issue(kind=kind))
    context.minimum_version = context.maximum_version = version
    async with httpx.AsyncClient(verify=context) as client:
        answer = await client.get(f"https://{listener.address}/v1.1/users/self", headers=bearer(ADA_TOKEN))
    assert answer.json()["data"]["id"] == ADA


async def test_a_chain_that_no_device_has_is_refused(listener: Listener, issued: Issued) -> None:
    others = tuple(Authority(f"Other {n} " + "x" * 40, now=NOW).own.certificate for n in range(60))
    long = Issued(issued.certificate, issued.key, others)
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        async with httpx.AsyncClient(verify=listener.context(long)) as client:
            await client.get(f"https://{listener.address}/v1.1/users/self", headers=bearer(ADA_TOKEN))


async def test_a_session_is_resumed(listener: Listener, issued: Issued) -> None:
    context = listener.context(issued)

    async def speak(session: ssl.SSLSession | None) -> trio.SSLStream[trio.SocketStream]:
        tcp = await trio.open_tcp_stream(listener.address.host, listener.address.port)
        stream = trio.SSLStream(tcp, context, server_hostname="127.0.0.1", https_compatible=True)
        if session is not None:
            stream.session = session
        await stream.send_all(b"GET /v1.1/users/self HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"401" in await stream.receive_some(65_536)
        return stream

    async with await speak(None) as first:
        session = first.session
    async with await speak(session) as second:
        assert second.session_reused


# Registering


async def test_a_device_registers_and_shows_what_it_registered_with(
    api: httpx.AsyncClient, secure: Open, issued: Issued
) -> None:
    async with secure(issued) as client:
        answer = await client.post("/cert/devices/registrations", json=BEGIN)
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        begun = answer.json()["data"]
        assert set(begun) == {"rid", "pin", "nonce", "expiresOn"}
        status = f"/cert/devices/registrations/{begun['rid']}/status"
        assert (await client.get(status)).json() == {"data": {"status": "PENDING_USER_CONFIRMATION"}}

        confirmed = await api.put(
            "/devices/registrations/pin", json={"pin": begun["pin"], "deviceName": "Board"}, headers=bearer(ADA_TOKEN)
        )
        assert confirmed.json() == {"data": {"rid": begun["rid"]}}
        pending = (await client.get(status)).json()["data"]
        assert pending["status"] == "PENDING_DEVICE_COMPLETION"
        users_view = await api.get(f"/devices/registrations/{begun['rid']}/status", headers=bearer(ADA_TOKEN))
        assert users_view.json() == {"data": pending}

        answer = await client.put(f"/cert/devices/registrations/{begun['rid']}", json={"nonce": begun["nonce"]})
        assert answer.headers["cache-control"] == "no-store"
        done = answer.json()["data"]
        assert done == {"accessToken": done["accessToken"], "uid": ADA, "did": pending["did"]}
        assert (await client.get(status)).json() == {"data": {"status": "REGISTERED", "did": done["did"]}}

    record = (await api.get(f"/devices/{done['did']}", headers=bearer(ADA_TOKEN))).json()["data"]
    assert record["certificateInfo"]["Cert-CN"] == "device-1"
    assert record["certificateSignature"] == issued.certificate.signature.hex()
    assert (record["name"], record["dtid"]) == ("Board", SECURE_TYPE)


@each_row(
    ("body", "fields"),
    [
        ({}, ["deviceTypeId", "vendorDeviceId"]),
        ({"deviceTypeId": SECURE_TYPE}, ["vendorDeviceId"]),
        ({"deviceTypeId": SECURE_TYPE, "vendorDeviceId": "x" * 65}, ["vendorDeviceId"]),
        ({"deviceTypeId": SECURE_TYPE, "vendorDeviceId": "a\nb"}, ["vendorDeviceId"]),
        ({"deviceTypeId": LIGHT_TYPE, "vendorDeviceId": "a"}, ["deviceTypeId"]),
        ({"deviceTypeId": 1, "vendorDeviceId": {}}, ["deviceTypeId", "vendorDeviceId"]),
    ],
)
async def test_what_is_wrong_with_the_first_call_is_named(
    secure: Open, issued: Issued, body: dict[str, Any], fields: list[str]
) -> None:
    async with secure(issued) as client:
        error = error_of(await client.post("/cert/devices/registrations", json=body), 400)
    assert (error["code"], fields_of(error)) == (4001, fields)


async def test_refusals_on_the_devices_side(
    secure: Open, authority: Authority, issued: Issued, board: Registered
) -> None:
    registration = f"/cert/devices/registrations/{board.rid}"
    unknown = BEGIN | {"deviceTypeId": "dt" + "00" * 16}
    async with secure(issued) as client:
        assert error_of(await client.post("/cert/devices/registrations", json=unknown), 404)["code"] == 1101
        error_of(await client.post("/cert/devices/registrations", content=b"{"), 400)
        error_of(await client.post("/cert/devices/registrations", json=BEGIN), 409)
        error_of(await client.get("/cert/devices/registrations/unknown/status"), 404)
        error_of(await client.put(registration, json={"nonce": "wrong"}), 403)
        assert error_of(await client.put(registration, json={}), 400)["code"] == 4001
        error_of(await client.get("/cert/devices/registrations"), 405)
    async with secure(authority.issue("device-2")) as other:
        error_of(await other.post("/cert/devices/registrations", json=BEGIN), 409)
        error_of(await other.get(f"{registration}/status"), 403)
        error_of(await other.put(registration, json={}), 403)
    for stranger in (
        Authority(now=NOW).issue(),
        authority.issue(starts=-3 * DAY, ends=-DAY),
        Authority("device-1", now=NOW, extensions=()).own,
    ):
        async with secure(stranger) as client:
            error_of(await client.post("/cert/devices/registrations", json=BEGIN | {"vendorDeviceId": "v-9"}), 403)


async def test_the_devices_calls_are_on_no_other_listener(api: httpx.AsyncClient, listener: Listener) -> None:
    error_of(await api.post("/cert/devices/registrations", json=BEGIN), 404)
    error_of(await api.get("/cert/devices/registrations/x/status"), 404)
    error_of(await api.put("/cert/devices/registrations/x", json={}), 404)


# The user's calls

PIN = "/devices/registrations/pin"


@each_row(
    ("body", "fields"),
    [
        ({}, ["pin", "deviceName"]),
        ({"pin": "ABCDEFGH"}, ["deviceName"]),
        ({"pin": "ABCDEFGH", "deviceName": "<"}, ["deviceName"]),
        ({"pin": "ABCDEFGH", "deviceName": "x" * 65}, ["deviceName"]),
        ({"pin": "ABCDEFGH", "deviceName": "x", "deviceId": HALL}, ["deviceId"]),
        ({"pin": 1, "deviceName": 2}, ["pin", "deviceName"]),
    ],
)
async def test_what_is_wrong_with_a_confirmation_is_named(
    api: httpx.AsyncClient, listener: Listener, body: dict[str, Any], fields: list[str]
) -> None:
    error = error_of(await api.put(PIN, json=body, headers=bearer(ADA_TOKEN)), 400)
    assert (error["code"], fields_of(error)) == (4001, fields)


async def test_refusals_on_the_users_side(
    api: httpx.AsyncClient, secure: Open, authority: Authority, board: Registered
) -> None:
    ada, bob, device = bearer(ADA_TOKEN), bearer(BOB_TOKEN), bearer(KITCHEN_TOKEN)
    async with secure(authority.issue("device-2")) as client:
        body = BEGIN | {"vendorDeviceId": "vendor-2"}
        pin = (await client.post("/cert/devices/registrations", json=body)).json()["data"]["pin"]
    for answer, status in (
        (await api.put(PIN, json={"pin": pin, "deviceName": "x"}), 401),
        (await api.put(PIN, json={"pin": pin, "deviceName": "x"}, headers=device), 403),
        (await api.put(PIN, json={"pin": "WRONGPIN", "deviceName": "x"}, headers=ada), 404),
        (await api.put(PIN, json={"pin": pin, "deviceId": "00" * 16}, headers=ada), 404),
        (await api.put(PIN, json={"pin": pin, "deviceId": KITCHEN}, headers=bob), 403),
        (await api.put(PIN, json={"pin": pin, "deviceId": KITCHEN}, headers=ada), 409),
        (await api.put(PIN, json={"pin": pin, "deviceId": board.id}, headers=ada), 409),
        (await api.put(PIN, json={"pin": pin, "deviceName": "x", "uid": ADA}, headers=bob), 403),
        (await api.get(f"/devices/registrations/{board.rid}/status", headers=bob), 403),
        (await api.get("/devices/registrations/unknown/status", headers=ada), 404),
        (await api.delete(f"/devices/{board.id}/registrations", headers=bob), 403),
        (await api.delete(f"/devices/{KITCHEN}/registrations", headers=ada), 404),
    ):
        error_of(answer, status)
    for _ in range(4):
        error_of(await api.put(PIN, json={"pin": "WRONGPIN", "deviceName": "x"}, headers=ada), 404)
    error_of(await api.put(PIN, json={"pin": pin, "deviceName": "x"}, headers=ada), 429)


async def test_a_registration_that_is_revoked_answers_with_the_device(
    api: httpx.AsyncClient, secure: Open, board: Registered
) -> None:
    answer = await api.delete(f"/devices/{board.id}/registrations", headers=bearer(ADA_TOKEN))
    record = answer.json()["data"]
    assert (record["id"], record["certificateInfo"], record["certificateSignature"]) == (board.id, None, None)
    async with secure(board.issued) as client:
        status = await client.get(f"/cert/devices/registrations/{board.rid}/status")
        assert status.json() == {"data": {"status": "REVOKED", "did": board.id}}
        error_of(await client.get(f"/devices/{board.id}", headers=bearer(board.token)), 401)


# Afterwards


async def test_certificate_and_token_together_open_the_secure_listener(
    api: httpx.AsyncClient, secure: Open, authority: Authority, board: Registered, fake_clock: FakeClock
) -> None:
    message = {"sdid": board.id, "data": {"state": True}}
    async with secure(board.issued) as client:
        assert (await client.post("/messages", json=message, headers=bearer(board.token))).status_code == 200
        assert (await client.get(f"/devices/{board.id}", headers=bearer(board.token))).status_code == 200
        assert (await client.get(f"/devices/{HALL}", headers=bearer(ADA_TOKEN))).status_code == 200
        error_of(await client.get(f"/devices/{board.id}"), 401)
    async with secure(authority.issue("device-2")) as other:
        error_of(await other.post("/messages", json=message, headers=bearer(board.token)), 403)
    error_of(await api.post("/messages", json=message, headers=bearer(board.token)), 403)
    error_of(await api.get(f"/devices/{board.id}", headers=bearer(board.token)), 403)
    fake_clock.advance(366 * 86_400_000)
    async with secure(board.issued) as client:
        error_of(await client.get(f"/devices/{board.id}", headers=bearer(board.token)), 403)


async def test_ordinary_devices_may_come_to_the_secure_listener(secure: Open, authority: Authority) -> None:
    async with secure(authority.issue("anything")) as client:
        answer = await client.get(f"/devices/{KITCHEN}", headers=bearer(KITCHEN_TOKEN))
    assert answer.json()["data"]["id"] == KITCHEN


UPGRADE = (
    "GET /v1.1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@each_row("path", ["/websocket", "/live", "/events"])
async def test_websockets_need_both_as_well(
    listener: Listener, authority: Authority, board: Registered, path: str
) -> None:
    for issued, status in ((board.issued, b"101"), (authority.issue("device-2"), b"403")):
        async with await listener.connect(issued) as stream:
            head = UPGRADE.format(path=f"{path}?Authorization=bearer+{board.token}")
            await stream.send_all(head.encode())
            assert (await stream.receive_some(65_536))[9:12] == status


@each_row("is_own", [True, False])
async def test_registering_on_the_device_channel_needs_both(
    listener: Listener, authority: Authority, board: Registered, nursery: trio.Nursery, is_own: bool
) -> None:
    issued = board.issued if is_own else authority.issue("device-2")
    register = {"type": "register", "sdid": board.id, "Authorization": f"bearer {board.token}", "cid": "1"}
    with trio.fail_after(10):
        async with await listener.connect(issued) as stream:
            socket = await wrap_client_stream(nursery, stream, "127.0.0.1", "/v1.1/websocket?ack=true")
            await socket.send_message(json.dumps(register))
            answer = json.loads(await socket.get_message())
            await socket.aclose()
    assert answer.get("data", answer.get("error"))["code"] == ("200" if is_own else 403)
