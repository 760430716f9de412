"""What the slow path relies on of Hypercorn, though Hypercorn documents none of it.

protocols/http/hypercorn_exchange.py uses `H11Protocol` as a part of its own connection. Each use is named here, and
pyproject.toml allows no version but the one that the suite has passed with.
"""

import inspect
import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.logging import Logger
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext

from protocols.http.hypercorn_exchange import _Request

ROOT: Final = Path(__file__).parents[3]
#: Of what H11Protocol takes for the h11.Connection.
OF_REQUESTS: Final = {
    "next_event",
    "our_state",
    "receive_data",
    "send",
    "start_next_cycle",
    "their_state",
    "they_are_waiting_for_100_continue",
    "trailing_data",
}


def test_only_the_tested_version_can_be_installed() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (wanted,) = [one for one in required if one.startswith("hypercorn")]
    assert wanted == f"hypercorn=={version('hypercorn')}"


def test_the_protocol_object_uses_nothing_of_a_connection_that_requests_lack() -> None:
    used = set(re.findall(r"self\.connection\.(\w+)", inspect.getsource(H11Protocol)))
    assert used == OF_REQUESTS
    assert not used - {name for name in vars(_Request) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("used", "parameters"),
    [
        (
            H11Protocol.__init__,
            ["app", "config", "context", "task_group", "connection_state", "ssl", "client", "server", "send"],
        ),
        (H11Protocol.handle, ["event"]),
        (ASGIWrapper.__init__, ["app"]),
        (WorkerContext.__init__, ["max_requests"]),
        (TaskGroup.__init__, []),
        (RawData.__init__, ["data", "address"]),
        (Updated.__init__, ["idle"]),
        (Closed.__init__, []),
        (Logger.access, ["request", "response", "request_time"]),
        (Logger.exception, ["message", "args", "kwargs"]),
        (Logger.warning, ["message", "args", "kwargs"]),
    ],
)
def test_each_call_has_the_parameters_that_are_given(used: Any, parameters: Sequence[str]) -> None:
    assert list(inspect.signature(used).parameters)[1:] == list(parameters)


def test_each_attribute_that_is_set_or_read_is_there() -> None:
    config = Config()
    for name in ("logger_class", "accesslog", "errorlog", "include_server_header", "keep_alive_max_requests"):
        assert hasattr(config, name), name
    assert hasattr(WorkerContext(None), "terminated")
    assert "self.connection: h11.Connection" in inspect.getsource(H11Protocol.__init__)  # which is replaced
    assert "Updated(idle=True)" in inspect.getsource(H11Protocol)  # by which a request is known to be answered
