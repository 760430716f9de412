"""A small OpenID provider on loopback, with keys of its own, whose answers a test can change."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.factories import NOW_MS
from tests.served import served

CLIENT_ID, CLIENT_SECRET = "trunkline at home", "s3cret:+%"
PERSON: Mapping[str, Any] = {
    "sub": "248289761001",
    "email": "ada@example.org",
    "email_verified": True,
    "name": "Ada Lovelace",
}


@cache
def _first_key() -> RSAKey:
    """One for all tests, because making a key takes long."""
    return RSAKey.generate_key(2048, {"kid": "first"})


@dataclass
class OpenIdProvider:
    """The provider's next answers. `claims` are added to the right ones; None removes one."""

    issuer: str = ""
    person: Mapping[str, Any] = field(default_factory=lambda: dict(PERSON))
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] | None = None  # what stands there, of which the ID token has only the subject
    metadata: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # by path, instead of what is right
    content_types: dict[str, str] = field(default_factory=dict)  # by path, where it is not JSON
    key: RSAKey = field(default_factory=_first_key)
    signing_key: RSAKey | None = None  # one that it does not tell of
    asked: list[str] = field(default_factory=list)  # paths, in order
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def agree(self, url: str, **changed: str) -> str:
        """The address to which a browser returns after a sign-in at `url`."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{self.issuer}/authorize?")
        assert (asked["client_id"], asked["response_type"]) == (CLIENT_ID, "code")
        assert (asked["code_challenge_method"], len(asked["code_challenge"])) == ("S256", 43)
        assert set(asked["scope"].split()) == {"openid", "email", "profile"}
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], **changed})}"

    def answer(self, path: str, form: Mapping[str, str], authorization: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        match path:
            case "/.well-known/openid-configuration":
                return 200, json.dumps(self._about() | self.metadata).encode()
            case "/keys":
                return 200, json.dumps({"keys": [self.key.as_dict(private=False)]}).encode()
            case "/token":
                return self._token(form, authorization)
            case "/userinfo" if self.userinfo is not None:
                return (200, json.dumps(self.userinfo).encode()) if authorization == "Bearer theirs" else (401, b"")
            case _:
                return 404, b"{}"

    def _about(self) -> dict[str, Any]:
        userinfo = {} if self.userinfo is None else {"userinfo_endpoint": f"{self.issuer}/userinfo"}
        return {
            **userinfo,
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _token(self, form: Mapping[str, str], authorization: str) -> tuple[int, bytes]:
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(name), unquote_plus(secret)) != (CLIENT_ID, CLIENT_SECRET) and (name, secret) != (
            CLIENT_ID,
            CLIENT_SECRET,
        ):
            return 401, b'{"error":"invalid_client"}'
        asked = self._codes.pop(form.get("code", ""), None)
        if asked is None or form.get("redirect_uri") != asked["redirect_uri"] or not _fits(form, asked):
            return 400, b'{"error":"invalid_grant"}'
        token = {"access_token": "theirs", "token_type": "Bearer", "expires_in": 60, "id_token": self._sign(asked)}
        return 200, json.dumps(token).encode()

    def _sign(self, asked: Mapping[str, str]) -> str:
        now = NOW_MS // 1000
        right = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        person = self.person if self.userinfo is None else {"sub": self.person["sub"]}
        claims = {name: value for name, value in {**right, **person, **self.claims}.items() if value is not None}
        key = self.signing_key or self.key
        return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)


def _fits(form: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]


@contextmanager
def running_provider() -> Iterator[OpenIdProvider]:
    provider = OpenIdProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            status, content = provider.answer(self.path, form, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Type", provider.content_types.get(self.path, "application/json"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        server.daemon_threads = True
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        yield provider
