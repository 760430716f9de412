"""Deciding an /authorize request (RFC 6749, 4.1.1 and 4.2.1; reference 3.3). The sign-in and consent pages use this
module; this module knows neither browser sessions nor HTML.

How a page uses `Authorize`, with the unchanged query string of GET /authorize (or /signin):

    match await authorize.read(request.query_string):
        case ErrorPage(status, text): show an error page; never redirect
        case Redirect(url): 302 to `url`, which tells the application what is wrong with its request
        case AuthorizationRequest() as asked: go on

    1. Without a session, or with `asked.login_wanted`: show the sign-in form with the hidden field `continue` =
       `asked.query`. When the form is posted, give `continue` to `read` again and go on as if `prompt` was not `login`.
       `asked.account_type` is the identity provider to offer, if one of that name is configured; else offer all.
    2. `screen = await authorize.consent_needed(asked, user.key)`. If `screen` is not None, show it (`continue` =
       `asked.query`); its form leads to `allow` or `deny`. If `screen` is None, call `allow` at once.
    3. `await authorize.allow(asked, user.key, agreed=screen)` stores the grants, issues the code or the tokens and
       returns a `Redirect`. If the application has changed since `read`, `allow` returns what `read` would return now,
       or the screen to show instead. `authorize.deny(asked)` returns the `access_denied` redirect.

    After `read` returned an AuthorizationRequest, an unexpected failure is a 302 to `asked.error("server_error").url`.
    Before that, an unexpected failure is status 500 without a redirect.

`continue` comes from the browser and is untrusted: always give it to `read`, and never redirect to it.
"""

import re
from typing import Final

import msgspec

from broker.accounts.applications import Application, Method, find_application
from broker.accounts.consent import ConsentScreen, must_ask, save_consent, screen_of
from broker.accounts.issuance import Issuance
from broker.accounts.openid import OpenIdRequest, SigningKeys, scope_of
from broker.accounts.redirects import QueryParameters, with_parameters
from broker.accounts.tokens import Tokens
from broker.clock import Clock
from broker.ids import new_id
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from config.limits import AUTHORIZATION_CODE_SECONDS
from storage.database import Database
from storage.keys import UserKey
from storage.records import AuthorizationCodeRecord
from storage.transaction import Transaction

_KNOWN: Final = (
    "client_id",
    "response_type",
    "redirect_uri",
    "state",
    "prompt",
    "account_type",
    "test_css_blank",
    "code_challenge",
    "code_challenge_method",
    "nonce",
    "max_age",
)
_PROMPTS: Final = frozenset({"none", "login", "consent", "select_account"})  # OpenID Connect Core 1.0, 3.1.2.1
_NONCE_CHARACTERS: Final = 512
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # RFC 7636, 4.2: SHA-256 in Base64url without padding


class Redirect(msgspec.Struct, frozen=True):
    """The answer is status 302 with this Location."""

    url: str


class ErrorPage(msgspec.Struct, frozen=True):
    """The answer is an error page: the request names no redirect URI that may be trusted (RFC 6749, 4.1.2.1)."""

    status: int
    text: str


class AuthorizationRequest(msgspec.Struct, frozen=True):
    """A valid request (RFC 6749, 4.1.1 and 4.2.1). The application gets what it asks for if the person agrees."""

    application: Application
    implicit: bool
    redirect_uri: str
    state: str | None
    code_challenge: str | None
    login_wanted: bool  # prompt=login or select_account
    consent_wanted: bool  # prompt=consent
    silent: bool  # prompt=none
    max_age: int | None  # seconds since the person signed in
    openid: OpenIdRequest  # with an empty scope: plain OAuth 2
    account_type: str | None
    blank_style: bool  # test_css_blank
    query: bytes  # the query string of the request, unchanged: the value of the form field `continue`

    def error(self, error: str) -> Redirect:
        return _error(self.redirect_uri, error, self.state, fragment=self.implicit)


#: The application must not be told, because nobody knows where it is.
STRANGE_REDIRECT: Final = "Invalid parameter: redirect_uri: it is none of the addresses that the application registered"

AuthorizationOutcome = AuthorizationRequest | Redirect | ErrorPage


class Authorize:
    def __init__(self, database: Database, tokens: Tokens, clock: Clock, signing_keys: SigningKeys) -> None:
        self._database = database
        self._tokens = tokens
        self._clock = clock
        self._signing_keys = signing_keys

    async def read(self, query: bytes) -> AuthorizationOutcome:
        """Check a query string against every row of the error table that does not depend on the person."""
        return await self._database.look_up(lambda tx: _decide(tx, query))

    def is_too_old(self, request: AuthorizationRequest, signed_in_on: int) -> bool:
        """Whether the request wants a person who has signed in later than that (`max_age`)."""
        return request.max_age is not None and self._clock.now_ms() - signed_in_on > request.max_age * 1000

    async def consent_needed(self, request: AuthorizationRequest, user: UserKey) -> ConsentScreen | None:
        """The permission screen; None when the application asks for nothing that still needs the user's consent. With
        `prompt=none`, a first sign-in needs it, too."""
        return await self._database.look_up(lambda tx: _screen(tx, request, user))

    async def allow(
        self,
        request: AuthorizationRequest,
        user: UserKey,
        *,
        agreed: ConsentScreen | None = None,
        signed_in_on: int | None = None,
    ) -> Redirect | ErrorPage | ConsentScreen:
        """Store the grants and issue the code or the tokens, after the person agreed or when no consent is needed.

        Args:
            user: the key of the person who signed in.
            agreed: the screen that the person agreed to; None when there was no screen to show.
            signed_in_on: when the person has signed in, for the ID token.

        Returns:
            The redirect to the application. If the request is no longer valid: what `read` returns now. If the
            application now asks for something else than `agreed`: the screen to show instead. In the last two cases
            nothing was stored.
        """
        if request.openid.scope:
            await self._signing_keys.ensure()
        return await self._tokens.change(lambda issuance: _complete(issuance, request, user, agreed, signed_in_on))

    async def deny(self, request: AuthorizationRequest) -> Redirect:
        """Refuse the request. Only the refusal is stored."""
        await self._tokens.change(
            lambda issuance: note(
                issuance.tx,
                AuditEvent.CONSENT_DENIED,
                f"application {request.application.id}",
                now_ms=issuance.now_ms,
                outcome="refused",
            )
        )
        return request.error("access_denied")


def _complete(
    issuance: Issuance,
    request: AuthorizationRequest,
    user: UserKey,
    agreed: ConsentScreen | None,
    signed_in_on: int | None,
) -> Redirect | ErrorPage | ConsentScreen:
    """Check the request again in the transaction that issues: the application may have changed since `read`."""
    decided = _decide(issuance.tx, request.query)
    if not isinstance(decided, AuthorizationRequest):
        return decided
    screen = _screen(issuance.tx, decided, user)
    if screen is not None and screen != agreed:
        return screen
    save_consent(issuance.tx, decided.application, user)
    if agreed is not None:
        note(issuance.tx, AuditEvent.CONSENT_GIVEN, f"application {decided.application.id}", now_ms=issuance.now_ms)
    if decided.implicit:
        tokens, _family = issuance.for_user(decided.application.key, user, Method.IMPLICIT)
        members = [(name, str(value)) for name, value in tokens.answer().items()]
        return Redirect(with_parameters(decided.redirect_uri, [*members, ("state", decided.state)], fragment=True))
    code = new_id()
    issuance.tx.authorizations.add_code(
        AuthorizationCodeRecord(
            token_hash(code),
            decided.application.key,
            user,
            decided.redirect_uri,
            decided.code_challenge,
            issuance.now_ms + AUTHORIZATION_CODE_SECONDS * 1000,
            scope=decided.openid.scope,
            nonce=decided.openid.nonce,
            signed_in_on=signed_in_on if decided.openid.scope else None,
        )
    )
    return Redirect(with_parameters(decided.redirect_uri, [("code", code), ("state", decided.state)]))


def _screen(tx: Transaction, request: AuthorizationRequest, user: UserKey) -> ConsentScreen | None:
    is_shown = request.consent_wanted or must_ask(tx, request.application, user)
    # Without a page, nobody is signed in to an application for the first time (OpenID Connect Core 1.0, 3.1.2.1).
    is_shown = is_shown or (request.silent and not tx.accounts.grants(request.application.key, user))
    return screen_of(tx, request.application) if is_shown else None


def _decide(tx: Transaction, query: bytes) -> AuthorizationOutcome:
    given = QueryParameters(query)
    # No redirect before the redirect URI is known to be registered: otherwise this is an open redirector.
    application = find_application(tx, given.same("client_id") or "")
    if application is None:
        return ErrorPage(400, "Invalid parameter: client_id: it names no application")
    is_given = bool(given.all("redirect_uri"))
    wanted = given.same("redirect_uri")
    redirect_uri = None if is_given and wanted is None else application.redirect_uri(wanted)
    if redirect_uri is None:
        return ErrorPage(400, STRANGE_REDIRECT)
    implicit, state = _is_implicit(given), given.one("state")
    if (error := _error_in(given, application)) is not None:
        return _error(redirect_uri, error, state, fragment=implicit)
    prompts = _prompts(given)
    return AuthorizationRequest(
        application=application,
        implicit=implicit,
        redirect_uri=redirect_uri,
        state=state,
        code_challenge=given.one("code_challenge"),
        login_wanted=bool(prompts & {"login", "select_account"}),
        consent_wanted="consent" in prompts,
        silent="none" in prompts,
        max_age=None if (age := given.one("max_age")) is None else int(age),
        openid=OpenIdRequest(scope_of(given.one("scope")), given.one("nonce")),
        account_type=given.one("account_type"),
        blank_style=given.one("test_css_blank") is not None,
        query=query,
    )


def _prompts(given: QueryParameters) -> frozenset[str]:
    return frozenset((given.one("prompt") or "").split())


def _is_implicit(given: QueryParameters) -> bool:
    """The implicit flow. Its errors stand in the fragment, also when `response_type=token` is repeated."""
    return set(given.all("response_type")) == {"token"}


def _error_in(given: QueryParameters, application: Application) -> str | None:
    if given.repeated(_KNOWN) or given.one("response_type") not in {"code", "token"}:
        return "invalid_request"
    prompts = _prompts(given)
    if not prompts <= _PROMPTS or ("none" in prompts and len(prompts) > 1):
        return "invalid_request"
    if (age := given.one("max_age")) is not None and _SECONDS.fullmatch(age) is None:
        return "invalid_request"
    if len(given.one("nonce") or "") > _NONCE_CHARACTERS:
        return "invalid_request"
    for name in ("request", "request_uri"):  # OpenID Connect Core 1.0, 6.1 and 6.2
        if given.all(name):
            return f"{name}_not_supported"
    challenge, method = given.one("code_challenge"), given.one("code_challenge_method")
    if (challenge is None) != (method is None):
        return "invalid_request"
    if challenge is not None and (method != "S256" or _CHALLENGE.fullmatch(challenge) is None):
        return "invalid_request"
    is_allowed = _allows_flow(application, implicit=_is_implicit(given), challenge=challenge)
    return None if is_allowed else "unauthorized_client"


def _allows_flow(application: Application, *, implicit: bool, challenge: str | None) -> bool:
    if implicit:
        return application.allows(Method.IMPLICIT)
    # An application that has a secret may send a challenge, too (RFC 9700, 2.1.1).
    if challenge is not None:
        return application.allows(Method.AUTHORIZATION_CODE, Method.PKCE)
    return application.allows(Method.AUTHORIZATION_CODE)


def _error(redirect_uri: str, error: str, state: str | None, *, fragment: bool) -> Redirect:
    return Redirect(with_parameters(redirect_uri, [("error", error), ("state", state)], fragment=fragment))
