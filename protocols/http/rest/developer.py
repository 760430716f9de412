"""/developer: the organizations of a member and their applications (reference 27.21)."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.applications import Method
from broker.accounts.organizations import TOO_MANY, ApplicationChanges, Membership
from broker.accounts.permissions import Role
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import INVALID, Finding
from broker.limits.room import LimitsRoom
from broker.subscriptions.room import SubscriptionsRoom
from broker.subscriptions.subscription import Subscription
from config.limits import FORBIDDEN_IN_NAMES, NAME_MAX_CHARACTERS, REDIRECT_URIS_MAX
from protocols.http.calls import NOTHING, USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule, Valid
from protocols.http.schema import Amount, Data, Id, NumberedPage, Paging, Shape, Timestamp, about, integer, one_of
from storage.records import ApplicationRecord

_ORGANIZATION: Final = "/developer/organizations/{oid}"
_APPLICATION: Final = "/developer/applications/{aid}"
_METHODS: Final = tuple(method.value for method in Method)
_ACCESS: Final = ("READ", "WRITE")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"]+")
#: A browser would take these for a script, a document or a file.
_FORBIDDEN_SCHEMES: Final = {"about", "blob", "data", "file", "javascript", "vbscript"}
_URI_CHARACTERS: Final = 2_048
_PERMISSIONS_MAX: Final = 100

DEVELOPER: Final = Chapter(
    "Developer",
    "What members of an organization do on the page `/developer`: its applications, device types and Manifests. For "
    "administrators and developers, with a token of the console or of an application of the same organization.",
)


def is_name(given: str) -> bool:
    return FORBIDDEN_IN_NAMES.isdisjoint(given) and given.isprintable() and not given.isspace()


CheckedName = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_CHARACTERS), Valid(is_name)]


def _methods_are_known(given: Given) -> Iterator[Finding]:
    for index, one in enumerate(given.values["methods"] or ()):
        if one not in _METHODS:
            yield Finding(f"methods.{index}", (f"{INVALID} (allowed: {', '.join(_METHODS)})",))


def _uris_are_absolute(given: Given) -> Iterator[Finding]:
    for index, one in enumerate(given.values["redirect_uris"] or ()):
        scheme = one.partition(":")[0].lower()
        if len(one) > _URI_CHARACTERS or _URI.fullmatch(one) is None or scheme in _FORBIDDEN_SCHEMES:
            yield Finding(f"redirectUris.{index}", ("must be an absolute URI, and lead to an application",))


def _permissions_have_a_type(given: Given) -> Iterator[Finding]:
    for index, one in enumerate((given.values["permissions"] or ())[: _PERMISSIONS_MAX + 1]):
        target, asked = (one.get("deviceType"), one.get("permissions")) if isinstance(one, dict) else (None, None)
        if index == _PERMISSIONS_MAX:
            yield Finding("permissions", (f"At most {_PERMISSIONS_MAX}",))
        elif not isinstance(target, str) or not target:
            yield Finding(f"permissions.{index}.deviceType", (INVALID,))
        elif not isinstance(asked, list) or not asked or not all(access in _ACCESS for access in asked):
            yield Finding(f"permissions.{index}.permissions", (f"{INVALID} (allowed: READ, WRITE)",))


_Methods = Annotated[list[str], about("How it gets tokens", example=["pkce"]), Rule(_methods_are_known)]
_Uris = Annotated[
    list[str],
    about(f"At most {REDIRECT_URIS_MAX}; the first is the main one", example=["https://app.example.org/callback"]),
    Rule(_uris_are_absolute),
]
_Permissions = Annotated[
    list[Any],
    about(
        "What it asks for: each with `deviceType` (an id, a unique name, `*` or `profile`) and `permissions`",
        example=[{"deviceType": "*", "permissions": ["READ"]}],
        items={"type": "object"},
    ),
    Rule(_permissions_have_a_type),
]
_Secret = Annotated[str, about("The client secret, shown this once", example=samples.NONCE)]


class _DayUsage(Shape):
    on: Annotated[Timestamp, about("The beginning of the day")]
    units: Amount


class _Usage(Shape):
    used: Annotated[Amount, about("Message units of this month", example=1_200)]
    limit: Annotated[int, integer("-1 is unlimited", lowest=-2, example=100_000)]
    resets_on: Timestamp
    days: Annotated[list[_DayUsage], about("The last 31 days, oldest first, in UTC")]


class OrganizationObject(Shape):
    shape = "Organization"
    example = {
        "id": samples.OID,
        "name": "Acme",
        "role": "developer",
        "usage": {"used": 1_200, "limit": 100_000, "resetsOn": samples.TS, "days": [{"on": samples.TS, "units": 40}]},
    }

    id: Id
    name: str
    role: Annotated[str, one_of(tuple(Role))]
    usage: _Usage


class _Organizations(Shape):
    organizations: list[OrganizationObject]


class _Request(Shape):
    device_type: str
    permissions: list[str]


class ApplicationObject(Shape):
    shape = "Application"
    example = {
        "id": samples.AID,
        "name": "Light Board",
        "methods": ["pkce"],
        "redirectUris": ["https://app.example.org/callback"],
        "permissions": [{"deviceType": "*", "permissions": ["READ"]}],
    }

    id: Id
    name: str
    methods: list[str]
    redirect_uris: list[str]
    permissions: list[_Request]


class NewApplicationObject(ApplicationObject):
    example = {**ApplicationObject.example, "clientSecret": samples.NONCE}

    client_secret: _Secret


class _NewApplication(Shape):
    example = {key: value for key, value in ApplicationObject.example.items() if key != "id"}

    name: CheckedName
    methods: _Methods | None = None
    redirect_uris: _Uris | None = None
    permissions: _Permissions | None = None


class _ApplicationChange(Shape):
    example = {"redirectUris": ["https://app.example.org/callback", "myapp://done"]}

    name: CheckedName | None = None
    methods: _Methods | None = None
    redirect_uris: _Uris | None = None
    permissions: _Permissions | None = None


class _NewSecret(Shape):
    client_secret: _Secret


class SubscriptionLine(Shape, kw_only=True):
    example = {
        "id": samples.SUBSCRIPTION,
        "aid": samples.AID,
        "uid": samples.UID,
        "messageType": "message",
        "subscriptionType": "httpCallback",
        "callbackUrl": "https://app.example.org/callback",
        "status": "ACTIVE",
        "createdOn": samples.TS,
    }

    id: Id
    aid: Id
    uid: Id
    message_type: Annotated[str, one_of(("message", "action"))]
    subscription_type: str
    callback_url: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    status: Annotated[str, one_of(("PENDING_CALLBACK_VALIDATION", "ACTIVE", "PAUSED", "SUSPENDED"))]
    problem: Annotated[str, about("What goes wrong; absent while deliveries succeed")] | UnsetType = UNSET
    created_on: Timestamp


class DeveloperCalls(RestCalls):
    chapter = DEVELOPER

    def __init__(self, accounts: AccountsRoom, limits: LimitsRoom, subscriptions: SubscriptionsRoom) -> None:
        self._organizations = accounts.organizations
        self._quotas = limits.quotas
        self._days = limits.usage_days
        self._subscriptions = subscriptions.subscriptions

    async def _organization(self, caller: Caller, oid: str) -> Membership:
        return await self._organizations.find(caller, oid)

    async def _application(self, caller: Caller, aid: str) -> ApplicationRecord:
        return await self._organizations.application(caller, aid)

    @RestCall(
        "GET",
        "/developer/organizations",
        tokens=USER,
        on=NOTHING,
        summary="The organizations of the user",
        about="With the user's role, and what the organization used of its messages in this month.",
    )
    async def organizations(self, caller: Caller) -> Data[_Organizations]:
        found = await self._organizations.of(caller)
        return Data(_Organizations([await self._object(one) for one in found]))

    async def _object(self, one: Membership) -> OrganizationObject:
        usage = self._quotas.of_organization(one.organization.key)
        days = [_DayUsage(day.day_ms, day.units) for day in await self._days.of(one.organization.key)]
        shown = _Usage(usage.used, one.organization.monthly_messages, usage.until_ms, days)
        return OrganizationObject(one.organization.id, one.organization.name, one.role, shown)

    @RestCall(
        "GET",
        f"{_ORGANIZATION}/applications",
        tokens=USER,
        on=_organization,
        summary="The applications of an organization",
    )
    async def applications(self, membership: Membership, query: Paging) -> NumberedPage[list[ApplicationObject]]:
        found = await self._organizations.applications(membership.organization.key)
        page = [ApplicationObject(*_members(one)) for one in found[query.offset : query.offset + query.count]]
        return NumberedPage(page, len(found), query.offset, len(page))

    @RestCall(
        "POST",
        f"{_ORGANIZATION}/applications",
        tokens=USER,
        on=_organization,
        summary="Create an application",
        refusals={409: f"{TOO_MANY}."},
        is_secret=True,
    )
    async def create(self, membership: Membership, body: _NewApplication) -> Data[NewApplicationObject]:
        made, secret = await self._organizations.add_application(
            membership.organization, body.name, _changes(body, name=body.name)
        )
        return Data(NewApplicationObject(*_members(made), secret))

    @RestCall("GET", _APPLICATION, tokens=USER, on=_application, summary="An application of an organization")
    async def show(self, application: ApplicationRecord) -> Data[ApplicationObject]:
        return Data(ApplicationObject(*_members(application)))

    @RestCall(
        "PUT",
        _APPLICATION,
        tokens=USER,
        on=_application,
        summary="Change an application",
        about="Only the members that are sent change. Tokens that were issued stay.",
    )
    async def change(self, application: ApplicationRecord, body: _ApplicationChange) -> Data[ApplicationObject]:
        changed = await self._organizations.change_application(application, _changes(body, name=body.name))
        return Data(ApplicationObject(*_members(changed)))

    @RestCall(
        "POST",
        f"{_APPLICATION}/secret",
        tokens=USER,
        on=_application,
        summary="Renew the client secret",
        about="The former secret ends at once. Tokens that were issued stay.",
        is_secret=True,
    )
    async def renew(self, application: ApplicationRecord) -> Data[_NewSecret]:
        return Data(_NewSecret(await self._organizations.renew_secret(application)))

    @RestCall(
        "GET",
        f"{_ORGANIZATION}/subscriptions",
        tokens=USER,
        on=_organization,
        summary="The subscriptions of an organization's applications",
        about="The delivery log of each is at `/subscriptions/{subscriptionId}/deliveries`.",
    )
    async def subscriptions(self, membership: Membership, query: Paging) -> NumberedPage[list[SubscriptionLine]]:
        applications = await self._organizations.applications(membership.organization.key)
        found = [sub for one in applications for sub in self._subscriptions.of_application(one.key, None)]
        failing = await self._subscriptions.failing()
        page = [_line(one, failing.get(one.key)) for one in found[query.offset : query.offset + query.count]]
        return NumberedPage(page, len(found), query.offset, len(page))


def _changes(body: _NewApplication | _ApplicationChange, *, name: str | None) -> ApplicationChanges:
    asked = body.permissions
    return ApplicationChanges(
        name=name,
        methods=None if body.methods is None else [Method(one) for one in body.methods],
        redirect_uris=body.redirect_uris,
        permissions=None
        if asked is None
        else [{"device_type": one["deviceType"], "permissions": one["permissions"]} for one in asked],
    )


def _members(application: ApplicationRecord) -> tuple[str, str, list[str], list[str], list[_Request]]:
    asked = [_Request(str(one["device_type"]), list(one["permissions"])) for one in application.permissions]  # type: ignore[call-overload]
    return application.id, application.name, list(application.methods), list(application.redirect_uris), asked


def _line(subscription: Subscription, problem: str | None) -> SubscriptionLine:
    record, names = subscription.record, subscription.names
    return SubscriptionLine(
        id=record.id,
        aid=names.application_id,
        uid=names.user_id,
        message_type=record.message_type,
        subscription_type=record.spelling,
        callback_url=record.callback_url or UNSET,
        description=record.description or UNSET,
        status=record.status,
        problem=problem or record.last_error or UNSET,
        created_on=record.created_on,
    )
