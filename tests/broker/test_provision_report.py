"""Report of a provisioning run, and later changes by people, which it keeps (reference 26.3)."""

from typing import Any

import pytest
from msgspec.structs import replace

from broker.provisioning import ProvisionReport
from broker.provisioning.report import MASKED, ChangedKey, ChangedObject
from broker.secrets import token_hash
from broker.services import Services
from storage.records import TokenRecord
from storage.transaction import Transaction
from tests.factories import LIGHT_MANIFEST

_KITCHEN = "11" * 16
_HOME: dict[str, Any] = {
    "organizations": [{"name": "Home"}],
    "users": [{"email": "ada@example.org", "full_name": "Ada", "password": "the first password"}],
    "device_types": [{"unique_name": "home.lamp", "organization": "Home", "manifest": dict(LIGHT_MANIFEST)}],
    "applications": [{"name": "Dashboard", "organization": "Home", "secret": "hush"}],
    "devices": [
        {"id": _KITCHEN, "owner": "ada@example.org", "type": "home.lamp", "name": "Kitchen", "token": "22" * 16}
    ],
}
_OTHER_MANIFEST = {"fields": [{"name": "level", "valueClass": "Integer"}]}
_THIRD_MANIFEST = {"fields": [{"name": "watts", "valueClass": "Double"}]}


def lamp(**keys: object) -> dict[str, Any]:
    return {"devices": [{"owner": "ada@example.org", "type": "home.lamp", **keys}]}


def lamp_type(manifest: dict[str, Any]) -> dict[str, Any]:
    return {"device_types": [{"unique_name": "home.lamp", "organization": "Home", "manifest": manifest}]}


def noticed(report: ProvisionReport) -> list[str]:
    return [f"{one.table} {one.name} {one.text}" for one in report.notices]


@pytest.fixture
async def home(services: Services) -> ProvisionReport:
    return await services.provisioning.apply(_HOME)


async def test_each_object_and_key_that_changes_is_named_and_secrets_are_masked(
    services: Services, home: ProvisionReport
) -> None:
    assert [(one.table, one.name, one.created, one.keys) for one in home.changes] == [
        ("organizations", "Home", True, ()),
        ("users", "ada@example.org", True, ()),
        ("device_types", "home.lamp", True, ()),
        ("applications", "Dashboard", True, ()),
        ("devices", "Kitchen", True, ()),
    ]
    report = await services.provisioning.apply(
        {
            "organizations": [{"name": "Home", "monthly_messages": -1}],
            "users": [
                {
                    "email": "ada@example.org",
                    "full_name": "Ada L",
                    "password": "another password",
                    "reset_password": True,
                    "organization": "Home",
                    "role": "administrator",
                }
            ],
            "device_types": [
                {
                    "unique_name": "home.lamp",
                    "organization": "Home",
                    "owner": "ada@example.org",
                    "retention_days": 30,
                    "tags": ["light"],
                    "manifest": _OTHER_MANIFEST,
                }
            ],
            "applications": [{"name": "Dashboard", "organization": "Home", "secret": "other", "methods": ["pkce"]}],
            **lamp(id=_KITCHEN, name="Kitchen lamp", token="33" * 16),
        }
    )
    changed = {(one.table, one.name): one.keys for one in report.changes}
    assert changed == {
        ("organizations", "Home"): (ChangedKey("monthly_messages", 100_000, -1),),
        ("users", "ada@example.org"): (
            ChangedKey("full_name", "Ada", "Ada L"),
            ChangedKey("password", MASKED, MASKED),
            ChangedKey("role in Home", None, "administrator"),
        ),
        ("device_types", "home.lamp"): (
            ChangedKey("tags", [], ["light"]),
            ChangedKey("owner", None, "ada@example.org"),
            ChangedKey("manifest", "version 1", "version 2"),
            ChangedKey("retention_days", None, 30),
        ),
        ("applications", "Dashboard"): (ChangedKey("methods", [], ["pkce"]), ChangedKey("secret", MASKED, MASKED)),
        ("devices", "Kitchen"): (ChangedKey("name", "Kitchen", "Kitchen lamp"), ChangedKey("token", MASKED, MASKED)),
    }
    assert "other" not in repr(report.changes)
    assert "3333" not in repr(report.changes)


@pytest.mark.both_engines
async def test_what_the_store_has_and_the_file_does_not_is_named_when_asked_for(
    services: Services, home: ProvisionReport
) -> None:
    assert home.not_in_file == {}
    report = await services.provisioning.apply({"users": _HOME["users"]}, survey=True)
    assert report.not_in_file == {
        "organizations": ["Home"],
        "device_types": ["home.lamp"],
        "applications": ["Dashboard"],
        "devices": [f"Kitchen (id {_KITCHEN})"],
    }


async def test_a_password_that_its_owner_changed_stays_unless_it_is_reset(
    services: Services, home: ProvisionReport
) -> None:
    def change(tx: Transaction) -> None:
        user = tx.accounts.user_by_email("ada@example.org")
        assert user is not None
        own = services.accounts.passwords.hash("my own password")
        tx.accounts.change_user(user.key, email=user.email, full_name=user.full_name, password_hash=own, now_ms=1)

    async def password_is(text: str) -> bool:
        user = await services.core.database.read(lambda tx: tx.accounts.user_by_email("ada@example.org"))
        assert user is not None
        return services.accounts.passwords.matches(user.password_hash or "", text)

    await services.core.database.write(change)
    report = await services.provisioning.apply(_HOME)
    assert await password_is("my own password")
    assert report.changes == []
    assert ["reset_password = true" in text for text in noticed(report)] == [True]
    entry = {**_HOME["users"][0], "reset_password": True}
    report = await services.provisioning.apply({"users": [entry]})
    assert await password_is("the first password")
    assert report.notices == []
    assert (await services.provisioning.apply({"users": [entry]})).changes == []


async def test_a_manifest_that_was_approved_since_is_superseded_with_force_only(
    services: Services, home: ProvisionReport
) -> None:
    async def latest() -> int:
        return (await services.device_types.catalog.find("home.lamp")).latest.version

    await services.device_types.manifests.upload("home.lamp", _OTHER_MANIFEST, approve=True)
    for document in (dict(LIGHT_MANIFEST), _THIRD_MANIFEST):  # that of the last run, and a newer one
        report = await services.provisioning.apply(lamp_type(document))
        assert await latest() == 2
        assert report.changes == []
        assert ["keeps version 2" in text for text in noticed(report)] == [True]
    # The approved Manifest is in the file now: the next change of the file follows it.
    assert (await services.provisioning.apply(lamp_type(_OTHER_MANIFEST))).notices == []
    report = await services.provisioning.apply(lamp_type(_THIRD_MANIFEST))
    assert report.changes == [
        ChangedObject("device_types", "home.lamp", False, (ChangedKey("manifest", "version 2", "version 3"),))
    ]
    await services.device_types.manifests.upload("home.lamp", _OTHER_MANIFEST, approve=True)
    await services.provisioning.apply(lamp_type(_THIRD_MANIFEST), force=True)
    assert await latest() == 5


async def test_a_manifest_that_waits_for_approval_does_not_make_the_file_a_new_version(
    services: Services, home: ProvisionReport
) -> None:
    waiting = {**_OTHER_MANIFEST, "transform": {"format": "csv", "columns": ["level"]}}
    await services.device_types.manifests.upload("home.lamp", waiting)
    report = await services.provisioning.apply(lamp_type(dict(LIGHT_MANIFEST)))
    assert (report.changes, report.notices) == ([], [])


async def test_a_device_with_a_key_keeps_its_identity_when_it_is_renamed(
    services: Services, home: ProvisionReport
) -> None:
    adopted = await services.provisioning.apply(lamp(key="kitchen", name="Kitchen"))
    assert [one.keys for one in adopted.changes] == [(ChangedKey("key", None, "kitchen"),)]
    renamed = await services.provisioning.apply(lamp(key="kitchen", name="Cooking island"))
    assert [one.keys for one in renamed.changes] == [(ChangedKey("name", "Kitchen", "Cooking island"),)]
    assert (await services.devices.registry.find(_KITCHEN)).record.name == "Cooking island"
    made = await services.provisioning.apply(lamp(key="hall", name="Hall"))
    (new,) = (one.value or "" for one in made.generated if one.key == "id")
    await services.provisioning.apply(lamp(key="hall", name="Corridor"))
    assert (await services.devices.registry.find(new)).record.name == "Corridor"
    await services.provisioning.apply({"users": [{"email": "bob@example.org"}]})
    shared = {"shares": [{"device": "hall", "with": "bob@example.org"}]}
    assert [one.name for one in (await services.provisioning.apply(shared)).changes] == [
        "Corridor with bob@example.org"
    ]


async def test_a_deleted_device_is_restored_by_its_key(services: Services, home: ProvisionReport) -> None:
    await services.provisioning.apply(lamp(key="kitchen", name="Kitchen"))
    await services.devices.inventory.delete(await services.devices.registry.find(_KITCHEN))
    report = await services.provisioning.apply(lamp(key="kitchen", name="Kitchen"))
    assert [one.keys for one in report.changes] == [(ChangedKey("restored", False, True),)]
    assert (await services.devices.registry.find(_KITCHEN)).enabled


async def test_a_rename_that_would_make_a_second_device_is_pointed_out(
    services: Services, home: ProvisionReport
) -> None:
    report = await services.provisioning.apply(lamp(name="Cooking island"), dry_run=True)
    (text,) = noticed(report)
    assert text.startswith("devices Cooking island is a new device.")
    assert f"Kitchen (id {_KITCHEN})" in text
    both = {"devices": [*_HOME["devices"], *lamp(name="Hall")["devices"]]}
    assert (await services.provisioning.apply(both, dry_run=True)).notices == []  # the file has the other one, too


@pytest.mark.both_engines
async def test_a_token_for_somebody_who_has_signed_in_is_generated_once(
    services: Services, home: ProvisionReport
) -> None:
    now_ms = services.core.clock.now_ms()

    def sign_in(tx: Transaction) -> None:
        (application,) = tx.accounts.applications_named("Dashboard")
        user = tx.accounts.user_by_email("ada@example.org")
        assert user is not None
        for holder in (user.key, None):
            record = TokenRecord(token_hash(f"of {holder}"), application.key, holder, now_ms, now_ms + 86_400_000)
            tx.accounts.put_token(record)

    await services.core.database.write(sign_in)
    document = {"tokens": [{"application": "Dashboard", "user": "ada@example.org"}, {"application": "Dashboard"}]}
    report = await services.provisioning.apply(document)
    values = [one.value or "" for one in report.generated]
    assert [(await services.accounts.tokens.caller(value)).kind.value for value in values] == ["user", "application"]
    assert (await services.provisioning.apply(document)).generated == []
    hashed = token_hash(values[0])
    await services.core.database.write(lambda tx: tx.accounts.remove_token(hashed))
    assert [one.name for one in (await services.provisioning.apply(document)).generated] == [
        "Dashboard for ada@example.org"
    ]


async def test_a_connectors_secrets_are_masked(services: Services, home: ProvisionReport) -> None:
    oauth2 = {
        "authorize_url": "https://cloud.example/authorize",
        "token_url": "https://cloud.example/token",
        "client_id": "us",
        "client_secret": "hush-hush",
    }
    await services.provisioning.apply({"connectors": [{"device_type": "home.lamp", "oauth2": oauth2}]})
    other = {"device_type": "home.lamp", "oauth2": oauth2 | {"client_secret": "psst"}, "pull_minutes": 5}
    report = await services.provisioning.apply({"connectors": [other]})
    (change,) = report.changes
    assert set(change.keys) == {ChangedKey("oauth2", MASKED, MASKED), ChangedKey("pull_minutes", None, 5)}
    assert replace(change, keys=()) == ChangedObject("connectors", "home.lamp", created=False)
