"""/pricing: plans, tiers and the way to the upgrade page (reference 2.9 and 13)."""

from typing import Annotated, Any, Final, Literal, get_args

from broker.accounts.permissions import Role
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import PermissionDenied
from broker.monetization.plans import MonetizationPlan
from broker.monetization.room import MonetizationRoom
from broker.monetization.upgrades import NO_PAID_TIER
from config.limits import DESCRIPTION_MAX_CHARACTERS, EMAIL_MAX_CHARACTERS, NAME_MAX_CHARACTERS
from protocols.http.calls import USER, USER_OR_APPLICATION, Accepts, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import ADMINISTERED_TYPE
from protocols.http.schema import (
    Amount,
    Data,
    DataAndFlat,
    Id,
    Shape,
    Timestamp,
    TypeId,
    about,
    integer,
    one_of,
    text,
)
from storage.records import TierRecord

_MEMBERS: Final = frozenset(Role)
_PLANS: Final = "/pricing/devicetypes/{dtid}/pricingtiers"
_TIERS: Final = "/pricing/devices/{did}/pricingtiers"
_UPGRADE_URL: Final = f"https://trunkline.example.net/accounts/pricing/upgrade?token={samples.NONCE}"
_FREE: Final = {
    "ptid": samples.TIER,
    "name": "Starter",
    "type": "free",
    "description": "",
    "cost": "0.00",
    "messageLimit": 150,
    "interval": "DAILY",
    "billingInterval": "ONCE",
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
}

_PlanStatus = Literal["NEW", "PENDING", "APPROVED", "REJECTED"]
_Kind = Annotated[str, one_of(("count",), "The plan counts daily messages")]
_TierType = Annotated[str, one_of(("free", "paid"))]
_Cost = Annotated[str, text("Decimal, at most two decimals", pattern=r"^(0|[1-9][0-9]{0,6})(\.[0-9]{1,2})?$")]
_Description = Annotated[str, text(longest=DESCRIPTION_MAX_CHARACTERS)]
_Interval = Annotated[str, one_of(("DAILY",))]
_BillingInterval = Annotated[str, one_of(("ONCE",))]
_Contact = Annotated[str, text(longest=EMAIL_MAX_CHARACTERS)]


class _Tier(Shape, kw_only=True):
    ptid: Id
    name: Annotated[str, text(longest=NAME_MAX_CHARACTERS)]
    type: _TierType
    description: _Description
    cost: _Cost
    message_limit: Annotated[int, integer("Messages a day; -1 for any number", lowest=-1)]
    interval: _Interval
    billing_interval: _BillingInterval
    created_on: Timestamp
    modified_on: Timestamp


class TierObject(_Tier, kw_only=True):
    shape = "Tier"
    example = _FREE | {"active": False}

    active: Annotated[bool, about("Whether devices may be on it: its plan is the latest that was approved")]


class _DeviceTier(_Tier, kw_only=True):
    active: Annotated[bool, about("Whether the device is on it")]


class DeviceTierObject(_DeviceTier):
    shape = "DeviceTier"
    example = _FREE | {"active": True}


class _SelectedTier(_DeviceTier):
    example = {"did": samples.DID, **_FREE, "active": True}

    did: Id


class _ContactInfo(Shape):
    email: _Contact
    phone: _Contact


class PlanObject(Shape, kw_only=True):
    shape = "Plan"
    example = {
        "version": 1,
        "dtid": samples.DTID,
        "status": "NEW",
        "type": "count",
        "ptType": "count",
        "tiers": [TierObject.example],
        "contactInfo": {"email": "billing@example.net", "phone": ""},
        "comments": "",
        "revenueSharePercent": 70,
        "createdOn": samples.TS,
        "modifiedOn": samples.TS,
    }

    version: Annotated[int, integer(lowest=1)]
    dtid: TypeId
    status: Annotated[str, one_of(get_args(_PlanStatus))]
    type: _Kind
    pt_type: _Kind
    tiers: list[TierObject]
    contact_info: _ContactInfo
    comments: _Description
    revenue_share_percent: Annotated[int, integer(lowest=0, highest=100)]
    created_on: Timestamp
    modified_on: Timestamp


class _PlanList(Shape):
    pricing_tiers: list[PlanObject]
    total: Annotated[Amount, about("Plans", example=1)]


class _TierList(Shape):
    did: Annotated[Id, about("", example=samples.DID)]
    pricing_tiers: list[DeviceTierObject]


class _Url(Shape):
    example = {"url": _UPGRADE_URL}

    url: Annotated[str, about("", format="uri")]


class _NewTier(Shape):
    name: Annotated[str, about("", minLength=1, maxLength=NAME_MAX_CHARACTERS)]
    type: _TierType
    description: _Description | None = None
    cost: _Cost | None = None
    message_limit: (
        Annotated[int, integer("Required of the free tier; -1 for any number", lowest=-1, highest=10**12)] | None
    ) = None
    interval: _Interval | None = None
    billing_interval: _BillingInterval | None = None


class _NewContactInfo(Shape):
    email: _Contact | None = None
    phone: _Contact | None = None


class _NewPlan(Shape):
    # Only described: the plan is read in the broker, from the object as it came.
    tiers: Annotated[list[_NewTier], about("", minItems=1, maxItems=2)]
    type: _Kind | None = None
    pt_type: _Kind | None = None
    contact_info: _NewContactInfo | None = None
    comments: _Description | None = None


class _PlansQuery(Shape):
    latest: Annotated[bool, about("Only the newest version")] = False
    status: Annotated[_PlanStatus, about("Only plans in this status")] | None = None


class _TiersQuery(Shape):
    active: Annotated[bool, about("Only the tier that it is on")] = False


class _Selection(Shape):
    example = {"ptid": samples.TIER}

    ptid: Annotated[Id, about("The tier")]


class _UpgradeQuery(Shape):
    action: Literal["upgrade", "select", "edit"] = "upgrade"


class MonetizationCalls(RestCalls):
    chapter = Chapter(
        "Pricing",
        "What the devices of a type may send for free and for money: a plan has a free tier with a daily limit and "
        "perhaps a paid one.",
    )

    def __init__(
        self,
        accounts: AccountsRoom,
        device_types: DeviceTypesRoom,
        devices: DevicesRoom,
        monetization: MonetizationRoom,
    ) -> None:
        self._permissions = accounts.permissions
        self._types = device_types.catalog
        self._devices = devices.registry
        self._plans = monetization.plans
        self._tiers = monetization.tiers
        self._payments = monetization.payments

    async def _usable_type(self, caller: Caller, dtid: str) -> tuple[DeviceType, bool]:
        """The type, and whether the caller sees its plans as a member of its organization."""
        type_ = await self._types.find(dtid)
        await self._permissions.require_type(caller, type_.record)
        try:
            await self._permissions.require_role(caller, type_.record, _MEMBERS)
        except PermissionDenied:
            return type_, False
        return type_, True

    async def _owned_device(self, caller: Caller, did: str) -> Device:
        """The device, for its owner: only the owner decides what a device costs (reference 6.3)."""
        device = await self._devices.find(did)
        if caller.user != device.owner:
            raise PermissionDenied(f"ownership of device {device.id}")
        return device

    @RestCall(
        "GET",
        _PLANS,
        tokens=USER,
        on=_usable_type,
        summary="Plans of a device type",
        about="Newest first; empty without a plan. Plans that are not approved are for members of the organization.",
    )
    async def plans(self, found: tuple[DeviceType, bool], query: _PlansQuery) -> Data[_PlanList]:
        type_, is_member = found
        plans = await self._plans.of_type(type_, latest=query.latest, status=query.status, only_approved=not is_member)
        return Data(_PlanList(list(map(_plan, plans)), len(plans)))

    @RestCall(
        "POST",
        _PLANS,
        tokens=USER_OR_APPLICATION,
        on=ADMINISTERED_TYPE,
        summary="Propose a plan",
        about="For administrators of the organization that owns the type. Exactly one free and at most one paid "
        "tier. It is the next version, with `status` NEW, until the operator has decided.",
        accepts=Accepts(
            {"application/json": _NewPlan}, {"tiers": [{"name": "Starter", "type": "free", "messageLimit": 150}]}
        ),
    )
    async def add_plan(self, type_: DeviceType, body: dict[str, Any]) -> DataAndFlat[PlanObject]:
        return DataAndFlat(_plan(await self._plans.add(type_, body)))

    @RestCall(
        "GET",
        _TIERS,
        tokens=USER,
        on=_owned_device,
        summary="Tiers that a device may have",
        about="For the owner. Empty when its type has no plan.",
    )
    async def tiers(self, device: Device, query: _TiersQuery) -> Data[_TierList]:
        found = await self._tiers.of_device(device)
        shown = [
            DeviceTierObject(**_tier_members(one.record), active=one.active)
            for one in found
            if one.active or not query.active
        ]
        return Data(_TierList(device.id, shown))

    @RestCall(
        "PUT",
        _TIERS,
        tokens=USER,
        on=_owned_device,
        summary="Choose a device's tier",
        about="The paid tier only after it was paid for.",
    )
    async def select_tier(self, device: Device, body: _Selection) -> Data[_SelectedTier]:
        selected = await self._tiers.select(device, body.ptid)
        return Data(_SelectedTier(device.id, **_tier_members(selected.record), active=selected.active))

    @RestCall(
        "GET",
        "/pricing/devices/{did}/revenueshare/upgradepath",
        tokens=USER,
        on=_owned_device,
        summary="Where a browser upgrades a device",
        about="The address is good for 15 minutes and one use. Append `redirect_uri` to it; the browser comes back "
        "there with `status` accepted, declined or failed.",
        refusals={409: NO_PAID_TIER},
    )
    async def upgrade_path(self, caller: Caller, device: Device, query: _UpgradeQuery) -> Data[_Url]:
        return Data(_Url(await self._payments.upgrade_url(caller, device, query.action)))


def _plan(plan: MonetizationPlan) -> PlanObject:
    record = plan.record
    return PlanObject(
        version=record.version,
        dtid=plan.type_id,
        status=record.status,
        type="count",
        pt_type="count",
        tiers=[TierObject(**_tier_members(tier), active=plan.is_in_force) for tier in plan.tiers],
        contact_info=_ContactInfo(record.contact_email, record.contact_phone),
        comments=record.comments,
        revenue_share_percent=record.revenue_share_percent,
        created_on=record.created_on,
        modified_on=record.modified_on,
    )


def _tier_members(tier: TierRecord) -> dict[str, Any]:
    return {
        "ptid": tier.id,
        "name": tier.name,
        "type": tier.type,
        "description": tier.description,
        "cost": tier.cost,
        "message_limit": tier.message_limit,
        "interval": tier.interval,
        "billing_interval": tier.billing_interval,
        "created_on": tier.created_on,
        "modified_on": tier.modified_on,
    }
