"""GET /values: the newest values as Prometheus scrapes them (reference 9.11)."""

from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from broker.devices.inventory import DeviceChanges
from broker.services import Services
from config.limits import VALUES_CALLS
from protocols.exposition import exposition_form
from protocols.http.rest import values
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row


async def store(services: Services, sdid: str, data: bytes, ts: int = NOW_MS) -> None:
    services.messages.ingest.submit(await services.devices.registry.find(sdid), data, ts)
    await services.messages.ingest.wait_committed()


async def scraped(api: httpx.AsyncClient, query: str = "", token: str = ADA_TOKEN) -> dict[str, dict[str, Any]]:
    """The samples by metric and device."""
    answer = await api.get(f"/values?{query}", headers=bearer(token))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        family.name: {sample.labels["did"]: sample for sample in family.samples}
        for family in text_string_to_metric_families(answer.text)
    }


async def test_each_field_is_a_metric_with_the_device_in_its_labels(api: httpx.AsyncClient, services: Services) -> None:
    await store(services, KITCHEN, b'{"state":true,"text":"no number"}')
    await store(services, HALL, b'{"state":false}')
    await store(services, BOBS, b'{"state":true}')
    found = await scraped(api)
    assert set(found) == {"trunkline_value_state", "trunkline_newest_value_timestamp_seconds"}
    states = found["trunkline_value_state"]
    assert {did: sample.value for did, sample in states.items()} == {KITCHEN: 1.0, HALL: 0.0}
    device = await services.devices.registry.find(KITCHEN)
    assert states[KITCHEN].labels == {
        "device": device.record.name,
        "did": KITCHEN,
        "type": device.type.record.unique_name,
        "field": "state",
        "unit": "",
    }
    assert states[KITCHEN].timestamp is None
    assert found["trunkline_newest_value_timestamp_seconds"][HALL].value == NOW_MS / 1000
    timed = await scraped(api, "timestamps=true")
    assert timed["trunkline_value_state"][KITCHEN].timestamp == NOW_MS / 1000


@each_row(
    ("token", "query", "expected"),
    [
        (KITCHEN_TOKEN, "", {KITCHEN}),
        (BOB_TOKEN, "", {BOBS}),
        (APPLICATION_TOKEN, f"uid={ADA}", {KITCHEN, HALL}),
        (APPLICATION_TOKEN, f"sdids={HALL}", {HALL}),
        (ADA_TOKEN, f"sdids={HALL},{KITCHEN}&sdtid={LIGHT_TYPE}", {KITCHEN, HALL}),
        (ADA_TOKEN, "sdtid=example.smart_light", {KITCHEN, HALL}),
    ],
)
async def test_devices_that_the_token_may_read(
    api: httpx.AsyncClient, services: Services, token: str, query: str, expected: set[str]
) -> None:
    for did in (KITCHEN, HALL, BOBS):
        await store(services, did, b'{"state":true}')
    assert set((await scraped(api, query, token))["trunkline_value_state"]) == expected


@each_row(
    ("token", "query", "status"),
    [
        (ADA_TOKEN, f"sdids={BOBS}", 403),
        (ADA_TOKEN, "sdids=" + "9" * 32, 404),
        (KITCHEN_TOKEN, f"sdids={HALL}", 403),
        (APPLICATION_TOKEN, "", 400),
        (ADA_TOKEN, "sdtid=example.nothing", 404),
        (ADA_TOKEN, "maxAge=0", 400),
        (ADA_TOKEN, "maxAge=soon", 400),
        (ADA_TOKEN, "maxAge=40000000", 400),
        ("nobody", "", 401),
    ],
)
async def test_refusals(api: httpx.AsyncClient, token: str, query: str, status: int) -> None:
    assert (await api.get(f"/values?{query}", headers=bearer(token))).status_code == status


async def test_stale_values_are_left_out(api: httpx.AsyncClient, services: Services) -> None:
    await store(services, KITCHEN, b'{"state":true}', NOW_MS - 3_700_000)
    await store(services, HALL, b'{"state":true}', NOW_MS - 60_000)
    assert set((await scraped(api))["trunkline_value_state"]) == {HALL}
    assert set((await scraped(api, "maxAge=4000"))["trunkline_value_state"]) == {HALL, KITCHEN}
    assert "trunkline_value_state" not in await scraped(api, "maxAge=1")


async def test_openmetrics_and_strange_names(api: httpx.AsyncClient, services: Services) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.change(kitchen, DeviceChanges(name="Küche\\ 1"))
    await store(services, KITCHEN, b'{"state":true}')
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = await api.get("/values", headers=bearer(ADA_TOKEN) | accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    families = open_metrics(answer.text)  # type: ignore[no-untyped-call]
    names = [sample.labels["device"] for family in families for sample in family.samples]
    assert set(names) == {"Küche\\ 1"}


def test_names_of_metrics() -> None:
    assert values._name("temperature", "°C") == "trunkline_value_temperature_celsius"
    assert values._name("room.temp-1", "°F") == "trunkline_value_room_temp_1_fahrenheit"
    assert values._name("uptime_seconds", "s") == "trunkline_value_uptime_seconds"
    assert values._name("wäsche", "furlong") == "trunkline_value_w_sche"


async def test_bounds(api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "VALUES_DEVICES", 1)
    refused = await api.get("/values", headers=bearer(ADA_TOKEN))
    assert refused.json()["error"]["errors"][0][0]["field"] == "sdids"
    answers = [await api.get(f"/values?sdids={HALL}", headers=bearer(ADA_TOKEN)) for _ in range(VALUES_CALLS + 1)]
    # A call that is refused counts as well: it looks for devices, too.
    assert [answer.status_code for answer in answers] == [200] * (VALUES_CALLS - 1) + [429] * 2
    refused = await api.get("/values?sdids=" + "9" * 32, headers=bearer(ADA_TOKEN))
    assert refused.status_code == 429
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    assert (await api.get("/values", headers=bearer(BOB_TOKEN))).status_code == 200


@each_row(
    ("accept", "content_type"),
    [
        ("application/openmetrics-text; version=abc", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=zz, application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("application/openmetrics-text; version=99999.9", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=" + "1" * 5_000, "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=1.0.0; escaping=<script>", "text/plain; version=1.0.0; charset=utf-8"),
    ],
)
async def test_strange_wishes_for_a_form(api: httpx.AsyncClient, accept: str, content_type: str) -> None:
    answer = await api.get("/values", headers=bearer(ADA_TOKEN) | {"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)
    assert exposition_form(accept)[1] == answer.headers["content-type"]  # /metrics, too
