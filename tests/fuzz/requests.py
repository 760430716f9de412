"""Targets: requests to the REST API and to the pages of accounts, on services that stay open.

The first byte of an input chooses a request, and the rest is the part of it that is fuzzed. Whatever it is, no answer
has status 500, and the connection answers what follows.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import quote_from_bytes

import trio
from trio.testing import MockClock, memory_stream_pair

from broker.errors import ValidationFailed
from broker.services import Services
from config.settings import Address, Limits, Settings
from protocols.cli.failures import CommandError
from protocols.cli.provision import read_provision_file
from protocols.http import server
from protocols.http.application import CALLS
from protocols.http.calls import RestCall
from protocols.http.server import serve_http
from storage.keys import OrganizationKey
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import (
    ACME,
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    DASHBOARD,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    build_world,
    change_application,
)
from tests.fakes import FakeClock
from tests.fuzz.target import Target
from tests.stores import MigratedEngine

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_MESSAGES: Final = f"/v1.1/messages?uid={ADA}&startDate=1&endDate={NOW_MS}"
_PKCE: Final = f"client_id={DASHBOARD}&response_type=code"
_ANSWER_SECONDS: Final = 120
_TYPE: Final = f"/v1.1/devicemgmt/devicetypes/{LIGHT_TYPE}"
_MOST_VALUE: Final = 8_000  # bytes of a value in a head, which is 16 KiB long at most


@dataclass(frozen=True, slots=True)
class Template:
    """A request with a place for what is fuzzed: `{}` in the target, the header of this name, else the body."""

    method: str
    target: str
    header: str = ""
    kind: str = ""
    token: str = ADA_TOKEN

    def filled(self, value: bytes) -> bytes:
        target, lines, body = self.target, [f"Authorization: bearer {self.token}"] if self.token else [], b""
        if self.header:
            text = bytes(one for one in value if one >= 0x20 and one != 0x7F)[:_MOST_VALUE].decode("latin-1")
            lines = [one for one in lines if not one.startswith(f"{self.header}:")] + [f"{self.header}: {text}"]
        elif "{}" in target:
            target = target.replace("{}", quote_from_bytes(value[: _MOST_VALUE // 3], safe="=&"))
        else:
            body = value
        if self.kind:
            lines.append(f"Content-Type: {self.kind}")
        head = [f"{self.method} {target} HTTP/1.1", "Host: a", *lines, f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(head).encode("latin-1") + body


def _json(method: str, path: str, token: str = ADA_TOKEN) -> Template:
    return Template(method, f"/v1.1{path}", kind=_JSON, token=token)


_SEARCHES: Final = (
    Template("GET", _MESSAGES + "&filter={}"),
    Template("GET", _MESSAGES + "&fieldPresence={}"),
    Template("GET", _MESSAGES + "&offset={}"),
    Template("GET", "/v1.1/messages?{}"),
    Template("GET", f"/v1.1/messages/last?sdids={KITCHEN}&fieldPresence=" + "{}"),
    Template("GET", f"{_TYPE}/properties?filter=" + "{}", token=APPLICATION_TOKEN),
    Template("GET", f"/v1.1/messages/analytics/histogram?sdid={KITCHEN}&" + "{}"),
    Template("GET", f"/v1.1/messages/analytics/aggregates?sdid={KITCHEN}&" + "{}"),
    Template("GET", "/v1.1/devicetypes?name={}"),
    Template("GET", f"/v1.1/users/{ADA}/devices?" + "{}"),
    Template("GET", "/v1.1/{}"),
)
_HEADERS: Final = (
    Template("PUT", f"/v1.1/devices/{HALL}", header="If-Match"),
    Template("GET", "/docs/", header="Accept"),
    Template("GET", "/metrics", header="Accept"),
    Template("GET", f"/v1.1/devices/{KITCHEN}", header="Authorization"),
    Template("GET", f"/v1.1/devices/{KITCHEN}/x/../", header="Range"),
    Template("POST", f"/v1.1/devicetypes/{LIGHT_TYPE}/whitelist", header="Content-Type"),
    Template("GET", "/accounts/signin", header="Cookie"),
    Template("GET", f"/accounts/authorize?{_PKCE}", header="Accept-Language"),
    Template("GET", f"/v1.1/devices/{KITCHEN}/", header="If-None-Match"),
    Template("POST", "/v1.1/messages", header="Content-Encoding"),
    Template("GET", "/v1.1/devices", header="X-Forwarded-For"),
    Template("POST", "/accounts/token", header="Authorization", kind=_FORM, token=""),
    Template("GET", "/console/", header="Host"),
)
_OAUTH: Final = (
    Template("GET", "/accounts/authorize?{}", token=""),
    Template("GET", f"/accounts/authorize?{_PKCE}&redirect_uri=" + "{}", token=""),
    Template("GET", f"/accounts/authorize?{_PKCE}&code_challenge=" + "{}", token=""),
    Template("POST", "/accounts/token", kind=_FORM, token=""),
    Template("POST", "/accounts/device/code", kind=_FORM, token=""),
    Template("GET", "/accounts/signin?{}", token=""),
    Template("POST", "/accounts/signin", kind=_FORM, token=""),
    Template("POST", "/accounts/signup", kind=_FORM, token=""),
    Template("POST", "/accounts/reset", kind=_FORM, token=""),
    Template("GET", "/accounts/tokenInfo?{}", token=""),
    Template("GET", "/accounts/go?{}", token=""),
)
_UPLOADS: Final = (
    Template("POST", f"/v1.1/devicetypes/{LIGHT_TYPE}/whitelist", kind="text/csv"),
    Template("POST", f"/v1.1/devicetypes/{LIGHT_TYPE}/whitelist", kind="multipart/form-data; boundary=b"),
    Template("POST", f"{_TYPE}/images?version=2", kind="application/octet-stream"),
    _json("POST", f"/devicetypes/{LIGHT_TYPE}/whitelist/certificates"),
    _json("POST", f"/devicetypes/{LIGHT_TYPE}/manifests/try"),
)
#: What the paths of calls name.
_NAMED: Final = {"did": KITCHEN, "uid": ADA, "dtid": LIGHT_TYPE, "oid": ACME, "aid": DASHBOARD, "vdid": "v1"}
_PARAMETER: Final = re.compile(r"\{([A-Za-z]+)\}")


def _of_calls() -> Iterator[tuple[RestCall, str]]:
    """Every call of the REST API, and a path of it."""
    for call in CALLS:
        yield call, "/v1.1" + _PARAMETER.sub(lambda found: _NAMED.get(found[1], "0" * 32), call.path)


#: The body of each call that takes one, and the query of each other one.
_BODIES: Final = (
    _json("POST", "/messages", KITCHEN_TOKEN),
    _json("POST", "/messages/batch", KITCHEN_TOKEN),
    *(Template(call.method, path, kind=_JSON) for call, path in _of_calls() if call.takes_body),
)
_QUERIES: Final = tuple(
    Template(call.method, path + "?{}", token=APPLICATION_TOKEN if "organizations" in path else ADA_TOKEN)
    for call, path in _of_calls()
    if call.method == "GET"
)
TABLES: Final = {
    "searches": _SEARCHES,
    "headers": _HEADERS,
    "oauth": _OAUTH,
    "uploads": _UPLOADS,
    "bodies": _BODIES,
    "parameters": _QUERIES,
    "requests": (),
}


@asynccontextmanager
async def _services(folder: Path) -> AsyncIterator[Services]:
    settings = Settings(state_dir=folder, limits=Limits(rate_limits="off", quotas="off"))
    opener = ServicesOpener(settings, MigratedEngine(folder / "store.sqlite"), FakeClock(NOW_MS).clock)
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        await services.core.database.write(_administrators)
        yield services


def _administrators(tx: Transaction) -> None:
    ada = tx.accounts.user_by_id(ADA)
    assert ada is not None
    tx.accounts.set_role(OrganizationKey(1), ada.key, "administrator")
    change_application(
        tx,
        DASHBOARD,
        redirect_uris=["https://app.example.org/callback", "http://127.0.0.1/cb"],
        permissions=[{"device_type": "*", "permissions": ["READ", "WRITE"]}],
    )


class _Requests:
    """The listener of services, reached through a stream in memory."""

    def __init__(self, templates: tuple[Template, ...], handler: Callable[[trio.abc.Stream], Any]) -> None:
        self._templates = templates
        self._handler = handler

    async def run(self, data: bytes) -> None:
        if self._templates:
            data = self._templates[data[0] % len(self._templates)].filled(data[1:]) if data else b""
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, theirs)
            answer = b""
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.autojump_threshold = 0
            with trio.fail_after(_ANSWER_SECONDS):
                await ours.send_all(data)
                await ours.send_eof()
                while chunk := await ours.receive_some():
                    answer += chunk
            clock.autojump_threshold = float("inf")
            nursery.cancel_scope.cancel()
        for line in answer.split(b"\r\n"):
            assert not line.startswith(b"HTTP/1.1 500"), answer

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            await self._handler(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def _opened(name: str, folder: Path) -> AsyncIterator[_Requests]:
    handlers: list[Callable[[trio.abc.Stream], Any]] = []

    async def take(_bind: Address, handler: Callable[[trio.abc.Stream], Any], **_options: Any) -> None:
        handlers.append(handler)

    async with _services(folder) as services, trio.open_nursery() as nursery:
        with patch.object(server, "serve_tcp", take):
            await serve_http(services, Address("127.0.0.1", 0), nursery, websocket=None)
        yield _Requests(TABLES[name], handlers[0])
        nursery.cancel_scope.cancel()


class _Provisioning:
    def __init__(self, services: Services, folder: Path) -> None:
        self._provisioning = services.provisioning
        self._path = folder / "fuzzed.toml"

    async def run(self, data: bytes) -> None:
        """As `trunkline provision` reads a file."""
        self._path.write_bytes(data)
        try:
            document, _findings = read_provision_file(self._path)
            await self._provisioning.apply(document, dry_run=True)
        except (CommandError, ValidationFailed):
            return


@asynccontextmanager
async def _provisioning(folder: Path) -> AsyncIterator[_Provisioning]:
    async with _services(folder) as services:
        yield _Provisioning(services, folder)


TARGETS = (
    *(Target(name, opened=partial(_opened, name)) for name in TABLES if TABLES[name]),
    # What takes long on a connection is many requests: they are bounded by their rate.
    Target("requests", opened=partial(_opened, "requests"), longest=4_096),
    Target("provision-files", opened=_provisioning),
)
