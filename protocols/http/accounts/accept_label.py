"""/accept/label, the page that the QR code of a device's label leads to (reference 6.6)."""

from urllib.parse import urlencode

from quart import Blueprint, Response

from broker.accounts.sessions import Session
from broker.devices.labels import LabelledDevice, Labels
from broker.errors import DomainError
from broker.words import Words
from protocols.http.accounts.browsers import LABEL_PARAMETER, OLD_FORM, Browsers
from protocols.http.accounts.forms import FormData, csrf_subject
from protocols.http.accounts.pages import notice, pages_blueprint, render_page
from protocols.http.reading import Query

#: Stands for a code that the person is still to type.
_NONE = "-"


def accept_label_blueprint(labels: Labels, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("accept_label")

    @routes.get("/accept/label")
    async def show() -> Response:
        """Show the device. GET changes nothing, because phones open links to preview them; the page's form claims it.
        Without a code the page asks for one. A person who is not signed in is told nothing of a label."""
        code = (Query.of_request().text("code") or "").removeprefix(_NONE)
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(_query(code))
        return await _page(session, code) if code else _code_page(session)

    @routes.post("/accept/label")
    async def claim() -> Response:
        form = await FormData.of_request()
        code = form.text("code")
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(_query(code))
        try:
            found = await labels.find(code, session.user)
            if found.is_own:
                return _done(found)
            if not form.text("csrf"):  # the code was typed
                return await _page(session, code)
            if not session.proves(form.text("csrf"), *csrf_subject("label", found)):
                return await _page(session, code, status=403, problem=OLD_FORM)
            return _done(await labels.claim(code, session.user))
        except DomainError as refused:
            return _code_page(session, refused=refused)

    async def _page(session: Session, code: str, *, status: int = 200, problem: str = "") -> Response:
        try:
            found = await labels.find(code, session.user)
        except DomainError as refused:
            return _code_page(session, refused=refused)
        if found.is_own:
            return _done(found)
        return render_page(
            "accept_label.html",
            status,
            problem=problem,
            user=session.user,
            device=found,
            code=code,
            csrf=session.proof(*csrf_subject("label", found)),
        )

    return routes


def _code_page(session: Session, *, refused: DomainError | None = None) -> Response:
    """Ask for the code of a label; `refused` says what is wrong with the one that was given."""
    return render_page("label_code.html", refused=refused, user=session.user)


def _done(found: LabelledDevice) -> Response:
    return notice(
        "The device is yours",
        Words("{name} is among your devices now. Nobody can use its label again.", name=found.name),
        console=(f"/devices/{found.id}", Words("Open {name}", name=found.name)),
    )


def _query(code: str) -> bytes:
    return urlencode({LABEL_PARAMETER: code or _NONE}).encode()
