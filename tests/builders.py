"""The one place where tests build a store and open services on it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict, TypeVar, Unpack

from broker.accounts.provider_port import Providers
from broker.clock import Clock
from broker.connectors.port import ThirdParty
from broker.mail import MailTransport
from broker.models.learner import Learner
from broker.monetization.port import Processor
from broker.rules.requests import RuleRequests
from broker.secrets import Vault
from broker.services import Services, open_services
from broker.subscriptions.port import Callbacks, Streams
from config.settings import Settings
from storage.database import Database, Engine, RunSync, Transaction
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from tests.factories import NOW_MS
from tests.fakes import BreakableConnection, BreakableEngine, FakeClock, OnTheLoop, run_inline

T = TypeVar("T")


class Ports(TypedDict, total=False):
    """The ways out of the machine. A test that names none has services without mail, providers and payments."""

    mail_transport: MailTransport
    providers: Providers
    third_party: ThirdParty
    processor: Processor
    rule_requests: RuleRequests
    learner: Learner
    callbacks: Callbacks
    streams: Streams


class ServicesOpener:
    """Opens services on one store as often as a test calls: each call after the first is a restart of the daemon.

    Blocking work runs on the event loop (`run_inline`), unless the call brings its own `run_sync`.
    """

    def __init__(self, settings: Settings, engine: Engine, clock: Clock, **ports: Unpack[Ports]) -> None:
        self._settings = settings
        self._engine = engine
        self._clock = clock
        self._ports = ports
        self._vault = Vault(Vault.new_key())

    def __call__(
        self,
        *,
        engine: Engine | None = None,
        clock: Clock | None = None,
        run_sync: RunSync = run_inline,
        **ports: Unpack[Ports],
    ) -> AbstractAsyncContextManager[Services]:
        """`engine`, `clock` and `ports` replace what the opener was made with."""
        engine = engine or self._engine
        is_on_loop = run_sync is run_inline or isinstance(run_sync, OnTheLoop)
        if is_on_loop and _is_migrated(engine):
            database: Database = _InlineDatabase(engine, run_sync=run_sync)
        else:
            database = Database(engine, run_sync=run_sync, readers=1 if run_sync is run_inline else 4)
        return open_services(self._settings, database, self._vault, clock or self._clock, **(self._ports | ports))


def opener_in(folder: Path) -> ServicesOpener:
    """For property tests, which need a store for each example. Fixtures are made once for all examples of a test."""
    return ServicesOpener(Settings(state_dir=folder), new_engine(folder / "store.sqlite"), FakeClock(NOW_MS).clock)


def new_engine(path: Path) -> SqliteEngine:
    """SQLite on a file that has the schema already and does not wait for the disk.

    What a power cut loses is tested in tests/e2e/test_kill.py, and the steps of the schema in tests/storage.
    """
    if not path.exists():
        make_store(path)
    return _MigratedEngine(path, synchronous="off")


def make_store(path: Path) -> None:
    """Write the file of a store right after the steps of the schema, which take ten times as long as this copy."""
    path.write_bytes(_empty_store())


class _MigratedEngine(SqliteEngine):
    def migrate(self) -> None:
        """Nothing is to do: the file was made with the whole schema. To look for steps takes three milliseconds."""


def _is_migrated(engine: Engine) -> bool:
    return isinstance(engine.engine if isinstance(engine, BreakableEngine) else engine, _MigratedEngine)


class _InlineDatabase(Database):
    """Reads and writes through one connection, because on the event loop they follow each other.

    A connection parses the whole schema when it is first used: that and its end take a tenth of a test with services.
    """

    def _open(self) -> None:
        self._writer = Transaction(self._engine.open(read_only=False))
        self._readers = [self._writer]

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await super().read(partial(_changing_nothing, work))


def _changing_nothing(work: Callable[[Transaction], T], transaction: Transaction) -> T:
    """The product's readers refuse to write (`query_only`); this connection has to be able to."""
    connection = transaction.connection
    assert isinstance(connection, SqliteConnection | BreakableConnection)
    before = connection.driver.total_changes
    try:
        return work(transaction)
    finally:
        assert connection.driver.total_changes == before, f"{work} writes in a read"


@cache
def _empty_store() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        SqliteEngine(path, synchronous="off").migrate()
        return path.read_bytes()
