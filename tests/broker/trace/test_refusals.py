"""Refusals in the log: bounded for each source and for all, and nothing is lost from the counts (reference 28.1)."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.types import EventDict

from broker.trace.audit import AuditEvent
from broker.trace.origin import Origin, address_key, enter
from broker.trace.refusals import INTERVAL_MS, LINES_OF_ALL, LINES_OF_ONE, LONGEST_INTERVAL_MS, SOURCES, Refusals
from storage.records import AuditRecord
from tests.factories import NOW_MS
from tests.fakes import FakeClock

EVENT = "mqtt_credentials_refused"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def audited() -> list[AuditRecord]:
    return []


@pytest.fixture
def refusals(clock: FakeClock, audited: list[AuditRecord]) -> Refusals:
    return Refusals(clock.clock, audited.append)


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    enter(Origin("192.0.2.1"))
    with capture_logs() as logs:
        yield logs


def refuse(refusals: Refusals, address: str, times: int = 1) -> None:
    enter(Origin(address))
    for _ in range(times):
        refusals.note(EVENT, reason="wrong")


async def test_a_line_says_what_from_where_and_why(refusals: Refusals, lines: list[EventDict]) -> None:
    enter(Origin("192.0.2.1", account="d" * 32))
    refusals.note(EVENT, reason="wrong", status=401)
    assert lines == [
        {
            "event": EVENT,
            "log_level": "info",
            "reason": "wrong",
            "status": 401,
            "account": "d" * 32,
            "peer": "192.0.2.1",
        }
    ]


async def test_a_flood_is_a_few_lines_and_then_one_with_the_number(
    refusals: Refusals, clock: FakeClock, lines: list[EventDict]
) -> None:
    refuse(refusals, "192.0.2.1", 50_000)
    assert len(lines) == LINES_OF_ONE
    clock.advance(INTERVAL_MS)
    await refusals.look()
    *_, last = lines
    assert (len(lines), last["times"], last["peer"]) == (LINES_OF_ONE + 1, 50_000 - LINES_OF_ONE, "192.0.2.1")
    await refusals.look()
    assert len(lines) == LINES_OF_ONE + 1
    assert refusals.statistics()[EVENT] == 50_000


async def test_a_source_that_goes_on_has_only_counts_each_after_twice_the_time(
    refusals: Refusals, clock: FakeClock, lines: list[EventDict]
) -> None:
    for _ in range(24 * 60):
        refuse(refusals, "192.0.2.1", 10)
        clock.advance(INTERVAL_MS)
        await refusals.look()
    await refusals.flush()
    times = [line.get("times", 1) for line in lines]
    assert times[:LINES_OF_ONE] == [1] * LINES_OF_ONE
    assert times[LINES_OF_ONE : LINES_OF_ONE + 3] == [5, 20, 40]
    assert max(times) == 10 * LONGEST_INTERVAL_MS // INTERVAL_MS
    assert len(times) < 40
    assert sum(times) == 24 * 60 * 10


async def test_a_source_that_was_silent_for_its_interval_has_lines_again(
    refusals: Refusals, clock: FakeClock, lines: list[EventDict]
) -> None:
    refuse(refusals, "192.0.2.1", LINES_OF_ONE + 7)
    clock.advance(INTERVAL_MS)
    refuse(refusals, "192.0.2.1")  # its count is told without the worker, too
    clock.advance(2 * INTERVAL_MS)
    await refusals.look()
    clock.advance(4 * INTERVAL_MS)
    refuse(refusals, "192.0.2.1")
    assert [line.get("times") for line in lines[LINES_OF_ONE:]] == [7, 1, None]


async def test_one_source_does_not_take_the_lines_of_another(refusals: Refusals, lines: list[EventDict]) -> None:
    refuse(refusals, "192.0.2.1", 100)
    refuse(refusals, "192.0.2.2")
    assert [line["peer"] for line in lines].count("192.0.2.2") == 1


async def test_one_kind_of_refusal_does_not_take_the_lines_of_another(
    refusals: Refusals, lines: list[EventDict]
) -> None:
    for number in range(10 * LINES_OF_ALL):
        refuse(refusals, f"10.0.{number >> 8}.{number & 255}")
    refusals.note("sign_in_refused", reason="wrong")
    assert lines[-1]["event"] == "sign_in_refused"


async def test_many_addresses_have_a_bound_together_and_one_line_for_the_rest(
    refusals: Refusals, clock: FakeClock, lines: list[EventDict]
) -> None:
    addresses = 3 * SOURCES
    for number in range(addresses):
        refuse(refusals, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(lines) == LINES_OF_ALL
    assert refusals.statistics()["sources"] <= SOURCES
    for _ in range(5):
        clock.advance(INTERVAL_MS)
        await refusals.look()
    assert len(lines) <= 2 * LINES_OF_ALL + 2
    assert sum(line.get("times", 1) for line in lines) == addresses == refusals.statistics()[EVENT]
    assert refusals.statistics()["sources"] == 0


async def test_addresses_of_one_ipv6_network_are_one_source(refusals: Refusals, lines: list[EventDict]) -> None:
    for number in range(100):
        refuse(refusals, f"2001:db8::{number:x}")
    assert len(lines) == LINES_OF_ONE
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff")


async def test_callers_that_are_known_are_sources_of_their_own(refusals: Refusals, lines: list[EventDict]) -> None:
    for caller in ("device 1", "device 2"):
        for _ in range(100):
            refusals.note("mqtt_rate_refused", reason="MINUTE", source=caller, caller=caller)
    assert [line["caller"] for line in lines] == ["device 1"] * LINES_OF_ONE + ["device 2"] * LINES_OF_ONE


async def test_the_audit_log_gets_what_the_log_gets(
    refusals: Refusals, clock: FakeClock, audited: list[AuditRecord], lines: list[EventDict]
) -> None:
    enter(Origin("192.0.2.1", account="ada"))
    for _ in range(10_000):
        refusals.note("sign_in_refused", reason="wrong", audited=AuditEvent.SIGN_IN)
    assert len(audited) == LINES_OF_ONE
    clock.advance(INTERVAL_MS)
    enter(Origin())
    await refusals.look()
    assert audited[-1] == AuditRecord(
        NOW_MS + INTERVAL_MS,
        "sign_in",
        "",
        "192.0.2.1",
        "account ada",
        "refused",
        {"reason": "wrong", "times": 10_000 - LINES_OF_ONE},
        of_stranger=True,
    )
    assert len(lines) == len(audited) == LINES_OF_ONE + 1


async def test_the_counts_are_told_when_the_daemon_stops(refusals: Refusals, lines: list[EventDict]) -> None:
    refuse(refusals, "192.0.2.1", LINES_OF_ONE + 3)
    await refusals.flush()
    assert lines[-1]["times"] == 3


async def test_a_look_up_for_a_line_is_only_worth_while_there_are_lines(
    refusals: Refusals, lines: list[EventDict]
) -> None:
    assert refusals.shows_next(EVENT)
    refuse(refusals, "192.0.2.1", LINES_OF_ONE)
    assert len(lines) == LINES_OF_ONE
    assert not refusals.shows_next(EVENT)
