"""/tags: the words by which device types are found (reference 8.1)."""

from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta

from broker.accounts.tokens import Caller
from broker.device_types.lists import CATEGORIES
from broker.device_types.room import DeviceTypesRoom
from config.limits import PAGE_COUNT_MAX
from protocols.http.calls import NOTHING, USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.schema import Data, Shape, about, ids, one_of

_SUGGESTIONS: Final = 10


class TagObject(Shape):
    shape = "Tag"
    example = {"name": "health", "isCategory": True}

    name: str
    is_category: bool


class _Tags(Shape):
    tags: list[TagObject]


class _InUse(Shape):
    categories: Annotated[tuple[str, ...], ids("Only tags of types in these categories")] = ()


class _Beginning(Shape):
    tags: Annotated[tuple[str, ...], ids("Tags that they are used together with")] = ()
    name: Annotated[str, about("How they begin")] = ""
    count: Annotated[int, Meta(ge=1, le=PAGE_COUNT_MAX, description="Tags at most")] = _SUGGESTIONS
    entity_type: Annotated[str, one_of(("devicetype",), "May be given; `entity_type` is the same")] | None = None


class TagCalls(RestCalls):
    chapter = Chapter("Tags", "The words by which device types are found. Some of them are categories.")

    def __init__(self, device_types: DeviceTypesRoom) -> None:
        self._lists = device_types.lists

    @RestCall("GET", "/tags", tokens=USER_OR_APPLICATION, on=NOTHING, summary="Tags in use")
    async def in_use(self, caller: Caller, query: _InUse) -> Data[_Tags]:
        return _answer(await self._lists.tags(caller, categories=query.categories))

    @RestCall("GET", "/tags/categories", tokens=USER_OR_APPLICATION, on=NOTHING, summary="The categories")
    async def categories(self) -> Data[_Tags]:
        return _answer(CATEGORIES)

    @RestCall("GET", "/tags/suggestions", tokens=USER_OR_APPLICATION, on=NOTHING, summary="Tags that begin like this")
    async def suggestions(self, caller: Caller, query: _Beginning) -> Data[_Tags]:
        return _answer(await self._lists.suggest_tags(caller, prefix=query.name, beside=query.tags, count=query.count))


def tag_object(tag: str) -> TagObject:
    return TagObject(name=tag, is_category=tag in CATEGORIES)


def _answer(tags: Iterable[str]) -> Data[_Tags]:
    return Data(_Tags([tag_object(tag) for tag in tags]))
