"""The accounts server's own listener and an operator's invitation, on the real daemon."""

import re
import ssl
from collections.abc import Iterator
from email import message_from_bytes, policy
from pathlib import Path

import httpx
import pytest

from tests.daemon import Daemon, command_output, running_daemon

EMAIL, OTHER = "grace@example.org", "hedy@example.org"


@pytest.fixture
def daemon(tmp_path: Path, certificate: Path) -> Iterator[Daemon]:
    settings = (
        '[accounts]\ntls_bind = "127.0.0.1:0"\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
    )
    with running_daemon(tmp_path, devices=0, settings=settings) as running:
        yield running


def invite(daemon: Daemon, *options: str, email: str = EMAIL) -> str:
    return command_output("user", "invite", email, "--config", daemon.config, *options)


def test_an_invitation_is_accepted_at_the_own_listener(daemon: Daemon, certificate: Path) -> None:
    shown = invite(daemon, "--organization", "Acme", "--role", "viewer")
    link = re.search(r"http\S+/accounts/(signup\?code=[0-9a-f]{32})$", shown, re.MULTILINE)
    assert link is not None
    assert "code=" not in invite(daemon)  # it waits already
    trust = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=f"https://{daemon.addresses['accounts']}", verify=trust) as client:
        about = client.get("/.well-known/oauth-authorization-server").json()
        assert about["issuer"] == f"https://{daemon.addresses['accounts']}"
        page = client.get(f"/{link[1]}")
        fields = dict(re.findall(r'name="(csrf|code)" value="([^"]*)"', page.text))
        done = client.post("/signup", data={**fields, "password": "1234 six", "fullName": "Grace"})
        assert "<h1>Welcome</h1>" in done.text
        # The console, and in it the page of the account, is on the other listener.
        console = f"http://{daemon.addresses['http']}/console"
        assert f'<a class="button" href="{console}">Open the console</a>' in done.text
        assert client.get("/account").headers["location"] == f"{console}/account"
        assert client.get("/checkSession").json() == {"data": {"message": "Session is valid"}}
    assert daemon.stop() == 0
    (path,) = (daemon.state / "outbox").glob("*.eml")
    mail = message_from_bytes(path.read_bytes(), policy=policy.default)
    assert mail["To"] == EMAIL
    assert link[1] in mail.get_content()
    # While no daemon runs
    assert re.search(r"invitations +1 created", invite(daemon, email=OTHER)) is not None
    daemon.start()
    assert re.search(r"invitations .* 1 unchanged", invite(daemon, email=OTHER)) is not None
    assert re.search(r"invitations .* 1 changed", invite(daemon, "--again", email=OTHER)) is not None
