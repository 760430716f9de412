"""Reloading (reference 27.13): everything that can be taken is, and a mistake changes nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from broker.services import Services
from config.loading import SettingsError
from config.settings import Limits, Log, Metrics, Settings, Storage, Tls
from config.settings_checks import SOCKET_LIMITS
from protocols.operation.reload import KEPT_LIMITS, Reloading, renew_limits
from tests.rows import each_row


@pytest.fixture(autouse=True)
def _former_log() -> Iterator[None]:
    former = structlog.get_config()
    yield
    structlog.configure(**former)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="off"))


def wanted_of(settings: Settings) -> Settings:
    return msgspec.structs.replace(
        settings,
        limits=Limits(rate_limits="on", future_grace_seconds=5, rest_user="7/70"),
        log=Log(level="warning"),
        metrics=Metrics(allow=("192.0.2.0/24",)),
        storage=Storage(retention_days=9),
        tls=Tls(certificate=Path("new.pem"), key=Path("new.key")),
        grace_seconds=1.5,
        public_url="https://secret@gateway.example.org",
    )


async def test_what_is_taken_and_what_needs_a_restart(services: Services, settings: Settings) -> None:
    used: list[str] = []

    def prepare(tls: Tls) -> Callable[[], None]:
        used.append(f"read {tls.certificate}")
        return lambda: used.append("in use")

    wanted = wanted_of(settings)
    others: list[Settings] = []
    reloading = Reloading(
        settings, lambda: wanted, [prepare, prepare], [partial(renew_limits, services), others.append]
    )
    said = reloading.reload()
    assert said == "Reloaded; needs a restart: public_url, limits.rate_limits, storage.retention_days"
    assert used == ["read new.pem", "read new.pem", "in use", "in use"]  # nothing is used before everything is read
    assert services.messages.ingest.future_grace_ms == 5_000
    assert others == [reloading.settings]
    assert reloading.settings.grace_seconds == 1.5
    assert reloading.settings.limits == msgspec.structs.replace(wanted.limits, rate_limits="off")
    assert reloading.settings.storage == settings.storage
    assert not structlog.get_logger().is_enabled_for(20)
    assert reloading.reload() == said  # as long as it is so


def test_each_limit_is_taken_or_needs_a_restart() -> None:
    """A new one has to be applied by `renew_limits`, or to be kept there."""
    applied = {
        *Limits().rates,
        "calls_per_address",
        *SOCKET_LIMITS,
        "future_grace_seconds",
        "unauthenticated_connections",
        "unauthenticated_connections_per_address",
    }
    assert set(Limits.__struct_fields__) == applied | set(KEPT_LIMITS)


async def test_the_log_has_the_names_of_keys_and_no_values(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = msgspec.structs.replace(wanted_of(settings), log=Log(format="json"))
    Reloading(settings, lambda: wanted).reload()
    (line,) = capsys.readouterr().err.splitlines()
    said = msgspec.json.decode(line)
    assert said["event"] == "reloaded"
    assert said["needs_restart"] == ["public_url", "limits.rate_limits", "storage.retention_days"]
    assert {"log.format", "limits.rest_user", "tls.key", "grace_seconds"} <= set(said["changed"])
    assert "gateway" not in line


@each_row("error", [SettingsError("a: b"), OSError("a: b"), RuntimeError("a: b")])
@each_row("where", ["configuration", "certificate"])
async def test_a_mistake_changes_nothing(services: Services, settings: Settings, error: Exception, where: str) -> None:
    used: list[str] = []

    def load() -> Settings:
        if where == "configuration":
            raise error
        return wanted_of(settings)

    def refuse(_tls: Tls) -> Callable[[], None]:
        raise error

    reloading = Reloading(
        settings, load, [lambda _tls: lambda: used.append("in use"), refuse], [partial(renew_limits, services)]
    )
    before = services.messages.ingest.future_grace_ms
    with capture_logs() as logs:
        said = reloading.reload()
    assert said.startswith("Not reloaded: ")
    assert said.endswith("a: b")
    assert [line["event"] for line in logs] == ["reload_refused"]
    assert (reloading.settings, used) == (settings, [])
    assert services.messages.ingest.future_grace_ms == before
