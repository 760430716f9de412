"""Signing in with an external identity provider (reference 4.2; OpenID Connect Core 1.0, 3.1).

A browser leaves with `begin` and comes back with `resume` and `finish`. What must fit in between (`nonce`, PKCE
verifier, where to go on) is kept sealed under the hash of `state`, for one use, and only for the browser that left.

Whose account it is. A provider knows a person by (issuer, subject); once that is attached to an account, nothing else
counts. The first time, it is the account with the person's e-mail address, if the provider has verified that: as good a
proof as a reset mail, and it does what a reset does. The account has no password from then on, and what stood on having
signed in with it ends, because whoever opened that account may only have claimed the address. An account of another
provider is never touched. Without an account, one is opened where that is allowed, or for an invited address.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
import structlog
from cryptography.fernet import InvalidToken

from broker.accounts.external_refusals import (
    EmailNotVerified,
    NoAccountHere,
    NotBegunHere,
    ProviderRefused,
    ProviderUnavailable,
)
from broker.accounts.hashing import TooBusy
from broker.accounts.id_tokens import ExternalPerson, IdTokenRefused, UnknownKey, read_id_token, read_userinfo
from broker.accounts.invitations import use_invitation, waiting_invitation
from broker.accounts.issuance import Issuance
from broker.accounts.provider_port import Leaving, ProviderDenied, ProviderError, Providers
from broker.accounts.sign_up import add_account, is_email
from broker.accounts.throttle import Throttle, address_key
from broker.accounts.tokens import Tokens
from broker.accounts.users import LOCAL
from broker.clock import Clock
from broker.errors import Conflict, NotFound
from broker.ids import new_id
from broker.secrets import Vault, token_hash
from config.limits import (
    EXTERNAL_SIGN_IN_SECONDS,
    EXTERNAL_SIGN_IN_WINDOW_SECONDS,
    EXTERNAL_SIGN_INS,
    EXTERNAL_SIGN_INS_OF_ONE,
    NAME_MAX_CHARACTERS,
)
from config.settings import Accounts, IdentityProvider
from storage.database import Database, Transaction
from storage.records import UserRecord

_TALKS_AT_ONCE = 32
_log = structlog.get_logger(__name__)


class Journey(msgspec.Struct, frozen=True):
    """Where a person goes on after having signed in."""

    place: Literal["authorize", "go"]
    query: bytes


class _Content(msgspec.Struct, frozen=True):
    """What is kept of a sign-in that is under way."""

    provider: str
    redirect_uri: str
    nonce: str
    code_verifier: str
    journey: Journey


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a browser comes back with. `issuer`: RFC 9207."""

    state: str
    code: str | None
    error: str | None
    issuer: str | None


@dataclass(frozen=True, slots=True)
class Returned:
    """A browser that came back with a `state` of its own."""

    provider: IdentityProvider
    journey: Journey
    content: _Content


class ExternalSignIn:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        clock: Clock,
        tokens: Tokens,
        settings: Accounts,
        providers: Providers | None,
    ) -> None:
        self._database = database
        self._vault = vault
        self._clock = clock
        self._tokens = tokens
        self._providers = providers
        self._configured = {provider.name: provider for provider in settings.providers}
        self._signup_open = settings.signup == "open"
        self._talks = 0
        self._throttle = Throttle(
            clock, misses=EXTERNAL_SIGN_INS_OF_ONE, window_seconds=EXTERNAL_SIGN_IN_WINDOW_SECONDS
        )

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._configured)

    async def begin(
        self, name: str, journey: Journey, *, browser_key: str, redirect_uri: str, address: str, login_wanted: bool
    ) -> str:
        """The provider's address that the browser is to be sent to.

        Raises:
            NotFound: there is no such provider.
            ProviderUnavailable: it does not answer.
            TooManyAttempts, TooBusy: too many left, from this address or from all.
        """
        provider = self._configured.get(name)
        if provider is None:
            raise NotFound
        address = address_key(address)
        self._throttle.check(address)
        self._throttle.missed(address)
        leaving = Leaving(redirect_uri, new_id(), new_id(), new_id() + new_id(), login_wanted)
        try:
            with self._talk() as providers:
                url = await providers.authorization_url(provider, leaving)
        except ProviderError as error:
            _log.warning("provider_unavailable", provider=name, reason=str(error))
            raise ProviderUnavailable(name) from error
        content = _Content(name, redirect_uri, leaving.nonce, leaving.code_verifier, journey)
        sealed = self._vault.seal(msgspec.json.encode(content).decode())
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.codes.purge_external_sign_ins(now_ms=now_ms)
            if tx.codes.count_external_sign_ins() >= EXTERNAL_SIGN_INS:
                raise TooBusy
            expires_on = now_ms + EXTERNAL_SIGN_IN_SECONDS * 1000
            hash_, browser = token_hash(leaving.state), token_hash(browser_key)
            tx.codes.add_external_sign_in(hash_, browser=browser, content=sealed, expires_on=expires_on)

        await self._database.write(work)
        return url

    async def resume(self, state: str, *, browser_key: str) -> Returned:
        """The journey of a browser that comes back; its `state` is used then. Raises NotBegunHere."""
        now_ms = self._clock.now_ms()
        hash_, browser = token_hash(state), token_hash(browser_key)
        sealed = await self._database.write(
            lambda tx: tx.codes.take_external_sign_in(hash_, browser=browser, now_ms=now_ms)
        )
        try:
            content = msgspec.json.decode(self._vault.open(sealed or b""), type=_Content)
        except InvalidToken:
            raise NotBegunHere from None
        provider = self._configured.get(content.provider)
        if provider is None:  # the configuration changed meanwhile
            raise NotBegunHere
        return Returned(provider, content.journey, content)

    async def finish(self, returned: Returned, arrival: Arrival) -> UserRecord:
        """Who came back; the account is opened or attached if need be.

        Raises:
            ProviderRefused: the provider said no, or what it said cannot be believed.
            ProviderUnavailable, TooBusy: it does not answer, or too many are asking.
            EmailNotVerified, NoAccountHere, Conflict: the person is known, but has no account that may be used.
        """
        provider = returned.provider
        if arrival.error is not None or arrival.code is None or arrival.issuer not in {None, provider.issuer}:
            _log.info("provider_refused", provider=provider.name, reason=_one_line(arrival.error or "no valid answer"))
            raise ProviderRefused(provider.name)
        try:
            with self._talk() as providers:
                person = await self._person(providers, returned, arrival)
        except ProviderError as error:
            _log.warning("provider_unavailable", provider=provider.name, reason=_one_line(str(error)))
            raise ProviderUnavailable(provider.name) from error
        except (ProviderDenied, IdTokenRefused) as error:
            _log.warning("provider_not_believed", provider=provider.name, reason=_one_line(str(error)))
            raise ProviderRefused(provider.name) from error
        return await self._tokens.change(lambda issuance: self._account(issuance, provider, person))

    async def _person(self, providers: Providers, returned: Returned, arrival: Arrival) -> ExternalPerson:
        provider, content = returned.provider, returned.content
        leaving = Leaving(content.redirect_uri, arrival.state, content.nonce, content.code_verifier)
        tokens = await providers.tokens(provider, leaving, arrival.code or "")
        metadata = await providers.metadata(provider)
        read = partial(
            read_id_token,
            tokens.id_token,
            algorithms=metadata.algorithms,
            issuer=provider.issuer,
            client_id=provider.client_id,
            nonce=content.nonce,
            now_ms=self._clock.now_ms(),
        )
        keys = await providers.keys(provider)
        try:
            person = read(keys)
        except UnknownKey:
            person = read(await providers.keys(provider, but=keys))
        if person.is_told_of_email or metadata.userinfo_endpoint is None or await self._is_known(person):
            return person
        return read_userinfo(person, await providers.userinfo(provider, tokens.access_token))

    async def _is_known(self, person: ExternalPerson) -> bool:
        known = await self._database.read(lambda tx: tx.codes.external_user(person.issuer, person.subject))
        return known is not None

    def _account(self, issuance: Issuance, provider: IdentityProvider, person: ExternalPerson) -> UserRecord:
        tx = issuance.tx
        key = tx.codes.external_user(person.issuer, person.subject)
        if key is not None and (known := tx.accounts.user(key)) is not None:
            return known
        if person.email is None or not is_email(person.email):
            raise EmailNotVerified(provider.name)
        user = tx.accounts.user_by_email(person.email)
        if user is None:
            user = self._new_account(issuance, provider, person.email, person.full_name)
        # Who has the address now need not be who had it: a provider may give it to somebody else.
        elif tx.codes.is_known_to(person.issuer, user.key) or user.account_type not in {LOCAL, provider.name}:
            raise Conflict("The account with your e-mail address is signed in to in another way.")
        else:
            tx.accounts.verify_email(user.key, now_ms=issuance.now_ms)
            tx.accounts.set_sign_in(user.key, account_type=provider.name, password_hash=None, now_ms=issuance.now_ms)
            issuance.end_everything_of(user.key)
        tx.codes.add_external_user(person.issuer, person.subject, user.key)
        return tx.accounts.user(user.key) or user

    def _new_account(self, issuance: Issuance, provider: IdentityProvider, email: str, full_name: str) -> UserRecord:
        tx, now_ms = issuance.tx, issuance.now_ms
        invitation = waiting_invitation(tx, email, now_ms=now_ms)
        is_open = self._signup_open if provider.signup == "accounts" else provider.signup == "open"
        if invitation is None and not is_open:
            raise NoAccountHere
        user = add_account(
            tx, email, full_name=_name(full_name), password_hash=None, now_ms=now_ms, account_type=provider.name
        )
        if invitation is not None:
            use_invitation(tx, invitation, user)
        return user

    @contextmanager
    def _talk(self) -> Iterator[Providers]:
        """A slow provider holds up those who wait for it, and not too many of them. Raises ProviderError, TooBusy."""
        if self._providers is None:
            raise ProviderError("there is no way out of here")
        if self._talks >= _TALKS_AT_ONCE:
            raise TooBusy
        self._talks += 1
        try:
            yield self._providers
        finally:
            self._talks -= 1


def _name(text: str) -> str:
    """Somebody else's idea of a name, by our rules."""
    return "".join(character for character in text if character.isprintable()).strip()[:NAME_MAX_CHARACTERS].strip()


def _one_line(text: str) -> str:
    """What somebody else wrote, fit for a log."""
    return "".join(character if character.isprintable() else " " for character in text)[:300]
