"""A history of several nodes on one database: what clients sent, were told and heard; and what must hold of it.

The nodes are the parts of the daemon that write and hear, in one process: the database, the facts, the follower and the
claims of connections. Each client of a device connects to a node, sends, and goes on to another node, while others of
the same device do so, too. The seed says who does what; the database is real, and decides what comes first.
"""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from broker.cluster.facts import FactLog
from broker.cluster.kinds import TOKEN_SHORTENED
from broker.cluster.news import News
from broker.devices.registry import Devices
from broker.errors import DeviceNotFound
from broker.facts import MessagesStored, Router
from broker.messages.follower import LogFollower
from broker.messages.mids import Mids
from broker.routing.claims import ConnectionClaims
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_listening import Listening
from storage.facts import FactRecord
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.sql import StoreError
from storage.told import Told
from storage.transaction import Transaction
from tests.postgresql import Server, server

DEVICES = [DeviceKey(number) for number in range(1, 4)]
_CLIENTS_OF_A_DEVICE = 2
_CONNECTIONS_OF_A_CLIENT = 12
#: Most messages of a connection that wait for their acknowledgement.
_AT_ONCE = 4


class RecordedFacts(FactLog):
    """Notes the numbers of facts in the order in which this node hears them."""

    def __init__(self, instance: str, node: str, listening: Listening) -> None:
        super().__init__(instance, node, 10.0, listening)
        self.order: list[int] = []

    def heard(self, facts: Sequence[FactRecord]) -> None:
        for fact in facts:
            if fact.number > self._heard:
                self.order.append(fact.number)
            super().heard((fact,))

    def committed(self, told: Sequence[Told | FactRecord], upto: int) -> None:
        own = sum(not isinstance(one, FactRecord) and self.packed(one) is not None for one in told)
        super().committed(told, upto)
        self.order += range(upto - own + 1, upto + 1)


@dataclass(eq=False)
class Link:
    """A connection of a device to a node."""

    key: DeviceKey
    number: int
    is_exclusive: bool = True
    is_over: bool = False
    order: int = 0  # of all claims, by their commits

    def replaced_elsewhere(self) -> None:
        self.is_over = True

    def not_claimed(self) -> None:
        self.is_over = True


class NoDevices:
    """The rows are of no devices, and there are no Actions."""

    def get_nowait(self, _: DeviceKey) -> None:
        return None

    async def get(self, _: DeviceKey) -> None:
        raise DeviceNotFound


class Part:
    """One node."""

    def __init__(self, name: str, database: str, of: Server | None = None) -> None:
        self.engine = PostgresqlEngine((of or server()).target(database))
        self.engine.is_shared = True
        self.listening = Listening(self.engine.target, self.engine.instance)
        self.database = Database(self.engine)
        router = Router()
        self.news = news = News(self.database, router)
        self.facts = RecordedFacts(self.engine.instance, name, self.listening)
        self.facts.open(self.database, news)
        self.database.share(self.facts)
        self.claims = ConnectionClaims(self.database, news, name)
        #: What somebody reads who needs each message; None: nobody does. And what others have read before.
        self.published: list[Position] = []
        self.reading: list[Position] | None = self.published
        self.readings: list[list[Position]] = []
        self.links: dict[DeviceKey, Link] = {}
        router.subscribe(MessagesStored, self._stored)
        self.database.on_commit(partial_publish(router))
        no_devices = cast("Devices", NoDevices())
        self.follower = LogFollower(
            self.database, router, no_devices, Mids(b"0" * 32), self.engine.instance, Position(0)
        )
        self.follower.wants_messages.append(lambda: self.reading is not None)
        self.follower.on_begin = self.facts.listen_anew
        self.facts.rows = self.follower
        self.journal = Journal(self.database, head=Position(0))

    def _stored(self, fact: MessagesStored) -> None:
        if self.reading is not None:
            self.reading += [row.position for row in fact.rows]

    async def read_for(self, seconds: float) -> None:
        """Somebody comes who needs each message, and goes."""
        await self.follower.ready()
        self.reading = []
        self.readings.append(self.reading)
        try:
            await trio.sleep(seconds)
        finally:
            self.reading = None

    def connect(self, link: Link) -> Any:
        """Claim the device, as `Connections.enter` does, and count the claims in the same commit."""
        if (incumbent := self.links.get(link.key)) is not None:
            incumbent.is_over = True
            self.claims.end(incumbent)
        self.links[link.key] = link
        self.claims.begin(link)
        return self.database.write_nowait(_count_claim)


def partial_publish(router: Router) -> Any:
    def publish(group: CommitGroup) -> None:
        if group.messages:
            router.publish(MessagesStored(group.messages))

    return publish


def _count_claim(tx: Transaction) -> int:
    number = tx.messages.counter("claims") + 1
    tx.messages.set_counter("claims", number)
    return number


@dataclass
class History:
    """`acknowledged` and `stored`: (link, number); `links`: the claims' order of each link."""

    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    links: dict[int, Link] = field(default_factory=dict)
    stored: list[tuple[Position, DeviceKey, tuple[int, int]]] = field(default_factory=list)
    facts: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """The rules that do not hold, with their names."""
        positions = [position for position, _, _ in self.stored]
        for part in self.parts:
            if not part.readings and part.published != positions:
                yield "R1: a node has not published each row once, in the order of the positions"
            for read in filter(None, part.readings):
                begun = positions.index(read[0])
                if positions[begun : begun + len(read)] != read:
                    yield "R1: a node has left out rows while somebody needed each one, or their order was another one"
            if part.facts.order != self.facts:
                yield "R5: a node has not heard each fact once, in the order of the numbers"
        found = Counter(sent for _, _, sent in self.stored)
        if any(found[sent] != 1 for sent in self.acknowledged):
            yield "R2: an acknowledged message is not stored once"
        for device in DEVICES:
            orders = [self.links[sent[0]].order for _, of, sent in self.stored if of == device]
            if orders != sorted(orders):
                yield "R3: a row of a former connection is behind one of a later connection"


@asynccontextmanager
async def parts_of_a_cluster(number: int, *, follow: bool = True) -> AsyncIterator[list[Part]]:
    """`follow`: they hear by themselves of what the others do."""
    name = server().new_database()
    parts = [Part(f"n{one}", name) for one in range(number)]
    try:
        async with trio.open_nursery() as nursery:
            for part in parts:
                await part.database.open()
                await nursery.start(part.database.commit_forever)
                if follow:
                    await nursery.start(part.facts.follow_forever)
            yield parts
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for part in parts:
                part.listening.close()
                with suppress(StoreError):
                    await part.database.close()
        server().drop(name)


async def history_of(seed: int, nodes: int = 3, patience_seconds: float = 10) -> History:
    chance, history = random.Random(seed), History()  # noqa: S311 - a seed for a test
    async with parts_of_a_cluster(nodes) as parts:
        history.parts = parts
        parts[-1].reading = None
        async with trio.open_nursery() as readers:
            readers.start_soon(_come_and_go, parts[-1], _of(chance))
            async with trio.open_nursery() as clients:
                for device in DEVICES:
                    for _ in range(_CLIENTS_OF_A_DEVICE):
                        clients.start_soon(_client, device, parts, _of(chance), history)
                clients.start_soon(_break_connections, parts, _of(chance))
            readers.cancel_scope.cancel()
        for part in parts:
            with suppress(StoreError):
                await part.journal.wait_committed()
        with closing(parts[0].engine.open(read_only=True)) as connection:
            rows = connection.execute("SELECT position, device, data FROM message ORDER BY position").tuples()
            history.stored = [(at, DeviceKey(device), tuple(json.loads(data))) for at, device, data in rows]
            history.facts = [number for (number,) in connection.execute("SELECT number FROM fact ORDER BY 1").tuples()]
        last = history.stored[-1][0]
        with trio.move_on_after(patience_seconds):  # whoever lags behind hears of the last ones
            while any(  # noqa: ASYNC110 - three nodes hear, each at its time
                (not part.readings and (not part.published or part.published[-1] < last))
                or len(part.facts.order) < len(history.facts)
                for part in parts
            ):
                await trio.sleep(0.01)
    return history


async def _client(device: DeviceKey, parts: Sequence[Part], chance: random.Random, history: History) -> None:
    for _ in range(_CONNECTIONS_OF_A_CLIENT):
        part = chance.choice(parts)
        link = Link(device, len(history.links))
        history.links[link.number] = link
        claim, group = part.connect(link), part.database.open_group
        await group.ended.wait()
        link.order = claim.result or 0
        if group.error is not None:
            continue
        with suppress(StoreError):  # what ends nothing is heard with a later commit
            await part.database.write(lambda tx: tx.tell(TOKEN_SHORTENED, b"a token"))
        for number in range(chance.randint(1, 30)):
            if link.is_over:
                break
            part.journal.append_message(device, Milliseconds(1), Milliseconds(1), 1, json.dumps([link.number, number]))

            def ended(error: StoreError | None, sent: tuple[int, int] = (link.number, number)) -> None:
                if error is None:
                    history.acknowledged.append(sent)

            part.journal.after_commit(ended)
            if number % _AT_ONCE == 0:
                with suppress(StoreError):
                    await part.journal.wait_committed()


def _of(chance: random.Random) -> random.Random:
    return random.Random(chance.random())  # noqa: S311 - as above


async def _come_and_go(part: Part, chance: random.Random) -> None:
    while True:
        await trio.sleep(chance.random() * 0.05)
        with suppress(StoreError):
            await part.read_for(chance.random() * 0.15)


async def _break_connections(parts: Sequence[Part], chance: random.Random) -> None:
    """Break the connection of a writer now and then."""
    for _ in range(3):
        await trio.sleep(chance.random() * 0.3)
        writer = chance.choice(parts).database._writer.transaction
        if writer is not None:
            writer.connection.cut()  # type: ignore[attr-defined]
