"""Serving alone: a daemon over PostgreSQL takes the lease of the store before it reads anything else, and keeps it.

While another node has it, this one stands by, and while the database is away, it waits. It opens the ports of HTTP
alone then, so that a balancer or a supervisor can ask for its health, and no port for devices, so that devices go where
they are served at once. Sockets for devices that systemd has opened end their connections.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio

from broker.cluster.keeper import AWAY, AWAY_SECONDS, DAEMON, Keeper
from broker.cluster.leases import LeaseName, Leases
from broker.cluster.membership import SEVERAL, NodeMembership
from config.settings import Settings
from protocols.errors import ListenerError, StateError
from protocols.operation import systemd
from protocols.operation.health_ports import DATABASE_AWAY, STANDS_BY, Places, StartingAnswers, refuse, serve_health
from protocols.operation.interpreter import freeze_objects
from protocols.operation.reload import Reloading
from protocols.streams.inherited import NAMES, InheritedError, copies_of_inherited, pass_sockets
from protocols.streams.tls import TlsContext
from storage.lease_table import LeaseTable
from storage.leases import HeldLease, LeaseRecord
from storage.migrations import VERSION
from storage.outages import Outage
from storage.sql import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.engines.postgresql import PostgresqlEngine
    from storage.engines.postgresql_connection import PostgresqlConnection

#: A new connection may take a second, also in tests with less patience.
_LEAST_PATIENCE_SECONDS: Final = 2.0


T = TypeVar("T")
_H = TypeVar("_H", HeldLease, "Sequence[HeldLease]")
#: Stands between the name of a node and a command that has the lease.
_OF_COMMAND: Final = " (command "
_LOOK_SECONDS: Final = 0.1
_log = structlog.get_logger(__name__)


class Serving:
    """The right to serve, which this daemon has."""

    def __init__(self, leases: Leases, membership: NodeMembership | None = None) -> None:
        self.leases = leases
        #: As one of several nodes; None: as the only one.
        self.membership = membership
        #: Feeds systemd's watchdog until the store itself does.
        self.starting = trio.CancelScope()


@asynccontextmanager
async def serving_alone(
    engine: "PostgresqlEngine",
    reloading: Reloading,
    hang_ups: AsyncIterator[int] | None,
    context: TlsContext | None,
    stop: trio.Event | None,
    *,
    check: Callable[[], None],
) -> AsyncIterator[Serving | None]:
    """Wait for the lease of the store, and keep it until the block has ended. None: the daemon was stopped before.

    Args:
        engine: writes nothing from then on that another daemon does not know of.
        reloading: has the settings, and renews them at each of `hang_ups` while the daemon waits.
        context: of HTTP with TLS.
        stop: ends the wait as a signal would.
        check: raises what would keep the daemon from serving this store; before it stands by, and in a thread.

    Raises:
        FencedError: within the block: another node has taken the lease over.
        ListenerError: an address cannot be bound.
        StoreError: the store cannot be used, and waiting does not help.
    """
    cluster = reloading.settings.cluster
    async with _leases_of(engine, cluster.name) as table:
        keeper = Keeper(table, cluster.name, engine.instance, cluster.lease_seconds)
        if (held := await _lease(engine, keeper.take, reloading, hang_ups, context, stop, check)) is None:
            yield None
            return
        engine.fence_with(held)
        serving = Serving(Leases(keeper))
        async with _kept(engine, serving, keeper.keep_forever, keeper.give_back):
            yield serving


@asynccontextmanager
async def serving_together(
    engine: "PostgresqlEngine",
    reloading: Reloading,
    hang_ups: AsyncIterator[int] | None,
    context: TlsContext | None,
    stop: trio.Event | None,
    *,
    check: Callable[[], None],
) -> AsyncIterator[Serving | None]:
    """As `serving_alone`, as one of several nodes. A daemon that serves alone is waited for.

    Raises as `serving_alone`; StoreError: a node of another version serves.
    """
    cluster = reloading.settings.cluster
    async with _leases_of(engine, cluster.name) as table:
        works = [one for one in LeaseName if {"all", one.value} & cluster.may_do]
        member = NodeMembership(table, cluster.name, engine.instance, cluster.lease_seconds, VERSION, works=works)

        async def join(waiting: _Waiting) -> "Sequence[HeldLease]":
            await _upgrade_alone(engine, Keeper(table, cluster.name, engine.instance, cluster.lease_seconds), waiting)
            return await member.join(waiting)

        if (held := await _lease(engine, join, reloading, hang_ups, context, stop, check)) is None:
            yield None
            return
        engine.is_shared = True
        engine.fence_with(*held)
        serving = Serving(Leases(member, are_held=False), member)
        async with _kept(engine, serving, member.keep_forever, member.leave):
            yield serving


async def _upgrade_alone(engine: "PostgresqlEngine", keeper: Keeper, waiting: "_Waiting") -> None:
    """Bring the schema to this version when no node serves any more: those of the version before use the former one."""
    while not await _when_answered(engine.is_current, waiting):
        await keeper.take(waiting)
        async with _given_back(keeper.keep_forever, keeper.give_back):
            await _when_answered(engine.migrate, waiting)


@asynccontextmanager
async def _leases_of(engine: "PostgresqlEngine", stands_by_as: str = "") -> AsyncIterator[LeaseTable]:
    table = LeaseTable(engine, end_sessions=engine.end_sessions, look_around=engine.look_around)
    engine.stands_by_as = stands_by_as
    try:
        yield table
    finally:
        with trio.CancelScope(shield=True):
            await table.close()


@asynccontextmanager
async def _kept(
    engine: "PostgresqlEngine",
    serving: Serving,
    keep_forever: Callable[[], Awaitable[None]],
    give_back: Callable[[], Awaitable[None]],
) -> AsyncIterator[None]:
    """Within the block the lease is kept, and given back at its end."""
    engine.stands_by_as = ""
    async with _given_back(keep_forever, give_back) as nursery:
        nursery.start_soon(cut_silent_forever, engine)
        nursery.start_soon(_feed_watchdog, serving.starting)
        yield


@asynccontextmanager
async def _given_back(
    keep_forever: Callable[[], Awaitable[None]], give_back: Callable[[], Awaitable[None]]
) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_forever)
        try:
            yield nursery
        finally:
            with trio.CancelScope(shield=True):
                await give_back()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def alone_for_a_command(engine: "PostgresqlEngine", settings: Settings, command: str) -> AsyncIterator[None]:
    """As `serving_alone`, for a command that writes as a daemon does.

    Raises StateError: a daemon serves, or another command runs, on this machine or another one.
    """
    cluster = settings.cluster
    # No other process has this name, so that it does not replace a command of a machine with the same one.
    node = f"{cluster.name}{_OF_COMMAND}{command} {engine.instance})"
    async with _leases_of(engine) as table:
        keeper = Keeper(table, node, engine.instance, cluster.lease_seconds)
        await table.prepare(engine.prepare_leases)
        if (held := await _lease_of_command(keeper, table)) is None:
            raise StateError(f"{engine}: {_who_has_it(await table.find(DAEMON))}")
        engine.fence_with(held)
        async with _given_back(keeper.keep_forever, keeper.give_back):
            yield


async def _lease_of_command(keeper: Keeper, table: LeaseTable) -> HeldLease | None:
    """The lease; None: a daemon has it, or a command that runs. One that was killed does not renew its lease, whose end
    is waited for."""
    first: LeaseRecord | None = None
    while (held := await keeper.try_to_take()) is None:
        found = await table.find(DAEMON)
        if found is None or found.is_given_back:
            continue
        if _OF_COMMAND not in found.node or (
            first is not None and (found.epoch, found.until) != (first.epoch, first.until)
        ):
            return None
        first = first or found
        await trio.sleep(_LOOK_SECONDS)
    return held


def _who_has_it(holder: LeaseRecord | None) -> str:
    if holder is not None and holder.node == SEVERAL:
        return "several nodes serve this store: give the command on one of them, or stop them all"
    node, is_command, command = ("another node" if holder is None else holder.node).partition(_OF_COMMAND)
    if not is_command:
        return f"node {node} serves this store: give the command there, or stop the daemon"
    return f"the command `{command.rpartition(' ')[0]}` runs on this store, of node {node}: wait until it has ended"


async def cut_silent_forever(engine: "PostgresqlEngine") -> None:
    """Break the connections that wait for an answer that will not come.

    A proxy may lose what goes through a connection that stays open, and a server may stand still: TCP notices neither.
    So when an answer has not come for a quarter of the patience, the server is asked through another connection whether
    it still works for it. When it does not answer that for half of the patience, it stands still, and who waits is
    refused within the patience. When it answers, a long statement is left alone, and a connection for which the server
    does not work is broken after the patience.
    """
    patience = max(engine.contact.patience_seconds, _LEAST_PATIENCE_SECONDS)
    while True:
        await trio.sleep(patience / 8)
        if not (silent := engine.silent(patience / 4)):
            continue
        try:
            with trio.fail_after(patience / 2):
                busy = await trio.to_thread.run_sync(engine.are_busy, silent, abandon_on_cancel=True)
        except (StoreError, trio.TooSlowError):
            if cut := _still_silent(engine, silent, patience / 4):
                engine.stands_still(cut)
        else:
            cut = [one for one in _still_silent(engine, silent, patience) if one.name not in busy]
        if cut:
            if silent_ones := sum(
                not one.is_unreplicated for one in cut
            ):  # the others have a reason (nothing_is_stored)
                _log.warning("store_silent", connections=silent_ones, seconds=round(patience))
            for one in cut:
                one.cut()


def _still_silent(
    engine: "PostgresqlEngine", silent: "Sequence[PostgresqlConnection]", seconds: float
) -> "list[PostgresqlConnection]":
    now = engine.silent(seconds)
    return [one for one in silent if one in now]


async def _lease(
    engine: "PostgresqlEngine",
    take: "Callable[[_Waiting], Awaitable[_H]]",
    reloading: Reloading,
    hang_ups: AsyncIterator[int] | None,
    context: TlsContext | None,
    stop: trio.Event | None,
    check: Callable[[], None],
) -> _H | None:
    held: _H | None = None

    def prepare() -> None:
        check()  # not first at a take-over
        engine.prepare_leases()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut_silent_forever, engine)
        waiting = _Waiting(nursery, reloading, hang_ups, context, stop)
        await _when_answered(prepare, waiting)
        held = await take(waiting)
        nursery.cancel_scope.cancel()
    if waiting.problem is not None:
        raise waiting.problem
    if held is not None and waiting.has_begun:
        if waiting.has_stood_by:
            lease = held if isinstance(held, HeldLease) else held[-1]
            _log.info("taken_over", node=reloading.settings.cluster.name, epoch=lease.epoch)
        systemd.notify("STATUS=Takes over" if waiting.has_stood_by else "STATUS=Starts")
    return held


async def when_the_store_answers(
    function: Callable[[], T],
    reloading: Reloading,
    hang_ups: AsyncIterator[int] | None,
    context: TlsContext | None,
    stop: trio.Event | None,
) -> T | None:
    """The result of a function that reads the store, in a thread, again and again while the store is away; None: the
    daemon was stopped before. The arguments are those of `serving_alone`, and so is the wait.

    Raises ListenerError: an address cannot be bound; and as the function.
    """
    found: T | None = None
    async with trio.open_nursery() as nursery:
        waiting = _Waiting(nursery, reloading, hang_ups, context, stop)
        found = await _when_answered(function, waiting)
        nursery.cancel_scope.cancel()
    if waiting.problem is not None:
        raise waiting.problem
    return found


async def _when_answered(function: Callable[[], T], waiting: "_Waiting") -> T:
    """Run the function in a thread, again and again while the store is away."""
    while True:
        try:
            found = await trio.to_thread.run_sync(function, abandon_on_cancel=True)
        except AWAY as error:
            waiting.is_away(error)
        else:
            waiting.answers()
            return found
        await trio.sleep(AWAY_SECONDS)


class _Waiting:
    """The time before the daemon serves: another node does, or the database is away."""

    def __init__(
        self,
        nursery: trio.Nursery,
        reloading: Reloading,
        hang_ups: AsyncIterator[int] | None,
        context: TlsContext | None,
        stop: trio.Event | None,
    ) -> None:
        self._nursery = nursery
        self._reloading = reloading
        self._hang_ups = hang_ups
        self._context = context
        self._stop = stop
        self._outage = Outage("database_away", "database_answers")
        self._status = ""
        self._answers = STANDS_BY
        self.has_begun = self.has_stood_by = False
        self.problem: ListenerError | None = None

    def stands_by(self, holder: LeaseRecord) -> None:
        _log.info("stands_by", serves=holder.node, epoch=holder.epoch)
        self.has_stood_by = True
        self._begin(STANDS_BY, f"Stands by: node {holder.node} serves")

    def is_away(self, error: StoreError) -> None:
        is_told = self._outage.failed(error)  # not again within a minute, but who asks for the health is told the truth
        if is_told or self._answers is not DATABASE_AWAY:
            self._begin(DATABASE_AWAY, f"Waits for the database: {error}")

    def answers(self) -> None:
        self._outage.succeeded()

    def _begin(self, answers: StartingAnswers, status: str) -> None:
        self._answers, self._status = answers, " ".join(status.split())
        systemd.notify(f"READY=1\nSTATUS={self._status}")
        if self.has_begun:
            return
        self.has_begun = True
        freeze_objects()  # a take-over looks at what is new only
        self._nursery.start_soon(self._wait_for_stop)
        self._nursery.start_soon(_feed_watchdog, trio.CancelScope())
        self._nursery.start_soon(self._listen)
        if self._hang_ups is not None:
            self._nursery.start_soon(self._reloading.reload_at, self._hang_ups, lambda: self._status)

    async def _wait_for_stop(self) -> None:
        async with trio.open_nursery() as nursery:
            if self._stop is not None:
                nursery.start_soon(_cancel_when, self._stop, nursery.cancel_scope)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                await anext(signals)
                nursery.cancel_scope.cancel()
        systemd.notify("STOPPING=1")
        self._nursery.cancel_scope.cancel()

    async def _listen(self) -> None:
        http = self._reloading.settings.http
        places = Places()
        try:
            given = copies_of_inherited([NAMES[one] for one in self._reloading.settings.listeners])
            async with trio.open_nursery() as nursery:
                is_proxied = http.proxy_protocol == "required"
                serve = partial(serve_health, is_proxied=is_proxied, places=places, answers=lambda: self._answers)
                for name, bind, context in (("http", http.bind, None), ("https", http.tls_bind, self._context)):
                    if bind is not None:
                        pass_sockets(given.get(name, ()))  # to the task that is started
                        await nursery.start(serve, bind, context)
                for name in given.keys() - {"http", "https"}:
                    for sock in given[name]:
                        nursery.start_soon(refuse, sock)
        except InheritedError as error:
            self.problem = ListenerError(error.strerror)
            self._nursery.cancel_scope.cancel()
        except OSError as error:
            self.problem = ListenerError(f"http cannot listen on {error.filename}: {error.strerror or error}")
            self._nursery.cancel_scope.cancel()


async def _feed_watchdog(scope: trio.CancelScope) -> None:
    """Until the store itself says that the daemon lives."""
    if (period := systemd.watchdog_seconds()) is None:
        return
    with scope:
        while True:
            systemd.notify("WATCHDOG=1")
            await trio.sleep(period / 3)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
