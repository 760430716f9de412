"""Targets of a fuzzer: the decoder, and the whole MQTT front end on a store, from bytes that it makes up.

The input chooses a service (with its own topics only, with lasting sessions, with open topics), and then steps: bytes
and packets of two devices, connections that end, time that passes. Whatever they are, the server's tasks end without
an error, it sends only packets of a server, and a third device, which stays connected for all inputs, goes on.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.life import Life, Run
from broker.services import Services
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.packets import Packet, ProtocolError, Will
from protocols.mqtt.server import serve_mqtt_connection
from protocols.mqtt.values import NO_PROPERTIES, Properties
from protocols.streams.hub import Hub
from tests.builders import ServicesOpener
from tests.factories import BOBS, BOBS_TOKEN, HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, NOW_MS, build_world
from tests.fakes import FakeClock
from tests.protocols.mqtt import peers
from tests.stores import MigratedEngine

#: Kinds of services, in the order in which the first byte of an input chooses them.
KINDS: Final = {
    "service": Mqtt(),
    "lasting": Mqtt(persistent_sessions="on"),
    "open": Mqtt(topics="open", persistent_sessions="on"),
}
#: Each leap of the clock wakes every worker of every kind. All but these look in the store for work that no client of
#: MQTT makes, which took most of the time of an input.
_WORKERS: Final = frozenset({"folds", "index", "mqtt sessions", "mqtt wills"})
_STEPS: Final = 64
_LAST_SECONDS: Final = 120
_DEVICES: Final = ((KITCHEN, KITCHEN_TOKEN), (HALL, HALL_TOKEN))
_SERVER_PACKETS: Final = frozenset({0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x9, 0xB, 0xD, 0xE})
_TOPICS: Final = (
    peers.MESSAGES,
    peers.ACTIONS,
    peers.ERRORS,
    b"a",
    b"a/b",
    b"a/+",
    b"#",
    b"+/+/#",
    b"$share/g/#",
    b"$share/g/a/+",
    b"$SYS/a",
    b"/v1.1/x",
    b"",
    b"/",
)
_MOST_BYTES: Final = 1 << 22  # of what the server says in answer to one input


class Choices:
    """An input as a row of choices; when it is used up, every choice is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, count: int) -> int:
        return self.byte() % count

    def taken(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def text(self) -> bytes:
        return self.taken(self.below(32))

    def topic(self) -> bytes:
        chosen = self.below(len(_TOPICS) + 1)
        return self.text() if chosen == len(_TOPICS) else _TOPICS[chosen]


def decode(data: bytes) -> None:
    """The packets of a stream do not depend on how it was cut, and garbage is a `ProtocolError`."""
    choices = Choices(data)
    level, place = 3 + choices.below(3), choices.byte()
    stream = choices.taken(len(data))
    assert _outcome(level, [stream]) == _outcome(level, [stream[:place], stream[place:]])


def _outcome(level: int, pieces: list[bytes]) -> tuple[list[Packet], str]:
    reader = PacketReader(level=level)
    packets: list[Packet] = []
    for piece in pieces:
        try:
            packets += reader.feed(piece)
            while reader.is_behind:
                packets += reader.feed(b"")
        except ProtocolError as fault:
            assert 0x80 <= fault.code <= 0xFF  # noqa: PT017 - both outcomes are right
            return [*packets, *fault.packets], str(fault)
    return packets, ""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator["FuzzedServices"]:
    """Services of each kind. The running clock is a `MockClock` that moves only when an input says so."""
    clock = FakeClock(NOW_MS)
    async with AsyncExitStack() as stack:
        found = {}
        for name, mqtt in KINDS.items():
            settings = Settings(state_dir=folder / name, mqtt=mqtt, limits=Limits(rate_limits="off", quotas="off"))
            settings.state_dir.mkdir()
            opener = ServicesOpener(settings, MigratedEngine(settings.state_dir / "store.sqlite"), clock.clock)
            with patch("broker.services.Life", _FewWorkers):
                services = found[name] = await stack.enter_async_context(opener())
            await build_world(services.core.database, services.core.vault)
        nursery = await stack.enter_async_context(trio.open_nursery())
        shared = await stack.enter_async_context(trio.open_nursery())
        innocents = {}
        for name, services in found.items():
            innocent = innocents[name] = _Line(services, nursery, Hub(shared, services.core.life), [])
            await innocent.send(peers.connect(BOBS, BOBS_TOKEN, keep_alive=0))
            await wait_all_tasks_blocked()
            assert innocent.said() == peers.ACCEPTED
        yield FuzzedServices([(services, innocents[name]) for name, services in found.items()], clock)
        for innocent in innocents.values():
            innocent.close()
        await wait_all_tasks_blocked()
        shared.cancel_scope.cancel()


class _FewWorkers(Life):
    def worker(self, name: str, run: Run, **others: Any) -> None:
        if name in _WORKERS:
            super().worker(name, run, **others)
        elif (statistics := others.get("statistics")) is not None:
            self.observe(name, statistics)


class FuzzedServices:
    def __init__(self, services: Sequence[tuple[Services, "_Line"]], clock: FakeClock) -> None:
        self._services = services
        self._clock = clock

    async def run(self, data: bytes) -> None:
        """Run one input. Raises what must not happen."""
        choices = Choices(data)
        services, innocent = self._services[choices.below(len(self._services))]
        async with trio.open_nursery() as shared, trio.open_nursery() as nursery:
            everyone: list[_Line] = []
            dial = partial(_Line, services, nursery, Hub(shared, services.core.life), everyone)
            lines = [dial() for _ in _DEVICES]
            steps = 0
            while not choices.is_over and (steps := steps + 1) <= _STEPS:
                await self._step(choices, lines, dial)
            await innocent.send(peers.publish(9, topic=f"/v1.1/messages/{BOBS}".encode()))
            await wait_all_tasks_blocked()
            said = innocent.said()
            assert said == peers.puback(9), said
            innocent.begin()
            for line in everyone:
                line.close()
            await self._ended(nursery)
            shared.cancel_scope.cancel()
        space = services.topics.space
        if space is not None:
            held = space.statistics()
            assert held.retained_bytes >= 0
            assert held.subscriptions <= 2 * 100

    async def _ended(self, nursery: trio.Nursery) -> None:
        """Every connection ends, also one that has to wait because its device has sent too much."""
        for _ in range(_LAST_SECONDS):
            await wait_all_tasks_blocked()
            if not nursery.child_tasks:
                return
            self._pass(1)
        raise AssertionError(f"these tasks go on: {nursery.child_tasks}")

    def _pass(self, seconds: int) -> None:
        self._clock.advance(seconds * 1000)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(seconds)

    async def _step(self, choices: Choices, lines: list["_Line"], dial: "Callable[[], _Line]") -> None:
        number = choices.below(len(lines))
        line = lines[number]
        chosen = choices.below(16)
        if chosen == 0:
            await line.send(choices.taken(choices.byte()))
        elif chosen == 1:
            line.close()
            lines[number] = dial()
        elif chosen == 2:
            self._pass(choices.byte())
        elif chosen in {3, 4}:
            lines[number] = line = dial()
            line.level = (4, 5, 3, 5)[choices.below(4)]
            await line.send(_connect(choices, number, line.level))
        else:
            await line.send(_packet(choices, chosen, line.level))
        if choices.below(2):
            await wait_all_tasks_blocked()
        line.said()


class _Stream(trio.abc.HalfCloseableStream):
    """The server's end of a connection. The peer's end are three calls that do not wait: the streams of trio.testing
    give way to other tasks several times for each call, which took a third of an input's time."""

    def __init__(self) -> None:
        self._incoming = bytearray()
        self._sent = bytearray()
        self._is_closed = self._has_peer_gone = False
        self._changed = trio.lowlevel.ParkingLot()

    def feed(self, data: bytes) -> None:
        self._incoming += data
        self._changed.unpark_all()

    def taken(self) -> bytes:
        """What the server has sent since the last call."""
        sent = bytes(self._sent)
        self._sent.clear()
        return sent

    def hang_up(self) -> None:
        self._has_peer_gone = True
        self._changed.unpark_all()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._incoming and not self._is_closed and not self._has_peer_gone:
            await self._changed.park()
        self._require_open()
        received = bytes(self._incoming[:max_bytes])
        del self._incoming[: len(received)]
        return received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._require_open()
        if self._has_peer_gone:
            raise trio.BrokenResourceError
        self._sent += data

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        self._require_open()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._require_open()

    async def aclose(self) -> None:
        self._is_closed = True
        self._changed.unpark_all()
        await trio.lowlevel.checkpoint()

    def _require_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError


class _Line:
    """A connection of a device, and what the server has said on it."""

    def __init__(self, services: Services, nursery: trio.Nursery, hub: Hub, everyone: list["_Line"]) -> None:
        everyone.append(self)
        self._stream = _Stream()
        self._unread = b""
        self._said = 0
        self.level = 4
        nursery.start_soon(_serve, services, self._stream, hub)

    def begin(self) -> None:
        """What was said so far belongs to an earlier input."""
        self._said = 0

    async def send(self, data: bytes) -> None:
        self._stream.feed(data)
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self._stream.hang_up()

    def said(self) -> bytes:
        """The whole packets of a server since the last call."""
        received = self._stream.taken()
        self._said += len(received)
        assert self._said <= _MOST_BYTES, "the server says more than the outbox bounds"
        self._unread += received
        whole = b"".join(_whole_packets(self._unread))
        self._unread = self._unread[len(whole) :]
        return whole


def _whole_packets(data: bytes) -> Iterator[bytes]:
    at = 0
    while len(data) - at >= 2:
        assert data[at] >> 4 in _SERVER_PACKETS, data[at:]
        length = shift = 0
        start = at + 1
        while start < len(data) and data[start] > 0x7F:
            length |= (data[start] & 0x7F) << shift
            start, shift = start + 1, shift + 7
        if start >= len(data):
            return
        stop = start + 1 + (length | data[start] << shift)
        if stop > len(data):
            return
        yield data[at:stop]
        at = stop


async def _serve(services: Services, stream: trio.abc.Stream, hub: Hub) -> None:
    """As a listener does: the end of a peer is no error, and everything else is."""
    try:
        await serve_mqtt_connection(services, stream, hub=hub)
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)


def _properties(choices: Choices, *, of_connect: bool = False) -> Properties:
    chosen = choices.byte()
    if not chosen & 0x0F:
        return NO_PROPERTIES
    if of_connect:
        return Properties(
            session_expiry=choices.byte() if chosen & 1 else None,
            receive_maximum=1 + choices.byte() if chosen & 2 else None,
            maximum_packet_size=1 + choices.byte() if chosen & 4 else None,
            request_problem_information=choices.below(2) if chosen & 8 else None,
        )
    return Properties(
        topic_alias=choices.below(20) if chosen & 1 else None,
        message_expiry=choices.byte() if chosen & 2 else None,
        payload_format=choices.below(2) if chosen & 4 else None,
        user_properties=(("a", "b"),) * choices.below(60) if chosen & 8 else (),
    )


def _connect(choices: Choices, number: int, level: int) -> bytes:
    device, token = _DEVICES[number]
    will = None
    if choices.below(3) == 0:
        delay = Properties(will_delay=choices.byte()) if level == 5 and choices.below(2) else NO_PROPERTIES
        will = Will(choices.topic(), choices.text(), choices.below(3), bool(choices.below(2)), delay)
    return peers.connect(
        device,
        token if choices.below(16) else "9" * 32,
        level=level,
        keep_alive=choices.byte(),
        will=will,
        client_id=(b"", b"c", b"d")[choices.below(3)],
        clean=bool(choices.below(2)),
        properties=_properties(choices, of_connect=True) if level == 5 else NO_PROPERTIES,
    )


def _packet(choices: Choices, chosen: int, level: int) -> bytes:
    number = choices.below(8)
    if chosen <= 8:
        topic, qos, retain = choices.topic(), choices.below(3), bool(choices.below(2))
        payload = choices.text() if choices.below(2) else peers.ON
        if level == 5:
            properties = _properties(choices)
            return peers.publish_5(number, payload, qos=qos, topic=topic, retain=retain, properties=properties)
        return peers.publish(number, payload, qos=qos, topic=topic, retain=retain, dup=bool(qos and choices.below(2)))
    if chosen <= 10:
        topics = [choices.topic() for _ in range(1 + choices.below(4))]
        if level == 5:
            identifier = choices.below(4)
            properties = Properties(subscription_ids=(identifier,)) if identifier else NO_PROPERTIES
            return peers.subscribe_5(*topics, number=number, options=choices.byte(), properties=properties)
        return peers.subscribe(*topics, number=number, qos=choices.below(4))
    if chosen == 11:
        return (peers.unsubscribe_5 if level == 5 else peers.unsubscribe)(choices.topic(), number=number)
    if chosen == 15:
        return peers.disconnect_5(choices.byte()) if level == 5 else peers.DISCONNECT
    answers: tuple[Callable[[int], bytes], ...] = (peers.puback, peers.pubrec, peers.pubrel, peers.pubcomp)
    return answers[choices.below(4)](number) if chosen < 14 else peers.PINGREQ
