"""Every path of approved lists, and what each refuses (reference 2.5 and 7.2)."""

import base64
from typing import Any, Final

import httpx
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256

from broker.services import Services
from tests.certificates import Authority, Issued
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    World,
)
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.protocols.http.test_secure_listener import fields_of
from tests.rows import each_row
from tests.secure_types import NOW

pytestmark = pytest.mark.slow


METER_TYPE: Final = "dt" + "3e" * 16
LIST: Final = f"/devicetypes/{METER_TYPE}/whitelist"
APPLICATION: Final = bearer(APPLICATION_TOKEN)


@pytest.fixture
async def meters(services: Services, world: World) -> None:
    """A type without devices; Ada is an administrator of its organization, Bob a developer."""
    await services.provisioning.apply(
        {
            "users": [
                {"email": "ada@example.org", "organization": "Acme", "role": "administrator"},
                {"email": "bob@example.org", "organization": "Acme", "role": "developer"},
            ],
            "device_types": [
                {"id": METER_TYPE, "unique_name": "example.meter", "organization": "Acme", "published": True}
            ],
        }
    )


@pytest.fixture
def api(api: httpx.AsyncClient, meters: None) -> httpx.AsyncClient:
    return api


@pytest.fixture
def vendor() -> Issued:
    return Authority("Vendor", now=NOW).own


async def upload(api: httpx.AsyncClient, content: bytes | str, **options: Any) -> str:
    """Returns when it has been worked through."""
    answer = await api.post(LIST, content=content, headers=APPLICATION, **options)
    upload_id: str = answer.json()["uploadId"]
    await processed(api, upload_id)
    return upload_id


async def processed(api: httpx.AsyncClient, upload_id: str) -> dict[str, Any]:
    with trio.fail_after(10):
        while True:
            status: dict[str, Any] = (await api.get(f"{LIST}/{upload_id}/status", headers=APPLICATION)).json()
            if status["status"] != "Processing":
                return status


# Permissions


#: Each call, and its status without a body, for a type without a list.
CALLS: Final = [
    ("POST", LIST, 200),
    ("GET", LIST, 200),
    ("GET", f"{LIST}/status", 200),
    ("PUT", f"{LIST}/enable", 400),
    ("GET", f"{LIST}/an-upload/status", 404),
    ("GET", f"{LIST}/an-upload/rejectedRows", 404),
    ("GET", f"{LIST}/vdid/a", 404),
    ("DELETE", f"{LIST}/a", 404),
    ("GET", f"{LIST}/certificates", 200),
    ("POST", f"{LIST}/certificates", 400),
    ("DELETE", f"{LIST}/certificates/a", 404),
]


@each_row(("method", "path", "status"), CALLS)
async def test_a_list_is_for_administrators_and_for_the_organizations_applications(
    api: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    error_of(await api.request(method, path), 401)
    for token in (BOB_TOKEN, KITCHEN_TOKEN):
        error_of(await api.request(method, path, headers=bearer(token)), 403)
    for token in (ADA_TOKEN, APPLICATION_TOKEN):
        assert (await api.request(method, path, headers=bearer(token))).status_code == status


@each_row(("method", "path"), [(method, path) for method, path, _ in CALLS])
async def test_a_list_is_of_a_type_that_exists(api: httpx.AsyncClient, method: str, path: str) -> None:
    unknown = path.replace(METER_TYPE, "dt" + "00" * 16)
    assert error_of(await api.request(method, unknown, headers=APPLICATION), 404)["code"] == 1101


async def test_the_unique_name_does_as_well(api: httpx.AsyncClient) -> None:
    answer = await api.get("/devicetypes/example.meter/whitelist", headers=APPLICATION)
    assert answer.json() == {"data": [], "dtid": METER_TYPE, "total": 0, "count": 0, "offset": 0}


# Uploads


@pytest.mark.parametrize("content_type", ["text/csv", "application/json", "text/plain", None])
async def test_a_raw_file_may_have_any_type(api: httpx.AsyncClient, content_type: str | None) -> None:
    headers = APPLICATION | ({} if content_type is None else {"Content-Type": content_type})
    answer = await api.post(LIST, content=b"vdid\na\n", headers=headers)
    upload_id = answer.json()["uploadId"]
    assert answer.json() == {"uploadId": upload_id, "data": {"uploadId": upload_id}}
    about = {"uploadId": upload_id, "status": "Completed", "vdidsCount": {"total": 1, "succeeded": 1, "failed": 0}}
    assert await processed(api, upload_id) == about | {"data": about}


async def test_a_form_has_the_file_in_the_part_of_that_name(api: httpx.AsyncClient) -> None:
    answer = await api.post(
        LIST,
        data={"comment": "first batch"},
        files={"other": b"no list", "file": ("ids.csv", b"vdid\na\nb\n", "text/csv")},
        headers=APPLICATION,
    )
    status = await processed(api, answer.json()["uploadId"])
    assert status["vdidsCount"] == {"total": 2, "succeeded": 2, "failed": 0}


async def test_forms_that_cannot_be_used(api: httpx.AsyncClient) -> None:
    missing = await api.post(LIST, files={"other": b"vdid\na\n"}, headers=APPLICATION)
    error = error_of(missing, 400)
    assert error["code"] == 4001
    assert error["errors"] == [[{"field": "file", "messages": ["Required parameter"]}]]
    form = APPLICATION | {"Content-Type": "multipart/form-data; boundary=x"}
    for content in (b"", b"vdid\na\n", b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\nvdid\n", b"\x00\xff"):
        assert error_of(await api.post(LIST, content=content, headers=form), 400)["code"] == 400
    no_boundary = APPLICATION | {"Content-Type": "multipart/form-data"}
    assert error_of(await api.post(LIST, content=b"vdid\na\n", headers=no_boundary), 400)["code"] == 400


async def test_a_file_is_bounded(api: httpx.AsyncClient) -> None:
    error_of(await api.post(LIST, content=b"vdid\n" + b"a\n" * 600_000, headers=APPLICATION), 413)


@each_row("content", [b"", b"a\n", b"vdid\n" + b"a\n" * 10_001, b"\x00\xff" * 9_000, b"x" * 900_000])
async def test_a_file_that_is_no_list_fails(api: httpx.AsyncClient, content: bytes) -> None:
    status = await processed(api, await upload(api, content))
    assert status["status"] == "Failed"
    assert (await api.get(LIST, headers=APPLICATION)).json()["total"] == 0


async def test_rejected_rows_are_paged(api: httpx.AsyncClient) -> None:
    upload_id = await upload(api, "vdid\nok\nnot ok\nok\n<>\n")
    path = f"{LIST}/{upload_id}/rejectedRows"
    invalid, duplicate = ({"index": n, "message": text} for n, text in ((2, "Invalid vdid"), (3, "Duplicate vdid")))
    assert (await api.get(path, headers=APPLICATION)).json() == {
        "data": [invalid, duplicate, {"index": 4, "message": "Invalid vdid"}],
        "total": 3,
        "offset": 0,
        "count": 3,
    }
    page = await api.get(path, params={"offset": 1, "count": 1}, headers=APPLICATION)
    assert page.json() == {"data": [duplicate], "total": 3, "offset": 1, "count": 1}
    assert error_of(await api.get(path, params={"count": 101}, headers=APPLICATION), 400)["code"] == 4001


async def test_an_upload_that_does_not_exist_is_not_found(api: httpx.AsyncClient) -> None:
    for path in ("status", "rejectedRows"):
        error_of(await api.get(f"{LIST}/{'00' * 16}/{path}", headers=APPLICATION), 404)


# Entries and the switch


async def test_entries_are_paged_found_and_deleted(api: httpx.AsyncClient) -> None:
    await upload(api, "vdid\na\nb\nc\n")
    page = (await api.get(LIST, params={"offset": 1, "count": 1}, headers=APPLICATION)).json()
    (entry,) = page.pop("data")
    assert page == {"dtid": METER_TYPE, "total": 3, "count": 1, "offset": 1}
    assert entry == {"vdid": "b", "did": None, "uploadedOn": entry["uploadedOn"]}
    assert (await api.get(f"{LIST}/vdid/b", headers=APPLICATION)).json() == {"data": {"did": None}}
    assert (await api.delete(f"{LIST}/b", headers=APPLICATION)).json() == {"data": entry}
    error_of(await api.get(f"{LIST}/vdid/b", headers=APPLICATION), 404)
    error_of(await api.delete(f"{LIST}/b", headers=APPLICATION), 404)


async def test_the_switch(api: httpx.AsyncClient) -> None:
    status, enable = f"{LIST}/status", f"{LIST}/enable"
    assert (await api.get(status, headers=APPLICATION)).json() == {"data": {"enableWhitelist": False}}
    for value in (True, False):
        answer = await api.put(enable, json={"enableWhitelist": value}, headers=APPLICATION)
        assert answer.json() == {"data": {"enableWhitelist": value}}
        assert (await api.get(status, headers=APPLICATION)).json() == {"data": {"enableWhitelist": value}}
    for body in ({}, {"enableWhitelist": "maybe"}):
        error = error_of(await api.put(enable, json=body, headers=APPLICATION), 400)
        assert fields_of(error) == ["enableWhitelist"]


async def test_a_type_with_devices_cannot_be_limited(api: httpx.AsyncClient) -> None:
    path = f"/devicetypes/{LIGHT_TYPE}/whitelist/enable"
    error = error_of(await api.put(path, json={"enableWhitelist": True}, headers=APPLICATION), 409)
    assert error["message"] == "Device type has devices"


# Certificates


async def test_certificates_are_listed_with_what_they_say(api: httpx.AsyncClient, vendor: Issued) -> None:
    path = f"{LIST}/certificates"
    added = (await api.post(path, json={"certificate": vendor.pem}, headers=APPLICATION)).json()["data"]
    certificate = vendor.certificate
    assert added == {
        "id": added["id"],
        "certificateFields": {
            "version": "3",
            "serialNumber": f"{certificate.serial_number:x}",
            "signatureAlgorithm": "SHA256withECDSA",
            "subject": "CN=Vendor",
            "issuer": "CN=Vendor",
            "validity": {
                "notBefore": int(certificate.not_valid_before_utc.timestamp() * 1000),
                "notAfter": int(certificate.not_valid_after_utc.timestamp() * 1000),
            },
        },
    }
    page = {"data": [added], "total": 1, "offset": 0, "count": 1}
    assert (await api.get(path, headers=APPLICATION)).json() == page
    assert (await api.get(path, params={"offset": 1}, headers=APPLICATION)).json()["data"] == []
    error_of(await api.post(path, json={"certificate": vendor.pem}, headers=APPLICATION), 409)
    assert (await api.delete(f"{path}/{added['id']}", headers=APPLICATION)).json() == {"data": added}
    error_of(await api.delete(f"{path}/{added['id']}", headers=APPLICATION), 404)


@each_row("body", [{}, {"certificate": ""}, {"certificate": "junk"}, {"certificate": 1}])
async def test_what_is_no_certificate_is_refused_by_name(api: httpx.AsyncClient, body: dict[str, Any]) -> None:
    error = error_of(await api.post(f"{LIST}/certificates", json=body, headers=APPLICATION), 400)
    assert fields_of(error) == ["certificate"]


async def test_a_private_key_is_not_kept(api: httpx.AsyncClient, vendor: Issued) -> None:
    pem = vendor.pem + vendor.key_pem.decode()
    error_of(await api.post(f"{LIST}/certificates", json={"certificate": pem}, headers=APPLICATION), 400)


async def test_an_upload_of_endless_certificates_is_refused(api: httpx.AsyncClient, vendor: Issued) -> None:
    error_of(await api.post(f"{LIST}/certificates", json={"certificate": vendor.pem * 100}, headers=APPLICATION), 413)


# Devices


async def test_with_the_list_enabled_a_device_needs_an_id_that_was_signed(
    api: httpx.AsyncClient, vendor: Issued
) -> None:
    await upload(api, "vdid\na\nb\n")
    await api.post(f"{LIST}/certificates", json={"certificate": vendor.pem}, headers=APPLICATION)
    await api.put(f"{LIST}/enable", json={"enableWhitelist": True}, headers=APPLICATION)
    assert isinstance(vendor.key, EllipticCurvePrivateKey)
    svdid = base64.b64encode(vendor.key.sign(b"a", ECDSA(SHA256()))).decode()
    ada, new = bearer(ADA_TOKEN), {"dtid": METER_TYPE, "name": "Meter"}

    error = error_of(await api.post("/devices", json=new, headers=ada), 400)
    assert fields_of(error) == ["vdid", "svdid"]
    for vdid in ("b", "c"):
        error_of(await api.post("/devices", json=new | {"vdid": vdid, "svdid": svdid}, headers=ada), 403)

    created = await api.post("/devices", json=new | {"vdid": "a", "svdid": svdid}, headers=ada)
    did = created.json()["data"]["id"]
    assert (await api.get(f"{LIST}/vdid/a", headers=APPLICATION)).json() == {"data": {"did": did}}
    error_of(await api.post("/devices", json=new | {"vdid": "a", "svdid": svdid}, headers=ada), 403)

    await api.delete(f"/devices/{did}", headers=ada)
    assert (await api.get(f"{LIST}/vdid/a", headers=APPLICATION)).json() == {"data": {"did": None}}
    assert (await api.post("/devices", json=new | {"vdid": "a", "svdid": svdid}, headers=ada)).status_code == 200
