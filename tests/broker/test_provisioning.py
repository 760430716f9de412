"""Provisioning: what a file creates, that a second run changes nothing, and what is refused (reference 26)."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from broker.accounts.permissions import Permission
from broker.accounts.tokens import TokenKind
from broker.errors import Unauthorized, ValidationFailed
from broker.facts import DeviceChanged, TokenRevoked
from broker.provisioning import Generated, ProvisionReport
from broker.provisioning.document import TABLES
from broker.secrets import token_hash
from broker.services import Services
from storage.records import ManifestRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import LIGHT_MANIFEST
from tests.fakes import FakeClock, HeldRunner
from tests.rows import each_row
from tests.stores import table_names

pytestmark = pytest.mark.slow


ACME, ADA, BOB = "0a" * 16, "ada0" * 8, "b0b0" * 8
DASHBOARD, LIGHT, KITCHEN = "aa" * 16, "dt" + "1e" * 16, "11" * 16
KITCHEN_TOKEN, ADA_TOKEN, APPLICATION_TOKEN = "22" * 16, "33" * 16, "34" * 16
PASSWORD = "correct horse battery staple"

GIVEN: dict[str, Any] = {
    "organizations": [{"id": ACME, "name": "Acme", "monthly_messages": -1}],
    "users": [
        {
            "id": ADA,
            "email": "ada@example.org",
            "full_name": "Ada",
            "password": PASSWORD,
            "organization": "Acme",
            "role": "administrator",
        },
        {"id": BOB, "email": "bob@example.org", "password": PASSWORD},
    ],
    "applications": [
        {
            "id": DASHBOARD,
            "name": "Dashboard",
            "organization": "Acme",
            "secret": "s3cret",
            "redirect_uri": "https://app.example.org/callback",
            "methods": ["authorization_code", "client_credentials"],
            "permissions": [
                {"device_type": "example.smart_light", "permissions": ["READ", "WRITE"]},
                {"device_type": "*", "permissions": ["READ"]},
            ],
        }
    ],
    "device_types": [
        {
            "id": LIGHT,
            "unique_name": "example.smart_light",
            "name": "Smart light",
            "organization": "Acme",
            "published": True,
            "tags": ["home"],
            "rsp": False,
            "manifest": dict(LIGHT_MANIFEST),
        }
    ],
    "devices": [
        {
            "id": KITCHEN,
            "owner": "ada@example.org",
            "type": "example.smart_light",
            "name": "Kitchen light",
            "token": KITCHEN_TOKEN,
        }
    ],
    "tokens": [
        {"value": ADA_TOKEN, "application": DASHBOARD, "user": "ada@example.org", "expires_in": 86400},
        {"value": APPLICATION_TOKEN, "application": DASHBOARD},
    ],
    "grants": [
        {
            "user": "ada@example.org",
            "application": DASHBOARD,
            "device_type": "example.smart_light",
            "permissions": ["READ", "WRITE"],
        }
    ],
}

BARE: dict[str, Any] = {
    "organizations": [{"name": "Acme"}],
    "users": [{"email": "ada@example.org"}],
    "device_types": [{"unique_name": "example.smart_light", "organization": "Acme", "manifest": dict(LIGHT_MANIFEST)}],
    "applications": [{"name": "Dashboard", "organization": "Acme"}],
    "devices": [{"owner": "ada@example.org", "type": "example.smart_light", "name": "Kitchen light"}],
    "tokens": [{"application": "Dashboard", "user": "ada@example.org"}, {"application": "Dashboard"}],
    "grants": [
        {"user": "ada@example.org", "application": "Dashboard", "device_type": "*", "permissions": ["READ"]},
    ],
}


def given(table: str, index: int = 0, /, **changes: Any) -> dict[str, Any]:
    """The full document with some keys of one entry replaced; None takes a key away."""
    document = copy.deepcopy(GIVEN)
    entry = document[table][index]
    for key, value in changes.items():
        if value is None:
            entry.pop(key, None)
        else:
            entry[key] = value
    return document


def counts(report: ProvisionReport) -> dict[str, tuple[int, int, int]]:
    return {table: (one.created, one.changed, one.unchanged) for table, one in report.tables.items()}


async def everything(services: Services) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables, in an order that does not depend on when they were written."""

    def work(tx: Transaction) -> dict[str, list[dict[str, Any]]]:
        rows = {name: tx.connection.execute(f"SELECT * FROM {name}") for name in table_names(tx)}  # noqa: S608
        return {name: sorted(map(dict, of_table), key=repr) for name, of_table in rows.items()}

    return await services.core.database.read(work)


async def refusal(services: Services, document: dict[str, Any]) -> tuple[str, str]:
    """The only finding, beside those of entries that refer to the refused one by another name."""
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply(document)
    finding, *others = caught.value.findings
    assert all(other.messages[0].startswith("there is no ") for other in others)
    return finding.field, finding.messages[0]


async def test_creates_everything_that_the_file_describes(services: Services) -> None:
    report = await services.provisioning.apply(GIVEN)
    assert counts(report) == {
        "organizations": (1, 0, 0),
        "users": (2, 0, 0),
        "device_types": (1, 0, 0),
        "applications": (1, 0, 0),
        "devices": (1, 0, 0),
        "tokens": (2, 0, 0),
        "grants": (1, 0, 0),
    }
    assert report.generated == []

    device, as_device = await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)
    assert (device.record.name, device.owner_id, device.enabled) == ("Kitchen light", ADA, True)
    assert (device.type.id, device.manifest.version, as_device.device_id) == (LIGHT, 1, KITCHEN)

    as_ada = await services.accounts.tokens.caller(ADA_TOKEN)
    assert (as_ada.kind, as_ada.user_id, as_ada.application_id) == (TokenKind.USER, ADA, DASHBOARD)
    assert as_ada.expires_on == services.core.clock.now_ms() + 86_400_000
    as_application = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    assert as_application.kind is TokenKind.APPLICATION
    assert as_application.expires_on == services.core.clock.now_ms() + 86_400_000  # an application token's default
    await services.accounts.permissions.require(as_application, device, Permission.WRITE)

    ada = await services.accounts.users.find(ADA)
    assert (ada.email, ada.name, ada.full_name, ada.account_type) == ("ada@example.org", "ada01", "Ada", "LOCAL")
    assert services.accounts.passwords.matches(ada.password_hash or "", PASSWORD)

    def details(tx: Transaction) -> tuple[object, ...]:
        organization, application = tx.accounts.organization_named("Acme"), tx.accounts.application_by_id(DASHBOARD)
        assert organization is not None
        assert application is not None
        return (
            organization.monthly_messages,
            tx.accounts.role_of(organization.key, ada.key),
            services.core.vault.open(application.secret),
            application.methods,
            application.redirect_uris,
            application.permissions,
        )

    assert await services.core.database.read(details) == (
        -1,
        "administrator",
        "s3cret",
        ("authorization_code", "client_credentials"),
        ("https://app.example.org/callback",),
        (
            {"device_type": LIGHT, "permissions": ["READ", "WRITE"]},
            {"device_type": "*", "permissions": ["READ"]},
        ),
    )


@pytest.mark.parametrize("document", [GIVEN, BARE], ids=["everything given", "nothing given"])
async def test_second_run_changes_nothing(services: Services, fake_clock: FakeClock, document: dict[str, Any]) -> None:
    await services.provisioning.apply(document)
    before = await everything(services)
    fake_clock.advance(60_000)
    report = await services.provisioning.apply(document)
    assert {table: (0, 0, len(document[table])) for table in report.tables} == counts(report)
    assert report.generated == []
    assert await everything(services) == before


async def test_what_is_not_given_is_generated_and_reported(services: Services) -> None:
    report = await services.provisioning.apply(BARE)
    values = {(one.table, one.key): one.value or "" for one in report.generated}
    hexadecimal = "[0-9a-f]{32}"
    forms = {
        ("organizations", "id"): hexadecimal,
        ("users", "id"): hexadecimal,
        ("users", "password"): ".{12,}",
        ("device_types", "id"): f"dt{hexadecimal}",
        ("applications", "id"): hexadecimal,
        ("applications", "secret"): hexadecimal,
        ("devices", "id"): hexadecimal,
        ("devices", "token"): hexadecimal,
        ("tokens", "value"): hexadecimal,
    }
    assert {key: bool(re.fullmatch(form, values[key])) for key, form in forms.items()} == dict.fromkeys(forms, True)
    assert values.keys() == forms.keys()

    device, _ = await services.devices.registry.authenticate(values["devices", "id"], values["devices", "token"])
    assert device.type.id == values["device_types", "id"]
    ada = await services.accounts.users.find(values["users", "id"])
    assert services.accounts.passwords.matches(ada.password_hash or "", values["users", "password"])
    kinds = {
        (await services.accounts.tokens.caller(one.value or "")).kind
        for one in report.generated
        if one.table == "tokens"
    }
    assert kinds == {TokenKind.USER, TokenKind.APPLICATION}


async def test_generated_token_that_expired_is_replaced(services: Services, fake_clock: FakeClock) -> None:
    await services.provisioning.apply(BARE)
    fake_clock.advance(86_400_000)  # the lifetime of the application token; the user token lasts longer
    report = await services.provisioning.apply(BARE)
    assert counts(report)["tokens"] == (1, 0, 1)
    assert [(one.table, one.name) for one in report.generated] == [("tokens", "Dashboard for itself")]


async def test_given_token_that_expired_is_valid_again(services: Services, fake_clock: FakeClock) -> None:
    await services.provisioning.apply(GIVEN)
    fake_clock.advance(86_400_000)
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(ADA_TOKEN)
    report = await services.provisioning.apply(GIVEN)
    assert counts(report)["tokens"] == (0, 2, 0)
    assert (await services.accounts.tokens.caller(ADA_TOKEN)).user_id == ADA


CHANGES: Sequence[tuple[str, dict[str, Any]]] = [
    ("organizations", {"name": "Acme Ltd"}),
    ("organizations", {"monthly_messages": 5}),
    ("users", {"email": "ada@example.net"}),
    ("users", {"full_name": "Ada O'Lovelace"}),
    ("users", {"password": "another good password", "reset_password": True}),
    ("users", {"role": "developer"}),
    ("applications", {"name": "Board"}),
    ("applications", {"secret": "other"}),
    ("applications", {"redirect_uri": "myapp://done"}),
    ("applications", {"methods": ["pkce"]}),
    ("applications", {"permissions": []}),
    ("device_types", {"unique_name": "example.other"}),
    ("device_types", {"name": "Light"}),
    ("device_types", {"published": False}),
    ("device_types", {"protected": True}),
    ("device_types", {"description": "bright"}),
    ("device_types", {"tags": ["home", "light"]}),
    ("device_types", {"retention_days": 30}),
    ("device_types", {"owner": "bob@example.org"}),
    ("device_types", {"vid": "acme"}),
    ("device_types", {"in_store": False}),
    ("devices", {"name": "Lamp"}),
    ("devices", {"token": "44" * 16}),
    ("tokens", {"expires_in": 5}),
    ("tokens", {"user": "bob@example.org"}),
    ("grants", {"permissions": ["READ"]}),
]


@each_row(("table", "change"), CHANGES)
async def test_change_is_applied_once_and_touches_nothing_else(
    services: Services, table: str, change: dict[str, Any]
) -> None:
    await services.provisioning.apply(GIVEN)
    before = await everything(services)
    # Only this entry: other entries may refer to it by the name that changes.
    document = {table: [given(table, **change)[table][0]]}
    report = await services.provisioning.apply(document)
    assert counts(report) == {table: (0, 1, 0)}
    assert report.generated == []
    after = await everything(services)
    # The tags of a type are also in a table of their own, which searches use; a token counts as a sign-in of its user;
    # and the audit log has the change.
    beside = {"device_type_tag", "audit_entry"}
    beside |= {"access_grant"} if table == "tokens" and "user" in change else set()
    assert len([name for name in after if after[name] != before[name] and name not in beside]) == 1
    assert counts(await services.provisioning.apply(document)) == {table: (0, 0, 1)}
    assert await everything(services) == after


@each_row(
    ("table", "key"),
    [
        ("organizations", "monthly_messages"),
        ("users", "full_name"),
        ("users", "password"),
        ("users", "role"),
        ("users", "id"),
        ("applications", "secret"),
        ("applications", "methods"),
        ("applications", "permissions"),
        ("applications", "id"),
        ("device_types", "published"),
        ("device_types", "manifest"),
        ("device_types", "tags"),
        ("device_types", "id"),
        ("devices", "id"),
        ("devices", "token"),
        ("devices", "name"),
    ],
)
async def test_what_a_later_file_leaves_out_stays(services: Services, table: str, key: str) -> None:
    await services.provisioning.apply(GIVEN)
    before = await everything(services)
    document = {table: [given(table, 0, **{key: None})[table][0]]}
    report = await services.provisioning.apply(document)
    assert counts(report) == {table: (0, 0, 1)}
    assert report.generated == []
    assert await everything(services) == before


async def test_manifest_that_differs_is_a_new_version(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    device = await services.devices.registry.find(KITCHEN)
    reordered = {"actions": LIGHT_MANIFEST["actions"], "fields": LIGHT_MANIFEST["fields"]}
    assert counts(await services.provisioning.apply(given("device_types", manifest=reordered)))["device_types"] == (
        0,
        0,
        1,
    )
    assert device.manifest.version == 1
    other = {"fields": [{"name": "level", "valueClass": "Integer"}]}
    report = await services.provisioning.apply(given("device_types", manifest=other))
    assert counts(report)["device_types"] == (0, 1, 0)
    assert device.manifest.version == 2  # the shared device object was refreshed
    versions = await services.core.database.read(lambda tx: tx.device_types.manifests(device.type_key))
    assert [(one.version, json.loads(one.document)) for one in versions] == [(1, dict(LIGHT_MANIFEST)), (2, other)]
    assert isinstance(versions[0], ManifestRecord)


async def test_replaced_device_token_is_revoked(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)
    revoked: list[TokenRevoked] = []
    services.core.router.subscribe(TokenRevoked, revoked.append)
    await services.provisioning.apply(given("devices", token="44" * 16))
    assert revoked == [TokenRevoked(token_hash(KITCHEN_TOKEN))]
    with pytest.raises(Unauthorized):
        await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)
    await services.devices.registry.authenticate(KITCHEN, "44" * 16)


async def test_changed_device_is_announced(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    device = await services.devices.registry.find(KITCHEN)
    changed: list[DeviceChanged] = []
    services.core.router.subscribe(DeviceChanged, changed.append)
    await services.provisioning.apply(given("devices", name="Lamp"))
    assert changed == [DeviceChanged(device.key)]
    assert device.record.name == "Lamp"


async def test_token_that_changes_hands_ends_its_connections(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    revoked: list[TokenRevoked] = []
    services.core.router.subscribe(TokenRevoked, revoked.append)
    await services.provisioning.apply(given("tokens", user="bob@example.org"))
    assert revoked == [TokenRevoked(token_hash(ADA_TOKEN))]


@pytest.mark.both_engines
async def test_dry_run_reports_and_changes_nothing(services: Services) -> None:
    before = await everything(services)
    report = await services.provisioning.apply(BARE, dry_run=True)
    assert report.dry_run
    assert counts(report)["devices"] == (1, 0, 0)
    assert Generated("devices", "Kitchen light", "token", None) in report.generated
    assert {one.value for one in report.generated} == {None}
    assert await everything(services) == before


async def test_dry_run_of_a_new_token_revokes_nothing(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    revoked: list[TokenRevoked] = []
    services.core.router.subscribe(TokenRevoked, revoked.append)
    report = await services.provisioning.apply(given("devices", token="44" * 16), dry_run=True)
    assert counts(report)["devices"] == (0, 1, 0)
    assert revoked == []
    await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)


@pytest.mark.both_engines
async def test_error_in_the_last_entry_undoes_all_of_them(services: Services) -> None:
    before = await everything(services)
    place, _ = await refusal(services, given("grants", user="nobody@example.org"))
    assert place == "grants[0].user"
    assert await everything(services) == before


@each_row(
    ("email", "names"),
    [
        ("ada@example.org", ["ada01", "ada02", "ada03"]),
        ("Grace.Hopper+navy@example.org", ["grace.hopper_navy", "grace.hopper_navy1", "grace.hopper_navy2"]),
        ("a@example.org", ["a0001", "a0002", "a0003"]),
        ("x" * 40 + "@example.org", ["x" * 36, "x" * 35 + "1", "x" * 35 + "2"]),
        ("é@example.org", ["_0001", "_0002", "_0003"]),
    ],
)
async def test_user_name_is_the_local_part_made_unique(services: Services, email: str, names: list[str]) -> None:
    emails = [email, email.replace(".org", ".net"), email.replace(".org", ".com")]
    await services.provisioning.apply({"users": [{"email": one} for one in emails]})
    users = await services.core.database.read(lambda tx: [tx.accounts.user_by_email(one) for one in emails])
    assert [user.name for user in users if user is not None] == names


async def test_address_in_other_case_is_the_same_user(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    report = await services.provisioning.apply({"users": [{"email": "ADA@example.org"}]})
    assert counts(report) == {"users": (0, 0, 1)}


async def test_a_common_password_is_refused_where_it_would_be_set(services: Services) -> None:
    def carol(**more: object) -> dict[str, Any]:
        return {"users": [{"email": "carol@example.org", "password": "password1", **more}]}

    refused = ("users[0].password", "is one of the most common passwords")
    assert await refusal(services, carol()) == refused
    await services.provisioning.apply(carol(password=PASSWORD))
    assert await refusal(services, carol(reset_password=True)) == refused
    kept = await services.provisioning.apply(carol())  # an existing user keeps their own
    assert kept.tables["users"].unchanged == 1


async def test_password_that_fits_is_not_hashed_again(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    before = (await services.accounts.users.find(ADA)).password_hash
    await services.provisioning.apply(given("users", full_name="Ada L"))
    assert (await services.accounts.users.find(ADA)).password_hash == before


REFUSALS: Sequence[tuple[Callable[[], dict[str, Any]], str, str]] = [
    # Entries by themselves
    (
        lambda: {"gadgets": []},
        "gadgets",
        f"unknown table (allowed: {', '.join(TABLES)})",
    ),
    (lambda: {"users": {}}, "users", "expected [[users]], got a table"),
    (
        lambda: given("users", nickname="x"),
        "users[0].nickname",
        "unknown key (allowed: id, email, full_name, password, reset_password, take_over, organization, role)",
    ),
    (lambda: given("users", 1, email=None), "users[1].email", "required"),
    (lambda: given("users", full_name=5), "users[0].full_name", "expected str, got int"),
    (
        lambda: given("users", role="owner"),
        "users[0].role",
        "invalid enum value 'owner' (allowed: administrator, developer, viewer)",
    ),
    (lambda: given("users", id="ABC"), "users[0].id", "must be 32 lower-case hexadecimal characters"),
    (lambda: given("users", email="ada"), "users[0].email", "must be an e-mail address"),
    (lambda: given("users", password="7 chars"), "users[0].password", "must have 8 to 1024 characters"),
    (lambda: given("users", full_name=""), "users[0].full_name", "must have 1 to 64 characters"),
    (lambda: given("organizations", name="A&B"), "organizations[0].name", "must not contain any of \" & ' < >"),
    (lambda: given("organizations", name="x" * 65), "organizations[0].name", "must have 1 to 64 characters"),
    (
        lambda: given("organizations", monthly_messages=-2),
        "organizations[0].monthly_messages",
        "must be -1 (unlimited) to 1000000000000000",
    ),
    (lambda: given("device_types", retention_days=-1), "device_types[0].retention_days", "0 (for ever) to 36500"),
    (lambda: given("device_types", retention_days=36_501), "device_types[0].retention_days", "0 (for ever) to 36500"),
    (lambda: given("device_types", tags=["a,b"]), "device_types[0].tags", "must not contain commas"),
    (lambda: given("device_types", tags=["home", ""]), "device_types[0].tags", "must have 1 to 64 characters"),
    (lambda: given("device_types", vid=""), "device_types[0].vid", "must have 1 to 64 characters"),
    (
        lambda: given("device_types", description="x" * 1501),
        "device_types[0].description",
        "must be at most 1500 characters",
    ),
    (lambda: given("device_types", owner="x"), "device_types[0].owner", "there is no user 'x'"),
    (
        lambda: given("applications", methods=["magic"]),
        "applications[0].methods[0]",
        "invalid enum value 'magic' (allowed: authorization_code, pkce, implicit, limited_input, client_credentials)",
    ),
    (lambda: given("applications", redirect_uri="/x"), "applications[0].redirect_uri", "must be an absolute URI"),
    (lambda: given("applications", secret="x" * 129), "applications[0].secret", "must be 1 to 128 characters"),
    (
        lambda: given("applications", permissions=[{"device_type": "*", "permissions": ["ALL"]}]),
        "applications[0].permissions[0].permissions[0]",
        "invalid enum value 'ALL' (allowed: READ, WRITE)",
    ),
    (
        lambda: given("applications", permissions=[{"device_type": "*", "permissions": []}]),
        "applications[0].permissions[0].permissions",
        "must have READ, WRITE or both",
    ),
    (lambda: given("device_types", id="a b"), "device_types[0].id", "must be 1 to 64 characters of A-Z a-z 0-9 _ . -"),
    (
        lambda: given("device_types", unique_name="Light"),
        "device_types[0].unique_name",
        "must be a lower-case dotted name such as example.smart_light",
    ),
    (
        lambda: given("device_types", manifest="light.json"),
        "device_types[0].manifest",
        "expected object, got str",
    ),
    (
        lambda: given("device_types", manifest={"fields": [{"name": "x"}]}),
        "device_types[0].manifest: fields.0.valueClass",
        "Required parameter",
    ),
    (
        lambda: given("device_types", manifest={}),
        "device_types[0].manifest: manifest",
        "manifest content invalid or empty",
    ),
    (lambda: given("devices", name="<b>"), "devices[0].name", "must not contain any of \" & ' < >"),
    (
        lambda: given("devices", token="2222222222222222222222222222222G"),
        "devices[0].token",
        "must be 32 lower-case hexadecimal characters",
    ),
    (
        lambda: given("devices", token="AA" * 16),
        "devices[0].token",
        "must be 32 lower-case hexadecimal characters",
    ),
    (lambda: given("devices", token="22" * 15), "devices[0].token", "must be 32 lower-case hexadecimal characters"),
    (lambda: given("tokens", value="short"), "tokens[0].value", "must be 32 lower-case hexadecimal characters"),
    (lambda: given("tokens", expires_in=0), "tokens[0].expires_in", "must be 1 to 10000000000 seconds"),
    (lambda: given("grants", permissions=[]), "grants[0].permissions", "must have READ, WRITE or both"),
    # Secure registration
    (lambda: given("device_types", rsp=True), "device_types[0].ca", "required with rsp = true"),
    (lambda: given("device_types", ca="x"), "device_types[0].ca", "only with rsp = true"),
    (lambda: given("device_types", rsp=True, ca="x"), "device_types[0].ca", "no certificate in PEM"),
    (lambda: {"shares": [{"device": KITCHEN}]}, "shares[0].with", "required"),
    (lambda: {"firmware": [{"device_type": "x", "version": "1"}]}, "firmware[0].file", "required"),
    # References to other entries
    (lambda: given("users", organization="Nope"), "users[0].organization", "there is no organization 'Nope'"),
    (lambda: given("users", 1, role="viewer"), "users[1].organization", "required with a role"),
    (
        lambda: given("applications", organization="Nope"),
        "applications[0].organization",
        "there is no organization 'Nope'",
    ),
    (
        lambda: given("device_types", organization="Nope"),
        "device_types[0].organization",
        "there is no organization 'Nope'",
    ),
    (
        lambda: given("applications", permissions=[{"device_type": "no.type", "permissions": ["READ"]}]),
        "applications[0].permissions[0].device_type",
        "there is no device type 'no.type'",
    ),
    (lambda: given("devices", owner="x@example.org"), "devices[0].owner", "there is no user 'x@example.org'"),
    (lambda: given("devices", type="no.type"), "devices[0].type", "there is no device type 'no.type'"),
    (lambda: given("tokens", application="Nope"), "tokens[0].application", "there is no application 'Nope'"),
    (lambda: given("tokens", user="x@example.org"), "tokens[0].user", "there is no user 'x@example.org'"),
    (lambda: given("grants", application="Nope"), "grants[0].application", "there is no application 'Nope'"),
    (lambda: given("grants", device_type="no.type"), "grants[0].device_type", "there is no device type 'no.type'"),
    # Two entries for one object
    (lambda: given("tokens", value=KITCHEN_TOKEN), "tokens[0].value", "a device has this token"),
    (lambda: given("tokens", 1, value=ADA_TOKEN), "tokens[1]", "the same as tokens[0]"),
    (lambda: given("users", 1, id=ADA), "users[1].email", "'bob@example.org' has another id: " + BOB),
]


@each_row(("document", "place", "problem"), REFUSALS)
async def test_refusal_names_table_index_and_key(
    services: Services, document: Callable[[], dict[str, Any]], place: str, problem: str
) -> None:
    await services.provisioning.apply({"users": [{"id": BOB, "email": "bob@example.org"}]})
    before = await everything(services)
    assert await refusal(services, document()) == (place, problem)
    assert await everything(services) == before


HALL = {"id": "12" * 16, "owner": "ada@example.org", "type": "example.smart_light", "name": "Hall"}


@each_row(
    ("document", "place", "problem"),
    [
        (
            {"devices": [{**HALL, "token": KITCHEN_TOKEN}]},
            "devices[0].token",
            "somebody else has this token",
        ),
        ({"devices": [{**HALL, "token": ADA_TOKEN}]}, "devices[0].token", "somebody else has this token"),
        (
            {"devices": [{**GIVEN["devices"][0], "owner": "bob@example.org"}]},
            "devices[0].owner",
            f"the device {KITCHEN} belongs to somebody else",
        ),
        (
            {
                "device_types": [{"unique_name": "example.other", "organization": "Acme"}],
                "devices": [{**GIVEN["devices"][0], "type": "example.other"}],
            },
            "devices[0].type",
            f"the device {KITCHEN} has another type, and keeps it",
        ),
        (
            {
                "devices": [{**HALL, "id": one, "name": "Twin"} for one in ("13" * 16, "14" * 16)]
                + [{"owner": "ada@example.org", "type": "example.smart_light", "name": "Twin"}]
            },
            "devices[2].id",
            "required: 2 devices fit this entry",
        ),
        (
            {"devices": [GIVEN["devices"][0]] * 2},
            "devices[1]",
            "the same as devices[0]",
        ),
        (
            {"organizations": [{"id": "0b" * 16, "name": "Acme"}]},
            "organizations[0].name",
            f"'Acme' has another id: {ACME}",
        ),
        (
            {"device_types": [{"id": "other", "unique_name": "example.smart_light", "organization": "Acme"}]},
            "device_types[0].unique_name",
            f"'example.smart_light' has another id: {LIGHT}",
        ),
        (
            {
                "applications": [{"id": "ab" * 16, "name": "Dashboard", "organization": "Acme"}],
                "tokens": [{"application": "Dashboard"}],
            },
            "tokens[0].application",
            "several applications have the name 'Dashboard'",
        ),
    ],
)
async def test_refusal_of_what_clashes_with_the_store(
    services: Services, document: dict[str, Any], place: str, problem: str
) -> None:
    await services.provisioning.apply(GIVEN)
    before = await everything(services)
    assert await refusal(services, document) == (place, problem)
    assert await everything(services) == before


async def test_every_finding_of_a_manifest_is_named(services: Services) -> None:
    broken = {"fields": [{"name": "a"}, {"name": "b", "valueClass": "Colour"}]}
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply(given("device_types", manifest=broken))
    assert [finding.field for finding in caught.value.findings] == [
        "device_types[0].manifest: fields.0.valueClass",
        "device_types[0].manifest: fields.1.valueClass",
    ]


async def test_a_commit_is_announced_also_when_its_task_was_cancelled(
    opener: ServicesOpener,
) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await services.provisioning.apply(GIVEN)
        caller = await services.accounts.tokens.caller(ADA_TOKEN)  # now it is cached
        (token,) = [entry for entry in GIVEN["tokens"] if entry.get("value") == ADA_TOKEN]
        moved = {**GIVEN, "tokens": [{**token, "user": "bob@example.org"}]}
        await trio.testing.wait_all_tasks_blocked()  # new types have their failed messages read again
        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.provisioning.apply, moved)
            await runner.holds_commit.wait()  # passwords were hashed in threads before
            nursery.cancel_scope.cancel()
            runner.commits.set()
        assert caller.user_id == ADA
        assert (await services.accounts.tokens.caller(ADA_TOKEN)).user_id == BOB


@pytest.mark.both_engines
async def test_a_user_token_counts_as_a_sign_in_and_revokes_nothing_that_was_granted(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    await services.provisioning.apply({"grants": [{**GIVEN["grants"][0], "device_type": "*"}]})
    token = {"application": "Dashboard", "user": "bob@example.org", "value": "4b" * 16}
    await services.provisioning.apply({"tokens": [token, {**GIVEN["tokens"][0]}]})
    rows = await services.core.database.read(
        lambda tx: list(tx.connection.execute("SELECT user, device_type, can_read, can_write FROM access_grant"))
    )
    found = {(row["user"], row["device_type"] is None, row["can_read"], row["can_write"]) for row in rows}
    assert {(1, True, 1, 1), (2, True, 0, 0)} <= found


async def test_the_profile_is_asked_for_and_granted_like_a_device_type(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    request = [{"device_type": "profile", "permissions": ["WRITE"]}]
    change = given("applications", permissions=request)["applications"][0]
    assert counts(await services.provisioning.apply({"applications": [change]})) == {"applications": (0, 1, 0)}
    entry = {**GIVEN["grants"][0], "device_type": "profile", "permissions": ["WRITE"]}
    for expected in ((1, 0, 0), (0, 0, 1)):
        assert counts(await services.provisioning.apply({"grants": [entry]})) == {"grants": expected}
    # It stands beside the grant of a sign-in, and a grant on every type beside both.
    for permissions, expected in ((["READ"], (1, 0, 0)), (["READ", "WRITE"], (0, 1, 0))):
        every = entry | {"device_type": "*", "permissions": permissions}
        assert counts(await services.provisioning.apply({"grants": [every]})) == {"grants": expected}
    assert counts(await services.provisioning.apply({"grants": [entry]})) == {"grants": (0, 0, 1)}
    withdrawn = entry | {"permissions": ["READ"]}  # which every application has
    assert counts(await services.provisioning.apply({"grants": [withdrawn]})) == {"grants": (0, 1, 0)}


async def test_trials_are_asked_for_and_granted_like_a_device_type(services: Services) -> None:
    await services.provisioning.apply(GIVEN)
    request = [{"device_type": "trials", "permissions": ["READ", "WRITE"]}]
    change = given("applications", permissions=request)["applications"][0]
    assert counts(await services.provisioning.apply({"applications": [change]})) == {"applications": (0, 1, 0)}
    entry = {**GIVEN["grants"][0], "device_type": "trials", "permissions": ["READ", "WRITE"]}
    for expected in ((1, 0, 0), (0, 0, 1)):
        assert counts(await services.provisioning.apply({"grants": [entry]})) == {"grants": expected}
