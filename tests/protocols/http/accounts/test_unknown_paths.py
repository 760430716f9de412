"""Answers to unknown paths and wrong methods."""

import httpx
import pytest

from tests.protocols.http.accounts.browser import Browser, check_headers
from tests.rows import each_row

pytestmark = pytest.mark.slow


OF_BROWSERS = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
PATHS = each_row(
    ("path", "status", "words", "allowed"),
    [
        ("login", 405, "only for the form of another page", "OPTIONS, POST"),
        ("consent", 405, "only for the form of another page", "OPTIONS, POST"),
        ("token", 405, "only for the form of another page", "OPTIONS, POST"),
        ("nothing", 404, "There is no such page here.", None),
        ("static/nothing.css", 404, "There is no such page here.", None),
        ("", 404, "There is no such page here.", None),
    ],
)


@PATHS
async def test_a_browser_gets_a_page(browser: Browser, path: str, status: int, words: str, allowed: str | None) -> None:
    answer = await browser.client.get(path, headers={"Accept": OF_BROWSERS})
    check_headers(answer)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    assert "<h1>This did not work</h1>" in answer.text
    assert words in answer.text


@PATHS
@each_row("accept", ["*/*", "application/json", ""])
async def test_a_program_gets_json(
    accounts: httpx.AsyncClient, accept: str, path: str, status: int, words: str, allowed: str | None
) -> None:
    answer = await accounts.get(path, headers={"Accept": accept})
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    assert answer.json()["error"]["code"] == status
    assert answer.headers["cache-control"] == "no-store"


async def test_rest_has_no_pages(accounts: httpx.AsyncClient) -> None:
    for path in ("/v1.1/nothing", "/v1.1/accounts/nothing"):
        url = accounts.base_url.copy_with(path=path)
        answer = await accounts.get(url, headers={"Accept": OF_BROWSERS})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404)
