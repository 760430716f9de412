"""A provision file that another node has applied: this one reads again what the file may have changed."""

from collections import deque

import trio

from broker.cluster.kinds import PROVISIONED, Provisioned
from broker.cluster.news import News
from broker.facts import Router
from broker.loops import Loop, Wakeup
from broker.provisioning.service import Provisioning
from broker.provisioning.told import decode_facts


class ProvisionedElsewhere:
    def __init__(self, provisioning: Provisioning, news: News, router: Router) -> None:
        self._provisioning = provisioning
        self._router = router
        self._waiting: deque[Provisioned] = deque()
        self._wakeup = Wakeup()
        news.listen_elsewhere(PROVISIONED, self._note)
        self.read_forever = Loop(
            self._read, wakeup=self._wakeup, failure="provisioning_of_another_node_not_read", retry_seconds=1
        ).run

    def _note(self, provisioned: Provisioned, _content: None) -> None:
        self._waiting.append(provisioned)
        self._wakeup.set()

    async def _read(self) -> None:
        while self._waiting:
            await self._provisioning.reload()
            for fact in decode_facts(self._waiting[0].facts):
                self._router.publish(fact)
                await trio.lowlevel.checkpoint()
            self._waiting.popleft()
