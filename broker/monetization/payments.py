"""Upgrades: from the one-time address to the payment that puts a device on its paid tier (reference 13).

The address is bound to the user, the device and the access token that it was requested with. Payments are collected
through the port in port.py. A decided payment changes only when its money has moved after all.

A payment is captured at most once. A device has at most one pending payment: before another one begins, the checkout of
the earlier one is closed, and a browser gets the address of a checkout only while its payment is the pending one. So
after a crash at any point, either the checkout is stored with its payment, or no browser was sent to it. Money that
comes for an upgrade that is paid already, or for a deleted device, has to be refunded; the operator sees the payment as
`refund_due`.
"""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from broker.accounts.redirects import with_parameters
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.cluster.kinds import TIER
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DomainError, NotFound, PermissionDenied
from broker.ids import is_id, new_id
from broker.monetization.port import MANUAL, PaymentFailed, PaymentOrder, PaymentOutcome, Processor
from broker.monetization.statuses import REFUND_DUE
from broker.monetization.upgrades import opened, paid_tier, share_of
from broker.secrets import token_hash
from broker.site import Site
from config.limits import UPGRADE_TOKEN_SECONDS
from config.settings import PaymentSettings
from storage.database import Database
from storage.records import PaymentRecord, TierRecord, UpgradeTokenRecord
from storage.transaction import Transaction

PENDING: Final = "pending"
REFUNDED: Final = "refunded"
_SHOWN: Final = 100
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class ProcessorUnavailable(DomainError):
    """The processor did not answer: it is unknown whether money has moved, so the payment stays undecided."""

    status = 503
    template = "The payment service does not answer. Please try again later."


class UpgradeOffer(msgspec.Struct, frozen=True):
    """Contents of the upgrade page."""

    device_name: str
    tier: TierRecord
    price: str


class Payment(msgspec.Struct, frozen=True):
    record: PaymentRecord
    tier: TierRecord

    @property
    def is_pending(self) -> bool:
        return self.record.status == PENDING

    @property
    def outcome(self) -> str:
        """The outcome in the terms of reference 13, or `pending`. Payments to be refunded count as accepted."""
        return "accepted" if self.record.status in {REFUND_DUE, REFUNDED} else self.record.status

    @property
    def destination(self) -> str | None:
        """The application's redirect URI with the outcome in its query; None while pending, or without such a URI."""
        if self.is_pending or not self.record.redirect_uri:
            return None
        return with_parameters(self.record.redirect_uri, [("status", self.outcome)])


class BegunPayment(msgspec.Struct, frozen=True):
    """A payment that has begun. By `code` the returning browser finds it; `url` is the processor's checkout, if any."""

    payment: Payment
    code: str
    url: str | None


@dataclass(eq=False)
class Payments:
    _database: Database
    _clock: Clock
    _devices: Devices
    _site: Site
    _processor: Processor
    settings: InitVar[PaymentSettings]

    def __post_init__(self, settings: PaymentSettings) -> None:
        self._currency = settings.currency.upper()

    # Beginning a payment

    async def upgrade_url(self, caller: Caller, device: Device, action: str) -> str:
        """A one-time address that leads to the paid tier of the device's plan.

        The caller has checked that the device is the user's own.

        Raises Conflict: there is nothing to upgrade to.
        """
        code, now_ms = new_id(), self._clock.now_ms()
        application, user = caller.application, caller.user
        if application is None or user is None:
            raise PermissionDenied("user token")

        def work(tx: Transaction) -> None:
            paid_tier(tx, device.key)
            tx.monetization.add_upgrade_token(
                UpgradeTokenRecord(
                    token_hash(code),
                    user,
                    caller.token,
                    application,
                    device.key,
                    action,
                    now_ms + UPGRADE_TOKEN_SECONDS * 1000,
                )
            )

        await self._database.write(work)
        return f"{self._site.accounts_url}/pricing/upgrade?token={code}"

    async def offer(self, code: str, redirect_uri: str | None) -> UpgradeOffer:
        """The contents of an upgrade address's page. Does not use up the address. Raises the errors of `opened`."""
        now_ms = self._clock.now_ms()
        token, tier = await self._database.read(lambda tx: opened(tx, code, redirect_uri, now_ms))
        device = await self._devices.get(token.device)
        return UpgradeOffer(device.record.name, tier, self.price(tier))

    def price(self, tier: TierRecord) -> str:
        """The price as text, with the currency."""
        return f"{tier.cost} {self._currency}"

    async def pay(self, code: str, redirect_uri: str | None) -> BegunPayment:
        """Use up the address and begin the payment, from then on the only pending one of its device.

        Earlier payments are declined, and their checkouts closed. An earlier payment of the same tier that waits for
        the operator is continued under its reference, because the user may have paid it already; from then on this
        browser returns to it.

        Raises: what `opened` raises, and
            Conflict: an earlier payment is paid or its money on its way, or another one began at the same time.
            ProcessorUnavailable: an earlier checkout could not be closed. The address can be used again.
        """
        back, now_ms = new_id(), self._clock.now_ms()
        token, _ = await self._database.read(lambda tx: opened(tx, code, redirect_uri, now_ms))
        device = await self._devices.get(token.device)

        def work(tx: Transaction) -> Payment | list[Payment]:
            """The payment, or the earlier ones whose checkouts are to be closed first."""
            token, tier = opened(tx, code, redirect_uri, now_ms)
            earlier = tx.monetization.payments_of(token.device, PENDING)
            if checkouts := [_payment(tx, one) for one in earlier if self._has_checkout(one)]:
                return checkouts
            tx.monetization.use_upgrade_token(token.hash, now_ms=now_ms)
            record = PaymentRecord(
                id=new_id(),
                device=token.device,
                device_id=device.id,
                user=token.user,
                tier=tier.key,
                processor=self._processor.name,
                status=PENDING,
                cost=tier.cost,
                owner_share=share_of(tx, tier),
                redirect_uri=redirect_uri or "",
                code_hash=token_hash(back),
                external_id=None,
                created_on=now_ms,
            )
            for one in earlier:
                if one.processor == self._processor.name == MANUAL and one.tier == tier.key:
                    tx.monetization.set_return_address(one.id, record.code_hash, record.redirect_uri)
                    return _payment(tx, tx.monetization.payment(one.id))
                tx.monetization.decide_payment(one.id, "declined", now_ms=now_ms)  # no browser was sent to a checkout
            tx.monetization.add_payment(record)
            return Payment(record, tier)

        while isinstance(begun := await self._database.write(work), list):
            for one in begun:
                if (await self._close_checkout(one)).is_pending:
                    raise Conflict("A payment for this device is on its way")
        return await self._collect(begun, token.action, back, device)

    def _has_checkout(self, record: PaymentRecord) -> bool:
        """Whether a browser may have been sent to the checkout of this payment."""
        return record.external_id is not None and record.processor == self._processor.name

    async def _collect(self, payment: Payment, action: str, back: str, device: Device) -> BegunPayment:
        reference = payment.record.id
        order = PaymentOrder(
            reference=reference,
            description=f"{payment.tier.name}: {device.record.name}",
            cost=payment.record.cost,
            action=action,
            returns_to=f"{self._site.accounts_url}/pricing/upgrade?payment={back}",
        )
        try:
            checkout = await self._processor.begin(order)
        except PaymentFailed as error:
            _log.warning("payment_failed", reference=reference, processor=self._processor.name, reason=str(error))
            return BegunPayment(await self._decide(reference, "failed", is_final=True), back, None)
        if checkout is None:
            return BegunPayment(payment, back, None)
        # A payment that began since has declined this one and knew no checkout to close: none may be used.
        external_id = checkout.external_id
        if not await self._database.write(lambda tx: tx.monetization.set_external_id(reference, external_id)):
            raise Conflict("Another payment for this device has begun")
        return BegunPayment(payment, back, checkout.url)

    # Deciding a payment

    async def returned(self, back: str) -> Payment:
        """The payment of a browser that has come back. Raises NotFound."""
        if not is_id(back):
            raise NotFound
        return await self._database.read(lambda tx: _payment(tx, tx.monetization.payment_by_code(token_hash(back))))

    async def cancelled(self, back: str) -> Payment:
        """A browser has come back from the processor without paying: close the checkout. Returns the payment.

        Raises NotFound, ProcessorUnavailable.
        """
        payment = await self.returned(back)
        if payment.is_pending and self._has_checkout(payment.record):
            return await self._close_checkout(payment)
        return payment

    async def _close_checkout(self, payment: Payment) -> Payment:
        """Close the checkout and decide the payment. It stays pending when its money is on its way.

        Raises ProcessorUnavailable: the checkout may still be open.
        """
        reference, checkout = payment.record.id, payment.record.external_id or ""
        try:
            fate = await self._processor.close(checkout)
        except PaymentFailed as error:
            _log.warning("checkout_not_closed", reference=reference, checkout=checkout, reason=str(error))
            raise ProcessorUnavailable from error
        if fate == "on_its_way":
            return payment
        return await self._decide(reference, "accepted" if fate == "paid" else "declined", is_final=True)

    async def pending(self) -> list[Payment]:
        """The payments that wait for a decision, oldest first, at most `_SHOWN`."""
        return await self._in(PENDING)

    async def to_refund(self) -> list[Payment]:
        """The payments that have to be refunded, oldest first, at most `_SHOWN`."""
        return await self._in(REFUND_DUE)

    async def _in(self, status: str) -> list[Payment]:
        return await self._database.read(
            lambda tx: [_payment(tx, record) for record in tx.monetization.payments_in(status, limit=_SHOWN)]
        )

    async def hear(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Apply a notification of the processor. Raises NotificationRefused when the processor did not send it."""
        decided = self._processor.read(body, headers)
        if decided is None:
            return
        try:
            await self._decide(decided.reference, decided.outcome, is_final=True)
        except NotFound:  # other systems may use the same account at the processor
            _log.warning("payment_unknown", reference=decided.reference[:100])

    async def decide(self, reference: str, outcome: PaymentOutcome) -> Payment:
        """The operator's decision on a payment. A checkout that is still open is closed first.

        Raises:
            NotFound: no such payment.
            Conflict: it has another decision, perhaps because its money has just arrived.
            ProcessorUnavailable: its checkout could not be closed.
        """
        payment = await self._database.read(lambda tx: _payment(tx, tx.monetization.payment(reference)))
        if not (payment.is_pending and self._has_checkout(payment.record)):
            return await self._decide(reference, outcome, is_final=False)
        await self._close_checkout(payment)
        # Closing the checkout has declined the payment.
        return await self._decide(reference, outcome, is_final=outcome == "accepted")

    async def refunded(self, reference: str) -> Payment:
        """Record that the operator has refunded a payment. Raises NotFound; Conflict when no refund was due."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> Payment:
            payment = _payment(tx, tx.monetization.payment(reference))
            if payment.record.status != REFUND_DUE:
                raise Conflict(f"The payment is {payment.record.status}")
            tx.monetization.decide_payment(reference, REFUNDED, now_ms=now_ms)
            return Payment(replace(payment.record, status=REFUNDED, decided_on=now_ms), payment.tier)

        return await self._database.write(work)

    async def _decide(self, reference: str, outcome: PaymentOutcome, *, is_final: bool) -> Payment:
        """Decide a payment. `accepted` puts the device on the paid tier. Repeating a decision changes nothing.

        Args:
            reference: of the payment.
            outcome: the decision.
            is_final: the decision is the processor's. `accepted` then replaces an earlier decision; any other one is
                ignored when the payment is decided already.

        Raises:
            NotFound: no such payment.
            Conflict: it has another decision, and this one is not final.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> _Decision:
            payment = _payment(tx, tx.monetization.payment(reference))
            record = payment.record
            if payment.outcome == outcome:
                return _Decision(payment)
            if not payment.is_pending and not (is_final and outcome == "accepted"):
                if is_final:  # the processor reports it late, or once more
                    return _Decision(payment)
                raise Conflict(f"The payment is {record.status}")
            status = REFUND_DUE if outcome == "accepted" and _cannot_upgrade(tx, record) else outcome
            tx.monetization.decide_payment(reference, status, now_ms=now_ms)
            if status == "accepted":
                tx.monetization.set_tier(record.device, record.tier, now_ms=now_ms)
                tx.tell(TIER, record.device)
            return _Decision(Payment(replace(record, status=status, decided_on=now_ms), payment.tier), is_new=True)

        decision = await self._database.write(work)
        if decision.is_new:
            record = decision.payment.record
            log = _log.warning if record.status == REFUND_DUE else _log.info
            log("payment_decided", reference=record.id, outcome=record.status, device=record.device_id)
        return decision.payment


class _Decision(msgspec.Struct, frozen=True):
    """A payment, and whether its status has just changed."""

    payment: Payment
    is_new: bool = False


def _payment(tx: Transaction, record: PaymentRecord | None) -> Payment:
    """Raises NotFound."""
    tier = None if record is None else tx.monetization.tier(record.tier)
    if record is None or tier is None:
        raise NotFound
    return Payment(record, tier)


def _cannot_upgrade(tx: Transaction, record: PaymentRecord) -> bool:
    """Whether another payment has paid for the upgrade, or the device was deleted."""
    return tx.monetization.has_paid(record.device, record.tier) or tx.devices.device(record.device) is None
