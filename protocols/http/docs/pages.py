"""The pages: the overview, and one for each chapter. They change only when the daemon's address changes."""

from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

import jinja2
from quart import Blueprint, Response

from broker.errors import NotFound
from broker.site import Site
from protocols.http.accounts.pages import pages_blueprint
from protocols.http.answers import REST_ROOT
from protocols.http.docs.chapters import DocumentedChapter, chapters, slug_of
from protocols.http.docs.guides import Guide, guides
from protocols.http.docs.prose import sections, with_code
from protocols.http.openapi.serving import described
from protocols.http.rest.nouns import TO_COME

DOCS: Final = "/docs"
_POLICY: Final = "default-src 'none'; style-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
_templates: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("protocols.http.docs"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@cache  # every listener serves the same file
def _style() -> bytes:
    return files("protocols.http.docs").joinpath("static/docs.css").read_bytes()


def docs_blueprint(site: Site) -> Blueprint:
    routes = pages_blueprint("docs")
    style = _style()
    book: _Book | None = None

    def page(slug: str) -> Response:
        nonlocal book
        if book is None or book.origin != site.origin:  # the port is only known once the listener is open
            book = _Book(site)
        text = book.page(slug)
        if text is None:
            raise NotFound
        answer = Response(text, content_type="text/html; charset=utf-8")
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer

    @routes.get(DOCS)
    async def overview() -> Response:
        return page("")

    @routes.get(f"{DOCS}/<slug>")
    async def chapter(slug: str) -> Response:
        return page(slug)

    @routes.get(f"{DOCS}/static/docs.css")
    async def style_sheet() -> Response:
        return Response(style, content_type="text/css; charset=utf-8")

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
        self._guides = {guide.slug: guide for guide in guides(site)}
        self._chapters = {chapter.slug: chapter for chapter in _chapters(server_url)}
        self._server = server_url
        self._accounts = site.accounts.path
        self._pages: dict[str, str] = {}

    def page(self, slug: str) -> str | None:
        """A page by its slug, which is empty for the overview; None if there is no such page."""
        if slug not in self._pages:
            if not slug:
                self._pages[slug] = self._overview()
            elif slug in self._guides:
                self._pages[slug] = self._guide(self._guides[slug])
            elif slug in self._chapters:
                self._pages[slug] = self._chapter(self._chapters[slug])
        return self._pages.get(slug)

    def _overview(self) -> str:
        return self._render(
            "overview.html",
            slug="",
            title="The API",
            sections=self._sections,
            server=self._server,
            missing=tuple(dict.fromkeys(call.capability for call in TO_COME)),
        )

    def _guide(self, guide: Guide) -> str:
        return self._render("guide.html", slug=guide.slug, title=guide.title, guide=guide)

    def _chapter(self, chapter: DocumentedChapter) -> str:
        return self._render("chapter.html", slug=chapter.slug, title=chapter.title, chapter=chapter)

    def _render(self, template: str, **values: object) -> str:
        return _templates.get_template(template).render(
            values,
            docs=DOCS,
            rest=REST_ROOT,
            accounts=self._accounts,
            guides=tuple(self._guides.values()),
            chapters=tuple(self._chapters.values()),
        )


_templates.filters["with_code"] = with_code
_templates.filters["slug"] = slug_of
