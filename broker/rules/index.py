"""Which rules a device's messages concern (reference 12.4)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from broker.devices.registry import Devices
from broker.errors import DeviceNotFound
from broker.rules.running import RunningRule
from storage.keys import DeviceKey, DeviceTypeKey, RuleKey, UserKey

_DEVICES_REMEMBERED: Final = 100_000
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Interest:
    """The rules that a device's messages concern, in the order in which they were made."""

    device_type: DeviceTypeKey
    owner: UserKey
    rules: tuple[RunningRule, ...]


NO_INTEREST: Final = Interest(DeviceTypeKey(0), UserKey(0), ())


class RuleIndex:
    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._rules: dict[RuleKey, RunningRule] = {}
        self._of_device: dict[DeviceKey, tuple[RunningRule, ...]] = {}
        self._of_type: dict[tuple[UserKey, DeviceTypeKey], tuple[RunningRule, ...]] = {}
        self._interests: dict[DeviceKey, Interest] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[RunningRule]:
        return iter(self._rules.values())

    def get(self, key: RuleKey) -> RunningRule | None:
        return self._rules.get(key)

    def has(self, running: RunningRule) -> bool:
        """The rule still runs, and was not replaced."""
        return self._rules.get(running.key) is running

    def put(self, running: RunningRule) -> None:
        """Add a rule, or replace the one with its key."""
        self.remove(running.key)
        self._rules[running.key] = running
        for watch in running.rule.watches:
            if watch.device is not None:
                known = self._of_device.get(watch.device, ())
                if running not in known:
                    self._of_device[watch.device] = _in_order((*known, running))
                    self._interests.pop(watch.device, None)
            elif watch.device_type is not None:
                place = (running.owner, watch.device_type)
                known = self._of_type.get(place, ())
                if running not in known:
                    self._of_type[place] = _in_order((*known, running))
                    self._interests.clear()

    def remove(self, key: RuleKey) -> None:
        running = self._rules.pop(key, None)
        if running is None:
            return
        for watch in running.rule.watches:
            if watch.device is not None and (known := self._of_device.get(watch.device)):
                _put_or_drop(self._of_device, watch.device, tuple(one for one in known if one is not running))
                self._interests.pop(watch.device, None)
            elif watch.device_type is not None:
                place = (running.owner, watch.device_type)
                if known := self._of_type.get(place):
                    _put_or_drop(self._of_type, place, tuple(one for one in known if one is not running))
                    self._interests.clear()

    def interest(self, device: DeviceKey) -> Interest | None:
        """Whom a message of this device concerns; None: `find` must look the device up."""
        return self._interests.get(device)

    async def find(self, device: DeviceKey) -> Interest:
        if len(self._interests) >= _DEVICES_REMEMBERED:
            self._interests.clear()
        if not self._of_type and device not in self._of_device:
            found = NO_INTEREST
        else:
            try:
                known = await self._devices.get(device)
            except DeviceNotFound:
                return NO_INTEREST
            rules = {*self._of_device.get(device, ()), *self._of_type.get((known.owner, known.type_key), ())}
            found = Interest(known.type_key, known.owner, _in_order(rules))
        self._interests[device] = found
        return found


def _in_order(rules: Iterable[RunningRule]) -> tuple[RunningRule, ...]:
    return tuple(sorted(rules, key=lambda running: running.key))


def _put_or_drop(places: dict[K, tuple[RunningRule, ...]], place: K, rules: tuple[RunningRule, ...]) -> None:
    if rules:
        places[place] = rules
    else:
        del places[place]
