"""The authorities of a device type in a provision file (reference 7.1 and 26)."""

import hashlib
from typing import Any

import pytest

from broker.errors import ValidationFailed
from broker.provisioning import ProvisionReport
from broker.services import Services
from storage.records import DeviceTypeRecord
from tests.certificates import Authority, new_key
from tests.factories import World
from tests.rows import each_row
from tests.secure_types import NOW, SECURE_TYPE, secure_type


@pytest.fixture
def authority() -> Authority:
    return Authority(now=NOW)


async def apply(services: Services, authority: Authority, **changes: Any) -> ProvisionReport:
    return await services.provisioning.apply({"device_types": [secure_type(authority, **changes)]})


async def record(services: Services) -> DeviceTypeRecord:
    return (await services.device_types.catalog.find(SECURE_TYPE)).record


async def authorities(services: Services) -> tuple[bytes, ...]:
    key = (await record(services)).key
    return await services.core.database.read(lambda tx: tx.registrations.authorities(key))


async def test_issuer_dn_is_that_of_the_first_authority(services: Services, world: World, authority: Authority) -> None:
    factory = authority.delegate()
    await apply(services, authority, ca=factory.pem + authority.pem)
    assert await authorities(services) == (factory.own.der, authority.own.der)
    issuer = factory.own.certificate.issuer.public_bytes()
    found = await record(services)
    assert (found.rsp, found.issuer_dn) == (True, hashlib.sha256(issuer).hexdigest()[:32])


async def test_a_second_run_changes_nothing(services: Services, world: World, authority: Authority) -> None:
    await apply(services, authority)
    for changes in ({}, {"ca": authority.pem * 2}):
        report = await apply(services, authority, **changes)
        assert (report.tables["device_types"].changed, report.tables["device_types"].unchanged) == (0, 1)


async def test_authorities_that_are_not_mentioned_stay(services: Services, world: World, authority: Authority) -> None:
    await apply(services, authority)
    entry = {"unique_name": "example.secure_board", "organization": "Acme", "name": "Board"}
    await services.provisioning.apply({"device_types": [entry]})
    assert await authorities(services) == (authority.own.der,)
    assert (await record(services)).rsp


async def test_new_authorities_replace_the_former_ones(services: Services, world: World, authority: Authority) -> None:
    await apply(services, authority)
    other = Authority("Other", now=NOW)
    report = await apply(services, other)
    assert report.tables["device_types"].changed == 1
    assert await authorities(services) == (other.own.der,)


async def test_only_types_with_secure_registration_have_authorities(
    services: Services, world: World, authority: Authority
) -> None:
    await apply(services, authority)
    entry = {"unique_name": "example.secure_board", "organization": "Acme", "rsp": False}
    await services.provisioning.apply({"device_types": [entry]})
    assert await authorities(services) == ()
    assert (await record(services)).issuer_dn is None


@each_row("kind", ["junk", "a device", "with its key", "weak"])
async def test_a_certificate_that_is_no_authority_is_refused_and_changes_nothing(
    services: Services, world: World, authority: Authority, kind: str
) -> None:
    await apply(services, authority)
    pem = {
        "junk": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "a device": authority.pem + authority.issue().pem,
        "with its key": authority.pem + authority.own.key_pem.decode(),
        "weak": authority.delegate(key=new_key("rsa", bits=1024)).pem,
    }[kind]
    with pytest.raises(ValidationFailed) as refusal:
        await apply(services, authority, ca=pem, name="Renamed")
    assert [finding.field for finding in refusal.value.findings] == ["device_types[0].ca"]
    assert await authorities(services) == (authority.own.der,)
    assert (await record(services)).name == "Secure Board"
