"""/users/…/sessions: the browsers in which a person is signed in (reference 5.5)."""

from typing import Annotated, Final

from broker.accounts.open_sessions import OpenSession
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import NotFound
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.schema import Data, Id, Shape, Timestamp, about
from storage.records import UserRecord

_PATH: Final = "/users/{uid}/sessions"


class SessionObject(Shape):
    shape = "Session"
    example = {
        "id": samples.SESSION,
        "address": "192.0.2.17",
        "userAgent": "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0",
        "createdOn": samples.TS,
        "lastUsedOn": samples.CTS,
        "expiresOn": samples.TS + 14 * 86_400_000,
    }

    id: Annotated[Id, about("Names the session; the browser does not have it")]
    address: Annotated[str, about("The IP address at the sign-in; empty if unknown")]
    user_agent: Annotated[str, about("What the browser called itself, shortened to 200 characters")]
    created_on: Timestamp
    last_used_on: Annotated[Timestamp, about("Exact to five minutes")]
    expires_on: Timestamp


class _Sessions(Shape):
    sessions: list[SessionObject]


class SessionCalls(RestCalls):
    chapter = Chapter(
        "Sessions",
        "The browsers in which a person is signed in to the accounts pages. Only for the person, and only with an "
        "application to which the person granted WRITE on the profile.",
    )
    path_names = {"sessionId": (Annotated[Id, about("A session")], samples.SESSION)}

    def __init__(self, accounts: AccountsRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._sessions = accounts.open_sessions

    async def _own(self, caller: Caller, uid: str) -> UserRecord:
        user = await self._users.find(uid, caller)
        await self._permissions.require_profile(caller, user.key)
        return user

    async def _session(self, caller: Caller, uid: str, session_id: str) -> tuple[UserRecord, str]:
        """The user and the session's id. Raises UserNotFound, PermissionDenied, NotFound."""
        user = await self._own(caller, uid)
        if session_id not in {session.id for session in await self._sessions.of(user)}:
            raise NotFound
        return user, session_id

    @RestCall(
        "GET",
        _PATH,
        tokens=USER,
        on=_own,
        summary="Where a user is signed in",
        about="The newest first; at most 100.",
    )
    async def sessions(self, user: UserRecord) -> Data[_Sessions]:
        return Data(_Sessions([_object(session) for session in await self._sessions.of(user)]))

    @RestCall("DELETE", _PATH, tokens=USER, on=_own, summary="Sign a user out of every browser", about="Tokens stay.")
    async def end_all(self, user: UserRecord) -> Data[_Sessions]:
        ended = await self._sessions.of(user)
        await self._sessions.end_all(user)
        return Data(_Sessions([_object(session) for session in ended]))

    @RestCall("DELETE", f"{_PATH}/{{sessionId}}", tokens=USER, on=_session, summary="Sign a user out of one browser")
    async def end(self, named: tuple[UserRecord, str]) -> Data[SessionObject]:
        user, id_ = named
        found = [session for session in await self._sessions.of(user) if session.id == id_]
        if not found or not await self._sessions.end(user, id_):  # it has ended
            raise NotFound
        return Data(_object(found[0]))


def _object(session: OpenSession) -> SessionObject:
    return SessionObject(
        session.id, session.address, session.user_agent, session.created_on, session.used_on, session.expires_on
    )
