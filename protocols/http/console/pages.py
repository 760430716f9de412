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


PAGES: Final = (
    Page("", "devices.html", "devices"),
    Page("/devices/new", "new_device.html", "devices"),
    Page("/exports", "exports.html", "exports"),
    Page("/applications", "applications.html", "applications"),
    Page("/account", "account.html", "account"),
)
_DEVICE: Final = Page("/devices/<did>", "device.html", "devices")
#: Place, path and text of each link of the navigation.
_NAVIGATION: Final = (
    ("devices", HOME, "Devices"),
    ("exports", f"{HOME}/exports", "Exports"),
    ("applications", f"{HOME}/applications", "Apps"),
    ("account", f"{HOME}/account", "Account"),
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
        routes.add_url_rule(HOME + page.path, page.template.removesuffix(".html"), _serving(partial(pages.show, page)))

    @routes.get("/")
    async def root() -> Response:
        return redirect(HOME)

    @routes.get(HOME + _DEVICE.path)
    async def device(did: str) -> Response:
        if not is_id(did):
            raise NotFound
        return await pages.show(_DEVICE, did=did, connecting=connecting.shown())

    return routes


async def _forbid_storing(answer: Response) -> Response:
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


def _serving(show: Callable[[], Awaitable[Response]]) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:  # Quart asks for a function, not for a partial
        return await show()

    return serve


class _Pages:
    def __init__(self, browsers: Browsers, site: Site, static: StaticFiles) -> None:
        self._browsers = browsers
        self._accounts = site.accounts.path
        self._static = static

    async def show(self, page: Page, **values: object) -> Response:
        session = await self._browsers.session()
        if session is None:
            return redirect(sign_in_address(self._accounts, request.path))
        return self._render(page, session, values)

    def _render(self, page: Page, session: Session, values: dict[str, object]) -> Response:
        text = _templates.get_template(page.template).render(
            values,
            user=session.user,
            csrf=session.proof(PROOF),
            this_session=shown_session_id(token_hash(session.id)),
            static=self._static.root,
            accounts=self._accounts,
            rest=REST_ROOT,
            navigation=_NAVIGATION,
            nav=page.place,
        )
        answer = Response(text, content_type="text/html; charset=utf-8")
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer
