"""Fixtures of most tests: a real store in a temporary folder, and the services on top of it."""

import datetime as dt
import gc
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest
import structlog
from argon2.profiles import CHEAPEST
from hypothesis import strategies as st
from structlog.dev import ConsoleRenderer, plain_traceback

from broker.services import Services
from broker.trace.origin import Origin, enter
from config.settings import Limits, Settings
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.sizes import Sizes
from storage.sql import StoreConnection
from tests.builders import ServicesOpener
from tests.certificates import Authority
from tests.factories import NOW_MS, World, build_world
from tests.fakes import FakeClock
from tests.fork_server import commands_forked
from tests.leaks import KNOWN, record, taken
from tests.opened_stores import OPENED
from tests.postgresql import DATABASES, ENGINE, STATES, end_run, folder_of_run
from tests.properties import begin_draws, register_profiles, seed
from tests.stores import KeptStore, MigratedEngine
from tests.tickets import jumping_positions

if TYPE_CHECKING:  # most tests have no use for a browser
    from tests.browser import Chromium


# Tests leave little garbage and hold many objects: fewer searches for garbage save an eighth of the processor time.
# While modules are imported and tests are collected, all objects stay.
gc.set_threshold(50_000, 20, 100)
gc.disable()

# A shell that starts the tests in the background lets them, and all that they start, ignore what Ctrl-C sends.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.workers",)
register_profiles()
record(KNOWN.add)
if ENGINE == "postgresql":
    OPENED.watch()

_tmp_path_numbers = count()

#: Files that take long, the longest first. Workers begin with them, so that none is left with one at the end: with
#: those of a run in November 2026 replayed on two processors, 485 instead of 506 s.
LONGEST: Final = (
    "e2e/test_schemathesis.py",
    "storage/test_postgresql.py",
    "cluster/test_faults.py",
    "e2e/test_deb.py",
    "e2e/console/test_every_page.py",
    "e2e/test_coap.py",
    "cluster/test_drain.py",
    "cluster/test_demo.py",
    "e2e/test_time_jumps.py",
    "e2e/test_readme.py",
    "faults/test_faults.py",
    "protocols/http/test_openapi.py",
    "e2e/test_database_away.py",
    "cluster/test_node_ends.py",
    "cluster/test_several_nodes.py",
    "storage/test_failover.py",
    "e2e/test_standby.py",
    "e2e/console/test_ways.py",
    "e2e/test_guides.py",
    "storage/test_neighbours.py",
    "cluster/test_rules_of_nodes.py",
    "storage/test_store_copy.py",
    "upgrades/test_upgrades.py",
    "protocols/operation/test_postgresql_store.py",
    "soak/test_soak.py",
    "protocols/cli/test_commands.py",
    "e2e/accounts/test_looks.py",
    "e2e/console/test_developer.py",
    "e2e/test_autobahn.py",
    "storage/test_engines.py",
    "cluster/test_devices_of_nodes.py",
    "e2e/test_leaving.py",
    "storage/test_partitions.py",
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported and collected objects from garbage collection, so that each one takes a tenth of the time."""
    if session.config.option.workers:
        # Hypothesis keeps the characters of UTF-8, and in a file. Each worker would take a second for it.
        st.characters(codec="utf-8").validate()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    if ENGINE == "postgresql":
        for item in items:
            if (mark := item.get_closest_marker("sqlite")) is not None:
                item.add_marker(pytest.mark.skip(reason=f"SQLite only: {mark.args[0]}"))


_run = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    begin_draws(config)
    folder = folder_of_run()
    patch = _run.enter_context(pytest.MonkeyPatch.context())
    # Argon2 at its lowest cost. tests/broker/test_secrets.py checks the cost of production in a separate process.
    patch.setattr("broker.secrets.ARGON2_COST", CHEAPEST)
    # numpy begins threads when it is imported, which the forks of tests/workers.py would not have.
    patch.setenv("OPENBLAS_NUM_THREADS", "1")
    # TLS trusts one authority that signs nothing. Each HTTP client reads the file; that of the machine takes 28 ms.
    authorities = Path(_run.enter_context(TemporaryDirectory(prefix="trunkline-tests-"))) / "none.pem"
    authorities.write_text(Authority("Nobody", now=dt.datetime.now(dt.UTC)).pem, encoding="ascii")
    patch.setenv("SSL_CERT_FILE", str(authorities))
    patch.delenv("SSL_CERT_DIR", raising=False)
    # Each service measures its tables soon after its start: a fifth of the time of a test over PostgreSQL. The tests of
    # retention measure.
    patch.setattr("broker.messages.retention.measure", _not_measured)
    # Tests ask again and again whether it has ended: in pauses between its steps they would keep the processor busy.
    for module in ("devices.removal", "leaving.erasing", "my_data.erasures", "my_data.imports"):
        patch.setattr(f"broker.{module}._PAUSE_SECONDS", 0)
    forks = folder / f"forks-{ENGINE}"
    forks.mkdir(exist_ok=True)
    _run.enter_context(commands_forked(forks))


def pytest_report_header() -> str:
    return f"draws: TESTS_SEED={seed()}"


def pytest_unconfigure(config: pytest.Config) -> None:
    _run.close()
    end_run()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Failures are a secret in the output of a test or a daemon, and a store of SQLite in a run over PostgreSQL."""
    report = yield
    if call.when == "teardown":
        text = "\n".join([taken(), *(content for _, content in report.sections)])
        for title, found in (
            ("secrets in the output:", list(KNOWN.found_in(text))),
            ("SQLite opened, in a run over PostgreSQL (tests/opened_stores.py):", OPENED.taken()),
        ):
            if found:
                report.outcome = "failed"
                report.longrepr = "\n".join([str(report.longrepr or ""), title, *found]).strip()
    return report


def _not_measured(_db: StoreConnection, *, now_ms: int) -> Sizes:
    return Sizes(0, 0, gives_back=True, since_ms=None, parts=())


@cache
def _log_of_tests() -> dict[str, Any]:
    """Rich, which structlog takes when it is installed, draws a traceback for a third of a second."""
    processors = [
        *structlog.get_config()["processors"][:-1],
        ConsoleRenderer(colors=False, exception_formatter=plain_traceback),
    ]
    structlog.configure(processors=processors)
    return structlog.get_config()


# The one fixture of all tests: each further one takes 0.1 ms of each test, and as much when tests are collected.
@pytest.fixture(autouse=True)
def _each_test() -> Iterator[None]:
    enter(Origin())  # where the test before said that its work came from
    # Commands that are called in the process of the tests, also by fixtures of modules, configure its log.
    structlog.configure(**_log_of_tests())
    yield
    DATABASES.end_test()
    STATES.end_test()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the test's own. It stays when the test fails.

    Pytest's own fixture leaves a link for each test and reads them all for the next one: 0.6 ms per thousand tests that
    have run.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{os.getpid()}-{next(_tmp_path_numbers)}"
    path.mkdir(mode=0o700)
    failures = request.session.testsfailed
    yield path
    OPENED.look_into(path)
    if request.session.testsfailed == failures:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="off", quotas="off"))


@pytest.fixture(scope="session")
def _kept_stores() -> Iterator[list[KeptStore]]:
    """The stores that no test uses."""
    stores: list[KeptStore] = []
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def engine(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    _kept_stores: list[KeptStore],
) -> Iterator[SqliteEngine]:
    """An engine on a new store. The store stays when the test fails."""
    if ENGINE == "postgresql":
        yield MigratedEngine(tmp_path / "store.sqlite")
        return
    kept = _kept_stores.pop() if _kept_stores else KeptStore(tmp_path_factory.mktemp("kept"))
    failures = request.session.testsfailed
    yield MigratedEngine(tmp_path / "store.sqlite", kept)
    if kept.is_free() and request.session.testsfailed == failures:
        _kept_stores.append(kept)
    else:
        kept.close()


@pytest.fixture
def opener(settings: Settings, engine: SqliteEngine, fake_clock: FakeClock) -> ServicesOpener:
    """Opens services on the test's store. Their clock stands still until the test moves it."""
    return ServicesOpener(settings, engine, fake_clock.clock)


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener() as opened:
        yield opened


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that the store executes: each one is a trip to the server, where the store is in one."""
    connections: Any = SqliteConnection
    if ENGINE == "postgresql":
        from storage.engines.postgresql_connection import PostgresqlConnection

        connections = PostgresqlConnection
    executed, run = list[str](), connections._run

    def noting(self: object, sql: str, *arguments: Any, **more: Any) -> Any:
        executed.append(sql)
        return run(self, sql, *arguments, **more)

    monkeypatch.setattr(connections, "_run", noting)
    return executed


@pytest.fixture
def positions_jump() -> Iterator[None]:
    """Positions are given in the commit, and are not the tickets (tests/tickets.py)."""
    with jumping_positions():
        yield


@pytest.fixture
async def world(services: Services) -> World:
    return await build_world(services.core.database, services.core.vault)


@pytest.fixture(scope="session")
def window() -> "Iterator[Chromium]":
    """One Chromium for all tests that need a real browser; call its `fresh` first."""
    from tests.browser import running_chromium

    with running_chromium() as running:
        yield running
