"""The clients that announce devices, with what waits of theirs, and the found devices of each (reference 16.9)."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

from broker.accounts.users import user_named
from broker.devices.registry import Device
from broker.found.announcements import Announced
from broker.found.definitions import FoundDefinition, definition_of
from config.limits import FOUND_WAITING, FOUND_WAITING_BYTES
from config.settings import Discover
from storage.found import FoundRecord
from storage.keys import DeviceKey, UserKey
from storage.transaction import Transaction

FOUND, ACCEPTED, IGNORED = "FOUND", "ACCEPTED", "IGNORED"


@dataclass(eq=False)
class FoundDevice:
    """A found device: its row, and what is made of it."""

    record: FoundRecord
    components: tuple[Announced, ...]
    definition: FoundDefinition


@dataclass(eq=False)
class Announcer:
    """A client that announces devices. `jobs` are done in order."""

    device: Device
    owner: UserKey
    prefix: str
    found: dict[str, FoundDevice] = field(default_factory=dict)  # by identity
    jobs: OrderedDict[object, tuple[Callable[[], Any], int]] = field(default_factory=OrderedDict)  # by the subject
    waiting_bytes: int = 0
    room: trio.Event = field(default_factory=trio.Event)  # set, and replaced, when a job has ended

    def has_room(self, subject: object, size: int) -> bool:
        known = self.jobs.get(subject)
        if not self.jobs:
            return True
        held = self.waiting_bytes + size - (0 if known is None else known[1])
        return held <= FOUND_WAITING_BYTES and (known is not None or len(self.jobs) < FOUND_WAITING)

    def ended(self, subject: object, job: tuple[Callable[[], Any], int]) -> None:
        """A job is done, unless a newer one about its subject has come."""
        if self.jobs.get(subject) is job:
            del self.jobs[subject]
            self.waiting_bytes -= job[1]
        room, self.room = self.room, trio.Event()
        room.set()


def found_of(record: FoundRecord) -> FoundDevice:
    components = tuple(msgspec.json.decode(record.components, type=list[Announced]))
    return FoundDevice(record, components, definition_of(components))


def rows_of(source: DeviceKey, tx: Transaction) -> list[FoundRecord]:
    return tx.found.of([source])


def client_named(tx: Transaction, one: Discover) -> tuple[UserKey, DeviceKey] | None:
    """The owner's device that is named. A name that several have names none."""
    owner = user_named(tx, one.owner)
    if owner is None:
        return None
    device = tx.devices.by_id(one.device)
    if device is not None:
        return (owner.key, device.key) if device.owner == owner.key else None
    named = tx.devices.named(owner.key, one.device)
    return (owner.key, named[0].key) if len(named) == 1 else None
