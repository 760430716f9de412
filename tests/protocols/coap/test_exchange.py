"""The message layer: what RFC 7252 section 4 asks, with time in hand."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from protocols.coap.exchange import (
    PIGGYBACK_SECONDS,
    Delivered,
    Exchange,
    Rejected,
    RequestReceived,
    ResponseReceived,
    TimedOut,
)
from protocols.coap.incoming import ANSWERED_BYTES, EXCHANGE_LIFETIME, MAX_REMEMBERED, Incoming
from protocols.coap.messages import ACK, CON, NON, RST, Code, Message, Option, decode, empty, encode_options, frame
from protocols.coap.outgoing import MAX_RETRANSMIT


@pytest.fixture
def exchange() -> Exchange:
    return Exchange(lambda: 0.0)


def _request(message_id: int = 7, *, type_: int = CON, token: bytes = b"t", payload: bytes = b"") -> Message:
    return Message(type_, Code.POST, message_id, token, (), payload)


def _received(exchange: Exchange, message: Message, now: float = 0) -> Incoming:
    (event,) = exchange.receive(message, now)
    assert isinstance(event, RequestReceived)
    return event.incoming


def _sent(exchange: Exchange) -> list[Message]:
    return [decode(datagram) for datagram in exchange.take_output()]


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """How many bytes were allocated in here and are still there."""

    def traced() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    gc.collect()
    tracemalloc.start()
    try:
        yield traced
    finally:
        tracemalloc.stop()


def test_answer_is_piggybacked(exchange: Exchange) -> None:
    exchange.respond(_received(exchange, _request()), Code.CREATED, b"", b"done", 0.5)
    assert _sent(exchange) == [Message(ACK, Code.CREATED, 7, b"t", (), b"done")]
    assert exchange.deadline == float("inf")


def test_answer_to_non_confirmable_is_not_confirmable(exchange: Exchange) -> None:
    exchange.respond(_received(exchange, _request(type_=NON)), Code.CREATED, b"", b"done", 0)
    (answer,) = _sent(exchange)
    assert (answer.type, answer.token, answer.payload) == (NON, b"t", b"done")


def test_late_answer_is_separate_and_confirmable(exchange: Exchange) -> None:
    incoming = _received(exchange, _request())
    assert exchange.deadline == PIGGYBACK_SECONDS
    assert exchange.tick(PIGGYBACK_SECONDS) == ()
    assert exchange.take_output() == [empty(ACK, 7)]
    exchange.respond(incoming, Code.CREATED, b"", b"done", 3)
    (answer,) = _sent(exchange)
    assert (answer.type, answer.code, answer.token) == (CON, Code.CREATED, b"t")
    assert exchange.receive(Message(ACK, Code.EMPTY, answer.message_id), 3.1) == (Delivered(None),)
    assert exchange.deadline == float("inf")


class TestDuplicates:
    def test_get_the_same_answer(self, exchange: Exchange) -> None:
        exchange.respond(_received(exchange, _request()), Code.CREATED, b"", b"done", 0)
        first = exchange.take_output()
        assert exchange.receive(_request(), 2) == ()
        assert exchange.take_output() == first

    def test_get_nothing_while_the_answer_is_to_come(self, exchange: Exchange) -> None:
        _received(exchange, _request())
        assert exchange.receive(_request(), 0.5) == ()
        assert exchange.take_output() == []

    def test_get_the_empty_acknowledgement_again(self, exchange: Exchange) -> None:
        _received(exchange, _request())
        exchange.tick(PIGGYBACK_SECONDS)
        exchange.take_output()
        exchange.receive(_request(), 2)
        assert exchange.take_output() == [empty(ACK, 7)]

    def test_of_non_confirmable_get_nothing(self, exchange: Exchange) -> None:
        exchange.respond(_received(exchange, _request(type_=NON)), Code.CREATED, b"", b"", 0)
        exchange.take_output()
        assert exchange.receive(_request(type_=NON), 1) == ()
        assert exchange.take_output() == []

    def test_are_forgotten_after_their_lifetime(self, exchange: Exchange) -> None:
        exchange.respond(_received(exchange, _request()), Code.CREATED, b"", b"", 0)
        assert exchange.receive(_request(), EXCHANGE_LIFETIME - 0.1) == ()
        assert exchange.receive(_request(), EXCHANGE_LIFETIME) != ()

    def test_are_forgotten_by_count(self, exchange: Exchange) -> None:
        for message_id in range(MAX_REMEMBERED + 1):
            exchange.respond(_received(exchange, _request(message_id)), Code.CREATED, b"", b"", 0)
        assert exchange.statistics().remembered == MAX_REMEMBERED
        assert exchange.bytes_held <= MAX_REMEMBERED * (ANSWERED_BYTES + 16)
        assert exchange.receive(_request(1), 1) == ()
        assert exchange.receive(_request(0), 1) != ()

    def test_have_the_same_token(self, exchange: Exchange) -> None:
        """A client that starts anew may use a message id again at once."""
        exchange.respond(_received(exchange, _request(token=b"old")), Code.CREATED, b"", b"", 0)
        assert _received(exchange, _request(token=b"new"), 1).token == b"new"


class TestAccount:
    """`bytes_held` is what it takes, rounded up: listeners let go of sessions by it."""

    @pytest.mark.parametrize("is_answered", [True, False])
    def test_of_requests(self, is_answered: bool) -> None:
        options = encode_options(
            ((Option.URI_PATH, b"v1.1"), (Option.URI_PATH, b"messages"), (Option.URI_PATH, b"t" * 32))
        )
        exchanges = [Exchange(lambda: 0.0) for _ in range(10)]
        with _traced() as traced:
            for exchange in exchanges:
                for message_id in range(1000, 1400):
                    request = frame(CON, Code.POST, message_id, b"%d" % message_id, options, b"x" * 40)
                    incoming = _received(exchange, decode(request), message_id / 1000)
                    if is_answered:
                        exchange.respond(incoming, Code.CREATED, b"", b"y" * 50, message_id / 1000)
                        exchange.take_output()
            del incoming
            used = traced()
        assert used < sum(exchange.bytes_held for exchange in exchanges) < 1.25 * used

    def test_of_messages_of_ours(self, exchange: Exchange) -> None:
        with _traced() as traced:
            for number in range(1000, 1400):
                exchange.send(Code.CONTENT, b"%d" % number, b"", b"y" * 50, None, 0)
            used = traced()
        assert used < exchange.bytes_held < 1.4 * used

    def test_falls_to_nothing(self, exchange: Exchange) -> None:
        for number in range(10):
            incoming = _received(exchange, _request(number, payload=b"x" * 40))
            if number % 2:
                exchange.tick(PIGGYBACK_SECONDS)
            if number % 3:
                exchange.respond(incoming, Code.CREATED, b"", b"y" * 50, PIGGYBACK_SECONDS)
            elif number:
                exchange.ignore(incoming)
        while exchange.deadline < float("inf"):
            exchange.tick(exchange.deadline)
        exchange.tick(PIGGYBACK_SECONDS + EXCHANGE_LIFETIME)
        assert exchange.bytes_held == 0


class TestOwed:
    def test_is_what_was_not_answered_and_what_waits_for_its_turn(self, exchange: Exchange) -> None:
        asked = [_received(exchange, _request(number)) for number in range(3)]
        exchange.tick(PIGGYBACK_SECONDS)
        exchange.send(Code.CONTENT, b"o", b"", b"", "notification", 2)
        exchange.take_output()
        for incoming in asked[:2]:
            exchange.respond(incoming, Code.CREATED, b"", b"", 2)
        assert (exchange.unanswered, exchange.owed) == (1, 3)
        exchange.cancel("notification", 2)
        for left in (2, 1):
            (answer,) = _sent(exchange)
            exchange.receive(Message(ACK, Code.EMPTY, answer.message_id), 3)
            assert exchange.owed == left

    def test_ends_when_the_peer_does_not_want_the_answer(self, exchange: Exchange) -> None:
        for type_, number in ((RST, 1), (None, 2)):
            incoming = _received(exchange, _request(number))
            exchange.tick(PIGGYBACK_SECONDS)
            exchange.take_output()
            exchange.respond(incoming, Code.CREATED, b"", b"", 2)
            (answer,) = _sent(exchange)
            if type_ is not None:
                exchange.receive(Message(type_, Code.EMPTY, answer.message_id), 3)
            while exchange.deadline < float("inf"):
                exchange.tick(exchange.deadline)
            assert exchange.owed == 0


class TestConfirmable:
    def test_is_sent_again_with_the_times_of_the_rfc(self, exchange: Exchange) -> None:
        exchange.send(Code.CONTENT, b"t", b"", b"news", "tag", 0)
        moments = [0.0]
        while not (events := exchange.tick(exchange.deadline)):
            moments.append(moments[-1] + 2.0 * 2 ** (len(moments) - 1))
            assert exchange.deadline == moments[-1] + 2.0 * 2 ** (len(moments) - 1)
        assert events == (TimedOut("tag"),)
        assert moments == [0, 2, 6, 14, 30]
        sent = exchange.take_output()
        assert len(sent) == 1 + MAX_RETRANSMIT
        assert len(set(sent)) == 1
        assert exchange.bytes_held == 0

    @pytest.mark.parametrize(("chance", "first"), [(0.0, 2.0), (0.5, 2.5), (1.0, 3.0)])
    def test_first_time_out_is_spread(self, chance: float, first: float) -> None:
        exchange = Exchange(lambda: chance)
        exchange.send(Code.CONTENT, b"t", b"", b"", None, 10)
        assert exchange.deadline == 10 + first

    @pytest.mark.parametrize(("answer", "event"), [(ACK, Delivered("tag")), (RST, Rejected("tag"))])
    def test_ends_with_an_answer(self, exchange: Exchange, answer: int, event: object) -> None:
        exchange.send(Code.CONTENT, b"t", b"", b"", "tag", 0)
        (sent,) = _sent(exchange)
        assert exchange.receive(Message(answer, Code.EMPTY, sent.message_id), 1) == (event,)
        assert exchange.receive(Message(answer, Code.EMPTY, sent.message_id), 1) == ()

    def test_another_id_answers_nothing(self, exchange: Exchange) -> None:
        exchange.send(Code.CONTENT, b"t", b"", b"", "tag", 0)
        (sent,) = _sent(exchange)
        assert exchange.receive(Message(ACK, Code.EMPTY, sent.message_id ^ 1), 1) == ()
        assert exchange.receive(Message(RST, Code.EMPTY, sent.message_id ^ 1), 1) == ()

    def test_one_is_under_way_at_a_time(self, exchange: Exchange) -> None:
        for tag in "abc":
            exchange.send(Code.CONTENT, b"t", b"", tag.encode(), tag, 0)
        for tag in "abc":
            (sent,) = _sent(exchange)
            assert sent.payload == tag.encode()
            assert exchange.receive(Message(ACK, Code.EMPTY, sent.message_id), 1) == (Delivered(tag),)

    def test_cancelled_is_not_sent_again_and_gives_way(self, exchange: Exchange) -> None:
        exchange.send(Code.CONTENT, b"t", b"", b"a", "a", 0)
        exchange.send(Code.CONTENT, b"t", b"", b"a again", "a", 0)
        exchange.send(Code.CONTENT, b"t", b"", b"b", "b", 0)
        exchange.take_output()
        exchange.cancel("a", 1)
        assert [sent.payload for sent in _sent(exchange)] == [b"b"]


class TestPing:
    def test_of_the_peer_is_answered_with_a_reset(self, exchange: Exchange) -> None:
        assert exchange.receive(Message(CON, Code.EMPTY, 99), 0) == ()
        assert exchange.take_output() == [empty(RST, 99)]

    def test_of_ours_is_four_bytes(self, exchange: Exchange) -> None:
        exchange.send(Code.EMPTY, b"", b"", b"", "ping", 0)
        (datagram,) = exchange.take_output()
        assert len(datagram) == 4
        pong = Message(RST, Code.EMPTY, int.from_bytes(datagram[2:], "big"))
        assert exchange.receive(pong, 1) == (Rejected("ping"),)

    def test_empty_non_confirmable_is_ignored(self, exchange: Exchange) -> None:
        assert exchange.receive(Message(NON, Code.EMPTY, 99), 0) == ()
        assert exchange.take_output() == []


class TestRequestsOfOurs:
    @pytest.fixture
    def sent(self, exchange: Exchange) -> Message:
        exchange.send(Code.GET, b"tok", b"", b"", "tag", 0)
        (sent,) = _sent(exchange)
        return sent

    def test_piggybacked_answer(self, exchange: Exchange, sent: Message) -> None:
        answer = Message(ACK, Code.CONTENT, sent.message_id, b"tok", (), b"x")
        assert exchange.receive(answer, 1) == (ResponseReceived("tag", answer),)
        assert exchange.bytes_held == 0

    def test_piggybacked_answer_with_another_token_is_ignored(self, exchange: Exchange, sent: Message) -> None:
        assert exchange.receive(Message(ACK, Code.CONTENT, sent.message_id, b"not"), 1) == ()

    def test_separate_answer_is_acknowledged_each_time(self, exchange: Exchange, sent: Message) -> None:
        assert exchange.receive(Message(ACK, Code.EMPTY, sent.message_id), 1) == ()
        answer = Message(CON, Code.CONTENT, 500, b"tok", (), b"x")
        assert exchange.receive(answer, 50) == (ResponseReceived("tag", answer),)
        assert exchange.receive(answer, 52) == ()
        assert exchange.take_output() == [empty(ACK, 500)] * 2

    def test_separate_answer_says_that_the_request_arrived(self, exchange: Exchange, sent: Message) -> None:
        answer = Message(NON, Code.CONTENT, 500, sent.token)
        assert exchange.receive(answer, 1) == (ResponseReceived("tag", answer),)
        assert exchange.deadline == float("inf")

    def test_promised_answer_that_never_comes(self, exchange: Exchange, sent: Message) -> None:
        exchange.receive(Message(ACK, Code.EMPTY, sent.message_id), 1)
        assert exchange.deadline == 1 + EXCHANGE_LIFETIME
        assert exchange.tick(exchange.deadline) == (TimedOut("tag"),)

    def test_answer_that_nobody_asked_for_is_rejected(self, exchange: Exchange) -> None:
        assert exchange.receive(Message(CON, Code.CONTENT, 500, b"tok"), 1) == ()
        assert exchange.receive(Message(NON, Code.CONTENT, 501, b"tok"), 1) == ()
        assert exchange.take_output() == [empty(RST, 500)]


def test_ignored_request_holds_nothing_back(exchange: Exchange) -> None:
    incoming = _received(exchange, _request(payload=b"x" * 100))
    exchange.ignore(incoming)
    assert (exchange.unanswered, exchange.deadline, exchange.take_output()) == (0, float("inf"), [])
    exchange.tick(EXCHANGE_LIFETIME)
    assert exchange.bytes_held == 0


def test_a_request_is_answered_once(exchange: Exchange) -> None:
    incoming = _received(exchange, _request())
    exchange.respond(incoming, Code.CREATED, b"", b"", 0)
    with pytest.raises(RuntimeError):
        exchange.respond(incoming, Code.CREATED, b"", b"", 0)
