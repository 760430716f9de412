"""The database is away when a daemon starts, or while one stands by: it waits, says so, and goes on by itself."""

import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import httpx
import pytest

from tests.cluster.node import Node, wait_until
from tests.daemon import USER_TOKEN, bearer, command_output, device_id, run_command, write_world
from tests.e2e.test_reload import Supervisor
from tests.e2e.test_standby import FENCED, Load
from tests.postgresql import Server, server
from tests.properties import in_ci

#: The connections of psycopg that a stop leaves, and sockets of httpx.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
PATIENCE_OF_TESTS: Final = 30.0
PATIENCE_SECONDS: Final = 5.0  # as long as it is by default
AWAY = (503, "waits: the database does not answer\n")
STANDS_BY = (503, "stands by: another node serves\n")
SERVES = (200, "ok\n")


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server of these tests, with an empty database `store`."""
    found = Server(Path(mkdtemp(prefix="late-", dir=server().folder)))
    found.make()
    found.start()
    found.administration.execute("CREATE DATABASE store TEMPLATE template0")
    yield found
    with suppress(AssertionError):  # it is stopped already
        found.stop("immediate")


@pytest.fixture(scope="module")
def key(own: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key of the store, in which Ada has four lights."""
    folder = tmp_path_factory.mktemp("provisioned") / "world"
    config, file = write_world(folder, devices=4, settings=f'[storage]\nurl = "{own.url("store")}"\n')
    command_output("provision", file, "--config", config)
    return folder / "state" / "key"


@pytest.fixture
def nodes(own: Server, key: Path, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    a, b = (Node(tmp_path / name, name, own.url("store"), key) for name in ("a", "b"))
    yield a, b
    for node in (a, b):
        node.close()


def ready(node: Node) -> tuple[int, str]:
    try:
        answer = httpx.get(f"http://127.0.0.1:{node.http}/readyz", timeout=10)
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.text


def is_ready(node: Node, said: tuple[int, str]) -> None:
    wait_until(lambda: ready(node) == said, f"{node.name} says {said}, not {ready(node)}; its log: {node.log()}")


def test_a_daemon_waits_for_a_server_that_starts_late(
    own: Server, nodes: tuple[Node, Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = nodes
    own.stop()
    supervisor = Supervisor(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    node.begin()
    try:
        is_ready(node, AWAY)
        assert node.health("/healthz") == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", node.mqtt))
        refused = httpx.get(f"http://127.0.0.1:{node.http}/v1.1/users/self", timeout=10)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["message"] == "The database does not answer"
        begun = supervisor.next()
        assert begun.startswith("READY=1\nSTATUS=Waits for the database: postgresql://postgres@")
        assert "is the server running?" in begun
        assert [supervisor.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
        done = run_command("serve", "--check", "--config", node.daemon.config)  # answers at once
        assert (done.returncode, "is the server running?" in done.stderr) == (2, True)
        own.start()
        node.daemon.wait_ready()
        is_ready(node, SERVES)
    finally:
        supervisor.close()
    assert node.daemon.stop() == 0
    log = node.log()
    assert [log.count(f" {event} ") for event in ("database_away", "database_answers")] == [1, 1], log


@pytest.mark.parametrize("stops", [True, False])
def test_a_first_start_waits_for_the_server_as_later_ones(own: Server, nodes: tuple[Node, Node], stops: bool) -> None:
    """There is no key yet, and the database is to be asked whether it has secrets of one."""
    node, _ = nodes
    (node.daemon.state / "key").unlink()
    own.administration.execute(f"CREATE DATABASE fresh{stops:d} TEMPLATE template0".encode())
    config = node.daemon.config.read_text(encoding="utf-8")
    node.daemon.config.write_text(config.replace("/store?", f"/fresh{stops:d}?"), encoding="utf-8")
    own.stop()
    try:
        node.begin()
        is_ready(node, AWAY)
        assert node.health("/healthz") == 200
        if stops:
            assert node.daemon.stop() == 0
            assert "stopped" in node.log()
    finally:
        own.start()
    if not stops:
        node.daemon.wait_ready()
        is_ready(node, SERVES)
        assert node.daemon.stop() == 0
    assert (node.daemon.state / "key").exists() != stops


def test_two_daemons_lose_nothing_while_the_server_restarts(own: Server, nodes: tuple[Node, Node]) -> None:
    """paho, websocket-client and curl send all the time. One of the two serves afterwards, and all is stored once."""
    a, b = nodes
    a.start()
    b.begin()
    is_ready(b, STANDS_BY)
    with Load(nodes) as load:
        for mode in ("fast", "immediate"):
            other = next(node for node in nodes if ready(node) == STANDS_BY)
            own.stop(mode)
            is_ready(other, AWAY)
            own.start()
            began = time.monotonic()
            wait_until(lambda: SERVES in map(ready, nodes), "one serves")
            wait_until(
                lambda since=began: all(client.acknowledged[-1][0] > since for client in load.clients),  # type: ignore[misc]
                "all clients are acknowledged again",
                2 * PATIENCE_OF_TESTS,
            )
            wait_until(partial(one_serves, nodes), "one serves, and the other one stands by", 2 * PATIENCE_OF_TESTS)
            assert other.log().count(" database_away ") == 1  # of both: two lines a minute are enough
    load.check(a if ready(a) == SERVES else b)


def one_serves(nodes: tuple[Node, Node]) -> bool:
    """Whether the other one stands by. One whose place was taken has ended, and is started again as systemd would."""
    for node in nodes:
        assert node.daemon.process is not None
        if (status := node.daemon.process.poll()) is not None:
            assert status == FENCED
            node.begin()
    return sorted(map(ready, nodes)) == [SERVES, STANDS_BY]


def test_while_the_server_stands_still_front_ends_answer_within_the_patience(
    own: Server, nodes: tuple[Node, Node]
) -> None:
    node, _ = nodes
    node.start()
    base = f"http://127.0.0.1:{node.http}"
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("POST", "/v1.1/messages", {"headers": bearer(USER_TOKEN), "json": {"sdid": device_id(0), "data": {}}}),
        ("GET", "/v1.1/users/self", {"headers": bearer(USER_TOKEN)}),
        ("POST", "/accounts/token", {"data": {"grant_type": "refresh_token", "refresh_token": "0" * 32}}),
    )
    found: dict[str, list[tuple[int, float]]] = {path: [] for _, path, _ in calls}
    reasons: list[str] = []

    def ask(method: str, path: str, given: dict[str, Any]) -> None:
        for _ in range(3):
            began = time.monotonic()
            answer = httpx.request(method, base + path, timeout=60, **given)
            found[path].append((answer.status_code, time.monotonic() - began))
            if path.startswith("/v1.1"):  # /operator shows this text, too
                reasons.append(answer.json()["error"]["reason"])

    with own.standing_still():
        threads = [threading.Thread(target=ask, args=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ready(node)[0] == 503
    print(found)  # noqa: T201 - with -s
    assert max(seconds for answers in found.values() for _, seconds in answers) <= 1.5 * PATIENCE_SECONDS + 0.5
    assert {status for answers in found.values() for status, _ in answers} == {503}
    assert len(reasons) == 6
    assert all(reason.startswith("the database does not answer") for reason in reasons), reasons
    is_ready(node, SERVES)


def test_a_mistake_ends_a_daemon_at_once(own: Server, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    config = node.daemon.config.read_text(encoding="utf-8")
    node.daemon.config.write_text(config.replace("/store?", "/no_store?"), encoding="utf-8")
    node.begin()
    assert node.status() == 4
    assert "does not exist (make it: createdb" in node.log()


@in_ci
def test_hanging_up_reloads_a_daemon_that_waits(own: Server, nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    a.start()
    b.begin()
    is_ready(b, STANDS_BY)
    with b.daemon.config.open("a", encoding="utf-8") as file:
        file.write('[log]\nlevel = "debug"\n[http2]\n')
    b.signal(signal.SIGHUP)
    wait_until(lambda: "reload_refused" in b.log(), "the mistake is named")
    config = b.daemon.config.read_text(encoding="utf-8").replace("[http2]\n", "")
    b.daemon.config.write_text(config.replace("[limits]", '[limits]\nrest_user = "7/70"'), encoding="utf-8")
    b.signal(signal.SIGHUP)
    wait_until(lambda: " reloaded " in b.log(), "it has reloaded")
    assert "limits.rest_user" in b.log()
    assert a.daemon.stop() == 0
    b.daemon.wait_ready()
    b.signal(signal.SIGHUP)
    wait_until(lambda: b.log().count(" reloaded ") == 2, "it has reloaded again")
    assert "changed=[]" in b.log()  # it took over with what it had taken


#: A server whose disk is full, as it says it.
_FULL: Final = """
CREATE FUNCTION full_disk() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100',
  MESSAGE = 'could not extend file "base/1/2": No space left on device'; END $$;
CREATE TRIGGER is_full BEFORE INSERT ON message FOR EACH STATEMENT EXECUTE FUNCTION full_disk();
CREATE TRIGGER is_full BEFORE INSERT ON batch FOR EACH STATEMENT EXECUTE FUNCTION full_disk();
"""


def test_a_database_without_room_is_named_and_the_log_says_it_once(own: Server, nodes: tuple[Node, Node]) -> None:
    """To the sender, at /readyz (whose sentence /operator has), in the metrics and in the log; reads go on."""
    node, _ = nodes
    node.start()
    address = f"http://127.0.0.1:{node.http}"
    message = {"sdid": device_id(0), "type": "message", "data": {"intensity": 1}}

    client = httpx.Client(headers=bearer(USER_TOKEN), timeout=30)

    def send() -> httpx.Response:
        return client.post(f"{address}/v1.1/messages", json=message)

    assert send().status_code == 200
    with own.target("store").connect(name="tests") as server_side:
        server_side.execute(_FULL.encode())
        try:
            for _ in range(50):
                refused = send()
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5"), refused.text
                assert refused.json()["error"]["reason"] == "the disk is full"
            is_ready(node, (503, "the store takes no writes: the disk is full\n"))
            metrics = client.get(f"{address}/metrics").text
            assert re.search(r"^trunkline_store_\w*fail\w* [1-9]", metrics, re.MULTILINE), metrics
            assert client.get(f"{address}/v1.1/users/self").status_code == 200
        finally:
            server_side.execute("DROP FUNCTION full_disk CASCADE")
    wait_until(lambda: send().status_code == 200, "there is room again")
    client.close()
    is_ready(node, SERVES)
    assert node.daemon.stop() == 0
    log = node.log()
    (said,) = [line for line in log.splitlines() if "nothing_is_stored" in line and "stored_again" not in line]
    assert "could not extend file" in said
    assert "make room on the disk" in said
    assert "http_refused" in log
    assert log.count("\n") < 40, log
