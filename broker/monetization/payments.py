"""Upgrades: from the one-time address to the payment that puts a device on its paid tier (compatibility.md 13).

The address is bound to the user, the device and the access token it was asked for with. Money moves through the port in
port.py. What became of a payment is written once; only money that has moved after all may change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

import structlog

from broker.accounts.applications import Application
from broker.accounts.redirects import with_parameters
from broker.accounts.site import Site
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DomainError, Gone, NotFound, PermissionDenied
from broker.ids import is_id, new_id
from broker.monetization.port import Order, Outcome, PaymentFailed, Processor
from broker.monetization.tiers import Tiers, tiers_of
from broker.secrets import token_hash
from config.limits import UPGRADE_TOKEN_SECONDS
from config.settings import Payments as PaymentSettings
from storage.database import Database, Transaction
from storage.records import PaymentRecord, TierRecord, UpgradeTokenRecord

PENDING: Final = "pending"
_SHOWN: Final = 100
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class NoSuchRedirect(DomainError):
    """A browser is only ever sent to an address that the application registered."""

    status = 400
    template = "This address is not registered for the application."


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
    def destination(self) -> str | None:
        """Where the browser goes when it is decided: the application hears how."""
        if self.record.status == PENDING or not self.record.redirect_uri:
            return None
        return with_parameters(self.record.redirect_uri, [("status", self.record.status)])


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
            _paid_tier(tx, device.key)
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
        """What the page of an upgrade address shows. Looking uses nothing up.

        Raises:
            Gone: the address was used, is too old, or its access token has ended.
            NoSuchRedirect: the application did not register `redirect_uri`.
            Conflict: there is nothing to upgrade to any more.
        """
        now_ms = self._clock.now_ms()
        token, tier = await self._database.read(lambda tx: _opened(tx, code, redirect_uri, now_ms))
        device = await self._devices.get(token.device)
        return Offer(device.record.name, tier, self.price(tier))

    def price(self, tier: TierRecord) -> str:
        """For people."""
        return f"{tier.cost} {self._currency}"

    async def pay(self, code: str, redirect_uri: str | None) -> Begun:
        """Use the address up and begin the payment. Raises what `offer` raises."""
        back, now_ms = new_id(), self._clock.now_ms()
        token, _ = await self._database.read(lambda tx: _opened(tx, code, redirect_uri, now_ms))
        device = await self._devices.get(token.device)

        def work(tx: Transaction) -> tuple[Payment, UpgradeTokenRecord]:
            token, tier = _opened(tx, code, redirect_uri, now_ms)
            if not tx.monetization.use_upgrade_token(token.hash, now_ms=now_ms):
                raise Gone
            share = _share_of(tx, tier)
            record = PaymentRecord(
                id=new_id(),
                device=token.device,
                device_id=device.id,
                user=token.user,
                tier=tier.key,
                processor=self._processor.name,
                status=PENDING,
                cost=tier.cost,
                owner_share=share,
                redirect_uri=redirect_uri or "",
                code_hash=token_hash(back),
                external_id=None,
                created_on=now_ms,
            )
            tx.monetization.add_payment(record)
            return Payment(record, tier), token

        payment, used = await self._database.write(work)
        return await self._collect(payment, used.action, back, device)

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
            return Begun(await self.decide(reference, "failed"), back, None)
        if checkout is None:
            return Begun(payment, back, None)
        await self._database.write(lambda tx: tx.monetization.set_external_id(reference, checkout.external_id))
        return Begun(payment, back, checkout.url)

    async def returned(self, back: str) -> Payment:
        """How the payment of a browser that came back stands. Raises NotFound."""
        if not is_id(back):
            raise NotFound
        return await self._database.read(lambda tx: _payment(tx, tx.monetization.payment_by_code(token_hash(back))))

    async def pending(self) -> list[Payment]:
        """What waits for a decision, the oldest first."""
        return await self._database.read(
            lambda tx: [_payment(tx, record) for record in tx.monetization.payments_in(PENDING, limit=_SHOWN)]
        )

    async def hear(self, body: bytes, headers: Mapping[str, str]) -> None:
        """What the processor tells us. Raises NotificationRefused when it was somebody else."""
        decided = self._processor.read(body, headers)
        if decided is None:
            return
        try:
            await self.decide(decided.reference, decided.outcome, by_processor=True)
        except NotFound:  # it may serve others with the same account
            _log.warning("payment_unknown", reference=decided.reference[:100])

    async def decide(self, reference: str, outcome: Outcome, *, by_processor: bool = False) -> Payment:
        """What became of a payment. `accepted` puts the device on the paid tier. The same word again changes nothing.

        Money that has moved after all counts: a processor may say `accepted` after anything else.

        Raises:
            NotFound: no such payment.
            Conflict: it is decided otherwise.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> _Decision:
            payment = _payment(tx, tx.monetization.payment(reference))
            record = payment.record
            if record.status == outcome:
                return _Decision(payment)
            if record.status != PENDING and not (by_processor and outcome == "accepted"):
                if by_processor:  # it repeats itself, or is late
                    return _Decision(payment)
                raise Conflict(f"The payment is {record.status}")
            tx.monetization.decide_payment(reference, outcome, now_ms=now_ms)
            activates = outcome == "accepted" and tx.devices.device(record.device) is not None
            if activates:
                tx.monetization.set_tier(record.device, record.tier, now_ms=now_ms)
            decided = Payment(replace(record, status=outcome, decided_on=now_ms), payment.tier)
            return _Decision(decided, is_new=True, activates=activates)

        return (await self._database.write(work, announce=self._tell)).payment

    def _tell(self, decision: "_Decision") -> None:
        record = decision.payment.record
        if decision.is_new:
            _log.info("payment_decided", reference=record.id, outcome=record.status, device=record.device_id)
        if decision.activates:
            self._tiers.activated(record.device, decision.payment.tier)


@dataclass(frozen=True, slots=True)
class _Decision:
    """A payment as it stands, whether that is news, and whether its device is on the paid tier from now on."""

    payment: Payment
    is_new: bool = False
    activates: bool = False


def _payment(tx: Transaction, record: PaymentRecord | None) -> Payment:
    """Raises NotFound."""
    tier = None if record is None else tx.monetization.tier(record.tier)
    if record is None or tier is None:
        raise NotFound
    return Payment(record, tier)


def _opened(tx: Transaction, code: str, redirect_uri: str | None, now_ms: int) -> tuple[UpgradeTokenRecord, TierRecord]:
    """The token and the tier that it leads to, as things stand now."""
    token = tx.monetization.upgrade_token(token_hash(code)) if is_id(code) else None
    if token is None or token.used_on is not None or token.expires_on <= now_ms:
        raise Gone
    access = tx.accounts.token(token.token)
    if access is None or access.expires_on <= now_ms or tx.devices.device(token.device) is None:
        raise Gone
    record = tx.accounts.application(token.application)
    if redirect_uri is not None and (record is None or Application(record).redirect_uri(redirect_uri) is None):
        raise NoSuchRedirect
    return token, _paid_tier(tx, token.device)


def _paid_tier(tx: Transaction, device: int) -> TierRecord:
    tiers = tiers_of(tx, device)
    paid = next((one for one in tiers if one.record.type == "paid"), None)
    if paid is None:
        raise Conflict("The device has no paid tier")
    if paid.active:
        raise Conflict("The device is on its paid tier")
    return paid.record


def _share_of(tx: Transaction, tier: TierRecord) -> str:
    """What the owner of the device type gets."""
    plan = tx.monetization.plan(tier.plan)
    share = Decimal(tier.cost) * (plan.revenue_share_percent if plan is not None else 0) / 100
    return str(share.quantize(Decimal("0.01"), ROUND_HALF_UP))
