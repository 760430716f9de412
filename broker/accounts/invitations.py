"""Invitations to open an account (reference 4.2), which also work where sign-up is closed.

An invitation is for one e-mail address. Its code is sent there by mail, so the code proves that the person reads that
mailbox: an account that somebody opened with the address, without having proved it, is claimed (claims.py). An
invitation can be used once, and may make its user a member of an organization. Operators create invitations through the
provision file (broker/provisioning).
"""

from broker.accounts.claims import Claims
from broker.accounts.hashing import Hashing
from broker.accounts.issuance import Issuance
from broker.accounts.sign_up import add_account, check_account
from broker.accounts.tokens import Tokens
from broker.clock import Clock
from broker.errors import LinkOver
from broker.ids import is_id
from broker.secrets import token_hash
from storage.database import Database
from storage.records import InvitationRecord, UserRecord
from storage.transaction import Transaction


class AccountInvitations:
    def __init__(self, database: Database, clock: Clock, tokens: Tokens, hashing: Hashing, claims: Claims) -> None:
        self._database = database
        self._clock = clock
        self._tokens = tokens
        self._hashing = hashing
        self._claims = claims

    async def find(self, code: str) -> InvitationRecord:
        """Raises LinkOver."""
        now_ms = self._clock.now_ms()
        return await self._database.look_up(lambda tx: _found(tx, code, now_ms))

    async def accept(self, code: str, *, password: str, full_name: str) -> UserRecord:
        """A new user, with the address that was invited.

        Raises:
            LinkOver: the code is unknown, was used or has expired.
            ValidationFailed: with every finding, by form field.
            EmailTaken: an account has this address, and its user has proved to own it.
            TooBusy: too many passwords are being hashed.
        """
        email, full_name = (await self.find(code)).email, full_name.strip()
        await check_account(email=email, password=password, full_name=full_name)
        hashed = await self._hashing.hash(password)

        def work(issuance: Issuance) -> UserRecord:
            tx, now_ms = issuance.tx, issuance.now_ms
            invitation = _found(tx, code, now_ms)
            known = tx.accounts.user_by_email(invitation.email)
            if known is not None and known.email_verified_on is None:
                user = self._claims.claim(issuance, known, full_name=full_name, password_hash=hashed)
            else:
                user = add_account(tx, invitation.email, full_name=full_name, password_hash=hashed, now_ms=now_ms)
            use_invitation(tx, invitation, user)
            return user

        return await self._tokens.change(work)


def waiting_invitation(tx: Transaction, email: str, *, now_ms: int) -> InvitationRecord | None:
    """The unexpired invitation of an address. Only for a person who has proven that the address is their own."""
    found = tx.codes.invitation_of(email)
    return found if found is not None and found.expires_on > now_ms else None


def use_invitation(tx: Transaction, invitation: InvitationRecord, user: UserRecord) -> None:
    """Make the new user a member as the invitation says, and remove the invitation."""
    if invitation.organization is not None:
        tx.accounts.set_role(invitation.organization, user.key, invitation.role or "developer")
    tx.codes.remove_invitation(invitation.email)


def _found(tx: Transaction, code: str, now_ms: int) -> InvitationRecord:
    found = tx.codes.invitation(token_hash(code), now_ms=now_ms) if is_id(code) else None
    if found is None:
        raise LinkOver
    return found
