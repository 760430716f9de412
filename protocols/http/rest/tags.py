"""/tags: the words by which device types are found (reference 8.1)."""

from collections.abc import Iterable
from typing import Final

from quart import Blueprint, Response

from broker.device_types.lists import CATEGORIES
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query
from protocols.http.guard import APPLICATION, USER, Guard
from protocols.http.rest.device_types import tag_object

_SUGGESTIONS: Final = 10


def tags_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("tags", __name__)
    lists = services.device_types.lists

    @routes.get("/tags")
    async def tags() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        query = Query.of_request()
        categories = query.ids("categories")
        query.check()
        return _tags(await lists.tags(caller, categories=categories))

    @routes.get("/tags/categories")
    async def categories() -> Response:
        await guard.caller(USER, APPLICATION)
        return _tags(CATEGORIES)

    @routes.get("/tags/suggestions")
    async def suggestions() -> Response:
        # `entity_type` and `entityType` say `devicetype`, or nothing that changes anything.
        caller = await guard.caller(USER, APPLICATION)
        query = Query.of_request()
        beside, prefix, count = query.ids("tags"), query.text("name") or "", query.count(default=_SUGGESTIONS)
        query.check()
        return _tags(await lists.suggest_tags(caller, prefix=prefix, beside=beside, count=count))

    return routes


def _tags(tags: Iterable[str]) -> Response:
    return json_answer({"data": {"tags": [tag_object(tag) for tag in tags]}})
