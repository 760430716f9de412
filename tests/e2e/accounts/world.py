"""The users and applications of the daemon, one application for every method, provisioned by the operator's command."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.daemon import ADA_EMAIL, DASHBOARD, USER_TOKEN, Daemon, bearer, command_output, running_daemon
from tests.e2e.accounts.callback import Callback, running_callback

PASSWORD: Final = "correct horse battery staple"
THEA_EMAIL: Final = "thea@example.org"  # a user with too many wrong passwords
FRIDA_EMAIL: Final = "frida@example.org"  # a user who sets a new password
GALE_EMAIL: Final = "gale@example.org"  # a user who asks for a reset and sets no new password
OWN_EMAILS: Final = tuple(f"own{number}@example.org" for number in range(13))  # each for one test
WEB, MOBILE, PAGE, SERVER, TV = (f"e{number}" * 16 for number in range(5))
SECRETS: Final = {WEB: "s3cret %2B+:x", SERVER: "server s3cret"}
WEB_NAME, MOBILE_NAME, TV_NAME = "Window Blinds", "Pocket Remote", "Living Room Television"


@dataclass(frozen=True, slots=True)
class Site:
    """The daemon and the application server, and their addresses."""

    daemon: Daemon
    callback: Callback
    certificate: Path
    others: tuple[str, ...]  # other origins that the pages may redirect to

    @property
    def origin(self) -> str:
        return f"https://{self.daemon.addresses['https']}"

    @property
    def accounts(self) -> str:
        return f"{self.origin}/accounts"

    @property
    def users_self(self) -> str:
        return f"{self.origin}/v1.1/users/self"

    def of_ada(self, method: str, path: str, **body: Any) -> Any:
        """The member `data` of the answer to a REST call with Ada's token."""
        answer = httpx.request(method, self.daemon.base_url + path, json=body or None, headers=bearer(USER_TOKEN))
        return answer.raise_for_status().json()["data"]

    def forget_agreements(self) -> None:
        """Revoke Ada's applications, except the one of her token: the consent page comes again. Ones that ask for
        nothing stay: after a revocation they are shown it, too, which they are not at a first sign-in."""
        for one in self.of_ada("GET", "/users/self/applications")["applications"]:
            if one["aid"] != DASHBOARD and one["permissions"]:
                self.of_ada("DELETE", f"/users/self/applications/{one['aid']}")

    def trunkline(self, *arguments: str) -> str:
        """The output of a `trunkline` command."""
        return command_output(*arguments, "--config", self.daemon.config)

    def link_in(self, text: str) -> str:
        """The only link with a code in a text."""
        (link,) = [word for word in text.split() if "?code=" in word]
        return link


@contextmanager
def running_site(
    folder: Path, certificate: Path, *, settings: str = "", others: tuple[str, ...] = ()
) -> Iterator[Site]:
    """A daemon with TLS, so that cookies are `Secure`; with additional settings."""
    settings += (
        '[accounts]\nsignup = "open"\ndevice_poll_seconds = 1\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
    )
    with ExitStack() as stack:
        callback = stack.enter_context(running_callback(certificate))
        with pytest.MonkeyPatch.context() as environment:  # daemons of other tests must not inherit this
            environment.setenv("TRUNKLINE_HTTP_TLS_BIND", "127.0.0.1:0")
            daemon = stack.enter_context(running_daemon(folder, devices=1, settings=settings))
        people = folder / "accounts.toml"
        people.write_text(_WORLD.replace("{callback}", callback.origin), encoding="utf-8")
        site = Site(daemon, callback, certificate, others)
        site.trunkline("provision", str(people))
        yield site


_WORLD: Final = f"""
[[organizations]]
name = "Sunshade Works"

[[organizations]]
name = "Brightlight"

[[device_types]]
unique_name = "brightlight.lamp"
name = "Brightlight Lamp"
organization = "Brightlight"
published = true

[[device_types]]
unique_name = "brightlight.weather_station"
name = "Brightlight Weather Station"
organization = "Brightlight"
published = true

[[users]]
email = "{THEA_EMAIL}"
full_name = "Thea"
password = "{PASSWORD}"

[[users]]
email = "{FRIDA_EMAIL}"
full_name = "Frida"
password = "{PASSWORD}"

[[users]]
email = "{GALE_EMAIL}"
full_name = "Gale"
password = "{PASSWORD}"

{"".join(f'[[users]]{chr(10)}email = "{one}"{chr(10)}password = "{PASSWORD}"{chr(10)}' for one in OWN_EMAILS)}

[[grants]]
user = "{ADA_EMAIL}"
application = "{DASHBOARD}"
device_type = "profile"
permissions = ["WRITE"]

[[plans]]
device_type = "example.light"
free_messages_per_day = 150
paid_cost = "4.99"

[[applications]]
id = "{WEB}"
name = "{WEB_NAME}"
organization = "Sunshade Works"
secret = "{SECRETS[WEB]}"
redirect_uri = "{{callback}}/web"
methods = ["authorization_code", "pkce"]
permissions = [
  {{ device_type = "brightlight.lamp", permissions = ["READ", "WRITE"] }},
  {{ device_type = "brightlight.weather_station", permissions = ["READ"] }},
]

[[applications]]
id = "{MOBILE}"
name = "{MOBILE_NAME}"
organization = "Sunshade Works"
redirect_uri = "{{callback}}/mobile"
methods = ["pkce"]

[[applications]]
id = "{PAGE}"
name = "Dashboard in a Page"
organization = "Sunshade Works"
redirect_uri = "{{callback}}/page"
methods = ["implicit"]

[[applications]]
id = "{SERVER}"
name = "Night Watch"
organization = "Sunshade Works"
secret = "{SECRETS[SERVER]}"
methods = ["client_credentials"]

[[applications]]
id = "{TV}"
name = "{TV_NAME}"
organization = "Sunshade Works"
methods = ["limited_input"]
permissions = [{{ device_type = "*", permissions = ["READ", "WRITE"] }}]
"""
