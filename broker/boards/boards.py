"""The boards of users: made, changed, listed and deleted, and the read-only links to them (reference 12.14)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller
from broker.boards.tiles import Tile, read_tiles
from broker.clock import Clock
from broker.conditional import require_unchanged, tag_of
from broker.errors import (
    REQUIRED,
    TEXT_ONLY,
    Conflict,
    Finding,
    NotFound,
    PermissionDenied,
    UserNotFound,
    ValidationFailed,
    invalid,
    too_long,
)
from broker.ids import new_id
from broker.names import name_problem
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from config.limits import BOARDS_OF_USER, NAME_MAX_CHARACTERS
from storage.boards import BoardRecord
from storage.database import Database
from storage.records import UserRecord
from storage.transaction import Transaction

TOO_MANY_BOARDS: Final = f"A user has at most {BOARDS_OF_USER} boards"


@dataclass(frozen=True, slots=True)
class BoardLink:
    """A read-only link that was just made. Only its maker is shown the secret."""

    board: BoardRecord
    secret: str


class Boards:
    def __init__(self, database: Database, clock: Clock, permissions: Permissions) -> None:
        self._database = database
        self._clock = clock
        self._permissions = permissions

    async def find(self, caller: Caller, board_id: str) -> BoardRecord:
        """A board, for its user, who granted the caller WRITE on the profile. Raises NotFound, PermissionDenied."""
        board = await self._database.read(lambda tx: tx.boards.by_id(board_id))
        if board is None:
            raise NotFound
        await self._permissions.require_profile(caller, board.user)
        return board

    async def find_for_link(self, caller: Caller, board_id: str) -> BoardRecord:
        """A board, for a token of the console: a link shows whatever its user may see. Raises as `find`."""
        board = await self.find(caller, board_id)
        if not caller.is_console:
            raise PermissionDenied("a token of the console")
        return board

    async def of(self, user: UserRecord) -> list[BoardRecord]:
        """The boards of a user, oldest first."""
        return await self._database.read(lambda tx: tx.boards.of_user(user.key))

    async def create(self, user: UserRecord, members: Mapping[str, Any]) -> BoardRecord:
        """Make a board.

        Raises ValidationFailed with all findings; Conflict when the user has too many; UserNotFound.
        """
        name, tiles = _read(members, is_new=True)
        now_ms = self._clock.now_ms()
        board = BoardRecord(0, new_id(), user.key, user.id, name or "", _packed(tiles or ()), now_ms, now_ms)

        def work(tx: Transaction) -> BoardRecord:
            if tx.accounts.user(user.key) is None:
                raise UserNotFound
            if len(tx.boards.of_user(user.key)) >= BOARDS_OF_USER:
                raise Conflict(TOO_MANY_BOARDS)
            added = tx.boards.add(board)
            _note(tx, AuditEvent.BOARD_CREATED, added, now_ms)
            return added

        return await self._database.write(work)

    async def change(self, board: BoardRecord, members: Mapping[str, Any]) -> BoardRecord:
        """Change the members that are given. Raises ValidationFailed with all findings; NotFound; ChangedMeanwhile."""
        name, tiles = _read(members, is_new=False)

        def changed(known: BoardRecord) -> BoardRecord:
            require_unchanged(board_tag(known))
            text = known.tiles if tiles is None else _packed(tiles)
            return replace(known, name=known.name if name is None else name, tiles=text)

        return await self._changed(board, AuditEvent.BOARD_CHANGED, changed)

    async def remove(self, board: BoardRecord) -> None:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.boards.remove(board.key)
            _note(tx, AuditEvent.BOARD_REMOVED, board, now_ms)

        await self._database.write(work)

    async def link(self, board: BoardRecord, expires_on: int | None) -> BoardLink:
        """Make a read-only link to a board; a former one ends.

        Args:
            board: the board.
            expires_on: when the link ends, in ms; None: when it is revoked.

        Raises:
            ValidationFailed: the time is over.
            NotFound: the board was deleted.
        """
        now_ms = self._clock.now_ms()
        if expires_on is not None and expires_on <= now_ms:
            raise ValidationFailed.of("expiresOn", invalid("must be in the future"))
        secret = new_id() + new_id()

        def linked(known: BoardRecord) -> BoardRecord:
            return replace(known, link=token_hash(secret), link_made_on=now_ms, link_expires_on=expires_on)

        return BoardLink(await self._changed(board, AuditEvent.BOARD_LINKED, linked), secret)

    async def revoke(self, board: BoardRecord) -> BoardRecord:
        """End the read-only link, if there is one. Raises NotFound."""

        def revoked(known: BoardRecord) -> BoardRecord:
            return replace(known, link=None, link_made_on=None, link_expires_on=None)

        return await self._changed(board, AuditEvent.BOARD_LINK_REVOKED, revoked)

    async def _changed(
        self, board: BoardRecord, event: AuditEvent, change: Callable[[BoardRecord], BoardRecord]
    ) -> BoardRecord:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> BoardRecord:
            known = tx.boards.by_id(board.id)
            if known is None:
                raise NotFound
            changed = replace(change(known), modified_on=now_ms)
            tx.boards.change(changed)
            _note(tx, event, changed, now_ms)
            return changed

        return await self._database.write(work)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's boards in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        boards = issuance.tx.boards.remove_of(user.key)
        for board in boards:
            _note(issuance.tx, AuditEvent.BOARD_REMOVED, board, issuance.now_ms)
        return [board.name for board in boards]


def board_tag(board: BoardRecord) -> str:
    return tag_of(board.name, board.tiles)


def _read(members: Mapping[str, Any], *, is_new: bool) -> tuple[str | None, tuple[Tile, ...] | None]:
    """The members of a body; null is an absent member. Raises ValidationFailed."""
    findings: list[Finding] = []
    name, given = members.get("name"), members.get("tiles")
    if name is None:
        if is_new:
            findings.append(Finding("name", (REQUIRED,)))
    elif problem := _problem_of_name(name):
        findings.append(Finding("name", (problem,)))
    tiles = None if given is None else read_tiles(given, findings)
    if findings:
        raise ValidationFailed(tuple(findings))
    return name, tiles


def _problem_of_name(name: object) -> str:
    if not isinstance(name, str):
        return TEXT_ONLY
    if not name:
        return REQUIRED
    if len(name) > NAME_MAX_CHARACTERS:
        return too_long(NAME_MAX_CHARACTERS)
    problem = name_problem(name)
    return "" if problem is None else invalid(problem)


def _packed(tiles: Sequence[Tile]) -> str:
    return msgspec.json.encode(tiles).decode()


def _note(tx: Transaction, event: AuditEvent, board: BoardRecord, now_ms: int) -> None:
    note(tx, event, f"board {board.id}", now_ms=now_ms, owner=board.user_id)
