"""/users/…/devices and /users/…/shares: what a user has, and what is offered to them (reference 6)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from quart import Blueprint, Response

from broker.devices.listing import Chosen, Ownership
from broker.devices.shares import ShareStatus
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query
from protocols.http.guard import APPLICATION, USER, Guard
from protocols.http.rest.device_records import device_entry
from protocols.http.rest.device_shares import share_record
from protocols.http.rest.named_users import NamedUsers

_FILTERS: Final[Mapping[str, Sequence[ShareStatus]]] = {
    "ALL": tuple(ShareStatus),
    "WAITING": (ShareStatus.PENDING,),
    "ACCEPTED": (ShareStatus.ACCEPTED,),
    "REJECTED": (ShareStatus.REJECTED,),
}


def user_devices_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("user_devices", __name__)
    named = NamedUsers(services, guard)

    @routes.get("/users/<user_id>/devices")
    async def devices(user_id: str) -> Response:
        caller, user = await named.get(user_id, USER, APPLICATION)
        query = Query.of_request()
        chosen = Chosen(
            owner=Ownership(query.choice("owner", tuple(Ownership), Ownership.ALL)),
            device_type=query.text("dtid"),
            type_name=query.text("dt_name"),
        )
        with_properties = query.boolean("includeProperties", default=False)
        with_share_info = query.boolean("includeShareInfo", default=False)
        count, offset = query.paging()
        page, total = await services.devices.lists.page(caller, user.key, chosen, offset=offset, count=count)
        properties: dict[str, Any] = {"properties": {}} if with_properties else {}
        entries = [
            device_entry(one.device, share=one.share, with_share_info=with_share_info) | properties for one in page
        ]
        return json_answer({"data": {"devices": entries}, "total": total, "offset": offset, "count": len(entries)})

    @routes.get("/users/<user_id>/shares")
    async def shares(user_id: str) -> Response:
        _, user = await named.get(user_id, USER)
        query = Query.of_request()
        statuses = _FILTERS[query.choice("filter", tuple(_FILTERS), "ALL")]
        count, offset = query.paging()
        page, total = await services.devices.shares.offered_to(user, statuses, offset=offset, count=count)
        entries = [
            share_record(one.share) | {"did": one.device_id, "deviceName": one.device_name, "ownerId": one.owner_id}
            for one in page
        ]
        return json_answer({"data": {"shares": entries}, "total": total, "offset": offset, "count": len(entries)})

    return routes
