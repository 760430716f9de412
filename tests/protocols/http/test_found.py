"""Found devices on REST and on the control socket (reference 16.9)."""

import httpx
import pytest

from broker.services import Services
from config.settings import Discover, Limits, Mqtt, Settings
from protocols.control.found import FOUND_COMMANDS
from storage.keys import OrganizationKey
from tests.factories import ADA, ADA_TOKEN, BOB, BOB_TOKEN, BOBS, KITCHEN, World
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_order_of_checks import found_devices


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        limits=Limits(rate_limits="off", quotas="off"),
        mqtt=Mqtt(topics="open"),
        discover=(Discover(KITCHEN, "ada@example.org"), Discover(BOBS, "bob@example.org")),
    )


async def test_what_is_found_is_listed_accepted_and_ignored(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    his, hers = await found_devices(services, BOBS, KITCHEN)
    ada, bob = bearer(ADA_TOKEN), bearer(BOB_TOKEN)
    (one,) = (await api.get(f"/users/{ADA}/found", headers=ada)).json()["data"]["found"]
    assert (one["id"], one["client"], one["status"], one["fields"]) == (hers, KITCHEN, "FOUND", ["temperature"])
    assert (await api.get(f"/users/{BOB}/found", headers=ada)).status_code == 403
    (other,) = (await api.get(f"/users/{BOB}/found", headers=bob)).json()["data"]["found"]
    assert other["id"] == his
    for headers, id_, status in ((ada, his, 403), (bob, hers, 403), (ada, hers, 409), (ada, "0" * 32, 404)):
        answer = await api.put(f"/found/{id_}", headers=headers, json={"status": "ACCEPTED"})
        assert answer.status_code == status
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "developer"))
    accepted = (await api.put(f"/found/{hers}", headers=ada, json={"status": "accepted"})).json()["data"]
    device = await services.devices.registry.find(accepted["did"])
    assert (accepted["status"], device.owner) == ("ACCEPTED", world.ada)
    ignored = (await api.put(f"/found/{hers}", headers=ada, json={"status": "IGNORED"})).json()["data"]
    assert ignored["status"] == "IGNORED"
    assert "did" not in ignored
    assert (await api.put(f"/found/{hers}", headers=ada, json={"status": "x"})).status_code == 400


async def test_operators_list_and_accept(services: Services, world: World) -> None:
    (hers,) = await found_devices(services, KITCHEN)
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "developer"))
    listed = await FOUND_COMMANDS["found list"](services, {"owner": "ada@example.org"})
    assert [one.id for one in listed] == [hers]  # type: ignore[attr-defined]
    accepted = await FOUND_COMMANDS["found accept"](services, {"found": hers})
    assert accepted.device  # type: ignore[attr-defined]
    ignored = await FOUND_COMMANDS["found ignore"](services, {"found": hers})
    assert (ignored.status, ignored.device) == ("IGNORED", "")  # type: ignore[attr-defined]
