"""Deciding an /authorize request. The pages (login, consent) stand on this; it knows nothing of sessions or HTML.

How a page uses it, with the query string of GET /authorize (or /signin), as it came:

    match await authorize.read(request.query_string):
        case Refusal(status, text): show an error page; never send the browser anywhere
        case Redirect(url): 302 to `url` (an error of the request, told to the application)
        case AuthorizationRequest() as asked: go on

    1. Without a session, or with `asked.login_wanted`: show the login form, `continue` = `asked.query`. After it, read
       `continue` again with `read` and go on as if `prompt` had not been given. `asked.account_type` is the identity
       provider to offer, if one is configured by that name; else offer all of them.
    2. `screen = await authorize.consent_needed(asked)`. If it is not None, show it (`continue` = `asked.query`); its
       form decides between `allow` and `deny`. If it is None, call `allow` at once.
    3. `await authorize.allow(asked, user.key, agreed=screen)` keeps the grants, issues the code or the tokens and gives
       a `Redirect` (or, had the application been changed meanwhile, what `read` would say now, or the screen that is to
       be shown instead). `authorize.deny(asked)` gives the `access_denied` redirect.

    When anything unexpected happens after `read` gave an AuthorizationRequest: 302 to
    `asked.error("server_error").url`. Before that: status 500 and no redirect.

`continue` is untrusted: always give it to `read` again, and never redirect to it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from broker.accounts.applications import Application, Method, find_application
from broker.accounts.consent import ConsentScreen, must_ask, save_consent, screen_of
from broker.accounts.issuance import Issuance
from broker.accounts.redirects import with_parameters
from broker.accounts.tokens import Tokens
from broker.ids import new_id
from broker.secrets import token_hash
from config.limits import AUTHORIZATION_CODE_SECONDS
from storage.database import Database, Transaction
from storage.records import AuthorizationCodeRecord

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
)
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # RFC 7636, 4.2: SHA-256 in Base64url without padding


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the browser there, with 302."""

    url: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """There is no address that may be trusted with an error: tell the person."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A valid request: its application may have what it asks for, if the person agrees."""

    application: Application
    implicit: bool
    redirect_uri: str
    state: str | None
    code_challenge: str | None
    login_wanted: bool  # prompt=login
    account_type: str | None
    blank_style: bool  # test_css_blank
    query: bytes  # the request as it came: what `continue` carries

    def error(self, error: str) -> Redirect:
        return _error(self.redirect_uri, error, self.state, fragment=self.implicit)


Decision = AuthorizationRequest | Redirect | Refusal


class Authorize:
    def __init__(self, database: Database, tokens: Tokens) -> None:
        self._database = database
        self._tokens = tokens

    async def read(self, query: bytes) -> Decision:
        """Every row of the error table that can be told before the person is asked."""
        return await self._database.read(lambda tx: _decide(tx, query))

    async def consent_needed(self, request: AuthorizationRequest) -> ConsentScreen | None:
        """The permission screen, or None when the application asks for nothing that needs one."""
        application = request.application
        return await self._database.read(
            lambda tx: screen_of(tx, application) if must_ask(tx, application) else None,
        )

    async def allow(
        self, request: AuthorizationRequest, user: int, *, agreed: ConsentScreen | None = None
    ) -> Redirect | Refusal | ConsentScreen:
        """The person agreed, or need not be asked.

        Args:
            user: the key of the person who signed in.
            agreed: the screen that they agreed to; None when there was nothing to be shown.

        Returns:
            What `read` would say now, the way back, or the screen that must be shown, because by now the application
            asks for something else than was agreed to. Then nothing was kept.
        """
        return await self._tokens.change(lambda issuance: _complete(issuance, request, user, agreed))

    def deny(self, request: AuthorizationRequest) -> Redirect:
        return request.error("access_denied")


def _complete(
    issuance: Issuance, request: AuthorizationRequest, user: int, agreed: ConsentScreen | None
) -> Redirect | Refusal | ConsentScreen:
    """Decided once more, in the transaction that issues: the application may have changed since it was read."""
    decided = _decide(issuance.tx, request.query)
    if not isinstance(decided, AuthorizationRequest):
        return decided
    if must_ask(issuance.tx, decided.application):
        screen = screen_of(issuance.tx, decided.application)
        if screen != agreed:
            return screen
    issuance.facts.append(save_consent(issuance.tx, decided.application, user))
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
        )
    )
    return Redirect(with_parameters(decided.redirect_uri, [("code", code), ("state", decided.state)]))


class _Parameters:
    """The known parameters of the query; empty ones are absent (reference 1.3)."""

    def __init__(self, query: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        # `state` goes back unchanged, whatever its bytes are.
        for name, value in parse_qsl(query.decode("latin-1"), errors="surrogateescape"):
            self._values.setdefault(name.lstrip("?"), []).append(value)

    def repeated(self, names: Iterable[str]) -> bool:
        return any(len(self._values.get(name, ())) > 1 for name in names)

    def one(self, name: str) -> str | None:
        """None also when it is repeated, because then it has no value that counts."""
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else None

    def means_implicit(self) -> bool:
        return set(self._values.get("response_type", ())) == {"token"}


def _decide(tx: Transaction, query: bytes) -> Decision:
    given = _Parameters(query)
    # Until the address is known to be the application's own, nothing may be sent to it.
    application = find_application(tx, given.one("client_id") or "")
    if application is None:
        return Refusal(400, "Invalid parameter: client_id")
    redirect_uri = None if given.repeated(["redirect_uri"]) else application.redirect_uri(given.one("redirect_uri"))
    if redirect_uri is None:
        return Refusal(400, "Invalid parameter: redirect_uri")
    implicit, state = given.means_implicit(), given.one("state")
    if (error := _error_in(given, application)) is not None:
        return _error(redirect_uri, error, state, fragment=implicit)
    return AuthorizationRequest(
        application=application,
        implicit=implicit,
        redirect_uri=redirect_uri,
        state=state,
        code_challenge=given.one("code_challenge"),
        login_wanted=given.one("prompt") == "login",
        account_type=given.one("account_type"),
        blank_style=given.one("test_css_blank") is not None,
        query=query,
    )


def _error_in(given: _Parameters, application: Application) -> str | None:
    if given.repeated(_KNOWN) or given.one("response_type") not in {"code", "token"}:
        return "invalid_request"
    if given.one("prompt") not in {None, "login"}:
        return "invalid_request"
    challenge, method = given.one("code_challenge"), given.one("code_challenge_method")
    if (challenge is None) != (method is None):
        return "invalid_request"
    if challenge is not None and (method != "S256" or _CHALLENGE.fullmatch(challenge) is None):
        return "invalid_request"
    return None if _may(application, implicit=given.means_implicit(), challenge=challenge) else "unauthorized_client"


def _may(application: Application, *, implicit: bool, challenge: str | None) -> bool:
    if implicit:
        return application.allows(Method.IMPLICIT)
    # Also an application that has a secret may send a challenge (RFC 9700, 2.1.1).
    if challenge is not None:
        return application.allows(Method.AUTHORIZATION_CODE, Method.PKCE)
    return application.allows(Method.AUTHORIZATION_CODE)


def _error(redirect_uri: str, error: str, state: str | None, *, fragment: bool) -> Redirect:
    return Redirect(with_parameters(redirect_uri, [("error", error), ("state", state)], fragment=fragment))
