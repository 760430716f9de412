"""/trials/…/invitations: who is asked to take part in a trial, and the answers (reference 14.3)."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied
from broker.trials.invitations import NewInvitation
from broker.trials.roles import ALREADY_INVITED, InvitationStatus, TrialRole
from broker.trials.room import TrialsRoom
from config.limits import EMAIL_MAX_CHARACTERS
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import ADMINISTERED_TRIAL, TRIAL_ADMINISTRATOR
from protocols.http.rest.trials import ENDED, ROLES, TRIAL_NAMES, TRIALS
from protocols.http.schema import Count, Data, Id, NumberedPage, Offset, Shape, about, one_of, time_ms
from storage.trial_invitations import TrialInvitationRecord
from storage.trials import TrialRecord

_INVITATIONS: Final = "/trials/{tid}/invitations"
_INVITATION: Final = f"{_INVITATIONS}/{{iid}}"
_NOT_OPEN: Final = "Invitation is accepted"

#: A trial and an invitation to it.
_Found = tuple[TrialRecord, TrialInvitationRecord]
_Type = Annotated[str, one_of(ROLES, "What the person will be")]


class TrialInvitationObject(Shape, kw_only=True):
    shape = "TrialInvitation"
    example = {
        "id": samples.TRIAL_INVITATION,
        "tid": samples.TRIAL,
        "email": "bob@example.net",
        "invitationType": "participant",
        "sentDate": samples.TS,
        "acceptedDate": None,
        "expirationDate": samples.TS + 86_400_000,
        "revokedDate": None,
        "status": "sent",
    }

    id: Id
    tid: Id
    email: Annotated[str, about("Who is invited", format="email")]
    invitation_type: _Type
    sent_date: Annotated[int, time_ms("When the mail was queued")]
    accepted_date: Annotated[int | None, time_ms("null: not accepted")]
    expiration_date: Annotated[int, time_ms("When it ends by itself")]
    revoked_date: Annotated[int | None, time_ms("null: not revoked")]
    status: Annotated[str, one_of(InvitationStatus)]


class _Invitations(Shape):
    invitations: list[TrialInvitationObject]


class _NewInvitation(Shape):
    example = {"email": "bob@example.net", "invitationType": "participant"}

    email: Annotated[
        str,
        Meta(
            description="The address need not belong to a user yet",
            extra_json_schema={"format": "email", "maxLength": EMAIL_MAX_CHARACTERS},
        ),
    ]
    invitation_type: Annotated[Literal["participant", "administrator"], about("What the person will be")]


class _Listed(Shape):
    status: Annotated[InvitationStatus, about("Only invitations in this state")] | None = None
    count: Count = 100
    offset: Offset = 0


class _Answer(Shape):
    example = {"status": "accepted"}

    status: Annotated[Literal["accepted", "revoked"], about("accepted by the invited user, revoked by administrators")]


class TrialInvitationCalls(RestCalls):
    chapter = TRIALS
    path_names = {**TRIAL_NAMES, "iid": (Annotated[Id, about("An invitation")], samples.TRIAL_INVITATION)}

    def __init__(self, accounts: AccountsRoom, trials: TrialsRoom) -> None:
        self._users = accounts.users
        self._trials = trials.trials
        self._invitations = trials.invitations

    async def _removable(self, caller: Caller, tid: str, iid: str) -> _Found:
        trial = await self._trials.find(tid)
        invitation = await self._invitations.find(trial, iid)
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        return trial, invitation

    async def _of_either(self, caller: Caller, tid: str, iid: str) -> _Found:
        """The invitation, for administrators of the trial and for the invited user."""
        trial = await self._trials.find(tid)
        invitation = await self._invitations.find(trial, iid)
        if not await self._invitations.is_for(caller.user, invitation):
            await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        return trial, invitation

    @RestCall(
        "POST",
        _INVITATIONS,
        tokens=USER,
        on=ADMINISTERED_TRIAL,
        summary="Invite somebody to a trial",
        about="The address gets a mail with a link. The invitation is valid for 24 hours.",
        refusals={409: f"{ALREADY_INVITED}. {ENDED}"},
    )
    async def invite(self, caller: Caller, trial: TrialRecord, body: _NewInvitation) -> Data[TrialInvitationObject]:
        inviter = await self._users.self_of(caller)
        new = NewInvitation(body.email, TrialRole(body.invitation_type))
        return Data(self._object(trial, await self._invitations.invite(inviter, trial, new)))

    @RestCall("GET", _INVITATIONS, tokens=USER, on=ADMINISTERED_TRIAL, summary="Invitations to a trial")
    async def of_trial(self, trial: TrialRecord, query: _Listed) -> NumberedPage[_Invitations]:
        found, total = await self._invitations.of_trial(trial, query.status, offset=query.offset, count=query.count)
        shown = [self._object(trial, one) for one in found]
        return NumberedPage(_Invitations(shown), total, query.offset, len(shown))

    @RestCall(
        "GET",
        _INVITATION,
        tokens=USER,
        on=_of_either,
        summary="One invitation",
        about="For administrators, and for the invited user.",
    )
    async def show(self, found: _Found) -> Data[TrialInvitationObject]:
        return Data(self._object(*found))

    @RestCall(
        "PUT",
        _INVITATION,
        tokens=USER,
        on=_of_either,
        summary="Accept or revoke an invitation",
        about="The invited user accepts; administrators revoke. A participant who accepts grants the trial's "
        "application READ and WRITE on the trial's device types, also on types that are added later: on the types "
        "on which the user granted both to the application of the token.",
        refusals={409: _NOT_OPEN},
    )
    async def answer(self, caller: Caller, found: _Found, body: _Answer) -> Data[TrialInvitationObject]:
        trial, invitation = found
        if body.status == "revoked":
            await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
            return Data(self._object(trial, await self._invitations.revoke(trial, invitation.id)))
        user = caller.user
        if user is None or not await self._invitations.is_for(user, invitation):
            raise PermissionDenied(f"the invitation {invitation.id}")
        if invitation.role == TrialRole.ADMINISTRATOR:
            await self._trials.require_managing(caller, trial)
        accepted = await self._invitations.accept(trial, invitation.id, user, through=caller.application)
        return Data(self._object(trial, accepted))

    @RestCall(
        "DELETE",
        _INVITATION,
        tokens=USER,
        on=_removable,
        summary="Delete an open invitation",
        refusals={409: _NOT_OPEN},
    )
    async def remove(self, found: _Found) -> Data[TrialInvitationObject]:
        trial, invitation = found
        return Data(self._object(trial, await self._invitations.remove(trial, invitation.id)))

    def _object(self, trial: TrialRecord, invitation: TrialInvitationRecord) -> TrialInvitationObject:
        return TrialInvitationObject(
            id=invitation.id,
            tid=trial.id,
            email=invitation.email,
            invitation_type=invitation.role,
            sent_date=invitation.sent_on,
            accepted_date=invitation.accepted_on,
            expiration_date=invitation.expires_on,
            revoked_date=invitation.revoked_on,
            status=self._invitations.status_of(invitation),
        )
