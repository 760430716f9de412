"""Secure registration step by step, with the refusals of each step (reference 7.1)."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from broker.accounts.tokens import Caller
from broker.errors import (
    Conflict,
    DeviceTypeNotFound,
    NotFound,
    PermissionDenied,
    TooManyAttempts,
    Unauthorized,
    ValidationFailed,
)
from broker.facts import DeviceCreated, TokenRevoked
from broker.registration.certificates import (
    BadCertificate,
    ClientCertificate,
    certificate_info,
    certificate_signature,
    read_authorities,
    read_signer,
)
from broker.registration.progress import BegunRegistration, Completed, Status
from broker.registration.registrations import Registrations
from broker.registration.trust import Authorities
from broker.services import Services
from storage.keys import UserKey
from tests.builders import ServicesOpener
from tests.certificates import DAY, Authority, Issued
from tests.factories import ADA, APPLICATION_TOKEN, BOB, BOB_TOKEN, KITCHEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.rows import each_row
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type

HOUR_MS = 3_600_000


@dataclass
class Steps:
    """Both sides of a registration."""

    registrations: Registrations
    ada: Caller
    owner: UserKey
    device: Issued

    async def begin(self, *, issued: Issued | None = None, vendor_id: str = "vendor-1") -> BegunRegistration:
        return await self.registrations.begin((issued or self.device).shown, SECURE_TYPE, vendor_id)

    async def confirm(self, begun: BegunRegistration, *, caller: Caller | None = None, name: str = "Board") -> str:
        return await self.registrations.confirm_new(caller or self.ada, begun.pin, owner=self.owner, name=name)

    async def complete(self, begun: BegunRegistration) -> Completed:
        return await self.registrations.complete(self.device.shown, begun.id, begun.nonce)

    async def all(self) -> Completed:
        begun = await self.begin()
        await self.confirm(begun)
        return await self.complete(begun)

    async def status(self, begun: BegunRegistration) -> Status:
        return (await self.registrations.progress(self.device.shown, begun.id)).status


@pytest.fixture
def steps(services: Services, secure: World, ada: Caller, authority: Authority) -> Steps:
    return Steps(services.registration.registrations, ada, secure.ada, authority.issue())


# A complete registration


async def test_the_pin_assigns_a_device_to_its_user(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    assert await steps.status(begun) is Status.PENDING_USER_CONFIRMATION
    assert await steps.confirm(begun) == begun.id
    assert await steps.status(begun) is Status.PENDING_DEVICE_COMPLETION
    completed = await steps.complete(begun)
    assert await steps.status(begun) is Status.REGISTERED

    device, caller = await services.devices.registry.authenticate(completed.device_id, completed.token)
    assert (device.owner_id, device.type.id, device.record.name) == (ADA, SECURE_TYPE, "Board")
    assert (device.record.vdid, device.record.certificate) == ("vendor-1", steps.device.der)
    assert completed.owner_id == ADA
    assert caller.device_id == completed.device_id


async def test_the_user_may_attach_a_device_that_exists(services: Services, steps: Steps) -> None:
    device = await services.devices.registry.find((await steps.all()).device_id)
    await services.registration.registrations.revoke(device)
    begun = await steps.begin()
    assert await services.registration.registrations.confirm_existing(steps.ada, begun.pin, device) == begun.id
    assert (await steps.complete(begun)).device_id == device.id


async def test_a_device_that_was_created_by_a_pin_is_published(services: Services, steps: Steps) -> None:
    heard: list[DeviceCreated] = []
    services.core.router.subscribe(DeviceCreated, heard.append)
    completed = await steps.all()
    assert [fact.device_id for fact in heard] == [completed.device_id]


async def test_the_pin_is_read_in_any_case(steps: Steps) -> None:
    begun = await steps.begin()
    assert begun.pin.isupper()
    await steps.registrations.confirm_new(steps.ada, begun.pin.lower(), owner=steps.owner, name="Board")


async def test_pins_have_eight_characters_that_do_not_look_alike(steps: Steps, authority: Authority) -> None:
    pins = [(await steps.begin(issued=authority.issue(), vendor_id=f"vendor-{n}")).pin for n in range(20)]
    assert {len(pin) for pin in pins} == {8}
    assert set("".join(pins)).isdisjoint("0O1IL")
    assert len(set(pins)) == 20


async def test_a_restart_loses_nothing(
    opener: ServicesOpener, services: Services, steps: Steps, authority: Authority
) -> None:
    begun = await steps.begin()
    async with opener() as restarted:
        progress = await restarted.registration.registrations.progress(steps.device.shown, begun.id)
        assert progress.status is Status.PENDING_USER_CONFIRMATION


# Beginning


async def test_a_type_that_does_not_exist_is_not_found(steps: Steps) -> None:
    with pytest.raises(DeviceTypeNotFound):
        await steps.registrations.begin(steps.device.shown, "dt" + "00" * 16, "vendor-1")


async def test_a_type_without_secure_registration_is_refused_by_name(steps: Steps) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        await steps.registrations.begin(steps.device.shown, LIGHT_TYPE, "vendor-1")
    assert [finding.field for finding in refusal.value.findings] == ["deviceTypeId"]


@each_row(
    "issue",
    [
        lambda authority: authority.issue(starts=-3 * DAY, ends=-DAY),
        lambda authority: Authority(authority.own.certificate.subject.rfc4514_string()[3:], now=authority._now).issue(),
        lambda authority: authority.own,
    ],
)
async def test_a_certificate_of_no_authority_is_refused(
    steps: Steps, authority: Authority, issue: Callable[[Authority], Issued]
) -> None:
    with pytest.raises(PermissionDenied):
        await steps.begin(issued=issue(authority))


#: A name that ends in the middle of a character, and one that is a string of bits.
NAMES = [b"\x0c\x08nameles\xff", b"\x03\x08\x00ameless"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_certificate_whose_name_cannot_be_read_is_refused(
    steps: Steps, authority: Authority, name: bytes
) -> None:
    """The authority has signed the certificate, but the device record could not show its name."""
    shown = _unreadable(authority, name)
    with pytest.raises(PermissionDenied):
        await steps.registrations.begin(shown, SECURE_TYPE, "vendor-1")
    pem = x509.load_der_x509_certificate(shown.leaf).public_bytes(Encoding.PEM).decode()
    for read in (read_authorities, read_signer):
        with pytest.raises(BadCertificate, match="no certificate in PEM"):
            read(pem)


def _unreadable(authority: Authority, name: bytes) -> ClientCertificate:
    good = authority.issue("nameless").certificate
    signed = good.tbs_certificate_bytes.replace(b"\x0c\x08nameless", name)
    assert isinstance(authority.own.key, EllipticCurvePrivateKey)
    signature = b"\0" + authority.own.key.sign(signed, ECDSA(SHA256()))
    algorithm = b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02"  # ecdsa-with-SHA256
    parts = signed + algorithm + b"\x03" + bytes([len(signature)]) + signature
    shown = ClientCertificate(b"\x30\x82" + len(parts).to_bytes(2, "big") + parts)
    Authorities([authority.own.der]).check(shown, NOW)
    return shown


async def test_a_new_registration_of_the_same_certificate_ends_the_pending_one(steps: Steps) -> None:
    first = await steps.begin()
    second = await steps.begin()
    assert await steps.status(first) is Status.EXPIRED
    with pytest.raises(NotFound):
        await steps.confirm(first)
    await steps.confirm(second)
    assert (await steps.complete(second)).owner_id == ADA


async def test_another_certificate_cannot_take_a_vendor_id_of_a_pending_registration(
    steps: Steps, authority: Authority, fake_clock: FakeClock
) -> None:
    await steps.begin()
    with pytest.raises(Conflict):
        await steps.begin(issued=authority.issue())
    fake_clock.advance(HOUR_MS)
    await steps.begin(issued=authority.issue())


async def test_a_registered_vendor_id_is_taken(steps: Steps, authority: Authority) -> None:
    await steps.all()
    with pytest.raises(Conflict):
        await steps.begin(issued=authority.issue())


async def test_a_registered_certificate_cannot_register_again(steps: Steps) -> None:
    await steps.all()
    with pytest.raises(Conflict):
        await steps.begin(vendor_id="vendor-2")


# The user's side


async def test_a_pin_can_be_used_once(steps: Steps) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    with pytest.raises(NotFound):
        await steps.confirm(begun)


async def test_of_two_users_who_enter_a_pin_at_once_one_gets_the_device(steps: Steps) -> None:
    begun = await steps.begin()
    outcomes: list[object] = []

    async def enter() -> None:
        try:
            outcomes.append(await steps.confirm(begun))
        except NotFound as refusal:
            outcomes.append(refusal)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter)
        nursery.start_soon(enter)
    assert sorted(isinstance(outcome, NotFound) for outcome in outcomes) == [False, True]


async def test_an_invalid_name_does_not_use_up_the_pin(steps: Steps) -> None:
    begun = await steps.begin()
    with pytest.raises(ValidationFailed):
        await steps.confirm(begun, name="<Board>")
    assert await steps.status(begun) is Status.PENDING_USER_CONFIRMATION
    await steps.confirm(begun)


async def test_devices_cannot_be_created_for_other_users(services: Services, steps: Steps, secure: World) -> None:
    begun = await steps.begin()
    for token, owner in ((BOB_TOKEN, secure.ada), (APPLICATION_TOKEN, secure.bob)):  # Bob granted nothing
        caller = await services.accounts.tokens.caller(token)
        with pytest.raises(PermissionDenied):
            await services.registration.registrations.confirm_new(caller, begun.pin, owner=owner, name="Board")
    assert await steps.status(begun) is Status.PENDING_USER_CONFIRMATION


async def test_an_application_enters_the_pin_for_a_user_who_granted_it(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    application = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    await steps.confirm(begun, caller=application)
    assert (await steps.complete(begun)).owner_id == ADA
    assert (await services.registration.registrations.progress_for(application, begun.id)).status is Status.REGISTERED


async def test_a_device_of_another_type_is_not_attached(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    with pytest.raises(Conflict):
        await services.registration.registrations.confirm_existing(
            steps.ada, begun.pin, await services.devices.registry.find(KITCHEN)
        )


async def test_a_registered_device_is_not_attached_again(
    services: Services, steps: Steps, authority: Authority
) -> None:
    device = await services.devices.registry.find((await steps.all()).device_id)
    begun = await steps.begin(issued=authority.issue(), vendor_id="vendor-2")
    with pytest.raises(Conflict):
        await services.registration.registrations.confirm_existing(steps.ada, begun.pin, device)


async def test_five_wrong_pins_in_ten_minutes_are_enough(
    services: Services, steps: Steps, fake_clock: FakeClock
) -> None:
    begun = await steps.begin()
    registrations = services.registration.registrations
    for _ in range(5):
        with pytest.raises(NotFound):
            await registrations.confirm_new(steps.ada, "22222222", owner=steps.owner, name="Board")
    with pytest.raises(TooManyAttempts) as refusal:
        await steps.confirm(begun)
    assert refusal.value.retry_seconds == 600
    fake_clock.advance(600_000)
    await steps.confirm(begun)


async def test_concurrent_wrong_pins_are_all_counted(steps: Steps) -> None:
    outcomes: list[type[Exception]] = []

    async def guess(pin: str) -> None:
        try:
            await steps.registrations.confirm_new(steps.ada, pin, owner=steps.owner, name="Board")
        except (NotFound, TooManyAttempts) as refusal:
            outcomes.append(type(refusal))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(guess, f"2222{2000 + number}")
    assert outcomes.count(NotFound) == 5
    assert outcomes.count(TooManyAttempts) == 15


async def test_only_the_user_who_entered_the_pin_sees_the_status(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    with pytest.raises(PermissionDenied):
        await services.registration.registrations.progress_for(steps.ada, begun.id)
    await steps.confirm(begun)
    progress = await services.registration.registrations.progress_for(steps.ada, begun.id)
    assert progress.status is Status.PENDING_DEVICE_COMPLETION
    assert progress.device_id is not None
    with pytest.raises(PermissionDenied):
        await services.registration.registrations.progress_for(
            await services.accounts.tokens.caller(BOB_TOKEN), begun.id
        )
    with pytest.raises(NotFound):
        await services.registration.registrations.progress_for(steps.ada, "00" * 16)


# The device's side


async def test_steps_out_of_order_are_refused(steps: Steps) -> None:
    begun = await steps.begin()
    with pytest.raises(Conflict):
        await steps.complete(begun)
    await steps.confirm(begun)
    await steps.complete(begun)
    with pytest.raises(Conflict):
        await steps.complete(begun)


async def test_only_the_certificate_of_step_1_continues(steps: Steps, authority: Authority) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    other = authority.issue().shown
    registrations = steps.registrations
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: registrations.progress(other, begun.id),
        lambda: registrations.complete(other, begun.id, begun.nonce),
    ]
    for call in calls:
        with pytest.raises(PermissionDenied):
            await call()
    with pytest.raises(NotFound):
        await registrations.progress(steps.device.shown, "00" * 16)


async def test_only_the_nonce_of_step_1_completes(steps: Steps) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    with pytest.raises(PermissionDenied):
        await steps.registrations.complete(steps.device.shown, begun.id, "00" * 16)
    assert await steps.status(begun) is Status.PENDING_DEVICE_COMPLETION


async def test_a_certificate_of_a_replaced_authority_cannot_complete(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    await provision_secure_type(services, Authority("Other", now=steps.device.certificate.not_valid_before_utc + DAY))
    with pytest.raises(PermissionDenied):
        await steps.complete(begun)


@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_a_registration_expires_after_an_hour(steps: Steps, fake_clock: FakeClock, is_confirmed: bool) -> None:
    begun = await steps.begin()
    assert begun.expires_on == fake_clock.now + HOUR_MS
    if is_confirmed:
        await steps.confirm(begun)
    fake_clock.advance(HOUR_MS)
    assert await steps.status(begun) is Status.EXPIRED
    with pytest.raises(Conflict):
        await steps.complete(begun)
    if not is_confirmed:
        with pytest.raises(NotFound):
            await steps.confirm(begun)


async def test_a_device_that_was_deleted_before_its_completion_is_not_registered(
    services: Services, steps: Steps
) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    progress = await services.registration.registrations.progress(steps.device.shown, begun.id)
    assert progress.device_id is not None
    await services.devices.inventory.delete(await services.devices.registry.find(progress.device_id))
    assert await steps.status(begun) is Status.REVOKED
    with pytest.raises(Conflict):
        await steps.complete(begun)


@pytest.mark.both_engines
async def test_a_registration_that_the_former_owner_began_ends_with_a_transfer(
    services: Services, secure: World, steps: Steps
) -> None:
    """Else the former owner's machine gets a new token of a device that is somebody else's."""
    begun = await steps.begin()
    await steps.confirm(begun)
    progress = await services.registration.registrations.progress(steps.device.shown, begun.id)
    device = await services.devices.registry.find(progress.device_id or "")
    transfer = await services.devices.transfers.offer(device, uid=BOB)
    await services.devices.transfers.answer(device, transfer, secure.bob, accept=True)
    with pytest.raises(Conflict):
        await steps.complete(begun)
    assert await services.core.database.read(lambda tx: tx.devices.token_of(device.key)) is None


# The end


async def test_revoking_ends_token_and_certificate_and_is_published(services: Services, steps: Steps) -> None:
    completed = await steps.all()
    device, caller = await services.devices.registry.authenticate(completed.device_id, completed.token)
    ended: list[bytes] = []
    services.core.router.subscribe(TokenRevoked, lambda fact: ended.append(fact.hash))
    await services.registration.registrations.revoke(device)
    assert ended == [caller.token]
    assert (device.record.certificate, device.record.vdid) == (None, None)
    with pytest.raises(Unauthorized):
        await services.devices.registry.authenticate(completed.device_id, completed.token)
    with pytest.raises(NotFound):
        await services.registration.registrations.revoke(device)
    again = await steps.begin()
    assert await steps.status(again) is Status.PENDING_USER_CONFIRMATION


async def test_a_registration_that_is_not_completed_can_be_revoked(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    progress = await services.registration.registrations.progress(steps.device.shown, begun.id)
    assert progress.device_id is not None
    await services.registration.registrations.revoke(await services.devices.registry.find(progress.device_id))
    assert await steps.status(begun) is Status.REVOKED
    with pytest.raises(Conflict):
        await steps.complete(begun)


async def test_a_deleted_device_frees_its_vendor_id_and_its_certificate(services: Services, steps: Steps) -> None:
    begun = await steps.begin()
    await steps.confirm(begun)
    completed = await steps.complete(begun)
    await services.devices.inventory.delete(await services.devices.registry.find(completed.device_id))
    assert await steps.status(begun) is Status.REVOKED
    assert (await steps.all()).device_id != completed.device_id


async def test_registrations_that_were_not_completed_are_deleted_after_a_month(
    steps: Steps, authority: Authority, fake_clock: FakeClock
) -> None:
    begun = await steps.begin()
    fake_clock.advance(31 * 24 * HOUR_MS)
    await steps.begin(issued=authority.issue(), vendor_id="vendor-2")
    with pytest.raises(NotFound):
        await steps.status(begun)


# The device record


def test_certificate_info_and_signature(authority: Authority) -> None:
    issued = authority.issue("device-1")
    assert certificate_info(issued.der) == {
        "Issuer-DN": "CN=Example devices",
        "Cert-UID": "",
        "Cert-CN": "device-1",
        "Cert-SN": f"{issued.certificate.serial_number:x}",
        "Cert-FP": certificate_fingerprint(issued),
    }
    assert certificate_signature(issued.der) == issued.certificate.signature.hex()


def certificate_fingerprint(issued: Issued) -> str:
    return hashlib.sha256(issued.der).hexdigest()
