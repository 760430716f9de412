"""The topics of devices in Home Assistant, and who may use them (reference 16.7).

The whole of `trunkline/` is the service's, and so are the topics under a discovery prefix at which it announces
devices. A device publishes to set topics only, of devices that its owner has.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.devices.registry import Device
from storage.keys import UserKey

ROOT: Final = b"trunkline/"
#: Begins the identity of a device in Home Assistant, before its id.
IDENTITY: Final = "tl_"
_SET: Final = re.compile(rb"trunkline/([^/]+)/set/([^/]+)")
_ANNOUNCED: Final = re.compile(rb"(.+)/device/tl_[^/]+/config")


def reserved_pattern(prefixes: frozenset[str]) -> re.Pattern[bytes]:
    """The topics that are the service's with these discovery prefixes."""
    heads = b"|".join(re.escape(one.encode()) for one in sorted(prefixes))
    return re.compile(rb"trunkline(/.*)?|(" + heads + rb")/device/tl_[^/]+/config", re.DOTALL)


def config_topic(prefix: str, device_id: str) -> bytes:
    return f"{prefix}/device/{IDENTITY}{device_id}/config".encode()


def own_topic(device_id: str, last: str) -> bytes:
    return f"trunkline/{device_id}/{last}".encode()


def asked(topic: bytes) -> tuple[str, str] | None:
    """Device id and command of a set topic; None for another topic."""
    found = _SET.fullmatch(topic)
    return None if found is None else (found[1].decode(errors="replace"), found[2].decode(errors="replace"))


@dataclass(eq=False)
class ReservedTopics:
    """See `broker/topics/access.py: Reserved`.

    Args:
        prefixes: the discovery prefixes that are announced under; empty: nothing is the service's.
        has_home: whether devices are announced to a user.
        shows: whether a device, by its id, is announced to a user.
    """

    _prefixes: Callable[[], frozenset[str]]
    _has_home: Callable[[UserKey], bool]
    _shows: Callable[[str, UserKey], bool]

    def may_publish(self, device: Device, topic: bytes) -> bool | None:
        if topic.startswith(ROOT):
            if not self._prefixes():
                return None
            set_topic = asked(topic)
            return set_topic is not None and self._shows(set_topic[0], device.owner)
        found = _ANNOUNCED.fullmatch(topic)
        return None if found is None or found[1].decode(errors="replace") not in self._prefixes() else False

    def may_subscribe(self, device: Device, filter_: bytes) -> bool | None:
        """A filter that names the topics of one device, or those of all, is for users to whom they are announced. One
        with a wildcard before that is not refused: a client that may not read a message does not get it."""
        if not filter_.startswith(ROOT) or not self._prefixes():
            return None
        if not self._has_home(device.owner):
            return False
        level = filter_.split(b"/")[1]
        return level in {b"+", b"#"} or self._shows(level.decode(errors="replace"), device.owner)
