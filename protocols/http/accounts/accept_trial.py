"""/accept/trial, the page that the link of an invitation to a trial leads to (reference 14.3)."""

from urllib.parse import urlencode

from quart import Blueprint, Response

from broker.accounts.sessions import Session
from broker.errors import PermissionDenied
from broker.trials.invitations import Invitation, TrialInvitations
from broker.trials.roles import TrialRole
from broker.words import Words
from protocols.http.accounts.browsers import OLD_FORM, TRIAL_PARAMETER, Browsers
from protocols.http.accounts.forms import FormData, csrf_subject
from protocols.http.accounts.pages import notice, pages_blueprint, render_page
from protocols.http.reading import Query

_OTHER_ACCOUNT = "This invitation was sent to another e-mail address. Please sign in with the account that has it."


def accept_trial_blueprint(invitations: TrialInvitations, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("accept_trial")

    @routes.get("/accept/trial")
    async def show() -> Response:
        """Show the invitation. GET changes nothing, because mail programs open links; the page's form answers."""
        code = Query.of_request().text("code") or ""
        invitation = await invitations.behind(code)
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(_query(code))
        if not await invitations.is_for(session.user.key, invitation.record, code=code):
            return browsers.sign_in_page(_query(code), status=403, problem=_OTHER_ACCOUNT)
        return _page(session, code, invitation)

    @routes.post("/accept/trial")
    async def accept() -> Response:
        form = await FormData.of_request()
        code = form.text("code")
        invitation = await invitations.behind(code)
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(_query(code))
        if not session.proves(form.text("csrf"), *csrf_subject("trial", invitation)):
            return _page(session, code, invitation, status=403, problem=OLD_FORM)
        if form.text("decision") != "accept":
            return _page(session, code, invitation, status=400, problem="Please choose Accept, or close this page.")
        try:
            await invitations.accept(invitation.trial, invitation.record.id, session.user.key, code=code)
        except PermissionDenied:
            return browsers.sign_in_page(_query(code), status=403, problem=_OTHER_ACCOUNT)
        if invitation.record.role == TrialRole.PARTICIPANT:
            return notice(
                "You take part",
                Words("You are a participant of {trial} now.", trial=invitation.trial.name),
                "Its application can reach your devices of the types that you saw.",
                console=("", "To your devices"),
            )
        return notice(
            "You administer this trial",
            Words("You are an administrator of {trial} now.", trial=invitation.trial.name),
            console=("", "To the console"),
        )

    return routes


def _page(session: Session, code: str, invitation: Invitation, *, status: int = 200, problem: str = "") -> Response:
    return render_page(
        "accept_trial.html",
        status,
        problem=problem,
        user=session.user,
        invitation=invitation,
        takes_part=invitation.record.role == TrialRole.PARTICIPANT,
        code=code,
        csrf=session.proof(*csrf_subject("trial", invitation)),
    )


def _query(code: str) -> bytes:
    return urlencode({TRIAL_PARAMETER: code}).encode()
