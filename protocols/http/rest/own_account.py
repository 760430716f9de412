"""/users/…: a person's name and language, and /users/…/audit: what happened to the account (reference 5.1, 5.6)."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.accounts.own_account import OwnAccount
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from config.languages import LANGUAGES
from config.limits import NAME_MAX_CHARACTERS
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.users import UserObject, profile_of
from protocols.http.schema import Data, NumberedPage, Paging, Shape, Timestamp, about, one_of, text
from storage.records import UserRecord

_OUTCOMES: Final = ("done", "refused", "failed")


class _AuditEntry(Shape):
    shape = "AuditEntry"
    example = {
        "ts": samples.TS,
        "event": "sign_in",
        "actor": f"user {samples.UID}",
        "address": "192.0.2.17",
        "object": f"account {samples.UID}",
        "outcome": "done",
        "details": {},
    }

    ts: Timestamp
    event: str
    actor: Annotated[str, about("Who did it: a word and an id; empty for a stranger or the daemon itself")]
    address: Annotated[str, about("Where it came from: an IP address, `control socket` or `command line`")]
    object: Annotated[str, about("What it was about: a word and an id")]
    outcome: Annotated[str, one_of(_OUTCOMES)]
    details: Annotated[Mapping[str, Any], about("What else is known; no secrets")]


class _Activity(Shape):
    entries: list[_AuditEntry]


class _Profile(Shape):
    example = {"fullName": "Ada Example", "language": "de"}

    full_name: Annotated[str, text("Display name", longest=NAME_MAX_CHARACTERS)]
    language: (
        Annotated[
            str,
            one_of(("", *LANGUAGES), "Of the pages; empty: as the browser wants it. Without it nothing changes"),
        ]
        | UnsetType
    ) = UNSET


class OwnAccountCalls(RestCalls):
    chapter = Chapter(
        "Own account",
        "A person's display name and language, and what happened to the account. Only for the person, and only with an "
        "application to which the person granted WRITE on the profile.",
    )

    def __init__(self, accounts: AccountsRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._own: OwnAccount = accounts.own_account

    async def _person(self, caller: Caller, uid: str) -> UserRecord:
        user = await self._users.find(uid, caller)
        await self._permissions.require_profile(caller, user.key)
        return user

    @RestCall("PUT", "/users/{uid}", tokens=USER, on=_person, summary="Change the display name and the language")
    async def rename(self, user: UserRecord, body: _Profile) -> Data[UserObject]:
        language = None if body.language is UNSET else body.language
        return Data(profile_of(await self._own.change(user, body.full_name, language)))

    @RestCall(
        "GET",
        "/users/{uid}/audit",
        tokens=USER,
        on=_person,
        summary="What happened to an account",
        about="The newest first: what the user did, and what others did to the account. Addresses of those "
        "whom the user invited to a trial need the grant `trials`.",
    )
    async def activity(self, caller: Caller, user: UserRecord, query: Paging) -> NumberedPage[_Activity]:
        reach = await self._permissions.reach(caller)
        found, total = await self._own.activity(
            user, offset=query.offset, limit=query.count, with_invited=reach.manages_trials(user.key)
        )
        entries = [
            _AuditEntry(one.at_ms, one.event, one.actor, one.address, one.object, one.outcome, one.details)
            for one in found
        ]
        return NumberedPage(_Activity(entries), total, query.offset, len(entries))
