"""The pages. They are the same for everybody but for the person's name: scripts fetch the rest from the public API."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import jinja2
from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from broker.accounts.open_sessions import shown_session_id
from broker.accounts.room import AccountsRoom
from broker.accounts.sessions import Session
from broker.ids import is_id
from broker.secrets import token_hash
from broker.site import Site
from config.settings import Settings
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.pages import pages_blueprint, redirect
from protocols.http.answers import REST_ROOT
from protocols.http.console.connecting import Connecting
from protocols.http.console.doors import HOME, PROOF, add_doors, sign_in_address
from protocols.http.console.static_files import StaticFiles
from protocols.http.rest.nouns import TO_COME

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script';"
    " trusted-types 'none'"
)
_templates: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("protocols.http.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True)
class Page:
    path: str  # below HOME
    template: str
    place: str  # the link of the navigation to which the page belongs


#: Path and text of each link of the navigation, by place.
_NAVIGATION: Final = {
    "devices": (HOME, "Devices"),
    "rules": (f"{HOME}/rules", "Rules"),
    "scenes": (f"{HOME}/scenes", "Scenes"),
    "exports": (f"{HOME}/exports", "Exports"),
    "applications": (f"{HOME}/applications", "Apps"),
    "account": (f"{HOME}/account", "Account"),
}
#: Places without calls to show. The others are those of this version.
MISSING: Final = {call.capability.lower() for call in TO_COME} & _NAVIGATION.keys()
_ALL_PAGES: Final = (
    Page("", "devices.html", "devices"),
    Page("/devices/new", "new_device.html", "devices"),
    Page("/rules", "rules.html", "rules"),
    Page("/rules/new", "rule.html", "rules"),
    Page("/scenes", "scenes.html", "scenes"),
    Page("/scenes/new", "scene.html", "scenes"),
    Page("/exports", "exports.html", "exports"),
    Page("/applications", "applications.html", "applications"),
    Page("/account", "account.html", "account"),
)
PAGES: Final = tuple(page for page in _ALL_PAGES if page.place not in MISSING)
#: Pages about one object, whose id is in the path.
_OBJECTS: Final = (
    Page("/devices/<id_>", "device.html", "devices"),
    Page("/rules/<id_>", "rule.html", "rules"),
    Page("/scenes/<id_>", "scene.html", "scenes"),
)


def console_blueprint(accounts: AccountsRoom, browsers: Browsers, site: Site, settings: Settings) -> Blueprint:
    routes = pages_blueprint("console")
    static = StaticFiles()
    static.install(routes)
    routes.after_request(_forbid_storing)
    add_doors(routes, accounts.console, accounts.sessions, browsers, site.accounts.path)
    pages = _Pages(browsers, site, static)
    connecting = Connecting(site, settings)
    for page in PAGES:
        routes.add_url_rule(HOME + page.path, f"list {page.path}", _serving(partial(pages.show, page, connecting)))
    for page in _OBJECTS:
        if page.place not in MISSING:
            routes.add_url_rule(HOME + page.path, page.path, _serving(partial(pages.show, page, connecting)))

    @routes.get("/")
    async def root() -> Response:
        return redirect(HOME)

    return routes


async def _forbid_storing(answer: Response) -> Response:
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


def _serving(show: Callable[[str], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    async def serve(id_: str = "") -> Response:  # Quart asks for a function, not for a partial
        if id_ and not is_id(id_):
            raise NotFound
        return await show(id_)

    return serve


class _Pages:
    def __init__(self, browsers: Browsers, site: Site, static: StaticFiles) -> None:
        self._browsers = browsers
        self._accounts = site.accounts.path
        self._static = static

    async def show(self, page: Page, connecting: Connecting, id_: str) -> Response:
        session = await self._browsers.session()
        if session is None:
            return redirect(sign_in_address(self._accounts, request.path))
        return self._render(page, session, {"id": id_, "connecting": connecting.shown()})

    def _render(self, page: Page, session: Session, values: dict[str, object]) -> Response:
        text = _templates.get_template(page.template).render(
            values,
            user=session.user,
            csrf=session.proof(PROOF),
            this_session=shown_session_id(token_hash(session.id)),
            static=self._static.root,
            accounts=self._accounts,
            rest=REST_ROOT,
            navigation=[(place, *link) for place, link in _NAVIGATION.items() if place not in MISSING],
            nav=page.place,
        )
        answer = Response(text, content_type="text/html; charset=utf-8")
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer
