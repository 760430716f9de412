"""Frames of one read: the device channel says of them what it says of frames that come one by one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgpack
import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from broker.limits.ledger import Ledger
from broker.limits.meters import Meters
from broker.services import Services
from config.limits import PACKETS_PER_TURN
from config.rates import Rate
from config.settings import Limits, Settings
from protocols.websocket.device_channel import (
    ActionOffered,
    ChannelEvent,
    DeviceChannel,
    DeviceChannelState,
    MessageOffered,
)
from protocols.websocket.frames import CID_MAX_CHARACTERS
from storage.database import Database
from storage.keys import Position
from storage.records import MessageRow
from tests.builders import ServicesOpener
from tests.factories import BOBS, HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, NOW_MS, World, build_world
from tests.fakes import FakeClock, new_refusals
from tests.protocols.websocket.conftest import Disk
from tests.protocols.websocket.peers import Peers, PlainPeer, ask, open_peers, register
from tests.protocols.websocket.test_device_channel import TOKEN, say
from tests.rows import each_row
from tests.stores import MigratedEngine

WITH_ACK, WITHOUT_ACK = "/v1.1/websocket?ack=true", "/v1.1/websocket"
DAY_MS = 86_400_000
Payload: TypeAlias = str | bytes
MEMBERS: dict[str, list[object]] = {
    "type": ["message", "MESSAGE", "action", "list", "unregister", "nonsense", 1, None],
    "sdid": ["a", "b", "c", "", None, 1],
    "ddid": ["a", "", None],
    "data": [{"a": 1}, {}, {"actions": [1]}, '{"a": 2}', "no", "", 7, [1], None, "\xe9"],
    "ts": [1, 1.5, -1, "1", True, None],
    "cid": ["1", '"', "c" * CID_MAX_CHARACTERS, "c" * (CID_MAX_CHARACTERS + 1), "", 7, 1.5, True, None],
}


def frame(**members: object) -> str:
    return json.dumps({"sdid": "a", "data": {"a": 1}, "cid": "u"} | members)


USUAL, OF_B, PACKED = frame(), frame(sdid="b"), msgpack.packb({"sdid": "b", "data": {"a": 1}})
NEARLY_USUAL = [frame(**{member: value}) for member, values in MEMBERS.items() for value in values]
FRAME = (
    st.just(USUAL)
    | st.sampled_from(["", "{", "7", "[" * 2000, USUAL.encode(), PACKED, OF_B, *NEARLY_USUAL])
    | st.fixed_dictionaries({}, optional={member: st.sampled_from(values) for member, values in MEMBERS.items()}).map(
        json.dumps
    )
)
#: A turn of frames, or how far the clock is set or goes on.
STEP = st.lists(FRAME, max_size=8) | st.sampled_from([1, 60_000, DAY_MS, -DAY_MS])


class Talk:
    """A channel with two devices, of a meter each."""

    def __init__(self, rate: Rate | None, *, ack: bool) -> None:
        self.clock = FakeClock(NOW_MS)
        clock = self.clock.clock
        ledger = Ledger(cast("Database", None), clock)  # nothing is saved
        self.meters = Meters({}, ledger, clock, new_refusals(clock))
        self.of = {sdid: None if rate is None else self.meters.named(f"websocket device {sdid}", rate) for sdid in "ab"}
        self.channel = DeviceChannel(ack=ack, handshake_token=TOKEN)

    def register(self) -> None:
        for sdid, meter in self.of.items():
            say(self.channel, type="register", sdid=sdid)
            self.channel.registration_accepted(sdid, meter)

    def take_together(self, payloads: Sequence[Payload]) -> list[ChannelEvent]:
        offers = self.channel.receive_usual(payloads)
        return [*offers, *self.take_each(payloads[len(offers) :])]

    def take_each(self, payloads: Sequence[Payload]) -> list[ChannelEvent]:
        return [event for payload in payloads for event in self.channel.receive(payload)]

    def settle(self, events: Sequence[ChannelEvent]) -> Sequence[ChannelEvent]:
        offers = [event for event in events if isinstance(event, MessageOffered | ActionOffered)]
        return self.channel.settle((offer, f"mid {number}") for number, offer in enumerate(offers))

    def known(self) -> list[object]:
        calls = [(meter._day.used, list(meter._window.times)) for meter in self.of.values() if meter is not None]
        return [self.channel.statistics(), self.channel.state, self.channel.form, calls, self.meters.refused]


def compare(
    rate: Rate | None, steps: Sequence[Sequence[Payload] | int], *, ack: bool, is_registered: bool = True
) -> None:
    together, each = Talk(rate, ack=ack), Talk(rate, ack=ack)
    for talk in (together, each):
        if is_registered:
            talk.register()
    for step in steps:
        if isinstance(step, int):
            for talk in (together, each):
                if abs(step) == DAY_MS:
                    talk.clock.now += step
                else:
                    talk.clock.advance(step)
        else:
            events = together.take_together(step), each.take_each(step)
            assert repr(events[0]) == repr(events[1])
            assert repr(together.settle(events[0])) == repr(each.settle(events[1]))
        assert together.known() == each.known()


@given(st.sampled_from([None, Rate(3, 100), Rate(50, 9)]), st.booleans(), st.lists(STEP, max_size=8))
@example(Rate(50, 3), True, [[USUAL] * 3, DAY_MS, [USUAL], -DAY_MS, [USUAL] * 2])
@example(Rate(3, 9), True, [[USUAL] * 2, [USUAL] * 2, 60_000, [USUAL] * 2])
@example(Rate(3, 9), True, [[USUAL, OF_B, USUAL, USUAL, USUAL, OF_B, OF_B]])
@example(None, True, [[PACKED, USUAL], [USUAL, PACKED], [USUAL]])
@example(None, True, [[USUAL, frame(type="unregister"), frame(type="unregister", sdid="b")], [USUAL, OF_B]])
def test_frames_of_one_turn_mean_what_they_mean_one_by_one(
    rate: Rate | None, ack: bool, steps: list[list[Payload] | int]
) -> None:
    compare(rate, steps, ack=ack)


@each_row("other", NEARLY_USUAL)
def test_a_frame_that_is_nearly_usual_means_the_same_among_usual_ones(other: str) -> None:
    for ack in (True, False):
        compare(Rate(50, 50), [[USUAL, OF_B, other, USUAL], [other, other, USUAL]], ack=ack)


def test_frames_before_the_registration_mean_the_same_together() -> None:
    compare(None, [[USUAL, USUAL]], ack=True, is_registered=False)


def test_a_channel_that_floods_is_closed_and_takes_no_more_frames() -> None:
    talk = Talk(Rate(1, 1), ack=True)
    talk.register()
    assert len(talk.channel.receive_usual([USUAL, USUAL])) == 1
    talk.channel.receive_overhead(1, 1, lambda _pings: True)
    assert talk.channel.state is DeviceChannelState.CLOSED
    assert talk.channel.receive_usual([OF_B]) == []


def test_usual_frames_are_taken_together_and_the_first_other_one_ends_them() -> None:
    talk = Talk(Rate(4, 9), ack=True)
    talk.register()
    assert len(talk.channel.receive_usual([USUAL, USUAL, '{"type":"list"}', USUAL])) == 2
    assert len(talk.channel.receive_usual([USUAL] * 5)) == 2
    assert talk.channel.answers_waiting == 4


# --- On a connection ------------------------------------------------------------------------------------------------

STATE = {"state": True}
FRAMES: list[dict[str, object]] = [
    *({"sdid": KITCHEN, "data": STATE, "ts": ts} for ts in range(100, 110)),
    {"sdid": KITCHEN, "data": {"state": True, "opne": 1}},
    *({"sdid": KITCHEN, "data": STATE, "ts": ts} for ts in range(200, 210)),
    {"sdid": KITCHEN, "data": STATE, "ts": -1},
    *({"sdid": KITCHEN, "data": STATE, "ts": ts} for ts in range(300, 310)),
    {"sdid": KITCHEN, "data": STATE},
    {"sdid": KITCHEN, "data": STATE, "ts": 5},
    {"sdid": KITCHEN, "data": {"state": True, "opne": 1}},
    {"sdid": KITCHEN, "data": STATE, "ts": -1},
    {"sdid": HALL, "data": STATE, "ts": 6},
    {"sdid": HALL, "data": {"opne": 1}},
    {"sdid": KITCHEN, "data": STATE, "ts": NOW_MS + 60_001},
    {"sdid": KITCHEN, "data": {"text": "{}"}},
    {"sdid": KITCHEN, "data": {}},
    {"sdid": HALL, "data": STATE, "ts": 7},
    {"sdid": HALL, "data": {"text": "x" * 1014}},
    {"sdid": HALL, "data": STATE, "ts": 8},
]
OTHERS: list[dict[str, object]] = [
    {"type": "list"},
    {"sdid": KITCHEN, "data": STATE, "ts": 9},
    {"sdid": KITCHEN, "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}},
    {"sdid": HALL, "data": STATE, "ts": 10},
    {"type": "register", "sdid": HALL, "Authorization": HALL_TOKEN},
    {"sdid": KITCHEN, "data": STATE, "ts": 11},
    {"sdid": KITCHEN, "ddid": BOBS, "data": {"actions": [{"name": "setOn"}]}},
    {"sdid": HALL, "data": STATE, "ts": 12},
    {"data": STATE},
    {"sdid": HALL, "data": STATE, "ts": 13},
]
ALL = [{**frame, "cid": str(number)} for number, frame in enumerate([*FRAMES, *OTHERS, *FRAMES])]


async def registered(peers: Peers, path: str = WITH_ACK) -> PlainPeer:
    peer = await peers.connect_plain(path)
    for sdid, token in ((KITCHEN, KITCHEN_TOKEN), (HALL, HALL_TOKEN)):
        await peer.send({"type": "register", "sdid": sdid, "Authorization": token})
        if path == WITH_ACK:
            assert "data" in await peer.said()
    return peer


async def answers(peer: PlainPeer, count: int) -> list[Any]:
    """So many answers; Actions and pings between them are left out."""
    found: list[Any] = []
    while len(found) < count:
        if "type" not in (frame := await peer.said()):
            found.append(frame)
    return found


async def rows(services: Services) -> list[MessageRow]:
    return await services.core.database.read(lambda tx: list(tx.messages.after(Position(0))))


def without_mids(frames: Sequence[Any]) -> list[Any]:
    return [
        {**frame, "data": frame["data"] | {"mid": "a mid"}} if "mid" in frame.get("data", ()) else frame
        for frame in frames
    ]


async def known(services: Services, world: World) -> list[object]:
    """The stored and kept state of both devices, without positions."""
    ingest = services.messages.ingest
    await ingest.wait_committed()
    devices = [await services.devices.registry.get(key) for key in (world.kitchen, world.hall)]
    failed = await services.core.database.read(
        lambda tx: [tuple(row) for row in tx.connection.execute("SELECT device, cts, payload FROM failed_message")]
    )
    return [
        [(row.device, row.ts, row.cts, row.mv, row.data) for row in await rows(services)],
        failed,
        ingest.statistics(),
        [ingest.refused.of(device) for device in devices],
        [[(lost.field, lost.at_ms) for lost in ingest.lost_fields.of(device)] for device in devices],
        services.core.refusals.statistics(),
    ]


@pytest.mark.parametrize("ack", [True, False])
async def test_frames_of_one_write_are_answered_and_stored_as_those_that_come_one_by_one(
    opener: ServicesOpener, tmp_path: Path, *, ack: bool
) -> None:
    found = []
    for is_together in (True, False):
        engine = MigratedEngine(tmp_path / f"{is_together}.sqlite")
        async with opener(engine=engine) as services, open_peers(services) as peers:
            world = await build_world(services.core.database, services.core.vault)
            for sdid in (KITCHEN, HALL):  # the first message of a device is looked at for lost fields
                services.messages.ingest.submit(await services.devices.registry.find(sdid), b'{"state":false}')
            peer = await registered(peers, WITH_ACK if ack else WITHOUT_ACK)
            await trio.testing.wait_all_tasks_blocked()
            said: list[Any] = []
            for frames in [ALL] if is_together else [[frame] for frame in ALL]:
                await peer.send(*frames)
                if ack:
                    said += await answers(peer, len(frames))
                await trio.testing.wait_all_tasks_blocked()
            mids = [frame["data"]["mid"] for frame in said if "mid" in frame.get("data", ())]
            stored = [services.messages.ingest.mid(row.position) for row in await rows(services)]
            assert not ack or [mid for mid in mids if mid in stored] == stored[2:]
            assert sum("warnings" in answer for answer in said) == 8 * ack
            found.append([without_mids(said), *await known(services, world)])
    assert found[0] == found[1]


async def test_all_frames_of_whole_turns_are_answered_in_their_order(peers: Peers, services: Services) -> None:
    peer = await registered(peers)
    count = 2 * PACKETS_PER_TURN
    await peer.send(*({"sdid": KITCHEN, "data": STATE, "ts": number, "cid": str(number)} for number in range(count)))
    assert [frame["data"]["cid"] for frame in await answers(peer, count)] == [str(number) for number in range(count)]
    assert [row.ts for row in await rows(services)] == list(range(count))
    assert services.limits.overhead.statistics().delayed == 0


async def test_refused_messages_of_one_turn_are_overhead(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await registered(peers)
    await peer.send(*[{"sdid": KITCHEN, "data": STATE, "ts": -1}] * PACKETS_PER_TURN)
    await answers(peer, PACKETS_PER_TURN)
    await peer.send({"type": "list"})
    await answers(peer, 1)
    assert services.limits.overhead.statistics().delayed >= PACKETS_PER_TURN


async def test_when_nothing_can_be_stored_each_message_of_a_turn_is_told_in_its_place(peers: Peers, disk: Disk) -> None:
    peer = await registered(peers)
    disk.is_broken = True
    frames = [{"sdid": KITCHEN, "data": STATE, "ts": ts, "cid": str(ts)} for ts in (1, 2, -1, 3, -2, 4, 5)]
    await peer.send(*frames)
    said = [(frame["error"]["cid"], frame["error"]["code"]) for frame in await answers(peer, len(frames))]
    assert said == [("1", 503), ("2", 503), ("-1", 400), ("3", 503), ("-2", 400), ("4", 503), ("5", 503)]


async def test_messages_behind_the_end_of_a_channel_are_not_stored(peers: Peers, services: Services) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    message = {"sdid": KITCHEN, "data": STATE}
    await peer.send(message, message, {"type": "unregister", "sdid": KITCHEN, "cid": "end"}, message, message)
    said = [await peer.said() for _ in range(4)]
    assert [("mid" in frame["data"], frame["data"].get("cid")) for frame in said[1:]] == [
        (True, None),
        (True, None),
        (False, "end"),
    ]
    assert (await peer.end())[0] == 1000
    assert len(await rows(services)) == 2


class TestLimited:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(state_dir=settings.state_dir, limits=Limits(websocket_device="50/5"))

    async def test_a_clock_that_was_a_day_ahead_leaves_the_channel_open(
        self, peers: Peers, services: Services, fake_clock: FakeClock
    ) -> None:
        """The device has used up the day to which the clock comes back."""
        socket = await peers.connect(WITH_ACK)
        await register(socket, KITCHEN, KITCHEN_TOKEN)
        for _ in range(4):
            assert "data" in await ask(socket, sdid=KITCHEN, data=STATE)
        fake_clock.now += DAY_MS
        assert "data" in await ask(socket, sdid=KITCHEN, data=STATE)
        fake_clock.now -= DAY_MS
        for _ in range(2):
            answer = await ask(socket, sdid=KITCHEN, data=STATE)
            assert answer == {"error": {"code": 429, "message": "DAILY rate limit exceeded"}}
        assert services.limits.meters.statistics().refused == 2
