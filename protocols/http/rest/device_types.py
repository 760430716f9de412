"""/devicetypes and the lists of them: the device type record (reference 8.1)."""

from quart import Blueprint, Response

from broker.device_types.lists import CATEGORIES, SeenType, TypePage
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.http.rest.named_users import NamedUsers


def device_types_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("device_types", __name__)
    named, lists = NamedUsers(services, guard), services.device_types.lists

    @routes.get("/devicetypes")
    async def search() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        query = Query.of_request()
        texts = [text for name in ("name", "nameSearch") if (text := query.text(name)) is not None]
        tags, may_create = query.ids("tags"), query.boolean("createDevice", default=False)
        count, offset = query.paging()
        found = await lists.search(caller, texts=texts, tags=tags, may_create=may_create, count=count, offset=offset)
        return _page(found, offset)

    @routes.get("/devicetypes/cloudconnectors")
    async def with_connectors() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        count, offset = Query.of_request().paging()
        return _page(await lists.search(caller, with_connector=True, count=count, offset=offset), offset)

    @routes.get("/devicetypes/<dtid>")
    async def record(dtid: str) -> Response:
        async with guard.before_limit(USER, APPLICATION, DEVICE) as caller:
            device_type = await services.device_types.catalog.find(dtid)
            seen = await lists.see(caller, device_type.record)
        return json_answer({"data": _record(seen)})

    @routes.get("/users/<user_id>/devicetypes")
    async def of_user(user_id: str) -> Response:
        caller, user = await named.get(user_id, USER, APPLICATION)
        query = Query.of_request()
        with_shared = query.boolean("includeShared", default=False)
        with_organization = query.boolean("includeOrganization", default=False)
        count, offset = query.paging()
        found = await lists.of_user(
            caller, user.key, with_organization=with_organization, with_shared=with_shared, count=count, offset=offset
        )
        return _page(found, offset)

    @routes.get("/applications/<aid>/devicetypes")
    async def of_application(aid: str) -> Response:
        async with guard.before_limit(USER, APPLICATION) as caller:
            application = await lists.application(caller, aid)
        count, offset = Query.of_request().paging()
        return _page(await lists.of_application(caller, application, count=count, offset=offset), offset)

    return routes


def _page(found: TypePage, offset: int) -> Response:
    types = [_record(seen) for seen in found.types]
    return json_answer({"data": {"deviceTypes": types}, "total": found.total, "offset": offset, "count": len(types)})


def tag_object(tag: str) -> dict[str, object]:
    return {"name": tag, "isCategory": tag in CATEGORIES}


def _record(seen: SeenType) -> dict[str, object]:
    type_ = seen.record
    record: dict[str, object] = {"id": type_.id, "oid": type_.organization_id}
    if type_.owner_id is not None:
        record["uid"] = type_.owner_id
    record |= {
        "name": type_.name,
        "published": type_.published,
        "approved": type_.approved,
        "protected": type_.protected,
        "latestVersion": type_.latest_version,
        "uniqueName": type_.unique_name,
        "vid": type_.vid,
        "rsp": type_.rsp,
        "issuerDn": type_.issuer_dn,
        "description": type_.description,
    }
    if type_.tags:
        record["tags"] = [tag_object(tag) for tag in type_.tags]
    record |= {
        "inStore": type_.published if type_.in_store is None else type_.in_store,
        "hasCloudConnector": type_.has_cloud_connector,
    }
    if type_.billing_subscription_id is not None:
        record["billingSubscriptionId"] = type_.billing_subscription_id
    record["lastUpdated"] = type_.last_updated
    if seen.owned is not None:
        record["ownedByCurrentUser"] = seen.owned
    return record
