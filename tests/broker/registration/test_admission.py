"""Admission of securely registered devices (reference 7.1)."""

import pytest

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import PermissionDenied
from broker.registration.certificates import ClientCertificate
from broker.services import Services
from tests.certificates import DAY, Authority, Issued
from tests.factories import ADA_TOKEN, HALL, KITCHEN_TOKEN, World
from tests.fakes import FakeClock
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type

DAY_MS = 86_400_000


@pytest.fixture
def issued(authority: Authority) -> Issued:
    return authority.issue(ends=30 * DAY)


@pytest.fixture
async def board(services: Services, secure: World, ada: Caller, issued: Issued) -> Device:
    """A device that is registered with the certificate."""
    begun = await services.registration.registrations.begin(issued.shown, SECURE_TYPE, "vendor-1")
    await services.registration.registrations.confirm_new(ada, begun.pin, owner=secure.ada, name="Board")
    completed = await services.registration.registrations.complete(issued.shown, begun.id, begun.nonce)
    return await services.devices.registry.find(completed.device_id)


def refused(services: Services, device: Device, shown: ClientCertificate | None) -> bool:
    try:
        services.registration.admission.check(device, shown)
    except PermissionDenied:
        return True
    return False


async def test_the_registered_certificate_is_admitted(services: Services, board: Device, issued: Issued) -> None:
    services.registration.admission.check(board, issued.shown)


async def test_no_other_certificate_is_admitted(
    services: Services, board: Device, authority: Authority, issued: Issued
) -> None:
    assert refused(services, board, None)
    assert refused(services, board, authority.issue().shown)
    assert refused(services, board, Authority("device-1", now=NOW, extensions=()).own.shown)
    assert refused(services, board, authority.issue(key=issued.key).shown)


async def test_an_expired_certificate_is_refused(
    services: Services, board: Device, issued: Issued, fake_clock: FakeClock
) -> None:
    fake_clock.advance(29 * DAY_MS)
    assert not refused(services, board, issued.shown)
    fake_clock.advance(2 * DAY_MS)
    assert refused(services, board, issued.shown)


async def test_a_certificate_of_a_former_authority_is_refused(
    services: Services, board: Device, issued: Issued
) -> None:
    await provision_secure_type(services, Authority("Other", now=NOW))
    assert refused(services, board, issued.shown)


@pytest.mark.both_engines
async def test_a_revoked_device_is_refused(services: Services, board: Device, issued: Issued) -> None:
    await services.registration.registrations.revoke(board)
    assert refused(services, board, issued.shown)


async def test_a_device_that_is_not_registered_is_refused(
    services: Services, secure: World, ada: Caller, issued: Issued
) -> None:
    begun = await services.registration.registrations.begin(issued.shown, SECURE_TYPE, "vendor-1")
    await services.registration.registrations.confirm_new(ada, begun.pin, owner=secure.ada, name="Board")
    progress = await services.registration.registrations.progress(issued.shown, begun.id)
    assert progress.device_id is not None
    assert refused(services, await services.devices.registry.find(progress.device_id), issued.shown)


async def test_other_devices_need_no_certificate_and_may_present_any(
    services: Services, secure: World, issued: Issued
) -> None:
    light = await services.devices.registry.find(HALL)
    for shown in (None, issued.shown, ClientCertificate(b"junk")):
        services.registration.admission.check(light, shown)


async def test_tokens_of_users_and_other_devices_need_no_certificate(services: Services, secure: World) -> None:
    for token in (ADA_TOKEN, KITCHEN_TOKEN):
        await services.registration.admission.check_caller(await services.accounts.tokens.caller(token), None)
