"""Upgrades: from the one-time address to the payment that puts a device on its paid tier (reference 13).

The address is bound to the user, the device and the access token it was asked for with. Money moves through the port in
port.py. What became of a payment is written once; only money that has moved after all may change it.

Nobody pays twice. A device has at most one payment under way: whoever begins another one has the checkout of the first
one closed before, and the way to a checkout is shown only while its payment is the one under way. So it does not matter
where the daemon dies: what it had begun is either known with its checkout, or nobody was sent there. Money that comes
for an upgrade that is paid for already, or for a device that is gone, has to go back: the operator sees it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from broker.accounts.redirects import with_parameters
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DomainError, NotFound, PermissionDenied
from broker.ids import is_id, new_id
from broker.monetization.port import MANUAL, Order, Outcome, PaymentFailed, Processor
from broker.monetization.tiers import Tiers
from broker.monetization.upgrades import opened, paid_tier, share_of
from broker.secrets import token_hash
from broker.site import Site
from config.limits import UPGRADE_TOKEN_SECONDS
from config.settings import Payments as PaymentSettings
from storage.database import Database, Transaction
from storage.records import PaymentRecord, TierRecord, UpgradeTokenRecord

PENDING: Final = "pending"
REFUND_DUE: Final = "refund_due"  # the money came, and nothing can come of it
REFUNDED: Final = "refunded"
_SHOWN: Final = 100
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class ProcessorUnavailable(DomainError):
    """Whether the money has moved is not known now, so nothing may come of it yet."""

    status = 503
    template = "The payment service does not answer. Please try again later."


@dataclass(frozen=True, slots=True)
class Offer:
    """What the upgrade page shows."""

    device_name: str
    tier: TierRecord
    price: str


@dataclass(frozen=True, slots=True)
class Payment:
    record: PaymentRecord
    tier: TierRecord

    @property
    def is_pending(self) -> bool:
        return self.record.status == PENDING

    @property
    def outcome(self) -> str:
        """In the words of reference 13, or `pending`. Money that has to go back was accepted, too."""
        return "accepted" if self.record.status in {REFUND_DUE, REFUNDED} else self.record.status

    @property
    def destination(self) -> str | None:
        """Where the browser goes when it is decided: the application hears how."""
        if self.is_pending or not self.record.redirect_uri:
            return None
        return with_parameters(self.record.redirect_uri, [("status", self.outcome)])


@dataclass(frozen=True, slots=True)
class Begun:
    """A payment that has begun. `code` is the browser's own way back to it; `url` leads to the processor, if any."""

    payment: Payment
    code: str
    url: str | None


class Payments:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        devices: Devices,
        tiers: Tiers,
        site: Site,
        processor: Processor,
        settings: PaymentSettings,
    ) -> None:
        self._database = database
        self._clock = clock
        self._devices = devices
        self._tiers = tiers
        self._site = site
        self._processor = processor
        self._currency = settings.currency.upper()

    # --- The way to a payment ---

    async def upgrade_url(self, caller: Caller, device: Device, action: str) -> str:
        """A one-time address that leads to the paid tier of the device's plan.

        That the device is the caller's own is already checked.

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

    async def offer(self, code: str, redirect_uri: str | None) -> Offer:
        """What the page of an upgrade address shows. Looking uses nothing up. Raises what `opened` raises."""
        now_ms = self._clock.now_ms()
        token, tier = await self._database.read(lambda tx: opened(tx, code, redirect_uri, now_ms))
        device = await self._devices.get(token.device)
        return Offer(device.record.name, tier, self.price(tier))

    def price(self, tier: TierRecord) -> str:
        """For people."""
        return f"{tier.cost} {self._currency}"

    async def pay(self, code: str, redirect_uri: str | None) -> Begun:
        """Use the address up and begin the payment, which is from then on the only one of its device under way.

        An earlier one is declined, and its checkout closed. One that waits for the operator goes on instead, with its
        reference and with this browser: somebody may be paying it already.

        Raises: what `opened` raises, and
            Conflict: the money of an earlier payment has come or is on its way, or another one began at the same time.
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
                    tx.monetization.set_way_back(one.id, record.code_hash, record.redirect_uri)
                    return _payment(tx, tx.monetization.payment(one.id))
                tx.monetization.decide_payment(one.id, "declined", now_ms=now_ms)  # nobody was sent to a checkout
            tx.monetization.add_payment(record)
            return Payment(record, tier)

        while isinstance(begun := await self._database.write(work), list):
            for one in begun:
                if (await self._close_checkout(one)).is_pending:
                    raise Conflict("A payment for this device is on its way")
        return await self._collect(begun, token.action, back, device)

    def _has_checkout(self, record: PaymentRecord) -> bool:
        """Somebody may have been sent to the processor to pay it."""
        return record.external_id is not None and record.processor == self._processor.name

    async def _collect(self, payment: Payment, action: str, back: str, device: Device) -> Begun:
        reference = payment.record.id
        order = Order(
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
            return Begun(await self._decide(reference, "failed", is_final=True), back, None)
        if checkout is None:
            return Begun(payment, back, None)
        # Whoever began another payment meanwhile found no checkout to close, so nobody may be sent to this one.
        external_id = checkout.external_id
        if not await self._database.write(lambda tx: tx.monetization.set_external_id(reference, external_id)):
            raise Conflict("Another payment for this device has begun")
        return Begun(payment, back, checkout.url)

    # --- What becomes of it ---

    async def returned(self, back: str) -> Payment:
        """How the payment of a browser that came back stands. Raises NotFound."""
        if not is_id(back):
            raise NotFound
        return await self._database.read(lambda tx: _payment(tx, tx.monetization.payment_by_code(token_hash(back))))

    async def cancelled(self, back: str) -> Payment:
        """A browser came back from the processor without paying: nobody else will pay it there either.

        Raises NotFound, ProcessorUnavailable.
        """
        payment = await self.returned(back)
        if payment.is_pending and self._has_checkout(payment.record):
            return await self._close_checkout(payment)
        return payment

    async def _close_checkout(self, payment: Payment) -> Payment:
        """Have the processor end it. The payment is still pending when its money is on its way.

        Raises ProcessorUnavailable: the checkout may be open.
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
        """What waits for a decision, the oldest first."""
        return await self._in(PENDING)

    async def to_refund(self) -> list[Payment]:
        """Whose money has to go back, the oldest first."""
        return await self._in(REFUND_DUE)

    async def _in(self, status: str) -> list[Payment]:
        return await self._database.read(
            lambda tx: [_payment(tx, record) for record in tx.monetization.payments_in(status, limit=_SHOWN)]
        )

    async def hear(self, body: bytes, headers: Mapping[str, str]) -> None:
        """What the processor tells us. Raises NotificationRefused when it was somebody else."""
        decided = self._processor.read(body, headers)
        if decided is None:
            return
        try:
            await self._decide(decided.reference, decided.outcome, is_final=True)
        except NotFound:  # it may serve others with the same account
            _log.warning("payment_unknown", reference=decided.reference[:100])

    async def decide(self, reference: str, outcome: Outcome) -> Payment:
        """The operator's word on a payment. One that could still be paid at the processor is closed there first.

        Raises:
            NotFound: no such payment.
            Conflict: it is decided otherwise, perhaps because its money has just come.
            ProcessorUnavailable: its checkout could not be closed.
        """
        payment = await self._database.read(lambda tx: _payment(tx, tx.monetization.payment(reference)))
        if not (payment.is_pending and self._has_checkout(payment.record)):
            return await self._decide(reference, outcome, is_final=False)
        await self._close_checkout(payment)
        # What is closed counts as declined at first.
        return await self._decide(reference, outcome, is_final=outcome == "accepted")

    async def refunded(self, reference: str) -> Payment:
        """The operator has sent the money back. Raises NotFound, and Conflict: there was nothing to send back."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> Payment:
            payment = _payment(tx, tx.monetization.payment(reference))
            if payment.record.status != REFUND_DUE:
                raise Conflict(f"The payment is {payment.record.status}")
            tx.monetization.decide_payment(reference, REFUNDED, now_ms=now_ms)
            return Payment(replace(payment.record, status=REFUNDED, decided_on=now_ms), payment.tier)

        return await self._database.write(work)

    async def _decide(self, reference: str, outcome: Outcome, *, is_final: bool) -> Payment:
        """What became of a payment. `accepted` puts the device on the paid tier. The same word again changes nothing.

        Args:
            reference: the payment's.
            outcome: what is said of it.
            is_final: money that has moved counts after any other word, and any other word that comes late is ignored.

        Raises:
            NotFound: no such payment.
            Conflict: it is decided otherwise.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> _Decision:
            payment = _payment(tx, tx.monetization.payment(reference))
            record = payment.record
            if payment.outcome == outcome:
                return _Decision(payment)
            if not payment.is_pending and not (is_final and outcome == "accepted"):
                if is_final:  # the processor repeats itself, or is late
                    return _Decision(payment)
                raise Conflict(f"The payment is {record.status}")
            status = REFUND_DUE if outcome == "accepted" and _is_in_vain(tx, record) else outcome
            tx.monetization.decide_payment(reference, status, now_ms=now_ms)
            if status == "accepted":
                tx.monetization.set_tier(record.device, record.tier, now_ms=now_ms)
            return _Decision(Payment(replace(record, status=status, decided_on=now_ms), payment.tier), is_new=True)

        return (await self._database.write(work, announce=self._tell)).payment

    def _tell(self, decision: "_Decision") -> None:
        record = decision.payment.record
        if not decision.is_new:
            return
        log = _log.warning if record.status == REFUND_DUE else _log.info
        log("payment_decided", reference=record.id, outcome=record.status, device=record.device_id)
        if record.status == "accepted":
            self._tiers.activated(record.device, decision.payment.tier)


@dataclass(frozen=True, slots=True)
class _Decision:
    """A payment as it stands, and whether that is news."""

    payment: Payment
    is_new: bool = False


def _payment(tx: Transaction, record: PaymentRecord | None) -> Payment:
    """Raises NotFound."""
    tier = None if record is None else tx.monetization.tier(record.tier)
    if record is None or tier is None:
        raise NotFound
    return Payment(record, tier)


def _is_in_vain(tx: Transaction, record: PaymentRecord) -> bool:
    """The upgrade is paid for by another payment, or the device is gone."""
    return tx.monetization.has_paid(record.device, record.tier) or tx.devices.device(record.device) is None
