"""What the names in a body mean: the devices and device types that a rule or scene refers to.

Names are looked up before the body is compiled, because a lookup may have to wait: `names_in` says which ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.device_types.manifest import Manifest
from config.limits import RULE_BODY_BYTES
from storage.keys import DeviceKey, DeviceTypeKey, UserKey

#: More different names do not fit into a body.
_NAMES_MAX: Final = RULE_BODY_BYTES // len('"sdid":"a"')


@dataclass(frozen=True, slots=True)
class KnownType:
    """A device type. `manifest` is the latest approved version; selectors check fields and Actions against it."""

    key: DeviceTypeKey
    id: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device. `manifest` is the version that its messages are normalised with."""

    key: DeviceKey
    id: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class World:
    """The devices and device types that exist, by the text in the body; what is missing does not exist.

    `unshared` are devices of others that exist and that the rule's user may not use (any more).

    `device_types` has a type under its id or its unique name, whichever the body uses. `owner` is the rule's user: the
    selectors choose from this user's devices.
    """

    owner: UserKey
    devices: Mapping[str, KnownDevice]
    device_types: Mapping[str, KnownType]
    unshared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Names:
    """The texts in a body that name devices and device types."""

    devices: frozenset[str]
    device_types: frozenset[str]


def names_in(body: object) -> Names:
    """Every text in a body that names a device or a device type, whether the body is valid or not.

    A body that is too large to be compiled names nothing, so that its names are not looked up.
    """
    devices: set[str] = set()
    device_types: set[str] = set()
    waiting = [body]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list | tuple):
            waiting += found
        elif isinstance(found, Mapping):
            for member, value in found.items():
                if not isinstance(value, str):
                    waiting.append(value)
                elif member in ("sdid", "ddid"):
                    devices.add(value)
                elif member == "dtid":
                    device_types.add(value)
    if len(devices) + len(device_types) > _NAMES_MAX:
        return Names(frozenset(), frozenset())
    return Names(frozenset(devices), frozenset(device_types))
