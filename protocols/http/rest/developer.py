"""/developer: the organizations of a member, and what of theirs fails (reference 27.21)."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from broker.accounts.organizations import Membership
from broker.accounts.permissions import ADMINISTRATORS, Role
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.device_management.device_resources import OfferingDevice
from broker.device_management.room import DeviceManagementRoom
from broker.device_management.tasks import FAILED_KEPT_DAYS
from broker.device_types.room import DeviceTypesRoom
from broker.limits.room import LimitsRoom
from broker.names import plain_name_problem
from broker.subscriptions.room import SubscriptionsRoom
from broker.subscriptions.subscription import Subscription
from config.limits import NAME_MAX_CHARACTERS
from protocols.http.calls import NOTHING, USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Checked
from protocols.http.rest.device_resources import ResourceOffers, shown_offers
from protocols.http.rest.named import OWN_ORGANIZATION
from protocols.http.rest.task_shapes import TaskObject, task_members
from protocols.http.schema import (
    Amount,
    Data,
    Id,
    NumberedPage,
    Paging,
    Shape,
    Timestamp,
    TypeId,
    about,
    integer,
    numbered,
    one_of,
)

ORGANIZATION: Final = "/developer/organizations/{oid}"

DEVELOPER: Final = Chapter(
    "Developer",
    "What members of an organization do on the page `/developer`: its applications, device types and Manifests. For "
    "administrators and developers, with a token of the console or of an application of the same organization.",
)


CheckedName = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_CHARACTERS), Checked(plain_name_problem)]


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
    message_type: Annotated[str, one_of(("message", "action", "alarm"))]
    subscription_type: str
    callback_url: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    status: Annotated[str, one_of(("PENDING_CALLBACK_VALIDATION", "ACTIVE", "PAUSED", "SUSPENDED"))]
    problem: Annotated[str, about("What goes wrong; absent while deliveries succeed")] | UnsetType = UNSET
    created_on: Timestamp


class _OfferingBoard(Shape):
    shape = "Board"
    example = {
        "dtid": samples.DTID,
        "name": "Smart Light",
        "did": samples.DID,
        "version": 2,
        "offers": ResourceOffers.example,
        "manifest": {"fields": [{"name": "temperature", "valueClass": "Double", "lwm2m": "/3303/0/5700"}]},
    }

    dtid: TypeId
    name: Annotated[str, about("Of the device type")]
    did: Annotated[Id, about("One of its registered devices, the last that offers something")]
    version: Annotated[Amount, about("The newest version of the Manifest; 0 when there is none")]
    offers: ResourceOffers
    manifest: Annotated[dict[str, Any], about("The newest version with what is offered, to be uploaded")]


class DeveloperCalls(RestCalls):
    chapter = DEVELOPER

    def __init__(
        self,
        accounts: AccountsRoom,
        device_types: DeviceTypesRoom,
        limits: LimitsRoom,
        device_management: DeviceManagementRoom,
        subscriptions: SubscriptionsRoom,
    ) -> None:
        self._organizations = accounts.organizations
        self._quotas = limits.quotas
        self._days = limits.usage_days
        self._types = device_types.catalog
        self._manifests = device_types.manifests
        self._tasks = device_management.tasks
        self._resources = device_management.resources
        self._subscriptions = subscriptions.subscriptions

    async def _administered(self, caller: Caller, oid: str) -> Membership:
        return await self._organizations.find(caller, oid, ADMINISTRATORS)

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
        f"{ORGANIZATION}/subscriptions",
        tokens=USER,
        on=OWN_ORGANIZATION,
        summary="The subscriptions of an organization's applications",
        about="The delivery log of each is at `/subscriptions/{subscriptionId}/deliveries`.",
    )
    async def subscriptions(self, membership: Membership, query: Paging) -> NumberedPage[list[SubscriptionLine]]:
        applications = await self._organizations.applications(membership.organization.key)
        found = [sub for one in applications for sub in self._subscriptions.of_application(one.key, None)]
        failing = await self._subscriptions.failing()
        return numbered(found, query, lambda one: _line(one, failing.get(one.key)))

    @RestCall(
        "GET",
        f"{ORGANIZATION}/boards",
        tokens=USER,
        on=OWN_ORGANIZATION,
        summary="What LWM2M devices offer to the Manifests of an organization",
        about="For each device type with a registered device that offers resources which the Manifest lacks. Types "
        "whose Manifest has a transform are left out.",
    )
    async def boards(self, membership: Membership, query: Paging) -> NumberedPage[list[_OfferingBoard]]:
        found = [await self._offering(one) for one in await self._resources.boards(membership.organization.key)]
        return numbered([one for one in found if one is not None], query, lambda one: one)

    async def _offering(self, board: OfferingDevice) -> _OfferingBoard | None:
        type_ = board.device.type.record
        newest = next(iter(await self._manifests.documents(type_.key)), None)
        document = None if newest is None else msgspec.json.decode(newest.document, type=dict[str, Any])
        if document is not None and document.get("transform") is not None:
            return None
        return _OfferingBoard(
            type_.id,
            type_.name,
            board.device.id,
            0 if newest is None else newest.version,
            shown_offers(board.offers),
            board.offers.added_to(document),
        )

    @RestCall(
        "GET",
        f"{ORGANIZATION}/tasks",
        tokens=USER,
        on=_administered,
        summary="Tasks that failed on devices",
        about="Tasks and roll-outs of all device types of the organization: open ones, and ones that "
        f"changed in the last {FAILED_KEPT_DAYS} days, the latest first. For administrators.",
    )
    async def tasks(self, membership: Membership, query: Paging) -> NumberedPage[list[TaskObject]]:
        found, total = await self._tasks.failing(membership.organization.key, offset=query.offset, limit=query.count)
        page = [
            TaskObject(**task_members(one, await self._types.get(one.record.device_type)), status=one.record.status)
            for one in found
        ]
        return NumberedPage(page, total, query.offset, len(page))


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
