"""/healthz, /readyz and /metrics (reference 27.11), over the real listener."""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest
import trio
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from broker.services import Services
from broker.trace.origin import listening_as
from config.settings import Address, Http, Metrics, Settings
from protocols.http.server import serve_http
from protocols.metrics.collecting import Exposition
from protocols.metrics.table import DAEMON, LISTENERS
from protocols.metrics.vitals import FRESH_SECONDS, Vitals
from protocols.operation.systemd import write_probe
from storage.damage import Damage
from storage.database import Database
from storage.durations import BOUNDS, Durations
from storage.sql import StoreError, StoreFullError
from tests.factories import ADA_TOKEN, KITCHEN, World
from tests.programs import require_program
from tests.protocols.http.conftest import bearer
from tests.protocols.http.direct_client import DirectClient
from tests.rows import each_row
from tests.stores import MigratedEngine

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "config" / "grafana" / "trunkline.json"
ALERTS = ROOT / "config" / "prometheus" / "alerts.yml"
MONITORING = ROOT / "docs/operate/monitoring.md"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def vitals(services: Services) -> Vitals:
    return Vitals(services.core)


@pytest.fixture
async def door(services: Services, vitals: Vitals, world: World, nursery: trio.Nursery) -> Address:
    listening_as("http")
    bound: Address = await nursery.start(
        partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=None, vitals=vitals)
    )
    listening_as("")
    return bound


@pytest.fixture
async def site(door: Address) -> AsyncIterator[httpx.AsyncClient]:
    async with DirectClient(door, "") as client:
        yield client


def samples(text: str) -> Mapping[tuple[str, ...], float]:
    """By name and the values of the labels; read with Prometheus's own parser."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(site: httpx.AsyncClient) -> Mapping[tuple[str, ...], float]:
    return samples((await site.get("/metrics")).raise_for_status().text)


# Metrics


async def test_metrics_count_messages_commits_requests_and_refusals(site: httpx.AsyncClient) -> None:
    before = await scraped(site)
    body = {"sdid": KITCHEN, "data": {"state": True}}
    for _ in range(2):
        (await site.post("/v1.1/messages", headers=bearer(ADA_TOKEN), json=body)).raise_for_status()
    assert (await site.get("/v1.1/users/self")).status_code == 401
    after = await scraped(site)

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0)

    assert grown("trunkline_messages_total") == 2
    assert grown("trunkline_store_log_rows_total") == 2
    assert grown("trunkline_http_responses_total", "401", "http") == 1
    assert grown("trunkline_http_responses_total", "200", "http") == 3  # with the first scrape
    assert grown("trunkline_http_request_duration_seconds_count", "http") == 4
    assert grown("trunkline_refusals_total", "http_credentials_refused", "http") == 1
    assert after["trunkline_store_commit_duration_seconds_count",] == after["trunkline_store_commits_total",]
    assert after["trunkline_store_commit_duration_seconds_sum",] > 0
    assert after["process_open_fds",] > 0


async def test_metrics_come_as_the_scraper_asks(site: httpx.AsyncClient) -> None:
    plain = await site.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    modern = await site.get("/metrics", headers={"Accept": OPEN_METRICS})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
    assert "access-control-allow-origin" not in plain.headers


async def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket(vitals: Vitals) -> None:
    durations = vitals.traffic_of("https").durations
    for seconds in (0.0, BOUNDS[0], 0.003, 1000.0):
        durations.observe(seconds)
    found = samples((await Exposition(vitals).text(""))[0].decode())
    name = "trunkline_http_request_duration_seconds"
    counts = [found[f"{name}_bucket", str(bound), "https"] for bound in (*BOUNDS, "+Inf")]
    assert counts == [2, 2, 2, *[3] * (len(BOUNDS) - 3), 4]
    assert (found[f"{name}_count", "https"], found[f"{name}_sum", "https"]) == (4, durations.seconds)
    assert sum(Durations().counts) == 0


async def test_what_cannot_be_read_of_the_store_is_counted(vitals: Vitals) -> None:
    damage = Damage()
    vitals.core.life.observe("damage", damage.statistics)
    for _ in range(2):
        damage.met("SELECT * FROM messages", "database disk image is malformed")
    damage.set_aside = ("rollups",)
    found = samples((await Exposition(vitals).text(""))[0].decode())
    assert [
        found[(f"trunkline_store_{name}",)] for name in ("damage_failures_total", "damaged_tables", "tables_set_aside")
    ] == [2, 1, 1]


@pytest.mark.processes
async def test_prometheus_has_nothing_to_say_against_the_metrics(site: httpx.AsyncClient) -> None:
    promtool = require_program("promtool")
    text = (await site.get("/metrics")).text
    run = await trio.run_process(
        [promtool, "check", "metrics"], stdin=text.encode(), capture_stdout=True, capture_stderr=True, check=False
    )
    assert (run.returncode, run.stdout + run.stderr) == (0, b"")


async def test_the_dashboard_and_the_alerts_ask_for_metrics_that_are_there(site: httpx.AsyncClient) -> None:
    assert (await site.get("/v1.1/users/self")).status_code == 401  # a refusal, and an answer
    parts = (*(part for _, part in LISTENERS.values()), *DAEMON.values())
    of_a_daemon = {
        f"trunkline_{metric.name}{'_total' * metric.is_counter}" for part in parts for metric in part.values()
    }
    names = {key[0] for key in await scraped(site)} | of_a_daemon
    asked = {
        name
        for path in (DASHBOARD, ALERTS, MONITORING)
        for name in re.findall(r"\b(?:trunkline|process)_[a-z0-9_]+\b(?=[{)\[]| [/<>=])", path.read_text("utf-8"))
    }
    assert len(asked) > 20
    assert asked - names == set()
    assert json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def test_the_table_of_alerts_is_the_file_of_alerts() -> None:
    rules = re.findall(r"- alert: (\w+)\n\s+expr: '?(.+?)'?\n", ALERTS.read_text(encoding="utf-8"))
    rows = re.findall(r"(?m)^\| (Trunkline\w+) \| `(.+?)` \|", MONITORING.read_text(encoding="utf-8"))
    assert rows == rules
    assert len(rules) > 8


@pytest.mark.processes
def test_prometheus_takes_the_file_of_alerts() -> None:
    promtool = require_program("promtool")
    subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, check=True, timeout=60)


# Permissions


@pytest.fixture
def http() -> Http:
    return Http()


@pytest.fixture
def allow() -> tuple[str, ...]:
    return ()


@pytest.fixture
def settings(tmp_path: Path, http: Http, allow: tuple[str, ...]) -> Settings:
    return Settings(state_dir=tmp_path, http=http, metrics=Metrics(allow=allow))


async def status_for(site: httpx.AsyncClient, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await site.get("/metrics", headers=named)).status_code


async def test_this_machine_may_read_and_not_whom_a_proxy_speaks_for(site: httpx.AsyncClient) -> None:
    """A proxy on this machine connects from loopback, for everybody."""
    assert await status_for(site) == 200
    for name in ("X_Forwarded_For", "Forwarded"):
        assert await status_for(site, **{name: "127.0.0.1"}) == 403
        assert await status_for(site, **{name: "for=127.0.0.1"}) == 403
    for name in ("Via", "X_Forwarded_Host", "X_Forwarded_Proto", "X_Real_IP"):  # all that some proxies send
        assert await status_for(site, **{name: "127.0.0.1"}) == 403


@pytest.mark.parametrize("http", [Http(trusted_proxies=("127.0.0.0/8",))])
@pytest.mark.parametrize("allow", [("192.0.2.0/24", "2001:db8::/32")])
async def test_behind_a_trusted_proxy_the_client_counts(site: httpx.AsyncClient) -> None:
    assert await status_for(site, X_Forwarded_For="203.0.113.7") == 403
    assert await status_for(site, X_Forwarded_For="192.0.2.7") == 200
    assert await status_for(site, Forwarded='for="[2001:db8::7]"') == 200
    # Headers that name nobody: two that differ, a name that hides the address, and the proxy itself.
    assert await status_for(site, X_Forwarded_For="203.0.113.7", Forwarded="for=192.0.2.7") == 403
    assert await status_for(site, X_Forwarded_For="unknown") == 403
    assert await status_for(site, X_Forwarded_For="127.0.0.1") == 403
    assert await status_for(site, X_Forwarded_For="127.0.0.2") == 403  # the loopback of the proxy's machine
    assert await status_for(site) == 200


# Alive and ready


async def test_alive_is_ok(site: httpx.AsyncClient) -> None:
    answer = await site.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert answer.headers["cache-control"] == "no-store"


async def test_ready_says_what_is_missing(site: httpx.AsyncClient, vitals: Vitals, services: Services) -> None:
    async def ready() -> tuple[int, str]:
        answer = await site.get("/readyz")
        return answer.status_code, answer.text

    assert await ready() == (503, "the daemon starts: not every listener is open\n")
    vitals.listens({"coaps": "no GnuTLS"})
    assert await ready() == (503, "coaps does not listen: no GnuTLS\n")
    vitals.listens({})
    assert await ready() == (200, "ok\n")
    services.core.life.stop()
    assert await vitals.problem() == "the daemon stops"


@pytest.fixture
async def alone(services: Services, tmp_path: Path, nursery: trio.Nursery) -> Vitals:
    """Of a daemon with a store that nothing else writes to."""
    database = Database(MigratedEngine(tmp_path / "alone.sqlite"))
    await database.open()
    await nursery.start(database.commit_forever)
    await database.write(write_probe)
    vitals = Vitals(replace(services.core, database=database))
    vitals.listens({})
    return vitals


async def test_a_quiet_store_is_written_to_before_it_is_called_ready(alone: Vitals) -> None:
    database = alone.core.database
    assert await alone.problem() == ""
    assert database.statistics().commits == 1
    database.committed_at = trio.current_time() - FRESH_SECONDS
    assert await alone.problem() == ""
    assert database.statistics().commits == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreFullError("disk"), "the store takes no writes: the disk is full"),
        (StoreError("secret path"), "the store takes no writes: the log says why (nothing_is_stored)"),
    ],
)
async def test_a_store_that_takes_no_writes_is_not_ready(
    alone: Vitals, monkeypatch: pytest.MonkeyPatch, error: StoreError, said: str
) -> None:
    database, tries = alone.core.database, 0

    async def refuse(_work: object) -> None:
        nonlocal tries
        tries += 1
        raise error

    database.last_error = error
    with monkeypatch.context() as patch:
        patch.setattr(database, "write", refuse)
        async with trio.open_nursery() as nursery:
            for _ in range(3):  # strangers who ask at once cause one write
                nursery.start_soon(alone.problem)
        assert await alone.problem() == said
        assert tries == 1
    await database.write(write_probe)
    assert await alone.problem() == ""


# The name by which the machine is asked


@each_row(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("gateway:8080", True),  # no name of the public DNS
        ("app.localhost:8080", True),
        ("Gateway.Example.org:8080", True),  # that of public_url
        ("accounts.example.org", True),
        ("gw.internal.example", True),  # of metrics.hosts
        ("rebound.example.com:8080", False),
        ("gateway.example.org.evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
    ],
)
async def test_a_page_of_somebody_else_does_not_read_what_is_for_monitoring(
    services: Services, vitals: Vitals, site: httpx.AsyncClient, host: str, is_ours: bool
) -> None:
    """Its name may lead here (DNS rebinding); the browser then sends it as Host."""
    settings = services.core.settings
    vitals.renew(
        msgspec.structs.replace(
            settings,
            public_url="https://gateway.example.org:8443",
            accounts=msgspec.structs.replace(settings.accounts, public_url="https://accounts.example.org"),
            metrics=Metrics(hosts=("gw.internal.example",)),
        )
    )
    vitals.listens({})
    for path in ("/healthz", "/readyz", "/metrics"):
        answer = await site.get(path, headers={"Host": host})
        assert answer.status_code == (200 if is_ours else 421), path
        if not is_ours:
            assert "trunkline" not in answer.text
    assert (await site.get("/v1.1/openapi.json", headers={"Host": host})).status_code == 200
