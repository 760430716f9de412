"""/users/{uid}: a person who leaves takes an archive along, and is deleted (reference 5.7, 5.8)."""

from typing import Annotated, Final

from msgspec import UNSET, UnsetType
from quart import Response

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied
from broker.leaving.archives import NOT_READY, ArchiveStatus
from broker.leaving.room import LeavingRoom
from config.limits import ARCHIVE_KEPT_HOURS
from protocols.http.calls import USER, Answers, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.archive_answers import CONTENT_TYPE, archive_answer
from protocols.http.rest.users import UserObject, profile_of
from protocols.http.schema import (
    Amount,
    Data,
    Id,
    Shape,
    Timestamp,
    about,
    absent_if_none,
    integer,
    one_of,
    text,
    time_ms,
)
from storage.archives import ArchiveRecord
from storage.records import UserRecord

_PATH: Final = "/users/{uid}/archive"
_STATUSES: Final = tuple(one.value for one in ArchiveStatus)


class UserArchive(Shape, kw_only=True):
    shape = "UserArchive"
    example = {
        "archiveId": samples.EXPORT,
        "status": "Success",
        "createdOn": samples.TS,
        "expirationDate": samples.TS + 86_400_000,
        "fileSize": 1234,
        "md5": "5eb63bbbe01eeed093cb22bb8f5acdc3",
        "totalMessages": 10,
        "isWhole": True,
    }

    archive_id: Id
    status: Annotated[str, one_of(_STATUSES)]
    created_on: Timestamp
    expiration_date: Annotated[int, time_ms("When it goes")] | UnsetType = UNSET
    file_size: Annotated[int, integer("Bytes", lowest=0)] | UnsetType = UNSET
    md5: Annotated[str, text("Of the file, in hexadecimal", pattern="^[0-9a-f]{32}$")] | UnsetType = UNSET
    total_messages: Amount | UnsetType = UNSET
    is_whole: (
        Annotated[bool, about("False: it reached its bound, and `about.json` says what is not whole")] | UnsetType
    ) = UNSET


class _Archives(Shape):
    archives: list[UserArchive]


class LeavingCalls(RestCalls):
    chapter = Chapter(
        "Leaving",
        "A person takes along an archive of all that the service knows of them, and deletes the account.",
    )

    def __init__(self, accounts: AccountsRoom, leaving: LeavingRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._operators = accounts.operators
        self._leaving = leaving.leaving
        self._archives = leaving.archives

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

    async def _person(self, caller: Caller, uid: str) -> UserRecord:
        """The user at the console: no application was granted all that an archive has."""
        user = await self._users.find(uid, caller)
        await self._permissions.require_profile(caller, user.key)
        if not caller.is_console:
            raise PermissionDenied("the user at the console: no application gets this")
        return user

    @RestCall(
        "POST",
        _PATH,
        tokens=USER,
        on=_person,
        summary="Ask for an archive of everything the service knows of you",
        about="It is made in the background. While one is being made, the answer is that one; a new one replaces the "
        f"one before. It is kept for {ARCHIVE_KEPT_HOURS} hours. Only for the user at the console.",
        refusals={429: "The last one was made less than an hour ago."},
    )
    async def ask(self, user: UserRecord) -> Data[UserArchive]:
        return Data(_archive(await self._archives.ask(user)))

    @RestCall("GET", _PATH, tokens=USER, on=_person, summary="How far the archive is", about="None, or one.")
    async def archive(self, user: UserRecord) -> Data[_Archives]:
        found = await self._archives.latest(user)
        return Data(_Archives([] if found is None else [_archive(found)]))

    @RestCall(
        "GET",
        f"{_PATH}/result",
        tokens=USER,
        on=_person,
        summary="Download the archive",
        answers=Answers(
            type=Annotated[str, about("", format="binary")],
            content_type=CONTENT_TYPE,
            headers={
                "Content-Disposition": Annotated[str, about("Names the file")],
                "ETag": Annotated[str, about("Changes with the archive")],
                "Accept-Ranges": Annotated[str, about("bytes")],
            },
            about="The archive (.tgz); with `Range` a part of it (206)",
        ),
        refusals={409: NOT_READY, 410: "The archive could not be made, or is gone.", 416: "The archive is shorter."},
    )
    async def result(self, user: UserRecord) -> Response:
        archive, file = await self._archives.result(user)
        return archive_answer(file, f"{archive.id}.tgz", archive.id)


def _archive(record: ArchiveRecord) -> UserArchive:
    is_done = record.status == ArchiveStatus.SUCCESS
    return UserArchive(
        archive_id=record.id,
        status=record.status,
        created_on=record.created_on,
        expiration_date=absent_if_none(record.expires_on),
        file_size=absent_if_none(record.file_size),
        md5=absent_if_none(record.md5),
        total_messages=record.messages if is_done else UNSET,
        is_whole=record.is_whole if is_done else UNSET,
    )
