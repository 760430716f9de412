"""Lists of the device types that a caller may see, and the tags by which they are found (reference 8.1)."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.accounts.tokens import Caller, TokenKind
from broker.errors import NotFound, PermissionDenied
from storage.database import Database
from storage.device_types import TypeSearch, Viewer
from storage.keys import UserKey
from storage.records import ApplicationRecord, DeviceTypeRecord
from storage.transaction import Transaction

#: The tags that are categories.
CATEGORIES: Final = ("automotive", "energy", "health", "home", "industrial", "media")
_EVERY_TYPE: Final = "*"
_MAX_TAGS: Final = 1_000
# No name is this long, and some databases refuse to search for longer texts.
_MAX_TEXT: Final = 1_000


class SeenType(msgspec.Struct, frozen=True):
    """A type for one caller. `owned`: whether the user has a device of it, as far as granted; None for other tokens."""

    record: DeviceTypeRecord
    owned: bool | None


class TypePage(msgspec.Struct, frozen=True):
    total: int
    types: tuple[SeenType, ...]


class DeviceTypeLists:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(
        self,
        caller: Caller,
        *,
        texts: Sequence[str] = (),
        tags: Sequence[str] = (),
        may_create: bool = False,
        with_connector: bool = False,
        count: int,
        offset: int,
    ) -> TypePage:
        """Published types and the caller's own. Each text is a part of the name or the unique name."""
        if any(len(text) > _MAX_TEXT for text in texts):
            return TypePage(0, ())
        viewer = _viewer(caller)
        search = TypeSearch(
            visible_to=viewer,
            usable_by=viewer if may_create else None,
            texts=tuple(text.casefold() for text in texts),
            tags=tuple(tags),
            with_connector=with_connector,
        )
        return await self._page(caller, search, count, offset)

    async def of_user(
        self, caller: Caller, user: UserKey, *, with_organization: bool, with_shared: bool, count: int, offset: int
    ) -> TypePage:
        """The types that a user owns; on request those of the user's organizations and of devices shared with them.

        The caller's right to act for the user is already checked.
        """
        viewer = replace(_viewer(caller), user=user)
        search = TypeSearch(owner=user, or_of_organizations=with_organization, or_shared=with_shared, reached_by=viewer)
        return await self._page(caller, search, count, offset)

    async def application(self, caller: Caller, application_id: str) -> ApplicationRecord:
        """The caller's application, by id. Raises NotFound; PermissionDenied for another application."""
        application = await self._database.read(lambda tx: tx.accounts.application_by_id(application_id))
        if application is None:
            raise NotFound
        if application.key != caller.application:
            raise PermissionDenied(f"device types of application {application.id}")
        return application

    async def of_application(
        self, caller: Caller, application: ApplicationRecord, *, count: int, offset: int
    ) -> TypePage:
        """The types on which the caller's application requests permissions."""
        return await self._page(caller, _requested(application, _viewer(caller)), count, offset)

    async def with_ids(self, caller: Caller, ids: Sequence[str], *, count: int, offset: int) -> TypePage:
        """These types; that the caller may see them is already checked."""
        return await self._page(caller, TypeSearch(visible_to=None, ids=tuple(ids)), count, offset)

    async def see(self, caller: Caller, record: DeviceTypeRecord) -> SeenType:
        """One type for the caller. Raises PermissionDenied when the caller may not see it."""
        if caller.kind is TokenKind.DEVICE:
            if await self._type_of(caller) != record.key:
                raise PermissionDenied(f"READ on device type {record.id}")
            return SeenType(record, None)
        page = await self._page(caller, TypeSearch(reached_by=_viewer(caller), ids=(record.id,)), 1, 0)
        if not page.types:
            raise PermissionDenied(f"READ on device type {record.id}")
        return page.types[0]

    async def tags(self, caller: Caller, *, categories: Sequence[str] = ()) -> list[str]:
        """The tags of types in these categories, or of all types."""
        search = TypeSearch(visible_to=_viewer(caller), categories=tuple(categories))
        return await self._database.read(lambda tx: tx.device_types.tags(search, limit=_MAX_TAGS))

    async def suggest_tags(self, caller: Caller, *, prefix: str, beside: Sequence[str], count: int) -> list[str]:
        """Tags that begin with `prefix` and are used together with all of `beside`."""
        if len(prefix) > _MAX_TEXT:
            return []
        search = TypeSearch(visible_to=_viewer(caller), tags=tuple(beside))
        limit = count + len(beside)  # the tags that the caller has already are left out below
        found = await self._database.read(lambda tx: tx.device_types.tags(search, prefix=prefix, limit=limit))
        return [tag for tag in found if tag not in beside][:count]

    async def _type_of(self, caller: Caller) -> int | None:
        def work(tx: Transaction) -> int | None:
            device = None if caller.device is None else tx.devices.device(caller.device)
            return None if device is None else device.device_type

        return await self._database.read(work)

    async def _page(self, caller: Caller, search: TypeSearch, count: int, offset: int) -> TypePage:
        user = caller.user

        def work(tx: Transaction) -> TypePage:
            owned = set() if user is None else tx.device_types.types_owned_by(_viewer(caller))
            records = tx.device_types.page(search, count=count, offset=offset)
            return TypePage(
                tx.device_types.total(search),
                tuple(SeenType(record, None if user is None else record.key in owned) for record in records),
            )

        return await self._database.read(work)


def _viewer(caller: Caller) -> Viewer:
    return Viewer(caller.user, caller.application, caller.application_organization, caller.is_console)


def _requested(application: ApplicationRecord, viewer: Viewer) -> TypeSearch:
    """The types on which the application requests permissions; every visible type when it requests all."""
    asked = tuple(str(request["device_type"]) for request in application.permissions)
    search = TypeSearch(visible_to=viewer)
    return search if _EVERY_TYPE in asked else replace(search, visible_to=None, ids=asked)
