"""The sessions that are kept to be resumed: whose, how many, and for how long."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocols.coap.dtls import resumption
from protocols.coap.dtls.resumption import (
    SESSIONS,
    SESSIONS_BYTES,
    SESSIONS_PER_DEVICE,
    KeptSessions,
    Resumable,
)
from protocols.streams.tls import SESSION_SECONDS

pytestmark = pytest.mark.slow


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> KeptSessions:
    return KeptSessions(clock)


def a_session(number: int, size: int = 10) -> Resumable:
    return Resumable(number.to_bytes(32, "big"), bytes(size))


def test_a_session_is_found_until_its_time_is_over(clock: Clock, kept: KeptSessions) -> None:
    kept.keep(a_session(1), b"key", "device")
    clock.now = SESSION_SECONDS - 1
    found = kept.find(a_session(1).id)
    assert found is not None
    assert (found.session, found.device, found.has(b"key"), found.has(b"other")) == (
        a_session(1),
        "device",
        True,
        False,
    )
    clock.now += 1
    assert kept.find(a_session(1).id) is None
    kept.keep(a_session(2), None, "device")
    assert len(kept) == 1


def test_a_session_without_a_key_has_none(kept: KeptSessions) -> None:
    kept.keep(a_session(1), None, "device")
    found = kept.find(a_session(1).id)
    assert found is not None
    assert not found.has(b"")


def test_a_device_takes_places_from_itself_alone(kept: KeptSessions) -> None:
    kept.keep(a_session(0), None, "another")
    for number in range(1, 100):
        kept.keep(a_session(number), None, "device")
    assert len(kept) == 1 + SESSIONS_PER_DEVICE
    assert kept.find(a_session(0).id) is not None
    assert kept.find(a_session(99).id) is not None


def test_their_number_is_bounded(kept: KeptSessions) -> None:
    for number in range(SESSIONS + 10):
        kept.keep(a_session(number), None, str(number))
    assert len(kept) == SESSIONS
    assert kept.find(a_session(9).id) is None


def test_their_memory_is_bounded(kept: KeptSessions) -> None:
    size = 15 * 1024  # a long chain of certificates
    for number in range(2 * SESSIONS_BYTES // size):
        kept.keep(a_session(number, size), None, str(number))
    assert 0.9 * SESSIONS_BYTES < len(kept) * size <= SESSIONS_BYTES


class Kept(RuleBasedStateMachine):
    """Against a plain list, with small bounds: what is kept, for whom, and the count of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(resumption, "SESSIONS", 6)
        self.patched.setattr(resumption, "SESSIONS_BYTES", 6 * (resumption._ENTRY_BYTES + 100))
        self.clock = Clock()
        self.kept = KeptSessions(self.clock)
        self.model: OrderedDict[bytes, tuple[str, int, float]] = OrderedDict()

    def teardown(self) -> None:
        self.patched.undo()

    @rule(number=st.integers(0, 12), size=st.integers(0, 400), device=st.sampled_from("abc"))
    def keep(self, number: int, size: int, device: str) -> None:
        session = a_session(number, size)
        self.kept.keep(session, None, device)
        self.model.pop(session.id, None)
        self.model[session.id] = device, size, self.clock.now + SESSION_SECONDS
        of_device = [id_ for id_, (one, *_) in self.model.items() if one == device]
        for id_ in of_device[:-SESSIONS_PER_DEVICE]:
            del self.model[id_]
        while (
            len(self.model) > resumption.SESSIONS
            or sum(size + resumption._ENTRY_BYTES for _, size, _ in self.model.values()) > resumption.SESSIONS_BYTES
        ):
            self.model.popitem(last=False)

    @rule(number=st.integers(0, 12))
    def forget(self, number: int) -> None:
        self.kept.forget(a_session(number).id)
        self.model.pop(a_session(number).id, None)

    @rule(seconds=st.integers(1, SESSION_SECONDS))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def is_as_the_model(self) -> None:
        for number in range(13):
            id_ = a_session(number).id
            found, expected = self.kept.find(id_), self.model.get(id_)
            if expected is not None and expected[2] <= self.clock.now:
                del self.model[id_]
                expected = None
            assert (found and (found.device, len(found.session.data))) == (expected and expected[:2])


TestKept = Kept.TestCase
TestKept.settings = settings(max_examples=50, stateful_step_count=30)
