"""A node that cannot read what comes before a commit of its own ends, and its feeds end before they leave out a row."""

import pytest
import trio
from trio.testing import MockClock

from broker.cluster.facts import FactLog
from broker.cluster.fenced import FencedError
from storage.commit_group import CommitGroup
from storage.keys import DeviceKey, Milliseconds, Position, Ticket
from storage.records import MessageRow
from storage.sql import StoreError

PATIENCE_SECONDS = 3


class RowsOfOthers:
    """Cannot be read before `until`."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.told: list[str] = []

    async def before(self, first: Position, last: Position, *, has_actions: bool) -> None:  # noqa: ARG002 - as rows are
        if trio.current_time() < self.until:
            raise StoreError("the database is away")
        self.told.append(f"before {first} to {last}")

    is_hearing = False

    async def read_on(self, *_: object) -> None:
        pass

    async def messages_came(self) -> None:
        pass

    def leave_out(self) -> None:
        self.told.append("left out")


def committed(row: MessageRow) -> CommitGroup:
    group = CommitGroup()
    group.messages.append(row)
    group.head = Ticket(row.position)
    return group


async def published(seconds_away: float) -> tuple[FactLog, RowsOfOthers]:
    log = FactLog("a:1", "a", PATIENCE_SECONDS)
    rows = log.rows = RowsOfOthers(trio.current_time() + seconds_away)
    row = MessageRow(Position(7), DeviceKey(1), Milliseconds(1), Milliseconds(1), 1, "{}")
    await log.publish(committed(row))
    return log, rows


async def test_it_waits_for_its_patience(autojump_clock: MockClock) -> None:
    _, rows = await published(PATIENCE_SECONDS - 1)
    assert rows.told == ["before 7 to 7"]


async def test_then_it_leaves_them_out_and_ends(autojump_clock: MockClock) -> None:
    log, rows = await published(PATIENCE_SECONDS + 1)
    assert rows.told == ["left out"]
    with pytest.RaisesGroup(pytest.RaisesExc(FencedError, match="the database is away")):
        await log.follow_forever()
