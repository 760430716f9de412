"""Marks scenes as invalid when a device that they name was deleted or is no longer shared (reference 12.5).

This worker sets the time of the mark. If it has not come to a scene, or was stopped, reading the scene finds the same.
"""

from typing import Final

import msgspec

from broker.facts import DeviceDeleted, FactPhase, Router, SharesChanged
from broker.loops import Loop, Wakeup
from broker.scenes.scenes import Scenes
from storage.keys import DeviceKey

_WAITING_MAX: Final = 10_000


class SceneStatistics(msgspec.Struct, frozen=True):
    """`invalidated`: scenes that became invalid by facts since the start."""

    invalidated: int
    devices_waiting: int


class Invalidation:
    def __init__(self, router: Router, scenes: Scenes) -> None:
        self._scenes = scenes
        self._waiting: dict[DeviceKey, None] = {}
        self._wakeup = Wakeup()
        self._invalidated = 0
        router.subscribe(DeviceDeleted, self._changed, FactPhase.EFFECT)
        router.subscribe(SharesChanged, self._changed, FactPhase.EFFECT)
        self.run_forever = Loop(self.step, wakeup=self._wakeup, failure="scenes_not_invalidated").run

    def _changed(self, fact: DeviceDeleted | SharesChanged) -> None:
        if len(self._waiting) < _WAITING_MAX:
            self._waiting[fact.device] = None
            self._wakeup.set()

    async def step(self) -> bool:
        """Judge the scenes of one device; return whether more devices wait."""
        if not self._waiting:
            return False
        device = next(iter(self._waiting))
        del self._waiting[device]
        try:
            self._invalidated += await self._scenes.invalidate(device)
        except BaseException:  # whatever it is; raised again
            self._waiting[device] = None
            raise
        return bool(self._waiting)

    def statistics(self) -> SceneStatistics:
        return SceneStatistics(self._invalidated, len(self._waiting))
