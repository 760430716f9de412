"""Monetization plans: how many messages the devices of a type may send in the free and in the paid tier (reference 13).

A plan is immutable. Its next version applies to devices that are created later. The operator decides on each version:
NEW, PENDING, then APPROVED or REJECTED.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import structlog

from broker.accounts.permissions import ADMINISTRATORS
from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.device_types.reading import DocumentReader
from broker.errors import REQUIRED, Conflict, NotFound, ValidationFailed, choice, invalid
from broker.facts import PlanApproved
from broker.ids import new_id
from broker.limits.allowance import UNLIMITED
from broker.mail import Letter, Mail, Mails, MonetizationPlanDecided
from config.limits import DESCRIPTION_MAX_CHARACTERS, NAME_MAX_CHARACTERS
from storage.database import Database
from storage.keys import DeviceTypeKey
from storage.records import PlanRecord, TierRecord
from storage.transaction import Transaction

REVENUE_SHARE_PERCENT: Final = 70  # reference 21.2: to the owner of the device type
_COST = re.compile(r"(0|[1-9][0-9]{0,6})(\.[0-9]{1,2})?")
_KINDS: Final = ("free", "paid")
_WRONG_TIERS: Final = "Exactly one free tier and at most one paid tier"
_TEXT_CHARACTERS: Final = 254
_LIMIT_MAX: Final = 10**12
_LIMITS: Final = f"must be {UNLIMITED}, which is unlimited, or 1 to {_LIMIT_MAX}"
_ABSENT: Final[Mapping[str, Any]] = {}

_log = structlog.get_logger(__name__)
PlanDecision = Literal["PENDING", "APPROVED", "REJECTED"]


class MonetizationPlan(msgspec.Struct, frozen=True):
    """`is_in_force`: it is the latest approved plan of the type, whose tiers devices may have from now on."""

    record: PlanRecord
    tiers: tuple[TierRecord, ...]
    type_id: str
    is_in_force: bool


def is_price(text: str) -> bool:
    """A decimal number with at most two decimals."""
    return _COST.fullmatch(text) is not None


@dataclass(slots=True, eq=False, repr=False)
class Plans:
    """The caller checks permissions."""

    _database: Database
    _clock: Clock
    _types: DeviceTypes
    _mails: Mails

    async def of_type(
        self, type_: DeviceType, *, latest: bool = False, status: str | None = None, only_approved: bool = False
    ) -> list[MonetizationPlan]:
        """Newest first. `only_approved`: as others than the members of the organization see them."""
        found = await self._database.read(
            lambda tx: [_plan(tx, record, type_) for record in tx.monetization.plans(type_.key)]
        )
        seen = {"APPROVED"} if only_approved else {plan.record.status for plan in found}
        chosen = [one for one in found if one.record.status in seen and status in {None, one.record.status}]
        return chosen[:1] if latest else chosen

    async def add(self, type_: DeviceType, document: Mapping[str, Any]) -> MonetizationPlan:
        """Add the next version, for the operator to decide on. Raises ValidationFailed with every finding."""
        plan, tiers = parse_plan(document, type_.key, self._clock.now_ms())
        added = await self._database.write(lambda tx: tx.monetization.add_plan(plan, tiers))
        _log.info("monetization_plan_added", device_type=type_.id, version=added.version)
        return await self._database.read(lambda tx: _plan(tx, added, type_))

    async def undecided(self) -> list[MonetizationPlan]:
        """The plans that wait for the operator's decision."""
        records = await self._database.read(lambda tx: tx.monetization.undecided_plans())
        types = {record.device_type: await self._types.get(record.device_type) for record in records}
        return await self._database.read(lambda tx: [_plan(tx, one, types[one.device_type]) for one in records])

    async def decide(self, type_id: str, version: int, decision: PlanDecision, comments: str = "") -> MonetizationPlan:
        """The operator's decision. The administrators of the type's organization get a mail, except about PENDING.

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

        def work(tx: Transaction) -> MonetizationPlan:
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
            if decision == "APPROVED":
                publish(tx, PlanApproved(type_.key))
            return _plan(tx, _found(tx.monetization.plan_version(type_.key, version)), type_)

        return await self._database.write(work)

    def _letter(self, address: str, mail: Mail, type_: DeviceType) -> Letter | None:
        """None for an address that cannot get mail: the decision does not depend on it."""
        try:
            return self._mails.compose(address, mail, cause=type_.id)
        except ValidationFailed as error:
            _log.warning("plan_mail_not_composed", device_type=type_.id, reason=str(error.findings))
            return None


def parse_plan(
    document: Mapping[str, Any], device_type: DeviceTypeKey, now_ms: int
) -> tuple[PlanRecord, list[TierRecord]]:
    """A plan as an administrator sends it. Raises ValidationFailed with every finding."""
    reader = DocumentReader()
    contact = document.get("contactInfo") or _ABSENT
    if not isinstance(contact, Mapping):
        reader.refuse("contactInfo", invalid("must be an object"))
        contact = _ABSENT
    for name in ("type", "ptType"):
        if document.get(name) not in (None, "count"):
            reader.refuse(name, invalid(choice(("count",))))
    plan = PlanRecord(
        key=0,
        id=new_id(),
        device_type=device_type,
        version=0,
        status="NEW",
        contact_email=reader.text(contact, "contactInfo.email", "email", maximum=_TEXT_CHARACTERS) or "",
        contact_phone=reader.text(contact, "contactInfo.phone", "phone", maximum=_TEXT_CHARACTERS) or "",
        comments=reader.text(document, "comments", "comments", maximum=DESCRIPTION_MAX_CHARACTERS) or "",
        revenue_share_percent=REVENUE_SHARE_PERCENT,
        created_on=now_ms,
        modified_on=now_ms,
    )
    tiers = [_tier(one, f"tiers.{index}", reader, now_ms) for index, one in enumerate(_tier_objects(document, reader))]
    kinds = [tier.type for tier in tiers]
    if not reader.has_findings and (kinds.count("free") != 1 or kinds.count("paid") > 1):
        reader.refuse("tiers", _WRONG_TIERS)
    reader.check()
    return plan, tiers


def _tier_objects(document: Mapping[str, Any], reader: DocumentReader) -> list[Mapping[str, Any]]:
    given = document.get("tiers")
    if given is None:
        reader.refuse("tiers", REQUIRED)
    elif not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        reader.refuse("tiers", invalid("must be a list of objects"))
    elif len(given) > len(_KINDS):  # checked first, because each tier may have many findings
        reader.refuse("tiers", _WRONG_TIERS)
    else:
        return given
    return []


def _tier(given: Mapping[str, Any], path: str, reader: DocumentReader, now_ms: int) -> TierRecord:
    kind = given.get("type")
    if kind not in _KINDS:  # a tuple, because JSON values need not be hashable
        reader.refuse(f"{path}.type", REQUIRED if kind is None else invalid(choice(_KINDS)))
    cost = given.get("cost")
    if cost is None and kind == "free":
        cost = "0.00"
    if not isinstance(cost, str) or not is_price(cost) or (float(cost) > 0) is not (kind == "paid"):
        reader.refuse(
            f"{path}.cost",
            REQUIRED
            if cost is None
            else invalid('must be a text such as "2.99": above 0 in a paid tier, 0 in a free one'),
        )
    limit = given.get("messageLimit", UNLIMITED if kind == "paid" else None)
    if not isinstance(limit, int) or isinstance(limit, bool) or not (limit == UNLIMITED or 0 < limit <= _LIMIT_MAX):
        reader.refuse(
            f"{path}.messageLimit",
            REQUIRED if limit is None else invalid(_LIMITS),
        )
    name = reader.text(given, f"{path}.name", "name", maximum=NAME_MAX_CHARACTERS)
    if not isinstance(given.get("name"), str) or not given["name"]:
        reader.refuse(f"{path}.name", REQUIRED)
    for member, only in (("interval", "DAILY"), ("billingInterval", "ONCE")):
        if given.get(member) not in (None, only):
            reader.refuse(f"{path}.{member}", invalid(choice((only,))))
    return TierRecord(
        key=0,
        id=new_id(),
        plan=0,
        name=name or "",
        type=str(kind),
        description=reader.text(given, f"{path}.description", "description", maximum=DESCRIPTION_MAX_CHARACTERS) or "",
        cost=str(cost),
        message_limit=limit if isinstance(limit, int) else 0,
        interval="DAILY",
        billing_interval="ONCE",
        created_on=now_ms,
        modified_on=now_ms,
    )


def _plan(tx: Transaction, record: PlanRecord, type_: DeviceType) -> MonetizationPlan:
    in_force = tx.monetization.approved_version(type_.key)
    return MonetizationPlan(record, tuple(tx.monetization.tiers(record.key)), type_.id, record.version == in_force)


def _found(record: PlanRecord | None) -> PlanRecord:
    if record is None:
        raise NotFound
    return record
