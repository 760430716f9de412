"""Checks of the one-time token of an upgrade address. The caller holds the transaction."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from broker.accounts.applications import Application
from broker.errors import Conflict, DomainError, Gone
from broker.ids import is_id
from broker.monetization.tiers import tiers_of
from broker.secrets import token_hash
from storage.keys import DeviceKey
from storage.records import TierRecord, UpgradeTokenRecord
from storage.transaction import Transaction

NO_PAID_TIER: Final = "The device has no paid tier"


@dataclass(eq=False)
class NoSuchRedirect(DomainError):
    """The application did not register the address. A browser is sent to registered addresses only."""

    status = 400
    template = "This address is not registered for the application."


def opened(tx: Transaction, code: str, redirect_uri: str | None, now_ms: int) -> tuple[UpgradeTokenRecord, TierRecord]:
    """The token, and the tier to which the device can be upgraded with it.

    Raises:
        Gone: the address was used, is too old, or its access token has ended.
        NoSuchRedirect: the application did not register `redirect_uri`.
        Conflict: the device has no paid tier any more, or is on it already.
    """
    token = tx.monetization.upgrade_token(token_hash(code)) if is_id(code) else None
    if token is None or token.used_on is not None or token.expires_on <= now_ms:
        raise Gone
    access = tx.accounts.token(token.token)
    if access is None or access.expires_on <= now_ms or tx.devices.device(token.device) is None:
        raise Gone
    record = tx.accounts.application(token.application)
    if redirect_uri is not None and (record is None or Application(record).redirect_uri(redirect_uri) is None):
        raise NoSuchRedirect
    return token, paid_tier(tx, token.device)


def paid_tier(tx: Transaction, device: DeviceKey) -> TierRecord:
    """The paid tier of the device's plan. Raises Conflict: there is none, or it is paid for already."""
    tiers = tiers_of(tx, device)
    paid = next((one for one in tiers if one.record.type == "paid"), None)
    if paid is None:
        raise Conflict(NO_PAID_TIER)
    if paid.active:
        raise Conflict("The device is on its paid tier")
    if tx.monetization.has_paid(device, paid.record.key):  # and went back to the free one
        raise Conflict("The paid tier is paid for already: it can be selected as it is")
    return paid.record


def share_of(tx: Transaction, tier: TierRecord) -> str:
    """The share of the tier's price that the owner of the device type gets, as a decimal number."""
    plan = tx.monetization.plan(tier.plan)
    share = Decimal(tier.cost) * (plan.revenue_share_percent if plan is not None else 0) / 100
    return str(share.quantize(Decimal("0.01"), ROUND_HALF_UP))
