"""Alarms over REST: of whose values they tell, and to whom (reference 12.12)."""

from typing import Any

import httpx
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from storage.records import GrantRecord
from tests.broker.rules.home import body, when
from tests.factories import ADA, ADA_TOKEN, BOBS, KITCHEN, World, allow
from tests.protocols.http.conftest import bearer

pytestmark = pytest.mark.slow


async def says(services: Services, sdid: str, data: bytes) -> None:
    services.messages.ingest.submit(await services.devices.registry.find(sdid), data)
    await services.messages.ingest.wait_committed()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("where", ["condition", "text"])
async def test_values_of_another_device_are_told_for_as_long_as_it_is_shared(
    api: httpx.AsyncClient, services: Services, world: World, where: str
) -> None:
    await allow(services, GrantRecord(world.ada, world.application, None, read=True, write=True, profile=True))
    bobs = await services.devices.registry.find(BOBS)
    await services.provisioning.apply({"shares": [{"device": BOBS, "with": ADA}]})
    of_bob = {"sdid": BOBS, "field": "intensity"}
    text: Any = {"concat": [{"value": "Bob has "}, {"valueFrom": of_bob}]} if where == "text" else "It is dark"
    seen = [when("intensity", "<", 10)] + ([when("intensity", "<", 90, BOBS)] if where == "condition" else [])
    rule = body(seen) | {"then": [], "alarm": {"severity": "critical", "text": text}}
    made = await api.post("/rules", json={"name": "Dark", "rule": rule}, headers=bearer(ADA_TOKEN))
    assert made.status_code == 200, made.text
    await says(services, BOBS, b'{"intensity":77}')
    await says(services, KITCHEN, b'{"intensity":3}')
    (alarm,) = (await api.get("/alarms", headers=bearer(ADA_TOKEN))).json()["data"]
    assert "77" in (alarm["text"] if where == "text" else str(alarm["conditions"]))
    assert all(one["text"] for one in alarm["conditions"])
    link = f"/../accounts/alarm?code={services.alarms.links.code(alarm['id'])}"
    assert alarm["text"] in (await api.get(link)).text
    (share,), _ = await services.devices.shares.of_device(bobs, offset=0, count=1)
    await services.devices.shares.remove(share.id)
    await wait_all_tasks_blocked()
    (alarm,) = (await api.get(f"/alarms?did={KITCHEN}", headers=bearer(ADA_TOKEN))).json()["data"]
    assert "text" not in alarm
    assert "conditions" not in alarm
    assert "77" not in (await api.get(link)).text
