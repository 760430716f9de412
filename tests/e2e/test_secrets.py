"""A whole run of the daemon, and then a search for every secret that was used in it, wherever text leaves the daemon.

Searched are the log, the bodies of errors, redirects, mails, the audit log, the answers of the control socket, and the
store itself. Redirects and mails that must carry a one-time code or a token are named: `_REDIRECTED` and `_MAILED`.
"""

import hashlib
import html
import json
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from tests.daemon import LIGHT_TYPE, Daemon, bearer, device_id, run_command
from tests.factories import LIGHT_MANIFEST
from tests.programs import require_dtls, require_program
from tests.protocols.outbound.smtp_servers import Received, smtp_server
from tests.stores import columns_of, configuration

CALLBACK = "https://app.example.org/callback"
WEB, PAGE = "e1" * 16, "e2" * 16
#: Parameters of a redirect to the application (RFC 6749, 4.1.2 and 4.2.2).
_REDIRECTED = {"code", "access_token", "refresh_token"}
#: Parameters of the link in a mail (reference 22).
_MAILED = {"code"}
#: Codes that people type into the page of a device's code (RFC 8628, 6.1), so the store finds it; it is valid for 30
#: minutes.
_KEPT = {("user code", "store")}


@dataclass
class Run:
    """The secrets of a run, and all text that has left the daemon."""

    daemon: Daemon
    folder: Path
    received: Received
    secrets: dict[str, str] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def secret(self, name: str, value: str | None = None) -> str:
        """A new secret, or one that the daemon has made."""
        value = value or secrets.token_hex(16)
        self.secrets[name] = value
        return value

    def seen(self, where: str, text: str) -> None:
        self.texts.setdefault(where, []).append(text)

    def leaks(self) -> list[tuple[str, str]]:
        """Which secret stands where, in the clear or as its hash."""
        return [
            (name, where)
            for where, texts in self.texts.items()
            for text in texts
            for name, value in self.secrets.items()
            if (name, where) not in _KEPT
            if value in text or hashlib.sha256(value.encode()).hexdigest() in text
        ]

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=f"http://{self.daemon.addresses['http']}", timeout=30, **options)

    def ask(self, client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
        """Make a request. What its answer shows to others than the caller is searched later."""
        answer = client.request(method, path, **options)
        if answer.status_code >= 400:
            self.seen("errors", answer.text)
        if "location" in answer.headers:
            parts = urlsplit(answer.headers["location"])
            left = [
                (name, value)
                for part in (parts.query, parts.fragment)
                for name, values in parse_qs(part).items()
                for value in values
                if not (name in _REDIRECTED and answer.headers["location"].startswith(CALLBACK))
            ]
            self.seen("redirects", f"{parts.path} {left}")
        return answer

    def command(self, *arguments: str | Path, ok: bool = True) -> str:
        done = run_command(*arguments, "--config", self.daemon.config)
        assert (done.returncode == 0) is ok, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path, certificate: Path) -> Iterator[Run]:
    with running(tmp_path, certificate) as running_:
        yield running_


@contextmanager
def running(folder: Path, certificate: Path) -> Iterator[Run]:
    received = Received()
    received.password = "smtp" + secrets.token_hex(16)
    with smtp_server(received, authenticated=True) as port, (folder / "log").open("w") as log:
        daemon = Daemon(folder / "state", log=log)
        run = Run(daemon, folder, received)
        run.secret("mail server", received.password)
        text = (
            f'state_dir = "{daemon.state}"\npublic_url = "http://localhost:8080"\n[http]\nbind = "127.0.0.1:0"\n'
            '[mqtt]\nbind = "127.0.0.1:0"\ntls_bind = "127.0.0.1:0"\n'
            '[coap]\nbind = "127.0.0.1:0"\ndtls_bind = "127.0.0.1:0"\n'
            f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
            '[limits]\nmqtt_device = "20/1000"\n[log]\nlevel = "debug"\nformat = "json"\n'
            f'[outbound]\nsmtp_url = "smtp://daemon:{received.password}@127.0.0.1:{port}"\n'
        )
        daemon.config.write_text(configuration(text, daemon.state))
        provision(run)
        daemon.start()
        try:
            yield run
        finally:
            daemon.stop()


def provision(run: Run) -> None:
    (run.folder / "light.json").write_text(json.dumps(LIGHT_MANIFEST), encoding="utf-8")
    devices = "".join(
        f'[[devices]]\nid = "{device_id(n)}"\nowner = "ada@example.org"\ntype = "example.light"\nname = "Light {n}"\n'
        f'token = "{run.secret(f"token of device {n}")}"\n'
        for n in range(3)
    )
    file = run.folder / "provision.toml"
    file.write_text(
        f'[[organizations]]\nname = "Acme"\n[[users]]\nemail = "ada@example.org"\nfull_name = "Ada"\n'
        f'password = "{run.secret("password of Ada")}"\n'
        f'[[users]]\nemail = "bob@example.org"\nfull_name = "Bob"\norganization = "Acme"\n'
        f'[[device_types]]\nid = "{LIGHT_TYPE}"\nunique_name = "example.light"\nname = "Light"\norganization = "Acme"\n'
        'published = true\nmanifest = "light.json"\n'
        f'[[applications]]\nid = "{WEB}"\nname = "Web"\norganization = "Acme"\nredirect_uri = "{CALLBACK}"\n'
        f'secret = "{run.secret("secret of Web")}"\nmethods = ["authorization_code", "client_credentials", '
        '"limited_input"]\npermissions = [{ device_type = "*", permissions = ["READ", "WRITE"] }]\n'
        f'[[applications]]\nid = "{PAGE}"\nname = "Page"\norganization = "Acme"\nredirect_uri = "{CALLBACK}"\n'
        'methods = ["implicit"]\npermissions = [{ device_type = "*", permissions = ["READ", "WRITE"] }]\n'
        f'[[tokens]]\nvalue = "{run.secret("provisioned user token")}"\napplication = "{WEB}"\n'
        'user = "ada@example.org"\nexpires_in = 86400\n'
        f'[[tokens]]\nvalue = "{run.secret("provisioned application token")}"\napplication = "{WEB}"\n'
        f'expires_in = 86400\n[[grants]]\nuser = "ada@example.org"\napplication = "{WEB}"\n'
        f'device_type = "example.light"\npermissions = ["READ", "WRITE"]\n'
        f'[[invitations]]\nemail = "carl@example.org"\norganization = "Acme"\n{devices}'
    )
    printed = run.command("provision", file)
    # The command prints once what it has generated, and is the only one that does (reference 26.1).
    generated = re.findall(r"(?:password|secret) +(\S+)$", printed, re.MULTILINE)
    assert len(generated) == 2, printed
    run.secret("password of Bob", generated[0])
    run.secret("secret of Page", generated[1])
    (link,) = re.findall(r"\S+\?code=(\w+)", printed)
    run.secret("code of the invitation", link)


def hidden(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of the form of a page."""
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text)
    return {name: html.unescape(value) for name, value in fields}


def use_the_accounts(run: Run) -> None:
    """Every grant and every error of the accounts server, with right and wrong secrets."""
    with run.client() as browser:
        asked = {"response_type": "code", "client_id": WEB, "redirect_uri": CALLBACK, "state": "s"}
        page = run.ask(browser, "GET", f"/accounts/authorize?{urlencode(asked)}")
        for password in (run.secret("wrong password"), run.secrets["password of Ada"]):
            form = {**hidden(page), "email": "ada@example.org", "password": password}
            page = run.ask(browser, "POST", "/accounts/login", data=form)
        # A password in the field of the name.
        with run.client() as other:  # the page shows the name that was typed, to the person who typed it
            swapped = hidden(run.ask(other, "GET", f"/accounts/authorize?{urlencode(asked)}"))
            swapped |= {"email": run.secrets["password of Ada"], "password": "ada@example.org"}
            assert other.post("/accounts/login", data=swapped).status_code == 403
        run.secret("session", browser.cookies["trunkline_session"])
        page = run.ask(browser, "GET", page.headers["location"])
        run.ask(browser, "POST", "/accounts/consent", data={**hidden(page), "decision": "deny"})
        page = run.ask(browser, "POST", "/accounts/consent", data={**hidden(page), "decision": "allow"})
        code = run.secret("authorization code", parse_qs(urlsplit(page.headers["location"]).query)["code"][0])
        exchange = {"grant_type": "authorization_code", "code": code, "redirect_uri": CALLBACK}
        as_web = {"client_id": WEB, "client_secret": run.secrets["secret of Web"]}
        wrong = {"client_id": WEB, "client_secret": run.secret("wrong client secret")}
        run.ask(browser, "POST", "/accounts/token", data=exchange | wrong)
        tokens = run.ask(browser, "POST", f"/accounts/token?{urlencode(exchange | as_web)}").json()
        issued(run, "code grant", tokens)
        again = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        issued(run, "refresh", run.ask(browser, "POST", "/accounts/token", data=again | as_web).json())
        issued(run, "refresh once more", run.ask(browser, "POST", "/accounts/token", data=again | as_web).json())
        assert run.ask(browser, "POST", "/accounts/token", data=exchange | as_web).status_code == 400
        machine = run.ask(browser, "POST", "/accounts/token", data={"grant_type": "client_credentials"} | as_web).json()
        issued(run, "client credentials", machine)
        implicit = asked | {"response_type": "token", "client_id": PAGE}
        page = run.ask(browser, "GET", f"/accounts/authorize?{urlencode(implicit)}")
        page = run.ask(browser, "POST", "/accounts/consent", data={**hidden(page), "decision": "allow"})
        fragment = parse_qs(urlsplit(page.headers["location"]).fragment)
        issued(run, "implicit grant", {name: values[0] for name, values in fragment.items()})
        stale = {"grant_type": "refresh_token", "client_id": PAGE, "refresh_token": run.secret("wrong refresh token")}
        assert run.ask(browser, "POST", "/v1.1/accounts/token", data=stale).status_code == 400
        device = run.ask(browser, "POST", "/accounts/device/code", data=as_web).json()
        run.secret("device code", device["device_code"])
        run.secret("user code", device["user_code"])
        poll = {"grant_type": "device_code", "code": device["device_code"]} | as_web
        run.ask(browser, "POST", "/accounts/token", data=poll)
        run.ask(browser, "GET", f"/accounts/tokenInfo?token={machine['access_token']}")
        run.ask(browser, "GET", f"/accounts/tokenInfo?token={run.secret('unknown token in a query')}")
        run.ask(browser, "POST", "/accounts/checkToken", json={"token": run.secret("unknown token in a body")})
        run.ask(browser, "PUT", f"/accounts/revokeToken?token={machine['access_token']}")
        run.ask(browser, "PUT", f"/accounts/revokeToken?token={machine['access_token']}")
        page = run.ask(browser, "GET", "/accounts/reset")
        run.ask(browser, "POST", "/accounts/reset", data={**hidden(page), "email": "bob@example.org"})
        run.ask(browser, "GET", f"/accounts/reset?code={run.secret('wrong reset code')}")
        run.ask(browser, "GET", "/accounts/logout")


def issued(run: Run, how: str, tokens: dict[str, str]) -> None:
    assert "access_token" in tokens, tokens
    for kind in ("access_token", "refresh_token"):
        if kind in tokens:
            run.secret(f"{kind} by {how}", tokens[kind])


def use_rest(run: Run) -> None:
    with run.client(headers=bearer(run.secrets["provisioned user token"])) as client:
        renewed = run.ask(client, "PUT", f"/v1.1/devices/{device_id(2)}/tokens").json()["data"]["accessToken"]
        run.secret("renewed token of device 2", renewed)
        run.ask(client, "POST", f"/v1.1/devices/{device_id(0)}/shares", json={"email": "bob@example.org"})
        body = {"sdid": device_id(0), "data": {"intensity": 1}}
        assert run.ask(client, "POST", "/v1.1/messages", json=body).status_code == 200
        now_ms = int(run.ask(client, "GET", f"/v1.1/messages/last?sdids={device_id(0)}").json()["data"][0]["ts"])
        export = {"startDate": now_ms - 1000, "endDate": now_ms + 1, "sdids": device_id(0), "format": "json"}
        assert run.ask(client, "POST", "/v1.1/messages/export", json=export).status_code == 200
        run.ask(client, "POST", "/v1.1/messages", content=b'{"sdid":')
        run.ask(client, "GET", "/v1.1/devices/" + "0" * 32)
        run.ask(client, "GET", "/v1.1/no/such/path")
        for path in ("messages", "devices", "no/such/path"):  # a token where none belongs
            run.ask(client, "POST", f"/v1.1/{path}/{run.secrets['token of device 0']}", json=body)
        run.ask(client, "DELETE", f"/v1.1/devices/{device_id(2)}/tokens")
        for name in ("unknown token", "another unknown token"):
            run.ask(client, "GET", "/v1.1/users/self", headers=bearer(run.secret(name)))
            run.ask(client, "GET", f"/v1.1/users/self?Authorization=bearer+{run.secret(f'{name} in a query')}")


def use_websockets(run: Run) -> None:
    for path, token, status in (
        ("/v1.1/live", run.secrets["provisioned user token"], b"101"),
        ("/v1.1/live", run.secret("unknown token of a WebSocket"), b"401"),
        (f"/v1.1/live/{run.secrets['token of device 0']}", run.secrets["token of device 0"], b"404"),
        ("/v1.1/websocket", run.secret("another unknown token of a WebSocket"), b"401"),
    ):
        with socket.create_connection(run.daemon.host_port("http"), timeout=30) as connection:
            query = urlencode({"Authorization": f"bearer {token}", "ack": "true"})
            connection.sendall(
                f"GET {path}?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            answer = connection.recv(65_536)
            assert answer.split()[1] == status, answer
            if status != b"101":
                run.seen("errors", answer.decode())


def mqtt_string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def use_mqtt(run: Run) -> None:
    token = run.secrets["token of device 0"]
    for name, password, code in (
        (device_id(0), token, 0),
        (device_id(0), run.secret("wrong token on MQTT"), 4),
        (token, device_id(0), 4),  # in the wrong fields
        (token, token, 4),
        (run.secrets["provisioned user token"], run.secrets["provisioned user token"], 5),
        (device_id(1), run.secrets["provisioned user token"], 5),
    ):
        with socket.create_connection(run.daemon.host_port("mqtt"), timeout=30) as connection:
            about = b"\0\4MQTT\4\xc2\0\0" + mqtt_string("c") + mqtt_string(name) + mqtt_string(password)
            connection.sendall(bytes([0x10, 0x80 | len(about) & 127, len(about) >> 7]) + about)
            assert connection.recv(4) == bytes([0x20, 2, 0, code])
            if code == 0:  # more messages than its rate limit
                topic = mqtt_string(f"/v1.1/messages/{name}") + b"\0\1"
                packet = topic + b'{"intensity":2}'
                connection.sendall(50 * (bytes([0x32, len(packet)]) + packet) + b"\xc0\0")
                answers = b""
                while b"\xd0\0" not in answers:  # acknowledgements may come behind it
                    piece = connection.recv(4096)
                    assert piece
                    answers += piece
    with socket.create_connection(run.daemon.host_port("mqtts"), timeout=30) as connection:
        connection.sendall(b"no TLS " + run.secret("token in the clear at a TLS listener").encode() + b"\r\n\r\n")
        connection.recv(4096)


def use_coap(run: Run) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        for number, (token, code) in enumerate(
            [(run.secrets["token of device 0"], 0x41), (run.secret("unknown token on CoAP"), 0x81)]
        ):
            path = b""
            for index, segment in enumerate(("v1.1", "messages", token)):
                delta = 0xB0 if index == 0 else 0
                length = len(segment)
                head = bytes([delta | length]) if length < 13 else bytes([delta | 13, length - 13])
                path += head + segment.encode()
            payload = b'\xff{"data":{"intensity":3}}'
            sock.sendto(bytes([0x40, 2, 0, number + 1]) + path + payload, run.daemon.host_port("coap"))
            answer = sock.recv(2048)
            assert answer[1] == code, answer
            if code != 0x41:
                run.seen("errors", answer.decode("latin-1"))


def use_dtls(run: Run) -> None:
    """An identity that no device has: the device's token in the wrong field."""
    client = require_program("coap-client-openssl")
    host, port = run.daemon.host_port("coaps")
    identity, key = run.secrets["token of device 1"], run.secret("wrong key of DTLS")
    done = subprocess.run(
        [client, "-B", "2", "-u", identity, "-k", key, f"coaps://{host}:{port}/v1.1/actions/{identity}"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"unknown psk identity" in (done.stdout + done.stderr).lower()


def ask_the_operator(run: Run) -> None:
    for command in (["statistics"], ["audit", "--limit", "10000"], ["audit", "--json"], ["type", "list"], ["plans"]):
        run.seen("control", run.command(*command))
    run.seen("control", run.command("type", "approve", "no.such", "1", ok=False))
    run.seen("control", run.command("type", "failures", device_id(0)))


def read_mails(run: Run) -> None:
    subjects = []
    for mail in run.received.messages:
        subjects.append(mail["Subject"])
        text = str(mail) + "".join(_texts(mail))
        for code in re.findall(r"[?&]code=(?:3D)?(\w{32})", text):
            run.secret(f"code in the mail {mail['Subject']!r}", code)
        run.seen("mails", re.sub(rf"([?&](?:{'|'.join(_MAILED)})=)\w{{32}}", r"\1", "".join(_texts(mail))))
    assert len(subjects) >= 3, subjects  # invitation, share, reset


def _texts(mail: EmailMessage) -> Iterator[str]:
    for part in mail.walk():
        if part.get_content_maintype() == "text":
            yield part.get_content()


def read_what_is_kept(run: Run) -> None:
    run.daemon.stop()
    run.seen("log", (run.folder / "log").read_text(encoding="utf-8"))
    with run.daemon.store(read_only=True) as store:
        for table in columns_of(store):
            rows = store.execute(f"SELECT * FROM {table}").tuples()  # noqa: S608 - of the store
            run.seen("audit" if table == "audit_entry" else "store", "\n".join(str(tuple(row)) for row in rows))
    for path in (run.daemon.state / "exports").rglob("*"):
        if path.is_file():
            run.seen("exports", path.read_bytes().decode("latin-1"))


def test_no_secret_of_a_whole_run_leaves_the_daemon(run: Run) -> None:
    require_dtls()
    run.secret("key of the daemon", (run.daemon.state / "key").read_text().strip())
    use_the_accounts(run)
    use_rest(run)
    use_websockets(run)
    use_mqtt(run)
    use_coap(run)
    use_dtls(run)
    ask_the_operator(run)
    read_mails(run)
    read_what_is_kept(run)

    events = {json.loads(line)["event"] for text in run.texts["log"] for line in text.splitlines() if line[:1] == "{"}
    assert {
        "sign_in_refused",
        "token_request_refused",
        "http_credentials_refused",
        "http_refused",
        "websocket_credentials_refused",
        "mqtt_credentials_refused",
        "mqtt_refused",
        "mqtt_rate_refused",
        "coap_credentials_refused",
        "dtls_refused",
        "tls_refused",
    } <= events
    audited = "\n".join(run.texts["audit"])
    for event in ("sign_in", "consent_denied", "consent_given", "token_issued", "token_refused", "share_offered"):
        assert f"'{event}'" in audited
    assert f"operator {os.getuid()}" in audited
    assert re.search(r"^  mqtt credentials refused +[1-9]", "\n".join(run.texts["control"]), re.MULTILINE)
    assert len(run.secrets) > 30
    assert {"log", "errors", "redirects", "mails", "audit", "control", "store"} <= set(run.texts)
    leaks = run.leaks()
    assert not leaks, leaks


def test_the_search_finds_a_secret_in_the_clear_and_as_its_hash(run: Run) -> None:
    token = run.secret("token")
    run.seen("log", f"refused {token}")
    run.seen("audit", f"refused {hashlib.sha256(token.encode()).hexdigest()}")
    assert run.leaks() == [("token", "log"), ("token", "audit")]
