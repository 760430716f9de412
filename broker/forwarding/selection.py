"""Which devices a forward covers, and what it says of them (reference 30.1)."""

from collections.abc import Collection
from typing import Final

import msgspec

from broker.accounts.users import user_named
from broker.devices.registry import Device
from config.settings import Forward
from storage.keys import UserKey
from storage.transaction import Transaction

_ALL: Final = "*"
_OF_TOPIC: Final = str.maketrans({"+": "_", "#": "_", "/": "_", "\0": "_"})


class Selection(msgspec.Struct, frozen=True):
    """The devices of one entry. `owners`: the users that it names, as they are now."""

    all: bool
    ids: Collection[str]
    types: Collection[str]
    owners: Collection[UserKey]

    @classmethod
    def of(cls, entry: Forward, tx: Transaction) -> "Selection":
        named = [one.removeprefix("owner:") for one in entry.devices if one.startswith("owner:")]
        found = [user_named(tx, name.strip()) for name in named]
        return cls(
            _ALL in entry.devices,
            frozenset(entry.devices),
            frozenset(one.removeprefix("type:").strip() for one in entry.devices if one.startswith("type:")),
            frozenset(user.key for user in found if user is not None),
        )

    def covers(self, device: Device) -> bool:
        return (
            self.all
            or device.id in self.ids
            or device.type.record.unique_name in self.types
            or device.owner in self.owners
        )


def topic_of(form: str, device: Device) -> str:
    """The topic of a device at a broker. A name cannot add levels."""
    values = {
        "did": device.id,
        "dtid": device.type.id,
        "type": device.type.record.unique_name,
        "name": device.record.name,
    }
    for key, value in values.items():
        form = form.replace(f"{{{key}}}", value.translate(_OF_TOPIC))
    return form
