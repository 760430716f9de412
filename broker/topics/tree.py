"""Topic filters in a tree, by level: which subscriptions match a topic (MQTT 5.0, section 4.7 and 4.8)."""

import re
from typing import Final

from config.limits import MQTT_TOPIC_BYTES_MAX, MQTT_TOPIC_LEVELS_MAX
from storage.keys import DeviceKey
from storage.mqtt_sessions import TopicSubscriptionRecord

_ONE: Final = b"+"
_REST: Final = b"#"
SHARED: Final = b"$share/"
#: Prefixes of a server's own topics: no device exchanges messages there (MQTT 5.0, 4.7.2).
_SERVERS: Final = (SHARED, b"$SYS/")


def is_topic(topic: bytes) -> bool:
    """Whether a message may have this topic: no wildcards [MQTT-3.3.2-2], not too long, and not a server's."""
    if not topic or b"+" in topic or b"#" in topic or topic.startswith(_SERVERS):
        return False
    return len(topic) <= MQTT_TOPIC_BYTES_MAX and topic.count(b"/") < MQTT_TOPIC_LEVELS_MAX


def is_filter(filter_: bytes) -> bool:
    """Whether wildcards stand for whole levels, and `#` for the last ones [MQTT-4.7.1-1, MQTT-4.7.1-2]."""
    if not 0 < len(filter_) <= MQTT_TOPIC_BYTES_MAX:
        return False
    levels = filter_.split(b"/")
    if len(levels) > MQTT_TOPIC_LEVELS_MAX or _REST in levels[:-1]:
        return False
    return all(level in {_ONE, _REST} or (b"+" not in level and b"#" not in level) for level in levels)


def split_shared(filter_: bytes) -> tuple[bytes, bytes] | None:
    """Group and filter of a shared subscription; None when it is malformed [MQTT-4.8.2-1, MQTT-4.8.2-2]."""
    group, slash, inner = filter_.removeprefix(SHARED).partition(b"/")
    if not group or not slash or not inner or b"+" in group or b"#" in group:
        return None
    return group, inner


def without_group(filter_: bytes) -> bytes:
    """The filter of a subscription, also of a shared one."""
    shared = split_shared(filter_) if filter_.startswith(SHARED) else None
    return filter_ if shared is None else shared[1]


class SharedSubscription:
    """A shared subscription: each message goes to one of its members. The one whose turn it is stands first."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: dict[DeviceKey, TopicSubscriptionRecord] = {}

    def move_to_end(self, device: DeviceKey) -> None:
        self.members[device] = self.members.pop(device)


class _Node:
    __slots__ = ("children", "groups", "subscriptions")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.subscriptions: dict[DeviceKey, TopicSubscriptionRecord] = {}
        self.groups: dict[bytes, SharedSubscription] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.subscriptions or self.groups)


class TopicTree:
    def __init__(self) -> None:
        self._root = _Node()

    def add(self, filter_: bytes, device: DeviceKey, subscription: TopicSubscriptionRecord, group: bytes = b"") -> None:
        node = self._root
        for level in filter_.split(b"/"):
            node = node.children.setdefault(level, _Node())
        if group:
            node.groups.setdefault(group, SharedSubscription()).members[device] = subscription
        else:
            node.subscriptions[device] = subscription

    def remove(self, filter_: bytes, device: DeviceKey, group: bytes = b"") -> None:
        path = [self._root]
        levels = filter_.split(b"/")
        for level in levels:
            node = path[-1].children.get(level)
            if node is None:
                return
            path.append(node)
        leaf = path[-1]
        if group and group in leaf.groups:
            leaf.groups[group].members.pop(device, None)
            if not leaf.groups[group].members:
                del leaf.groups[group]
        elif not group:
            leaf.subscriptions.pop(device, None)
        for parent, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            if parent.children[level].is_empty:
                del parent.children[level]

    def match(self, topic: bytes) -> tuple[list[dict[DeviceKey, TopicSubscriptionRecord]], list[SharedSubscription]]:
        """The subscriptions and the groups whose filters match a topic."""
        levels = topic.split(b"/")
        found: list[_Node] = []
        nodes = [self._root]
        for index, level in enumerate(levels):
            # [MQTT-4.7.2-1]: a wildcard does not match a first level that begins with $.
            wild = index > 0 or not topic.startswith(b"$")
            following: list[_Node] = []
            for node in nodes:
                children = node.children
                if (child := children.get(level)) is not None:
                    following.append(child)
                if wild:
                    if (child := children.get(_ONE)) is not None:
                        following.append(child)
                    if (child := children.get(_REST)) is not None:
                        found.append(child)
            nodes = following
        for node in nodes:
            found.append(node)
            if (child := node.children.get(_REST)) is not None:  # `a/#` matches `a`, too
                found.append(child)
        groups = [group for node in found for group in node.groups.values()]
        return [node.subscriptions for node in found if node.subscriptions], groups


def pattern_of(filter_: bytes) -> re.Pattern[bytes]:
    """A regular expression for the topics that a filter matches: for many topics, faster than `matches`."""
    levels = filter_.split(b"/")
    parts = [b"[^/]*" if level == _ONE else re.escape(level) for level in levels if level != _REST]
    pattern = b"/".join(parts)
    if levels[-1] == _REST:
        pattern += b"(?:/.*)?" if parts else b".*"
    if levels[0] in {_ONE, _REST}:  # [MQTT-4.7.2-1]
        pattern = rb"(?!\$)" + pattern
    return re.compile(pattern, re.DOTALL)


def matches(filter_: bytes, topic: bytes) -> bool:
    """Whether one filter matches a topic."""
    wanted, levels = filter_.split(b"/"), topic.split(b"/")
    if topic.startswith(b"$") and wanted[0] in {_ONE, _REST}:
        return False
    for index, level in enumerate(wanted):
        if level == _REST:
            return True
        if index >= len(levels) or level not in {_ONE, levels[index]}:
            return False
    return len(wanted) == len(levels)
