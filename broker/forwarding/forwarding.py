"""Runs a forwarder for each entry of the settings, on the node that has the lease (reference 30)."""

from dataclasses import dataclass
from typing import Final

import msgspec
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.leases import Lease
from broker.devices.registry import Devices
from broker.errors import Conflict, NotFound
from broker.facts import FactPhase, MessagesStored, Router
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.port import Upstreams
from broker.forwarding.status import ForwardStatus
from broker.loops import Wakeup
from broker.messages.follower import LogFollower
from broker.messages.ingest import Ingest
from broker.trace.audit import AuditEvent, note
from config.settings import Forward, Settings
from storage.database import Database
from storage.keys import Milliseconds, Position
from storage.transaction import Transaction

_IDLE_SECONDS: Final = 30.0
ELSEWHERE: Final = "elsewhere"


class ForwardStatistics(msgspec.Struct, frozen=True):
    """Since the start; `behind`, `behind_seconds` and `failing` are of now, the largest of all entries."""

    messages: int
    actions: int
    refused_actions: int
    failures: int
    behind: int
    behind_seconds: float
    lost: int
    failing: int
    entries: tuple[ForwardStatus, ...]


@dataclass(eq=False)
class Forwarding:
    """`store`: the id of this store."""

    _database: Database
    _lease: Lease
    _clock: Clock
    _router: Router
    _devices: Devices
    _ingest: Ingest
    _upstreams: Upstreams | None
    store: str
    _settings: Settings
    _follower: LogFollower | None

    def __post_init__(self) -> None:
        self._forwarders: dict[str, Forwarder] = {}
        self._running: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}
        self._held: set[str] = set()  # their positions are being changed
        self._changed = Wakeup()
        self._router.subscribe(MessagesStored, self._log_grew, FactPhase.EFFECT)
        if self._follower is not None:
            self._follower.tell_reader(lambda: bool(self._running), self._wake)
        self._make(self._settings.forward)

    def _log_grew(self, _fact: MessagesStored) -> None:
        if self._running:
            self._wake()

    def _wake(self) -> None:
        for one in self._forwarders.values():
            one.wakeup.set()

    def _make(self, entries: tuple[Forward, ...]) -> None:
        """Have a forwarder for each entry; one whose entry is the same goes on."""
        known, self._forwarders = self._forwarders, {}
        for entry in entries:
            kept = known.get(entry.name)
            self._forwarders[entry.name] = kept if kept is not None and kept.entry == entry else self._new(entry)

    def _new(self, entry: Forward) -> Forwarder:
        return Forwarder(
            entry,
            self._database,
            self._lease,
            self._clock,
            self._devices,
            self._ingest,
            self._upstreams,
            self.store,
            self._settings.storage.retention_days,
        )

    def renew(self, settings: Settings) -> None:
        """Take the entries of new settings."""
        before = dict(self._forwarders)
        self._settings = settings
        self._make(settings.forward)
        for name, scope in list(self._running.items()):
            if self._forwarders.get(name) is not before.get(name):
                scope.cancel()
        self._changed.set()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                for name, forwarder in self._forwarders.items():
                    if name not in self._running and name not in self._held:
                        self._running[name], self._ended[name] = (scope := trio.CancelScope()), trio.Event()
                        nursery.start_soon(self._run, name, forwarder, scope)
                if self._upstreams is not None and self._forwarders:
                    await self._upstreams.close_idle()
                await self._changed.wait(_IDLE_SECONDS if self._forwarders else float("inf"))

    async def _run(self, name: str, forwarder: Forwarder, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await forwarder.run()
            if scope.cancelled_caught:  # it goes, or begins again: what it knows is stored
                with trio.CancelScope(shield=True), trio.move_on_after(5):
                    await forwarder.save()
                forwarder.forget()
        finally:
            del self._running[name]
            self._ended.pop(name).set()
            self._changed.set()

    async def save(self) -> None:
        for one in self._forwarders.values():
            await one.save()

    def forget_all(self) -> None:
        """Another node forwards."""
        for one in self._forwarders.values():
            one.forget()

    async def rewind(self, name: str, position: int) -> ForwardStatus:
        """Send everything after a position of the log again, and take Actions from now on.

        Raises NotFound, Conflict: another node forwards.
        """
        forwarder = self._forwarders.get(name)
        if forwarder is None:
            raise NotFound
        if not self._lease.is_held:
            raise Conflict("Another node forwards: ask that one")
        if name in self._held:
            raise Conflict("Its position is being changed already")
        self._held.add(name)
        try:
            if (scope := self._running.get(name)) is not None:
                scope.cancel()
                await self._ended[name].wait()
            await self._rewound(name, position)
        finally:
            self._held.discard(name)
            forwarder.forget()
            self._changed.set()
        return forwarder.status()

    async def _rewound(self, name: str, position: int) -> None:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            known = tx.forwarding.forward(name)
            if known is None:
                raise NotFound
            mark = Position(min(position, tx.messages.head()))
            tx.forwarding.put_forward(
                replace(known, mark=mark, gaps=(), pending=None, actions_after=None, changed_on=Milliseconds(now_ms))
            )
            note(tx, AuditEvent.FORWARD_REWOUND, f"forward {name}", now_ms=now_ms, position=mark)

        await self._database.write_own(self._lease, work)

    def entries(self) -> tuple[ForwardStatus, ...]:
        is_here = self._lease.is_held
        found = (one.status() for one in self._forwarders.values())
        return tuple(one if is_here else replace(one, state=ELSEWHERE, problem="", behind=0) for one in found)

    def statistics(self) -> ForwardStatistics:
        entries = self.entries()
        return ForwardStatistics(
            sum(one.sent for one in entries),
            sum(one.actions for one in entries),
            sum(one.refused_actions for one in entries),
            sum(one.failures for one in entries),
            max((one.behind for one in entries), default=0),
            max((one.behind_seconds for one in entries), default=0.0),
            sum(one.lost for one in entries),
            sum(one.state == "waits" for one in entries),
            entries,
        )
