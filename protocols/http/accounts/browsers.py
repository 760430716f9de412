"""Who sits at the browser: the session cookie, and the key that guards the sign-in form before there is a session."""

from typing import Any, Final, Literal

from quart import Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.sessions import FormKeys, Session, Sessions
from broker.accounts.site import Site
from broker.errors import DomainError
from broker.ids import is_id, new_id
from config.limits import SESSION_SECONDS
from protocols.http.accounts.caching import ACCOUNTS_ROOT
from protocols.http.accounts.forms import as_field
from protocols.http.accounts.pages import page

_SESSION: Final = "trunkline_session"
_FORM_KEY: Final = "trunkline_form"

Place = Literal["authorize", "go"]


class Browsers:
    def __init__(self, sessions: Sessions, site: Site, *, signup_open: bool) -> None:
        self._sessions = sessions
        self._signup_open = signup_open
        self._site = site
        self._form_keys = FormKeys()

    @property
    def session_id(self) -> str:
        """What the cookie says, whatever it is worth."""
        return request.cookies.get(_SESSION, "")

    async def session(self) -> Session | None:
        return await self._sessions.find(self.session_id)

    def remember(self, answer: Response, session: Session) -> None:
        self._set(answer, _SESSION, session.id, max_age=SESSION_SECONDS)
        self._set(answer, _FORM_KEY, "", max_age=0)

    def forget(self, answer: Response) -> None:
        self._set(answer, _SESSION, "", max_age=0)

    def showed_form(self, csrf: str) -> bool:
        """This browser was shown the form that it sends."""
        return self._form_keys.proves(csrf, request.cookies.get(_FORM_KEY, ""))

    def sign_in_page(
        self,
        place: Place,
        query: bytes,
        *,
        status: int = 200,
        asked: AuthorizationRequest | None = None,
        name: str = "",
        problem: str = "",
        refused: DomainError | None = None,
    ) -> Response:
        """The form. Whoever fills it in goes on at `place`, with `query`."""
        return self.form_page(
            "sign_in.html",
            place,
            query,
            status=status,
            asked=asked,
            problem=problem,
            refused=refused,
            name=name,
            signup_open=self._signup_open,
        )

    def form_page(
        self,
        template: str,
        place: Place,
        query: bytes,
        *,
        status: int,
        asked: AuthorizationRequest | None,
        **values: Any,
    ) -> Response:
        """A form for people without a session."""
        key = request.cookies.get(_FORM_KEY, "")
        # A browser with two forms open has one key for both.
        key = key if is_id(key) else new_id()
        answer = page(
            template,
            status,
            asked=asked,
            place=place,
            query=as_field(query),
            application=asked.application.name if asked is not None else "",
            csrf=self._form_keys.proof(key),
            **values,
        )
        self._set(answer, _FORM_KEY, key, max_age=None)
        return answer

    def _set(self, answer: Response, cookie: str, value: str, *, max_age: int | None) -> None:
        answer.set_cookie(
            cookie,
            value,
            max_age=max_age,
            path=ACCOUNTS_ROOT,
            httponly=True,
            samesite="Lax",
            secure=self._site.origin.startswith("https://"),
        )
