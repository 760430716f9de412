"""Rules and subscriptions on a person's devices, and names of ids (reference 4.10 and 12.1)."""

from typing import Any

import httpx
import pytest
import trio

from broker.accounts.tokens import Caller
from broker.rules.rulebook import NewRule
from broker.services import Services
from tests.factories import ADA, ADA_TOKEN, BOB, BOB_TOKEN, BOBS, DASHBOARD, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, World
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_operator import console_token
from tests.protocols.http.test_order_of_checks import a_scene

_RULE = (
    b'{"if":{"sdid":"%s","field":"state","operator":"=","operand":{"value":true}},'
    b'"then":{"ddid":"%s","action":"setOn"}}'
)


async def rule_of(services: Services, caller: Caller, device: str, name: str = "Rule") -> str:
    owner = await services.accounts.users.find(caller.user_id or "")
    body = _RULE % (device.encode(), device.encode())
    return (await services.rules.rulebook.create(caller, owner, NewRule(name, body))).id


async def callers(services: Services) -> tuple[Caller, Caller]:
    ada, bob = [await services.accounts.tokens.caller(token) for token in (ADA_TOKEN, BOB_TOKEN)]
    return ada, bob


async def data_of(api: httpx.AsyncClient, path: str, token: str, status: int = 200) -> Any:
    answer = await api.get(path, headers=bearer(token))
    assert answer.status_code == status, answer.text
    return answer.json().get("data")


async def test_everything_that_acts_on_ones_devices_is_listed_with_the_application_that_made_it(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    ada, bob = await callers(services)
    await services.provisioning.apply({"shares": [{"device": KITCHEN, "with": BOB}]})
    mine, scene = await rule_of(services, ada, KITCHEN, "Mine"), await a_scene(services, ada, KITCHEN)
    bobs = await rule_of(services, bob, KITCHEN, "Secret name")
    elsewhere = await rule_of(services, bob, BOBS)
    found = (await data_of(api, f"/users/{ADA}/automations", await console_token(services, ADA)))["automations"]
    by_id = {one["id"]: one for one in found}
    assert set(by_id) == {mine, scene, bobs}
    assert elsewhere not in by_id
    assert (by_id[mine]["kind"], by_id[mine]["name"], by_id[mine]["application"]["id"]) == ("rule", "Mine", DASHBOARD)
    assert by_id[scene]["kind"] == "scene"
    assert by_id[mine]["devices"] == [{"id": KITCHEN, "name": by_id[mine]["devices"][0]["name"]}]
    assert by_id[bobs]["user"]["id"] == BOB
    assert "name" not in by_id[bobs], "how another person calls it is not told"
    assert not by_id[mine]["isOfConsole"]


@pytest.mark.both_engines
async def test_a_rule_whose_device_is_shared_no_more_is_no_longer_listed(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    _, bob = await callers(services)
    await services.provisioning.apply({"shares": [{"device": KITCHEN, "with": BOB}]})
    await rule_of(services, bob, KITCHEN)
    token = await console_token(services, ADA)
    assert len((await data_of(api, f"/users/{ADA}/automations", token))["automations"]) == 1
    device = await services.devices.registry.find(KITCHEN)
    (record,), _ = await services.devices.shares.of_device(device, offset=0, count=1)
    await services.devices.shares.remove(record.id)
    with trio.fail_after(10):
        while (await data_of(api, f"/users/{ADA}/automations", token))["automations"]:
            await trio.lowlevel.checkpoint()


async def test_the_console_turns_off_what_another_application_made_and_changes_nothing_else_of_it(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    ada, _ = await callers(services)
    rule = await rule_of(services, ada, KITCHEN)
    token = await console_token(services, ADA)
    shown = await data_of(api, f"/rules/{rule}", token)
    assert (shown["scope"], shown["name"]) == ("thisApplication", "Rule")
    for body, status in (
        ({"enabled": False}, 200),
        ({"name": "Other"}, 403),
        ({"enabled": True, "name": "Other"}, 403),
    ):
        answer = await api.put(f"/rules/{rule}", json=body, headers=bearer(token))
        assert answer.status_code == status, body
    assert (await data_of(api, f"/rules/{rule}", token))["enabled"] is False
    assert (await api.delete(f"/rules/{rule}", headers=bearer(token))).status_code == 403
    bobs = await console_token(services, BOB)
    assert (await api.put(f"/rules/{rule}", json={"enabled": True}, headers=bearer(bobs))).status_code == 403


async def test_the_console_opens_an_invalid_rule_of_another_application(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    ada, _ = await callers(services)
    rule = await rule_of(services, ada, KITCHEN)
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.delete(device)
    token = await console_token(services, ADA)
    with trio.fail_after(10):
        while (shown := await data_of(api, f"/rules/{rule}?includeBody=true", token))["state"] != "invalid":
            await trio.lowlevel.checkpoint()
    assert shown["rule"]["if"]["sdid"] == KITCHEN


@pytest.mark.both_engines
async def test_names_are_told_to_those_who_may_know_them(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    ada, _ = await callers(services)
    rule = await rule_of(services, ada, KITCHEN, "Mine")
    described = {"callback_url": "https://collector.example.org/", "description": "To the collector", "id": "5" * 32}
    entry = {"owner": ADA, "application": DASHBOARD, "sdid": KITCHEN, **described}
    await services.provisioning.apply({"subscriptions": [entry]})
    asked = ",".join((KITCHEN, BOBS, LIGHT_TYPE, DASHBOARD, ADA, BOB, rule, "5" * 32, "9" * 32, "no id"))

    async def known_to(user: str) -> dict[str, str]:
        found = (await data_of(api, f"/names?ids={asked}", await console_token(services, user)))["names"]
        return {one["id"]: one["kind"] for one in found}

    everybodys = {LIGHT_TYPE: "device type", DASHBOARD: "application"}
    assert (await known_to(ADA)).items() >= ({KITCHEN: "device", ADA: "user", rule: "rule"} | everybodys).items()
    assert BOBS not in await known_to(ADA)
    assert (await known_to(ADA))["5" * 32] == "subscription"
    assert await known_to(BOB) == {BOBS: "device", BOB: "user"} | everybodys
    await services.provisioning.apply({"shares": [{"device": KITCHEN, "with": BOB}]})
    assert await known_to(BOB) == {BOBS: "device", BOB: "user", KITCHEN: "device", ADA: "user"} | everybodys
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.delete(device)
    for user in (ADA, BOB):
        found = (await data_of(api, f"/names?ids={KITCHEN}", await console_token(services, user)))["names"]
        assert [one["isGone"] for one in found] == [True], "the name of what is missing"


async def test_names_are_for_the_console_and_asked_for_in_parts(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    for token in (ADA_TOKEN, KITCHEN_TOKEN):
        await data_of(api, f"/names?ids={KITCHEN}", token, 403)
    many = ",".join(f"{number:032x}" for number in range(101))
    await data_of(api, f"/names?ids={many}", await console_token(services, ADA), 400)
