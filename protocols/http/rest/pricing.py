"""/pricing: plans, tiers and the way to the upgrade page (reference 2.9 and 13)."""

from typing import Any, Final

import msgspec
from quart import Blueprint, Response

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import BadRequest, PermissionDenied, ValidationFailed
from broker.monetization.plans import MonetizationPlan
from broker.monetization.tiers import DeviceTier
from broker.nesting import check_nesting
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import USER, Guard
from protocols.http.rest.named_types import AdministeredTypes
from storage.records import TierRecord

_STATUSES: Final = ("NEW", "PENDING", "APPROVED", "REJECTED")
_ACTIONS: Final = ("upgrade", "select", "edit")


def pricing_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("pricing", __name__)
    plans, tiers, payments = services.monetization.plans, services.monetization.tiers, services.monetization.payments
    administered = AdministeredTypes(services, guard)

    async def owned(device_id: str) -> tuple[Caller, Device]:
        """Money is the owner's business alone (reference 6.3)."""
        async with guard.before_limit(USER) as caller:
            device = await services.devices.registry.find(device_id)
            if caller.user != device.owner:
                raise PermissionDenied(f"ownership of device {device.id}")
        return caller, device

    @routes.get("/pricing/devicetypes/<type_id>/pricingtiers")
    async def list_plans(type_id: str) -> Response:
        async with guard.before_limit(USER) as caller:
            type_ = await services.device_types.catalog.find(type_id)
            await services.accounts.permissions.require_type(caller, type_.record)
        query = Query.of_request()
        latest, status = query.boolean("latest", default=False), query.choice("status", _STATUSES, "")
        query.check()
        found = await plans.of_type(type_, latest=latest, status=status or None)
        return json_answer({"data": {"pricingTiers": [plan_object(plan) for plan in found], "total": len(found)}})

    @routes.post("/pricing/devicetypes/<type_id>/pricingtiers")
    async def add_plan(type_id: str) -> Response:
        type_ = await administered.get(type_id)
        plan = plan_object(await plans.add(type_, _object(await read_body())))
        return json_answer({"data": plan} | plan)

    @routes.get("/pricing/devices/<device_id>/pricingtiers")
    async def list_tiers(device_id: str) -> Response:
        _, device = await owned(device_id)
        query = Query.of_request()
        active = query.boolean("active", default=False)
        query.check()
        found = await tiers.of_device(device)
        shown = [_device_tier(one) for one in found if one.active or not active]
        return json_answer({"data": {"did": device.id, "pricingTiers": shown}})

    @routes.put("/pricing/devices/<device_id>/pricingtiers")
    async def select_tier(device_id: str) -> Response:
        _, device = await owned(device_id)
        wanted = members(await read_body(), _Selection).ptid
        if wanted is None:
            raise ValidationFailed.of("ptid", "Required parameter")
        selected = await tiers.select(device, wanted)
        return json_answer({"data": {"did": device.id} | _device_tier(selected)})

    @routes.get("/pricing/devices/<device_id>/revenueshare/upgradepath")
    async def upgrade_path(device_id: str) -> Response:
        caller, device = await owned(device_id)
        query = Query.of_request()
        action = query.choice("action", _ACTIONS, "upgrade")
        query.check()
        return json_answer({"data": {"url": await payments.upgrade_url(caller, device, action)}})

    return routes


class _Selection(msgspec.Struct):
    ptid: str | None = None


def _object(body: bytes) -> dict[str, Any]:
    try:
        check_nesting(body)
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadRequest from error


def plan_object(plan: MonetizationPlan) -> dict[str, object]:
    record = plan.record
    return {
        "version": record.version,
        "dtid": plan.type_id,
        "status": record.status,
        "type": "count",
        "ptType": "count",
        "tiers": [_tier(tier) for tier in plan.tiers],
        "contactInfo": {"email": record.contact_email, "phone": record.contact_phone},
        "comments": record.comments,
        "revenueSharePercent": record.revenue_share_percent,
        "createdOn": record.created_on,
        "modifiedOn": record.modified_on,
    }


def _tier(tier: TierRecord) -> dict[str, object]:
    return {
        "ptid": tier.id,
        "name": tier.name,
        "type": tier.type,
        "description": tier.description,
        "cost": tier.cost,
        "messageLimit": tier.message_limit,
        "interval": tier.interval,
        "billingInterval": tier.billing_interval,
        "createdOn": tier.created_on,
        "modifiedOn": tier.modified_on,
    }


def _device_tier(tier: DeviceTier) -> dict[str, object]:
    return _tier(tier.record) | {"active": tier.active}
