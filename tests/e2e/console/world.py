"""The daemon of these tests: every listener that a device page shows, two people, and an application to revoke."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.self_test import self_test
from tests.daemon import (
    ADA_EMAIL,
    USER_TOKEN,
    Daemon,
    bearer,
    command_output,
    device_id,
    device_token,
)
from tests.postgresql import STATES

BOB_EMAIL: Final = "bob@example.org"
BOARD: Final = "Light Board"
DEVICES: Final = 110  # more than a picker of devices lists


@dataclass(frozen=True, slots=True)
class Site:
    daemon: Daemon

    @property
    def origin(self) -> str:
        return f"http://{self.daemon.addresses['http']}"

    def of_ada(self, method: str, path: str, **options: Any) -> Any:
        """The answer to a REST call with Ada's token."""
        answer = httpx.request(method, self.daemon.base_url + path, headers=bearer(USER_TOKEN), **options)
        return answer.raise_for_status().json()

    def of_ada_at_the_console(self, user: Any, method: str, path: str, body: object, *, whole: bool = False) -> Any:
        """The answer to a REST call with the token of the page that the browser shows."""
        script = (
            "const done = arguments[arguments.length - 1];"
            "import(document.querySelector('script').src.replace(/[^/]*$/, 'api.js'))"
            ".then((api) => api.call(arguments[0], arguments[1], { body: arguments[2] ?? undefined, quiet: true }))"
            ".then(done, (error) => done({ failed: String(error) }))"
        )
        answer = user.browser.run_async(script, method, path, body)
        assert "failed" not in answer, answer
        return answer if whole else answer["data"]

    def set_role(self, email: str, role: str) -> None:
        """In Acme, by a provision file."""
        self.provision(f'[[users]]\nemail = "{email}"\norganization = "Acme"\nrole = "{role}"\n')

    def provision(self, text: str) -> None:
        file = self.daemon.state.parent / "more.toml"
        file.write_text(text, encoding="utf-8")
        command_output("provision", file, "--config", self.daemon.config)

    def send(self, number: int, **data: object) -> None:
        """A message of Ada's light of this number."""
        body = {"sdid": device_id(number), "data": data}
        httpx.post(
            f"{self.daemon.base_url}/messages", json=body, headers=bearer(device_token(number))
        ).raise_for_status()

    def start(self) -> None:
        """Start the daemon again, at the same address."""
        text = self.daemon.config.read_text(encoding="utf-8")
        kept = text.replace('[http]\nbind = "127.0.0.1:0"', f'[http]\nbind = "{self.daemon.addresses["http"]}"')
        self.daemon.config.write_text(kept, encoding="utf-8")
        self.daemon.start()


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    settings = f'[coap]\nbind = "127.0.0.1:0"\n[console]\noperators = ["{ADA_EMAIL}"]\n'
    settings += (
        '[outbound]\nallow_private_addresses = true\nstream_endpoint = "http://127.0.0.1:1"\n'  # nobody listens there
    )
    try:
        self_test()
    except DtlsUnavailable:
        pass  # the tests that need LWM2M are skipped
    else:
        settings += '[lwm2m]\ndtls_bind = "127.0.0.1:0"\n'
    (folder / "centre.token").write_text("7" * 32, encoding="utf-8")
    (folder / "centre.token").chmod(0o600)
    daemon = Daemon(folder / "state", settings + _SHELLIES + _UPSTREAM.format(folder=folder, device=device_id(71)))
    daemon.configure(devices=DEVICES)
    text = daemon.config.read_text(encoding="utf-8").replace("[mqtt]\n", '[mqtt]\ntopics = "open"\n')
    daemon.config.write_text(text, encoding="utf-8")
    daemon.start()
    try:
        file = folder / "people.toml"
        file.write_text(_PEOPLE, encoding="utf-8")
        command_output("provision", file, "--config", daemon.config)
        yield Site(daemon)
    finally:
        daemon.stop()
        STATES.drop(daemon.state)


SHELLY_TYPE: Final = "zz.shelly"
_SHELLIES: Final = f"""
[[topic_devices]]
name = "shellies"
mapping = "shelly"
owner = "{ADA_EMAIL}"
type = "{SHELLY_TYPE}"
make = true
[[discover]]
device = "Light 72"
owner = "{ADA_EMAIL}"
"""
#: An upstream where nobody listens.
_UPSTREAM: Final = """
[[forward]]
name = "centre"
to = "http://127.0.0.1:1"
token_file = "{folder}/centre.token"
allow_plain = true
devices = ["{device}"]
"""
_PEOPLE: Final = f"""
[[users]]
email = "{BOB_EMAIL}"
full_name = "Bob"
password = "correct horse battery staple"

[[applications]]
name = "{BOARD}"
organization = "Acme"
methods = ["client_credentials"]

[[tokens]]
application = "{BOARD}"
user = "{ADA_EMAIL}"
"""
