"""The newest values of devices as numbers, for programs that ask again and again (reference 9.11)."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Device
from broker.errors import TryLater
from broker.limits.window import WINDOW_MS, Window
from broker.messages.snapshots import Snapshots
from config.limits import VALUES_CALLS
from storage.keys import Milliseconds

_REMEMBERED: Final = 10_000


class TooManyScrapes(TryLater):
    """The caller asks more often than the values may be asked for."""

    template = f"The values may be asked for {VALUES_CALLS} times a minute. Try again in {{retry_seconds}} seconds"


class FieldValue(msgspec.Struct, frozen=True):
    """The newest value of a field of a device, as a number; `ts` is that of its message."""

    device: Device
    field: str  # the dotted path
    unit: str  # as in the Manifest; empty without one
    value: float
    ts: Milliseconds


class NewestValues:
    def __init__(self, snapshots: Snapshots, clock: Clock) -> None:
        self._snapshots = snapshots
        self._clock = clock
        self._calls: OrderedDict[str, Window] = OrderedDict()

    def count(self, caller: Caller) -> None:
        """Count a call. Raises TooManyScrapes; then it is not counted."""
        now_ms, account = self._clock.steady_ms(), caller.actor
        window = self._calls.setdefault(account, Window())
        self._calls.move_to_end(account)
        if len(self._calls) > _REMEMBERED:
            self._calls.popitem(last=False)
        if not window.has_room(VALUES_CALLS, now_ms):
            wait_ms = (window.oldest(now_ms) or 0) + WINDOW_MS - now_ms
            raise TooManyScrapes(-(-wait_ms // 1000))
        window.add(now_ms)

    async def of(self, devices: Sequence[Device], *, max_age_ms: int) -> list[FieldValue]:
        """The values that are not older than that, of fields that the Manifest of the device has, in their order there.

        Texts and collections are no numbers, and left out. Truth is 1, and its opposite 0.
        """
        oldest = self._clock.now_ms() - max_age_ms
        snapshots = await self._snapshots.of_all([device.key for device in devices])
        found = []
        for device in devices:
            known = snapshots[device.key]
            for path, field in device.manifest.manifest.leaves.items():
                if (newest := known.get(path)) is None:
                    continue
                ts, _, value = newest
                if ts >= oldest and isinstance(value, int | float):
                    found.append(FieldValue(device, path, field.unit or "", float(value), ts))
        return found
