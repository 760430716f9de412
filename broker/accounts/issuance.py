"""Issuing and ending tokens within one transaction (reference 4.3).

The first tokens of an authorization and all tokens that a refresh issued for them form a token family. A refresh issues
a new pair in the same family. A replayed code ends the family (RFC 6749, 4.1.2); so does a refresh token that is used
again (RFC 9700, 4.14.2), unless that is soon: a client that lost the answer gets it again.
"""

import hmac
from collections.abc import Collection, Iterable
from secrets import token_bytes
from typing import Any, Final

import msgspec

from broker.accounts.applications import Method
from broker.accounts.consent import sign_in_grant
from broker.cluster.kinds import TOKEN_SHORTENED, publish
from broker.errors import PermissionDenied, Unauthorized
from broker.facts import GrantsChanged, SessionsEnded, TokenRevoked
from broker.ids import new_id
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, entry_of, note
from config.limits import OLD_TOKEN_SECONDS
from config.settings import Accounts
from storage.keys import ApplicationKey, UserKey
from storage.records import AuditRecord, RefreshTokenRecord, TokenRecord
from storage.transaction import Transaction

_DAY_MS: Final = 86_400_000
_SALT_BYTES: Final = 16


class Lifetimes(msgspec.Struct, frozen=True):
    user_token_seconds: int
    application_token_seconds: int
    refresh_window_ms: int

    @classmethod
    def of(cls, settings: Accounts) -> "Lifetimes":
        return cls(
            settings.user_token_seconds, settings.application_token_seconds, settings.refresh_window_days * _DAY_MS
        )


class NewTokens(msgspec.Struct, frozen=True):
    """New tokens in the clear: they are sent once, and only their hashes are stored."""

    access_token: str
    expires_in: int
    refresh_token: str | None

    def answer(self) -> dict[str, Any]:
        """The members of the token response (RFC 6749, 5.1)."""
        members: dict[str, Any] = {
            "access_token": self.access_token,
            "token_type": "bearer",
            "expires_in": self.expires_in,
        }
        if self.refresh_token is not None:
            members |= {"refresh_token": self.refresh_token, "scope": "read,write"}
        return members


class Issuance:
    """Changes tokens in one transaction, and tells what it changed."""

    def __init__(self, tx: Transaction, lifetimes: Lifetimes, now_ms: int) -> None:
        self.tx = tx
        self.now_ms = now_ms
        self._lifetimes = lifetimes

    def for_application(self, application: ApplicationKey) -> NewTokens:
        seconds = self._lifetimes.application_token_seconds
        tokens = NewTokens(new_id(), seconds, None)
        self._keep(tokens, application, user=None, family=None, by="client_credentials")
        return tokens

    def for_user(
        self, application: ApplicationKey, user: UserKey, method: Method, scope: str = ""
    ) -> tuple[NewTokens, int]:
        """The first tokens of a new family, and the family. `scope`: that of OpenID Connect."""
        family = self.tx.authorizations.add_family(
            application=application, user=user, method=method, now_ms=self.now_ms, scope=scope
        )
        return self._in_family(application, user, family, by=method), family

    def refreshed(self, old: RefreshTokenRecord, presented: str) -> NewTokens:
        """The next tokens of a family. The old refresh token ends at once, old access tokens after a short time.

        The new tokens come of the old refresh token in the clear, which only the client has, and of a stored salt: so
        that `refreshed_again` can answer a client that lost them, and the store alone gives nothing away.
        """
        salt = token_bytes(_SALT_BYTES)
        pair = _derived(presented, salt)
        tokens = self._in_family(old.application, old.user, old.family, by="refresh", pair=pair)
        self.tx.authorizations.use_refresh_token(old.hash, salt=salt, now_ms=self.now_ms)
        for hashed in self.tx.authorizations.shorten_tokens(
            old.family, but=token_hash(tokens.access_token), until_ms=self.now_ms + OLD_TOKEN_SECONDS * 1000
        ):
            self.tx.tell(TOKEN_SHORTENED, hashed)
        return tokens

    def refreshed_again(self, old: RefreshTokenRecord, presented: str) -> NewTokens | None:
        """The tokens that `refreshed` answered to this one; None if they were used for a refresh or have ended."""
        if old.salt is None:
            return None
        access_token, refresh_token = _derived(presented, old.salt)
        access = self.tx.accounts.token(token_hash(access_token))
        refresh = self.tx.authorizations.refresh_token(token_hash(refresh_token))
        if access is None or access.expires_on <= self.now_ms or refresh is None or refresh.used_on is not None:
            return None
        return NewTokens(access_token, (access.expires_on - self.now_ms) // 1000, refresh_token)

    def end_families(self, families: Collection[int]) -> None:
        if not families:
            return
        self._note_revoked(self.tx.authorizations.holders_of(families))
        self.tell_revoked(self.tx.authorizations.end_families(families))

    def end_tokens_of(self, application: ApplicationKey, users: Collection[UserKey] | None) -> None:
        """End all tokens of these users for an application, or with None those of the application itself."""
        if users is not None:
            self.end_families(self.tx.authorizations.families_for(application, users))
        removed = self.tx.accounts.remove_tokens_of(application, users)
        if not removed:
            return
        record = self.tx.accounts.application(application)
        known = self.tx.accounts.users_with({user for _, user in removed if user is not None})
        of = {user: known[user].id if user in known else None for _, user in removed if user is not None}
        id_ = record.id if record else ""
        self._note_revoked([(id_, None if user is None else of[user]) for _, user in removed])
        self.tell_revoked(hashed for hashed, _ in removed)

    def tell_revoked(self, hashes: Iterable[bytes]) -> None:
        """Tell that these tokens were removed."""
        publish(self.tx, *map(TokenRevoked, hashes))

    def end_everything_of(self, user: UserKey) -> None:
        """End what the user's sign-ins led to: browser sessions, token families, unused codes and password resets.

        Provisioned tokens and device tokens stay.
        """
        self.end_families(self.tx.authorizations.families_of(user))
        self.tx.authorizations.forget_codes_of(user)
        self.tx.sessions.remove_of(user)
        publish(self.tx, SessionsEnded(user))
        self.tx.codes.remove_resets(user)

    def end_application(self, user: UserKey, application: ApplicationKey) -> None:
        """End what the user gave an application: grants, token families, provisioned tokens, and unused codes.

        Device tokens stay: they belong to the devices. The next sign-in through the application shows the permission
        screen (reference 4.7).
        """
        self.end_tokens_of(application, (user,))
        self.tx.authorizations.forget_codes_of(user, application)
        self.tx.accounts.remove_grants(user, application)
        self.tx.claims.end_consent(user, application, by_user=True)
        if (record := self.tx.accounts.application(application)) is not None:
            note(self.tx, AuditEvent.CONSENT_REVOKED, f"application {record.id}", now_ms=self.now_ms)
        publish(self.tx, GrantsChanged(user, application, ()))

    def end_grants_of(self, user: UserKey, *, but: Collection[ApplicationKey] = ()) -> list[ApplicationKey]:
        """End what the user granted any application, without the user having revoked it: their subscriptions wait.

        `but`: these keep what a sign-in grants, because they have tokens that an operator gave them.
        """
        ended = sorted({grant.application for grant in self.tx.accounts.grants_of(user)})
        for application in ended:
            self.tx.accounts.remove_grants(user, application)
            self.tx.claims.end_consent(user, application, by_user=False)
            if application in but:
                self.tx.accounts.put_grant(sign_in_grant(application, user))
            left = tuple(self.tx.accounts.grants(application, user))
            publish(self.tx, GrantsChanged(user, application, left, revoked=False))
        return ended

    def end_everything_and_grants_of(self, user: UserKey) -> None:
        """`end_everything_of`, and the grants. Applications ask for them again."""
        self.end_everything_of(user)
        provisioned = {token.application for token in self.tx.accounts.tokens_of_user(user)}
        self.end_grants_of(user, but=provisioned)

    def end_token(self, token: TokenRecord) -> None:
        """End an access token, and with a user token its whole family."""
        if token.family is not None:
            return self.end_families((token.family,))
        application = self.tx.accounts.application(token.application)
        user = None if token.user is None else self.tx.accounts.user(token.user)
        self._note(AuditEvent.TOKEN_REVOKED, application.id if application else "", user.id if user else None)
        self.tx.accounts.remove_token(token.hash)
        self.tell_revoked((token.hash,))
        return None

    def _in_family(
        self,
        application: ApplicationKey,
        user: UserKey,
        family: int,
        *,
        by: str,
        pair: tuple[str, str] | None = None,
    ) -> NewTokens:
        """`pair`: the new tokens, access token first; random ones if there are none."""
        seconds = self._lifetimes.user_token_seconds
        access_token, refresh_token = pair or (new_id(), new_id())
        tokens = NewTokens(access_token, seconds, refresh_token)
        self._keep(tokens, application, user=user, family=family, by=by)
        self.tx.authorizations.add_refresh_token(
            token_hash(refresh_token),
            family,
            usable_until=self.now_ms + seconds * 1000 + self._lifetimes.refresh_window_ms,
        )
        return tokens

    def _keep(
        self, tokens: NewTokens, application: ApplicationKey, *, user: UserKey | None, family: int | None, by: str
    ) -> None:
        expires_on = self.now_ms + tokens.expires_in * 1000
        record = self.tx.accounts.application(application)
        holder = None if user is None else self.tx.accounts.user(user)
        if record is None:  # deleted since
            raise Unauthorized
        # It was disabled or deleted while the person signed in.
        if user is not None and (holder is None or holder.disabled_on is not None):
            raise PermissionDenied("an account that is not disabled")
        self.tx.accounts.put_token(
            TokenRecord(token_hash(tokens.access_token), application, user, self.now_ms, expires_on, family)
        )
        self._note(AuditEvent.TOKEN_ISSUED, record.id, holder.id if holder else None, by=by)

    def _note(self, event: AuditEvent, application: str, user: str | None, **details: str) -> None:
        self.tx.audit.add(self._entry(event, application, user, **details))

    def _note_revoked(self, holders: Iterable[tuple[str, str | None]]) -> None:
        """Holders are given as the ids of the application and the user."""
        self.tx.audit.add_all([self._entry(AuditEvent.TOKEN_REVOKED, *holder) for holder in holders])

    def _entry(self, event: AuditEvent, application: str, user: str | None, **details: Any) -> AuditRecord:
        """A token is named by its kind and its holder. The actor is the application unless the origin has another."""
        kind, holder = ("application", application) if user is None else ("user", user)
        details |= {"kind": kind, "application": application}
        actor = f"application {application}"
        return entry_of(event, f"{kind} {holder}", now_ms=self.now_ms, actor=actor, **details)


def _derived(presented: str, salt: bytes) -> tuple[str, str]:
    """An access token and a refresh token, of 128 bits each like every other one (broker/ids.py: new_id)."""
    parts = (hmac.new(presented.encode(), salt + name, "sha256").hexdigest()[:32] for name in (b"access", b"refresh"))
    access_token, refresh_token = parts
    return access_token, refresh_token
