"""/users: the caller's own profile, and what applications keep about users (reference 5)."""

import msgspec
from quart import Blueprint, Response

from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied, ValidationFailed
from broker.services import Services
from config.limits import APPLICATION_PROPERTIES_MAX_CHARACTERS
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import APPLICATION, USER, Guard
from protocols.http.rest.named_users import NamedUsers
from storage.records import UserRecord


def users_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("users", __name__)
    named, users, properties = NamedUsers(services, guard), services.accounts.users, services.accounts.properties

    @routes.get("/users/self")
    async def profile() -> Response:
        caller = await guard.caller(USER)
        return json_answer({"data": _profile(await users.self_of(caller))})

    async def caller_for(user_id: str) -> tuple[Caller, UserRecord]:
        caller, user = await named.get(user_id, USER, APPLICATION)
        _require_application(caller, Query.of_request().text("aid"))
        return caller, user

    @routes.get("/users/<user_id>/properties")
    async def get_properties(user_id: str) -> Response:
        caller, user = await caller_for(user_id)
        return _properties(caller, user, await properties.get(caller, user.key))

    @routes.route("/users/<user_id>/properties", methods=["POST", "PUT"])
    async def put_properties(user_id: str) -> Response:
        caller, user = await caller_for(user_id)
        post = members(await read_body(), _Post)
        _require_application(caller, post.aid)
        text = _checked(post.properties)
        await properties.put(caller, user.key, text)
        return _properties(caller, user, text)

    @routes.delete("/users/<user_id>/properties")
    async def remove_properties(user_id: str) -> Response:
        caller, user = await caller_for(user_id)
        await properties.remove(caller, user.key)
        return _properties(caller, user, "")

    return routes


class _Post(msgspec.Struct):
    aid: str | None = None
    properties: str | None = None


def _require_application(caller: Caller, aid: str | None) -> None:
    """An application sees what it keeps itself, and nothing of others (reference 5.2)."""
    if aid is not None and aid != caller.application_id:
        raise PermissionDenied(f"properties of application {aid[:64]}")


def _checked(properties: str | None) -> str:
    if properties is None:
        raise ValidationFailed.of("properties", "Required parameter")
    if len(properties) > APPLICATION_PROPERTIES_MAX_CHARACTERS:
        raise ValidationFailed.of("properties", f"Maximum length {APPLICATION_PROPERTIES_MAX_CHARACTERS}")
    return properties


def _properties(caller: Caller, user: UserRecord, text: str) -> Response:
    return json_answer({"data": {"uid": user.id, "aid": caller.application_id, "properties": text}})


def _profile(user: UserRecord) -> dict[str, object]:
    return {
        "id": user.id,
        "name": user.name,
        "email": user.email,
        "fullName": user.full_name,
        "accountType": user.account_type,
        "createdOn": user.created_on,
        "modifiedOn": user.modified_on,
    }
