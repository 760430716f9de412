"""One of several nodes at a time stores readings of a device in a cloud, and all know the failures that each notes."""

from functools import partial

import pytest
import trio

from broker.clock import Clock
from broker.connectors.problems import Doing, Problems
from broker.connectors.turns import Turns
from broker.errors import Conflict
from broker.operating import backups
from broker.secrets import Vault
from storage.keys import DeviceKey, DeviceTypeKey
from storage.operator_backups import OperatorBackupRecord
from storage.transaction import Transaction
from tests.cluster.history import Part, parts_of_a_cluster
from tests.factories import build_world

pytestmark = pytest.mark.slow


DEVICE, TYPE = DeviceKey(1), DeviceTypeKey(1)


def _joined(node: str, instance: str, tx: Transaction) -> None:
    tx.connection.execute(
        "INSERT INTO lease (name, node, instance, epoch, since, until) VALUES (:name, :node, :instance, 1, 1, :until)",
        {"name": f"node {node}", "node": node, "instance": instance, "until": 2**50},
    )


async def _join(part: Part) -> Turns:
    await part.database.write(lambda tx: _joined(part.facts.node, part.facts.instance, tx))
    nodes = await part.database.read(lambda tx: tx.leases.nodes())
    assert part.facts.instance in {one.instance for one in nodes}
    return Turns("standing", part.database, part.facts)


async def test_turns_of_two_nodes_follow_each_other(nursery: trio.Nursery) -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = [await _join(part) for part in parts]
        order: list[str] = []

        async def at_b() -> None:
            async with b.of(DEVICE):
                order.append("b")

        async with a.of(DEVICE):
            nursery.start_soon(at_b)
            with trio.move_on_after(0.2):
                async with b.of(DeviceKey(2)):  # another device does not wait
                    order.append("other")
            order.append("a")
        with trio.fail_after(5):
            while len(order) < 3:  # noqa: ASYNC110 - the other node waits for the store
                await trio.sleep(0.01)
        assert order == ["other", "a", "b"]


async def test_one_backup_is_made_at_a_time_on_all_nodes() -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        for part in parts:
            await _join(part)
        records = [
            OperatorBackupRecord(part.facts.node, part.facts.instance, "running", at, None, 0, 0, "", "", "[]")
            for at, part in enumerate(parts, start=1)
        ]
        await parts[0].database.write(partial(backups._begin, records[0]))
        with pytest.raises(Conflict):
            await parts[1].database.write(partial(backups._begin, records[1]))
        gone = parts[0].facts.node
        await parts[1].database.write(
            lambda tx: tx.connection.execute("DELETE FROM lease WHERE node = :node", {"node": gone})
        )
        await parts[1].database.write(partial(backups._begin, records[1]))


async def test_the_turn_of_a_node_that_is_gone_is_free() -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = [await _join(part) for part in parts]
        turn = a.of(DEVICE)
        await turn.__aenter__()
        gone = parts[0].facts.node
        await parts[1].database.write(
            lambda tx: tx.connection.execute("DELETE FROM lease WHERE node = :node", {"node": gone})
        )
        with trio.fail_after(5):
            async with b.of(DEVICE):
                holder = await parts[1].database.read(lambda tx: tx.connectors.turn(DEVICE, "standing"))
                assert holder == parts[1].facts.instance
        await turn.__aexit__(None, None, None)


@pytest.mark.parametrize("succeeds", [False, True])
async def test_failures_are_those_of_all_nodes(succeeds: bool) -> None:
    async with parts_of_a_cluster(2) as parts:
        await build_world(parts[0].database, Vault(Vault.new_key()))
        a, b = [Problems(part.database, part.news, Clock()) for part in parts]
        a.note(TYPE, DEVICE, Doing.FETCH, "It was 503.")
        b.note(TYPE, DeviceKey(2), Doing.NOTIFICATION, "It was 500.")
        await a.save()
        await b.save()
        with trio.fail_after(5):
            while len(a.of(TYPE)) < 2:  # noqa: ASYNC110 - the other node hears
                await trio.sleep(0.01)
        assert {one.device for one in b.of(TYPE)} == {1, 2}
        if succeeds:
            b.note_success(TYPE, DEVICE, Doing.FETCH)
            await b.save()
            with trio.fail_after(5):
                while len(a.of(TYPE)) > 1:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)
            assert [one.device for one in a.of(TYPE)] == [2]
