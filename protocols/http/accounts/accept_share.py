"""/accept/share, the page that the link of a device share invitation leads to (reference 6.3)."""

from urllib.parse import urlencode

from quart import Blueprint, Response

from broker.accounts.sessions import Session
from broker.devices.shares import ShareInvitation, Shares, ShareStatus
from broker.errors import PermissionDenied
from broker.words import Words
from protocols.http.accounts.browsers import OLD_FORM, SHARE_PARAMETER, Browsers
from protocols.http.accounts.forms import FormData, csrf_subject
from protocols.http.accounts.pages import notice, pages_blueprint, render_page
from protocols.http.reading import Query

_OTHER_ACCOUNT = "This invitation was sent to another e-mail address. Please sign in with the account that has it."


def accept_share_blueprint(shares: Shares, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("accept_share")

    @routes.get("/accept/share")
    async def show() -> Response:
        """Show the invitation. GET changes nothing, because mail programs open links; the page's form answers."""
        code = Query.of_request().text("code") or ""
        invitation = await shares.invitation(code)
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(_query(code))
        if not await shares.is_for(session.user.key, invitation.share, code=code):
            return browsers.sign_in_page(_query(code), status=403, problem=_OTHER_ACCOUNT)
        return _page(session, code, invitation)

    @routes.post("/accept/share")
    async def answer() -> Response:
        form = await FormData.of_request()
        code = form.text("code")
        invitation = await shares.invitation(code)
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(_query(code))
        if not session.proves(form.text("csrf"), *csrf_subject("share", invitation)):
            return _page(session, code, invitation, status=403, problem=OLD_FORM)
        status = {"accept": ShareStatus.ACCEPTED, "decline": ShareStatus.REJECTED}.get(form.text("decision"))
        if status is None:
            return _page(session, code, invitation, status=400, problem="Please choose Accept or Decline.")
        try:
            await shares.answer(invitation.share.id, session.user.key, status, code=code)
        except PermissionDenied:
            return browsers.sign_in_page(_query(code), status=403, problem=_OTHER_ACCOUNT)
        if status is ShareStatus.REJECTED:
            return notice("Invitation declined", "Nothing has changed.", console=("", "To the console"))
        return notice(
            "Device shared with you",
            Words("{name} is among your devices now.", name=invitation.device_name),
            console=(f"/devices/{invitation.device_id}", Words("Open {name}", name=invitation.device_name)),
        )

    return routes


def _page(
    session: Session, code: str, invitation: ShareInvitation, *, status: int = 200, problem: str = ""
) -> Response:
    return render_page(
        "accept_share.html",
        status,
        problem=problem,
        user=session.user,
        invitation=invitation,
        code=code,
        csrf=session.proof(*csrf_subject("share", invitation)),
    )


def _query(code: str) -> bytes:
    return urlencode({SHARE_PARAMETER: code}).encode()
