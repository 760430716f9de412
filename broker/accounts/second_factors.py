"""The second factor of a sign-in: one-time codes of an authenticator app, and recovery codes (reference 4.9).

The secret is sealed in the store; recovery codes are stored as hashes. Until the person has proved with a first code
that the app has the secret, nothing is stored: the page carries the offered secret, sealed.
"""

import shlex
from dataclasses import dataclass, field

import msgspec
from cryptography.fernet import InvalidToken

from broker.accounts.one_time_codes import (
    FactorCheck,
    WrongCode,
    new_recovery_codes,
    new_secret,
    otpauth_uri,
    recovery_hash,
    spaced,
    step_of,
)
from broker.accounts.sessions import Session, user_called
from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.errors import Conflict, DomainError, PermissionDenied, UserNotFound
from broker.facts import SessionsEnded
from broker.secrets import Vault, token_hash
from broker.trace.audit import AuditEvent, note
from config.limits import FRESH_SIGN_IN_SECONDS
from config.shown_command import shown_command
from storage.database import Database
from storage.keys import UserKey
from storage.records import SecondFactorRecord, UserRecord
from storage.transaction import Transaction


@dataclass(eq=False)
class OfferOver(DomainError):
    """The offered secret is too old, or was offered to somebody else."""

    status = 403
    template = "This form is no longer valid. Please scan the new code."


@dataclass(frozen=True, slots=True)
class AuthenticatorOffer:
    """A secret that an authenticator app may take over."""

    secret: str = field(repr=False)  # in groups of four
    address: str = field(repr=False)  # `otpauth:`
    sealed: str = field(repr=False)  # for the form


class FactorStanding(msgspec.Struct, frozen=True):
    """`is_wanted`: the operator wants this person to have one."""

    created_on: int | None
    recovery_codes_left: int
    is_wanted: bool


class _Offered(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="offered second factor"):
    user: int
    secret: str
    expires_on: int


class SecondFactors:
    def __init__(self, database: Database, clock: Clock, vault: Vault, check: FactorCheck) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault
        self._check = check

    async def standing(self, user: UserKey) -> FactorStanding:
        def work(tx: Transaction) -> FactorStanding:
            factor = tx.second_factors.of(user)
            left = tx.second_factors.recovery_codes_left(user)
            return FactorStanding(
                factor.created_on if factor is not None else None, left, self._check.is_wanted(tx, user)
            )

        return await self._database.look_up(work)

    def is_fresh(self, session: Session) -> bool:
        """The person signed in only just now, so that the second factor may be changed."""
        return self._clock.now_ms() - session.created_on < FRESH_SIGN_IN_SECONDS * 1000

    def offer(self, session: Session, *, issuer: str) -> AuthenticatorOffer:
        """A new secret for the person's app. `issuer`: the name under which the app shows it."""
        secret, expires_on = new_secret(), self._clock.now_ms() + FRESH_SIGN_IN_SECONDS * 1000
        return self._shown(_Offered(session.user.key, secret, expires_on), session, issuer)

    def offer_again(self, session: Session, sealed: str, *, issuer: str) -> AuthenticatorOffer:
        """Repeat an offer after a wrong code; make a new one if it has expired."""
        try:
            return self._shown(self._offered(session, sealed), session, issuer)
        except OfferOver:
            return self.offer(session, issuer=issuer)

    def _shown(self, offered: _Offered, session: Session, issuer: str) -> AuthenticatorOffer:
        address = otpauth_uri(offered.secret, account=session.user.email, issuer=issuer)
        sealed = self._vault.seal(msgspec.json.encode(offered).decode()).decode()
        return AuthenticatorOffer(spaced(offered.secret), address, sealed)

    def _offered(self, session: Session, sealed: str) -> _Offered:
        try:
            offered = msgspec.json.decode(self._vault.open(sealed.encode()), type=_Offered)
        except (InvalidToken, msgspec.DecodeError):
            raise OfferOver from None
        if offered.user != session.user.key or offered.expires_on <= self._clock.now_ms():
            raise OfferOver
        return offered

    async def enrol(self, session: Session, sealed: str, code: str) -> tuple[str, ...]:
        """Ask for this factor from now on. The person's other sessions end.

        Returns:
            The recovery codes, which are shown only now.

        Raises:
            OfferOver: the offer is over, or was for somebody else.
            WrongCode: the app does not have the secret.
            Conflict: the person has a factor.
            PermissionDenied: the person signed in too long ago.
        """
        self._require_fresh(session)
        offered, now_ms = self._offered(session, sealed), self._clock.now_ms()
        step = step_of(offered.secret, code, now_ms)
        if step is None:
            raise WrongCode
        codes = new_recovery_codes()
        user, hashes = session.user.key, [recovery_hash(one) for one in codes]
        factor = SecondFactorRecord(user, self._vault.seal(offered.secret), step, now_ms)

        def work(tx: Transaction) -> None:
            if tx.second_factors.of(user) is not None:
                raise Conflict("You have a second factor already.")
            tx.second_factors.add(factor, hashes)
            tx.sessions.remove_of(user, but=token_hash(session.id))
            note(tx, AuditEvent.SECOND_FACTOR_SET, f"account {session.user.id}", now_ms=now_ms)
            publish(tx, SessionsEnded(user))

        await self._database.write(work)
        return codes

    async def remove(self, session: Session) -> None:
        """Ask for no code from now on.

        Raises:
            PermissionDenied: the person signed in too long ago, or the operator wants this person to have a factor.
        """
        self._require_fresh(session)

        def work(tx: Transaction) -> None:
            if self._check.is_wanted(tx, session.user.key):
                raise PermissionDenied("administrators need a second factor here")
            if tx.second_factors.remove(session.user.key):
                _note_removed(tx, session.user, self._clock.now_ms())

        await self._database.write(work)

    async def reset(self, name: str) -> bool:
        """The operator's way out for a person who lost app and recovery codes. The person's sessions end.

        Args:
            name: the e-mail address or the user name.

        Returns:
            Whether there was a factor.

        Raises:
            UserNotFound
            Conflict: it is the address of an account whose holder has not proved to own it.
        """
        now_ms = self._clock.now_ms()
        return await self._database.write(lambda tx: _reset(tx, name, now_ms))

    def _require_fresh(self, session: Session) -> None:
        if not self.is_fresh(session):
            raise PermissionDenied("a new sign-in")


def _reset(tx: Transaction, name: str, now_ms: int) -> bool:
    user = user_called(tx, name.strip())
    if user is None:
        raise UserNotFound
    if user.email_verified_on is None and name.strip() != user.name:
        raise Conflict(
            f"nobody has proved to own the address {user.email}: give its owner a new account with"
            f" `{shown_command(f'user reset --password {shlex.quote(user.email)}')}`, or name this account by its user"
            f" name, {user.name}"
        )
    tx.sessions.remove_of(user.key)
    publish(tx, SessionsEnded(user.key))
    if not tx.second_factors.remove(user.key):
        return False
    _note_removed(tx, user, now_ms)
    return True


def _note_removed(tx: Transaction, user: UserRecord, now_ms: int) -> None:
    note(tx, AuditEvent.SECOND_FACTOR_REMOVED, f"account {user.id}", now_ms=now_ms)
