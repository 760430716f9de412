"""The browser's cookies: the session, and the key that protects the sign-in form before there is a session."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from quart import Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.sessions import CodeWanted, FormKeys, Session, Sessions
from broker.errors import DomainError
from broker.ids import is_id, new_id
from broker.site import AccountsRoot
from broker.trace.origin import set_actor
from config.limits import SECOND_FACTOR_SECONDS, SESSION_SECONDS
from protocols.cookies import SESSION_COOKIE
from protocols.http.accounts.forms import as_field
from protocols.http.accounts.pages import is_head, render_page
from protocols.http.reading import Query
from protocols.http.texts import speak

_FORM_KEY: Final = "trunkline_form"
#: The text for a form that was shown too long ago, or in another session.
OLD_FORM: Final = "This form is no longer valid. Please try again."
_OLD_FORM_OR_NO_COOKIES: Final = "This form is no longer valid. Please try again; your browser must accept cookies."
_WAITING: Final = "trunkline_waiting"  # between the right password and the code of the second factor

#: The parameter of /go with the code of a device share: after the sign-in, the browser goes on to /accept/share.
SHARE_PARAMETER: Final = "share"
#: The parameter of /go with the code of a label: the browser goes on to /accept/label.
LABEL_PARAMETER: Final = "label"
#: The parameter of /go with the code of an invitation to a trial: the browser goes on to /accept/trial.
TRIAL_PARAMETER: Final = "trial"
#: The parameter of /go with which the browser goes on to the person's account after the sign-in.
ACCOUNT_PARAMETER: Final = "account"
#: The parameter of /go with the page of the console to which the browser goes on after the sign-in.
CONSOLE_PARAMETER: Final = "console"


@dataclass(eq=False)
class Browsers:
    _sessions: Sessions
    _form_keys: FormKeys
    _root: AccountsRoot
    _signup_open: bool
    _providers: Sequence[str] = ()

    @property
    def session_id(self) -> str:
        """The value of the session cookie, which need not be valid."""
        return request.cookies.get(SESSION_COOKIE, "")

    async def session(self) -> Session | None:
        session = await self._sessions.find(self.session_id)
        return _spoken_to(session)

    async def session_to_enrol(self) -> Session | None:
        """The session, also one that is good only for setting up the second factor."""
        session = await self._sessions.find(self.session_id, to_enrol=True)
        return _spoken_to(session)

    def remember(self, answer: Response, session: Session) -> None:
        # For all paths: the console needs it, too.
        self._set(answer, SESSION_COOKIE, session.id, max_age=SESSION_SECONDS, path="/")
        self._set(answer, _FORM_KEY, "", max_age=0)
        if self.waiting:
            self._set(answer, _WAITING, "", max_age=0)

    @property
    def waiting(self) -> str:
        """The sealed sign-in that waits for the code of the second factor; it need not be valid."""
        return request.cookies.get(_WAITING, "")

    def wait_for_code(self, answer: Response, wanted: CodeWanted) -> None:
        self._set(answer, _WAITING, wanted.waiting, max_age=SECOND_FACTOR_SECONDS)

    def forget(self, answer: Response) -> None:
        self._set(answer, SESSION_COOKIE, "", max_age=0, path="/")

    def showed_form(self, csrf: str) -> bool:
        """The CSRF token proves that the form was shown to this browser."""
        return self._form_keys.proves(csrf, request.cookies.get(_FORM_KEY, ""))

    @property
    def why_not_shown(self) -> str:
        """The text for a person whose form was not shown to this browser (`showed_form`)."""
        has_cookies = request.cookies.get(_FORM_KEY) or self.session_id
        return OLD_FORM if has_cookies else _OLD_FORM_OR_NO_COOKIES

    @property
    def key(self) -> str:
        """The random key that identifies this browser before there is a session; empty before its first page."""
        key = request.cookies.get(_FORM_KEY, "")
        return key if is_id(key) else ""

    def keep_key(self, answer: Response, key: str) -> None:
        self._set(answer, _FORM_KEY, key, max_age=None)

    def sign_in_page(
        self,
        query: bytes,
        *,
        status: int = 200,
        asked: AuthorizationRequest | None = None,
        name: str = "",
        problem: str = "",
        refused: DomainError | None = None,
        login_wanted: bool = False,
    ) -> Response:
        """The sign-in form. After it, the person goes on with the request `asked`, or at /go when `asked` is None.

        Args:
            query: the query string of /authorize or /go.
            login_wanted: an identity provider shall ask for the password, also if the person is signed in there.
        """
        common = continuation(asked, query) | ({"login": "1"} if login_wanted else {})
        return self.form_page(
            "sign_in.html",
            query,
            status=status,
            asked=asked,
            problem=problem,
            refused=refused,
            name=name,
            signup_open=self._signup_open,
            providers=[(one, urlencode({"provider": one} | common, encoding="latin-1")) for one in self._providers],
        )

    def form_page(
        self,
        template: str,
        query: bytes = b"",
        *,
        status: int,
        asked: AuthorizationRequest | None = None,
        **values: Any,
    ) -> Response:
        """A form for people without a session."""
        # Keep an existing key: another form may be open in the same browser.
        key = self.key or new_id()
        place = _page_of(asked)
        given = Query(query)
        answer = render_page(
            template,
            status,
            asked=asked,
            place=place,
            shares=place == "go" and given.text(SHARE_PARAMETER) is not None,
            claims_device=place == "go" and given.text(LABEL_PARAMETER) is not None,
            joins_trial=place == "go" and given.text(TRIAL_PARAMETER) is not None,
            own_account=place == "go"
            and (given.text(ACCOUNT_PARAMETER) is not None or given.text(CONSOLE_PARAMETER) == "/console/account"),
            to_console=place == "go" and given.text(CONSOLE_PARAMETER) is not None,
            query=as_field(query),
            application=asked.application.name if asked is not None else "",
            csrf=self._form_keys.proof(key),
            **values,
        )
        if not is_head():
            self.keep_key(answer, key)
        return answer

    def _set(self, answer: Response, cookie: str, value: str, *, max_age: int | None, path: str | None = None) -> None:
        answer.set_cookie(
            cookie,
            value,
            max_age=max_age,
            path=path or self._root.path or "/",
            httponly=True,
            samesite="Lax",
            # With plain http on loopback without `Secure`: some browsers would not store the cookie.
            secure=self._root.is_secure or request.is_secure,
        )


def _spoken_to(session: Session | None) -> Session | None:
    """The session, in whose person's language the answer will be."""
    if session is not None:
        set_actor(f"user {session.user.id}")
        speak(session.user.language)
    return session


def _page_of(asked: AuthorizationRequest | None) -> str:
    """The form field `page`: which page the person goes on with."""
    return "go" if asked is None else "authorize"


def continuation(asked: AuthorizationRequest | None, query: bytes) -> dict[str, str]:
    """The parameters of an address that leads to a page of the sign-in; its forms carry the same as fields."""
    return {"page": _page_of(asked), "continue": as_field(query)}


def user_agent() -> str:
    """The browser's User-Agent; empty if there is none."""
    return request.headers.get("User-Agent", "")


def remote_address() -> str:
    """The IP address of the person; empty if it is unknown."""
    return request.remote_addr or ""
