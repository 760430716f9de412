"""Traces of single messages through the writer and the router, by OpenTelemetry (reference 27.20).

Nothing of this is in the way of a message: the times of a sampled message are those of its group, which the database
tells after each commit. OpenTelemetry comes with the extra `tracing`.
"""

import logging
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from broker.devices.registry import Device
from config.loading import SettingsError
from config.settings import Tracing as TracingSettings
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.keys import DeviceKey, Position
from storage.migrations import VERSION
from storage.sql import StoreError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult

_END_SECONDS: Final = 3.0
#: How often the log says that a collector takes nothing.
_TELL_SECONDS: Final = 3600.0

_log = structlog.get_logger(__name__)


class MessageNames(Protocol):
    """Resolves the ids in a message to names that its users know: `broker.messages.ingest.Ingest`."""

    def mid(self, position: Position) -> str: ...

    def sender(self, device: DeviceKey) -> Device | None: ...


def check_tracing(settings: TracingSettings) -> None:
    """Raises SettingsError when traces are wanted and the extra is not installed."""
    if settings.endpoint and not all(map(find_spec, ("opentelemetry", "opentelemetry.exporter"))):
        raise SettingsError("tracing.endpoint: needs the extra tracing: pip install 'trunkline[tracing]'")


def otlp_provider(settings: TracingSettings) -> "TracerProvider":
    """A provider that sends spans to the endpoint, in its own thread. Raises SettingsError, as `check_tracing`."""
    check_tracing(settings)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace import export as sdk  # noqa: PLC0415

    class Exporter(OTLPSpanExporter):
        told_at = -_TELL_SECONDS

        def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
            result = super().export(spans)
            if result is not sdk.SpanExportResult.SUCCESS and time.monotonic() - self.told_at >= _TELL_SECONDS:
                self.told_at = time.monotonic()
                _log.warning("traces_not_sent", endpoint=settings.endpoint)
            return result

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it tells of each attempt
    provider = TracerProvider(
        resource=Resource.create({"service.name": "trunkline", "service.version": VERSION}), shutdown_on_exit=False
    )
    provider.add_span_processor(sdk.BatchSpanProcessor(Exporter(endpoint=settings.endpoint)))
    return provider


class MessageTraces:
    """Traces one message of a group, up to a number of messages per minute."""

    def __init__(
        self, provider: "TracerProvider", per_minute: int, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("trunkline")
        self._pause = 60 / per_minute
        self._now = now
        self._next = 0.0
        self._names: MessageNames | None = None
        self._is_followed = False
        self._committed_at = self._routed_at = 0.0

    def before_routing(self, database: Database) -> None:
        """Follow the commits of the database first. Call it before other followers are added."""
        database.on_commit(self._committed)

    def after_routing(self, database: Database, names: MessageNames) -> None:
        """Follow the commits of the database last. Call it after all other followers are added."""
        self._names = names
        database.on_commit(self._routed)

    async def end(self) -> None:
        """Send what waits, for a short time."""
        with trio.move_on_after(_END_SECONDS, shield=True):
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)

    def _committed(self, group: CommitGroup) -> None:
        now = self._now()
        self._is_followed = now >= self._next and bool(group.messages)
        self._committed_at = now

    def _routed(self, group: CommitGroup) -> None:
        if not self._is_followed:
            return
        self._routed_at = now = self._now()
        self._next = now + self._pause
        group.callbacks.append(lambda error: self._acknowledged(group, error))

    def _acknowledged(self, group: CommitGroup, error: StoreError | None) -> None:
        if error is not None or self._names is None:
            return
        row = group.messages[0]
        ended = self._now()
        since_epoch = time.time_ns() - int(ended * 1e9)

        def at(seconds: float) -> int:
            return since_epoch + int(seconds * 1e9)

        began = min(row.cts * 1_000_000, at(group.began))  # `cts` has whole milliseconds
        device = self._names.sender(row.device)
        about: dict[str, str | int] = {
            "trunkline.mid": self._names.mid(row.position),
            "trunkline.group.rows": group.row_count,
        }
        if device is not None:
            about["trunkline.device.id"] = device.id
        whole = self._tracer.start_span("message", start_time=began, attributes=about)
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - an extra

        context = set_span_in_context(whole)
        steps = (
            ("wait", began, at(group.began)),
            ("commit", at(group.began), at(self._committed_at)),
            ("route", at(self._committed_at), at(self._routed_at)),
            ("acknowledge", at(self._routed_at), at(ended)),
        )
        for name, start, end in steps:
            self._tracer.start_span(name, context=context, start_time=start).end(end)
        whole.end(at(ended))
