"""Access to topics of the open topic space (reference 16.6).

Without a rule, every device may use every topic. As soon as there is one, a device may do what a rule of it, of its
type or of its owner allows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from broker.devices.registry import Device
from broker.facts import FactPhase, Router, TopicRulesChanged
from broker.topics.tree import matches, without_group
from storage.mqtt_topics import TopicRuleRecord

#: Stands for the device id in the topic of a rule.
_OWN_ID: Final = "%d"


class Reserved(Protocol):
    """Topics that the service has for a purpose of its own. Rules do not count for them; None: it is another topic."""

    def may_publish(self, device: Device, topic: bytes) -> bool | None: ...
    def may_subscribe(self, device: Device, filter_: bytes) -> bool | None: ...


class TopicAccess:
    def __init__(self, router: Router, rules: Iterable[TopicRuleRecord]) -> None:
        self._reserved: list[Reserved] = []
        self._rules: dict[tuple[str, int], list[TopicRuleRecord]] = {}
        self._put(rules)
        router.subscribe(TopicRulesChanged, lambda fact: self._put(fact.rules), FactPhase.STATE)

    def _put(self, rules: Iterable[TopicRuleRecord]) -> None:
        self._rules = {}
        for rule in rules:
            self._rules.setdefault((rule.kind, rule.subject), []).append(rule)

    def reserve(self, reserved: Reserved) -> None:
        """Ask these first."""
        self._reserved.append(reserved)

    def may_publish(self, device: Device, topic: bytes) -> bool:
        for one in self._reserved:
            if (verdict := one.may_publish(device, topic)) is not None:
                return verdict
        return not self._rules or any(rule.publish and matches(pattern, topic) for rule, pattern in self._of(device))

    def may_subscribe(self, device: Device, filter_: bytes) -> bool:
        wanted = without_group(filter_)
        for one in self._reserved:
            if (verdict := one.may_subscribe(device, wanted)) is not None:
                return verdict
        return not self._rules or any(rule.subscribe and covers(pattern, wanted) for rule, pattern in self._of(device))

    def _of(self, device: Device) -> Iterator[tuple[TopicRuleRecord, bytes]]:
        """The rules that concern a device, with their topics for it."""
        record = device.record
        for subject in (("device", record.key), ("device_type", record.device_type), ("user", record.owner)):
            found: Sequence[TopicRuleRecord] = self._rules.get(subject, ())
            for rule in found:
                yield rule, rule.topic.replace(_OWN_ID, device.id).encode()


def covers(pattern: bytes, filter_: bytes) -> bool:
    """Whether `pattern` matches every topic that `filter_` matches."""
    wide, narrow = pattern.split(b"/"), filter_.split(b"/")
    if filter_.startswith(b"$") and wide[0] in {b"+", b"#"}:
        return False
    for index, level in enumerate(wide):
        if level == b"#":
            return True
        if index >= len(narrow) or narrow[index] == b"#" or level not in {b"+", narrow[index]}:
            return False
    return len(wide) == len(narrow)
