"""A real daemon and a third party's cloud: provisioning, linking, fetches, notifications, and a kill."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.daemon import (
    DASHBOARD,
    LIGHT_TYPE,
    USER_TOKEN,
    Daemon,
    bearer,
    command_output,
    device_id,
    running_daemon,
)
from tests.third_party_cloud import ACCOUNT, ThirdPartyCloud

REFERER = "https://app.example.org/"
DASHBOARD_TABLES = f"""
[[organizations]]
name = "Acme"

[[applications]]
id = "{DASHBOARD}"
name = "Dashboard"
organization = "Acme"
redirect_uri = "https://app.example.org/callback"

"""


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("TRUNKLINE_PUBLIC_URL", "https://gateway.example.org")
    with running_daemon(tmp_path, devices=1, settings="[outbound]\nallow_private_addresses = true\n") as daemon:
        yield daemon


async def test_a_device_in_a_third_partys_cloud(gateway: Daemon, tmp_path: Path, nursery: trio.Nursery) -> None:
    cloud = ThirdPartyCloud(readings=[{"at": 1000, "temp": 20.5}])
    await nursery.start(cloud.run)
    provision(gateway, tmp_path / "connector.toml", cloud)
    device = device_id(0)
    async with httpx.AsyncClient(headers=bearer(USER_TOKEN)) as browser:
        record = (await browser.get(f"{gateway.base_url}/devices/{device}")).json()["data"]
        assert (record["needProviderAuth"], record["cloudAuthorization"]) == (True, "UNAUTHORIZED")

        begun = await browser.post(f"{gateway.base_url}/devices/{device}/providerauth", headers={"Referer": REFERER})
        gateway.kill()  # while the user is at the third party
        decided = await browser.get(begun.headers["Location"])
        gateway.start()
        back = httpx.URL(decided.headers["Location"])
        assert str(back).startswith("https://gateway.example.org/v1.1/")
        host, port = gateway.host_port("http")  # where a proxy would forward to
        back = back.copy_with(scheme="http", host=host, port=port)
        assert (await browser.get(back)).headers["Location"] == REFERER

        await until(browser, f"{gateway.base_url}/messages?sdid={device}&startDate=0&endDate=2000", 1)
        hook = f"{gateway.base_url}/cloudconnectors/{LIGHT_TYPE}/thirdpartynotifications"
        notified = await browser.post(hook, **cloud.notification({"changes": [{"user": ACCOUNT, "on": True}]}))
        assert notified.status_code == 200
        gateway.kill()
        gateway.start()
        found = await browser.get(f"{gateway.base_url}/messages/last?sdids={device}")
        assert found.json()["data"][0]["data"] == {"state": True}

        action = {"ddid": device, "data": {"actions": [{"name": "setOn"}]}}
        await browser.post(f"{gateway.base_url}/actions", json=action)
        await cloud.called(f"/lamps/{device}")
        assert cloud.bodies(f"/lamps/{device}") == [{"on": True}]
        ended = await browser.delete(f"{gateway.base_url}/devices/{device}/providerauth")
        assert ended.json()["data"]["needProviderAuth"] is True


def provision(gateway: Daemon, file: Path, cloud: ThirdPartyCloud) -> None:
    file.write_text(DASHBOARD_TABLES + cloud.provision_file(), encoding="utf-8")
    command_output("provision", file, "--config", gateway.config)


async def until(browser: httpx.AsyncClient, url: str, size: int) -> list[dict[str, Any]]:
    """The page, once it has this many entries."""
    while True:
        page = (await browser.get(url)).json()
        if page["size"] >= size:
            found: list[dict[str, Any]] = page["data"]
            return found
