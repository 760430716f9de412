"""Commands of the control socket about monetization. `trunkline plans` and `trunkline payments` send them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from broker.monetization.payments import Payment
from broker.monetization.plans import MonetizationPlan, PlanDecision
from protocols.control.lines import OperatorsPayment, OperatorsPlan, OperatorsTier
from protocols.control.naming import named
from protocols.control.rooms import ControlRooms


class _PlanDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device_type: str
    version: int
    decision: PlanDecision
    comments: str = ""


class _PaymentDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reference: str
    outcome: Literal["accepted", "declined"]


class _Refund(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reference: str


async def _plans(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return [_plan(plan) for plan in await rooms.monetization.plans.undecided()]


async def _decide_plan(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _PlanDecision)
    with named(f"plan {wanted.version} of device type", wanted.device_type):
        return _plan(
            await rooms.monetization.plans.decide(wanted.device_type, wanted.version, wanted.decision, wanted.comments)
        )


async def _payments(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    found = [*await rooms.monetization.payments.to_refund(), *await rooms.monetization.payments.pending()]
    return [_payment(rooms, payment) for payment in found]


async def _decide_payment(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _PaymentDecision)
    with named("payment", wanted.reference):
        return _payment(rooms, await rooms.monetization.payments.decide(wanted.reference, wanted.outcome))


async def _refunded(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Refund)
    with named("payment", wanted.reference):
        return _payment(rooms, await rooms.monetization.payments.refunded(wanted.reference))


def _plan(plan: MonetizationPlan) -> OperatorsPlan:
    tiers = tuple(OperatorsTier(tier.name, tier.type, tier.cost, tier.message_limit) for tier in plan.tiers)
    return OperatorsPlan(plan.type_id, plan.record.version, plan.record.status, tiers)


def _payment(rooms: ControlRooms, payment: Payment) -> OperatorsPayment:
    record = payment.record
    price = rooms.monetization.payments.price(payment.tier)
    return OperatorsPayment(
        reference=record.id,
        status=record.status,
        price=price,
        tier=payment.tier.name,
        device=record.device_id,
        created_on=record.created_on,
        processor=record.processor,
        external_id=record.external_id,
    )


MONETIZATION_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "plans": _plans,
    "plans decide": _decide_plan,
    "payments": _payments,
    "payments decide": _decide_payment,
    "payments refunded": _refunded,
}
