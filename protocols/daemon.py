"""The daemon: opens the store, builds the services, starts every listener, and stops in the reverse order.

Three nurseries stand inside each other: the workers outlive the connections, and the connections outlive the listeners.
A stop closes the listeners, gives connections their grace period, drains the journal and lets the workers save where
they stand.
"""

import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Final

import structlog
import trio

from broker.cluster.facts import FactLog
from broker.cluster.keeper import AWAY, AWAY_SECONDS
from broker.cluster.leases import Leases
from broker.cluster.reports import LogHeads, NodeReport
from broker.core import Core
from broker.device_management.registry import shipped_models
from broker.services import Services, open_services
from broker.trace.origin import on_whose_account
from config.settings import Address, Settings
from config.shown_command import shown_command
from protocols.listening import listen, tls_contexts
from protocols.operation import systemd
from protocols.operation.draining import Draining
from protocols.operation.interpreter import (
    collect_garbage_seldom,
    freeze_objects,
    give_back_large_memory,
    loop_statistics,
    switch_threads_often,
)
from protocols.operation.reload import Load, Reloading, renew_forwards, renew_homes, renew_limits
from protocols.operation.standby import Serving, serving_alone, serving_together, when_the_store_answers
from protocols.operation.start_check import check_store
from protocols.operation.state import StateDirectory, lock_state, read_state
from protocols.operation.store_copies import forget_copies
from protocols.operation.time_sync import is_clock_synchronized
from protocols.outbound.identity_providers import identity_providers
from protocols.outbound.stripe import payment_processor
from protocols.outbound.tls import client_context
from protocols.outbound.tracing import MessageTraces, otlp_provider
from protocols.outbound.ways import leased_ways, ways_out_of
from protocols.streams.tls import RenewableContext
from storage.ballast import Ballast
from storage.database import Database
from storage.engines import StoreAnywhere, engine_of
from storage.engines.sqlite import SqliteEngine
from storage.outages import Outage

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
#: How long the end may take when trio itself has failed.
_TRIO_FAILS_SECONDS: Final = 10

_log = structlog.get_logger(__name__)

Ready = Callable[[Services, Mapping[str, Address]], Awaitable[None]]


async def run_daemon(
    settings: Settings, *, ready: Ready | None = None, stop: trio.Event | None = None, load: Load | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`.

    Args:
        settings: where and what to serve.
        ready: called once when everything listens, with the bound address of every listener by name.
        stop: ends the daemon as a signal would. A SIGINT after that ends the grace period of connections; a SIGTERM
            does not, because supervisors repeat theirs.
        load: reads the configuration again at SIGHUP; without it, SIGHUP ends the process, as it does by default.

    Raises:
        ListenerError: an address cannot be bound.
        StoreError: the store cannot be opened.
        SettingsError: a file that the settings name cannot be used, such as a certificate.
        StateError: the state directory cannot be used, or another daemon uses it.
    """
    _allow_many_connections()
    switch_threads_often()
    collect_garbage_seldom()
    give_back_large_memory()
    with ends_without_trio():
        await _run_until_begun(Reloading(settings, load), ready, stop)


@contextmanager
def ends_without_trio() -> Iterator[None]:
    """End the process soon, by SIGALRM, when trio itself fails within the block, as it does without memory.

    Its loop hears of no thread any more then: the wait for the writer's commit would keep the process for ever.
    """
    is_over = False

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not is_over:
                signal.alarm(_TRIO_FAILS_SECONDS)

    trio.lowlevel.spawn_system_task(watch)
    try:
        yield
    finally:
        is_over = True


async def _run_until_begun(reloading: Reloading, ready: Ready | None, stop: trio.Event | None) -> None:
    """Run the daemon, once more for each time that its database was away before it had begun."""
    outage, begun = Outage("begins_again", "begun"), trio.Event()
    while True:
        try:
            return await _run(reloading, ready, stop, partial(_has_begun, begun, outage))
        except (BaseExceptionGroup, *AWAY) as error:
            # Nurseries wrap errors in groups. If there is one error only, the caller gets it unwrapped.
            leaf = _only_leaf(error)
            if begun.is_set() or not isinstance(leaf, AWAY):
                raise leaf from error
            if outage.failed(leaf):  # before it was waited for, or after it had answered
                systemd.tell_of_wait(f"Waits for the database: {leaf}")
            reloading = Reloading(reloading.settings, reloading.load)
        await trio.sleep(AWAY_SECONDS)


def _has_begun(begun: trio.Event, outage: Outage) -> None:
    begun.set()
    outage.succeeded()


def _only_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _run(
    reloading: Reloading, ready: Ready | None, stop: trio.Event | None, has_begun: Callable[[], None]
) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(_handlers_restored())
        hang_ups = None if reloading.load is None else stack.enter_context(trio.open_signal_receiver(signal.SIGHUP))
        # A take-over waits for nothing that could be made before.
        contexts = tls_contexts(reloading.settings, reloading)
        if (state := await _state(stack, reloading, hang_ups, contexts[0], stop)) is None:
            _log.info("stopped")
            return
        settings = reloading.settings
        engine = engine_of(settings, progress=systemd.tell_of_upgrade)
        tls = client_context(settings.outbound.ca_file)  # one for all: the system's authorities take 20 ms to read
        ways_out, providers, processor = (
            ways_out_of(settings, tls),
            identity_providers(settings, tls),
            payment_processor(settings, tls),
        )
        shipped_models()
        ballast, serving = None, None
        if isinstance(engine, SqliteEngine):  # the lock of the state directory keeps others away
            ballast = Ballast(settings.state_dir / "ballast")
        else:
            # Nothing that the daemon keeps may be read before.
            serving = await stack.enter_async_context(
                (serving_alone if settings.cluster.nodes == "one" else serving_together)(
                    engine, reloading, hang_ups, contexts[0], stop, check=partial(check_store, settings)
                )
            )
            if serving is None:
                _log.info("stopped")
                return
            settings = reloading.settings
        leases, peers = Leases() if serving is None else serving.leases, _peers(settings, engine, stack)
        database = Database(engine, asked_by=on_whose_account, ballast=ballast, tell=systemd.tell_of_upgrade)
        traces = None
        if settings.tracing.endpoint:
            traces = MessageTraces(otlp_provider(settings.tracing), settings.tracing.per_minute)
            stack.push_async_callback(traces.end)
            traces.before_routing(database)
        services = await stack.enter_async_context(
            open_services(
                settings,
                database,
                state.vault,
                None if serving is None or serving.membership is None else serving.membership.clock.clock(),
                providers=providers,
                processor=processor,
                is_clock_synchronized=is_clock_synchronized,
                leases=leases,
                peers=peers,
                **(ways_out if serving is None else leased_ways(ways_out, leases, is_alone=peers is None)),
                tell_of_upgrade=systemd.tell_of_upgrade,
            )
        )
        has_begun()
        reloading.others += [partial(renew, services) for renew in (renew_limits, renew_homes, renew_forwards)]
        _observe(services.core, engine)
        if traces is not None:
            traces.after_routing(database, services.messages.ingest)
        # Install signal handlers before READY=1: the supervisor may stop the daemon as soon as it gets that. When the
        # receiver ends, trio raises again what it has not told, which must not end the process before the store closes.
        for number in _STOPS:
            signal.signal(number, _ignore)
        signals = stack.enter_context(trio.open_signal_receiver(*_STOPS))
        draining = _draining(serving, services, reloading)
        async with trio.open_nursery() as workers:
            workers.start_soon(forget_copies, state.database)
            _begin_beside(workers, serving, services, engine)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as listeners:
                    addresses = await listen(services, settings, listeners, connections, reloading, contexts, draining)
                    services.core.site.listens_on(addresses)
                    freeze_objects()
                    if hang_ups is not None:  # a signal that came before waits
                        workers.start_soon(reloading.reload_at, hang_ups)
                    systemd.notify("READY=1\nSTATUS=Listening")
                    if ready is not None:
                        await ready(services, addresses)
                    await _wait_for_stop(signals, stop, draining)
                    systemd.notify("STOPPING=1")
                    _log.info("stopping")
                    # A second Ctrl-C ends the grace period. The workers end after it, as always, and save.
                    workers.start_soon(_cancel_at_interrupt, signals, connections.cancel_scope)
                    listeners.cancel_scope.cancel()
                services.core.life.stop()
                services.routing.connections.close_all()
                connections.cancel_scope.deadline = trio.current_time() + reloading.settings.grace_seconds
            workers.cancel_scope.cancel()
    _log.info("stopped")


async def _state(
    stack: AsyncExitStack,
    reloading: Reloading,
    hang_ups: AsyncIterator[int] | None,
    context: RenewableContext | None,
    stop: trio.Event | None,
) -> StateDirectory | None:
    """The state directory, which is locked until the end of `stack`; None: the daemon was stopped before."""
    settings = reloading.settings
    read = partial(read_state, settings, stack.enter_context(lock_state(settings)))
    if settings.storage.is_postgresql:  # without a key the database is asked for secrets of one
        state = await when_the_store_answers(read, reloading, hang_ups, context, stop)
    else:
        state = read()
    if state is not None and len(state.keys) > 1:
        _log.warning("key_rotation_interrupted", finish=f"stop the daemon and run: {shown_command('key rotate')}")
    return state


def _peers(settings: Settings, engine: StoreAnywhere, stack: AsyncExitStack) -> FactLog | None:
    """Hears of what other nodes write; None: there is one node."""
    if settings.cluster.nodes == "one" or isinstance(engine, SqliteEngine):
        return None
    from storage.engines.postgresql_listening import Listening  # noqa: PLC0415 - without PostgreSQL there is no psycopg

    listening = Listening(engine.target, engine.instance)
    stack.callback(listening.close)
    _log.info("serves_together", node=settings.cluster.name, workers=settings.cluster.workers)
    return FactLog(engine.instance, settings.cluster.name, settings.cluster.patience_seconds, listening)


def _begin_beside(workers: trio.Nursery, serving: Serving | None, services: Services, engine: StoreAnywhere) -> None:
    """Begin what goes on beside the capabilities for as long as the daemon serves."""
    workers.start_soon(_look_after_others, serving, services)
    workers.start_soon(systemd.feed_watchdog, services.core.database, engine.damage.is_met)
    if serving is not None:
        serving.starting.cancel()


async def _look_after_others(serving: Serving | None, services: Services) -> None:
    if serving is None or (member := serving.membership) is None:
        return
    core = services.core
    await member.look_after_forever(core.database, core.leases, services.wills.adopt)


def _observe(core: Core, engine: StoreAnywhere) -> None:
    core.life.observe("loop", loop_statistics)
    core.life.observe("damage", engine.damage.statistics)
    if not isinstance(engine, SqliteEngine):
        core.life.observe("database", engine.contact.statistics)
        core.life.observe("node", core.leases.status)
        core.life.observe("leases", core.leases.statistics)


async def _wait_for_stop(signals: AsyncIterator[int], stop: trio.Event | None, draining: Draining) -> None:
    """Return when the daemon is to stop. A node among several moves its connections before, unless interrupted."""
    async with trio.open_nursery() as nursery:
        if stop is not None:
            nursery.start_soon(_cancel_when, stop, nursery.cancel_scope)
        nursery.start_soon(_hear_signals, signals, draining, nursery.cancel_scope)
        await draining.wanted.wait()
        await draining.run()
        nursery.cancel_scope.cancel()


async def _hear_signals(signals: AsyncIterator[int], draining: Draining, scope: trio.CancelScope) -> None:
    async for number in signals:
        if number != signal.SIGTERM or not draining.begin():  # a supervisor repeats its SIGTERM
            scope.cancel()
            return


def _draining(serving: Serving | None, services: Services, reloading: Reloading) -> Draining:
    member = None if serving is None else serving.membership
    if member is not None:
        member.report = partial(_report, services)
    return Draining(services.core.life, member, lambda: reloading.settings)


def _report(services: Services, heads: LogHeads) -> NodeReport:
    """The report of this node to the others."""
    peers, follower = services.core.peers, services.messages.follower
    followed = None if follower is None else follower.statistics()
    position = heads.position if followed is None or not followed.reads_messages else followed.position
    heard = heads.fact if peers is None else peers.statistics().heard
    return NodeReport(
        connections=services.routing.connections.statistics().links,
        behind_rows=max(0, heads.position - position),
        behind_facts=max(0, heads.fact - heard),
    )


@contextmanager
def _handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The daemon stops already."""


async def _cancel_at_interrupt(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        if number == signal.SIGINT:
            _log.info("stopping_at_once")
            scope.cancel()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _allow_many_connections() -> None:
    """Raise the limit of open files, one per connection: the soft limit of 1024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a sandbox may forbid it; then fewer can connect
        _log.warning("open_files_limited", limit=soft, reason=str(error))
