"""The scripts, the style sheet and the texts of the console.

Their path has a digest of all of them, so browsers may keep them.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from quart import Blueprint, Response
from werkzeug.exceptions import NotFound

from config.build import commit
from config.languages import ENGLISH, LANGUAGES
from protocols.http.texts import dictionary
from storage.migrations import VERSION

_TYPES: Final = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_FOREVER: Final = "public, max-age=31536000, immutable"


@cache  # every listener serves the same files
def _contents() -> Mapping[str, bytes]:
    folder = files("protocols.http.console").joinpath("static")
    dictionaries = {_dictionary_name(one): _dictionary_script(one) for one in LANGUAGES if one != ENGLISH}
    return {one.name: one.read_bytes() for one in folder.iterdir()} | dictionaries


def _dictionary_name(language: str) -> str:
    return f"texts-{language}.js"


def _dictionary_script(language: str) -> bytes:
    """The texts for texts.js: a script, and no JSON, so that they are there before the modules run."""
    return b"globalThis.TEXTS = %b;\n" % msgspec.json.encode(dictionary(language))


@cache
def _digest() -> str:
    contents = _contents()
    return hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:16]


class StaticFiles:
    def __init__(self) -> None:
        self._contents = _contents()
        self.root: Final = f"/console/static/{_digest()}"
        #: Tells a page of the version before that it is one: another program, another store, or other scripts.
        self.build: Final = f"{commit()} {VERSION} {_digest()}"

    def texts(self, language: str) -> str:
        """The path of the texts of a language; empty for English, whose texts are in the scripts."""
        return "" if language == ENGLISH else f"{self.root}/{_dictionary_name(language)}"

    def install(self, routes: Blueprint) -> None:
        @routes.get(f"{self.root}/<name>")
        async def static_file(name: str) -> Response:
            content = self._contents.get(name)
            if content is None:
                raise NotFound
            answer = Response(content, content_type=_TYPES[name.rpartition(".")[2]])
            answer.headers["Cache-Control"] = _FOREVER
            return answer
