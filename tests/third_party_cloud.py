"""A small third-party cloud on loopback: an authorization server, readings, subscriptions, and lamps with Actions.

It is as strict as RFC 6749 and RFC 7636 ask: wrong credentials, a wrong verifier, a code that was used or a refresh
token that was exchanged are refused, and every refresh token works once.
"""

import base64
import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio

from tests.protocols.http.routes import SharingApp

CLIENT, SECRET = "trunkline-client", "trunkline secret"
ACCOUNT = "ada@cloud"

#: The connector that ships as an example, written for this cloud.
EXAMPLE = Path(__file__).parent.parent / "config" / "connector.example.toml"
HOOK_SECRET = "the cloud signs with this"

Answer = Callable[[], Awaitable[Response]]
_THEIRS = b"https://cloud.example.org"


@cache
def _example() -> bytes:
    """The connector of the example, in JSON, which is read in no time."""
    (entry,) = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))["connectors"]
    return msgspec.json.encode(entry)


@dataclass
class ThirdPartyCloud:
    """The cloud's state and the requests it got. `answers` replaces the answers of paths."""

    readings: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    subscriptions: dict[str, str] = field(default_factory=dict)
    access: dict[str, str] = field(default_factory=dict)  # access token: account
    refresh: dict[str, str] = field(default_factory=dict)
    codes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    denies: bool = False
    token_seconds: int = 3600
    url: str = ""
    _called: trio.Event = field(default_factory=trio.Event)

    def paths(self) -> list[str]:
        return [path for _method, path, _body in self.calls]

    def bodies(self, path: str) -> list[Any]:
        return [body for _method, called, body in self.calls if called == path]

    def connector(self) -> dict[str, Any]:
        """The entry of the example file, with this cloud's addresses."""
        found: dict[str, Any] = msgspec.json.decode(_example().replace(_THEIRS, self.url.encode()))
        return found

    def provision_file(self) -> str:
        return EXAMPLE.read_text(encoding="utf-8").replace(_THEIRS.decode(), self.url)

    def notification(self, payload: object) -> dict[str, Any]:
        """Body and headers of a signed notification."""
        body = msgspec.json.encode(payload)
        digest = hmac.new(HOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
        return {"content": body, "headers": {"X-Signature": f"sha256={digest}"}}

    async def called(self, path: str) -> None:
        """Return when this path was requested."""
        while path not in self.paths():
            await self._called.wait()

    def note(self, call: tuple[str, str, Any]) -> None:
        self.calls.append(call)
        self._called.set()
        self._called = trio.Event()

    async def account_of(self, token: str) -> str | None:
        """The account that an access token is for; None when it is not valid."""
        return self.access.get(token)

    def revoke_everything(self) -> None:
        self.access.clear()
        self.refresh.clear()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(serve, _app(self), config)
            self.url = bound[0]
            task_status.started()

    def tokens_for(self, account: str) -> dict[str, Any]:
        access, refresh = secrets.token_hex(8), secrets.token_hex(8)
        self.access[access], self.refresh[refresh] = account, account
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.token_seconds,
            "refresh_token": refresh,
            "user": account,
        }


def _app(cloud: ThirdPartyCloud) -> QuartTrio:
    app = SharingApp("cloud")

    @app.before_request
    async def note() -> Response | None:
        body = await request.get_json(silent=True)
        cloud.note((request.method, request.path, body))
        answer = cloud.answers.get(request.path)
        return None if answer is None else await answer()

    _serve_authorizations(app, cloud)
    _serve_resources(app, cloud)
    return app


def _serve_authorizations(app: QuartTrio, cloud: ThirdPartyCloud) -> None:
    @app.get("/authorize")
    async def authorize() -> Response:
        given = request.args
        assert given["response_type"] == "code"
        assert given["client_id"] == CLIENT
        back = {"state": given["state"]}
        if cloud.denies:
            back["error"] = "access_denied"
        else:
            back["code"] = secrets.token_hex(8)
            cloud.codes[back["code"]] = {name: given[name] for name in ("redirect_uri", "code_challenge")}
        return Response("", 302, headers={"Location": f"{given['redirect_uri']}?{urlencode(back)}"})

    @app.post("/token")
    async def token() -> Response:
        body = await request.get_data(as_text=True)
        given = dict(parse_qsl(str(body)))
        if request.authorization is None or (request.authorization.username, request.authorization.password) != (
            CLIENT,
            SECRET,
        ):
            return _json({"error": "invalid_client"}, 401)
        if given["grant_type"] == "refresh_token":
            account = cloud.refresh.pop(given["refresh_token"], None)
            return _json({"error": "invalid_grant"}, 400) if account is None else _json(cloud.tokens_for(account))
        code = cloud.codes.pop(given["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest()).decode()
        if code is None or code != {
            "redirect_uri": given["redirect_uri"],
            "code_challenge": challenge.rstrip("="),
        }:
            return _json({"error": "invalid_grant"}, 400)
        return _json(cloud.tokens_for(ACCOUNT))


def _serve_resources(app: QuartTrio, cloud: ThirdPartyCloud) -> None:
    async def account() -> str | None:
        return await cloud.account_of(request.headers.get("Authorization", "").removeprefix("Bearer "))

    @app.get("/readings")
    async def readings() -> Response:
        if await account() is None:
            return _json({"error": "expired"}, 401)
        since = int(request.args["since"])
        newer = [one for one in cloud.readings if not isinstance(one["at"], int) or one["at"] > since]
        return _json({"data": {"readings": newer}})

    @app.put("/subscriptions/<device>")
    async def subscribe(device: str) -> Response:
        if await account() is None:
            return _json({"error": "expired"}, 401)
        cloud.subscriptions[device] = (await request.get_json())["callback"]
        return _json({"id": device}, 201)

    @app.delete("/subscriptions/<device>")
    async def unsubscribe(device: str) -> Response:
        known = await account() is not None and device in cloud.subscriptions
        if known:
            del cloud.subscriptions[device]
        return _json({}, 200 if known else 404)

    @app.post("/lamps/<lamp>")
    async def lamp(lamp: str) -> Response:
        return _json({}, 401 if await account() is None else 200)


def _json(payload: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(payload), status, content_type="application/json")
