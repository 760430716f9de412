"""Two message layers and a bad network between them: loss, duplication, reordering, any timing.

Every request is handled once, every response arrives or its request times out, and in the end nothing is held.
"""

from collections import Counter
from itertools import count
from math import inf

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocols.coap.incoming import EXCHANGE_LIFETIME, Incoming
from protocols.coap.message_layer import (
    Delivered,
    MessageEvent,
    MessageLayer,
    Rejected,
    RequestReceived,
    ResponseReceived,
    TimedOut,
)
from protocols.coap.messages import NON, Code, decode_message, frame
from tests.properties import examples

pytestmark = pytest.mark.slow


#: An older datagram is not delivered any more (RFC 7252, 4.8.2).
MAX_LATENCY = 100.0
CLIENT, SERVER = 0, 1


class BadNetwork(RuleBasedStateMachine):
    @initialize(chance=st.floats(0, 1))
    def begin(self, chance: float) -> None:
        self.now = 0.0
        self.ends = (MessageLayer(lambda: chance), MessageLayer(lambda: 1 - chance))
        self.wire: list[tuple[int, bytes, float]] = []  # receiver, datagram, time of sending
        self.pending: list[Incoming] = []
        self.numbers = count(1)
        self.asked: set[bytes] = set()
        self.unreliable: set[bytes] = set()
        self.handled: Counter[bytes] = Counter()
        self.outcomes: dict[bytes, list[MessageEvent]] = {}
        self.non_ids = count(
            int(chance * 0xFFFF) + 0x8000
        )  # far from the other ids of the peer, which it must not use twice

    # --- What may happen ---------------------------------------------------------------------------------------------

    @rule()
    def ask(self) -> None:
        token = next(self.numbers).to_bytes(4, "big")
        self.asked.add(token)
        self.outcomes[token] = []
        self.ends[CLIENT].send(Code.POST, token, b"", b"payload", token, self.now)
        self._collect()

    @rule()
    def ask_without_confirmation(self) -> None:
        token = next(self.numbers).to_bytes(4, "big")
        self.unreliable.add(token)
        self.wire.append((SERVER, frame(NON, Code.POST, next(self.non_ids) & 0xFFFF, token), self.now))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        incoming = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.ends[SERVER].respond(incoming, Code.CREATED, b"", incoming.token, self.now)
        self._collect()

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Deliver any datagram, so the order is random."""
        self._deliver(data.draw(st.integers(0, len(self.wire) - 1)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        self.wire.append(self.wire[data.draw(st.integers(0, len(self.wire) - 1))])

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @rule(seconds=st.floats(0.01, 40))
    def wait(self, seconds: float) -> None:
        self._advance(self.now + seconds)

    # --- How it happens ----------------------------------------------------------------------------------------------

    def _advance(self, until: float) -> None:
        while (due := min(end.deadline for end in self.ends)) <= until:
            self.now = max(self.now, due)
            self._tick()
        self.now = until
        self._tick()

    def _tick(self) -> None:
        for side, end in enumerate(self.ends):
            for event in end.tick(self.now):
                self._note(side, event)
        self._collect()
        self.wire = [one for one in self.wire if one[2] + MAX_LATENCY > self.now]

    def _deliver(self, index: int) -> None:
        side, datagram, _ = self.wire.pop(index)
        for event in self.ends[side].receive(decode_message(datagram), self.now):
            self._note(side, event)
        self._collect()

    def _note(self, side: int, event: MessageEvent) -> None:
        match event:
            case RequestReceived(incoming):
                assert side == SERVER
                self.handled[incoming.token] += 1
                self.pending.append(incoming)
            case ResponseReceived(tag, message):
                assert message.payload == tag
                self.outcomes[message.token].append(event)
            case TimedOut(tag) if side == CLIENT:
                assert isinstance(tag, bytes)
                self.outcomes[tag].append(event)
            case Delivered() | TimedOut() | Rejected():
                assert side == SERVER

    def _collect(self) -> None:
        for side, end in enumerate(self.ends):
            self.wire.extend((1 - side, datagram, self.now) for datagram in end.take_output())

    # --- What must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def each_request_is_handled_once(self) -> None:
        assert not self.handled or max(self.handled.values()) == 1

    @invariant()
    def each_request_has_one_outcome_at_most(self) -> None:
        assert all(len(outcomes) <= 1 for outcomes in self.outcomes.values())

    def teardown(self) -> None:
        """The network recovers, and every request is answered."""
        if not hasattr(self, "ends"):
            return
        for _ in range(400):
            while self.wire:
                self._deliver(0)
            while self.pending:
                incoming = self.pending.pop()
                self.ends[SERVER].respond(incoming, Code.CREATED, b"", incoming.token, self.now)
                self._collect()
            if not self.wire:
                due = min(end.deadline for end in self.ends)
                if due == inf:
                    break
                self._advance(due)
        assert all(len(self.outcomes[token]) == 1 for token in self.asked), "neither answered nor timed out"
        answered = {token for token in self.asked if isinstance(self.outcomes[token][0], ResponseReceived)}
        assert answered <= self.handled.keys()
        assert self.handled.keys() <= self.asked | self.unreliable
        self._advance(self.now + EXCHANGE_LIFETIME)
        for end in self.ends:
            assert end.bytes_held == 0
            assert (end.unanswered, end.deadline) == (0, inf)


TestBadNetwork = BadNetwork.TestCase
TestBadNetwork.settings = settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
