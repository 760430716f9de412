"""Invitations to a trial: sent by mail, accepted within 24 hours, or revoked (reference 14.3)."""

from typing import Final

import msgspec
from msgspec.structs import replace

from broker.accounts.issuance import Issuance
from broker.accounts.tokens import Tokens
from broker.clock import Clock
from broker.devices.shares import invited_address
from broker.errors import Conflict, Gone, NotFound, PermissionDenied
from broker.ids import is_id, new_id
from broker.mail import Letter, Mails, TrialInvitation
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent
from broker.trials import access
from broker.trials.roles import ALREADY_INVITED, InvitationStatus, TrialRole, going, note_trial, present
from config.limits import (
    TRIAL_INVITATION_SECONDS,
    TRIAL_INVITATIONS_KEPT,
    TRIAL_INVITATIONS_OPEN,
    TRIAL_MEMBERS,
)
from storage.database import Database
from storage.keys import ApplicationKey, Milliseconds, UserKey
from storage.records import NEW_KEY, UserRecord
from storage.transaction import Transaction
from storage.trial_invitations import TrialInvitationRecord
from storage.trials import TrialRecord


class NewInvitation(msgspec.Struct, frozen=True):
    """`member` is where the address stands in the body, for findings about it."""

    email: str
    role: TrialRole
    member: str = "email"


class Prepared(msgspec.Struct, frozen=True):
    """An invitation whose trial is not known yet, and its mail."""

    record: TrialInvitationRecord
    letter: Letter


class Invitation(msgspec.Struct, frozen=True):
    """Contents of an invitation's page before the person answers."""

    record: TrialInvitationRecord
    trial: TrialRecord
    owner_name: str
    organization: str
    device_types: tuple[str, ...]  # their names


class InvitationStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    sent: int
    accepted: int


_NO_TRIAL: Final = 0


class TrialInvitations:
    """The caller checks who may send and list invitations; `accept` and `revoke` check what depends on the state."""

    def __init__(self, database: Database, clock: Clock, tokens: Tokens, mails: Mails) -> None:
        self._database = database
        self._clock = clock
        self._tokens = tokens
        self._mails = mails
        self._sent = self._accepted = 0

    async def invite(self, inviter: UserRecord, trial: TrialRecord, new: NewInvitation) -> TrialInvitationRecord:
        """Invite somebody by mail. Invitation and mail are stored in one transaction.

        Raises:
            ValidationFailed: no address.
            NotFound: the trial was deleted.
            Conflict: it is stopped; the address has an open invitation of this kind, or its user has the role already;
                too many invitations are open.
        """
        prepared = self.prepared(inviter, trial.name, new)
        sent = await self._database.write(lambda tx: self.send(tx, going(tx, trial), prepared))
        self.count_sent(1)
        return sent

    def count_sent(self, number: int) -> None:
        """Add to the statistics the invitations that `send` stored."""
        self._sent += number

    def prepared(self, inviter: UserRecord, trial_name: str, new: NewInvitation) -> Prepared:
        """Raises ValidationFailed."""
        email = invited_address(new.member, new.email)
        code, now_ms = new_id(), self._clock.now_ms()
        expires_on = Milliseconds(now_ms + TRIAL_INVITATION_SECONDS * 1000)
        mail = TrialInvitation(trial=trial_name, role=new.role.value, code=code, expires_on=expires_on)
        record = TrialInvitationRecord(
            key=NEW_KEY,
            id=new_id(),
            trial=_NO_TRIAL,
            email=email,
            role=new.role,
            status=InvitationStatus.SENT,
            sent_on=now_ms,
            expires_on=expires_on,
            code_hash=token_hash(code),
        )
        return Prepared(record, self._mails.compose(email, mail, cause=inviter.id))

    def send(self, tx: Transaction, trial: TrialRecord, prepared: Prepared) -> TrialInvitationRecord:
        """Store the invitation and its mail in the caller's transaction. Raises Conflict."""
        new = replace(prepared.record, trial=trial.key)
        if tx.trial_invitations.open(trial.key, new.email, new.role, now_ms=new.sent_on) is not None:
            raise Conflict(ALREADY_INVITED)
        if tx.trial_invitations.count_open(trial.key, now_ms=new.sent_on) >= TRIAL_INVITATIONS_OPEN:
            raise Conflict(f"At most {TRIAL_INVITATIONS_OPEN} open invitations to a trial")
        invitee = tx.accounts.user_by_email(new.email)
        if invitee is not None and tx.trials.has_role(trial.key, invitee.key, new.role):
            raise Conflict(f"Already {new.role} of the trial")
        self._mails.add(tx, prepared.letter)
        tx.trial_invitations.put(new)
        tx.trial_invitations.forget_old(trial.key, but=TRIAL_INVITATIONS_KEPT, now_ms=new.sent_on)
        self._note(tx, AuditEvent.TRIAL_INVITATION_SENT, trial, new)
        return new

    async def of_trial(
        self, trial: TrialRecord, status: InvitationStatus | None, *, offset: int, count: int
    ) -> tuple[list[TrialInvitationRecord], int]:
        """A page of the trial's invitations, oldest first, and the number of all."""
        now_ms = self._clock.now_ms()
        return await self._database.read(
            lambda tx: tx.trial_invitations.page(trial.key, status, now_ms=now_ms, offset=offset, limit=count)
        )

    async def find(self, trial: TrialRecord, invitation_id: str) -> TrialInvitationRecord:
        """Raises NotFound."""
        return await self._database.read(lambda tx: _of_trial(tx, trial, invitation_id))

    def status_of(self, invitation: TrialInvitationRecord) -> InvitationStatus:
        return InvitationStatus.of(invitation, self._clock.now_ms())

    async def is_for(self, user: UserKey | None, invitation: TrialInvitationRecord, *, code: str = "") -> bool:
        """Whether the user has the invited address. The `code` of the mail proves that the address is the user's."""
        return user is not None and await self._database.read(lambda tx: _is_for(tx, invitation, user, code))

    async def behind(self, code: str) -> Invitation:
        """The open invitation with this code. Raises Gone: it was answered, has ended, or never existed."""
        now_ms = self._clock.now_ms()
        return await self._database.read(lambda tx: _behind(tx, code, now_ms))

    async def accept(
        self,
        trial: TrialRecord,
        invitation_id: str,
        user: UserKey,
        *,
        code: str = "",
        through: ApplicationKey | None = None,
    ) -> TrialInvitationRecord:
        """Give the user the role. A participant grants the trial's application READ and WRITE on its device types.

        `through`: the application with whose token the user accepts, which bounds the grants; None: on the page.

        Raises:
            NotFound: the invitation was deleted, or the trial.
            PermissionDenied: it was sent to somebody else.
            Conflict: it is not open any more, the trial is stopped, or there are too many members.
        """

        def work(issuance: Issuance) -> TrialInvitationRecord:
            tx, now_ms = issuance.tx, Milliseconds(issuance.now_ms)
            invitation = _of_trial(tx, trial, invitation_id)
            if not _is_for(tx, invitation, user, code):
                raise PermissionDenied(f"the invitation {invitation.id}")
            current = present(tx, trial)
            _check_open(invitation, now_ms)
            if not tx.trials.has_role(current.key, user, invitation.role):
                self._admit(issuance, current, user, TrialRole(invitation.role), through)
            if _is_code_of(invitation, code):
                tx.accounts.verify_email(user, now_ms=now_ms)
            accepted = replace(invitation, status=InvitationStatus.ACCEPTED, accepted_on=now_ms, code_hash=None)
            tx.trial_invitations.put(accepted)
            self._note(tx, AuditEvent.TRIAL_INVITATION_ACCEPTED, current, accepted)
            return accepted

        accepted = await self._tokens.change(work)
        self._accepted += 1
        return accepted

    def _admit(
        self, issuance: Issuance, trial: TrialRecord, user: UserKey, role: TrialRole, through: ApplicationKey | None
    ) -> None:
        tx, most = issuance.tx, TRIAL_MEMBERS[role]
        if tx.trials.count_members(trial.key, role) >= most:
            raise Conflict(f"At most {most} {role}s in a trial")
        tx.trials.add_member(trial.key, user, role, now_ms=issuance.now_ms, application=through)
        if role is TrialRole.PARTICIPANT:
            access.give(issuance, trial, user, through)

    async def revoke(self, trial: TrialRecord, invitation_id: str) -> TrialInvitationRecord:
        """Take an open invitation back. Raises NotFound: it was deleted; Conflict: it is not open any more."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> TrialInvitationRecord:
            invitation = _of_trial(tx, trial, invitation_id)
            _check_open(invitation, now_ms)
            revoked = replace(invitation, status=InvitationStatus.REVOKED, revoked_on=now_ms, code_hash=None)
            tx.trial_invitations.put(revoked)
            self._note(tx, AuditEvent.TRIAL_INVITATION_REVOKED, trial, revoked)
            return revoked

        return await self._database.write(work)

    async def remove(self, trial: TrialRecord, invitation_id: str) -> TrialInvitationRecord:
        """Delete an open invitation. Raises NotFound, Conflict: see `revoke`."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> TrialInvitationRecord:
            invitation = _of_trial(tx, trial, invitation_id)
            _check_open(invitation, now_ms)
            tx.trial_invitations.remove(invitation.id)
            self._note(tx, AuditEvent.TRIAL_INVITATION_REVOKED, trial, invitation)
            return invitation

        return await self._database.write(work)

    def _note(self, tx: Transaction, event: AuditEvent, trial: TrialRecord, about: TrialInvitationRecord) -> None:
        now_ms = self._clock.now_ms()
        note_trial(tx, event, trial, now_ms, invitation=about.id, email=about.email, role=str(about.role))

    def statistics(self) -> InvitationStatistics:
        return InvitationStatistics(self._sent, self._accepted)


def _of_trial(tx: Transaction, trial: TrialRecord, invitation_id: str) -> TrialInvitationRecord:
    found = tx.trial_invitations.by_id(invitation_id)
    if found is None or found.trial != trial.key:
        raise NotFound
    return found


def _check_open(invitation: TrialInvitationRecord, now_ms: int) -> None:
    """Raises Conflict."""
    status = InvitationStatus.of(invitation, now_ms)
    if status is not InvitationStatus.SENT:
        raise Conflict(f"Invitation is {status}")


def _is_for(tx: Transaction, invitation: TrialInvitationRecord, user: UserKey, code: str) -> bool:
    """The user's account has the address, which must be proved: before, or by the code."""
    holder = tx.accounts.user_by_email(invitation.email)
    if holder is None or holder.key != user:
        return False
    return holder.email_verified_on is not None or _is_code_of(invitation, code)


def _is_code_of(invitation: TrialInvitationRecord, code: str) -> bool:
    return invitation.code_hash is not None and token_hash(code) == invitation.code_hash


def _behind(tx: Transaction, code: str, now_ms: int) -> Invitation:
    found = tx.trial_invitations.by_code(token_hash(code)) if is_id(code) else None
    trial = None if found is None else tx.trials.trial(found.trial)
    owner = None if trial is None else tx.accounts.user(trial.owner)
    application = None if trial is None else tx.accounts.application(trial.application)
    organization = None if application is None else tx.accounts.organization(application.organization)
    if found is None or trial is None or owner is None or organization is None:
        raise Gone
    if InvitationStatus.of(found, now_ms) is not InvitationStatus.SENT:
        raise Gone
    types = filter(None, map(tx.device_types.device_type, tx.trials.types(trial.key)))
    return Invitation(found, trial, owner.full_name, organization.name, tuple(one.name for one in types))
