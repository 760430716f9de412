"""The lease of the whole daemon: one daemon serves the store, and others stand by.

A daemon takes the lease before it reads anything else of the store, renews it four times before it is over, and gives
it back when it has stopped. Whoever takes it over raises its epoch; each write of a daemon begins by checking its own
(storage/engines/postgresql.py), so a daemon that was paused writes nothing any more, and ends.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from broker.cluster.fenced import FencedError, ReplacedError
from broker.cluster.renewal import Overdue, RenewedDeadline, boot_seconds
from storage.lease_table import LeaseTable
from storage.leases import HeldLease, LeaseRecord
from storage.outages import Outage
from storage.sql import StoreAwayError, StoreBusyError, StoreError, StoreLostError

#: The lease that stands for all.
DAEMON: Final = "daemon"
#: How often a daemon that stands by looks whether the lease is free.
_LOOK_SECONDS: Final = 0.05
AWAY_SECONDS: Final = 1.0  # between two tries while the store is away
#: Errors of a store that may work later by itself.
AWAY: Final = (StoreAwayError, StoreBusyError, StoreLostError)
_log = structlog.get_logger(__name__)


class Candidate(Protocol):
    """A daemon that wants the lease, told of the time before it has it."""

    def stands_by(self, holder: LeaseRecord) -> None:
        """Another node has the lease. Called once for each, and again after the store was away."""

    def is_away(self, error: StoreError) -> None:
        """The store cannot be used now. Called at each try."""

    def answers(self) -> None:
        """The store can be used. Called at each try."""


class Keeper(RenewedDeadline):
    """Takes the lease, keeps it, and gives it back."""

    def __init__(
        self,
        table: LeaseTable,
        node: str,
        instance: str,
        seconds: float,
        *,
        now: Callable[[], float] = boot_seconds,
    ) -> None:
        """
        Args:
            table: the leases.
            node: the name of this node.
            instance: the name of this process.
            seconds: how long a lease lasts that is not renewed.
            now: a steady clock, in seconds.
        """
        super().__init__(node, seconds, now)
        self._table = table
        self._instance = instance
        self._overdue = Overdue(now, seconds)
        self._found: LeaseRecord | None = None  # the lease of another node, as it was found last

    async def take(self, waiting: Candidate) -> HeldLease:
        """Wait until the lease is free, and take it.

        Raises StoreError: the store cannot be used, and waiting does not help. Later, while another node has the lease,
        that is waited for, too.
        """
        known, has_been_read = None, False
        while True:
            try:
                if (held := await self.try_to_take()) is not None:
                    return held
            except StoreError as error:
                if not has_been_read and not isinstance(error, AWAY):
                    raise
                known = None
                waiting.is_away(error)
                await trio.sleep(AWAY_SECONDS)
                continue
            waiting.answers()
            if (found := self._found) is not None and (found.node, found.epoch) != known:
                known, has_been_read = (found.node, found.epoch), True
                waiting.stands_by(found)
            await trio.sleep(_LOOK_SECONDS)

    async def try_to_take(self) -> HeldLease | None:
        """Take the lease if it is free. Raises StoreError."""
        asked = self._now()
        self.held = await self._table.take(DAEMON, self.node, self._instance, self._seconds, is_over=self._is_over)
        if self.held is not None:
            self._note_renewed(asked)
        return self.held

    def _is_over(self, lease: LeaseRecord) -> bool:
        self._found = lease
        return self._overdue.is_over(lease)

    async def keep_forever(self) -> None:
        """Renew the lease. Raises FencedError: another node has it, or the store has lost commits."""
        outage = Outage("lease_not_renewed", "lease_renewed_again")
        while (held := self.held) is not None:
            await trio.sleep(self._seconds / 4)
            await self._renew_once(held, partial(self._table.renew, held, self._seconds), self._table, outage)

    async def _fenced(self, held: HeldLease) -> FencedError:
        self._give_up()
        holder, name = None, "another node"
        with suppress(StoreError):
            holder = await self._table.find(DAEMON)
            if holder is None or holder.epoch < held.epoch:
                return FencedError(
                    "the database has lost the lease of this daemon, and what was stored since, as at a failover to an"
                    " asynchronous standby. Started again, it reads what is left"
                )
        if holder is not None:
            name = f"node {holder.node}"
            if holder.node == held.node:
                return ReplacedError(
                    f"another daemon with the name of this node, {held.node}, serves the store now: give each its own"
                    " name (cluster.node)"
                )
        return FencedError(
            f"{name} serves the store now: this daemon was away for longer than cluster.lease_seconds. Nothing that it"
            " acknowledged is lost. Started again, it stands by"
        )

    async def give_back(self) -> None:
        """Have another node serve at once: this one has stopped writing."""
        held, self.held = self.held, None
        if held is None:
            return
        try:
            await self._table.give_back(held)
        except StoreError as error:  # it is over soon
            _log.warning("lease_not_given_back", reason=str(error))
