"""The pages. They are the same for everybody but for the person's name: scripts fetch the rest from the public API."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from broker.accounts.open_sessions import shown_session_id
from broker.accounts.room import AccountsRoom
from broker.accounts.sessions import Session
from broker.boards.room import BoardsRoom
from broker.found.room import FoundRoom
from broker.ids import is_device_type_id, is_id
from broker.secrets import token_hash
from broker.site import Site
from config.languages import LANGUAGES
from config.settings import Settings
from config.shown_command import around_command, shown_program
from protocols.http.accounts.account import facts_of
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.pages import pages_blueprint, redirect
from protocols.http.answers import REST_ROOT
from protocols.http.console.connecting import Connecting
from protocols.http.console.doors import HOME, PROOF, add_doors, sign_in_address
from protocols.http.console.kiosk import add_kiosk
from protocols.http.console.static_files import StaticFiles
from protocols.http.templates import templates_of
from protocols.http.texts import language

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script';"
    " trusted-types 'none'"
)
_templates: Final = templates_of("protocols.http.console")


class Page(msgspec.Struct, frozen=True):
    path: str  # below HOME
    template: str
    place: str  # the link of the navigation to which the page belongs
    area: str = "console"
    title: str = ""  # of a page whose script makes it
    script: str = ""


#: Path and text of each link of the navigation, by place.
_NAVIGATION: Final = {
    "devices": (HOME, "Devices"),
    "board": (f"{HOME}/board", "Board"),
    "rules": (f"{HOME}/rules", "Rules"),
    "alarms": (f"{HOME}/alarms", "Alarms"),
    "scenes": (f"{HOME}/scenes", "Scenes"),
    "exports": (f"{HOME}/exports", "Exports"),
    "data": (f"{HOME}/data", "My data"),
    "account": (f"{HOME}/account", "Account"),
}
PAGES: Final = (
    Page("", "devices.html", "devices"),
    Page("/devices/new", "new_device.html", "devices"),
    Page("/board", "board.html", "board"),
    Page("/rules", "rules.html", "rules"),
    Page("/rules/new", "rule.html", "rules"),
    Page("/alarms", "alarms.html", "alarms"),
    Page("/scenes", "scenes.html", "scenes"),
    Page("/scenes/new", "scene.html", "scenes"),
    Page("/exports", "exports.html", "exports"),
    Page("/data", "data.html", "data"),
    Page("/account", "account.html", "account"),
    Page("/signed-in", "signed_in.html", "account"),
)
#: Pages about one object, whose id is in the path.
OBJECTS: Final = (
    Page("/devices/<id_>", "device.html", "devices"),
    Page("/rules/<id_>", "rule.html", "rules"),
    Page("/scenes/<id_>", "scene.html", "scenes"),
    Page("/types/<id_>/sheet", "sheet.html", "data"),
)


_DEVELOPER: Final = {
    "overview": ("/developer", "Overview"),
    "applications": ("/developer/applications", "Apps"),
    "types": ("/developer/types", "Types"),
    "subscriptions": ("/developer/subscriptions", "Subscriptions"),
    "trials": ("/developer/trials", "Trials"),
    "usage": ("/developer/usage", "Usage"),
}
_OPERATOR: Final = {
    "overview": ("/operator", "Overview"),
    "people": ("/operator/people", "People"),
    "devices": ("/operator/devices", "Devices"),
    "refusals": ("/operator/refusals", "Refusals"),
    "audit": ("/operator/audit", "Audit"),
    "backups": ("/operator/backups", "Backups"),
    "decisions": ("/operator/decisions", "Decisions"),
}
#: The navigation of each area.
AREAS: Final = {"console": _NAVIGATION, "developer": _DEVELOPER, "operator": _OPERATOR}


def _of_area(area: str, *pages: tuple[str, str, str, str]) -> tuple[Page, ...]:
    return tuple(Page(f"/{area}{path}", "dashboard.html", place, area, *rest) for path, place, *rest in pages)


#: Pages for members of organizations and for operators (reference 27.21): whole path, place, title, script.
DASHBOARDS: Final = (
    *_of_area(
        "developer",
        ("", "overview", "Developer", "dev-overview.js"),
        ("/applications", "applications", "Applications", "dev-applications.js"),
        ("/types", "types", "Device types", "dev-types.js"),
        ("/types/<id_>", "types", "Device type", "dev-type.js"),
        ("/types/<id_>/manifest", "types", "Manifest", "dev-manifest.js"),
        ("/types/<id_>/list", "types", "Approved list", "dev-approved.js"),
        ("/types/<id_>/devices", "types", "Devices", "dev-managed.js"),
        ("/types/<id_>/firmware", "types", "Firmware", "dev-firmware.js"),
        ("/types/<id_>/connector", "types", "Connector", "dev-connector.js"),
        ("/types/<id_>/plans", "types", "Plans", "dev-plans.js"),
        ("/types/<id_>/errors", "types", "Errors", "dev-errors.js"),
        ("/tasks/<id_>", "types", "Task", "dev-task.js"),
        ("/subscriptions", "subscriptions", "Subscriptions", "dev-subscriptions.js"),
        ("/subscriptions/<id_>", "subscriptions", "Subscription", "dev-subscription.js"),
        ("/trials", "trials", "Trials", "dev-trials.js"),
        ("/trials/<id_>", "trials", "Trial", "dev-trial.js"),
        ("/usage", "usage", "Usage", "dev-usage.js"),
    ),
    *_of_area(
        "operator",
        ("", "overview", "Operator", "op-overview.js"),
        ("/people", "people", "People", "op-people.js"),
        ("/devices", "devices", "Devices and connections", "op-devices.js"),
        ("/refusals", "refusals", "Refusals", "op-refusals.js"),
        ("/audit", "audit", "Audit", "op-audit.js"),
        ("/backups", "backups", "Backups", "op-backups.js"),
        ("/decisions", "decisions", "Decisions", "op-decisions.js"),
    ),
)


def console_blueprint(
    accounts: AccountsRoom, browsers: Browsers, site: Site, settings: Settings, found: FoundRoom, boards: BoardsRoom
) -> Blueprint:
    routes = pages_blueprint("console")
    static = StaticFiles()
    static.install(routes)
    routes.after_request(_forbid_storing)
    add_doors(routes, accounts.console, accounts.sessions, browsers, site.accounts.path, build=static.build)
    pages = _Pages(accounts, browsers, site, static, found)
    connecting = Connecting(site, settings)
    for page in PAGES:
        routes.add_url_rule(HOME + page.path, f"list {page.path}", _serving(partial(pages.show, page, connecting)))
    for page in OBJECTS:
        routes.add_url_rule(HOME + page.path, page.path, _serving(partial(pages.show, page, connecting)))

    for page in DASHBOARDS:
        routes.add_url_rule(page.path, page.path, _serving(partial(pages.show, page, connecting)))

    add_kiosk(routes, boards.kiosk)

    @routes.get(f"{HOME}/kiosk")
    async def kiosk() -> Response:
        """The page of a read-only link: the same for everybody, since no server learns the secret from its address."""
        return pages.for_everybody("kiosk.html")

    @routes.get(f"{HOME}/applications")
    async def applications() -> Response:
        return redirect(f"{HOME}/account#applications")  # where they were in earlier versions

    @routes.get("/")
    async def root() -> Response:
        return redirect(HOME)

    return routes


async def _forbid_storing(answer: Response) -> Response:
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


def _serving(show: Callable[[str], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    async def serve(id_: str = "") -> Response:  # Quart asks for a function, not for a partial
        if (
            id_
            and not is_id(id_)
            and not (request.path.startswith(("/developer/types/", f"{HOME}/types/")) and is_device_type_id(id_))
        ):
            raise NotFound
        return await show(id_)

    return serve


class _Pages:
    def __init__(
        self, accounts: AccountsRoom, browsers: Browsers, site: Site, static: StaticFiles, found: FoundRoom
    ) -> None:
        self._rooms = accounts
        self._found = found.finder
        self._organizations = accounts.organizations
        self._operators = accounts.operators
        self._browsers = browsers
        self._accounts = site.accounts.path
        self._static = static

    async def show(self, page: Page, connecting: Connecting, id_: str) -> Response:
        session = await self._browsers.session()
        if session is None:
            return redirect(sign_in_address(self._accounts, request.path))
        is_member = await self._organizations.has_developer(session.user.key)
        areas = {"developer": is_member, "operator": self._operators.has(session.user)}
        values: dict[str, object] = {"id": id_, "connecting": connecting.shown(), "areas": areas}
        # The configuration is of the machine: only an operator is shown where it is.
        before, behind = around_command() if areas["operator"] else (shown_program(), "")
        values |= {"program": shown_program(), "before": before, "behind": behind}
        if page.template == "devices.html":
            values["finds"] = self._found is not None and self._found.has_client(session.user.key)
        if page.template == "account.html":
            values |= {"account": await facts_of(self._rooms, session), "languages": LANGUAGES}
        return self._render(page, session, values)

    def for_everybody(self, template: str) -> Response:
        """A page without a session."""
        shown = language()
        values = {"static": self._static.root, "accounts": self._accounts, "texts": self._static.texts(shown)}
        return self._answer(_templates.get_template(template).render(values))

    def _render(self, page: Page, session: Session, values: dict[str, object]) -> Response:
        text = _templates.get_template(page.template).render(
            values,
            user=session.user,
            csrf=session.proof(PROOF),
            this_session=shown_session_id(token_hash(session.id)),
            static=self._static.root,
            build=self._static.build,
            accounts=self._accounts,
            rest=REST_ROOT,
            texts=self._static.texts(language()),
            navigation=[(place, *link) for place, link in AREAS[page.area].items()],
            nav=page.place,
            area=page.area,
            page=page,
        )
        return self._answer(text)

    def _answer(self, text: str) -> Response:
        answer = Response(text, content_type="text/html; charset=utf-8")
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer
