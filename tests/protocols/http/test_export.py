"""Exports over REST (reference 10): shapes, refusals, and the download."""

import hashlib
import io
import re
import tarfile
import zipfile
from base64 import b64encode
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
import trio

from broker.devices.registry import Device
from broker.messages.intervals import DAY_MS, MINUTE_MS
from broker.services import Services
from config.settings import Address
from tests.factories import ADA, ADA_TOKEN, BOB_TOKEN, BOBS, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, NOW_MS, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.wording import INVALID

pytestmark = pytest.mark.slow


START = NOW_MS - DAY_MS
HEADERS = bearer(ADA_TOKEN)
ASKED: dict[str, Any] = {"sdids": KITCHEN, "startDate": START, "endDate": NOW_MS}


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    device = await services.devices.registry.get(world.kitchen)
    for number in range(3):
        services.messages.ingest.submit(device, b'{"intensity":%d}' % number, START + number)
    await services.messages.ingest.wait_committed()
    return device


async def create(api: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await api.post("/messages/export", json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    export_id: str = answer.json()["data"]["exportId"]
    return export_id


async def finished(api: httpx.AsyncClient, export_id: str) -> Any:
    while True:
        answer = await api.get(f"/messages/export/{export_id}/status", headers=HEADERS)
        assert answer.status_code == 200
        if answer.json()["status"] not in {"Received", "InProgress"}:
            return answer.json()


async def test_the_answer_repeats_what_was_asked_for(api: httpx.AsyncClient, kitchen: Device) -> None:
    answer = await api.post("/messages/export", json=ASKED, headers=HEADERS)
    data = answer.json()["data"]
    export_id = data.pop("exportId")
    assert data == ASKED | {"order": "asc", "format": "json"}
    assert answer.json() == {"data": {"exportId": export_id} | data}
    body = {
        "uids": ADA,
        "sdtids": LIGHT_TYPE,
        "startDate": str(START),
        "endDate": NOW_MS + 0.5,
        "order": "DESC",
        "format": "CSV1",
        "url": "https://app.example.org",
        "csvHeaders": "0",
        "unknown": 1,
        "sdids": None,
    }
    answer = await api.post("/messages/export", json=body, headers=HEADERS)
    data = answer.json()["data"]
    del data["exportId"]
    assert data == {
        "uids": ADA,
        "sdtids": LIGHT_TYPE,
        "startDate": START,
        "endDate": NOW_MS,
        "order": "desc",
        "format": "csv1",
        "csvHeaders": False,
        "url": "https://app.example.org",
    }


@each_row(("given", "expected"), [(True, True), (1, True), ("FALSE", False), (0, False), (None, True)])
async def test_csv_headers(api: httpx.AsyncClient, kitchen: Device, given: object, expected: bool) -> None:
    answer = await api.post("/messages/export", json=ASKED | {"format": "csv1", "csvHeaders": given}, headers=HEADERS)
    assert answer.json()["data"]["csvHeaders"] is expected


async def test_from_creation_to_download(api: httpx.AsyncClient, kitchen: Device) -> None:
    export_id = await create(api, ASKED)
    status = await finished(api, export_id)
    head = await api.head(f"/messages/export/{export_id}/result", headers=HEADERS)
    answer = await api.get(f"/messages/export/{export_id}/result", headers=HEADERS)
    assert status == {
        "exportId": export_id,
        "status": "Success",
        "md5": hashlib.md5(answer.content, usedforsecurity=False).hexdigest(),
        "expirationDate": NOW_MS + DAY_MS,
        "fileSize": len(answer.content),
        "totalMessages": 3,
        "ttl": "24h",
    }
    for one in (head, answer):
        assert one.status_code == 200
        assert one.headers["content-type"] == "application/x-compressed"
        assert one.headers["content-disposition"] == f'attachment; filename="{export_id}.tgz"'
        assert one.headers["content-length"] == str(len(answer.content))
        assert one.headers["x-service-total-messages"] == "3"
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as archive:
        assert archive.getnames() == [f"{KITCHEN}-{START}.json"]
    again = await api.get(f"/messages/export/{export_id}/result", headers=HEADERS)
    assert again.content == answer.content
    assert (await finished(api, export_id))["status"] == "Served"


async def test_a_download_goes_on_where_it_broke_off(api: httpx.AsyncClient, kitchen: Device) -> None:
    export_id = await create(api, ASKED | {"format": "csv", "startDate": 0})
    md5 = (await finished(api, export_id))["md5"]
    address = f"/messages/export/{export_id}/result"
    whole = await api.get(address, headers=HEADERS)
    assert (whole.headers["ETag"], whole.headers["Accept-Ranges"]) == (f'"{md5}"', "bytes")
    assert whole.headers["content-type"] == "application/zip"
    assert whole.headers["content-disposition"].endswith(f'-{export_id[:8]}.zip"')
    with zipfile.ZipFile(io.BytesIO(whole.content)) as archive:
        assert archive.read(archive.namelist()[0]).count(b"\n") == 4
    rest = HEADERS | {"Range": "bytes=100-", "If-Range": f'"{md5}"'}
    part = await api.get(address, headers=rest)
    assert (part.status_code, part.content) == (206, whole.content[100:])
    assert part.headers["Content-Range"] == f"bytes 100-{len(whole.content) - 1}/{len(whole.content)}"
    other = await api.get(address, headers=rest | {"If-Range": '"other"'})
    assert (other.status_code, other.content) == (200, whole.content)
    behind = await api.get(address, headers=HEADERS | {"Range": f"bytes={len(whole.content)}-"})
    assert (behind.status_code, behind.content) == (416, b"")
    same = await api.get(address, headers=HEADERS | {"If-None-Match": f'"{md5}"'})
    assert (same.status_code, same.content) == (304, b"")


async def test_the_archive_of_csv2_has_the_name_of_its_device_and_its_range(
    api: httpx.AsyncClient, services: Services, kitchen: Device
) -> None:
    await services.provisioning.apply(
        {"devices": [{"id": KITCHEN, "owner": ADA, "type": LIGHT_TYPE, "name": "Küche, Licht"}]}
    )
    export_id = await create(api, ASKED | {"format": "csv2"})
    await finished(api, export_id)
    answer = await api.get(f"/messages/export/{export_id}/result", headers=HEADERS)
    form = r"attachment; filename=\"([ -~]+)\"; filename\*=UTF-8''(\S+)"
    ((plain, wide),) = re.findall(form, answer.headers["content-disposition"])
    start, end = (
        datetime.fromtimestamp(ASKED[which] / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        for which in ("startDate", "endDate")
    )
    assert unquote(wide) == f"Küche-Licht-{KITCHEN[:8]}_{start}_to_{end}-{export_id[:8]}.tgz"
    assert plain == unquote(wide).replace("ü", "_")


async def test_head_and_broken_downloads_do_not_count_as_served(
    api: httpx.AsyncClient, door: Address, services: Services, kitchen: Device
) -> None:
    noise = Random(0)  # noqa: S311 - no secret
    for _ in range(1_200):  # which cannot be compressed
        services.messages.ingest.submit(kitchen, b'{"text":"%s"}' % b64encode(noise.randbytes(450)), START)
    await services.messages.ingest.wait_committed()
    export_id = await create(api, ASKED)
    assert (await finished(api, export_id))["fileSize"] > 500_000
    await api.head(f"/messages/export/{export_id}/result", headers=HEADERS)
    stream = await trio.open_tcp_stream(door.host, door.port)
    async with stream:
        path = f"/v1.1/messages/export/{export_id}/result"
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: bearer {ADA_TOKEN}\r\n\r\n".encode())
        await stream.receive_some(100)
    assert (await finished(api, export_id))["status"] == "Success"


async def test_results_that_are_not_there(
    api: httpx.AsyncClient, kitchen: Device, fake_clock: FakeClock, services: Services
) -> None:
    unknown = await api.get(f"/messages/export/{'ff' * 16}/result", headers=HEADERS)
    assert unknown.status_code == 404
    export_id = await create(api, ASKED)
    await finished(api, export_id)
    fake_clock.advance(DAY_MS)
    gone = await api.get(f"/messages/export/{export_id}/result", headers=HEADERS)
    assert (gone.status_code, gone.json()["error"]["code"], gone.json()["error"]["message"]) == (410, 410, "Gone")
    expired = await finished(api, export_id)
    assert (expired["status"], expired["totalMessages"]) == ("Expired", 3)


async def test_others_are_refused(api: httpx.AsyncClient, kitchen: Device) -> None:
    export_id = await create(api, ASKED)
    for token in (BOB_TOKEN, KITCHEN_TOKEN):
        for what in ("status", "result"):
            answer = await api.get(f"/messages/export/{export_id}/{what}", headers=bearer(token))
            assert answer.status_code == 403


async def test_history(api: httpx.AsyncClient, kitchen: Device) -> None:
    ids = [await create(api, ASKED | {"order": "desc"}) for _ in range(2)]
    for export_id in ids:
        await finished(api, export_id)
    answer = (await api.get("/messages/export/history", params={"count": 1}, headers=HEADERS)).json()
    status = await finished(api, ids[1])
    assert answer == {
        "count": 1,
        "offset": 0,
        "total": 2,
        "data": {
            "exports": [
                status
                | {
                    "request": {
                        "requestDate": NOW_MS,
                        "startDate": START,
                        "endDate": NOW_MS,
                        "order": "desc",
                        "format": "json",
                    }
                }
            ]
        },
    }
    empty = await api.get("/messages/export/history", params={"trialId": "ff" * 16}, headers=HEADERS)
    assert empty.json() == {"count": 0, "offset": 0, "total": 0, "data": {"exports": []}}


@each_row(
    ("changed", "findings"),
    [
        (
            {"sdids": None, "startDate": None, "endDate": None},
            [(name, "Required parameter") for name in ("startDate", "endDate", "uids")],
        ),
        ({"sdids": ""}, [("uids", "Required parameter")]),
        ({"sdids": None, "sdtids": LIGHT_TYPE}, [("uids", "Required parameter")]),
        ({"sdids": ",".join(f"{n:032x}" for n in range(31))}, [("sdids", "Maximum length 30")]),
        ({"sdids": [KITCHEN]}, [("sdids", "Text field only")]),
        ({"order": "up", "format": "xml"}, [("order", INVALID), ("format", INVALID)]),
        ({"csvHeaders": "yes"}, [("csvHeaders", "Boolean field only")]),
        ({"trialID": "ff" * 16, "trialId": "fe" * 16}, [("trialId", INVALID)]),
        ({"startDate": "x"}, [("startDate", "Numeric field only")]),
        ({"startDate": -1}, [("startDate", INVALID)]),
        ({"startDate": NOW_MS + 1}, [("startDate", INVALID)]),
        ({"startDate": NOW_MS - 30 * DAY_MS - 2 * MINUTE_MS}, [("startDate", INVALID)]),
        ({"endDate": START + 31 * DAY_MS + MINUTE_MS}, [("endDate", INVALID)]),
    ],
)
async def test_refusals(
    api: httpx.AsyncClient, kitchen: Device, changed: dict[str, Any], findings: list[tuple[str, str]]
) -> None:
    answer = await api.post("/messages/export", json=ASKED | changed, headers=HEADERS)
    assert answer.status_code == 400
    assert [(one["field"], *one["messages"]) for one in answer.json()["error"]["errors"][0]] == findings


@each_row(
    ("changed", "status"),
    [({"sdids": BOBS}, 403), ({"sdids": "ff" * 16}, 404), ({"sdids": None, "trialID": "ff" * 16}, 404)],
)
async def test_what_one_may_not_or_cannot_export(
    api: httpx.AsyncClient, kitchen: Device, changed: dict[str, Any], status: int
) -> None:
    answer = await api.post("/messages/export", json=ASKED | changed, headers=HEADERS)
    assert answer.status_code == status
