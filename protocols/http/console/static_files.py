"""The scripts and the style sheet of the console. Their path has a digest of all of them, so browsers may keep them."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from quart import Blueprint, Response
from werkzeug.exceptions import NotFound

from config.build import commit
from storage.migrations import VERSION

_TYPES: Final = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_FOREVER: Final = "public, max-age=31536000, immutable"


@cache  # every listener serves the same files
def _contents() -> Mapping[str, bytes]:
    folder = files("protocols.http.console").joinpath("static")
    return {one.name: one.read_bytes() for one in folder.iterdir()}


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

    def install(self, routes: Blueprint) -> None:
        @routes.get(f"{self.root}/<name>")
        async def static_file(name: str) -> Response:
            content = self._contents.get(name)
            if content is None:
                raise NotFound
            answer = Response(content, content_type=_TYPES[name.rpartition(".")[2]])
            answer.headers["Cache-Control"] = _FOREVER
            return answer
