"""The declarations of the provision file: its schema, the example, and that all findings are named (reference 26)."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from broker.errors import ValidationFailed
from broker.provisioning.document import TABLES
from broker.provisioning.reading import keys_of, read_document, structs_in
from broker.provisioning.schema import document_schema
from broker.services import Services
from tests.rows import each_row

_ROOT = Path(__file__).parents[2]
_EXAMPLE = _ROOT / "config" / "gateway.example.toml"


def example(*, whole: bool = False) -> dict[str, Any]:
    """The example as it is; `whole`: also what is commented out."""
    text = _EXAMPLE.read_text(encoding="utf-8")
    return tomllib.loads(re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE) if whole else text)


@cache
def schema() -> jsonschema_rs.Draft202012Validator:
    shown = document_schema()
    assert shown["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(shown)
    return jsonschema_rs.Draft202012Validator(shown)


def names_in(kind: type[msgspec.Struct]) -> set[str]:
    return {key.name for inner in structs_in(kind) for key in keys_of(inner)}


def keys_given(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_given(inner)}
    return {key for inner in value for key in keys_given(inner)} if isinstance(value, list) else set()


@pytest.mark.both_engines
async def test_the_example_describes_a_household_and_a_second_run_changes_nothing(services: Services) -> None:
    report = await services.provisioning.apply(example(), survey=True)
    created = {table: counts.created for table, counts in report.tables.items()}
    assert (created["users"], created["applications"], created["device_types"], created["devices"]) == (2, 1, 3, 5)
    assert report.not_in_file == {}
    assert report.notices == []
    again = await services.provisioning.apply(example(), survey=True)
    assert (again.changes, again.generated, again.notices, again.not_in_file) == ([], [], [], {})
    organization = await services.core.database.read(lambda tx: tx.accounts.organization_named("Home"))
    assert organization is not None
    assert organization.monthly_messages == -1


@pytest.mark.both_engines
async def test_the_climate_sensor_of_the_example_sends_csv(services: Services) -> None:
    await services.provisioning.apply(example())
    device = await services.devices.registry.find("d0" * 13 + "000003")
    services.messages.ingest.submit(device, b"21.5,40")
    await services.messages.ingest.wait_committed()
    (message,) = await services.messages.history.latest([device], count=1)
    assert msgspec.json.decode(message.data) == {"temperature": 21.5, "humidity": 40}


def test_the_example_shows_every_table_and_key() -> None:
    whole = example(whole=True)
    assert whole.keys() == TABLES.keys()
    for table, kind in TABLES.items():
        assert names_in(kind) <= keys_given(whole[table]), table


def test_the_example_is_valid_with_all_its_comments_taken_away() -> None:
    whole = example(whole=True)
    assert read_document(whole).findings.found == []
    assert list(schema().iter_errors(whole)) == []
    assert list(schema().iter_errors(example())) == []


@each_row(
    "document",
    [
        {"gadgets": []},
        {"users": {"email": "ada@example.org"}},
        {"users": [{"email": "ada@example.org", "nickname": "x"}]},
        {"users": [{"full_name": "Ada"}]},
        {"users": [{"email": "ada"}]},
        {"users": [{"email": "ada@example.org", "role": "owner"}]},
        {"users": [{"email": "ada@example.org", "password": "short"}]},
        {"organizations": [{"name": "A&B"}]},
        {"organizations": [{"name": "Acme", "monthly_messages": "many"}]},
        {"device_types": [{"unique_name": "Light", "organization": "Acme"}]},
        {"device_types": [{"unique_name": "a.b", "organization": "Acme", "retention_days": -1}]},
        {"device_types": [{"unique_name": "a.b", "organization": "Acme", "manifest": 5}]},
        {"devices": [{"owner": "a", "type": "b", "id": "x"}]},
        {"grants": [{"user": "a", "application": "b", "device_type": "*", "permissions": []}]},
        {
            "applications": [
                {"name": "a", "organization": "b", "permissions": [{"device_type": "*", "permissions": []}]}
            ]
        },
        {"connectors": [{"device_type": "a", "oauth2": {"client_id": "x"}}]},
        {"plans": [{"device_type": "a", "free_messages_per_day": 0}]},
    ],
)
def test_what_the_schema_refuses_is_refused_and_both_are_made_from_the_same_declarations(
    document: dict[str, Any],
) -> None:
    assert not schema().is_valid(document)
    assert read_document(document).findings.found


def test_each_key_has_a_description_in_the_schema_except_those_of_connectors() -> None:
    shown = document_schema()["$defs"]
    for table, kind in TABLES.items():
        for inner in () if table == "connectors" else structs_in(kind):
            for name, key in shown[inner.__name__]["properties"].items():
                assert key.get("description"), (table, name)


def test_the_reference_has_every_table_and_key() -> None:
    reference = (_ROOT / "broker/reference/26-provision-file.md").read_text(encoding="utf-8")
    for table, kind in TABLES.items():
        row = next(line for line in reference.splitlines() if line.startswith(f"| `[[{table}]]`"))
        keys = {key.name for key in keys_of(kind)} if table != "connectors" else {"device_type"}
        assert keys <= set(re.findall(r"`(\w+)`", row)), table


async def test_no_more_than_a_thousand_mistakes_are_named_and_the_others_counted(services: Services) -> None:
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply({"users": [{"email": "x"}] * 1_100})
    assert len(caught.value.findings) == 1_001
    assert caught.value.findings[-1].messages == ("100 more problems",)


_TEN_MISTAKES: dict[str, Any] = {
    "gadgets": [],
    "organizations": [{"name": "Acme", "monthly_messages": "many"}],
    "users": [
        {"email": "ada@example.org"},
        {"email": "bob", "organization": "Acme"},
        {"email": "carol@example.org", "organization": "Nowhere"},
    ],
    "device_types": [{"unique_name": "acme.lamp", "organization": "Acme", "manifest": {"fields": [{"name": "on"}]}}],
    "devices": [
        {"owner": "carol@example.org", "type": "acme.lamp", "name": "explained by the user and the type"},
        {"owner": "nobody@example.org", "type": "no.type", "tokn": "Three of them here"},
    ],
    "scenes": [{"application": "Dashboard", "name": "Night", "actions": [], "owner": 5}],
}


async def test_a_manifest_is_checked_in_an_entry_that_is_wrong_elsewhere(services: Services) -> None:
    wrong = {"unique_name": "No Name", "manifest": {"fields": [{"name": "on"}]}}
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply({"device_types": [wrong, {"manifest": 5}, 5]})
    assert {one.field for one in caught.value.findings} == {
        "device_types[0].unique_name",
        "device_types[0].organization",
        "device_types[0].manifest: fields.0.valueClass",
        "device_types[1].manifest",
        "device_types[1].unique_name",
        "device_types[1].organization",
        "device_types[2]",
    }


async def test_ten_mistakes_are_ten_findings_and_what_comes_of_them_is_none(services: Services) -> None:
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply(_TEN_MISTAKES)
    assert [(one.field, one.messages[0].partition(" (allowed")[0]) for one in caught.value.findings] == [
        ("gadgets", "unknown table"),
        ("organizations[0].monthly_messages", "expected int, got str"),
        ("users[1].email", "must be an e-mail address"),
        ("users[2].organization", "there is no organization 'Nowhere'"),
        ("device_types[0].manifest: fields.0.valueClass", "Required parameter"),
        ("devices[1].tokn", "unknown key"),
        ("devices[1].owner", "there is no user 'nobody@example.org'"),
        ("devices[1].type", "there is no device type 'no.type'"),
        ("scenes[0].owner", "expected str, got int"),
        ("scenes[0].application", "there is no application 'Dashboard'"),
    ]
    assert await services.core.database.read(lambda tx: tx.accounts.organization_named("Acme")) is None
