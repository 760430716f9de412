"""The pages: the overview, the documents, and the calls. They change only when the daemon's address changes."""

from functools import cache, lru_cache
from importlib.resources import files
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec
from quart import Blueprint, Response, abort

from broker.site import Site
from protocols.http.accounts.pages import pages_blueprint
from protocols.http.answers import REST_ROOT
from protocols.http.docs.chapters import DocumentedChapter, chapters, slug_of
from protocols.http.docs.guides import DOCS, Guide, guides
from protocols.http.docs.objects import objects_guide
from protocols.http.docs.prose import breakable, sections, with_code
from protocols.http.openapi.serving import described
from protocols.http.templates import templates_of

_CALLS: Final = f"{DOCS}/api"
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_STATIC: Final = {"docs.css": "text/css; charset=utf-8", "docs.js": "text/javascript; charset=utf-8"}
_templates: Final = templates_of("protocols.http.docs")


@cache  # every listener serves the same files
def _file(name: str) -> bytes:
    return files("protocols.http.docs").joinpath(f"static/{name}").read_bytes()


def docs_blueprint(site: Site) -> Blueprint:
    routes = pages_blueprint("docs")
    static = {name: _file(name) for name in _STATIC}
    known: _Book | None = None

    def book() -> _Book:
        nonlocal known
        if known is None or known.origin != site.origin:  # the port is only known once the listener is open
            known = _Book(site)
        return known

    def page(slug: str) -> Response:
        text = book().page(slug)
        if text is None:
            abort(404)
        answer = Response(text, content_type="text/html; charset=utf-8")
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer

    @routes.get(DOCS)
    async def overview() -> Response:
        return page("")

    @routes.get(f"{DOCS}/<path:slug>")
    async def chapter(slug: str) -> Response:
        return page(slug)

    @routes.get(f"{DOCS}/static/<name>")
    async def file(name: str) -> Response:
        if name not in static:
            abort(404)
        return Response(static[name], content_type=_STATIC[name])

    @routes.get(f"{DOCS}/search.json")
    async def search() -> Response:
        return Response(book().index(), content_type="application/json; charset=utf-8")

    return routes


@lru_cache(1)  # the listeners share one address, as a rule
def _chapters(server_url: str) -> tuple[DocumentedChapter, ...]:
    return chapters(described(server_url))


class _Book:
    """All pages for one address. A page is rendered at its first request."""

    def __init__(self, site: Site) -> None:
        server_url = f"{site.origin}{REST_ROOT}"
        self.origin = site.origin
        self._sections = sections(described(server_url)["info"]["description"])
        self._guides = {guide.slug: guide for guide in (*guides(site), objects_guide())}
        self._groups = [(name, list(inner)) for name, inner in groupby(self._guides.values(), attrgetter("group"))]
        self._chapters = {f"api/{chapter.slug}": chapter for chapter in _chapters(server_url)}
        self._server = server_url
        self._accounts = site.accounts.path
        self._pages: dict[str, str] = {}
        self._index = b""

    def page(self, slug: str) -> str | None:
        """A page by its slug, which is empty for the overview; None if there is no such page."""
        if slug not in self._pages:
            if not slug:
                self._pages[slug] = self._overview()
            elif slug in self._guides:
                self._pages[slug] = self._guide(self._guides[slug])
            elif slug in self._chapters:
                self._pages[slug] = self._chapter(slug)
        return self._pages.get(slug)

    def index(self) -> bytes:
        """The index for the search: a list of `{"title", "of", "href", "text"}`, one for each section and each call."""
        if not self._index:
            found = [
                {
                    "title": section.title,
                    "of": guide.title,
                    "href": f"{DOCS}/{slug}#{section.anchor}",
                    "text": section.text,
                }
                for slug, guide in self._guides.items()
                for section in guide.sections()
            ]
            found += [
                {
                    "title": f"{call.method} {call.path}",
                    "of": chapter.title,
                    "href": f"{DOCS}/{slug}#{call.anchor}",
                    "text": f"{call.summary} {call.about}",
                }
                for slug, chapter in self._chapters.items()
                for call in chapter.calls
            ]
            self._index = msgspec.json.encode(found)
        return self._index

    def _overview(self) -> str:
        return self._render(
            "overview.html",
            slug="",
            title="Documentation",
            sections=self._sections,
            server=self._server,
        )

    def _guide(self, guide: Guide) -> str:
        return self._render("guide.html", slug=guide.slug, title=guide.title, guide=guide)

    def _chapter(self, slug: str) -> str:
        chapter = self._chapters[slug]
        return self._render("chapter.html", slug=slug, title=chapter.title, chapter=chapter)

    def _render(self, template: str, **values: object) -> str:
        return _templates.get_template(template).render(
            values,
            docs=DOCS,
            calls=_CALLS,
            rest=REST_ROOT,
            accounts=self._accounts,
            groups=self._groups,
            chapters=tuple(self._chapters.values()),
        )


_templates.filters["with_code"] = with_code
_templates.filters["breakable"] = breakable
_templates.filters["slug"] = slug_of
