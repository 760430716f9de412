"""The documents of `docs/` and the reference as pages: the same files, with the addresses of this service.

Their examples are run as they stand (tests/e2e/test_guides.py, tests/e2e/test_readme.py). The word after the language
of a block says which test runs it; pages do not show it.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from broker.site import Site
from config.settings import Address
from protocols.http.docs.prose import breakable

DOCS: Final = "/docs"
#: In the order of the menu. A name is that of a file below `docs/`, and the page's address below `/docs`.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Guides": (
        "first-steps",
        "own-devices",
        "devices",
        "topics-and-hooks",
        "applications",
        "assistants",
        "people",
        "my-data",
        "manifests",
        "rules-scenes-models",
        "device-management",
        "provision-file",
        "trials-and-money",
        "limits",
        "recipes",
    ),
    "Operate": (
        "operate/install",
        "operate/tls-and-proxy",
        "operate/backup-upgrade",
        "operate/several-machines",
        "operate/several-nodes",
        "operate/upstream",
        "operate/monitoring",
        "operate/troubleshooting",
    ),
}
REFERENCE: Final = "Reference"
#: The addresses that the files show, and the listener whose port stands for each.
_PORTS: Final = {"1883": "mqtt", "5683": "coap", "5684": "coaps", "5686": "lwm2m_dtls"}
_HOST: Final = "127.0.0.1"
_DEFAULT: Final = f"{_HOST}:8080"


class Example(msgspec.Struct, frozen=True):
    """A block of code. `when` is the word after its language; usually there is none."""

    language: str
    when: str
    code: str


class Section(msgspec.Struct, frozen=True):
    """A part of a page for the search: its heading, the heading's anchor, and the words below it."""

    title: str
    anchor: str
    text: str


@dataclass(frozen=True)
class Guide:
    """A document. `source` is its path in the tree, which its relative links start from."""

    slug: str
    group: str
    source: str
    text: str
    addresses: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ")

    @cached_property
    def _tokens(self) -> list[Token]:
        tokens = _markdown.parse(self.text.partition("\n")[2])
        for token, following in zip(tokens, [*tokens[1:], None], strict=True):
            if token.type == "heading_open" and following is not None:
                token.attrSet("id", anchor_of(following.content))
            elif token.type == "fence":
                token.content = self._addressed(token.content)
            for child in token.children or ():
                if child.type == "link_open":
                    self._lead(child)
        _name_cells(tokens)
        return tokens

    @cached_property
    def html(self) -> Markup:
        return Markup(_markdown.renderer.render(self._tokens, _markdown.options, {}))  # noqa: S704

    @property
    def examples(self) -> tuple[Example, ...]:
        found = (token for token in self._tokens if token.type == "fence")
        return tuple(Example(*token.info.partition(" ")[::2], token.content) for token in found)

    def sections(self) -> Iterator[Section]:
        title, anchor, words = self.title, "", list[str]()
        in_heading = False
        for token in self._tokens:
            if token.type == "heading_open":
                yield Section(title, anchor, " ".join(words))
                anchor, words, in_heading = str(token.attrGet("id")), [], True
            elif token.type == "inline" and in_heading:
                title, in_heading = token.content, False
            elif token.type in {"inline", "fence"}:
                words.append(token.content)
        yield Section(title, anchor, " ".join(words))

    def _addressed(self, code: str) -> str:
        for shown, actual in self.addresses:
            code = re.sub(rf"(?<![\w.]){re.escape(shown)}(?!\w)", actual.replace("\\", r"\\"), code)
        return code

    def _lead(self, link: Token) -> None:
        """Turn a link between files into one between pages. Files that have no page are named without a link."""
        href = str(link.attrGet("href"))
        if href.startswith(("/", "#", "https://")):
            return
        path, _, fragment = href.partition("#")
        slug = _slug_of(posixpath.normpath(posixpath.join(posixpath.dirname(self.source), path)))
        if slug is None:
            link.attrs = {"href": "", "class": "file"}
        else:
            link.attrSet("href", f"{DOCS}/{slug}" + (f"#{fragment}" if fragment else ""))


def guides(site: Site) -> Iterator[Guide]:
    """All documents and chapters of the reference, with the addresses by which the service is known."""
    addresses, documents = tuple(_addresses(site)), files("protocols.http.docs").joinpath("documents")
    for group, slugs in GROUPS.items():
        for slug in slugs:
            text = documents.joinpath(f"{slug}.md").read_text(encoding="utf-8")
            yield Guide(slug, group, f"docs/{slug}.md", text, addresses if group == "Guides" else ())
    for name in _chapters_of_reference():
        text = files("broker").joinpath(f"reference/{name}.md").read_text(encoding="utf-8")
        yield Guide(f"reference/{name}", REFERENCE, f"broker/reference/{name}.md", text, ())


def anchor_of(heading: str) -> str:
    """The id of a heading, as hosts of repositories make it: lower case, dashes, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def _chapters_of_reference() -> tuple[str, ...]:
    names = (file.name for file in files("broker").joinpath("reference").iterdir())
    return tuple(sorted(name.removesuffix(".md") for name in names if re.fullmatch(r"\d\d-.+\.md", name)))


def _slug_of(path: str) -> str | None:
    """The page of a file of the tree, if it has one."""
    name = path.removesuffix(".md")
    if name == "broker/reference/README":
        return f"reference/{_chapters_of_reference()[0]}"
    reference = name.removeprefix("broker/reference/")
    if reference in _chapters_of_reference():
        return f"reference/{reference}"
    slug = name.removeprefix("docs/")
    return slug if any(slug in slugs for slugs in GROUPS.values()) else None


def _addresses(site: Site) -> Iterator[tuple[str, str]]:
    origin = urlsplit(site.origin)
    socket = origin._replace(scheme={"https": "wss"}.get(origin.scheme, "ws")).geturl()
    yield f"http://{_DEFAULT}/accounts", site.accounts.url
    yield f"http://{_DEFAULT}", site.origin
    yield f"ws://{_DEFAULT}", socket
    yield f'["{_DEFAULT}"]', f'["{origin.netloc}"]'  # as Prometheus is told
    yield _HOST, origin.hostname or "localhost"
    for port, name in _PORTS.items():
        yield port, str(_port(site.addresses.get(name), port))


def _port(address: Address | None, default: str) -> int:
    return int(default) if address is None else address.port


def _code(_renderer: object, tokens: Sequence[Token], index: int, _options: object, _env: Any) -> str:
    return f"<code>{breakable(tokens[index].content)}</code>"


def _text(_renderer: object, tokens: Sequence[Token], index: int, _options: object, _env: Any) -> str:
    return Markup(" ").join(map(breakable, tokens[index].content.split(" ")))


def _code_block(_renderer: object, tokens: Sequence[Token], index: int, _options: object, _env: Any) -> str:
    return f'<pre tabindex="0"><code>{escape(tokens[index].content.rstrip())}</code></pre>\n'


def _link(renderer: Any, tokens: Sequence[Token], index: int, options: Any, _env: Any) -> str:
    token = tokens[index]
    if token.attrGet("class") == "file":
        return "<span>"
    return str(renderer.renderToken(tokens, index, options, {}))


def _link_end(renderer: Any, tokens: Sequence[Token], index: int, options: Any, _env: Any) -> str:
    opened = next(token for token in reversed(tokens[:index]) if token.type == "link_open")
    return "</span>" if opened.attrGet("class") == "file" else str(renderer.renderToken(tokens, index, options, {}))


def _name_cells(tokens: Sequence[Token]) -> None:
    """Give each cell of a table the name of its column, which it shows on a phone."""
    columns: list[str] = []
    at = 0
    for token, following in pairwise(tokens):
        if token.type == "thead_open":
            columns = []
        elif token.type == "th_open":
            columns.append(following.content.replace("`", ""))
        elif token.type == "tr_open":
            at = 0
        elif token.type == "td_open":
            token.attrSet("data-label", columns[at])
            at += 1


_markdown: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_markdown.add_render_rule("fence", _code_block)
_markdown.add_render_rule("code_inline", _code)
_markdown.add_render_rule("text", _text)
_markdown.add_render_rule("link_open", _link)
_markdown.add_render_rule("link_close", _link_end)
