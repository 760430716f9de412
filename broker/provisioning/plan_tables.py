"""The table `plans` of the provision file: monetization plans of device types, approved by the operator."""

from decimal import Decimal

from broker.facts import PlanApproved
from broker.ids import new_id
from broker.limits.allowance import UNLIMITED
from broker.monetization.plans import REVENUE_SHARE_PERCENT
from broker.provisioning.document import PlanEntry
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import ChangedKey
from broker.provisioning.run import ProvisioningRun
from storage.keys import DeviceTypeKey
from storage.records import PlanRecord, TierRecord
from storage.transaction import Transaction


class PlanTables:
    def __init__(self, run: ProvisioningRun) -> None:
        self._run = run

    def put_plan(self, at: EntryLocation, entry: PlanEntry) -> None:
        """Add the plan as the next version, if its terms differ from those of the latest approved one."""
        run = self._run
        type_ = run.type_of(at, "device_type", entry.device_type)
        wanted = [_tier("Free", "free", "0.00", entry.free_messages_per_day, run.now_ms)]
        if entry.paid_cost is not None:
            wanted.append(_tier("Paid", "paid", entry.paid_cost, UNLIMITED, run.now_ms))
        current = _approved(run.tx, type_.key)
        if [_terms(tier) for tier in current] == [_terms(tier) for tier in wanted]:
            return run.found(at, type_.key, type_.unique_name)
        run.tx.monetization.keep_tiers(type_.key, now_ms=run.now_ms)
        run.tx.monetization.add_plan(_plan(type_.key, run.now_ms), wanted)
        run.facts.append(PlanApproved(type_.key))
        if not current:
            return run.created(at, type_.key, type_.unique_name)
        return run.found(at, type_.key, type_.unique_name, [ChangedKey("tiers", _shown(current), _shown(wanted))])


def _approved(tx: Transaction, device_type: DeviceTypeKey) -> list[TierRecord]:
    """The tiers of the latest approved plan."""
    plans = [plan for plan in tx.monetization.plans(device_type) if plan.status == "APPROVED"]
    return tx.monetization.tiers(plans[0].key) if plans else []


def _terms(tier: TierRecord) -> tuple[str, Decimal, int]:
    return tier.type, Decimal(tier.cost), tier.message_limit


def _shown(tiers: list[TierRecord]) -> str:
    return ", ".join(f"{one.type}: {one.message_limit} messages a day for {one.cost}" for one in tiers)


def _plan(device_type: DeviceTypeKey, now_ms: int) -> PlanRecord:
    return PlanRecord(0, new_id(), device_type, 0, "APPROVED", "", "", "", REVENUE_SHARE_PERCENT, now_ms, now_ms)


def _tier(name: str, kind: str, cost: str, limit: int, now_ms: int) -> TierRecord:
    return TierRecord(0, new_id(), 0, name, kind, "", cost, limit, "DAILY", "ONCE", now_ms, now_ms)
