"""`trunkline demo --nodes 2`: two nodes, a database and a balancer by one command, also when a node is killed."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config.settings import Address
from protocols.cli import demo_services
from protocols.cli.demo_nodes import DemoNode, simulate_over
from protocols.cli.demo_services import balancer_line, database_in
from protocols.cli.failures import CommandError
from tests.browser import LOOKS, Chromium
from tests.cluster.node import wait_until
from tests.daemon import DEMO_ON_ANY_PORT, bearer, run_command, start_command
from tests.e2e.console.measures import measured
from tests.fork_server import ForkedProcess
from tests.postgresql import programs
from tests.programs import require_program
from tests.properties import in_ci

pytestmark = pytest.mark.processes

SIMULATED = [f"{'d0' * 15}0{number}" for number in (1, 2, 3)]
_BALANCER = ("--balancer-port", "0", "--balancer-mqtt-port", "0")


@dataclass
class Demo:
    """What runs, and what it has said."""

    process: ForkedProcess
    said: str

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.said)
        assert match is not None, self.said
        return match[1]

    @property
    def nodes(self) -> dict[str, str]:
        """The addresses of HTTP."""
        return dict(re.findall(r" (\w): HTTP (\S+) ", self.said))

    def kill(self, node: str) -> None:
        """And read that it has ended."""
        numbers = re.findall(rf"(?m)(?: {node}: .*|Node {node} serves: )process (\d+)", self.said)
        os.kill(int(numbers[-1]), signal.SIGKILL)
        self.read_to(f"Node {node} has ended (SIGKILL)")

    def read_to(self, words: str) -> None:
        assert self.process.stdout is not None
        while words not in (line := self.process.stdout.readline()):
            assert line, self.said
            self.said += line
        self.said += line

    def sent(self, at: str) -> dict[str, str]:
        """The latest message of each simulated device."""
        token = self.found(r"\bTOKEN=(\S+)")
        query = {"sdids": ",".join(SIMULATED)}
        answer = httpx.get(f"http://{at}/v1.1/messages/last", params=query, headers=bearer(token), timeout=30)
        newest_first = answer.raise_for_status().json()["data"]
        return {one["sdid"]: one["mid"] for one in reversed(newest_first)}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    programs()
    require_program("haproxy")
    state = tmp_path_factory.mktemp("demo") / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_LIMITS_RATE_LIMITS", "off")
        process = start_command("demo", "--nodes", "2", "--state", state, *DEMO_ON_ANY_PORT, *_BALANCER)
    assert isinstance(process, ForkedProcess)
    found = Demo(process, "")
    try:
        found.read_to("Console:  ")
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        try:
            status = process.wait(timeout=60)
        finally:
            assert process.stdout is not None
            process.stdout.close()
            data = [Path(one) for one in re.findall(r"Making a database of PostgreSQL in (\S+)\.\n", found.said)]
            has_ended = not any((one / "postmaster.pid").exists() for one in data)
            for one in data:
                shutil.rmtree(one)
                one.with_name(f"{one.name}.log").unlink(missing_ok=True)
    assert has_ended, "the database has ended with the demo"
    assert status == 0
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{balancer_of(found)}/readyz", timeout=5)


def balancer_of(demo: Demo) -> str:
    return demo.found(r"Balancer  HAProxy: HTTP (\S+) ")


@in_ci
def test_it_says_where_everything_is(demo: Demo) -> None:
    assert list(demo.nodes) == ["a", "b"]
    assert f"Look at   http://{balancer_of(demo)}/operator: " in demo.said
    assert f"Console   http://{balancer_of(demo)}/console/enter?code=" in demo.said
    assert f"export URL=http://{balancer_of(demo)} " in demo.said
    config = Path(demo.found(r"drain --config (\S+)")).read_text("utf-8")
    assert f'bind = "{demo.nodes["b"]}"' in config, "a node that is started again has the port that the balancer knows"
    boards = re.findall(r"\w+ board", demo.found(r"simulated: (.+); yours"))
    assert boards or "lwm2m" not in demo.said  # which needs GnuTLS


@in_ci
def test_a_second_demo_on_the_same_folder_leaves_the_database_of_the_first_one_alone(demo: Demo) -> None:
    done = run_command("demo", "--nodes", "2", "--state", demo.found(r"State +(\S+)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "stop that demo, or name another folder" in done.stderr
    wait_until(lambda: set(demo.sent(balancer_of(demo))) == set(SIMULATED), "each device has sent")


#: The page is told that the last node was heard five seconds ago.
_SILENT = """
const real = window.fetch;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (!String(asked[0].url ?? asked[0]).includes("/operator/overview")) return answer;
  const told = await answer.json();
  told.data.node.nodes.at(-1).heardSeconds = 5;
  return new Response(JSON.stringify(told), { status: answer.status, headers: answer.headers });
};
"""


@in_ci
def test_the_operator_sees_all_nodes_at_any_width(demo: Demo, window: Chromium) -> None:
    window.fresh()
    window.open(demo.found(r"Console   (\S+)"))
    with window.bringing(_SILENT):
        window.open(f"http://{balancer_of(demo)}/operator")
    # One that was killed is not among them from when the other has buried it until it has started again.
    nodes = "texts('#nodes tbody th').map((name) => name[0]).join()"
    window.until(f"{nodes} === 'a,b' && !document.querySelector('[aria-busy]')")
    assert window.texts("#nodes td[data-label=State]")[-1] == "silent for 5 s"
    assert any("is silent" in one and "After 8 s the others take its work" in one for one in window.texts(".alarms li"))
    assert not any("of each node alone" in one for one in window.texts("#doctor tr")), "the box of nodes says it"
    if folder := os.environ.get("SCREENSHOTS"):
        for size, dark in LOOKS.values():
            window.show(size, dark=dark)
            window.screenshot(Path(folder) / f"nodes-{size[0]}{'.dark' * dark}.png")
    assert measured(window, longest=8_000) == []  # a card for each node, and for each listener
    window.leave()


@in_ci
def test_all_devices_send_on_when_a_node_is_killed(demo: Demo) -> None:
    a = demo.nodes["a"]
    wait_until(lambda: set(demo.sent(a)) == set(SIMULATED), "each device has sent")
    demo.kill("b")
    before = demo.sent(a)
    wait_until(lambda: all(mid != before[one] for one, mid in demo.sent(a).items()), "all send on")

    def is_answered() -> bool:
        """Until the balancer has seen that the node is away, a request that was on its way to it may be lost."""
        with suppress(httpx.TransportError):
            return set(demo.sent(balancer_of(demo))) == set(SIMULATED)
        return False

    wait_until(is_answered, "the balancer sends requests to the other one")


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


def test_without_postgresql_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_services, "_programs", lambda: None)
    with pytest.raises(CommandError, match="apt install postgresql") as caught, database_in(tmp_path, is_new=True):
        pass
    assert "--store postgresql://USER@HOST/DATABASE" in str(caught.value)
    assert caught.value.status == 2


def test_without_haproxy_it_says_so() -> None:
    assert "HAProxy is not installed (apt install haproxy)" in balancer_line(None, is_balanced=False)
