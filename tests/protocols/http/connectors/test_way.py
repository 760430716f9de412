"""The life of a linked device: it is linked, its data are fetched, it gets Actions, and it is unlinked."""

import httpx
import msgspec
import pytest
from quart import Response, request

from broker.facts import (
    DeviceActionDelivered,
    DeviceActionFact,
    DeviceActionFailed,
    DeviceFact,
    DeviceUpdated,
    ProviderAuthRemoved,
)
from broker.services import Services
from storage.keys import DeviceKey
from storage.records import AuditFilter, ConnectorRecord
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, NOW_MS, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import (
    NOTIFICATIONS,
    PROVIDER_AUTH,
    REFERER,
    Browser,
    pull,
    query_of,
    quiet,
    signed,
)
from tests.third_party_cloud import ACCOUNT, CLIENT, ThirdPartyCloud

pytestmark = pytest.mark.slow


MINUTE_MS = 60_000


async def test_a_device_of_a_connector_type_needs_authorization(browser: Browser) -> None:
    record = await browser.device()
    assert (record["cloudAuthorization"], record["needProviderAuth"]) == ("UNAUTHORIZED", True)


async def test_the_browser_is_sent_to_the_third_party(browser: Browser, cloud: ThirdPartyCloud) -> None:
    begun = await browser.begin()
    assert begun.status_code == 302
    assert begun.headers["Location"].startswith(f"{cloud.url}/authorize?")
    assert begun.headers["Cache-Control"] == "no-store"
    asked = query_of(begun.headers["Location"])
    assert asked["redirect_uri"] == f"{browser.services.core.site.origin}/v1.1/cloudconnectors/{LIGHT_TYPE}/auth"
    assert (asked["client_id"], asked["scope"], asked["code_challenge_method"]) == (CLIENT, "readings lamps", "S256")


async def test_the_device_is_authorized_when_the_user_agrees(browser: Browser, cloud: ThirdPartyCloud) -> None:
    back = await browser.authorize()
    assert (back.status_code, back.headers["Location"]) == (302, REFERER)
    record = await browser.device()
    assert (record["cloudAuthorization"], record["needProviderAuth"]) == ("AUTHORIZED", False)
    assert cloud.subscriptions == {KITCHEN: f"{browser.services.core.site.origin}/v1.1{NOTIFICATIONS}"}


async def test_credentials_are_encrypted_in_the_store(browser: Browser, cloud: ThirdPartyCloud) -> None:
    await browser.authorize()
    link = await browser.services.core.database.read(lambda tx: tx.connectors.link(tx.devices.by_id(KITCHEN).key))  # type: ignore[union-attr]
    assert link is not None
    for secret in (*cloud.access, *cloud.refresh, ACCOUNT):
        assert secret.encode() not in link.sealed
        assert secret.encode() != link.account


async def test_fetched_readings_become_messages(browser: Browser, cloud: ThirdPartyCloud) -> None:
    cloud.readings = [{"at": NOW_MS - 2000, "temp": 20.5}, {"at": NOW_MS - 1000, "temp": 21}]
    await browser.authorize()
    await pull(browser.services)
    assert [(one["ts"], one["data"]) for one in await browser.messages()] == [
        (NOW_MS - 2000, {"temperature": 20.5}),
        (NOW_MS - 1000, {"temperature": 21.0}),
    ]


async def test_a_device_is_pulled_once_an_hour(browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock) -> None:
    await browser.authorize()
    for minutes, pulls in ((0, 1), (59, 1), (1, 2), (1, 2)):
        fake_clock.advance(minutes * MINUTE_MS)
        await pull(browser.services)
        assert cloud.paths().count("/readings") == pulls


async def test_a_reading_that_is_still_there_is_not_stored_again(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    cloud.readings = [{"at": NOW_MS - 2000, "temp": 20}, {"at": NOW_MS - 1000, "temp": 21, "sensor": "cellar"}]
    await browser.authorize()
    await pull(browser.services)
    fake_clock.advance(60 * MINUTE_MS)
    cloud.readings.append({"at": NOW_MS + 1000, "temp": 22})
    await pull(browser.services)
    assert [one["ts"] for one in await browser.messages()] == [NOW_MS - 2000, NOW_MS + 1000]


async def test_sub_devices_are_created_on_first_use(browser: Browser, cloud: ThirdPartyCloud) -> None:
    cloud.readings = [{"at": 5, "temp": 1, "sensor": "cellar"}, {"at": 6, "temp": 2, "sensor": "cellar"}]
    await browser.authorize()
    await pull(browser.services)
    cellar, kitchen = await browser.device_with("cellar"), await browser.device()
    assert (cellar["uid"], cellar["dtid"], cellar["cloudAuthorization"]) == (kitchen["uid"], LIGHT_TYPE, "AUTHORIZED")
    assert [one["ts"] for one in await browser.messages(cellar["id"])] == [5, 6]
    assert await browser.messages() == []


async def test_a_notification_is_stored_before_it_is_answered(api: httpx.AsyncClient, browser: Browser) -> None:
    await browser.authorize()
    change = {"user": ACCOUNT, "on": True, "at": 7}
    answer = await api.post(NOTIFICATIONS, **signed({"changes": [change, change | {"lamp": "porch", "on": False}]}))
    assert (answer.status_code, answer.content) == (200, b"")
    assert [(one["ts"], one["data"]) for one in await browser.messages()] == [(7, {"state": True})]
    porch = await browser.device_with("porch")
    assert [one["data"] for one in await browser.messages(porch["id"])] == [{"state": False}]


async def test_an_action_goes_to_the_third_party(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    await browser.authorize()
    await api.post(
        "/actions", headers=bearer(ADA_TOKEN), json={"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    )
    await quiet(browser.services)
    assert cloud.bodies(f"/lamps/{KITCHEN}") == [{"on": True}]


async def test_an_action_to_a_sub_device_goes_by_its_external_id(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    await browser.authorize()
    await api.post(NOTIFICATIONS, **signed({"changes": [{"user": ACCOUNT, "on": True, "at": 7, "lamp": "a/b"}]}))
    lamp = await browser.device_with("a/b")
    dim = {"name": "setLevel", "parameters": {"level": 40}}
    await api.post("/actions", headers=bearer(ADA_TOKEN), json={"ddid": lamp["id"], "data": {"actions": [dim]}})
    await quiet(browser.services)
    assert cloud.calls[-1][0] == "POST"
    assert cloud.calls[-1][2] == {"level": 40}
    assert "/lamps/a" in cloud.calls[-1][1]


async def test_an_action_without_authorization_is_stored_but_not_sent(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    body = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    assert (await api.post("/actions", headers=bearer(ADA_TOKEN), json=body)).status_code == 200
    await quiet(browser.services)
    assert cloud.calls == []
    await browser.authorize()
    await quiet(browser.services)
    assert f"/lamps/{KITCHEN}" not in cloud.paths()


async def test_deleting_the_authorization_unsubscribes_and_deletes_credentials(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    ended: list[ProviderAuthRemoved] = []
    browser.services.core.router.subscribe(ProviderAuthRemoved, ended.append)
    await browser.authorize()
    answer = await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200
    record = answer.json()["data"]
    assert (record["id"], record["cloudAuthorization"], record["needProviderAuth"]) == (KITCHEN, "UNAUTHORIZED", True)
    assert record == await browser.device()
    assert cloud.subscriptions == {}
    assert await browser.services.core.database.read(lambda tx: tx.connectors.link(DeviceKey(1))) is None
    assert len(ended) == 1
    again = await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    assert again.status_code == 200


async def test_an_authorization_can_be_revoked_without_the_plug_in(
    api: httpx.AsyncClient, browser: Browser, world: World
) -> None:
    await browser.authorize()
    broken = ConnectorRecord(world.light_type, "removed", browser.services.core.vault.seal('{"plugin":"removed"}'))
    await browser.services.core.database.write(lambda tx: tx.connectors.put_connector(broken))
    await browser.services.connectors.catalog.reload()
    assert (await browser.begin()).status_code == 503
    answer = await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    assert answer.json()["data"]["needProviderAuth"] is True


async def test_deleting_the_device_unsubscribes(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    await browser.authorize()
    await api.delete(f"/devices/{KITCHEN}", headers=bearer(ADA_TOKEN))
    await browser.services.connectors.clean_up()
    assert cloud.subscriptions == {}
    links = await browser.services.core.database.read(lambda tx: tx.connectors.orphans(limit=10))
    assert links == []


class Events:
    """Events about devices on the feed, with `mid` where an event has one."""

    def __init__(self, services: Services) -> None:
        self.heard: list[tuple[str, str, str | None]] = []
        for kind in (DeviceUpdated, DeviceActionDelivered, DeviceActionFailed):
            services.core.router.subscribe(kind, self._hear)

    def _hear(self, fact: DeviceFact) -> None:
        mid = fact.mid if isinstance(fact, DeviceActionFact) else None
        self.heard.append((type(fact).__name__, fact.device_id, mid))


async def test_begin_and_end_of_a_link_are_events_of_the_device_and_its_sub_devices(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    cloud.readings = [{"at": 5, "temp": 1, "sensor": "cellar"}]
    told = Events(browser.services)
    await browser.authorize()
    assert told.heard == [("DeviceUpdated", KITCHEN, None)]
    await pull(browser.services)
    cellar = (await browser.device_with("cellar"))["id"]
    await browser.authorize()  # again: nothing changes
    assert len(told.heard) == 1
    await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    assert sorted(told.heard[1:]) == sorted([("DeviceUpdated", KITCHEN, None), ("DeviceUpdated", cellar, None)])
    await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    assert len(told.heard) == 3
    entries = await browser.services.core.audit.find(AuditFilter(0, 2**62, 1000))
    links = [(entry.event, entry.object) for entry in entries if entry.event.startswith("link_")]
    about = f"device {KITCHEN}"
    assert sorted(links) == [("link_begun", about), ("link_begun", about), ("link_ended", about)]


@pytest.mark.both_engines
async def test_an_action_that_is_not_taken_at_once_goes_in_order_and_its_end_is_an_event(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.connectors.sending._WAITS", (0.0, 0.0))
    statuses = iter([503, 504, 200, 200, 400])
    levels: list[int] = []

    async def lamp() -> Response:
        status = next(statuses)
        if status == 200:
            levels.append((await request.get_json())["level"])
        return Response("{}", status)

    await browser.authorize()
    await api.post(NOTIFICATIONS, **signed({"changes": [{"user": ACCOUNT, "on": True, "at": 7, "lamp": "l"}]}))
    cloud.answers["/lamps/l"] = lamp
    told, mids = Events(browser.services), []
    ddid = (await browser.device_with("l"))["id"]
    for level in (1, 2, 3):
        data = {"actions": [{"name": "setLevel", "parameters": {"level": level}}]}
        answer = await api.post("/actions", headers=bearer(ADA_TOKEN), json={"ddid": ddid, "data": data})
        mids.append(answer.json()["data"]["mid"])
    await quiet(browser.services)
    assert levels == [1, 2]
    assert told.heard == [("DeviceActionDelivered", ddid, mids[0]), ("DeviceActionFailed", ddid, mids[2])]


async def test_a_device_links_itself_with_a_token_of_no_application(browser: Browser) -> None:
    for referer, status in ((REFERER, 302), ("https://elsewhere.example.org/", 400)):
        begun = await browser.begin(headers=bearer(KITCHEN_TOKEN) | {"Referer": referer})
        assert begun.status_code == status, begun.text
    begun = await browser.begin(headers=bearer(KITCHEN_TOKEN))
    assert (await browser.agree(begun)).headers["Location"] == REFERER
    assert (await browser.device())["needProviderAuth"] is False


async def test_times_that_an_earlier_version_kept_are_not_stored_again(
    browser: Browser, cloud: ThirdPartyCloud
) -> None:
    await browser.authorize()
    vault, database = browser.services.core.vault, browser.services.core.database
    link = await database.read(lambda tx: tx.connectors.link(tx.devices.by_id(KITCHEN).key))  # type: ignore[union-attr]
    assert link is not None
    former = msgspec.json.decode(vault.open(link.sealed)) | {"remembered": {"since.0": '{"":7}', "since.x": "y"}}
    sealed = vault.seal(msgspec.json.encode(former).decode())
    await database.write(
        lambda tx: tx.connectors.update_link(link.device, linked_on=link.linked_on, account=link.account, sealed=sealed)
    )
    cloud.readings = [{"at": at, "temp": at} for at in (6, 7, 8)]
    cloud.readings.append({"at": 3, "temp": 3, "sensor": "cellar"})
    await pull(browser.services)
    assert [one["ts"] for one in await browser.messages()] == [8]
