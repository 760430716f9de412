"""The rules of several nodes hold in histories of clients that move; and the checker finds nodes that break one."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, cast

import pytest
import trio

from broker.cluster.facts import FactLog
from broker.cluster.kinds import TOKEN_SHORTENED
from broker.messages.follower import LogFollower
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.engines import postgresql_insertion
from storage.engines.postgresql_listening import Listening
from storage.engines.postgresql_schema import LOG_LOCK, WORKS_LOCK
from storage.facts import FactPage, FactRecord, FactStore
from storage.group_writer import GroupWriter
from storage.keys import Milliseconds, Position
from storage.messages import Missing
from storage.peers import HeardOf
from storage.transaction import Transaction
from tests.cluster.history import DEVICES, history_of, parts_of_a_cluster
from tests.properties import drawn, in_ci

pytestmark = pytest.mark.slow


#: Seeds of one mutant until it is found: what comes first is the database's choice.
TRIES = 10


async def test_the_rules_hold() -> None:
    seed = secrets.randbelow(1_000_000)
    history = await history_of(seed)
    assert not list(history.problems()), seed
    assert len(history.acknowledged) > 100
    assert sum(map(len, history.parts[-1].readings)) > 20
    assert len(history.facts) > 10


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are stored whatever others have ended, and nodes hear of that once a second."""

    async def hears_nothing(_self: Listening, seconds: float, *, messages: bool) -> HeardOf:
        await trio.sleep(seconds)
        return HeardOf(changes=False, messages=False)

    monkeypatch.setattr(Listening, "wait", hears_nothing)
    given = postgresql_insertion._GIVEN_BEHIND_THE_FENCE.replace(" = %s THEN", " >= 0 * %s THEN")
    assert given != postgresql_insertion._GIVEN_BEHIND_THE_FENCE
    monkeypatch.setattr(postgresql_insertion, "_GIVEN_BEHIND_THE_FENCE", given)


def a_sequence_instead_of_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of the log ends when positions are given, and not with the commit of their rows. The commits take
    different times, so that a later position often comes first."""
    of_mutant = postgresql_insertion._GIVEN_BEHIND_THE_FENCE.replace("pg_advisory_xact_lock", "pg_advisory_lock")
    ends = " AS told FROM locked)"
    assert of_mutant != postgresql_insertion._GIVEN_BEHIND_THE_FENCE
    assert of_mutant.endswith(ends)
    slept = "pg_sleep(0.02 * random())::text AS slept"
    unlocked = f" AS told, pg_advisory_unlock({LOG_LOCK}) AS unlocked, {slept} FROM locked)"
    monkeypatch.setattr(postgresql_insertion, "_GIVEN_BEHIND_THE_FENCE", of_mutant.removesuffix(ends) + unlocked)


def facts_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several facts the last one is heard first."""
    after = FactStore.after

    def backwards(self: FactStore, number: int) -> FactPage:
        page = after(self, number)
        return FactPage(page.facts[::-1], page.fence, page.is_all)

    monkeypatch.setattr(FactStore, "after", backwards)


def gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of others that come before a commit are not read."""

    async def before(self: LogFollower, _first: Position, last: Position, **_: bool) -> None:
        self._position = max(self._position, last)

    monkeypatch.setattr(LogFollower, "before", before)


def own_rows_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower takes rows of this node, whose commit has not ended, for those of others."""
    monkeypatch.setattr(Database, "own_rows_from", lambda *_: None)


def facts_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of others that a commit has read are not heard."""
    others = GroupWriter._others

    def left_out(self: GroupWriter, transaction: Transaction, group: CommitGroup) -> Sequence[FactRecord]:
        others(self, transaction, group)
        return ()

    monkeypatch.setattr(GroupWriter, "_others", left_out)


def acknowledged_though_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a former connection are left out, and its client is told that they are stored."""
    refusal = FactLog.refusal

    def left_out(self: FactLog, group: CommitGroup, facts: Sequence[FactRecord]) -> str | None:
        if refusal(self, group, facts) is not None:
            ended = self._ended_by(facts)
            group.messages = [row for row in group.messages if row.device not in ended]
            group.encoded = None
        return None

    monkeypatch.setattr(FactLog, "refusal", left_out)


MUTANTS: Final[Sequence[tuple[Callable[[pytest.MonkeyPatch], None], str]]] = (
    (no_fence, "R3"),
    (a_sequence_instead_of_the_lock, "R1"),
    (facts_out_of_order, "R5"),
    (gaps, "R1"),
    (own_rows_twice, "R1"),
    (facts_left_out, "R5"),
    (acknowledged_though_refused, "R2"),
)


@in_ci
async def test_the_checker_finds_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    for mutant, rule in drawn(MUTANTS, 2):
        with monkeypatch.context() as patched:
            mutant(patched)
            found = await problems_until(rule)
        assert rule in found, f"{rule} holds for the checker of {mutant.__name__}: {found}"


async def problems_until(rule: str) -> set[str]:
    """The rules that do not hold, in several histories until this one is among them."""
    found: set[str] = set()
    for seed in range(TRIES):
        found |= {problem[:2] for problem in (await history_of(seed, patience_seconds=0.5)).problems()}
        if rule in found:
            break
    return found


async def test_what_another_part_has_told_is_known_to_whoever_catches_up() -> None:
    """Nobody listens, and nobody looks once a second."""
    async with parts_of_a_cluster(2, follow=False) as (a, b):
        for number in range(5):
            await a.database.write(lambda tx: tx.tell(TOKEN_SHORTENED, b"a token"))
            await b.facts.catch_up()
            assert len(b.facts.order) == number + 1
            async with trio.open_nursery() as callers:
                for _ in range(10):
                    callers.start_soon(b.facts.catch_up)


async def test_a_commit_of_this_node_that_has_not_ended_is_waited_for_by_whoever_catches_up() -> None:
    async with parts_of_a_cluster(2, follow=False) as (a, b):
        async with trio.open_nursery() as writers:
            for _ in range(20):
                for part in (a, b):
                    writers.start_soon(part.database.write, lambda tx: tx.tell(TOKEN_SHORTENED, b"a token"))
                await b.facts.catch_up()
        await b.facts.catch_up()
        assert b.facts.order == list(range(b.facts.order[0], b.facts.order[0] + 40))


async def test_entries_of_the_index_that_another_part_has_made_are_known() -> None:
    """Otherwise each commit would read the log again, and a start would never end."""
    head = Position(100_000)  # as after a failover, which leaves positions out

    def add(tx: Transaction, missing: Missing) -> None:
        tx.messages.add_missing(missing)

    async with parts_of_a_cluster(2, follow=False) as (a, b):
        of_a, of_b = (cast("Transaction", part.database._writer.transaction).messages for part in (a, b))
        stale = of_b.missing(head)
        assert stale is not None
        while (missing := of_a.missing(head)) is not None:
            await a.database.write(partial(add, missing=missing))
        assert of_b.missing_too_many(head) is None
        of_b._indexed = stale.behind
        await b.database.write(partial(add, missing=stale))
        assert of_b.missing(head) is None


async def test_rows_of_all_tables_wait_for_no_work_of_another_part() -> None:
    """An Action comes to its device as soon as a message would be stored."""
    async with parts_of_a_cluster(1, follow=False) as (a,):
        with a.engine.target.connect(name="tests") as other:
            other.execute("SELECT pg_advisory_lock(%s)", [WORKS_LOCK])
            with trio.fail_after(10):
                at = Milliseconds(1)
                first = a.journal.append_message(DEVICES[0], at, at, 1, '{"a":1}')
                a.journal.append_action(device=DEVICES[0], source=DEVICES[1], ts=at, cts=at, mv=1, data="{}")
                last = a.journal.append_failed(DEVICES[0], at, "reason", "payload")
                await a.journal.wait_committed()
            assert last - first == 2
        found = await a.database.read(
            lambda tx: (
                len(tx.messages.after(Position(0))),
                len(tx.messages.actions_after(Position(0), limit=9)),
                tx.messages.failed(DEVICES[0], offset=0, limit=9)[1],
            )
        )
        assert found == (1, 1, 1)
