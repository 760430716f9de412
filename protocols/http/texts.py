"""The texts of the pages in the person's language. `texts.json` has all of them; the English text is the key.

A language is that of the account, if the person has chosen one, else the one that the browser prefers. English texts
that are not in the file, such as reasons of the API, stay English.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from markupsafe import Markup
from quart import g, has_request_context, request

from broker.errors import DomainError
from broker.words import Words
from config.languages import ENGLISH, LANGUAGES

#: A text in one language, or its forms by plural category (Unicode CLDR): `one`, `other`.
Form = str | Mapping[str, str]

TEXTS: Final = msgspec.json.decode(
    files("protocols.http").joinpath("texts.json").read_bytes(), type=dict[str, dict[str, Form]]
)
#: Longer headers come from no browser.
_HEADER_CHARACTERS: Final = 1000
_NAME: Final = re.compile(r"\{(\w+)\}")
#: A pattern with fewer words of its own fits too much.
_ENOUGH: Final = re.compile(r"\w+\W+\w+")
_RANGE: Final = re.compile(r"\s*([A-Za-z]{1,8})(?:-[A-Za-z0-9-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?")


def preferred(accept_language: str) -> str:
    """The language of the pages that fits an Accept-Language header best (RFC 9110, 12.5.4); else English."""
    best, weight = ENGLISH, 0.0
    for part in accept_language[:_HEADER_CHARACTERS].split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            continue
        tag, quality = found[1].lower(), float(found[2] or 1)
        if tag in LANGUAGES and quality > weight:
            best, weight = tag, quality
    return best


def speak(language: str | None) -> None:
    """Answer this request in the language that its person has chosen; None: as the browser wants it."""
    if language in LANGUAGES:
        g.language = language


def language() -> str:
    """The language of this request's answer."""
    if not has_request_context():
        return ENGLISH
    chosen: str | None = g.get("language")
    return chosen or preferred(request.headers.get("Accept-Language", ""))


def said(text: str, /, **names: Any) -> str:
    """A text in the language of the request, with `names` in its placeholders."""
    if isinstance(text, Words):
        return _form(text.pattern).format(**{name: _inner(one) for name, one in text.names.items()})
    return _form(text).format(**names) if names else _form(text)


def rich(text: str, /, **names: Any) -> Markup:
    """A text with elements of HTML in the language of the request. Names are escaped."""
    return Markup(_form(text)).format(**names)  # noqa: S704 - a text of the file or of a template


def plural(one: str, other: str, /, count: int, **names: Any) -> str:
    """The form of a text for a number, which is in its placeholder `count`. `other` is the key."""
    spoken = language()
    form = TEXTS.get(other, {}).get(spoken)
    if not isinstance(form, Mapping):
        form = {"one": one, "other": other}
    # French counts zero as one.
    is_one = count in {0, 1} if spoken == "fr" else count == 1
    return form["one" if is_one else "other"].format(count=count, **names)


def reason_of(error: DomainError) -> str:
    """The text of a refusal, in the language of the request if the file has it."""
    if error.template in TEXTS:
        return _form(error.template).format(**vars(error))
    return alike(str(error))


def alike(text: str) -> str:
    """A finished English text in the language of the request, if the file has its pattern."""
    if text in TEXTS or language() == ENGLISH:
        return _form(text)
    for expression, pattern in _patterns():
        found = expression.fullmatch(text)
        if found is not None:
            return _form(pattern).format(**found.groupdict())
    return text


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """The texts with placeholders, as expressions; those with the most words of their own first."""
    keys = [key for key in TEXTS if _NAME.search(key)]
    keys.sort(key=lambda key: len(_NAME.sub("", key)), reverse=True)
    return tuple((re.compile(_expression(key), re.DOTALL), key) for key in keys if _ENOUGH.search(_NAME.sub("", key)))


def _expression(key: str) -> str:
    """A placeholder ends at the first place where the text goes on as the key does, and nowhere else: texts have words
    of strangers in them, and with more places to try, a long one takes for ever."""
    parts, seen = _NAME.split(key), set[str]()
    found, count = re.escape(parts[0]), len(parts) // 2
    for index, (name, rest) in enumerate(zip(parts[1::2], parts[2::2], strict=True), 1):
        if name in seen:
            found += f"(?P={name}){re.escape(rest)}"
        elif index == count:
            found += f"(?P<{name}>.+){re.escape(rest)}"
        else:
            found += f"(?>(?P<{name}>.+?){re.escape(rest)})"
        seen.add(name)
    return found


def dictionary(spoken: str) -> dict[str, Form]:
    """All texts in a language, by their English text."""
    return {key: forms[spoken] for key, forms in TEXTS.items() if spoken in forms}


def _form(text: str) -> str:
    form = TEXTS.get(text, {}).get(language(), text)
    return form if isinstance(form, str) else text


def _inner(value: Any) -> Any:
    return said(value) if isinstance(value, Words) else value
