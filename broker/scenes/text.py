"""A scene as one text: the table `[[scenes]]` of a provision file (reference 12.5 and 26.2)."""

from typing import Any

import msgspec
import tomli_w

from storage.scenes import SceneRecord


def provision_text(record: SceneRecord) -> str:
    """The scene as TOML. Applied on the same store, it changes nothing; elsewhere, it makes the scene anew."""
    actions = [_known(action) for action in msgspec.json.decode(record.actions, type=list[dict[str, Any]])]
    entry = {
        "id": record.id,
        "owner": record.user_id,
        "application": record.application_id,
        "name": record.name,
        "description": record.description,
        "actions": actions,
    }
    return tomli_w.dumps({"scenes": [entry]})


def _known(action: dict[str, Any]) -> dict[str, Any]:
    """An Action with the members that count: others that its maker sent may be of any form and depth."""
    ddid = action["ddid"]
    if isinstance(ddid, dict):
        ddid = {name: ddid[name] for name in ("selector", "dtid")}
    parameters = _without_nulls(action.get("parameters") or {})
    return {"ddid": ddid, "action": action["action"]} | ({"parameters": parameters} if parameters else {})


def _without_nulls(value: Any) -> Any:
    """TOML has no null: a null member is an absent one."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value
