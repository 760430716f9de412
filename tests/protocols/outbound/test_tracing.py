"""A message as a trace: its steps, how many there are, and a collector that gets them from the real daemon."""

import http.server
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from broker.devices.registry import Device
from config.loading import SettingsError, load_settings
from config.settings import Tracing
from protocols.outbound import tracing
from protocols.outbound.tracing import MessageTraces, check_tracing, otlp_provider
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.sql import StoreError
from tests.daemon import USER_TOKEN, bearer, device_id, running_daemon
from tests.properties import in_ci
from tests.served import served


class Names:
    def mid(self, position: Position) -> str:
        return f"mid {position}"

    def sender(self, _device: DeviceKey) -> Device | None:
        return None


class Commits:
    """A database that says what was committed, when the test says so; times are those of the test."""

    def __init__(self, per_minute: int) -> None:
        self.exported = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exported))
        self.now = 100.0
        self._handlers: list[object] = []
        self._traces = MessageTraces(provider, per_minute, now=lambda: self.now)
        self._traces.before_routing(cast("Database", self))
        self.on_commit(lambda _group: self.pass_time(0.003))  # the router
        self._traces.after_routing(cast("Database", self), Names())

    def on_commit(self, handler: object) -> None:
        self._handlers.append(handler)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def commit(self, *messages: MessageRow, error: StoreError | None = None) -> Sequence[ReadableSpan]:
        self.exported.clear()
        group = CommitGroup(messages=list(messages), began=self.now)
        self.pass_time(0.002)
        for handler in self._handlers:
            handler(group)  # type: ignore[operator]
        self.pass_time(0.001)
        for callback in group.callbacks:
            callback(error)
        return self.exported.get_finished_spans()


def row(position: int) -> MessageRow:
    return MessageRow(Position(position), DeviceKey(1), Milliseconds(0), Milliseconds(0), 1, '{"secret":1}')


def test_a_message_is_followed_from_its_arrival_to_its_acknowledgement() -> None:
    *steps, whole = Commits(per_minute=60).commit(row(7), row(8))
    assert (whole.name, dict(whole.attributes or {})) == (
        "message",
        {"trunkline.mid": "mid 7", "trunkline.group.rows": 2},
    )
    assert [step.name for step in steps] == ["wait", "commit", "route", "acknowledge"]
    assert {step.parent.span_id for step in steps if step.parent} == {whole.context.span_id}
    lengths = [((step.end_time or 0) - (step.start_time or 0)) / 1e6 for step in steps]
    assert lengths[1:] == pytest.approx([2, 3, 1], abs=0.01)
    assert whole.start_time == steps[0].start_time == 0  # its cts
    assert all(one.end_time == two.start_time for one, two in pairwise(steps))
    assert "secret" not in str([step.to_json() for step in (*steps, whole)])


def test_only_so_many_messages_are_followed() -> None:
    commits = Commits(per_minute=60)
    assert len(commits.commit(row(1))) == 5
    assert commits.commit(row(2)) == ()
    commits.pass_time(1)
    assert commits.commit() == ()  # no message: the next one is followed
    assert len(commits.commit(row(3))) == 5


def test_the_extra_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda _name: None)
    check_tracing(Tracing())
    with pytest.raises(SettingsError, match=r"tracing\.endpoint: needs the extra tracing"):
        check_tracing(Tracing(endpoint="http://127.0.0.1:4318/v1/traces"))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://here/", "http://user:password@here/"])
def test_an_endpoint_is_an_address_without_a_password(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"tracing\.endpoint: expected"):
        load_settings(None, {"TRUNKLINE_STATE_DIR": "/x", "TRUNKLINE_TRACING_ENDPOINT": endpoint})


def test_a_collector_that_takes_nothing_has_one_line_in_the_log() -> None:
    with refusing() as endpoint, capture_logs() as lines:
        provider = otlp_provider(Tracing(endpoint=endpoint))
        for _ in range(2):
            provider.get_tracer("test").start_span("message").end()
            provider.force_flush()
        provider.shutdown()
    assert [(line["event"], line["endpoint"]) for line in lines] == [("traces_not_sent", endpoint)]


@contextmanager
def refusing() -> Iterator[str]:
    """A server that answers 400, after which nothing is tried again."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(400)

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    with serving(Handler) as address:
        yield address


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A server of OTLP over HTTP."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    with serving(Handler) as address:
        yield address, received


@in_ci
@pytest.mark.processes
def test_a_collector_gets_the_trace_of_a_message(tmp_path: Path) -> None:
    with collector() as (endpoint, received):
        with running_daemon(tmp_path, devices=1, settings=f'[tracing]\nendpoint = "{endpoint}"\n') as daemon:
            body = {"sdid": device_id(0), "data": {"state": True}}
            answer = httpx.post(f"{daemon.base_url}/messages", json=body, headers=bearer(USER_TOKEN), timeout=30)
            mid = answer.raise_for_status().json()["data"]["mid"]
            assert daemon.stop() == 0  # sends what waits
        (spans,) = [scope.spans for one in received for all_ in one.resource_spans for scope in all_.scope_spans]
    names = {span.name for span in spans}
    assert names == {"message", "wait", "commit", "route", "acknowledge"}
    (whole,) = [span for span in spans if span.name == "message"]
    about = {one.key: one.value.string_value for one in whole.attributes}
    assert (about["trunkline.mid"], about["trunkline.device.id"]) == (mid, device_id(0))
    assert {span.trace_id for span in spans} == {whole.trace_id}
