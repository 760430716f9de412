from contextlib import ExitStack

import httpx
import pytest

from broker.services import Services
from tests.factories import ADA, ADA_TOKEN, BOB_TOKEN, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, NOW_MS
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer

DEVICE = f"/devices/{KITCHEN}"
RECORD = {
    "id": KITCHEN,
    "uid": ADA,
    "dtid": LIGHT_TYPE,
    "name": "Kitchen light",
    "manifestVersion": 1,
    "manifestVersionPolicy": "LATEST",
    "needProviderAuth": False,
    "cloudAuthorization": "NO_AUTHORIZATION",
    "eid": None,
    "certificateSignature": None,
    "certificateInfo": None,
    "createdOn": 1,
    "connected": True,
    "sharedWithOthers": False,
}


async def test_the_device_record(api: httpx.AsyncClient) -> None:
    assert (await api.get(DEVICE, headers=bearer(ADA_TOKEN))).json() == {"data": RECORD}


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("includeProperties=true", True),
        ("properties=1", True),
        ("includeProperties=TRUE", True),
        ("includeProperties=false", False),
        ("includeProperties=", False),
        ("includeproperties=true", False),
    ],
)
async def test_properties_are_shown_when_asked_for(api: httpx.AsyncClient, query: str, shown: bool) -> None:
    record = (await api.get(f"{DEVICE}?{query}", headers=bearer(ADA_TOKEN))).json()["data"]
    assert record == RECORD | ({"properties": {}} if shown else {})


async def test_a_query_that_is_no_boolean_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.get(f"{DEVICE}?includeProperties=maybe", headers=bearer(ADA_TOKEN))
    assert answer.json()["error"]["errors"] == [[{"field": "includeProperties", "messages": ["Boolean field only"]}]]


@pytest.mark.parametrize("path", ["", "/status"])
@pytest.mark.parametrize(
    ("device", "token", "status"),
    [("ff" * 16, ADA_TOKEN, 404), (KITCHEN.upper() + "x", ADA_TOKEN, 404), (KITCHEN, BOB_TOKEN, 403)],
)
async def test_unknown_is_404_and_others_are_403(
    api: httpx.AsyncClient, path: str, device: str, token: str, status: int
) -> None:
    answer = await api.get(f"/devices/{device}{path}?includeSnapshot=maybe", headers=bearer(token))
    assert answer.status_code == status


async def test_the_status_of_a_device_that_never_did_anything(api: httpx.AsyncClient) -> None:
    answer = await api.get(f"{DEVICE}/status", headers=bearer(KITCHEN_TOKEN))
    assert answer.json() == {"did": KITCHEN, "data": {"availability": "unknown", "snapshot": {}}}


async def test_the_status_of_a_device_that_did(
    services: Services, api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    for ts in (7, 5):
        body = {"data": {"state": ts == 7, "colorRGB": {"r": 1}}, "ts": ts}
        await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json=body)
    action = {"data": {"actions": [{"name": "setOn"}]}, "ts": 9}
    await api.post("/actions", headers=bearer(KITCHEN_TOKEN), json=action)
    device = await services.devices.find(KITCHEN)
    with ExitStack() as online:
        online.enter_context(
            services.connections.connect(
                device,
                protocol="MQTT",
                token=b"",
                exclusive=True,
                deliver=lambda _action: True,
                close=lambda _reason: None,
            )
        )
        fake_clock.advance(10)
        data = (await api.get(f"{DEVICE}/status", headers=bearer(ADA_TOKEN))).json()["data"]
        assert (data["availability"], data["lastTimeOnline"]) == ("online", NOW_MS + 10)
    fake_clock.advance(10)
    answer = await api.get(f"{DEVICE}/status", headers=bearer(ADA_TOKEN))
    assert answer.json() == {
        "did": KITCHEN,
        "data": {
            "lastMessageTs": 7,
            "lastActionTs": 9,
            "availability": "offline",
            "lastTimeOnline": NOW_MS + 10,
            "snapshot": {"state": {"value": True, "ts": 7}, "colorRGB": {"r": {"value": 1, "ts": 7}}},
        },
    }


@pytest.mark.parametrize(
    ("query", "snapshot"),
    [
        ("", {"state": {"value": True, "ts": 7}}),
        ("includeSnapshot=true", {"state": {"value": True, "ts": 7}}),
        ("includeSnapshotTimestamp=0", {"state": {"value": True}}),
        ("includeSnapshot=FALSE", None),
        ("includeSnapshot=false&includeSnapshotTimestamp=true", None),
    ],
)
async def test_the_snapshot_is_shown_as_asked_for(
    api: httpx.AsyncClient, query: str, snapshot: dict[str, object] | None
) -> None:
    await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": {"state": True}, "ts": 7})
    data = (await api.get(f"{DEVICE}/status?{query}", headers=bearer(ADA_TOKEN))).json()["data"]
    assert data.get("snapshot") == snapshot
