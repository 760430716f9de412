"""The one place where tests build a store and open services on it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypedDict, Unpack

from trio.testing import wait_all_tasks_blocked

from broker.accounts.provider_port import Providers
from broker.alarms.ways import AlarmWays
from broker.clock import Clock
from broker.connectors.port import ThirdParty
from broker.forwarding.port import Upstreams
from broker.mail import MailTransport
from broker.models.learner import Learner
from broker.monetization.port import Processor
from broker.rules.sending.requests import RuleRequests
from broker.secrets import Vault
from broker.services import Services, open_services
from broker.subscriptions.port import Callbacks, Streams
from config.settings import Settings
from storage.database import Database
from storage.engines.port import StoreEngine
from tests.callbacks import FakeStreams
from tests.factories import NOW_MS
from tests.fakes import FakeClock, HeldRunner, OnTheLoop, RunSync, on_loop, run_inline
from tests.stores import InlineDatabase, MigratedEngine, is_migrated


class Ports(TypedDict, total=False):
    """The ways out of the machine. A test that names none has services without mail, providers and payments.

    Streams are there, because a subscription to a stream is the one that needs no handshake.
    """

    mail_transport: MailTransport
    providers: Providers
    third_party: ThirdParty
    processor: Processor
    rule_requests: RuleRequests
    learner: Learner
    callbacks: Callbacks
    streams: Streams
    alarm_ways: AlarmWays
    upstreams: Upstreams


class ServicesOpener:
    """Opens services on one store as often as a test calls: each call after the first is a restart of the daemon.

    Blocking work runs on the event loop (`run_inline`), unless the call brings its own `run_sync`.
    """

    def __init__(self, settings: Settings, engine: StoreEngine, clock: Clock, **ports: Unpack[Ports]) -> None:
        self._settings = settings
        self._engine = engine
        self._clock = clock
        self._ports: Ports = {"streams": FakeStreams()}
        self._ports |= ports
        self._vault = Vault(Vault.new_key())

    def __call__(
        self,
        *,
        settings: Settings | None = None,
        engine: StoreEngine | None = None,
        clock: Clock | None = None,
        run_sync: RunSync = run_inline,
        **ports: Unpack[Ports],
    ) -> AbstractAsyncContextManager[Services]:
        """`settings`, `engine`, `clock` and `ports` replace what the opener was made with."""
        engine = engine or self._engine
        is_on_loop = run_sync is run_inline or isinstance(run_sync, OnTheLoop)
        if is_on_loop and is_migrated(engine):
            database: Database = InlineDatabase(engine, worker=on_loop(run_sync), is_held=run_sync is not run_inline)
        else:
            database = Database(engine, worker=on_loop(run_sync), readers=1 if run_sync is run_inline else 4)
        opening = open_services(
            settings or self._settings, database, self._vault, clock or self._clock, **(self._ports | ports)
        )
        return _begun(opening) if isinstance(run_sync, HeldRunner) else opening


@asynccontextmanager
async def _begun(opening: AbstractAsyncContextManager[Services]) -> AsyncIterator[Services]:
    """The workers have taken their first steps: what a test holds from now on is what it does itself."""
    async with opening as services:
        await wait_all_tasks_blocked()
        yield services


def opener_in(folder: Path) -> ServicesOpener:
    """For property tests, which need a store for each example. Fixtures are made once for all examples of a test."""
    return ServicesOpener(Settings(state_dir=folder), MigratedEngine(folder / "store.sqlite"), FakeClock(NOW_MS).clock)
