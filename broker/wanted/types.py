"""Looks at the open wanted values of a type's devices when the type gets another Manifest (reference 9.10)."""

from collections.abc import Awaitable, Callable, Iterable

from broker.facts import DeviceTypeChanged, FactPhase, Router
from broker.loops import Loop, Wakeup
from storage.keys import DeviceTypeKey

_AGAIN_SECONDS = 600.0


class TypeChecks:
    """Each node that hears of the new Manifest looks: an end is stored once, whoever stores it.

    `first`: the types of devices with open values. One may have got its Manifest before a crash.
    """

    def __init__(
        self, check: Callable[[DeviceTypeKey], Awaitable[None]], router: Router, first: Iterable[DeviceTypeKey]
    ) -> None:
        self._check = check
        self._changed: dict[DeviceTypeKey, None] = dict.fromkeys(first)
        self._wakeup = Wakeup()
        router.subscribe(DeviceTypeChanged, self._type_changed, FactPhase.EFFECT)
        self.run_forever = Loop(
            self.step, every=_AGAIN_SECONDS, wakeup=self._wakeup, at_once=True, failure="wanted_not_checked"
        ).run

    def _type_changed(self, fact: DeviceTypeChanged) -> None:
        self._changed[fact.device_type] = None
        self._wakeup.set()

    async def step(self) -> bool:
        """Look at one type; whether there are more. Raises StoreError: it is looked at again."""
        if not self._changed:
            return False
        one = next(iter(self._changed))
        del self._changed[one]
        try:
            await self._check(one)
        except BaseException:
            self._changed[one] = None
            raise
        return bool(self._changed)
