"""`trunkline demo --nodes 3`: three nodes, and the simulated devices over all of them, also when one is killed."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config.settings import Address
from protocols.cli.demo_nodes import DemoNode, simulate_over
from tests.cluster.node import wait_until
from tests.daemon import DEMO_ON_ANY_PORT, bearer, run_command, start_command
from tests.postgresql import server

pytestmark = pytest.mark.processes

SIMULATED = [f"{'d0' * 15}0{number}" for number in (1, 2, 3)]


@pytest.fixture
def url() -> Iterator[str]:
    postgresql = server()
    database = postgresql.new_database(template="template0")
    yield postgresql.url(database)
    postgresql.drop(database)


def test_the_devices_of_a_node_that_is_killed_go_to_the_others(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNKLINE_LIMITS_RATE_LIMITS", "off")
    state = tmp_path / "state"
    demo = start_command("demo", "--nodes", "3", "--store", url, "--state", state, *DEMO_ON_ANY_PORT)
    assert demo.stdout is not None
    try:
        lines = list[str]()
        while not (lines and lines[-1].startswith("Console:")):
            lines.append(demo.stdout.readline())
            assert lines[-1], lines
        said = "".join(lines)
        nodes = dict(re.findall(r" (\w): HTTP (\S+) ", said))
        assert list(nodes) == ["a", "b", "c"]
        assert f"drain --config {tmp_path}/state-nodes/b.toml" in said
        assert "Workshop board" not in said  # LWM2M is not for several nodes
        token = re.findall(r"\bTOKEN=(\S+)", said)[0]

        def sent() -> dict[str, str]:
            """The latest message of each device, as the third node has it."""
            query = {"sdids": ",".join(SIMULATED)}
            answer = httpx.get(
                f"http://{nodes['c']}/v1.1/messages/last", params=query, headers=bearer(token), timeout=30
            )
            newest_first = answer.raise_for_status().json()["data"]
            return {one["sdid"]: one["mid"] for one in reversed(newest_first)}

        wait_until(lambda: set(sent()) == set(SIMULATED), "each device has sent")
        (process,) = re.findall(r"  b: .*process (\d+)", said)
        os.kill(int(process), signal.SIGKILL)
        while "Node b has ended (SIGKILL)" not in (line := demo.stdout.readline()):
            assert line
        before = sent()
        wait_until(lambda: all(sent()[one] != before[one] for one in SIMULATED), "each device sends on")
    finally:
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=30) == 0
        demo.stdout.close()


async def test_a_simulated_device_waits_for_a_node_without_asking_again_and_again(tmp_path: Path) -> None:
    nodes = [DemoNode(name, tmp_path / name, tmp_path / name) for name in "abc"]
    stopping, at = trio.Event(), list[Address]()

    async def simulate(address: Address, ended: trio.Event) -> None:
        at.append(address)
        await ended.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(simulate_over, nodes, 1, "mqtt", simulate, stopping)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 60
        for number in (0, 2):
            nodes[number].serves({"mqtt": Address("127.0.0.1", number)})
        await wait_all_tasks_blocked()
        nodes[at[0].port].down.set()
        await wait_all_tasks_blocked()
        stopping.set()
    assert sorted(address.port for address in at) == [0, 2]


def test_several_nodes_need_a_store_that_they_can_share(tmp_path: Path) -> None:
    done = run_command("demo", "--nodes", "3", "--state", tmp_path / "state")
    assert done.returncode == 2
    assert "--store postgresql://USER@HOST/DATABASE" in done.stderr
    assert not (tmp_path / "state").exists()
