"""The firehose: each message reaches the subscribers that watch its device, encoded once for all of them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.envelope import Action
from broker.facts import ActionStored, DeviceChanged, MessagesStored, Router, TokenRevoked
from broker.routing.connections import CloseReason
from broker.routing.feeds import FeedEncoding, Feeds, FeedStatistics, Subscriber
from storage.keys import DeviceKey, Milliseconds, Position, UserKey
from storage.records import MessageRow
from tests.factories import make_device


class Codec:
    """An encoding that remembers what it was asked to encode."""

    def __init__(self, mark: str = "") -> None:
        self.encoded: list[int] = []
        self.mark = mark
        self.encoding = FeedEncoding(messages=self.messages, action=self.action)

    def messages(self, pairs: Sequence[tuple[MessageRow, Device]]) -> bytes:
        self.encoded += (row.position for row, _ in pairs)
        return "".join(f"{self.mark}{device.key}:{row.position};" for row, device in pairs).encode()

    def action(self, action: Action) -> bytes:
        self.encoded.append(action.position)
        return f"{self.mark}action {action.position};".encode()


class Watcher:
    def __init__(
        self, codec: Codec, watches: Callable[[Device], bool] = lambda _device: True, token: bytes = b""
    ) -> None:
        self.asked: list[int] = []
        self.got: list[tuple[bytes, int]] = []
        self._watches = watches
        self.closed: list[CloseReason] = []
        self.subscriber = Subscriber(self.watches, self.offer, codec.encoding, token, self.closed.append)

    def watches(self, device: Device) -> bool:
        self.asked.append(device.key)
        return self._watches(device)

    def offer(self, frames: bytes, count: int, _first: Position, _last: Position) -> None:
        self.got.append((frames, count))


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def devices() -> dict[int, Device]:
    return {key: make_device(key, owner=UserKey(key)) for key in (1, 2, 3)}


@pytest.fixture
def feeds(router: Router, devices: dict[int, Device]) -> Feeds:
    return Feeds(router, devices.get)


@pytest.fixture
def codec() -> Codec:
    return Codec()


def test_who_reads_is_noted_once_for_each_batch_and_owner(
    router: Router, devices: dict[int, Device], codec: Codec
) -> None:
    noted: list[tuple[str | None, set[int]]] = []
    feeds = Feeds(router, devices.get, note_read=lambda caller, owners: noted.append((caller.user_id, set(owners))))
    reader: list[Caller | None] = [Caller(TokenKind.USER, b"", None, user_id="ada")]
    one, nobody = Watcher(codec), Watcher(codec, lambda device: device.key < 3)
    with feeds.subscribe(replace(one.subscriber, reader=lambda: reader[0])), feeds.subscribe(nobody.subscriber):
        router.publish(stored((1, 1), (2, 2), (3, 1), (4, 3)))
        assert noted == [("ada", {1, 2}), ("ada", {3})]
        reader[0] = None  # it reads later
        router.publish(stored((5, 1)))
    assert len(noted) == 2


def stored(*rows: tuple[int, int]) -> MessagesStored:
    return MessagesStored(
        [
            MessageRow(Position(position), DeviceKey(device), Milliseconds(1), Milliseconds(1), 1, "{}")
            for position, device in rows
        ]
    )


def action_stored(source: int, destination: DeviceKey, position: int = 9) -> ActionStored:
    action = Action(
        position=Position(position),
        mid="",
        sdid="",
        ddid="",
        ddtid="",
        uid="",
        boid="",
        ts=Milliseconds(1),
        cts=Milliseconds(1),
        mv=1,
        data="{}",
    )
    return ActionStored(action=action, source=DeviceKey(source), destination=destination)


def test_a_batch_becomes_one_block_of_frames_of_the_watched_devices(router: Router, feeds: Feeds, codec: Codec) -> None:
    odd = Watcher(codec, lambda device: device.key != 2)
    with feeds.subscribe(odd.subscriber):
        router.publish(stored((1, 1), (2, 2), (3, 3), (4, 1)))
    assert odd.got == [(b"1:1;3:3;1:4;", 3)]
    assert feeds.statistics() == FeedStatistics(0, 3)


def test_a_subscriber_that_watches_no_device_of_a_batch_gets_nothing(
    router: Router, feeds: Feeds, codec: Codec
) -> None:
    nobody = Watcher(codec, lambda _device: False)
    with feeds.subscribe(nobody.subscriber):
        router.publish(stored((1, 1)))
    assert nobody.got == []
    assert codec.encoded == []


def test_a_message_is_encoded_once_for_all_subscribers_with_one_encoding(router: Router, feeds: Feeds) -> None:
    json, pack = Codec("j"), Codec("p")
    watchers = [Watcher(json) for _ in range(5)] + [Watcher(pack) for _ in range(5)]
    with ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(feeds.subscribe(watcher.subscriber))
        router.publish(stored((1, 1), (2, 2)))
        router.publish(action_stored(1, DeviceKey(2)))
    assert json.encoded == pack.encoded == [1, 2, 9]
    assert [watcher.got for watcher in watchers] == [[(b"j1:1;j2:2;", 2), (b"jaction 9;", 1)]] * 5 + [
        [(b"p1:1;p2:2;", 2), (b"paction 9;", 1)]
    ] * 5


def test_subscribers_that_watch_different_devices_get_their_messages_in_order(
    router: Router, feeds: Feeds, codec: Codec
) -> None:
    everything, first_only = Watcher(codec), Watcher(codec, lambda device: device.key == 1)
    with feeds.subscribe(everything.subscriber), feeds.subscribe(first_only.subscriber):
        router.publish(stored((1, 2), (2, 1), (3, 2), (4, 1)))
    assert b"".join(frames for frames, _ in first_only.got) == b"1:2;1:4;"
    assert sum(count for _, count in everything.got) == 4
    of_each = b"".join(frames for frames, _ in everything.got).split(b";")
    for device in (b"1", b"2"):
        assert [frame for frame in of_each if frame.startswith(device)] == sorted(
            frame for frame in of_each if frame.startswith(device)
        )


def test_actions_are_offered_to_subscribers_that_watch_their_source(router: Router, feeds: Feeds, codec: Codec) -> None:
    of_source, of_destination = (
        Watcher(codec, lambda device: device.key == 1),
        Watcher(codec, lambda device: device.key == 2),
    )
    with feeds.subscribe(of_source.subscriber), feeds.subscribe(of_destination.subscriber):
        router.publish(action_stored(1, DeviceKey(2)))
    assert of_source.got == [(b"action 9;", 1)]
    assert of_destination.got == []


def test_without_subscribers_nothing_is_encoded(router: Router, feeds: Feeds, codec: Codec) -> None:
    with feeds.subscribe(Watcher(codec).subscriber):
        pass
    router.publish(stored((1, 1)))
    router.publish(action_stored(1, DeviceKey(1)))
    assert codec.encoded == []


def test_a_later_subscriber_gets_later_messages_only(router: Router, feeds: Feeds, codec: Codec) -> None:
    early, late = Watcher(codec), Watcher(codec)
    with feeds.subscribe(early.subscriber):
        router.publish(stored((1, 1)))
        with feeds.subscribe(late.subscriber):
            assert feeds.statistics().subscribers == 2
            router.publish(stored((2, 1)))
        router.publish(stored((3, 1)))
    assert early.got == [(b"1:1;", 1), (b"1:2;", 1), (b"1:3;", 1)]
    assert late.got == [(b"1:2;", 1)]


def test_the_decision_about_a_device_is_remembered_until_the_device_changes(
    router: Router, feeds: Feeds, codec: Codec
) -> None:
    allowed = {1}
    watcher = Watcher(codec, lambda device: device.key in allowed)
    with feeds.subscribe(watcher.subscriber):
        router.publish(stored((1, 1)))
        router.publish(stored((2, 1), (3, 2)))
        assert watcher.asked == [1, 2]
        allowed.clear()
        router.publish(DeviceChanged(DeviceKey(1)))
        router.publish(stored((4, 1)))
        assert watcher.asked == [1, 2, 1]
    assert watcher.got == [(b"1:1;", 1), (b"1:2;", 1)]


def test_a_row_whose_device_is_not_held_is_left_out(router: Router, feeds: Feeds, codec: Codec) -> None:
    watcher = Watcher(codec)
    with feeds.subscribe(watcher.subscriber):
        router.publish(stored((1, 99), (2, 1)))
        router.publish(action_stored(99, DeviceKey(1)))
    assert watcher.got == [(b"1:2;", 1)]


def test_a_subscriber_that_raises_does_not_harm_the_others(router: Router, feeds: Feeds, codec: Codec) -> None:
    def fail(_frames: bytes, _count: int, _first: Position, _last: Position) -> None:
        raise ZeroDivisionError

    broken = Subscriber(lambda _device: True, fail, codec.encoding, b"", lambda _reason: None)
    watcher = Watcher(codec)
    with feeds.subscribe(broken), feeds.subscribe(watcher.subscriber):
        router.publish(stored((1, 1)))
        router.publish(action_stored(1, DeviceKey(1)))
    assert watcher.got == [(b"1:1;", 1), (b"action 9;", 1)]


def test_a_revoked_token_closes_only_subscribers_with_it(router: Router, feeds: Feeds, codec: Codec) -> None:
    revoked, other = Watcher(codec, token=b"one"), Watcher(codec, token=b"two")
    with feeds.subscribe(revoked.subscriber), feeds.subscribe(other.subscriber):
        router.publish(TokenRevoked(b"one"))
    assert (revoked.closed, other.closed) == ([CloseReason.TOKEN_REVOKED], [])
