"""A rule as one text: the table `[[rules]]` of a provision file (reference 12.1 and 26.2)."""

from typing import Any

import msgspec
import tomli_w

from storage.rules import RuleRecord


def provision_text(record: RuleRecord) -> str:
    """The rule as TOML. Applied on the same store, it changes nothing; elsewhere, it makes the rule anew."""
    entry = {
        "id": record.id,
        "owner": record.owner_id,
        "application": record.application_id,
        "name": record.name,
        "description": record.description,
        "scope": record.scope,
        "enabled": record.enabled,
        "rule": without_nulls(msgspec.json.decode(record.body)),
    }
    return tomli_w.dumps({"rules": [entry]})


def without_nulls(value: Any) -> Any:
    """TOML has no null: a null member is an absent one."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
