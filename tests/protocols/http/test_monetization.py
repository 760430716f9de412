"""Monetization: plans and their approval, tiers, and upgrades from the address to the payment (reference 13)."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
import trio

from broker.devices.inventory import NewDevice
from broker.errors import PermissionDenied
from broker.facts import TokenRevoked
from broker.ids import is_id
from broker.mail import MonetizationPlanDecided
from broker.secrets import token_hash
from broker.services import Services
from config.limits import UPGRADE_TOKEN_SECONDS
from config.settings import Address
from storage.keys import DeviceKey, DeviceTypeKey, OrganizationKey
from storage.monetization import MonetizationStore
from tests.daemon import bearer
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.direct_client import DirectClient
from tests.rows import each_row
from tests.wording import INVALID

FREE = {"type": "free", "name": "Free", "messageLimit": 150}
PAID = {"type": "paid", "name": "Plus", "cost": "2.99", "description": "No daily limit"}
PLAN = {"tiers": [FREE, PAID], "contactInfo": {"email": "sales@example.org", "phone": "+49 30 1234"}}
PLANS = f"/pricing/devicetypes/{LIGHT_TYPE}/pricingtiers"
TIERS = f"/pricing/devices/{KITCHEN}/pricingtiers"
UPGRADE = f"/pricing/devices/{KITCHEN}/revenueshare/upgradepath"
CALLBACK = "https://app.example.org/callback"


@pytest.fixture
async def administrator(services: Services, world: World) -> None:
    """Ada administrates Acme, which owns the type."""
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "administrator"))


@pytest.fixture
async def pages(door: Address) -> AsyncIterator[httpx.AsyncClient]:
    async with DirectClient(door, "") as client:
        yield client


async def add(api: httpx.AsyncClient, plan: Any = PLAN, token: str = ADA_TOKEN) -> httpx.Response:
    return await api.post(PLANS, headers=bearer(token), json=plan)


async def approved(services: Services, api: httpx.AsyncClient, plan: Any = PLAN) -> None:
    added = (await add(api, plan)).json()
    await services.monetization.plans.decide(LIGHT_TYPE, added["version"], "APPROVED")
    await services.monetization.tiers.resume()  # what the worker does a moment later


async def tiers(api: httpx.AsyncClient, query: str = "") -> list[Any]:
    answer = await api.get(TIERS + query, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200
    found: list[Any] = answer.json()["data"]["pricingTiers"]
    return found


async def upgrade_address(api: httpx.AsyncClient, redirect_uri: str = CALLBACK) -> str:
    """The page's path with what the application appends."""
    url = urlsplit((await api.get(UPGRADE, headers=bearer(ADA_TOKEN))).json()["data"]["url"])
    return f"{url.path}?{url.query}" + (f"&redirect_uri={redirect_uri}" if redirect_uri else "")


async def pay(pages: httpx.AsyncClient, address: str) -> httpx.Response:
    given = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    return await pages.post("/accounts/pricing/upgrade", data=given)


# --- Plans ---


async def test_a_plan_that_is_not_approved_is_for_the_organization(
    api: httpx.AsyncClient, services: Services, administrator: None
) -> None:
    """So are its prices and the operator's comments; others get the newest plan that is approved."""
    await approved(services, api)
    await add(api)
    rejected = (await add(api)).json()
    await services.monetization.plans.decide(LIGHT_TYPE, rejected["version"], "REJECTED", "too dear")
    for query, of_members, of_others in (
        ("", [3, 2, 1], [1]),
        ("?latest=true", [3], [1]),
        ("?status=NEW", [2], []),
        ("?status=APPROVED", [1], [1]),
    ):
        for token, expected in ((ADA_TOKEN, of_members), (BOB_TOKEN, of_others)):
            data = (await api.get(PLANS + query, headers=bearer(token))).json()["data"]
            assert [one["version"] for one in data["pricingTiers"]] == expected, (query, token)
            assert data["total"] == len(expected)


async def test_a_plan_is_answered_under_data_and_flat_with_every_member(
    api: httpx.AsyncClient, administrator: None, fake_clock: FakeClock
) -> None:
    answer = (await add(api)).json()
    record = answer.pop("data")
    assert answer == record
    assert [set(tier) for tier in record["tiers"]] == [
        {"ptid", "name", "type", "description", "cost", "messageLimit", "interval", "billingInterval"}
        | {"createdOn", "modifiedOn", "active"}
    ] * 2
    ptids = [tier.pop("ptid") for tier in record["tiers"]]
    assert len(set(ptids)) == 2
    stamps = {"createdOn": record["createdOn"], "modifiedOn": record["createdOn"]}
    assert record == {
        "version": 1,
        "dtid": LIGHT_TYPE,
        "status": "NEW",
        "type": "count",
        "ptType": "count",
        "tiers": [
            {"name": "Free", "type": "free", "description": "", "cost": "0.00", "messageLimit": 150}
            | {"interval": "DAILY", "billingInterval": "ONCE", "active": False}
            | stamps,
            {"name": "Plus", "type": "paid", "description": "No daily limit", "cost": "2.99", "messageLimit": -1}
            | {"interval": "DAILY", "billingInterval": "ONCE", "active": False}
            | stamps,
        ],
        "contactInfo": {"email": "sales@example.org", "phone": "+49 30 1234"},
        "comments": "",
        "revenueSharePercent": 70,
        **stamps,
    }


BAD_PLANS: list[tuple[Any, str, str]] = [
    ({}, "tiers", "Required parameter"),
    ({"tiers": "free"}, "tiers", INVALID),
    ({"tiers": [7]}, "tiers", INVALID),
    ({"tiers": []}, "tiers", "Exactly one free tier and at most one paid tier"),
    ({"tiers": [PAID]}, "tiers", "Exactly one free tier and at most one paid tier"),
    ({"tiers": [FREE, FREE]}, "tiers", "Exactly one free tier and at most one paid tier"),
    ({"tiers": [FREE, PAID, PAID]}, "tiers", "Exactly one free tier and at most one paid tier"),
    ({"tiers": [{}] * 10_000}, "tiers", "Exactly one free tier and at most one paid tier"),
    ({"tiers": [FREE | {"type": "gold"}]}, "tiers.0.type", INVALID),
    ({"tiers": [FREE | {"type": {}}]}, "tiers.0.type", INVALID),
    ({"tiers": [FREE | {"type": None}]}, "tiers.0.type", "Required parameter"),
    ({"tiers": [FREE | {"name": ""}]}, "tiers.0.name", "Required parameter"),
    ({"tiers": [FREE | {"name": "n" * 65}]}, "tiers.0.name", "Maximum length 64"),
    ({"tiers": [FREE | {"name": 7}]}, "tiers.0.name", "Text field only"),
    ({"tiers": [FREE | {"messageLimit": None}]}, "tiers.0.messageLimit", "Required parameter"),
    ({"tiers": [FREE | {"messageLimit": 0}]}, "tiers.0.messageLimit", INVALID),
    ({"tiers": [FREE | {"messageLimit": -2}]}, "tiers.0.messageLimit", INVALID),
    ({"tiers": [FREE | {"messageLimit": True}]}, "tiers.0.messageLimit", INVALID),
    ({"tiers": [FREE | {"messageLimit": "150"}]}, "tiers.0.messageLimit", INVALID),
    ({"tiers": [FREE | {"cost": "1.00"}]}, "tiers.0.cost", INVALID),
    ({"tiers": [FREE, PAID | {"cost": None}]}, "tiers.1.cost", "Required parameter"),
    ({"tiers": [FREE, PAID | {"cost": "0"}]}, "tiers.1.cost", INVALID),
    ({"tiers": [FREE, PAID | {"cost": "-1"}]}, "tiers.1.cost", INVALID),
    ({"tiers": [FREE, PAID | {"cost": "2.999"}]}, "tiers.1.cost", INVALID),
    ({"tiers": [FREE, PAID | {"cost": 2.99}]}, "tiers.1.cost", INVALID),
    ({"tiers": [FREE, PAID | {"interval": "HOURLY"}]}, "tiers.1.interval", INVALID),
    ({"tiers": [FREE, PAID | {"billingInterval": "MONTHLY"}]}, "tiers.1.billingInterval", INVALID),
    ({"tiers": [FREE, PAID | {"description": "d" * 1501}]}, "tiers.1.description", "Maximum length 1500"),
    (PLAN | {"type": "bytes"}, "type", INVALID),
    (PLAN | {"ptType": "bytes"}, "ptType", INVALID),
    (PLAN | {"contactInfo": "mail"}, "contactInfo", INVALID),
    (PLAN | {"contactInfo": {"email": 7}}, "contactInfo.email", "Text field only"),
    (PLAN | {"contactInfo": {"phone": "1" * 255}}, "contactInfo.phone", "Maximum length 254"),
]


@each_row(("plan", "field", "text"), BAD_PLANS)
async def test_what_is_wrong_with_a_plan_is_named_and_nothing_is_kept(
    api: httpx.AsyncClient, administrator: None, plan: Any, field: str, text: str
) -> None:
    answer = await add(api, plan)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 4001)
    assert {"field": field, "messages": [text]} in answer.json()["error"]["errors"][0]
    assert len(answer.content) < 2_000
    assert (await api.get(PLANS, headers=bearer(ADA_TOKEN))).json()["data"] == {"pricingTiers": [], "total": 0}


async def test_all_findings_of_a_plan_come_at_once(api: httpx.AsyncClient, administrator: None) -> None:
    answer = await add(api, {"type": "bytes", "tiers": [{"type": "paid", "messageLimit": 0}]})
    assert [one["field"] for one in answer.json()["error"]["errors"][0]] == [
        "type",
        "tiers.0.cost",
        "tiers.0.messageLimit",
        "tiers.0.name",
    ]


@each_row("body", [b"[]", b"7", b"{", b"\xff"])
async def test_a_plan_that_is_no_object_is_a_bad_request(
    api: httpx.AsyncClient, administrator: None, body: bytes
) -> None:
    answer = await api.post(PLANS, headers=bearer(ADA_TOKEN), content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


async def test_each_plan_is_the_next_version_and_the_newest_comes_first(
    api: httpx.AsyncClient, administrator: None
) -> None:
    assert [(await add(api)).json()["version"] for _ in range(3)] == [1, 2, 3]
    listed = (await api.get(PLANS, headers=bearer(ADA_TOKEN))).json()["data"]
    assert ([plan["version"] for plan in listed["pricingTiers"]], listed["total"]) == ([3, 2, 1], 3)


@pytest.fixture
async def three_plans(services: Services, api: httpx.AsyncClient, administrator: None) -> None:
    """The first is rejected, the second approved, and the third new."""
    for _ in range(3):
        await add(api)
    await services.monetization.plans.decide(LIGHT_TYPE, 1, "REJECTED")
    await services.monetization.plans.decide(LIGHT_TYPE, 2, "APPROVED")


@each_row(
    ("query", "versions"),
    [
        ("", [3, 2, 1]),
        ("?latest=true", [3]),
        ("?status=approved", [2]),
        ("?status=NEW", [3]),
        ("?status=REJECTED&latest=true", [1]),
        ("?status=PENDING", []),
    ],
)
async def test_plans_are_chosen_by_status_and_by_being_the_latest(
    api: httpx.AsyncClient, three_plans: None, query: str, versions: list[int]
) -> None:
    listed = (await api.get(PLANS + query, headers=bearer(ADA_TOKEN))).json()["data"]
    assert [plan["version"] for plan in listed["pricingTiers"]] == versions
    for plan in listed["pricingTiers"]:
        assert {tier["active"] for tier in plan["tiers"]} == {plan["version"] == 2}


async def test_a_plan_goes_from_new_over_pending_to_a_decision_and_stays_there(
    services: Services, api: httpx.AsyncClient, administrator: None
) -> None:
    await add(api)
    assert [plan.record.status for plan in await services.monetization.plans.undecided()] == ["NEW"]
    assert (await services.monetization.plans.decide(LIGHT_TYPE, 1, "PENDING")).record.status == "PENDING"
    assert (
        await services.monetization.plans.decide(LIGHT_TYPE, 1, "REJECTED", "too dear")
    ).record.comments == "too dear"
    assert await services.monetization.plans.undecided() == []
    with pytest.raises(Exception, match="The plan is REJECTED"):
        await services.monetization.plans.decide(LIGHT_TYPE, 1, "APPROVED")
    with pytest.raises(Exception, match="Not Found"):
        await services.monetization.plans.decide(LIGHT_TYPE, 2, "APPROVED")


@pytest.mark.parametrize(("decision", "words"), [("APPROVED", "approved"), ("REJECTED", "rejected")])
async def test_the_owners_hear_of_the_decision(
    services: Services, api: httpx.AsyncClient, administrator: None, decision: Any, words: str
) -> None:
    await add(api)
    await services.monetization.plans.decide(LIGHT_TYPE, 1, "PENDING")
    await services.monetization.plans.decide(LIGHT_TYPE, 1, decision)
    waiting = await services.core.database.read(
        lambda tx: [
            (row["recipient"], row["kind"])
            for row in tx.connection.execute("SELECT recipient, kind FROM mail WHERE next_on IS NOT NULL")
        ]
    )
    assert waiting == [("ada@example.org", MonetizationPlanDecided.kind)]


async def test_an_administrator_whom_no_mail_can_reach_holds_up_no_decision(
    services: Services, api: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await services.provisioning.apply({"users": [{"id": ADA, "email": "ada..example@example.org"}]})
    await add(api)
    assert (await services.monetization.plans.decide(LIGHT_TYPE, 1, "APPROVED")).record.status == "APPROVED"


REFUSED_CALLS = [
    ("GET", PLANS, None, 401),
    ("GET", PLANS, APPLICATION_TOKEN, 403),
    ("GET", PLANS, KITCHEN_TOKEN, 403),
    ("GET", "/pricing/devicetypes/none/pricingtiers", ADA_TOKEN, 404),
    ("GET", PLANS + "?status=OLD", ADA_TOKEN, 400),
    ("GET", PLANS + "?latest=perhaps", ADA_TOKEN, 400),
    ("POST", PLANS, BOB_TOKEN, 403),
    ("POST", PLANS, KITCHEN_TOKEN, 403),
    ("POST", "/pricing/devicetypes/none/pricingtiers", ADA_TOKEN, 404),
    ("GET", TIERS, BOB_TOKEN, 403),
    ("GET", TIERS, APPLICATION_TOKEN, 403),
    ("GET", f"/pricing/devices/{'f' * 32}/pricingtiers", ADA_TOKEN, 404),
    ("GET", f"/pricing/devices/{BOBS}/pricingtiers", ADA_TOKEN, 403),
    ("PUT", TIERS, BOB_TOKEN, 403),
    ("PUT", TIERS, ADA_TOKEN, 400),
    ("GET", UPGRADE, BOB_TOKEN, 403),
    ("GET", UPGRADE, KITCHEN_TOKEN, 403),
    ("GET", UPGRADE + "?action=steal", ADA_TOKEN, 400),
    ("GET", UPGRADE, ADA_TOKEN, 409),
]


@each_row(("method", "path", "token", "status"), REFUSED_CALLS)
async def test_calls_that_are_refused(
    api: httpx.AsyncClient, administrator: None, method: str, path: str, token: str | None, status: int
) -> None:
    headers = bearer(token) if token is not None else {}
    body = {"ptid": "f" * 32} if token == BOB_TOKEN and method == "PUT" else PLAN
    assert (
        await api.request(method, path, headers=headers, json=body if method != "GET" else None)
    ).status_code == status


@each_row(
    ("method", "path"),
    [
        ("POST", PLANS),
        ("GET", TIERS + "?active=perhaps"),
        ("PUT", TIERS),
        ("GET", UPGRADE + "?action=steal"),
    ],
)
async def test_whoever_may_not_is_told_nothing_of_what_is_wrong_with_the_call(
    api: httpx.AsyncClient, world: World, method: str, path: str
) -> None:
    answer = await api.request(method, path, headers=bearer(BOB_TOKEN), content=b"{" if method != "GET" else None)
    assert answer.status_code == 403


async def test_an_application_of_the_organization_may_add_plans(api: httpx.AsyncClient, world: World) -> None:
    assert (await add(api, token=APPLICATION_TOKEN)).status_code == 200


# --- Tiers ---


async def test_a_device_without_a_plan_has_no_tiers(api: httpx.AsyncClient, administrator: None) -> None:
    await add(api)  # not approved
    assert await tiers(api) == []


async def test_devices_of_a_type_with_an_approved_plan_are_on_its_free_tier(
    services: Services, api: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api)
    assert [(tier["name"], tier["active"]) for tier in await tiers(api)] == [("Free", True), ("Plus", False)]
    assert [tier["name"] for tier in await tiers(api, "?active=true")] == ["Free"]
    standing = services.limits.quotas.standing(await services.devices.registry.get(world.kitchen)).device
    assert standing is not None
    assert standing.limit == 150


async def billing_subscription_id(api: httpx.AsyncClient) -> str | None:
    answer = await api.get(f"/devicetypes/{LIGHT_TYPE}", headers=bearer(ADA_TOKEN))
    found: str | None = answer.json()["data"].get("billingSubscriptionId")
    return found


async def test_a_device_type_names_the_plan_that_is_approved(
    services: Services, api: httpx.AsyncClient, administrator: None
) -> None:
    added = (await add(api)).json()
    assert await billing_subscription_id(api) is None
    await services.monetization.plans.decide(LIGHT_TYPE, added["version"], "APPROVED")
    first = await billing_subscription_id(api)
    assert first is not None
    assert is_id(first)
    await add(api)
    assert await billing_subscription_id(api) == first
    await approved(services, api)
    assert await billing_subscription_id(api) not in {None, first}


async def test_a_device_type_names_the_plan_that_was_provisioned(
    services: Services, api: httpx.AsyncClient, world: World
) -> None:
    document = {"plans": [{"device_type": LIGHT_TYPE, "free_messages_per_day": 150, "paid_cost": "2.99"}]}
    await services.provisioning.apply(document)
    first = await billing_subscription_id(api)
    assert first is not None
    await services.provisioning.apply(document)
    assert await billing_subscription_id(api) == first


async def test_a_newer_plan_does_not_move_devices_that_have_a_tier(
    services: Services, api: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api)
    await approved(services, api, {"tiers": [FREE | {"name": "Small", "messageLimit": 10}]})
    assert [tier["name"] for tier in await tiers(api)] == ["Free", "Plus"]


async def test_a_device_that_comes_later_starts_on_the_newest_plan(
    services: Services, api: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api)
    await approved(services, api, {"tiers": [FREE | {"name": "Small", "messageLimit": 10}]})
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    late = await services.devices.inventory.create(NewDevice(owner=world.ada, type=light))
    found = await services.monetization.tiers.of_device(late)
    assert [(tier.record.name, tier.active) for tier in found] == [("Small", True)]


async def test_the_worker_puts_new_devices_under_their_quota_and_takes_deleted_ones_off(
    services: Services, api: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api)
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    late = await services.devices.inventory.create(NewDevice(owner=world.ada, type=light))
    while (standing := services.limits.quotas.standing(late).device) is None:
        await trio.lowlevel.checkpoint()
    assert standing.limit == 150
    await services.devices.inventory.delete(late)
    assert services.limits.quotas.standing(late).device is None


async def test_a_device_that_is_deleted_and_connected_again_has_to_be_paid_for_again(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api)
    await pay(pages, await upgrade_address(api))
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    again = await services.devices.inventory.create(
        NewDevice(owner=world.ada, type=await services.device_types.catalog.find(LIGHT_TYPE), name="Kitchen light")
    )
    free, paid = await services.monetization.tiers.of_device(again)
    assert free.active
    with pytest.raises(PermissionDenied):
        await services.monetization.tiers.select(again, paid.record.id)


async def test_the_paid_tier_needs_a_payment_and_the_free_one_none(
    services: Services, api: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    free, paid = [tier["ptid"] for tier in await tiers(api)]
    refused = await api.put(TIERS, headers=bearer(ADA_TOKEN), json={"ptid": paid})
    assert refused.status_code == 403
    chosen = await api.put(TIERS, headers=bearer(ADA_TOKEN), json={"ptid": free})
    assert (chosen.status_code, chosen.json()["data"]["did"], chosen.json()["data"]["active"]) == (200, KITCHEN, True)


async def test_a_tier_of_no_plan_of_the_device_is_refused(
    services: Services, api: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    answer = await api.put(TIERS, headers=bearer(ADA_TOKEN), json={"ptid": "f" * 32})
    assert answer.json()["error"]["errors"] == [[{"field": "ptid", "messages": [INVALID]}]]


# --- The upgrade ---


async def test_the_upgrade_address_leads_to_a_page_with_price_and_device(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    answer = await pages.get(await upgrade_address(api))
    assert answer.status_code == 200
    for shown in ("Kitchen light", "Plus", "2.99 USD", "No daily limit"):
        assert shown in answer.text
    assert answer.headers["Cache-Control"] == "no-store"


@each_row("mark", ["?", "&"])
@each_row("appended", [CALLBACK, quote(CALLBACK, safe="")])
async def test_an_application_may_append_its_address_with_a_question_mark(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None, mark: str, appended: str
) -> None:
    await approved(services, api)
    answer = await pages.get(f"{await upgrade_address(api, '')}{mark}redirect_uri={appended}")
    assert answer.status_code == 200
    assert f'name="redirect_uri" value="{CALLBACK}"' in answer.text


async def test_a_payment_waits_for_the_operator_and_ends_at_the_application(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api)
    begun = await pay(pages, await upgrade_address(api))
    assert begun.status_code == 302
    waiting = await pages.get(begun.headers["Location"])
    [payment] = await services.monetization.payments.pending()
    assert (waiting.status_code, payment.record.id in waiting.text) == (200, True)
    assert (payment.record.cost, payment.record.owner_share) == ("2.99", "2.09")

    await services.monetization.payments.decide(payment.record.id, "accepted")
    ended = await pages.get(begun.headers["Location"])
    assert (ended.status_code, ended.headers["Location"]) == (302, f"{CALLBACK}?status=accepted")
    assert [tier["name"] for tier in await tiers(api, "?active=true")] == ["Plus"]
    standing = services.limits.quotas.standing(await services.devices.registry.get(world.kitchen)).device
    assert standing is not None
    assert standing.limit == -1


async def test_the_paid_tier_removes_the_quota_whatever_number_its_plan_has(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None, world: World
) -> None:
    await approved(services, api, {"tiers": [FREE, PAID | {"messageLimit": 1000}]})
    address = await upgrade_address(api)
    assert "no daily limit" in (await pages.get(address)).text
    await pay(pages, address)
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    kitchen = await services.devices.registry.get(world.kitchen)

    def limit() -> int | None:
        standing = services.limits.quotas.standing(kitchen).device
        return None if standing is None else standing.limit

    assert limit() == -1
    services.limits.quotas.set_device_limit(world.kitchen, None)
    await services.monetization.tiers.resume()  # as after a restart
    assert limit() == -1


async def test_a_declined_payment_changes_nothing_and_says_so(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    begun = await pay(pages, await upgrade_address(api))
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "declined")
    assert (await pages.get(begun.headers["Location"])).headers["Location"] == f"{CALLBACK}?status=declined"
    assert [tier["name"] for tier in await tiers(api, "?active=true")] == ["Free"]
    with pytest.raises(Exception, match="The payment is declined"):
        await services.monetization.payments.decide(payment.record.id, "accepted")


async def test_limits_read_before_a_payment_do_not_undo_it(
    services: Services,
    api: httpx.AsyncClient,
    pages: httpx.AsyncClient,
    administrator: None,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await approved(services, api)
    await pay(pages, await upgrade_address(api))
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    reads = []

    def limits(store: MonetizationStore, device_type: DeviceTypeKey | None = None) -> dict[DeviceKey, int]:
        reads.append(device_type)
        if len(reads) > 1:
            return real(store, device_type)
        services.monetization.tiers.tier_changed(world.kitchen, payment.tier)  # meanwhile
        return {world.kitchen: 150}  # as it was before the payment

    real = MonetizationStore.limits
    monkeypatch.setattr(MonetizationStore, "limits", limits)
    await services.monetization.tiers.resume()
    standing = services.limits.quotas.standing(await services.devices.registry.get(world.kitchen)).device
    assert standing is not None
    assert (standing.limit, len(reads)) == (-1, 2)


async def test_a_payment_for_a_device_that_was_deleted_meanwhile_gives_it_no_quota(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    await pay(pages, await upgrade_address(api))
    [payment] = await services.monetization.payments.pending()
    kitchen = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.delete(kitchen)
    assert (await services.monetization.payments.decide(payment.record.id, "accepted")).record.status == "refund_due"
    assert services.limits.quotas.standing(kitchen).device is None


async def test_who_has_paid_may_go_to_the_free_tier_and_back(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    await pay(pages, await upgrade_address(api))
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    free, paid = [tier["ptid"] for tier in await tiers(api)]
    for ptid in (free, paid):
        assert (await api.put(TIERS, headers=bearer(ADA_TOKEN), json={"ptid": ptid})).status_code == 200
        assert [tier["ptid"] for tier in await tiers(api, "?active=1")] == [ptid]


async def test_who_has_paid_and_went_back_to_the_free_tier_cannot_pay_again(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    addresses = [await upgrade_address(api) for _ in range(2)]
    await pay(pages, addresses[0])
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    free, _ = await tiers(api)
    await api.put(TIERS, headers=bearer(ADA_TOKEN), json={"ptid": free["ptid"]})
    refused = await pay(pages, addresses[1])
    assert (refused.status_code, "paid for already" in refused.text) == (409, True)
    assert (await api.get(UPGRADE, headers=bearer(ADA_TOKEN))).status_code == 409
    assert await services.monetization.payments.pending() == []


async def test_a_second_address_goes_on_with_the_payment_that_waits_for_the_operator(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    """The user may already have paid with the first one's reference."""
    await approved(services, api)
    first, second = [await upgrade_address(api) for _ in range(2)]
    await pay(pages, first)
    [payment] = await services.monetization.payments.pending()
    begun = await pay(pages, second)
    assert payment.record.id in (await pages.get(begun.headers["Location"])).text
    assert [one.record.id for one in await services.monetization.payments.pending()] == [payment.record.id]

    await services.monetization.payments.decide(payment.record.id, "accepted")
    assert (await pages.get(begun.headers["Location"])).headers["Location"] == f"{CALLBACK}?status=accepted"


async def test_on_the_paid_tier_there_is_nothing_to_upgrade_to(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    await pay(pages, await upgrade_address(api))
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    assert (await api.get(UPGRADE, headers=bearer(ADA_TOKEN))).status_code == 409


async def test_an_upgrade_address_works_once(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    address = await upgrade_address(api)
    assert (await pay(pages, address)).status_code == 302
    assert (await pay(pages, address)).status_code == 410
    assert (await pages.get(address)).status_code == 410
    assert len(await services.monetization.payments.pending()) == 1


async def test_an_upgrade_address_ends_after_fifteen_minutes(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None, fake_clock: FakeClock
) -> None:
    await approved(services, api)
    address = await upgrade_address(api)
    fake_clock.advance(UPGRADE_TOKEN_SECONDS * 1000)
    assert (await pay(pages, address)).status_code == 410


async def test_an_upgrade_address_ends_with_its_access_token(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    address = await upgrade_address(api)
    await services.core.database.write(lambda tx: tx.accounts.remove_token(token_hash(ADA_TOKEN)))
    services.core.router.publish(TokenRevoked(token_hash(ADA_TOKEN)))
    assert (await pages.get(address)).status_code == 410
    assert (await pay(pages, address)).status_code == 410


@each_row("redirect_uri", ["https://evil.example", CALLBACK + "/more", "javascript:alert(1)"])
async def test_a_browser_is_sent_to_registered_addresses_only(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None, redirect_uri: str
) -> None:
    await approved(services, api)
    address = await upgrade_address(api, redirect_uri)
    assert (await pages.get(address)).status_code == 400
    assert (await pay(pages, address)).status_code == 400
    assert await services.monetization.payments.pending() == []


@each_row("query", ["", "token=", "token=x", f"token={'f' * 32}"])
async def test_an_address_that_nobody_gave_out_is_gone(pages: httpx.AsyncClient, query: str) -> None:
    assert (await pages.get(f"/accounts/pricing/upgrade?{query}")).status_code == 410


async def test_without_a_redirect_the_page_itself_says_how_it_ended(
    services: Services, api: httpx.AsyncClient, pages: httpx.AsyncClient, administrator: None
) -> None:
    await approved(services, api)
    begun = await pay(pages, await upgrade_address(api, ""))
    [payment] = await services.monetization.payments.pending()
    await services.monetization.payments.decide(payment.record.id, "accepted")
    assert "Plus is active now" in (await pages.get(begun.headers["Location"])).text


async def test_nobody_but_a_processor_may_notify(pages: httpx.AsyncClient) -> None:
    assert (await pages.post("/accounts/pricing/notifications", json={"type": "x"})).status_code == 400
