"""One stream of events over several nodes: one that is killed, one that is taken out, and one that goes on."""

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from httpx_sse import ServerSentEvent, connect_sse

from tests.cluster.node import Node, running_nodes, wait_until
from tests.daemon import USER_TOKEN, bearer, device_id, device_token
from tests.properties import in_ci

pytestmark = [pytest.mark.processes, in_ci]

_WRITERS = 2


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_CLUSTER_DRAIN_NOTICE_SECONDS", "0.2")
        patch.setenv("TRUNKLINE_CLUSTER_DRAIN_SECONDS", "1")
        with running_nodes(tmp_path, "a", "b", "c") as found:
            yield found


class _Writer(threading.Thread):
    """Sends the messages of a device to a node, and to the next one when that does not answer."""

    def __init__(self, number: int, nodes: list[Node]) -> None:
        super().__init__(daemon=True)
        self._number, self._nodes = number, itertools.cycle(nodes)
        self.acknowledged = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        base = next(self._nodes).base
        with httpx.Client(headers=bearer(device_token(self._number)), timeout=20) as client:
            while not self.is_over.wait(0.02):
                body = {"sdid": device_id(self._number), "data": {"intensity": self.acknowledged}}
                try:
                    client.post(f"{base}/messages", json=body).raise_for_status()
                    self.acknowledged += 1
                except httpx.HTTPError:
                    base = next(self._nodes).base


class _Reader(threading.Thread):
    """Reads events of a node, and goes on at the next one."""

    def __init__(self, nodes: list[Node], start: str) -> None:
        super().__init__(daemon=True)
        self._nodes, self._last = itertools.cycle(nodes), start
        self.got: list[str] = []
        self.connections = 0
        self.is_over = False

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            for node in self._nodes:
                if self.is_over:
                    return
                headers = bearer(USER_TOKEN) | {"Last-Event-ID": self._last}
                try:
                    with connect_sse(client, "GET", f"{node.base}/live", headers=headers) as source:
                        self._read(source.iter_sse())
                except httpx.HTTPError:
                    continue

    def _read(self, events: Iterator[ServerSentEvent]) -> None:
        self.connections += 1
        for event in events:
            if event.event == "message":
                assert json.loads(event.data)["mid"] == event.id
                self.got.append(event.id)
            self._last = event.id
            if self.is_over:
                return


def _stored(node: Node, start: str) -> list[str]:
    mids: list[str] = []
    with httpx.Client(base_url=node.base, headers=bearer(USER_TOKEN), timeout=30) as client:
        for number in range(_WRITERS):
            query: dict[str, str | int] = {"sdid": device_id(number), "startDate": 0, "endDate": 1 << 50, "count": 100}
            while True:
                page = client.get("/messages", params=query).raise_for_status().json()
                mids += (message["mid"] for message in page["data"])
                if "next" not in page:
                    break
                query["offset"] = page["next"]
    return sorted(mid for mid in mids if mid > start)


def test_a_stream_goes_on_at_another_node(nodes: list[Node]) -> None:
    a, b, c = nodes
    body = {"sdid": device_id(0), "data": {"intensity": 1}}
    answer = httpx.post(f"{a.base}/messages", json=body, headers=bearer(USER_TOKEN))
    start = answer.raise_for_status().json()["data"]["mid"]
    writers = [_Writer(0, [a]), _Writer(1, [c, a])]
    reader = _Reader([b, c, a], start)
    for thread in (*writers, reader):
        thread.start()
    wait_until(lambda: len(reader.got) > 20, "the reader has messages of two other nodes")
    b.daemon.kill()
    wait_until(lambda: reader.connections >= 2, "it goes on at another node")
    seen = len(reader.got)
    wait_until(lambda: len(reader.got) > seen + 20, "it has messages of that node and another one")
    assert c.daemon.stop() == 0
    seen = len(reader.got)
    wait_until(lambda: len(reader.got) > seen + 20, "it goes on at the last node")
    for writer in writers:
        writer.is_over.set()
        writer.join()
    expected = _stored(a, start)
    wait_until(lambda: len(reader.got) >= len(expected), "it has all")
    reader.is_over = True
    assert reader.got == expected
    assert reader.connections >= 3
