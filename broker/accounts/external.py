"""Signing in with an external identity provider (reference 4.2; OpenID Connect Core 1.0, 3.1).

`begin` returns where the browser goes; `resume` and `finish` handle the provider's redirect back. The `nonce`, the PKCE
verifier and the next page are stored in between, sealed, under the hash of `state`. They can be used once, and only by
the browser that began.

Which account the person gets. A provider identifies a person by (issuer, subject); once that pair is attached to an
account, only the pair counts. The first time, the person gets the account with the same e-mail address, if the provider
has verified the address. A verified address proves as much as a password reset by mail, and has the same effect: where
nobody had proved the address before, it is a claim (claims.py); else the account has no password from then on, and all
its sessions and tokens end. An account of another provider, or with a second factor, is never changed, unless
it is claimed. If there is no account, one is opened where sign-up is open or the address is invited.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Literal

import msgspec
import structlog
from cryptography.fernet import InvalidToken

from broker.accounts.claims import Claims
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
from broker.accounts.provider_port import AuthenticationRequest, ProviderDenied, ProviderError, Providers
from broker.accounts.sign_up import add_account, is_email
from broker.accounts.throttle import Throttle
from broker.accounts.tokens import Tokens
from broker.accounts.users import LOCAL
from broker.clock import Clock
from broker.errors import Conflict, NotFound
from broker.ids import new_id
from broker.secrets import Vault, token_hash
from broker.trace.origin import address_key
from config.limits import (
    EXTERNAL_SIGN_IN_SECONDS,
    EXTERNAL_SIGN_IN_WINDOW_SECONDS,
    EXTERNAL_SIGN_INS,
    EXTERNAL_SIGN_INS_OF_ONE,
    NAME_MAX_CHARACTERS,
)
from config.settings import Accounts, IdentityProvider
from storage.database import Database
from storage.records import UserRecord
from storage.transaction import Transaction

_TALKS_AT_ONCE = 32
_log = structlog.get_logger(__name__)


class NextPage(msgspec.Struct, frozen=True):
    """The page that a person goes on with after the sign-in, and its query string."""

    place: Literal["authorize", "go"]
    query: bytes


class _Content(msgspec.Struct, frozen=True):
    """State of a sign-in that has begun. It is stored sealed."""

    provider: str
    redirect_uri: str
    nonce: str
    code_verifier: str
    next_page: NextPage = msgspec.field(name="journey")  # its name in the store


class AuthenticationResponse(msgspec.Struct, frozen=True):
    """The query of the provider's redirect (OpenID Connect Core 1.0, 3.1.2.5). `issuer`: RFC 9207."""

    state: str
    code: str | None
    error: str | None
    issuer: str | None


class BegunSignIn(msgspec.Struct, frozen=True):
    """A sign-in that this browser began, found by its `state`."""

    provider: IdentityProvider
    next_page: NextPage
    content: _Content


class ExternalUser(msgspec.Struct, frozen=True):
    """The user who signed in. `is_claim`: with a new account, because the former one was closed just now."""

    user: UserRecord
    is_claim: bool = False


@dataclass(eq=False)
class ExternalSignIn:
    _database: Database
    _vault: Vault
    _clock: Clock
    _tokens: Tokens
    _claims: Claims
    settings: InitVar[Accounts]
    _providers: Providers | None

    def __post_init__(self, settings: Accounts) -> None:
        self._configured = {provider.name: provider for provider in settings.providers}
        self._signup_open = settings.signup == "open"
        self._talks = 0
        self._throttle = Throttle(
            self._clock, misses=EXTERNAL_SIGN_INS_OF_ONE, window_seconds=EXTERNAL_SIGN_IN_WINDOW_SECONDS
        )

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._configured)

    async def begin(
        self, name: str, next_page: NextPage, *, browser_key: str, redirect_uri: str, address: str, login_wanted: bool
    ) -> str:
        """The provider's authorization URL, to which the browser is redirected.

        Raises:
            NotFound: there is no such provider.
            ProviderUnavailable: the provider does not answer.
            TooManyAttempts: too many sign-ins were begun from this IP address.
            TooBusy: too many sign-ins have begun and are not finished, or too many are talking to providers.
        """
        provider = self._configured.get(name)
        if provider is None:
            raise NotFound
        self._throttle.count(address_key(address))
        authentication = AuthenticationRequest(redirect_uri, new_id(), new_id(), new_id() + new_id(), login_wanted)
        try:
            with self._talk() as providers:
                url = await providers.authorization_url(provider, authentication)
        except ProviderError as error:
            _log.warning("provider_unavailable", provider=name, reason=str(error))
            raise ProviderUnavailable(name) from error
        content = _Content(name, redirect_uri, authentication.nonce, authentication.code_verifier, next_page)
        sealed = self._vault.seal(msgspec.json.encode(content).decode())
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.codes.purge_external_sign_ins(now_ms=now_ms)
            if tx.codes.count_external_sign_ins() >= EXTERNAL_SIGN_INS:
                raise TooBusy
            expires_on = now_ms + EXTERNAL_SIGN_IN_SECONDS * 1000
            hash_, browser = token_hash(authentication.state), token_hash(browser_key)
            tx.codes.add_external_sign_in(hash_, browser=browser, content=sealed, expires_on=expires_on)

        await self._database.write(work)
        return url

    async def resume(self, state: str, *, browser_key: str) -> BegunSignIn:
        """The sign-in that this browser began with this `state`. The `state` cannot be used again.

        Raises:
            NotBegunHere: the `state` is unknown, was used, has expired, or belongs to another browser.
        """
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
        if provider is None:  # the configuration has changed
            raise NotBegunHere
        return BegunSignIn(provider, content.next_page, content)

    async def finish(self, begun: BegunSignIn, response: AuthenticationResponse) -> ExternalUser:
        """The user who signed in. If necessary, an account is opened, or the person attached to one.

        Raises:
            ProviderRefused: the provider refused, or its tokens are not valid.
            ProviderUnavailable: the provider does not answer.
            TooBusy: too many sign-ins are talking to providers.
            EmailNotVerified: the provider has verified no e-mail address of the person.
            NoAccountHere: the person has no account, and may not open one.
            Conflict: the account with the person's e-mail address belongs to another provider or another person.
        """
        provider = begun.provider
        if response.error is not None or response.code is None or response.issuer not in {None, provider.issuer}:
            _log.info("provider_refused", provider=provider.name, reason=_one_line(response.error or "no valid answer"))
            raise ProviderRefused(provider.name)
        try:
            with self._talk() as providers:
                person = await self._person(providers, begun, response)
        except ProviderError as error:
            _log.warning("provider_unavailable", provider=provider.name, reason=_one_line(str(error)))
            raise ProviderUnavailable(provider.name) from error
        except (ProviderDenied, IdTokenRefused) as error:
            _log.warning("provider_not_believed", provider=provider.name, reason=_one_line(str(error)))
            raise ProviderRefused(provider.name) from error
        return await self._tokens.change(lambda issuance: self._account(issuance, provider, person))

    async def _person(
        self, providers: Providers, begun: BegunSignIn, response: AuthenticationResponse
    ) -> ExternalPerson:
        provider, content = begun.provider, begun.content
        authentication = AuthenticationRequest(
            content.redirect_uri, response.state, content.nonce, content.code_verifier
        )
        tokens = await providers.tokens(provider, authentication, response.code or "")
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
        if person.has_email_claims or metadata.userinfo_endpoint is None or await self._is_known(person):
            return person
        return read_userinfo(person, await providers.userinfo(provider, tokens.access_token))

    async def _is_known(self, person: ExternalPerson) -> bool:
        known = await self._database.look_up(lambda tx: tx.codes.external_user(person.issuer, person.subject))
        return known is not None

    def _account(self, issuance: Issuance, provider: IdentityProvider, person: ExternalPerson) -> ExternalUser:
        tx, is_claim = issuance.tx, False
        key = tx.codes.external_user(person.issuer, person.subject)
        if key is not None and (known := tx.accounts.user(key)) is not None:
            return ExternalUser(known)
        if person.email is None or not is_email(person.email):
            raise EmailNotVerified(provider.name)
        user = tx.accounts.user_by_email(person.email)
        if user is None:
            user = self._new_account(issuance, provider, person.email, person.full_name)
        elif user.email_verified_on is None:
            name, is_claim = _name(person.full_name), True
            user = self._claims.claim(issuance, user, password_hash=None, full_name=name, account_type=provider.name)
            if (invitation := waiting_invitation(tx, user.email, now_ms=issuance.now_ms)) is not None:
                use_invitation(tx, invitation, user)
        # A provider may give an address that one person gave up to another person.
        elif tx.codes.is_known_to(person.issuer, user.key) or user.account_type not in {LOCAL, provider.name}:
            raise Conflict("The account with your e-mail address is signed in to in another way.")
        elif tx.second_factors.of(user.key) is not None:  # an address alone must not get around it
            raise Conflict("The account with your e-mail address has a second factor. Sign in with its password.")
        else:
            tx.accounts.set_sign_in(user.key, account_type=provider.name, password_hash=None, now_ms=issuance.now_ms)
            issuance.end_everything_of(user.key)
        tx.codes.add_external_user(person.issuer, person.subject, user.key)
        return ExternalUser(tx.accounts.user(user.key) or user, is_claim)

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
        """Count one conversation with a provider, so that a slow provider cannot hold up any number of requests.

        Raises:
            ProviderError: the daemon was built without a client for providers.
            TooBusy: too many conversations are under way.
        """
        if self._providers is None:
            raise ProviderError("there is no client for identity providers")
        if self._talks >= _TALKS_AT_ONCE:
            raise TooBusy
        self._talks += 1
        try:
            yield self._providers
        finally:
            self._talks -= 1


def _name(text: str) -> str:
    """A provider's name of a person, shortened to the length of a full name (reference 5.1)."""
    return "".join(character for character in text if character.isprintable()).strip()[:NAME_MAX_CHARACTERS].strip()


def _one_line(text: str) -> str:
    """A text from a provider, as one printable line of at most 300 characters for the log."""
    return "".join(character if character.isprintable() else " " for character in text)[:300]
