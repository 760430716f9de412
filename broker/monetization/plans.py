"""Plans: versions of what the devices of a type may send for free and for money (reference 13).

A plan never changes once it is there; the next version replaces it for devices that come later. The operator looks at
each: NEW, PENDING, then APPROVED or REJECTED.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog

from broker.accounts.permissions import ADMINISTRATORS
from broker.clock import Clock
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.errors import Conflict, Finding, NotFound, ValidationFailed
from broker.facts import PlanApproved, Router
from broker.ids import new_id
from broker.mail import Letter, Mail, Mails, MonetizationPlanDecided
from config.limits import DESCRIPTION_MAX_CHARACTERS, NAME_MAX_CHARACTERS
from storage.database import Database, Transaction
from storage.records import PlanRecord, TierRecord

REVENUE_SHARE_PERCENT: Final = 70  # reference 21.2: to the owner of the device type
UNLIMITED: Final = -1
_COST = re.compile(r"(0|[1-9][0-9]{0,6})(\.[0-9]{1,2})?")
_KINDS: Final = ("free", "paid")
_WRONG_TIERS: Final = "Exactly one free tier and at most one paid tier"
_TEXT_CHARACTERS: Final = 254
_LIMIT_MAX: Final = 10**12
_ABSENT: Final[Mapping[str, Any]] = {}

_log = structlog.get_logger(__name__)
Decision = Literal["PENDING", "APPROVED", "REJECTED"]


@dataclass(frozen=True, slots=True)
class Plan:
    record: PlanRecord
    tiers: tuple[TierRecord, ...]
    type_id: str


def is_price(text: str) -> bool:
    """A decimal number with at most two decimals."""
    return _COST.fullmatch(text) is not None


class Plans:
    """Rights are the caller's business."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        router: Router,
        device_types: DeviceTypes,
        mails: Mails,
    ) -> None:
        self._database = database
        self._clock = clock
        self._router = router
        self._types = device_types
        self._mails = mails

    async def of_type(self, type_: DeviceType, *, latest: bool = False, status: str | None = None) -> list[Plan]:
        """Newest first."""
        found = await self._database.read(lambda tx: _plans(tx, type_))
        chosen = [plan for plan in found if status is None or plan.record.status == status]
        return chosen[:1] if latest else chosen

    async def add(self, type_: DeviceType, document: Mapping[str, Any]) -> Plan:
        """The next version, for the operator to look at. Raises ValidationFailed with every finding in the document."""
        plan, tiers = parse_plan(document, type_.key, self._clock.now_ms())
        added = await self._database.write(lambda tx: tx.monetization.add_plan(plan, tiers))
        _log.info("monetization_plan_added", device_type=type_.id, version=added.version)
        return await self._database.read(lambda tx: _plan(tx, added, type_))

    async def undecided(self) -> list[Plan]:
        """What waits for the operator."""
        records = await self._database.read(lambda tx: tx.monetization.undecided_plans())
        types = {record.device_type: await self._types.get(record.device_type) for record in records}
        return await self._database.read(lambda tx: [_plan(tx, one, types[one.device_type]) for one in records])

    async def decide(self, type_id: str, version: int, decision: Decision, comments: str = "") -> Plan:
        """The operator's step. The administrators of the type's organization hear of approval and rejection.

        Raises:
            DeviceTypeNotFound, NotFound: no such type, or no such version.
            Conflict: it is decided already.
        """
        type_ = await self._types.find(type_id)
        letters: list[Letter] = []
        if decision != "PENDING":
            mail = MonetizationPlanDecided(
                device_type=type_.record.name,
                version=version,
                decision="approved" if decision == "APPROVED" else "rejected",
                comments=comments,
            )
            addresses = await self._database.read(
                lambda tx: tx.accounts.addresses_of(type_.record.organization, ADMINISTRATORS)
            )
            letters = [letter for address in addresses if (letter := self._letter(address, mail, type_)) is not None]
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> Plan:
            record = tx.monetization.plan_version(type_.key, version)
            if record is None:
                raise NotFound
            if record.status not in {"NEW", "PENDING"} or record.status == decision:
                raise Conflict(f"The plan is {record.status}")
            if decision == "APPROVED":
                tx.monetization.keep_tiers(type_.key, now_ms=now_ms)
            tx.monetization.set_plan_status(record.key, decision, comments or record.comments, now_ms=now_ms)
            for letter in letters:
                self._mails.add(tx, letter)
            return _plan(tx, _found(tx.monetization.plan_version(type_.key, version)), type_)

        def tell(_plan: Plan) -> None:
            if decision == "APPROVED":
                self._router.publish(PlanApproved(type_.key))

        return await self._database.write(work, announce=tell)

    def _letter(self, address: str, mail: Mail, type_: DeviceType) -> Letter | None:
        """None for an address that no mail can be sent to: nothing is decided or not for its sake."""
        try:
            return self._mails.compose(address, mail, cause=type_.id)
        except ValidationFailed as error:
            _log.warning("plan_mail_not_composed", device_type=type_.id, reason=str(error.findings))
            return None


def parse_plan(document: Mapping[str, Any], device_type: int, now_ms: int) -> tuple[PlanRecord, list[TierRecord]]:
    """A plan as an administrator sends it. Raises ValidationFailed with every finding."""
    findings = _Findings()
    contact = document.get("contactInfo") or _ABSENT
    if not isinstance(contact, Mapping):
        findings.add("contactInfo", "Invalid value")
        contact = _ABSENT
    for name in ("type", "ptType"):
        if document.get(name) not in (None, "count"):
            findings.add(name, "Invalid value")
    plan = PlanRecord(
        key=0,
        id=new_id(),
        device_type=device_type,
        version=0,
        status="NEW",
        contact_email=findings.text(contact, "email", "contactInfo.email"),
        contact_phone=findings.text(contact, "phone", "contactInfo.phone"),
        comments=findings.text(document, "comments", "comments", longest=DESCRIPTION_MAX_CHARACTERS),
        revenue_share_percent=REVENUE_SHARE_PERCENT,
        created_on=now_ms,
        modified_on=now_ms,
    )
    given = document.get("tiers")
    if given is None:
        findings.add("tiers", "Required parameter")
    elif not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        findings.add("tiers", "Invalid value")
    elif len(given) > len(_KINDS):  # or there would be as much to say as somebody likes to send
        findings.add("tiers", _WRONG_TIERS)
    tiers = (
        [_tier(one, f"tiers.{index}", findings, now_ms) for index, one in enumerate(given)]
        if not findings.has("tiers") and given
        else []
    )
    kinds = [tier.type for tier in tiers]
    if not findings and (kinds.count("free") != 1 or kinds.count("paid") > 1):
        findings.add("tiers", _WRONG_TIERS)
    findings.check()
    return plan, tiers


def _tier(given: Mapping[str, Any], path: str, findings: "_Findings", now_ms: int) -> TierRecord:
    kind = given.get("type")
    if kind not in _KINDS:  # not a set: it may be anything that JSON has
        findings.add(f"{path}.type", "Required parameter" if kind is None else "Invalid value")
    cost = given.get("cost")
    if cost is None and kind == "free":
        cost = "0.00"
    if not isinstance(cost, str) or not is_price(cost) or (float(cost) > 0) is not (kind == "paid"):
        findings.add(f"{path}.cost", "Required parameter" if cost is None else "Invalid value")
    limit = given.get("messageLimit", UNLIMITED if kind == "paid" else None)
    if not isinstance(limit, int) or isinstance(limit, bool) or not (limit == UNLIMITED or 0 < limit <= _LIMIT_MAX):
        findings.add(f"{path}.messageLimit", "Required parameter" if limit is None else "Invalid value")
    name = findings.text(given, "name", f"{path}.name", longest=NAME_MAX_CHARACTERS)
    if not name:
        findings.add(f"{path}.name", "Required parameter")
    for member, only in (("interval", "DAILY"), ("billingInterval", "ONCE")):
        if given.get(member) not in (None, only):
            findings.add(f"{path}.{member}", "Invalid value")
    return TierRecord(
        key=0,
        id=new_id(),
        plan=0,
        name=name,
        type=str(kind),
        description=findings.text(given, "description", f"{path}.description", longest=DESCRIPTION_MAX_CHARACTERS),
        cost=str(cost),
        message_limit=limit if isinstance(limit, int) else 0,
        interval="DAILY",
        billing_interval="ONCE",
        created_on=now_ms,
        modified_on=now_ms,
    )


class _Findings:
    """All that is wrong, so that a caller learns of it at once."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def has(self, field: str) -> bool:
        return any(one.field == field for one in self._found)

    def add(self, field: str, message: str) -> None:
        self._found.append(Finding(field, (message,)))

    def text(self, given: Mapping[str, Any], name: str, field: str, *, longest: int = _TEXT_CHARACTERS) -> str:
        value = given.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.add(field, "Text field only")
            return ""
        if len(value) > longest:
            self.add(field, f"Maximum length {longest}")
        return value

    def check(self) -> None:
        if self._found:
            raise ValidationFailed(tuple(self._found))


def _plans(tx: Transaction, type_: DeviceType) -> list[Plan]:
    return [_plan(tx, record, type_) for record in tx.monetization.plans(type_.key)]


def _plan(tx: Transaction, record: PlanRecord, type_: DeviceType) -> Plan:
    return Plan(record, tuple(tx.monetization.tiers(record.key)), type_.id)


def _found(record: PlanRecord | None) -> PlanRecord:
    if record is None:
        raise NotFound
    return record
