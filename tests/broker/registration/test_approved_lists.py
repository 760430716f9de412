"""Approved lists: uploads, entries, and devices that must be on them (reference 7.2)."""

import base64
from collections.abc import Sequence
from functools import cache

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA512, HashAlgorithm
from msgspec.structs import replace

from broker.device_types.catalog import DeviceType
from broker.devices.inventory import NewDevice
from broker.devices.registry import Device
from broker.errors import Conflict, NotFound, PermissionDenied, ValidationFailed
from broker.registration import approved_lists
from broker.registration.approved_lists import ApprovedLists
from broker.registration.uploads import BadList, Uploads, read_rows
from broker.services import Services
from config.limits import APPROVED_CERTIFICATES_MAX, APPROVED_UPLOADS_WAITING
from storage.records import ApprovedUploadRecord
from tests.builders import ServicesOpener
from tests.certificates import DAY, Authority, Issued, Kind
from tests.factories import LIGHT_TYPE, World
from tests.rows import each_row
from tests.secure_types import NOW, SECURE_TYPE

METER_TYPE = "dt" + "3e" * 16


@pytest.fixture
async def meters(services: Services, world: World) -> DeviceType:
    """A type without devices."""
    entry = {"id": METER_TYPE, "unique_name": "example.meter", "organization": "Acme", "published": True}
    await services.provisioning.apply({"device_types": [entry]})
    return await services.device_types.catalog.find(METER_TYPE)


@pytest.fixture
def lists(services: Services) -> ApprovedLists:
    return services.registration.approved_lists


async def finished(lists: ApprovedLists, type_: DeviceType, upload_id: str) -> ApprovedUploadRecord:
    with trio.fail_after(60):
        while (upload := await lists.upload_status(type_, upload_id)).status == "Processing":
            await trio.lowlevel.checkpoint()
    return upload


async def upload(lists: ApprovedLists, type_: DeviceType, content: bytes | Sequence[str]) -> ApprovedUploadRecord:
    body = content if isinstance(content, bytes) else "\n".join(("vdid", *content)).encode()
    return await finished(lists, type_, await lists.upload(type_, body))


def signed(issued: Issued, vdid: str, hash_: HashAlgorithm | None = None) -> str:
    key, data, algorithm = issued.key, vdid.encode(), hash_ or SHA256()
    if isinstance(key, EllipticCurvePrivateKey):
        return base64.b64encode(key.sign(data, ECDSA(algorithm))).decode()
    assert isinstance(key, RSAPrivateKey)
    return base64.b64encode(key.sign(data, PKCS1v15(), algorithm)).decode()


# Reading a file


@each_row(
    ("content", "rows"),
    [
        (b"vdid\na\nb\n", ["a", "b"]),
        (b"vdid\r\na\r\nb", ["a", "b"]),
        (b"vdid\ra\rb\r", ["a", "b"]),
        (b"\xef\xbb\xbfvdid\na", ["a"]),
        (b'"vdid"\n"a"\n', ["a"]),
        (b" vdid \n a\t\n", ["a"]),
        (b"vdid\n\n\na\n\n", ["a"]),
        (b"vdid", []),
        (b"vdid\n" + b"x" * 1_000_000, ["x" * 1_000_000]),
    ],
)
def test_files_as_spreadsheets_write_them(content: bytes, rows: list[str]) -> None:
    assert read_rows(content) == rows


@each_row(
    "content",
    [
        b"",
        b"\n",
        b"a\nb\n",
        b"vdids\na\n",
        b"VDID\na\n",
        b"vdid,name\na,b\n",
        b"\x00\xff\xfe\x80" * 1000,
        b"x" * 1_000_000,
        b"vdid\n" + b"a\n" * 10_001,
    ],
    ids=["empty", "a line", "no header", "other header", "case", "two columns", "binary", "one line", "10,001 rows"],
)
def test_files_that_are_refused(content: bytes) -> None:
    with pytest.raises(BadList):
        read_rows(content)


# Uploads


@pytest.mark.both_engines
async def test_every_row_has_its_result(lists: ApprovedLists, meters: DeviceType) -> None:
    rows = ["ok-1", "not ok", "ok_2", "ok-1", "x" * 64, "x" * 65, "ü", "a,b", "\x00", "-", '""']
    done = await upload(lists, meters, rows)
    assert (done.status, done.total, done.succeeded, done.failed) == ("Completed", 11, 4, 7)
    assert await lists.rejected_rows(done, offset=0, count=100) == (
        [
            (2, "Invalid vdid"),
            (4, "Duplicate vdid"),
            (6, "Invalid vdid"),
            (7, "Invalid vdid"),
            (8, "Invalid vdid"),
            (9, "Invalid vdid"),
            (11, "Invalid vdid"),
        ],
        7,
    )
    entries, total = await lists.entries(meters, offset=0, count=100)
    assert [entry.vdid for entry in entries] == ["ok-1", "ok_2", "x" * 64, "-"]
    assert total == 4


async def test_an_id_that_is_on_the_list_is_a_duplicate(lists: ApprovedLists, meters: DeviceType) -> None:
    await upload(lists, meters, ["a", "b"])
    done = await upload(lists, meters, ["b", "c"])
    assert (done.succeeded, done.failed) == (1, 1)
    assert await lists.rejected_rows(done, offset=0, count=100) == ([(1, "Duplicate vdid")], 1)


@pytest.mark.parametrize("content", [b"no header\na\n", b"vdid\n" + b"a\n" * 10_001])
async def test_a_file_without_the_header_is_refused(lists: ApprovedLists, meters: DeviceType, content: bytes) -> None:
    done = await upload(lists, meters, content)
    assert (done.status, done.succeeded, done.failed) == ("Failed", 0, 0)
    assert await lists.entries(meters, offset=0, count=100) == ([], 0)


async def test_ten_thousand_rows_are_taken_in_few_statements(
    lists: ApprovedLists, meters: DeviceType, statements: list[str]
) -> None:
    done = await upload(lists, meters, [f"meter-{number}" for number in range(10_000)])
    assert (done.status, done.total, done.succeeded, done.failed) == ("Completed", 10_000, 10_000, 0)
    assert sum("INTO approved_list_entry" in one for one in statements) == 50


@pytest.mark.both_engines
async def test_a_row_that_comes_twice_is_taken_once(lists: ApprovedLists, meters: DeviceType) -> None:
    assert (await upload(lists, meters, ["meter-1"])).succeeded == 1
    done = await upload(lists, meters, ["meter-2", "no vdid", "meter-1", "meter-2", "meter-3"])
    assert (done.succeeded, done.failed) == (2, 3)
    rejected, _ = await lists.rejected_rows(done, offset=0, count=100)
    assert rejected == [(2, "Invalid vdid"), (3, "Duplicate vdid"), (4, "Duplicate vdid")]
    entries, _ = await lists.entries(meters, offset=0, count=100)
    assert [one.vdid for one in entries] == ["meter-1", "meter-2", "meter-3"]


async def test_a_restart_continues_after_the_last_saved_rows(
    opener: ServicesOpener, services: Services, meters: DeviceType
) -> None:
    """The daemon ended in the middle of an upload."""
    rows = [f"meter-{number}" for number in range(1000)]
    body = "\n".join(("vdid", *rows)).encode()

    def half_done(tx):  # type: ignore[no-untyped-def]
        lists = tx.approved_lists
        lists.add_upload(meters.key, "ab" * 16, body, now_ms=1)
        ((_, oldest),) = lists.next_uploads()
        kept = lists.upload_by_key(oldest)
        assert kept is not None
        lists.add_entries(meters.key, rows[:500], now_ms=1)
        lists.save_upload(replace(kept, total=1000, succeeded=500))

    await services.core.database.write(half_done)
    async with opener() as restarted:
        done = await finished(restarted.registration.approved_lists, meters, "ab" * 16)
    assert (done.status, done.succeeded, done.failed, done.content) == ("Completed", 1000, 0, None)


async def test_uploads_of_one_organization_hold_up_no_other(
    services: Services, lists: ApprovedLists, meters: DeviceType
) -> None:
    entry = {"id": "dt" + "0e" * 16, "unique_name": "other.meter", "organization": "Other", "published": True}
    await services.provisioning.apply({"organizations": [{"name": "Other"}], "device_types": [entry]})
    other = await services.device_types.catalog.find(entry["id"])  # type: ignore[arg-type]
    body = "\n".join(("vdid", *(f"meter-{number}" for number in range(5_000)))).encode()
    long = [await lists.upload(meters, body) for _ in range(3)]
    assert (await upload(lists, other, ["quick"])).succeeded == 1
    assert [(await lists.upload_status(meters, one)).status for one in long] == ["Processing"] * 3


async def test_uploads_that_wait_are_bounded(services: Services, meters: DeviceType) -> None:
    idle = ApprovedLists(
        services.core.database,
        services.core.clock,
        Uploads(services.core.database, services.core.clock),
    )
    for _ in range(APPROVED_UPLOADS_WAITING):
        await idle.upload(meters, b"vdid\n")
    with pytest.raises(Conflict):
        await idle.upload(meters, b"vdid\n")


@pytest.mark.both_engines
async def test_the_lists_of_all_types_of_an_organization_are_bounded(
    services: Services, lists: ApprovedLists, meters: DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound counts finished uploads, too: else the types of one organization could fill a disk."""
    monkeypatch.setattr(approved_lists, "APPROVED_IDS_OF_ORGANIZATION", 3)
    monkeypatch.setattr(approved_lists, "APPROVED_UPLOADS_KEPT_OF_ORGANIZATION", 2)
    entry = {"id": "dt" + "0d" * 16, "unique_name": "example.gauge", "organization": "Acme", "published": True}
    elsewhere = {"id": "dt" + "0e" * 16, "unique_name": "other.meter", "organization": "Other", "published": True}
    tables = {"organizations": [{"name": "Other"}], "device_types": [entry, elsewhere]}
    await services.provisioning.apply(tables)
    gauges, others = [await services.device_types.catalog.find(str(one["id"])) for one in (entry, elsewhere)]
    done = [await upload(lists, one, [text]) for one, text in ((meters, "a"), (gauges, "b"), (gauges, "c"))]
    for one in (meters, gauges):
        with pytest.raises(Conflict, match="ids"):
            await lists.upload(one, b"vdid\nd\n")
    assert (await upload(lists, others, ["d"])).succeeded == 1
    with pytest.raises(NotFound):
        await lists.upload_status(meters, done[0].id)
    assert (await lists.upload_status(gauges, done[2].id)).succeeded == 1
    await lists.remove(meters, "a")
    assert (await upload(lists, gauges, ["d"])).succeeded == 1


async def test_an_upload_belongs_to_one_type(services: Services, lists: ApprovedLists, meters: DeviceType) -> None:
    done = await upload(lists, meters, ["a"])
    with pytest.raises(NotFound):
        await lists.upload_status(await services.device_types.catalog.find(LIGHT_TYPE), done.id)


# Enabling a list


async def test_a_list_cannot_be_enabled_for_a_type_with_devices(
    services: Services, lists: ApprovedLists, world: World
) -> None:
    with pytest.raises(Conflict):
        await lists.set_enabled(await services.device_types.catalog.find(LIGHT_TYPE), True)


async def test_a_list_cannot_be_enabled_for_a_type_with_secure_registration(services: Services, secure: World) -> None:
    with pytest.raises(Conflict):
        await services.registration.approved_lists.set_enabled(
            await services.device_types.catalog.find(SECURE_TYPE), True
        )


async def test_a_list_cannot_be_enabled_for_a_type_with_a_cloud_connector(
    lists: ApprovedLists, meters: DeviceType
) -> None:
    meters.refresh(replace(meters.record, has_cloud_connector=True), [])
    with pytest.raises(Conflict):
        await lists.set_enabled(meters, True)


async def test_enabling_twice_is_no_conflict(services: Services, lists: ApprovedLists, meters: DeviceType) -> None:
    await lists.set_enabled(meters, True)
    await lists.set_enabled(meters, True)
    assert await lists.is_enabled(meters)
    await lists.set_enabled(meters, False)
    assert not await lists.is_enabled(meters)


# New devices


@cache
def vendor_with(kind: Kind) -> Issued:
    """To make a key of RSA takes longer than a test."""
    return Authority("Vendor", now=NOW, kind=kind).own


@pytest.fixture(params=["ec", "rsa"])
async def vendor(lists: ApprovedLists, meters: DeviceType, request: pytest.FixtureRequest) -> Issued:
    """The vendor of the ids `a` and `b`, whose certificate is uploaded; the list is enabled."""
    issued = vendor_with(request.param)
    await lists.add_certificate(meters, issued.pem)
    await upload(lists, meters, ["a", "b"])
    await lists.set_enabled(meters, True)
    return issued


async def create(services: Services, world: World, type_: DeviceType, vdid: str, svdid: str) -> Device:
    """Create a device as POST /devices does."""
    claim = await services.registration.approved_lists.check(type_, vdid, svdid)
    return await services.devices.inventory.create(NewDevice(owner=world.ada, type=type_, vdid=vdid), check=claim)


async def test_a_signed_id_of_the_list_becomes_a_device_once(
    services: Services, world: World, lists: ApprovedLists, meters: DeviceType, vendor: Issued
) -> None:
    device = await create(services, world, meters, "a", signed(vendor, "a"))
    assert (await lists.find(meters, "a")).device_id == device.id
    with pytest.raises(PermissionDenied):
        await create(services, world, meters, "a", signed(vendor, "a"))
    await services.devices.inventory.delete(device)
    assert (await lists.find(meters, "a")).device_id is None
    await create(services, world, meters, "a", signed(vendor, "a"))


async def test_of_two_concurrent_creations_one_gets_the_id(
    services: Services, world: World, meters: DeviceType, vendor: Issued
) -> None:
    outcomes: list[bool] = []

    async def attempt() -> None:
        try:
            await create(services, world, meters, "a", signed(vendor, "a"))
            outcomes.append(True)
        except PermissionDenied:
            outcomes.append(False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempt)
        nursery.start_soon(attempt)
    assert sorted(outcomes) == [False, True]


async def test_an_id_that_is_not_on_the_list_is_refused(
    services: Services, world: World, meters: DeviceType, vendor: Issued
) -> None:
    with pytest.raises(PermissionDenied):
        await create(services, world, meters, "c", signed(vendor, "c"))


async def test_only_the_vendors_signature_counts(
    services: Services, world: World, meters: DeviceType, vendor: Issued
) -> None:
    stranger = Authority("Vendor", now=NOW).own
    for svdid in (signed(stranger, "a"), signed(vendor, "b"), signed(vendor, "a", SHA512()), base64.b64encode(b"no")):
        text = svdid if isinstance(svdid, str) else svdid.decode()
        with pytest.raises(PermissionDenied):
            await create(services, world, meters, "a", text)


@each_row(
    ("vdid", "svdid", "fields"),
    [(None, None, ["vdid", "svdid"]), (None, "x", ["vdid"]), ("a", "", ["svdid"]), ("a", "no Base64!", ["svdid"])],
)
async def test_findings_name_missing_and_unreadable_members(
    lists: ApprovedLists, meters: DeviceType, vendor: Issued, vdid: str | None, svdid: str | None, fields: list[str]
) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        await lists.check(meters, vdid, svdid)
    assert [finding.field for finding in refusal.value.findings] == fields


@pytest.mark.both_engines
async def test_signatures_of_removed_and_expired_certificates_are_refused(
    services: Services, world: World, lists: ApprovedLists, meters: DeviceType
) -> None:
    await upload(lists, meters, ["a"])
    await lists.set_enabled(meters, True)
    expired = Authority("Vendor", now=NOW, starts=-3 * DAY, ends=-DAY).own
    await lists.add_certificate(meters, expired.pem)
    gone = Authority("Vendor", now=NOW).own
    id_, der = await lists.add_certificate(meters, gone.pem)
    assert await lists.remove_certificate(meters, id_) == der
    for issued in (expired, gone):
        with pytest.raises(PermissionDenied):
            await create(services, world, meters, "a", signed(issued, "a"))


async def test_a_list_that_is_not_enabled_checks_nothing(services: Services, world: World, meters: DeviceType) -> None:
    claim = await services.registration.approved_lists.check(meters, None, None)
    await services.devices.inventory.create(NewDevice(owner=world.ada, type=meters), check=claim)


async def test_a_list_that_is_enabled_before_the_commit_counts(
    services: Services, world: World, lists: ApprovedLists, meters: DeviceType
) -> None:
    claim = await lists.check(meters, None, None)
    await lists.set_enabled(meters, True)
    with pytest.raises(PermissionDenied):
        await services.devices.inventory.create(NewDevice(owner=world.ada, type=meters), check=claim)
    assert not await services.core.database.read(lambda tx: tx.approved_lists.has_devices(meters.key))


@pytest.mark.both_engines
async def test_deleting_an_entry_does_not_change_its_device(
    services: Services, world: World, lists: ApprovedLists, meters: DeviceType, vendor: Issued
) -> None:
    device = await create(services, world, meters, "a", signed(vendor, "a"))
    assert (await lists.remove(meters, "a")).device_id == device.id
    assert (await services.devices.registry.find(device.id)).record.vdid == "a"
    with pytest.raises(NotFound):
        await lists.find(meters, "a")


# Certificates


@each_row("kind", ["nothing", "junk", "key", "two", "weak"])
async def test_an_unusable_certificate_is_refused(lists: ApprovedLists, meters: DeviceType, kind: str) -> None:
    good = Authority("Vendor", now=NOW).own
    pem = {
        "nothing": " ",
        "junk": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "key": good.pem + good.key_pem.decode(),
        "two": good.pem * 2,
        "weak": _weak().pem,
    }[kind]
    with pytest.raises(ValidationFailed) as refusal:
        await lists.add_certificate(meters, pem)
    assert [finding.field for finding in refusal.value.findings] == ["certificate"]


def _weak() -> Issued:
    from tests.certificates import new_key

    return Authority(now=NOW).issue(key=new_key("rsa", bits=1024))


async def test_certificates_are_unique_and_their_number_is_limited(lists: ApprovedLists, meters: DeviceType) -> None:
    vendor = Authority("Vendor", now=NOW)
    await lists.add_certificate(meters, vendor.own.pem)
    with pytest.raises(Conflict):
        await lists.add_certificate(meters, vendor.own.pem)
    for number in range(APPROVED_CERTIFICATES_MAX - 1):
        await lists.add_certificate(meters, vendor.issue(f"Signer {number}", key=vendor.own.key).pem)
    with pytest.raises(Conflict):
        await lists.add_certificate(meters, vendor.issue("One more", key=vendor.own.key).pem)
