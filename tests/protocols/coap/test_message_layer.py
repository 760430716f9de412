"""The message layer (RFC 7252, 4), with the time passed in."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from protocols.coap.incoming import ANSWERED_BYTES, EXCHANGE_LIFETIME, MAX_REMEMBERED, Incoming
from protocols.coap.message_layer import (
    PIGGYBACK_SECONDS,
    Delivered,
    MessageLayer,
    Rejected,
    RequestReceived,
    ResponseReceived,
    TimedOut,
)
from protocols.coap.messages import (
    ACK,
    CON,
    NON,
    RST,
    CoapMessage,
    Code,
    Option,
    decode_message,
    empty,
    encode_options,
    frame,
)
from protocols.coap.outgoing import MAX_RETRANSMIT
from tests.rows import each_row


@pytest.fixture
def layer() -> MessageLayer:
    return MessageLayer(lambda: 0.0)


def _request(message_id: int = 7, *, type_: int = CON, token: bytes = b"t", payload: bytes = b"") -> CoapMessage:
    return CoapMessage(type_, Code.POST, message_id, token, (), payload)


def _received(layer: MessageLayer, message: CoapMessage, now: float = 0) -> Incoming:
    (event,) = layer.receive(message, now)
    assert isinstance(event, RequestReceived)
    return event.incoming


def _sent(layer: MessageLayer) -> list[CoapMessage]:
    return [decode_message(datagram) for datagram in layer.take_output()]


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Gives a function that counts the bytes that were allocated in the block and are still in use."""

    def traced() -> int:
        gc.collect(0)  # all of the block is of this generation, as long as the collector does not run by itself
        return tracemalloc.get_traced_memory()[0]

    gc.disable()
    tracemalloc.start()
    try:
        yield traced
    finally:
        tracemalloc.stop()
        gc.enable()


def test_answer_is_piggybacked(layer: MessageLayer) -> None:
    layer.respond(_received(layer, _request()), Code.CREATED, b"", b"done", 0.5)
    assert _sent(layer) == [CoapMessage(ACK, Code.CREATED, 7, b"t", (), b"done")]
    assert layer.deadline == float("inf")


def test_answer_to_non_confirmable_is_not_confirmable(layer: MessageLayer) -> None:
    layer.respond(_received(layer, _request(type_=NON)), Code.CREATED, b"", b"done", 0)
    (answer,) = _sent(layer)
    assert (answer.type, answer.token, answer.payload) == (NON, b"t", b"done")


def test_late_answer_is_separate_and_confirmable(layer: MessageLayer) -> None:
    incoming = _received(layer, _request())
    assert layer.deadline == PIGGYBACK_SECONDS
    assert layer.tick(PIGGYBACK_SECONDS) == ()
    assert layer.take_output() == [empty(ACK, 7)]
    layer.respond(incoming, Code.CREATED, b"", b"done", 3)
    (answer,) = _sent(layer)
    assert (answer.type, answer.code, answer.token) == (CON, Code.CREATED, b"t")
    assert layer.receive(CoapMessage(ACK, Code.EMPTY, answer.message_id), 3.1) == (Delivered(None),)
    assert layer.deadline == float("inf")


class TestDuplicates:
    def test_get_the_same_answer(self, layer: MessageLayer) -> None:
        layer.respond(_received(layer, _request()), Code.CREATED, b"", b"done", 0)
        first = layer.take_output()
        assert layer.receive(_request(), 2) == ()
        assert layer.take_output() == first

    def test_get_nothing_while_the_answer_is_to_come(self, layer: MessageLayer) -> None:
        _received(layer, _request())
        assert layer.receive(_request(), 0.5) == ()
        assert layer.take_output() == []

    def test_get_the_empty_acknowledgement_again(self, layer: MessageLayer) -> None:
        _received(layer, _request())
        layer.tick(PIGGYBACK_SECONDS)
        layer.take_output()
        layer.receive(_request(), 2)
        assert layer.take_output() == [empty(ACK, 7)]

    def test_of_non_confirmable_get_nothing(self, layer: MessageLayer) -> None:
        layer.respond(_received(layer, _request(type_=NON)), Code.CREATED, b"", b"", 0)
        layer.take_output()
        assert layer.receive(_request(type_=NON), 1) == ()
        assert layer.take_output() == []

    def test_are_forgotten_after_their_lifetime(self, layer: MessageLayer) -> None:
        layer.respond(_received(layer, _request()), Code.CREATED, b"", b"", 0)
        assert layer.receive(_request(), EXCHANGE_LIFETIME - 0.1) == ()
        assert layer.receive(_request(), EXCHANGE_LIFETIME) != ()

    def test_are_forgotten_by_count(self, layer: MessageLayer) -> None:
        for message_id in range(MAX_REMEMBERED + 1):
            layer.respond(_received(layer, _request(message_id)), Code.CREATED, b"", b"", 0)
        assert layer.bytes_held <= MAX_REMEMBERED * (ANSWERED_BYTES + 16)
        assert layer.receive(_request(1), 1) == ()
        assert layer.receive(_request(0), 1) != ()

    def test_of_one_message_id_count_until_they_are_forgotten(self, layer: MessageLayer) -> None:
        """A peer that uses one message id again and again makes the daemon hold no more than any other."""
        held = []
        for number in range(3 * MAX_REMEMBERED):
            request = _request(token=number.to_bytes(2, "big"))
            layer.respond(_received(layer, request), Code.CREATED, b"", b"", 0)
            held.append(layer.bytes_held)
        assert held[9] == 10 * held[0]
        assert max(held) == MAX_REMEMBERED * held[0]
        assert layer.receive(request, 1) == ()
        layer.tick(EXCHANGE_LIFETIME)
        assert layer.bytes_held == 0

    def test_have_the_same_token(self, layer: MessageLayer) -> None:
        """A client that restarts may use a message id again at once."""
        layer.respond(_received(layer, _request(token=b"old")), Code.CREATED, b"", b"", 0)
        assert _received(layer, _request(token=b"new"), 1).token == b"new"


class TestBytesHeld:
    """`bytes_held` is the allocated memory, rounded up: a listener evicts sessions by it."""

    @each_row("is_answered", [True, False])
    def test_of_requests(self, is_answered: bool) -> None:
        options = encode_options(
            ((Option.URI_PATH, b"v1.1"), (Option.URI_PATH, b"messages"), (Option.URI_PATH, b"t" * 32))
        )
        layers = [MessageLayer(lambda: 0.0) for _ in range(2)]
        with _traced() as traced:
            for layer in layers:
                for message_id in range(1000, 1400):
                    request = frame(CON, Code.POST, message_id, b"%d" % message_id, options, b"x" * 40)
                    incoming = _received(layer, decode_message(request), message_id / 1000)
                    if is_answered:
                        layer.respond(incoming, Code.CREATED, b"", b"y" * 50, message_id / 1000)
                        layer.take_output()
            del incoming
            used = traced()
        assert used < sum(layer.bytes_held for layer in layers) < 1.25 * used

    def test_of_messages_to_the_peer(self, layer: MessageLayer) -> None:
        with _traced() as traced:
            for number in range(1000, 1400):
                layer.send(Code.CONTENT, b"%d" % number, b"", b"y" * 50, None, 0)
            used = traced()
        assert used < layer.bytes_held < 1.4 * used

    def test_returns_to_zero(self, layer: MessageLayer) -> None:
        for number in range(10):
            incoming = _received(layer, _request(number, payload=b"x" * 40))
            if number % 2:
                layer.tick(PIGGYBACK_SECONDS)
            if number % 3:
                layer.respond(incoming, Code.CREATED, b"", b"y" * 50, PIGGYBACK_SECONDS)
            elif number:
                layer.ignore(incoming)
        while layer.deadline < float("inf"):
            layer.tick(layer.deadline)
        layer.tick(PIGGYBACK_SECONDS + EXCHANGE_LIFETIME)
        assert layer.bytes_held == 0


class TestOwed:
    def test_counts_unanswered_requests_and_responses_that_wait(self, layer: MessageLayer) -> None:
        asked = [_received(layer, _request(number)) for number in range(3)]
        layer.tick(PIGGYBACK_SECONDS)
        layer.send(Code.CONTENT, b"o", b"", b"", "notification", 2)
        layer.take_output()
        for incoming in asked[:2]:
            layer.respond(incoming, Code.CREATED, b"", b"", 2)
        assert (layer.unanswered, layer.owed) == (1, 3)
        layer.cancel("notification", 2)
        for left in (2, 1):
            (answer,) = _sent(layer)
            layer.receive(CoapMessage(ACK, Code.EMPTY, answer.message_id), 3)
            assert layer.owed == left

    def test_ends_when_the_response_is_rejected_or_times_out(self, layer: MessageLayer) -> None:
        for type_, number in ((RST, 1), (None, 2)):
            incoming = _received(layer, _request(number))
            layer.tick(PIGGYBACK_SECONDS)
            layer.take_output()
            layer.respond(incoming, Code.CREATED, b"", b"", 2)
            (answer,) = _sent(layer)
            if type_ is not None:
                layer.receive(CoapMessage(type_, Code.EMPTY, answer.message_id), 3)
            while layer.deadline < float("inf"):
                layer.tick(layer.deadline)
            assert layer.owed == 0


class TestConfirmable:
    def test_is_sent_again_at_the_times_of_rfc_7252(self, layer: MessageLayer) -> None:
        layer.send(Code.CONTENT, b"t", b"", b"news", "tag", 0)
        moments = [0.0]
        while not (events := layer.tick(layer.deadline)):
            moments.append(moments[-1] + 2.0 * 2 ** (len(moments) - 1))
            assert layer.deadline == moments[-1] + 2.0 * 2 ** (len(moments) - 1)
        assert events == (TimedOut("tag"),)
        assert moments == [0, 2, 6, 14, 30]
        sent = layer.take_output()
        assert len(sent) == 1 + MAX_RETRANSMIT
        assert len(set(sent)) == 1
        assert layer.bytes_held == 0

    @pytest.mark.parametrize(("chance", "first"), [(0.0, 2.0), (0.5, 2.5), (1.0, 3.0)])
    def test_first_time_out_is_spread(self, chance: float, first: float) -> None:
        layer = MessageLayer(lambda: chance)
        layer.send(Code.CONTENT, b"t", b"", b"", None, 10)
        assert layer.deadline == 10 + first

    @pytest.mark.parametrize(("answer", "event"), [(ACK, Delivered("tag")), (RST, Rejected("tag"))])
    def test_ends_with_an_answer(self, layer: MessageLayer, answer: int, event: object) -> None:
        layer.send(Code.CONTENT, b"t", b"", b"", "tag", 0)
        (sent,) = _sent(layer)
        assert layer.receive(CoapMessage(answer, Code.EMPTY, sent.message_id), 1) == (event,)
        assert layer.receive(CoapMessage(answer, Code.EMPTY, sent.message_id), 1) == ()

    def test_an_answer_with_another_id_is_ignored(self, layer: MessageLayer) -> None:
        layer.send(Code.CONTENT, b"t", b"", b"", "tag", 0)
        (sent,) = _sent(layer)
        assert layer.receive(CoapMessage(ACK, Code.EMPTY, sent.message_id ^ 1), 1) == ()
        assert layer.receive(CoapMessage(RST, Code.EMPTY, sent.message_id ^ 1), 1) == ()

    def test_one_is_under_way_at_a_time(self, layer: MessageLayer) -> None:
        for tag in "abc":
            layer.send(Code.CONTENT, b"t", b"", tag.encode(), tag, 0)
        for tag in "abc":
            (sent,) = _sent(layer)
            assert sent.payload == tag.encode()
            assert layer.receive(CoapMessage(ACK, Code.EMPTY, sent.message_id), 1) == (Delivered(tag),)

    def test_a_cancelled_message_is_not_sent_again_and_the_next_is_sent(self, layer: MessageLayer) -> None:
        layer.send(Code.CONTENT, b"t", b"", b"a", "a", 0)
        layer.send(Code.CONTENT, b"t", b"", b"a again", "a", 0)
        layer.send(Code.CONTENT, b"t", b"", b"b", "b", 0)
        layer.take_output()
        layer.cancel("a", 1)
        assert [sent.payload for sent in _sent(layer)] == [b"b"]


class TestPing:
    def test_of_the_peer_is_answered_with_a_reset(self, layer: MessageLayer) -> None:
        assert layer.receive(CoapMessage(CON, Code.EMPTY, 99), 0) == ()
        assert layer.take_output() == [empty(RST, 99)]

    def test_of_the_server_has_four_bytes(self, layer: MessageLayer) -> None:
        layer.send(Code.EMPTY, b"", b"", b"", "ping", 0)
        (datagram,) = layer.take_output()
        assert len(datagram) == 4
        pong = CoapMessage(RST, Code.EMPTY, int.from_bytes(datagram[2:], "big"))
        assert layer.receive(pong, 1) == (Rejected("ping"),)

    def test_empty_non_confirmable_is_ignored(self, layer: MessageLayer) -> None:
        assert layer.receive(CoapMessage(NON, Code.EMPTY, 99), 0) == ()
        assert layer.take_output() == []


class TestRequestsToThePeer:
    @pytest.fixture
    def sent(self, layer: MessageLayer) -> CoapMessage:
        layer.send(Code.GET, b"tok", b"", b"", "tag", 0)
        (sent,) = _sent(layer)
        return sent

    def test_piggybacked_answer(self, layer: MessageLayer, sent: CoapMessage) -> None:
        answer = CoapMessage(ACK, Code.CONTENT, sent.message_id, b"tok", (), b"x")
        assert layer.receive(answer, 1) == (ResponseReceived("tag", answer),)
        assert layer.bytes_held == 0

    def test_piggybacked_answer_with_another_token_is_ignored(self, layer: MessageLayer, sent: CoapMessage) -> None:
        assert layer.receive(CoapMessage(ACK, Code.CONTENT, sent.message_id, b"not"), 1) == ()

    def test_separate_answer_is_acknowledged_each_time(self, layer: MessageLayer, sent: CoapMessage) -> None:
        assert layer.receive(CoapMessage(ACK, Code.EMPTY, sent.message_id), 1) == ()
        answer = CoapMessage(CON, Code.CONTENT, 500, b"tok", (), b"x")
        assert layer.receive(answer, 50) == (ResponseReceived("tag", answer),)
        assert layer.receive(answer, 52) == ()
        assert layer.take_output() == [empty(ACK, 500)] * 2

    def test_separate_answer_acknowledges_the_request(self, layer: MessageLayer, sent: CoapMessage) -> None:
        answer = CoapMessage(NON, Code.CONTENT, 500, sent.token)
        assert layer.receive(answer, 1) == (ResponseReceived("tag", answer),)
        assert layer.deadline == float("inf")

    def test_promised_answer_that_never_comes(self, layer: MessageLayer, sent: CoapMessage) -> None:
        layer.receive(CoapMessage(ACK, Code.EMPTY, sent.message_id), 1)
        assert layer.deadline == 1 + EXCHANGE_LIFETIME
        assert layer.tick(layer.deadline) == (TimedOut("tag"),)

    def test_answer_without_a_request_is_rejected(self, layer: MessageLayer) -> None:
        assert layer.receive(CoapMessage(CON, Code.CONTENT, 500, b"tok"), 1) == ()
        assert layer.receive(CoapMessage(NON, Code.CONTENT, 501, b"tok"), 1) == ()
        assert layer.take_output() == [empty(RST, 500)]


def test_an_ignored_request_leaves_nothing_behind(layer: MessageLayer) -> None:
    incoming = _received(layer, _request(payload=b"x" * 100))
    layer.ignore(incoming)
    assert (layer.unanswered, layer.deadline, layer.take_output()) == (0, float("inf"), [])
    layer.tick(EXCHANGE_LIFETIME)
    assert layer.bytes_held == 0


def test_a_request_is_answered_once(layer: MessageLayer) -> None:
    incoming = _received(layer, _request())
    layer.respond(incoming, Code.CREATED, b"", b"", 0)
    with pytest.raises(RuntimeError):
        layer.respond(incoming, Code.CREATED, b"", b"", 0)
