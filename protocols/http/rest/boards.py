"""/boards: what a person has pinned on one page, and read-only links to it (reference 12.14)."""

from functools import partial
from typing import Annotated, Any, Final

from msgspec import UNSET, Raw, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.boards.boards import TOO_MANY_BOARDS, board_tag
from broker.boards.room import BoardsRoom
from broker.boards.tiles import KINDS, RANGES
from config.limits import (
    BOARD_BODY_BYTES,
    BOARD_FIELD_MAX_CHARACTERS,
    BOARD_PARAMETERS_BYTES,
    BOARD_TILES_MAX,
    BOARDS_OF_USER,
    NAME_MAX_CHARACTERS,
)
from protocols.http.calls import USER, Accepts, Chapter, RestCall, RestCalls
from protocols.http.conditional import or_present, tagged
from protocols.http.openapi import samples
from protocols.http.schema import Data, Id, Shape, Timestamp, about, absent_if_none, one_of, text, time_ms
from storage.boards import BoardRecord
from storage.records import UserRecord

_BOARDS: Final = "/users/{uid}/boards"
_BOARD: Final = "/boards/{boardId}"
_TILES: Final = [
    {"kind": "value", "title": "Kitchen", "did": samples.DID, "field": "temp"},
    {"kind": "chart", "did": samples.DID, "field": "temp", "range": "day", "wide": True},
    {"kind": "action", "title": "Light on", "did": samples.DID, "action": "setOn", "parameters": {}},
    {"kind": "scene", "title": "Good night", "sceneId": samples.SCENE},
]
_EXAMPLE: Final[dict[str, Any]] = {
    "id": samples.BOARD,
    "uid": samples.UID,
    "name": "Kitchen",
    "tiles": _TILES,
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
    "hasLink": False,
}


class BoardTile(Shape):
    # Only described: the broker reads the tiles.
    shape = "BoardTile"
    example = _TILES[0]

    kind: Annotated[str, one_of(KINDS)]
    title: Annotated[str, text("Shown above; without it, its device and field are", longest=NAME_MAX_CHARACTERS)] | (
        UnsetType
    ) = UNSET
    did: Annotated[Id, about("The device; of every kind but `scene`")] | UnsetType = UNSET
    field: (
        Annotated[str, text("Of `chart` and `value`: its dotted path", longest=BOARD_FIELD_MAX_CHARACTERS)] | UnsetType
    ) = UNSET
    range: Annotated[str, one_of(RANGES, "Of `chart`; without it, an hour")] | UnsetType = UNSET
    wide: Annotated[bool, about("Of `chart`: as wide as the page")] | UnsetType = UNSET
    action: Annotated[str, text("Of `action`: its name", longest=BOARD_FIELD_MAX_CHARACTERS)] | UnsetType = UNSET
    parameters: (
        Annotated[dict[str, Any], about(f"Of `action`, as `POST /actions` takes them: {BOARD_PARAMETERS_BYTES} bytes")]
        | UnsetType
    ) = UNSET
    scene_id: Annotated[Id, about("Of `scene`")] | UnsetType = UNSET


_Name = Annotated[str, about("Of the board", minLength=1, maxLength=NAME_MAX_CHARACTERS)]
_Tiles = Annotated[list[BoardTile], about("In their order on the page", maxItems=BOARD_TILES_MAX)]


class _NewBoard(Shape):
    name: _Name
    tiles: _Tiles | None = None


class _BoardChange(Shape):
    name: _Name | None = None
    tiles: _Tiles | None = None


class BoardObject(Shape, kw_only=True):
    shape = "PinBoard"
    example = _EXAMPLE

    id: Id
    uid: Annotated[Id, about("Whose board it is")]
    name: _Name
    tiles: _Tiles
    created_on: Timestamp
    modified_on: Timestamp
    has_link: Annotated[bool, about("Whether there is a read-only link, which may have expired")]
    link_made_on: Annotated[int, time_ms("When the link was made")] | UnsetType = UNSET
    link_expires_on: Annotated[int, time_ms("When the link ends")] | UnsetType = UNSET


class _BoardList(Shape):
    boards: list[BoardObject]


class _LinkWanted(Shape):
    example = {"expiresOn": samples.TS + 30 * 86_400_000}

    expires_on: Annotated[int, time_ms("When the link ends; without it, when it is revoked")] | None = None


class _LinkMade(Shape):
    example = {"secret": samples.SESSION + samples.BOARD, "path": f"/console/kiosk#{samples.SESSION}{samples.BOARD}"}

    secret: Annotated[str, about("Shown this once")]
    path: Annotated[str, about("The page below the origin of the console; browsers send no server what follows the #")]
    expires_on: Annotated[int, time_ms("When the link ends")] | UnsetType = UNSET


class BoardCalls(RestCalls):
    chapter = Chapter(
        "Boards",
        "Charts, values, Actions and scenes that a person has pinned on one page of the console. Only for the person, "
        "and only with an application to which the person granted WRITE on the profile. A read-only link shows the "
        "values and charts of a board to whoever has it.",
    )
    path_names = {"boardId": (Annotated[Id, about("A board")], samples.BOARD)}

    def __init__(self, accounts: AccountsRoom, boards: BoardsRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._boards = boards.boards

    async def _person(self, caller: Caller, uid: str) -> UserRecord:
        user = await self._users.find(uid, caller)
        await self._permissions.require_profile(caller, user.key)
        return user

    async def _board(self, caller: Caller, board_id: str) -> BoardRecord:
        return await self._boards.find(caller, board_id)

    async def _linked(self, caller: Caller, board_id: str) -> BoardRecord:
        return await self._boards.find_for_link(caller, board_id)

    @RestCall("GET", _BOARDS, tokens=USER, on=_person, summary="List a user's boards", about="The oldest first.")
    async def boards(self, user: UserRecord) -> Data[_BoardList]:
        return Data(_BoardList(list(map(_object, await self._boards.of(user)))))

    @RestCall(
        "POST",
        _BOARDS,
        tokens=USER,
        on=_person,
        summary="Make a board",
        about=f"At most {BOARDS_OF_USER} for a user, with {BOARD_TILES_MAX} tiles each.",
        body_limit=BOARD_BODY_BYTES,
        accepts=Accepts({"application/json": _NewBoard}, {"name": "Kitchen", "tiles": _TILES[:1]}),
        refusals={409: TOO_MANY_BOARDS},
    )
    async def create(self, user: UserRecord, body: dict[str, Any]) -> Data[BoardObject]:
        return Data(_object(await self._boards.create(user, body)))

    @RestCall("GET", _BOARD, tokens=USER, on=_board, summary="Read a board", is_tagged=True)
    async def read(self, board: BoardRecord) -> Data[BoardObject]:
        tagged(board_tag(board))
        return Data(_object(board))

    @RestCall(
        "PUT",
        _BOARD,
        tokens=USER,
        on=_board,
        summary="Change a board",
        about="Members that are left out stay.",
        body_limit=BOARD_BODY_BYTES,
        accepts=Accepts({"application/json": _BoardChange}, {"tiles": _TILES[:1]}),
        is_tagged=True,
        is_conditional=True,
    )
    async def change(self, caller: Caller, board: BoardRecord, body: dict[str, Any]) -> Data[BoardObject]:
        async with or_present(partial(self._present, caller, board.id)):
            board = await self._boards.change(board, body)
        tagged(board_tag(board))
        return Data(_object(board))

    async def _present(self, caller: Caller, board_id: str) -> BoardObject:
        """The board as it is now, with its tag. Raises NotFound."""
        board = await self._boards.find(caller, board_id)
        tagged(board_tag(board))
        return _object(board)

    @RestCall("DELETE", _BOARD, tokens=USER, on=_board, summary="Delete a board", about="Its link ends.")
    async def remove(self, board: BoardRecord) -> Data[BoardObject]:
        await self._boards.remove(board)
        return Data(_object(board))

    @RestCall(
        "PUT",
        f"{_BOARD}/link",
        tokens=USER,
        on=_linked,
        summary="Make a read-only link to a board",
        about="Only at the console. Whoever has the link sees the values and charts of the board, as far as its user "
        "may see them at that moment, and sends nothing. A former link ends.",
        is_secret=True,
    )
    async def link(self, board: BoardRecord, body: _LinkWanted) -> Data[_LinkMade]:
        made = await self._boards.link(board, body.expires_on)
        expires_on = absent_if_none(made.board.link_expires_on)
        return Data(_LinkMade(made.secret, f"/console/kiosk#{made.secret}", expires_on))

    @RestCall("DELETE", f"{_BOARD}/link", tokens=USER, on=_linked, summary="Revoke the read-only link to a board")
    async def revoke(self, board: BoardRecord) -> Data[BoardObject]:
        return Data(_object(await self._boards.revoke(board)))


def _object(board: BoardRecord) -> BoardObject:
    tiles: Any = Raw(board.tiles.encode())  # spliced as they are: they were checked when they came
    return BoardObject(
        id=board.id,
        uid=board.user_id,
        name=board.name,
        tiles=tiles,
        created_on=board.created_on,
        modified_on=board.modified_on,
        has_link=board.link is not None,
        link_made_on=absent_if_none(board.link_made_on),
        link_expires_on=absent_if_none(board.link_expires_on),
    )
