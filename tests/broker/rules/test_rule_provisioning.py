"""The table `[[rules]]` of the provision file (reference 26.2)."""

from typing import Any

import pytest

from broker.errors import ValidationFailed
from broker.services import Services
from tests.broker.rules.home import Home, body, when
from tests.factories import BOBS, DASHBOARD, World
from tests.rows import each_row

ENTRY: dict[str, Any] = {
    "owner": "ada@example.org",
    "application": DASHBOARD,
    "name": "Warm",
    "rule": body([when("temperature", ">", 25)]),
}


async def test_a_rule_is_made_changed_and_left_alone(services: Services, world: World) -> None:
    home = Home(services)
    report = await services.provisioning.apply({"rules": [ENTRY]})
    assert report.tables["rules"].created == 1
    await home.says({"temperature": 30})
    assert await home.count() == 1
    report = await services.provisioning.apply({"rules": [ENTRY]})
    assert report.tables["rules"].unchanged == 1
    report = await services.provisioning.apply({"rules": [ENTRY | {"enabled": False}]})
    assert report.tables["rules"].changed == 1
    await home.says({"temperature": 30})
    assert await home.count() == 1


@each_row(
    ("changes", "field", "text"),
    [
        ({"rule": body([when("no", "=", 1)])}, "rules[0].rule.if.and.0.field", 'Field "no" does not exist'),
        ({"rule": body([when("text", "=", "x", BOBS)])}, "rules[0].rule.if.and.0.sdid", "is no longer shared"),
        ({"name": ""}, "rules[0].name", "must have 1 to 64 characters"),
        ({"scope": "mine"}, "rules[0].scope", "invalid enum value"),
        ({"owner": "nobody@example.org"}, "rules[0].owner", "there is no user"),
        ({"application": "Nothing"}, "rules[0].application", "there is no application"),
    ],
)
async def test_a_wrong_entry_changes_nothing(
    services: Services, world: World, changes: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await services.provisioning.apply({"rules": [ENTRY | changes]})
    (finding,) = refused.value.findings
    assert finding.field == field
    assert text in finding.messages[0]
    assert await services.core.database.read(lambda tx: tx.rules.count_of(world.ada)) == 0
