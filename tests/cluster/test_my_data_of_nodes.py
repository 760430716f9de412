"""My data over several nodes: another one goes on with what one has begun, and shows it (reference 9.12 and 10)."""

import csv
import io
import signal
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.node import Node, running_nodes, wait_until
from tests.daemon import USER_TOKEN, bearer, device_id
from tests.e2e.test_my_data_kills import check_counts, stored_of
from tests.properties import in_ci

pytestmark = [pytest.mark.processes, in_ci]

_LINES = 1_300  # more than two turns of an import
_STEP_MS = 20_000
_START_MS = 1_500_000_000_000 - 1_500_000_000_000 % 86_400_000
_TIMES = range(_START_MS, _START_MS + _LINES * _STEP_MS, _STEP_MS)
_DEVICE = device_id(0)


class Asked:
    """REST of a node."""

    def __init__(self, node: Node) -> None:
        self.client = httpx.Client(base_url=node.base, headers=bearer(USER_TOKEN), timeout=60)

    def __call__(self, method: str, path: str, **given: Any) -> Any:
        return self.answer(method, path, **given).json()

    def answer(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.client.request(method, path, **given).raise_for_status()


def holder_of(nodes: Sequence[Node], lease: str) -> Node:
    """The node whose last word about the lease is that it has it."""
    found = list[Node]()

    def is_held() -> bool:
        of_each = [[line for line in node.log().splitlines() if f"lease={lease}" in line] for node in nodes]
        found[:] = [node for node, lines in zip(nodes, of_each, strict=True) if lines and "lease_gained" in lines[-1]]
        return len(found) == 1

    wait_until(is_held, f"one node has the lease {lease}")
    return found[0]


def test_what_one_node_has_begun_goes_on_on_another(tmp_path: Path) -> None:
    with running_nodes(tmp_path, "a", "b", devices=1) as nodes:
        works = holder_of(nodes, "upkeep")  # imports and exports
        (other,) = (node for node in nodes if node is not works)
        at_other = Asked(other)
        import_while_killed(works, at_other)
        at_other.client.close()
        works.start()
        at_a, at_b = map(Asked, nodes)
        stored = stored_of(at_a.client)
        assert stored == stored_of(at_b.client)
        assert Counter(stored) == Counter((ts, number % 90) for number, ts in enumerate(_TIMES))
        delete_on_one(at_a, at_b, export_from_both(at_a, at_b))
        for one in (at_a, at_b):
            one.client.close()


def import_while_killed(works: Node, at_other: Asked) -> None:
    """The file comes to one node; the one that stores its lines is killed when it has stored some."""
    table = "time,intensity\n" + "".join(f"{ts},{number % 90}\n" for number, ts in enumerate(_TIMES))
    headers = {"Content-Type": "text/csv"}
    asked = at_other("POST", "/messages/import", params={"sdid": _DEVICE}, content=table, headers=headers)["data"]
    path = f"/messages/import/{asked['id']}/status"
    state: dict[str, Any] = {}

    def comes(wanted: str) -> bool:
        state.update(at_other("GET", path)["data"])
        return bool(state[wanted]) if wanted in state else False

    wait_until(lambda: comes("stored"), "some lines are stored")
    works.signal(signal.SIGKILL)
    works.status()
    assert "endedOn" not in state, "it had ended before the kill"
    wait_until(lambda: comes("endedOn"), "the other node goes on", 60.0)
    assert (state["status"], state["stored"] + state["present"], state["wrong"]) == ("Success", _LINES, 0)


def export_from_both(at_a: Asked, at_b: Asked) -> str:
    """Begun on one node, seen on the other one, and downloaded in parts from both; its id."""
    wanted = {"sdids": _DEVICE, "startDate": _TIMES[0], "endDate": _TIMES[-1], "format": "csv"}
    export: str = at_a("POST", "/messages/export", json=wanted)["data"]["exportId"]
    path = f"/messages/export/{export}"
    state: dict[str, Any] = {}

    def is_done() -> bool:
        state.update(at_b("GET", f"{path}/status"))
        return state["status"] not in {"Received", "InProgress"}

    wait_until(is_done, "the export is written")
    assert (state["status"], state["totalMessages"]) == ("Success", _LINES)
    half = state["fileSize"] // 2
    first = at_b.answer("GET", f"{path}/result", headers={"Range": f"bytes=0-{half - 1}"})
    rest = {"Range": f"bytes={half}-", "If-Range": first.headers["etag"]}
    second = at_a.answer("GET", f"{path}/result", headers=rest)
    assert (first.status_code, second.status_code) == (206, 206)
    whole = first.content + second.content
    assert whole == at_a.answer("GET", f"{path}/result").content
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        (table,) = (name for name in archive.namelist() if name.endswith(".csv"))
        lines = list(csv.DictReader(io.StringIO(archive.read(table).decode())))
    assert [int(line["intensity"]) for line in lines] == [number % 90 for number in range(_LINES)]
    wait_until(lambda: at_b("GET", f"{path}/status")["status"] == "Served", "both know that it was downloaded")
    return export


def delete_on_one(at_a: Asked, at_b: Asked, export: str) -> None:
    """Asked for on one node; the other one shows and counts what is left, and neither gives the archive any more."""
    first, last = _START_MS + 3_000_000, _START_MS + (_LINES - 9) * _STEP_MS
    chosen = {"sdid": _DEVICE, "startDate": first, "endDate": last}
    asked = at_a("DELETE", "/messages", params=chosen)["data"]
    wait_until(lambda: "endedOn" in at_b("GET", f"/messages/deletions/{asked['id']}")["data"], "they are deleted")
    left = [(ts, number % 90) for number, ts in enumerate(_TIMES) if not first <= ts <= last]
    for at in (at_b, at_a):
        assert stored_of(at.client) == left
        check_counts(at.client, left)
        gone = at.client.get(f"/messages/export/{export}/result")
        assert gone.status_code == 410, gone.text
