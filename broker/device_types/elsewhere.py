"""Device types that another node has changed: this one reads them again (broker/cluster/kinds.py: TYPE_CHANGED)."""

import trio

from broker.cluster.kinds import TYPE_CHANGED
from broker.cluster.news import News
from broker.device_types.catalog import DeviceTypes
from broker.facts import DeviceTypeChanged, Router
from broker.loops import Loop, Wakeup
from storage.keys import DeviceTypeKey


class TypesElsewhere:
    def __init__(self, types: DeviceTypes, news: News, router: Router) -> None:
        self._types = types
        self._router = router
        self._changed: dict[DeviceTypeKey, None] = {}
        self._wakeup = Wakeup()
        news.listen_elsewhere(TYPE_CHANGED, self._note)
        self.read_forever = Loop(self._read, wakeup=self._wakeup, failure="device_types_not_read", retry_seconds=1).run

    def _note(self, key: DeviceTypeKey, _content: None) -> None:
        self._changed[key] = None
        self._wakeup.set()

    async def _read(self) -> None:
        changed, self._changed = self._changed, {}
        try:
            await self._types.reload()
        except BaseException:  # whatever it is: nobody has heard of them yet; raised again
            self._changed = changed | self._changed
            raise
        for key in changed:
            self._router.publish(DeviceTypeChanged(key))
            await trio.lowlevel.checkpoint()
