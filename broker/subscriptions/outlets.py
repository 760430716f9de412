"""Queues of the active subscriptions, and the subscriptions that a device concerns.

An outlet takes the rows of the log in their order and forms notifications of them in that order, so one position says
which rows are in notifications. An outlet that has no room for a row is behind: from then on it leaves the rows in the
log, and takes them from there when it has room again.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from broker.accounts.permissions import Reach
from broker.devices.registry import Device
from broker.subscriptions.subscription import Subscription, SubscriptionStatus
from config.limits import NOTIFICATIONS_IN_FLIGHT
from storage.keys import DeviceKey, Position, UserKey
from storage.records import ActionRow, MessageRow

#: After this many failures in a row, attempts of an outlet go one at a time, with pauses between, as its first ones do.
FAILURES_IN_A_ROW: Final = 10
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 120.0
_NEVER: Final = float("inf")

Row = MessageRow | ActionRow


class Taken(msgspec.Struct, frozen=True):
    """A row of the log, and the device that it is for an outlet: of a message its source, of an Action its target."""

    row: Row
    device: Device


@dataclass(eq=False, slots=True)
class InFlight:
    """A notification under way, which the next ones wait for."""

    started: trio.Event = field(default_factory=trio.Event)
    done: trio.Event = field(default_factory=trio.Event)


class Outlet:
    def __init__(
        self,
        subscription: Subscription,
        reach: Reach,
        *,
        read_upto: Position,
        saved_behind: bool,
        pending: int,
        batch_seconds: float,
    ) -> None:
        """Args:
        read_upto: the rows up to there are in notifications already.
        saved_behind: whether the store says that it is behind.
        pending: the number of notifications that are neither delivered nor given up.
        batch_seconds: how long messages are collected for one notification.
        """
        self.subscription = subscription
        self.reach = reach
        self.waiting: deque[Taken] = deque()
        self.read_upto = self.formed_upto = read_upto
        self.is_behind, self.saved_behind = False, saved_behind
        self.times_saved_behind = 0
        self.pending = pending
        self.in_flight = 0
        self.has_due_retry = False
        #: The notification that was begun last for each device which is in one under way.
        self.last_of: dict[DeviceKey, InFlight] = {}
        self.failures = 0  # in a row
        self.failing_since = subscription.record.failing_since
        self.paused_until = 0.0
        self.planned_at = _NEVER  # when the reader looks at it by itself
        self._collect_seconds = 0.0 if subscription.is_of_actions else batch_seconds
        self._collected_on = _NEVER
        self._most_waiting = NOTIFICATIONS_IN_FLIGHT * max(subscription.most_entries, 20)
        self.is_closed = False

    @property
    def key(self) -> int:
        return self.subscription.key

    @property
    def is_active(self) -> bool:
        return not self.is_closed and self.subscription.record.status == SubscriptionStatus.ACTIVE

    def covers(self, device: Device) -> bool:
        return self.subscription.covers(device, self.reach)

    @property
    def wants_more(self) -> bool:
        """Whether it is behind and has room for many rows."""
        return self.is_behind and self.is_active and len(self.waiting) * 2 <= self._most_waiting

    def take(self, row: Row, device: Device, now: float) -> bool:
        """Take a row that follows those before it. False: there is no room, and the outlet is behind from now on."""
        if row.position <= self.read_upto:
            return True
        if len(self.waiting) >= self._most_waiting:
            self.fall_behind(Position(row.position - 1))
            return False
        if not self.waiting:
            self._collected_on = now + self._collect_seconds
        self.waiting.append(Taken(row, device))
        self.read_upto = row.position
        return True

    def fall_behind(self, read_upto: Position) -> None:
        self.is_behind = True
        self.read_upto = max(self.read_upto, read_upto)

    @property
    def safe_position(self) -> Position:
        """Every row up to there is in notifications, or concerns others."""
        return Position(self.waiting[0].row.position - 1) if self.waiting else self.read_upto

    @property
    def free(self) -> int:
        """How many more notifications may be under way."""
        return NOTIFICATIONS_IN_FLIGHT - self.in_flight

    def ready_at(self, now: float) -> float:
        """The time at which the next notification may be formed; infinity: only after a further event."""
        if not self.waiting or not self.is_active or self.free <= int(self.has_due_retry):
            return _NEVER
        if self.failures >= FAILURES_IN_A_ROW:
            return _NEVER if self.in_flight else max(self.paused_until, self._collected_on)
        is_full = len(self.waiting) >= self.subscription.most_entries
        return now if is_full else self._collected_on

    def form(self) -> list[Taken]:
        """The rows of the next notification, except rows that the subscription may not read any more."""
        found: list[Taken] = []
        while self.waiting and len(found) < self.subscription.most_entries:
            taken = self.waiting.popleft()
            self.formed_upto = taken.row.position
            if self.covers(taken.device):
                found.append(taken)
        return found

    def note_success(self) -> bool:
        """Return whether this is the first success after failures."""
        was_failing = self.failing_since is not None
        self.failures, self.failing_since = 0, None
        return was_failing

    def note_failure(self, now: float, now_ms: int) -> bool:
        """Return whether this is the first failure after a success."""
        self.failures += 1
        if (beyond := self.failures - FAILURES_IN_A_ROW) >= 0:
            self.paused_until = now + min(_FIRST_PAUSE * 2 ** min(beyond, 10), _LONGEST_PAUSE)
        if self.failing_since is not None:
            return False
        self.failing_since = now_ms
        return True


class Outlets:
    """All outlets, found by device. The outlets of each device are remembered until something about it changes."""

    def __init__(self) -> None:
        self._by_key: dict[int, Outlet] = {}
        self._by_device: dict[DeviceKey, list[Outlet]] = {}
        self._by_user: dict[UserKey, list[Outlet]] = {}
        self._messages: dict[DeviceKey, tuple[Outlet, ...]] = {}
        self._actions: dict[DeviceKey, tuple[Outlet, ...]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Outlet]:
        return iter(self._by_key.values())

    def get(self, key: int) -> Outlet | None:
        return self._by_key.get(key)

    def add(self, outlet: Outlet) -> None:
        self._by_key[outlet.key] = outlet
        self._among(outlet).append(outlet)
        self.forget()

    def remove(self, key: int) -> None:
        if (outlet := self._by_key.pop(key, None)) is not None:
            outlet.is_closed = True
            outlet.waiting.clear()
            self._among(outlet).remove(outlet)
            self.forget()

    def _among(self, outlet: Outlet) -> list[Outlet]:
        record = outlet.subscription.record
        device = record.source if record.destination is None else record.destination
        if device is not None:
            return self._by_device.setdefault(device, [])
        return self._by_user.setdefault(record.user, [])

    def forget(self, device: DeviceKey | None = None) -> None:
        """Forget which outlets a device concerns; None: of every device."""
        if device is None:
            self._messages.clear()
            self._actions.clear()
        else:
            self._messages.pop(device, None)
            self._actions.pop(device, None)

    def interested(self, row: Row, device: Device) -> tuple[Outlet, ...]:
        """The outlets that a row concerns."""
        is_action = isinstance(row, ActionRow)
        known = self._actions if is_action else self._messages
        found = known.get(device.key)
        if found is None:
            candidates = list(self._by_device.get(device.key, ()))
            for user in {device.owner, *device.shared_with}:
                candidates += self._by_user.get(user, ())
            found = tuple(
                one for one in candidates if one.subscription.is_of_actions is is_action and one.covers(device)
            )
            known[device.key] = found
        return found
