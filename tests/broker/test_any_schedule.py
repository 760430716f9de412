"""Whatever comes between the steps of the consumers of facts, each of them serves what was begun.

Each piece of work on the store takes a random number of turns of the loop, before it runs and after it, so that all
other tasks go on between a read and what follows from it. Clients begin something and use it at once. The consumers are
the subscriptions, rules, mails, exports, device tasks, connectors and projections.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest
import trio
from trio.testing import MockClock

from broker.connectors import catalog, hooks
from broker.errors import NotFound
from broker.export.status import ExportStatus
from broker.provisioning import connector_tables
from broker.services import Services
from tests.broker.connectors.test_any_order import CONNECTOR, REFERER, Cloud
from tests.broker.device_management.devices import Fleet, mock_time
from tests.broker.export.test_exports import asking
from tests.broker.rules.home import Home, body, when
from tests.broker.test_mail import HELLO, Transport
from tests.builders import ServicesOpener, opener_in
from tests.callbacks import FakeCallbacks, ada_of, sent, subscribed
from tests.factories import ADA, HALL, KITCHEN, LIGHT_TYPE, NOW_MS, build_world
from tests.fakes import FakeClock, OnTheLoop
from tests.properties import examples

pytestmark = pytest.mark.slow


T = TypeVar("T")

CLIENTS: Final = 4
TURNS: Final = 8
#: Longer than any of it takes, in seconds of the mock clock.
SECONDS: Final = 1_800


class Switching(OnTheLoop):
    """Runs blocking work after some turns of the loop, and tells of it after some others."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def __call__(
        self,
        sync_fn: Callable[[], T],
        /,
        *,
        limiter: trio.CapacityLimiter | None = None,  # noqa: ARG002 # all work takes its turns
    ) -> T:
        await self._turns()
        result = sync_fn()
        await self._turns()
        return result

    async def _turns(self) -> None:
        for _ in range(self._chance.randint(1, TURNS)):
            await trio.lowlevel.checkpoint()


class Story:
    """The clients, and what is to have become of all that they began."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.callbacks, self.transport = FakeCallbacks(), Transport()
        self.cloud = Cloud(FakeClock(NOW_MS), sends_all=True)
        self._due: dict[str, Callable[[], Awaitable[bool]]] = {}

    async def play(self, folder: Path) -> None:
        opener: ServicesOpener = opener_in(folder)
        async with opener(
            clock=mock_time(),
            run_sync=Switching(self._chance),
            callbacks=self.callbacks,
            mail_transport=self.transport,
            third_party=self.cloud,
        ) as services:
            self.services: Services = services
            await build_world(services.core.database, services.core.vault)
            await services.provisioning.apply({"connectors": [CONNECTOR]})
            self._fleet = await Fleet.of(services, CLIENTS)
            kinds = (self._subscribe, self._rule, self._mail, self._export, self._task, self._project)
            begun = [(kind, number) for kind in kinds for number in range(CLIENTS)]
            self._chance.shuffle(begun)
            async with trio.open_nursery() as clients:
                clients.start_soon(self._link)
                for kind, number in begun:
                    clients.start_soon(kind, number)
            await self._all_done()

    async def _all_done(self) -> None:
        ends = trio.current_time() + SECONDS
        while self._due and trio.current_time() < ends:
            for name, is_done in list(self._due.items()):
                if await is_done():
                    del self._due[name]
            await trio.sleep(5)
        assert list(self._due) == []

    async def _subscribe(self, number: int) -> None:
        url = f"https://app.example.org/{number}"
        await subscribed(self.services, url=url, sdid=KITCHEN)
        (position,) = await sent(self.services)

        async def is_done() -> bool:
            await trio.lowlevel.checkpoint()
            return any(position in one.positions for one in self.callbacks.received if one.url == url)

        self._due[f"subscription {number}"] = is_done

    async def _rule(self, number: int) -> None:
        home = Home(self.services)
        rule = await home.rule(body([when("intensity", ">=", 0)]), f"Rule {number}")
        await sent(self.services)

        async def is_done() -> bool:
            return await home.triggered(rule) > 0

        self._due[f"rule {number}"] = is_done

    async def _mail(self, number: int) -> None:
        to = f"user{number}@example.org"
        assert await self.services.mail.send(to, HELLO, cause=f"user:{number}")

        async def is_done() -> bool:
            await trio.lowlevel.checkpoint()
            return self.transport.recipients.count(to) == 1

        self._due[f"mail {number}"] = is_done

    async def _export(self, number: int) -> None:
        caller = await ada_of(self.services)
        export = await self.services.export.create(caller, asking(uids=ADA))

        async def is_done() -> bool:
            return (await self.services.export.find(caller, export)).status is ExportStatus.SUCCESS

        self._due[f"export {number}"] = is_done

    async def _task(self, number: int) -> None:
        device = self._fleet.devices[number]
        await self._fleet.had_registered(device)
        async with trio.open_nursery() as both:
            both.start_soon(self._fleet.register, device)
            task = await self._fleet.task("deviceProperties.device.manufacturer", dids=(device.id,))

        async def is_done() -> bool:
            with suppress(NotFound):  # its entry comes a little later
                return await self._fleet.status(task, device) == "SUCCEEDED"
            return False

        self._due[f"task {number}"] = is_done

    async def _project(self, number: int) -> None:
        hall = await self.services.devices.registry.find(HALL)
        (position,) = await sent(self.services, device=HALL)
        found = (await self.services.messages.snapshots.of_all([hall.key]))[hall.key]
        assert found["intensity"][1] >= position, f"projection {number}"

    async def _link(self) -> None:
        """A third party has a reading, and the link of a device that begins now is to bring it."""
        self.cloud.read(0)
        caller = await ada_of(self.services)
        connectors = self.services.connectors
        device = await self.services.devices.registry.find(KITCHEN)
        begun = await connectors.authorize(caller, device, referer=REFERER, mobile=False)
        state = parse_qs(urlsplit(begun).query)["state"][0]
        await connectors.authorized(LIGHT_TYPE, {"state": state, "code": "c"})
        while connectors.statistics().waiting:  # its hooks run in threads, for which the mock clock does not wait
            await trio.lowlevel.checkpoint()

        async def is_done() -> bool:
            rows: list[Any] = await self.services.core.database.read(
                lambda tx: list(tx.connection.execute("SELECT data FROM message WHERE data LIKE '%temperature%'"))
            )
            return len(rows) == 1

        self._due["link"] = is_done


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(examples(35)))
def test_each_consumer_serves_what_was_begun(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module in (hooks, catalog, connector_tables):
            patch.setattr(module, "CONNECTOR_HOOK_SECONDS", inf)
        trio.run(Story(chance).play, Path(folder), clock=MockClock(autojump_threshold=0))
