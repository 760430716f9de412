"""The pages of the console: who sees them, where the sign-in leads, and what a browser may do with them."""

import re

import httpx
import pytest

from broker.services import Services
from config.settings import Address
from protocols.http.accounts.go import console_page
from protocols.http.console.pages import DASHBOARDS, PAGES
from tests.factories import ADA, KITCHEN, LIGHT_TYPE
from tests.protocols.http.console.conftest import proof_in, sign_in
from tests.rows import each_row

pytestmark = pytest.mark.slow


PATHS = [*("/console" + page.path for page in PAGES), f"/console/devices/{KITCHEN}"]
PATHS += [page.path.replace("<id_>", LIGHT_TYPE if "/types/" in page.path else KITCHEN) for page in DASHBOARDS]


async def test_the_root_leads_to_the_console(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/console")


@each_row("path", PATHS)
async def test_the_sign_in_leads_back_to_the_page_that_was_asked_for(browser: httpx.AsyncClient, path: str) -> None:
    browser.cookies.clear()
    answer = await sign_in(browser, path)
    assert (answer.status_code, answer.headers["location"]) == (302, path)
    shown = await browser.get(path)
    assert shown.status_code == 200
    assert "ada@example.org" in shown.text


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "/",
        "//evil.example",
        "/console//evil.example",
        "https://evil.example/console",
        "/console/../accounts/logout",
        "/developer/./x",
        "/operators",
        "/consolation",
        "/console\n",
        "/console?x=1",
        "/console/a/b/c/d",
        "/console/\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)
def test_the_sign_in_leads_to_nothing_but_pages_of_the_console(text: str | None) -> None:
    assert console_page(text) is None


async def test_who_is_signed_in_is_not_asked_again(browser: httpx.AsyncClient, page: httpx.Response) -> None:
    answer = await browser.get("/accounts/go", params={"console": "/console/exports"})
    assert (answer.status_code, answer.headers["location"]) == (302, "/console/exports")
    elsewhere = await browser.get("/accounts/go", params={"console": "//evil.example"})
    assert elsewhere.status_code == 200


async def test_a_page_may_load_and_send_nothing_elsewhere(browser: httpx.AsyncClient, page: httpx.Response) -> None:
    for path in PATHS:
        answer = await browser.get(path)
        policy = dict(one.strip().split(" ", 1) for one in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
        assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|(?:src|href|action)=\"\w+:(?!,)", answer.text), path


async def test_scripts_are_kept_by_the_browser_and_have_the_right_type(
    browser: httpx.AsyncClient, page: httpx.Response
) -> None:
    (script,) = re.findall(r'<script type="module" src="([^"]+)"', page.text)
    answer = await browser.get(script)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    folder = script.rpartition("/")[0]
    for name in ("no.js", "..%2fpages.py", "__init__.py"):
        assert (await browser.get(f"{folder}/{name}")).status_code == 404


async def test_a_name_of_a_person_is_text(browser: httpx.AsyncClient, services: Services) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    await services.provisioning.apply({"users": [{"email": "ada@example.org", "full_name": hostile}]})
    answer = await sign_in(browser)
    shown = await browser.get(answer.headers["location"])
    assert hostile not in shown.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown.text


async def test_a_page_of_no_device_is_not_found(browser: httpx.AsyncClient, page: httpx.Response) -> None:
    """An unknown id is the API's to judge; what is no id has no page."""
    assert (await browser.get("/console/devices/no-id")).status_code == 404
    assert (await browser.get(f"/console/devices/{'9' * 32}")).status_code == 200


async def test_the_page_of_a_device_says_where_it_connects(
    browser: httpx.AsyncClient, page: httpx.Response, services: Services, door: Address
) -> None:
    everywhere = Address("0.0.0.0", 1883)  # noqa: S104 - not bound
    services.core.site.listens_on({"http": door, "mqtt": everywhere, "coaps": Address("192.0.2.1", 5684)})
    shown = (await browser.get(f"/console/devices/{KITCHEN}")).text
    assert f'data-origin="http://{door}"' in shown
    assert f'data-mqtt="{door.host}:1883" data-mqtt-secure=""' in shown
    assert 'data-coap="192.0.2.1:5684" data-coap-secure="yes"' in shown
    assert 'data-lwm2m=""' in shown


async def test_signing_out_needs_the_proof_and_ends_the_session(
    browser: httpx.AsyncClient, page: httpx.Response, services: Services
) -> None:
    ada = await services.accounts.users.find(ADA)
    await browser.post("/console/sign-out", data={"csrf": "0" * 64})
    assert len(await services.accounts.open_sessions.of(ada)) == 1
    answer = await browser.post("/console/sign-out", data={"csrf": proof_in(page)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/accounts/go?console=%2Fconsole")
    assert await services.accounts.open_sessions.of(ada) == []
    assert (await browser.get("/console")).status_code == 302
