"""A browser without scripts: it keeps cookies, and posts the form of a page."""

import re
import ssl
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from broker.services import Services
from config.settings import Address
from storage.records import UserRecord
from tests.protocols.http.direct_client import DirectClient

PASSWORD = "correct horse battery staple"


async def give_password(services: Services, user: UserRecord, password: str = PASSWORD) -> None:
    """Provision a user's password, as an operator does it."""
    await services.provisioning.apply({"users": [{"email": user.email, "password": password, "reset_password": True}]})


@dataclass
class Form(HTMLParser):
    """The only form of a page."""

    html: str
    action: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    labelled: set[str] = field(default_factory=set)
    user_name: str = ""  # the user name beside the password, for password managers

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert not [name for name in given if name.startswith("on") or name == "style"]
        match tag:
            case "form":
                assert not self.action
                assert given["method"] == "post"
                self.action = given["action"]
            case "input":
                self.fields[given["name"]] = given.get("value", "")
                if given.get("autocomplete") == "username" and given["type"] in {"text", "email"}:
                    self.user_name = given.get("value", "")
            case "label":
                self.labelled.add(given["for"])
            case _:
                assert tag != "script"


#: Redirects on the way to the page of the account, which is in the console, or to the sign-in before it.
_TO_ACCOUNT: Final = ("/console/account", "/accounts/go?console=%2Fconsole%2Faccount")


def account_csrf(page: httpx.Response) -> str:
    """Of the forms of the page of the account; the console's own form has another one."""
    (csrf,) = set(re.findall('name="csrf" value="(.*?)"', page.text.partition('id="account"')[2]))
    return str(csrf)


class Browser:
    def __init__(self, door: Address, *, own: ssl.SSLContext | None = None) -> None:
        """`own`: the TLS context for the accounts server's own listener, if `door` is that listener."""
        self.client = (
            DirectClient(door, "/accounts/")
            if own is None
            else httpx.AsyncClient(base_url=f"https://{door}/", verify=own)
        )

    async def open(self, path: str, **query: str) -> httpx.Response:
        url = self.client.base_url.join(path)
        answer = await self.client.get(f"{url}?{urlencode(query)}" if query else url)
        if not answer.url.path.startswith("/console"):  # whose pages have scripts
            check_headers(answer)
        while answer.headers.get("location", "").startswith(_TO_ACCOUNT):
            answer = await self.client.get(self.client.base_url.join(answer.headers["location"]))
        return answer

    async def send(self, shown: httpx.Response, **changed: str) -> httpx.Response:
        """Post the form that was shown, with the values that are typed or clicked."""
        form = Form(shown.text)
        assert form.action, shown.text
        return await self.post(form.action, form.fields | changed)

    async def post(self, path: str, fields: dict[str, str]) -> httpx.Response:
        """The answer to a posted form; after a 303, the page that it leads to."""
        answer = await self.client.post(self.client.base_url.copy_with(path=path), data=fields)
        check_headers(answer)
        return await self.open(answer.headers["location"]) if answer.status_code == 303 else answer

    async def sign_in(self, shown: httpx.Response, name: str = "ada@example.org", **changed: Any) -> httpx.Response:
        return await self.send(shown, **{"email": name, "password": PASSWORD, **changed})


def check_headers(answer: httpx.Response) -> None:
    """Check the headers that every page and every redirect has."""
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    if answer.status_code in {302, 303}:
        assert answer.headers["location"]
        return
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(one.strip().split(" ", 1) for one in answer.headers["content-security-policy"].split(";"))
    assert policy["form-action"].split()[0] == "'self'"
    del policy["form-action"]
    assert policy == {
        "default-src": "'none'",
        "style-src": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }
