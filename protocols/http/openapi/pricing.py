"""Monetization (reference 2.9 and 13)."""

from typing import Final

from config.limits import DESCRIPTION_MAX_CHARACTERS, NAME_MAX_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.openapi.operation import (
    USER,
    USER_OR_APPLICATION,
    Answer,
    Noun,
    Operation,
    Parameter,
    flag,
    json_body,
)
from protocols.http.openapi.shapes import (
    array,
    boolean,
    data,
    id_,
    integer,
    milliseconds,
    one_of,
    record,
    ref,
    text,
    type_id,
)

_KIND: Final = one_of(("count",), "The plan counts daily messages")
_COST: Final = text("Decimal, at most two decimals", pattern=r"^(0|[1-9][0-9]{0,6})(\.[0-9]{1,2})?$")
_TIER: Final = {
    "ptid": id_(),
    "name": text(longest=NAME_MAX_CHARACTERS),
    "type": one_of(("free", "paid")),
    "description": text(longest=DESCRIPTION_MAX_CHARACTERS),
    "cost": _COST,
    "messageLimit": integer("Messages a day; -1 for any number", lowest=-1),
    "interval": one_of(("DAILY",)),
    "billingInterval": one_of(("ONCE",)),
    "createdOn": milliseconds(),
    "modifiedOn": milliseconds(),
}
_DEVICE_TIER: Final = {**_TIER, "active": boolean("Whether the device is on it")}
_CONTACT: Final = {"email": text(longest=254), "phone": text(longest=254)}
_PLAN: Final = {
    "version": integer(lowest=1),
    "dtid": type_id(),
    "status": one_of(("NEW", "PENDING", "APPROVED", "REJECTED")),
    "type": _KIND,
    "ptType": _KIND,
    "tiers": array(ref("Tier")),
    "contactInfo": record(_CONTACT),
    "comments": text(longest=DESCRIPTION_MAX_CHARACTERS),
    "revenueSharePercent": integer(lowest=0, highest=100),
    "createdOn": milliseconds(),
    "modifiedOn": milliseconds(),
}
_FREE: Final = {
    "ptid": samples.TIER,
    "name": "Starter",
    "type": "free",
    "description": "",
    "cost": "0.00",
    "messageLimit": 150,
    "interval": "DAILY",
    "billingInterval": "ONCE",
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
}
_EXAMPLE: Final = {
    "version": 1,
    "dtid": samples.DTID,
    "status": "NEW",
    "type": "count",
    "ptType": "count",
    "tiers": [_FREE],
    "contactInfo": {"email": "billing@example.net", "phone": ""},
    "comments": "",
    "revenueSharePercent": 70,
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
}
_NEW_TIER: Final = record(
    {"name": text(minLength=1, longest=NAME_MAX_CHARACTERS), "type": one_of(("free", "paid"))},
    {
        "description": _TIER["description"],
        "cost": _COST,
        "messageLimit": integer("Required of the free tier; -1 for any number", lowest=-1, highest=10**12),
        "interval": _TIER["interval"],
        "billingInterval": _TIER["billingInterval"],
    },
)

PRICING: Final = Noun(
    "Pricing",
    "What the devices of a type may send for free and for money: a plan has a free tier with a daily limit and perhaps "
    "a paid one.",
    (
        Operation(
            method="GET",
            path="/pricing/devicetypes/{dtid}/pricingtiers",
            summary="Plans of a device type",
            about="Newest first; empty without a plan.",
            tokens=USER,
            query=(
                flag("latest", "Only the newest version"),
                Parameter("status", one_of(("NEW", "PENDING", "APPROVED", "REJECTED"), "Only plans in this status")),
            ),
            answer=Answer(
                data(record({"pricingTiers": array(ref("Plan")), "total": integer("Plans", lowest=0)})),
                {"data": {"pricingTiers": [_EXAMPLE], "total": 1}},
            ),
        ),
        Operation(
            method="POST",
            path="/pricing/devicetypes/{dtid}/pricingtiers",
            summary="Propose a plan",
            about="For administrators of the organization that owns the type. Exactly one free and at most one paid "
            "tier. It is the next version, with `status` NEW, until the operator has decided.",
            tokens=USER_OR_APPLICATION,
            body=json_body(
                record(
                    {"tiers": array(_NEW_TIER, minItems=1, maxItems=2)},
                    {
                        "type": _KIND,
                        "ptType": _KIND,
                        "contactInfo": record({}, _CONTACT),
                        "comments": _PLAN["comments"],
                    },
                ),
                {"tiers": [{"name": "Starter", "type": "free", "messageLimit": 150}]},
            ),
            answer=Answer(record({"data": ref("Plan"), **_PLAN}), {"data": _EXAMPLE, **_EXAMPLE}),
        ),
        Operation(
            method="GET",
            path="/pricing/devices/{did}/pricingtiers",
            summary="Tiers that a device may have",
            about="For the owner. Empty when its type has no plan.",
            tokens=USER,
            query=(flag("active", "Only the tier that it is on"),),
            answer=Answer(
                data(record({"did": id_(), "pricingTiers": array(ref("DeviceTier"))})),
                {"data": {"did": samples.DID, "pricingTiers": [{**_FREE, "active": True}]}},
            ),
        ),
        Operation(
            method="PUT",
            path="/pricing/devices/{did}/pricingtiers",
            summary="Choose a device's tier",
            about="The paid tier only after it was paid for.",
            tokens=USER,
            body=json_body(record({"ptid": id_("The tier")}), {"ptid": samples.TIER}),
            answer=Answer(
                data(record({"did": id_(), **_DEVICE_TIER})),
                {"data": {"did": samples.DID, **_FREE, "active": True}},
            ),
        ),
        Operation(
            method="GET",
            path="/pricing/devices/{did}/revenueshare/upgradepath",
            summary="Where a browser upgrades a device",
            about="The address is good for 15 minutes and one use. Append `redirect_uri` to it; the browser comes back "
            "there with `status` accepted, declined or failed.",
            tokens=USER,
            query=(Parameter("action", one_of(("upgrade", "select", "edit"), default="upgrade")),),
            answer=Answer(
                data(record({"url": text(format="uri")})),
                {"data": {"url": f"https://trunkline.example.net/accounts/pricing/upgrade?token={samples.NONCE}"}},
            ),
            refusals={409: "The device has no paid tier"},
        ),
    ),
    {"Tier": record(_TIER), "DeviceTier": record(_DEVICE_TIER), "Plan": record(_PLAN)},
)
