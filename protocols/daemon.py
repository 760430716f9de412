"""The daemon: opens the store, builds the services, starts every listener, and stops in the reverse order.

Three nurseries stand inside each other: the workers outlive the connections, and the connections outlive the listeners.
A stop closes the listeners, gives connections their grace period, drains the journal and lets the workers save where
they stand.
"""

import resource
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, TypedDict

import structlog
import trio

from broker.alarms.ways import AlarmWays
from broker.cluster.facts import FactLog
from broker.cluster.keeper import AWAY, AWAY_SECONDS
from broker.cluster.leases import LeaseName, Leases
from broker.cluster.reports import LogHeads, NodeReport
from broker.connectors.port import ThirdParty
from broker.core import Core
from broker.device_management.objects import ObjectMap
from broker.device_management.registry import shipped_models
from broker.device_management.sessions import ResourcePath
from broker.forwarding.port import Upstreams
from broker.mail import MailTransport
from broker.rules.sending.requests import RuleRequests
from broker.services import Services, open_services
from broker.subscriptions.port import Callbacks, Streams
from broker.trace.origin import listening_as, on_whose_account
from config.loading import SettingsError
from config.settings import Address, Settings, Tls
from config.shown_command import shown_command
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.listener import DtlsListener, serve_coap_dtls
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.kinds import Kind
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.lwm2m.streams import serve_lwm2m_tcp
from protocols.coap.server import serve_coap
from protocols.control.server import serve_control
from protocols.errors import ListenerError
from protocols.http.server import serve_http
from protocols.metrics.vitals import Vitals
from protocols.mqtt.server import serve_mqtt, serve_mqtt_connection
from protocols.operation import systemd
from protocols.operation.draining import Draining
from protocols.operation.interpreter import (
    collect_garbage_seldom,
    freeze_objects,
    give_back_large_memory,
    loop_statistics,
    switch_threads_often,
)
from protocols.operation.operating import DaemonMachine
from protocols.operation.reload import Load, Reloading, renew_forwards, renew_homes, renew_limits
from protocols.operation.standby import Serving, serving_alone, serving_together, when_the_store_answers
from protocols.operation.start_check import check_store
from protocols.operation.state import StateDirectory, lock_state, read_state
from protocols.operation.store_copies import forget_copies
from protocols.operation.time_sync import is_clock_synchronized
from protocols.outbound.alarms import alarm_ways
from protocols.outbound.callbacks import http_callbacks
from protocols.outbound.connectors import third_party
from protocols.outbound.forwarding import upstreams
from protocols.outbound.identity_providers import identity_providers
from protocols.outbound.leased import (
    LeasedAlarmWays,
    LeasedCallbacks,
    LeasedMails,
    LeasedRuleRequests,
    LeasedStreams,
    LeasedThirdParty,
    LeasedUpstreams,
)
from protocols.outbound.mail import mail_transport
from protocols.outbound.rules import rule_requests
from protocols.outbound.streams import cloud_streams
from protocols.outbound.stripe import payment_processor
from protocols.outbound.tls import client_context
from protocols.outbound.tracing import MessageTraces, otlp_provider
from protocols.streams.hub import Hub
from protocols.streams.inherited import inherited_sockets, pass_sockets
from protocols.streams.tls import PeerContext, RenewableContext
from protocols.websocket.server import serve_websocket_connection
from storage.ballast import Ballast
from storage.database import Database
from storage.engines import StoreAnywhere, engine_of
from storage.engines.sqlite import SqliteEngine
from storage.outages import Outage

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
#: How long the end may take when trio itself has failed.
_TRIO_FAILS_SECONDS: Final = 10

_log = structlog.get_logger(__name__)

_Contexts = tuple[RenewableContext | None, RenewableContext | None, RenewableContext | None]
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
        contexts = _contexts(reloading.settings, reloading)
        if (state := await _state(stack, reloading, hang_ups, contexts[0], stop)) is None:
            _log.info("stopped")
            return
        settings = reloading.settings
        engine = engine_of(settings, progress=systemd.tell_of_upgrade)
        tls = client_context(settings.outbound.ca_file)  # one for all: the system's authorities take 20 ms to read
        ways_out, providers, processor = (
            _ways_out(settings, tls),
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
                **(ways_out if serving is None else _leased(ways_out, leases, is_alone=peers is None)),
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
                    addresses = await _listen(services, settings, listeners, connections, reloading, contexts, draining)
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


class _WaysOut(TypedDict):
    mail_transport: MailTransport | None
    third_party: ThirdParty | None  # None: third parties are not asked
    rule_requests: RuleRequests
    callbacks: Callbacks
    streams: Streams | None
    alarm_ways: AlarmWays
    upstreams: Upstreams


def _ways_out(settings: Settings, tls: ssl.SSLContext) -> _WaysOut:
    """The ways out of the machine that workers use. Raises SettingsError."""
    return {
        "mail_transport": mail_transport(settings),
        "third_party": third_party(settings, tls),
        "rule_requests": rule_requests(settings, tls),
        "callbacks": http_callbacks(settings, tls),
        "streams": cloud_streams(settings),
        "alarm_ways": alarm_ways(settings, tls),
        "upstreams": upstreams(settings),
    }


def _leased(ways: _WaysOut, leases: Leases, *, is_alone: bool) -> _WaysOut:
    """Ways out of a daemon whose place another one may take. Each of several nodes asks third parties."""
    mails, streams, third = ways["mail_transport"], ways["streams"], ways["third_party"]
    subscriptions = leases.of(LeaseName.SUBSCRIPTIONS)
    lease = leases.of(LeaseName.CONNECTORS) if is_alone else leases.here
    return {
        "mail_transport": None if mails is None else LeasedMails(mails, leases.of(LeaseName.MAILS)),
        "third_party": None if third is None else LeasedThirdParty(third, lease),
        "rule_requests": LeasedRuleRequests(ways["rule_requests"], leases.of(LeaseName.RULES)),
        "callbacks": LeasedCallbacks(ways["callbacks"], subscriptions),
        "streams": None if streams is None else LeasedStreams(streams, subscriptions),
        "alarm_ways": LeasedAlarmWays(ways["alarm_ways"], leases.of(LeaseName.MAILS)),
        "upstreams": LeasedUpstreams(ways["upstreams"], leases.of(LeaseName.FORWARDS)),
    }


async def _listen(
    services: Services,
    settings: Settings,
    listeners: trio.Nursery,
    connections: trio.Nursery,
    reloading: Reloading,
    contexts: _Contexts,
    draining: Draining,
) -> dict[str, Address]:
    hub = Hub(connections, services.core.life)
    carried = partial(serve_mqtt_connection, services, hub=hub)
    websocket = partial(serve_websocket_connection, services, mqtt=carried, hub=hub)
    vitals = Vitals(services.core)
    reloading.others.append(vitals.renew)
    tls, optional, required = contexts
    http, https = (
        partial(serve_http, services, connections=connections, websocket=websocket, ssl_context=context, vitals=vitals)
        for context in (None, tls)
    )
    secure = partial(
        serve_http,
        services,
        connections=connections,
        websocket=websocket,
        ssl_context=required,
        is_secure=True,
        vitals=vitals,
    )
    own_accounts = partial(
        serve_http,
        services,
        connections=connections,
        websocket=None,
        ssl_context=tls,
        is_accounts=True,
        vitals=vitals,
    )
    mqtt, mqtts = (
        partial(serve_mqtt, services, connections=connections, ssl_context=context) for context in (None, optional)
    )
    endpoint, dtls = CoapEndpoint(services, guard=new_guard()), DtlsListener(services)
    coaps = partial(
        serve_coap_dtls,
        services,
        listener=dtls,
        certificate=settings.tls.certificate or Path(),
        key=settings.tls.key or Path(),
        second=settings.tls.second,
    )
    management = services.device_management
    lwm2m = Lwm2mServer(services, management.registrations, described=partial(_kind_described, management.objects))
    lwm2m_dtls = DtlsListener(services, endpoint=Lwm2mEndpoint(lwm2m), priorities=LWM2M_PRIORITIES)
    lwm2m_tcp, lwm2m_tls = (
        partial(serve_lwm2m_tcp, lwm2m, connections=connections, ssl_context=context) for context in (None, optional)
    )
    if any((settings.lwm2m.dtls_bind, settings.lwm2m.tcp_bind, settings.lwm2m.tls_bind)):
        await listeners.start(lwm2m.run)
    addresses: dict[str, Address] = {}
    closed: dict[str, str] = {}
    rows: tuple[tuple[str, Address | None, Callable[..., Awaitable[None]]], ...] = (
        ("http", settings.http.bind, http),
        ("https", settings.http.tls_bind, https),
        ("accounts", settings.accounts.tls_bind, own_accounts),
        ("secure", settings.secure.tls_bind, secure),
        ("mqtt", settings.mqtt.bind, mqtt),
        ("mqtts", settings.mqtt.tls_bind, mqtts),
        ("coap", settings.coap.bind, partial(serve_coap, services, endpoint=endpoint)),
        ("coaps", settings.coap.dtls_bind, coaps),
        (
            "lwm2m_dtls",
            settings.lwm2m.dtls_bind,
            partial(lwm2m_dtls.serve, first=settings.tls.first, second=settings.tls.second),
        ),
        ("lwm2m_tcp", settings.lwm2m.tcp_bind, lwm2m_tcp),
        ("lwm2m_tls", settings.lwm2m.tls_bind, lwm2m_tls),
    )
    try:
        given = inherited_sockets([name for name, bind, _ in rows if bind is not None])
    except OSError as error:
        raise ListenerError(error.strerror) from error
    for name, bind, serve in rows:
        if bind is None:
            continue
        listening_as(name)  # its tasks inherit the name
        pass_sockets(given.get(name, ()))
        try:
            addresses[name] = await listeners.start(serve, bind)
        except OSError as error:
            raise ListenerError(
                f"{name} cannot listen on {error.filename or bind}: {error.strerror or error}"
            ) from error
        except DtlsUnavailable as error:  # everything else works without it, so it must not keep the daemon down
            closed[name] = str(error)
            _log.error("dtls_disabled", listener=name, reason=str(error))
    listening_as("")
    pass_sockets(())
    for name, listener in (("coaps", dtls), ("lwm2m_dtls", lwm2m_dtls)):
        if name in addresses:
            reloading.certificates.append(partial(_prepare_dtls, listener))
    counters = vitals.counters
    if "coap" in addresses:
        counters["coap"] = endpoint.statistics
    if "coaps" in addresses:
        counters |= {"coaps": dtls.endpoint.statistics, "coaps handshakes": dtls.statistics}
    if addresses.keys() & {"lwm2m_dtls", "lwm2m_tcp", "lwm2m_tls"}:
        counters["lwm2m"] = lwm2m.statistics
    if "lwm2m_dtls" in addresses:
        counters |= {"lwm2m sessions": lwm2m_dtls.endpoint.statistics, "lwm2m handshakes": lwm2m_dtls.statistics}
    await listeners.start(partial(serve_control, services, settings.state_dir, counters=counters, draining=draining))
    vitals.listens(closed)
    services.operating.machine = DaemonMachine(settings, vitals, addresses)
    return addresses


def _contexts(settings: Settings, reloading: Reloading) -> _Contexts:
    """TLS contexts of the listeners: without client certificates, with optional ones, with required ones.

    None where no listener needs it. The certificate is checked when any listener uses it, also one of DTLS.
    """
    has_dtls = settings.coap.dtls_bind is not None or (settings.lwm2m.dtls_bind is not None and settings.tls.first)
    needing = settings.http, settings.accounts, settings.secure, settings.mqtt, settings.lwm2m
    needs_any = bool(has_dtls) or any(listener.tls_bind is not None for listener in needing)
    optional = settings.mqtt.tls_bind or settings.lwm2m.tls_bind
    found: list[RenewableContext | None] = []
    for needed, make in (
        (needs_any, _tls),
        (optional is not None, partial(_tls_with_peers, required=False)),
        (settings.secure.tls_bind is not None, partial(_tls_with_peers, required=True)),
    ):
        context = RenewableContext(make, settings.tls) if needed else None
        found.append(context)
        if context is not None:
            reloading.certificates.append(context.prepare)
    plain, with_optional, with_required = found
    return plain, with_optional, with_required


def _tls(tls: Tls) -> ssl.SSLContext:
    certificate, key = tls.certificate, tls.key
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate or Path(), key)
        if tls.second is not None:
            context.load_cert_chain(*tls.second)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"tls: cannot use certificate {certificate} with key {key}: {error}") from error
    return context


def _tls_with_peers(tls: Tls, *, required: bool) -> PeerContext:
    """A TLS context for listeners that ask their peers for certificates, too."""
    try:
        return PeerContext(*(tls.first or (Path(), Path())), required=required, second=tls.second)
    except OSError as error:
        raise SettingsError(f"tls: {error}") from error


def _prepare_dtls(listener: DtlsListener, tls: Tls) -> Callable[[], None]:
    return listener.prepare(tls.first, tls.second)


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


def _kind_described(objects: ObjectMap, path: ResourcePath) -> Kind | None:
    """The type of a resource according to the model files of device management."""
    type_ = objects.type_at(path)
    return None if type_ is None else Kind.__members__.get(type_.name)
