"""GET /actions: by id, by destination and time, and by name (reference 9.3)."""

import time
from typing import Any

from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.services import Services
from config.limits import PAGE_COUNT_DEFAULT
from protocols.http.answers import page_of, search_answer
from protocols.http.body import Query
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.http.rest.searching import ORDERS, Readable, Times
from protocols.rendering import action_entry
from storage.messages import Match


def actions_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("actions", __name__)
    searches = _Searches(services)

    @routes.get("/actions")
    async def search_actions() -> Response:
        started = time.perf_counter()
        caller = await guard.caller(USER, APPLICATION, DEVICE)
        query = Query.of_request()
        mid = query.text("mid")
        found = await (searches.by_range(caller, query) if mid is None else searches.by_mid(caller, query, mid))
        return search_answer(found, started)

    return routes


class _Searches:
    def __init__(self, services: Services) -> None:
        self._history = services.messages.history
        self._permissions = services.accounts.permissions
        self._readable = Readable(services)

    async def by_mid(self, caller: Caller, query: Query, mid: str) -> dict[str, Any]:
        uid = query.text("uid")
        if uid is not None:
            uid = await self._readable.user_for(caller, uid)
        found = await self._history.action_by_mid(mid)
        about: dict[str, object] = {"mid": mid, "count": PAGE_COUNT_DEFAULT, "order": ORDERS[0]}
        if found is None or uid not in {None, found[1].owner_id}:
            return page_of((), uid=uid or caller.user_id, **about)
        action, destination = found
        await self._permissions.require(caller, destination, Permission.READ)
        return page_of((action_entry(action),), uid=action.uid, **about)

    async def by_range(self, caller: Caller, query: Query) -> dict[str, Any]:
        uid, ddid, destinations = await self._readable.chosen(caller, query, "ddid")
        times, name = Times.of(query), _name(query)
        query.check()
        page = await self._history.search_actions(
            destinations,
            start_ms=times.start_ms,
            end_ms=times.end_ms,
            order=times.order,
            count=times.count,
            cursor=times.cursor,
            match=Match(action=name),
        )
        return page_of(
            map(action_entry, page.messages),
            uid=uid,
            ddid=ddid,
            startDate=times.start_ms,
            endDate=times.end_ms,
            count=times.count,
            order=times.order,
            next=page.next,
            prev=page.prev,
        )


def _name(query: Query) -> str | None:
    """`action` or `name`, which say the same. Findings wait in the query."""
    action, name = query.text("action"), query.text("name")
    if action is not None and name is not None and action != name:
        query.refuse("name", "Invalid value")
    return action or name
