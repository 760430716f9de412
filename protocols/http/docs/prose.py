"""The Markdown that the document uses: headings, paragraphs, lists and `code`."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from markupsafe import Markup, escape

#: Not in numbers, such as addresses and ports, and not before the extension of a file.
_BEHIND_A_SIGN: Final = re.compile(
    r"(?<=[^\s.]/|\S[,=&?]|\w_)(?=[^\s/._:,=&?])"
    r"|(?<=\S:)(?=[^\s/._:,=&?\d])"
    r"|(?<=[^\W\d]\.)(?=[^\s/._:,=&?\d])(?!\w{1,4}(?![\w.]))"
)
_OPTION: Final = re.compile(r"(?<![\w-])--[\w-]+")
_LINE: Final = 16  # shorter code has room in every line


class ProseBlock(msgspec.Struct, frozen=True):
    """A paragraph, or the items of a list."""

    is_list: bool
    texts: tuple[str, ...]


class ProseSection(msgspec.Struct, frozen=True):
    title: str
    blocks: tuple[ProseBlock, ...]


def sections(markdown: str) -> tuple[ProseSection, ...]:
    """The sections of a text, each with a heading `## …`."""
    parts = (part.partition("\n") for part in markdown.split("## ")[1:])
    return tuple(ProseSection(title.strip(), tuple(_blocks(text))) for title, _, text in parts)


def _blocks(text: str) -> Iterator[ProseBlock]:
    for block in text.strip().split("\n\n"):
        is_list = block.startswith("- ")
        items = block.removeprefix("- ").split("\n- ") if is_list else [block]
        yield ProseBlock(is_list, tuple(" ".join(item.split()) for item in items))


def with_code(text: str) -> Markup:
    """Text as HTML, in which parts between backticks are code."""
    parts = text.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(breakable(part)) if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def breakable(code: str) -> Markup:
    """Code as HTML. A path or an address may go on in the next line behind its signs; no name of it is broken, and no
    option of a command."""
    parts = _BEHIND_A_SIGN.split(code) if len(code) > _LINE else [code]
    return Markup("<wbr>").join(map(_with_whole_options, parts))


def _with_whole_options(code: str) -> Markup:
    return Markup(_OPTION.sub(r'<span class="whole">\g<0></span>', str(escape(code))))  # noqa: S704
