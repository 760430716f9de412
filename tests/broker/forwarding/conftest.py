"""Two stores: the messages of one of them are forwarded to the other one.

A test asks for `autojump_clock` itself: pytest-trio looks at the arguments of tests only.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from msgspec.structs import replace

from broker.errors import DomainError
from broker.forwarding.edge_book import NewEdge
from broker.forwarding.port import Broker, Command, UpstreamAnswer, UpstreamError
from broker.forwarding.wire import ACTIONS_PATH, ActionsAsked, ForwardAsked
from broker.services import Services
from config.limits import EDGE_DEVICES, FORWARD_BODY_BYTES
from config.settings import Forward, Settings
from tests.builders import ServicesOpener
from tests.factories import KITCHEN, NOW_MS, World, build_world
from tests.fakes import FakeClock
from tests.stores import MigratedEngine

TOKEN: Final = "e" * 32
CENTRE: Final = Forward("centre", "https://centre.example.org", token_file="token")


@dataclass(eq=False)
class Line:
    """The line between two stores. `faults` are met by the next requests, in order: `away`, `unheard` (the answer is
    lost), or an answer in place of the upstream's. `asked_at`: by the clock of trio."""

    centre: Services | None = None
    token: str = TOKEN
    seconds: float = 0.0  # that each answer takes
    faults: deque[str | UpstreamAnswer] = field(default_factory=deque)
    asked: list[Any] = field(default_factory=list)
    asked_at: list[float] = field(default_factory=list)
    polls: list[ActionsAsked] = field(default_factory=list)

    async def post(self, _entry: Forward, path: str, body: bytes, *, seconds: float) -> UpstreamAnswer:  # noqa: ARG002 - of the port
        if path == ACTIONS_PATH:
            polled = msgspec.json.decode(body, type=ActionsAsked)
            self.polls.append(polled)
            return await self._answered(polled)
        self.asked_at.append(trio.current_time())
        await trio.sleep(self.seconds)
        fault = self.faults.popleft() if self.faults else ""
        if isinstance(fault, UpstreamAnswer):
            return fault
        if fault == "away":
            raise UpstreamError("The upstream is away.")
        if len(body) > FORWARD_BODY_BYTES:
            return UpstreamAnswer(413, {}, b"{}")
        asked = msgspec.json.decode(body, type=ForwardAsked)
        self.asked.append(asked)
        answer = await self._answered(asked)
        if fault == "unheard":
            raise UpstreamError("The answer is lost.")
        return answer

    async def _answered(self, asked: ForwardAsked | ActionsAsked) -> UpstreamAnswer:
        assert self.centre is not None
        there = self.centre.forwarding
        try:
            edge = await there.edges.authenticate(self.token)
            if isinstance(asked, ActionsAsked):
                said: Any = await there.edge_actions.next(edge, asked)
            elif asked.batch is not None:
                said = await there.batches.receive(edge, asked.batch)
            elif asked.types is not None:
                said = await there.edge_types.take(edge, asked.store or "", asked.types)
            else:
                said = there.edges.greet(edge, asked.store or "", asked.known)
        except DomainError as error:
            body = msgspec.json.encode({"error": {"code": error.code, "message": str(error)}})
            return UpstreamAnswer(error.status, {}, body)
        return UpstreamAnswer(200, {}, msgspec.json.encode({"data": said}))

    def broker(
        self, _entry: Forward, _client_id: str, _commands: str, _command: Command
    ) -> AbstractAsyncContextManager[Broker]:
        raise AssertionError("no entry is a broker")

    async def close_idle(self) -> None:
        pass


@dataclass(eq=False)
class Two:
    """The edge has the world of most tests; the centre, too, and Ada gets what the edge sends."""

    edge: Services
    centre: Services
    line: Line
    world: World
    clock: FakeClock

    async def send(self, *values: int, device: str = KITCHEN, ts: int | None = None) -> None:
        """Store messages at the edge."""
        found = await self.edge.devices.registry.find(device)
        for value in values:
            self.edge.messages.ingest.submit(found, b'{"intensity":%d}' % value, ts)
        await self.edge.messages.ingest.wait_committed()

    async def at_centre(self) -> Counter[int]:
        """The values of the messages that came from the edge."""

        def read(tx: Any) -> Counter[int]:
            found = tx.messages.after(0)
            return Counter(msgspec.json.decode(row.data)["intensity"] for row in found)

        return await self.centre.core.database.read(read)

    async def settled(self, seconds: float = 75) -> None:
        """Let the forwarder do what it can within this time."""
        await trio.sleep(seconds)

    async def sent_on(self, seconds: float) -> None:
        """Wait until the centre has all, so long at most: an hour of two idle stores takes two seconds."""
        with trio.move_on_after(seconds):
            await trio.sleep(10)  # the forwarder looks at what is behind
            while self.status.behind or self.status.problem:  # noqa: ASYNC110 - of simulated time
                await trio.sleep(10)

    @property
    def status(self) -> Any:
        (found,) = self.edge.forwarding.forwarding.entries()
        return found


async def other_store(services: Services) -> None:
    """Stores of tests are copies of one: give this one a key of its own."""
    await services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE secret SET value = :key WHERE name = 'mid'", {"key": bytes(range(16))})
    )


@pytest.fixture
def forward() -> Forward:
    return CENTRE


@pytest.fixture
async def two(
    opener: ServicesOpener,
    settings: Settings,
    forward: Forward,
    fake_clock: FakeClock,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> AsyncIterator[Two]:
    line = Line()
    line.faults.append("away")  # until the centre is there
    folder = tmp_path / "centre"
    folder.mkdir()
    centres = ServicesOpener(
        replace(settings, state_dir=folder), MigratedEngine(folder / "store.sqlite"), FakeClock(NOW_MS).clock
    )
    async with centres() as first:
        await build_world(first.core.database, first.core.vault)
        await other_store(first)
    async with centres() as centre, opener(settings=replace(settings, forward=(forward,)), upstreams=line) as edge:
        world = await build_world(edge.core.database, edge.core.vault)
        line.centre = centre
        _, line.token = await centre.forwarding.book.add(NewEdge("attic", "ada@example.org", "", EDGE_DEVICES))
        yield Two(edge, centre, line, world, fake_clock)
