"""A scene as one text: the table `[[scenes]]` of a provision file (reference 12.5 and 26.2)."""

from typing import Any

import msgspec
import tomli_w

from storage.scenes import SceneRecord


def provision_text(record: SceneRecord) -> str:
    """The scene as TOML. Applied on the same store, it changes nothing; elsewhere, it makes the scene anew."""
    actions = [
        {name: _without_nulls(value) for name in ("ddid", "action", "parameters") if (value := action.get(name))}
        for action in msgspec.json.decode(record.actions, type=list[dict[str, Any]])
    ]
    entry = {
        "id": record.id,
        "owner": record.user_id,
        "application": record.application_id,
        "name": record.name,
        "description": record.description,
        "actions": actions,
    }
    return tomli_w.dumps({"scenes": [entry]})


def _without_nulls(value: Any) -> Any:
    """TOML has no null: a null member is an absent one."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value
