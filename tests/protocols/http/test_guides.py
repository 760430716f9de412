"""The documents as pages: links between files lead to pages, and examples have the addresses of this service."""

from pathlib import Path

import pytest

from broker.site import Site
from config.settings import Address, Settings
from protocols.http.docs.guides import GROUPS, Guide, anchor_of, guides
from tests.test_security import anchor

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pages() -> dict[str, Guide]:
    site = Site(Settings(state_dir=Path("/nowhere"), public_url="https://gateway.example.org"))
    site.listens_on({"http": Address.parse("127.0.0.1:80"), "mqtt": Address.parse("127.0.0.1:2883")})
    return {guide.slug: guide for guide in guides(site)}


def guide(text: str, source: str = "docs/operate/monitoring.md", **addresses: str) -> Guide:
    return Guide("x", "Guides", source, f"# X\n{text}", tuple(addresses.items()))


def test_every_document_and_every_chapter_is_a_page(pages: dict[str, Guide]) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert documents == {slug for slugs in GROUPS.values() for slug in slugs}
    chapters = {f"reference/{path.stem}" for path in (ROOT / "broker/reference").glob("[0-9]*.md")}
    assert pages.keys() == documents | chapters
    assert all(page.title and not page.title.startswith("#") for page in pages.values())


@pytest.mark.parametrize(
    ("link", "html"),
    [
        ("../devices.md", '<a href="/docs/devices">x</a>'),
        ("../devices.md#mqtt", '<a href="/docs/devices#mqtt">x</a>'),
        ("install.md", '<a href="/docs/operate/install">x</a>'),
        ("../../broker/reference/21-limits.md", '<a href="/docs/reference/21-limits">x</a>'),
        ("../../broker/reference/README.md", '<a href="/docs/reference/01-identifiers-and-rest-conventions">x</a>'),
        ("../../SECURITY.md", "<span>x</span>"),
        ("/docs/api/rules", '<a href="/docs/api/rules">x</a>'),
        ("https://example.org/x.md", '<a href="https://example.org/x.md">x</a>'),
    ],
)
def test_a_link_leads_to_a_page(link: str, html: str) -> None:
    assert f"<p>{html}</p>" in guide(f"[x]({link})").html


def test_markup_in_a_document_is_text() -> None:
    assert "<script>" not in guide("<script>alert(1)</script>\n\n```sh\n<script>\n```").html


def test_examples_have_the_addresses_of_this_service(pages: dict[str, Guide]) -> None:
    setup = pages["devices"].examples[0].code
    assert "URL=https://gateway.example.org " in setup
    assert "HOST=gateway.example.org MQTT_PORT=2883 " in setup
    assert "127.0.0.1" not in setup
    assert "127.0.0.1:8080" in pages["operate/monitoring"].examples[0].code  # an operator's file stays as it is


def test_an_address_is_replaced_as_a_word() -> None:
    (example,) = guide("```sh\n1883 18830 x1883 127.0.0.1:1883\n```", **{"1883": "9"}).examples
    assert example.code == "9 18830 x1883 127.0.0.1:9\n"


def test_sections_are_what_the_search_finds() -> None:
    found = [(one.title, one.anchor, one.text) for one in guide("a\n## B, c\nd\n```sh\ne\n```\n").sections()]
    assert found == [("X", "", "a"), ("B, c", "b-c", "d e\n")]


@pytest.mark.parametrize("heading", ["9.3 Searches", "`GET` and PUT", "Who, what?", "Größe"])
def test_headings_have_the_ids_that_links_in_the_tree_use(heading: str) -> None:
    assert anchor_of(heading) == anchor(heading)
