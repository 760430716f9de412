"""For whom a caller acts when a body says so: `uid` in the bodies of scenes and models (reference 12.5 and 12.6)."""

from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller
from broker.accounts.users import Users
from broker.errors import REQUIRED, Finding, UserNotFound, invalid
from storage.keys import UserKey


async def user_in_body(
    users: Users, permissions: Permissions, caller: Caller, uid: object, findings: list[Finding]
) -> UserKey | None:
    """The user of `uid`, by default that of the caller's token. None: there is no such user, and a finding says so.

    Raises PermissionDenied when the caller does not act for the user.
    """
    if uid is None and caller.user is not None:
        return caller.user
    if not isinstance(uid, str) or not uid:
        findings.append(Finding("uid", (invalid("must be a text") if uid else REQUIRED,)))
        return None
    try:
        user = (await users.find(uid, caller)).key
    except UserNotFound as error:
        findings.append(Finding("uid", (str(error),)))
        return None
    await permissions.require_user(caller, user)
    return user
