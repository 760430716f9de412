"""The guides for makers of devices and applications: Markdown in guides/, with the addresses of this service.

Their examples are run as they stand (tests/e2e/test_guides.py). The word after the language of a block says when; pages
do not show it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from broker.site import Site
from config.settings import Address

#: In the order of the menu; a name is that of a file, and the page's address.
NAMES: Final = ("connecting-devices", "signing-in", "manifests-and-transforms", "limits", "recipes")
_PORTS: Final = {"mqtt": 1883, "coap": 5683, "coaps": 5684}
_SETUP: Final = """The lines below use these variables:

```sh setup
export URL=@URL@ WS_URL=@WS_URL@ ACCOUNTS=@ACCOUNTS@
export HOST=@HOST@ MQTT_PORT=@MQTT_PORT@ COAP_PORT=@COAP_PORT@ COAPS_PORT=@COAPS_PORT@
export DEVICE="id of the device" DEVICE_TOKEN="its token" TOKEN="a user token"
```"""


@dataclass(frozen=True, slots=True)
class Example:
    """A block of code in a guide. `when` is the word after its language; usually there is none."""

    language: str
    when: str
    code: str


@dataclass(frozen=True, slots=True)
class Guide:
    slug: str
    title: str
    html: Markup
    examples: tuple[Example, ...]


def guides(site: Site) -> Iterator[Guide]:
    """All guides, with the addresses by which the service is known."""
    values = _values(site)
    for name in NAMES:
        text = files("protocols.http.docs").joinpath(f"guides/{name}.md").read_text(encoding="utf-8")
        text = text.replace("@setup@", _SETUP)
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        heading, _, rest = text.partition("\n")
        yield _guide(name, heading.removeprefix("# "), rest)


def _values(site: Site) -> Mapping[str, str]:
    origin = urlsplit(site.origin)
    ports = {f"{name.upper()}_PORT": str(_port(site.addresses.get(name), name)) for name in _PORTS}
    return {
        "URL": site.origin,
        "WS_URL": origin._replace(scheme={"https": "wss"}.get(origin.scheme, "ws")).geturl(),
        "ACCOUNTS": site.accounts.url,
        "HOST": origin.hostname or "localhost",
        **ports,
    }


def _port(address: Address | None, name: str) -> int:
    return _PORTS[name] if address is None else address.port


@lru_cache(len(NAMES))  # the listeners share one address, as a rule
def _guide(slug: str, title: str, text: str) -> Guide:
    tokens = _markdown.parse(text)
    examples = tuple(_example(token) for token in tokens if token.type == "fence")
    return Guide(slug, title, Markup(_markdown.renderer.render(tokens, _markdown.options, {})), examples)  # noqa: S704


def _example(token: Token) -> Example:
    language, _, when = token.info.partition(" ")
    return Example(language, when, token.content)


def _code_block(_renderer: object, tokens: Sequence[Token], index: int, _options: object, _env: Any) -> str:
    return f'<pre tabindex="0"><code>{escape(tokens[index].content.rstrip())}</code></pre>\n'


_markdown: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_markdown.add_render_rule("fence", _code_block)
