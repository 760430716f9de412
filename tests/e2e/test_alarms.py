"""Alarms of the real daemon, told to aiosmtpd and Apprise, and on a topic as docs.ntfy.sh has it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.daemon import ADA_EMAIL, USER_TOKEN, Daemon, bearer, device_id, device_token
from tests.protocols.outbound.smtp_servers import Received, smtp_server

_SECONDS: Final = 40


class Posts:
    """The POSTs that a server got: path, headers, body."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, str], str]] = []
        self.came = threading.Condition()

    def wait(self, path: str) -> tuple[dict[str, str], str]:
        def of_path() -> list[tuple[dict[str, str], str]]:
            return [(headers, body) for at, headers, body in self.found if at.startswith(path)]

        with self.came:
            assert self.came.wait_for(of_path, _SECONDS), f"nothing came to {path}: {self.found}"
            return of_path()[0]


@contextmanager
def post_server() -> Iterator[tuple[int, Posts]]:
    posts = Posts()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            with posts.came:
                posts.found.append((self.path, dict(self.headers.items()), body))
                posts.came.notify_all()
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in http.server
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], posts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def with_profile(folder: Path, settings: str) -> Iterator[Daemon]:
    """A daemon whose user lets the application write the profile."""
    daemon = Daemon(folder / "state", settings)
    daemon.configure(devices=1)
    with daemon.store() as db:
        db.execute("UPDATE access_grant SET can_write_profile = 1")
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def test_an_alarm_is_told_and_its_link_acknowledges(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mails = Received()
    with smtp_server(mails) as smtp_port, post_server() as (port, posts):
        settings = (
            f'[outbound]\nallow_private_addresses = true\nsmtp_url = "smtp://127.0.0.1:{smtp_port}"\n'
            '[alarms]\napprise = ["json"]\n'
        )
        with (
            with_profile(tmp_path, settings) as daemon,
            httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client,
            httpx.Client(timeout=30) as stranger,
        ):
            telling = {
                "mail": True,
                "ntfy": {"url": f"http://127.0.0.1:{port}/topic", "token": "tk_secret"},
                # A comma does not smuggle in a way that the operator has not allowed.
                "apprise": [f"json://127.0.0.1:{port}/apprise,form://127.0.0.1:{port}/other"],
            }
            shown = client.put("/users/self/telling", json=telling).raise_for_status().json()["data"]
            assert shown["ntfy"] == {"url": f"http://127.0.0.1:{port}/topic", "hasToken": True}
            assert shown["apprise"] == ["json://…"]
            condition = {"sdid": device_id(0), "field": "intensity", "operator": ">", "operand": {"value": 50}}
            alarm = {"severity": "critical", "text": "Über 50"}
            rule = {"name": "Zu hell", "rule": {"if": condition, "alarm": alarm}}
            client.post("/rules", json=rule).raise_for_status()
            message = {"sdid": device_id(0), "data": {"intensity": 80}}
            mid = client.post("/messages", json=message, headers=bearer(device_token(0))).json()["data"]["mid"]

            headers, body = posts.wait("/topic")
            assert body == "Über 50"
            assert headers["Title"] == "Critical: Zu hell"
            assert (headers["Priority"], headers["Tags"]) == ("5", "rotating_light")
            assert headers["Authorization"] == "Bearer tk_secret"
            link = headers["Click"]
            assert headers["Actions"] == f"view, Acknowledge, {link}"
            _, by_apprise = posts.wait("/apprise")
            assert "Critical: Zu hell" in by_apprise

            assert not [path for path, _, _ in posts.found if path.startswith("/other")]

            (found,) = client.get("/alarms", params={"state": "raised"}).raise_for_status().json()["data"]
            assert (found["text"], found["mid"]) == ("Über 50", mid)
            explained = client.get(f"/alarms/{found['id']}/explain").raise_for_status().json()["data"]
            assert explained["explanations"][0]["triggers"] is True

            page = stranger.get(link)  # a preview changes nothing
            assert "Über 50" in page.text
            assert client.get(f"/alarms/{found['id']}").json()["data"]["state"] == "raised"
            where, _, code = link.partition("?code=")
            stranger.post(where, data={"code": code}).raise_for_status()
            shown = client.get(f"/alarms/{found['id']}").json()["data"]
            assert (shown["state"], shown["acknowledgedBy"]) == ("acknowledged", "link")
            assert stranger.post(where, data={"code": code[:-2] + "AA"}).status_code == 404
    log = "".join(capfd.readouterr())
    for secret in (code, "tk_secret", "/topic"):
        assert secret not in log
    (mail,) = [one for one in mails.messages if "Zu hell" in one["Subject"]]
    assert mail["To"] == ADA_EMAIL
    assert "/accounts/alarm?code=" in mail.get_content()
