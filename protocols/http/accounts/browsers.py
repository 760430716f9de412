"""Who sits at the browser: the session cookie, and the key that guards the sign-in form before there is a session."""

from collections.abc import Sequence
from typing import Any, Final, Literal
from urllib.parse import urlencode

from quart import Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.sessions import FormKeys, Session, Sessions
from broker.errors import DomainError
from broker.ids import is_id, new_id
from broker.site import AccountsRoot
from config.limits import SESSION_SECONDS
from protocols.http.accounts.forms import as_field
from protocols.http.accounts.pages import only_looks, page
from protocols.http.body import Query

_SESSION: Final = "trunkline_session"
_FORM_KEY: Final = "trunkline_form"

Place = Literal["authorize", "go"]
#: What /accept/share carries along on its way over "go".
SHARE: Final = "share"


class Browsers:
    def __init__(
        self, sessions: Sessions, root: AccountsRoot, *, signup_open: bool, providers: Sequence[str] = ()
    ) -> None:
        self._sessions = sessions
        self._signup_open = signup_open
        self._providers = providers
        self._root = root
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

    @property
    def key(self) -> str:
        """What tells this browser from others before there is a session; empty when it was shown nothing yet."""
        key = request.cookies.get(_FORM_KEY, "")
        return key if is_id(key) else ""

    def keep_key(self, answer: Response, key: str) -> None:
        self._set(answer, _FORM_KEY, key, max_age=None)

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
        login_wanted: bool = False,
    ) -> Response:
        """The form. Whoever fills it in goes on at `place`, with `query`.

        `login_wanted`: an identity provider is to ask for a password, too, even if it knows the person already.
        """
        common = {"page": place, "continue": as_field(query), **({"login": "1"} if login_wanted else {})}
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
            providers=[(one, urlencode({"provider": one} | common, encoding="latin-1")) for one in self._providers],
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
        # A browser with two forms open has one key for both.
        key = self.key or new_id()
        answer = page(
            template,
            status,
            asked=asked,
            place=place,
            shares=place == "go" and Query(query).text(SHARE) is not None,
            query=as_field(query),
            application=asked.application.name if asked is not None else "",
            csrf=self._form_keys.proof(key),
            **values,
        )
        if not only_looks():
            self.keep_key(answer, key)
        return answer

    def _set(self, answer: Response, cookie: str, value: str, *, max_age: int | None) -> None:
        answer.set_cookie(
            cookie,
            value,
            max_age=max_age,
            path=self._root.path or "/",
            httponly=True,
            samesite="Lax",
            # Not where everything is plain http, on loopback: not every browser would keep it.
            secure=self._root.is_secure or request.is_secure,
        )
