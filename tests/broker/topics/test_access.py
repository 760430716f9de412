"""Access to open topics: rules of the provision file (reference 16.6 and 26.2)."""

import pytest

from broker.errors import ValidationFailed
from broker.services import Services
from broker.topics.access import covers
from config.settings import Settings
from tests.factories import BOBS, HALL, KITCHEN, World
from tests.rows import each_row


@each_row(
    ("pattern", "filter_", "is_covered"),
    [
        (b"#", b"a/b", True),
        (b"#", b"#", True),
        (b"#", b"$SYS/#", False),
        (b"a/#", b"a", True),
        (b"a/#", b"a/+/c/#", True),
        (b"a/#", b"#", False),
        (b"a/#", b"+/b", False),
        (b"a/+", b"a/+", True),
        (b"a/+", b"a/b", True),
        (b"a/+", b"a/#", False),
        (b"a/+", b"a/b/c", False),
        (b"a/b", b"a/+", False),
        (b"a/b", b"a/b", True),
        (b"a/b", b"a", False),
    ],
)
def test_what_a_rule_covers(pattern: bytes, filter_: bytes, is_covered: bool) -> None:
    assert covers(pattern, filter_) is is_covered


async def test_without_a_rule_everything_is_allowed(services: Services, world: World) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    access = services.topics.access
    assert access.may_publish(kitchen, b"a")
    assert access.may_subscribe(kitchen, b"#")


@pytest.mark.both_engines
async def test_with_a_rule_only_what_rules_allow(services: Services, world: World) -> None:
    kitchen, hall, bobs = [await services.devices.registry.find(id_) for id_ in (KITCHEN, HALL, BOBS)]
    document = {
        "topic_rules": [
            {"device": KITCHEN, "topic": "rooms/%d/#", "publish": True, "subscribe": True},
            {"device_type": hall.type.id, "topic": "news/+", "subscribe": True},
            {"user": bobs.owner_id, "topic": "bob", "publish": True},
        ]
    }
    report = await services.provisioning.apply(document)
    assert report.tables["topic_rules"].created == 3
    access = services.topics.access
    own = f"rooms/{KITCHEN}/lamp".encode()
    assert access.may_publish(kitchen, own)
    assert not access.may_publish(hall, own)
    assert access.may_subscribe(kitchen, f"$share/g/rooms/{KITCHEN}/#".encode())
    assert not access.may_subscribe(kitchen, b"rooms/#")
    assert access.may_subscribe(hall, b"news/today")
    assert not access.may_publish(hall, b"news/today")
    assert access.may_publish(bobs, b"bob")
    assert not access.may_publish(kitchen, b"bob")
    again = await services.provisioning.apply(document)
    assert again.tables["topic_rules"].unchanged == 3
    document["topic_rules"][0]["publish"] = False
    changed = await services.provisioning.apply(document)
    assert changed.tables["topic_rules"].changed == 1
    assert not access.may_publish(kitchen, own)


@each_row(
    ("rule", "field"),
    [
        ({"topic": "a"}, "topic_rules[0].device"),
        ({"device": KITCHEN, "user": "ada@example.org", "topic": "a"}, "topic_rules[0].device"),
        ({"device": "9" * 32, "topic": "a"}, "topic_rules[0].device"),
        ({"device": KITCHEN, "topic": "a/#/b"}, "topic_rules[0].topic"),
        ({"device": KITCHEN, "topic": "/v1.1/#"}, "topic_rules[0].topic"),
        ({"device": KITCHEN}, "topic_rules[0].topic"),
    ],
)
async def test_a_rule_that_cannot_be(
    services: Services, world: World, settings: Settings, rule: dict[str, object], field: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply({"topic_rules": [rule]})
    assert caught.value.findings[0].field == field
