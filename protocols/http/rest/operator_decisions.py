"""/operator/waiting: what waits for the operator's decision (reference 13.1, 13.3, 8.3)."""

from typing import Annotated, Literal

from msgspec import Meta

from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.monetization.payments import Payment
from broker.monetization.plans import MonetizationPlan
from broker.monetization.room import MonetizationRoom
from broker.trace.audit import AuditEvent, entry_of
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import ONLY_OPERATORS
from protocols.http.rest.operator import OPERATOR
from protocols.http.schema import Data, Id, Shape, Timestamp, TypeId, about, integer

_Reference = Annotated[str, Meta(min_length=1, max_length=64)]
_Comments = Annotated[str, Meta(max_length=254, description="For the organization's administrators")]


class _Tier(Shape):
    name: str
    type: str
    cost: str
    message_limit: Annotated[int, integer("A day; -1 is unlimited", lowest=-1)]


class _Plan(Shape):
    example = {
        "dtid": samples.DTID,
        "version": 1,
        "status": "NEW",
        "tiers": [{"name": "Free", "type": "free", "cost": "0", "messageLimit": 100}],
    }

    dtid: TypeId
    version: Annotated[int, integer(lowest=1)]
    status: str
    tiers: list[_Tier]


class _Payment(Shape):
    example = {
        "reference": samples.NONCE,
        "status": "pending",
        "price": "2.99 USD",
        "tier": "Paid",
        "did": samples.DID,
        "createdOn": samples.TS,
        "processor": "manual",
    }

    reference: str
    status: str
    price: str
    tier: str
    did: Id
    created_on: Timestamp
    processor: str


class _WaitingManifest(Shape):
    example = {"dtid": samples.DTID, "uniqueName": samples.TYPE_NAME, "version": 2}

    dtid: TypeId
    unique_name: str
    version: Annotated[int, integer(lowest=1)]


class _Waiting(Shape):
    plans: list[_Plan]
    payments: list[_Payment]
    manifests: Annotated[list[_WaitingManifest], about("Advanced Manifests, whose expressions run for each message")]


class _PlanDecision(Shape):
    example = {"dtid": samples.DTID, "version": 1, "decision": "APPROVED"}

    dtid: TypeId
    version: Annotated[int, Meta(ge=1)]
    decision: Literal["PENDING", "APPROVED", "REJECTED"]
    comments: _Comments = ""


class _PaymentDecision(Shape):
    example = {"reference": samples.NONCE, "outcome": "accepted"}

    reference: _Reference
    outcome: Annotated[Literal["accepted", "declined", "refunded"], about("refunded: of one that had to be sent back")]


class _ManifestApproval(Shape):
    example = {"dtid": samples.DTID, "version": 2}

    dtid: TypeId
    version: Annotated[int, Meta(ge=1)]


class OperatorDecisionCalls(RestCalls):
    chapter = OPERATOR

    def __init__(self, core: Core, device_types: DeviceTypesRoom, monetization: MonetizationRoom) -> None:
        self._audit = core.audit
        self._clock = core.clock
        self._manifests = device_types.manifests
        self._plans = monetization.plans
        self._payments = monetization.payments

    def _note(self, command: str, object_: str) -> None:
        """Note the decision in the audit log, as the shell command that does the same."""
        self._audit.put(entry_of(AuditEvent.COMMAND, object_, now_ms=self._clock.now_ms(), command=command))

    @RestCall("GET", "/operator/waiting", tokens=USER, on=ONLY_OPERATORS, summary="What waits for a decision")
    async def waiting(self) -> Data[_Waiting]:
        payments = [*await self._payments.to_refund(), *await self._payments.pending()]
        return Data(
            _Waiting(
                [_plan(one) for one in await self._plans.undecided()],
                [self._payment(one) for one in payments],
                [
                    _WaitingManifest(type_.id, type_.unique_name, version)
                    for type_ in await self._manifests.overview()
                    for version in type_.waiting
                ],
            )
        )

    @RestCall(
        "POST",
        "/operator/plans",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Decide on a plan",
        refusals={404: "There is no such plan.", 409: "It is decided already."},
    )
    async def decide_plan(self, body: _PlanDecision) -> Data[_Plan]:
        decided = await self._plans.decide(body.dtid, body.version, body.decision, body.comments)
        self._note("plans decide", f"device_type {decided.type_id}")
        return Data(_plan(decided))

    @RestCall(
        "POST",
        "/operator/payments",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Decide on a payment",
        refusals={404: "There is no such payment.", 409: "It is decided already."},
    )
    async def decide_payment(self, body: _PaymentDecision) -> Data[_Payment]:
        if body.outcome == "refunded":
            decided = await self._payments.refunded(body.reference)
        else:
            decided = await self._payments.decide(body.reference, body.outcome)
        self._note("payments decide", f"reference {body.reference}")
        return Data(self._payment(decided))

    @RestCall(
        "POST",
        "/operator/manifests",
        tokens=USER,
        on=ONLY_OPERATORS,
        summary="Approve a Manifest",
        refusals={404: "There is no such version."},
    )
    async def approve(self, body: _ManifestApproval) -> Data[_WaitingManifest]:
        approved = await self._manifests.approve(body.dtid, body.version)
        return Data(_WaitingManifest(approved.device_type, body.dtid, body.version))

    def _payment(self, payment: Payment) -> _Payment:
        record = payment.record
        return _Payment(
            record.id,
            record.status,
            self._payments.price(payment.tier),
            payment.tier.name,
            record.device_id,
            record.created_on,
            record.processor,
        )


def _plan(plan: MonetizationPlan) -> _Plan:
    tiers = [_Tier(tier.name, tier.type, tier.cost, tier.message_limit) for tier in plan.tiers]
    return _Plan(plan.type_id, plan.record.version, plan.record.status, tiers)
