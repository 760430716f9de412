"""The table of targets."""

from collections.abc import Mapping
from typing import Final

from tests.fuzz import documents, mqtt_world, requests, wire
from tests.fuzz.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        Target("mqtt", opened=mqtt_world.opened, longest=256),
        *wire.TARGETS,
        *documents.TARGETS,
        *requests.TARGETS,
    )
}
