"""/users/{uid}: a person who leaves is deleted (reference 5.7)."""

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied
from broker.leaving.room import LeavingRoom
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.rest.users import UserObject, profile_of
from protocols.http.schema import Data
from storage.records import UserRecord


class LeavingCalls(RestCalls):
    chapter = Chapter(
        "Leaving",
        "A person's account is deleted, with all that the service has of the person.",
    )

    def __init__(self, accounts: AccountsRoom, leaving: LeavingRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._operators = accounts.operators
        self._leaving = leaving.leaving

    async def _leaver(self, caller: Caller, uid: str) -> UserRecord:
        user = await self._users.find(uid, caller)
        try:
            await self._permissions.require_profile(caller, user.key)
        except PermissionDenied:
            await self._operators.require(caller)
        return user

    @RestCall(
        "DELETE",
        "/users/{uid}",
        tokens=USER,
        on=_leaver,
        summary="Delete an account",
        about="Cannot be undone. The user is gone for everybody at once, with devices, messages, shares, rules, "
        "scenes, models, subscriptions, exports, tokens and sessions. Only for the user, with an application to which "
        "the user granted WRITE on the profile, and for the operator at the console.",
        refusals={409: "The user is the last administrator of an organization."},
    )
    async def delete(self, user: UserRecord) -> Data[UserObject]:
        await self._leaving.delete(user)
        return Data(profile_of(user))
