"""Leases over PostgreSQL by the clock of this machine: until when their holder may act, and when another's is over."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from broker.cluster.fenced import FencedError
from broker.cluster.leases import Deadline, NodeStatus
from storage.lease_table import LeaseTable
from storage.leases import HeldLease, LeaseRecord
from storage.outages import Outage
from storage.sql import StoreError, StoreForkedError

#: The holder stops acting this much before the lease is over: a send takes time, and clocks differ in their speed.
EARLY_SECONDS: Final = 2.0
#: No other node's lease is believed to last longer, or as long as this node's own.
_LONGEST_SECONDS: Final = 60.0


def boot_seconds() -> float:
    """A clock that nobody sets, and that goes on while the process or the machine stands still."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Overdue:
    """Which leases of other nodes are over. The clock of the store, which may jump, is believed once for each renewal,
    and never more than `_LONGEST_SECONDS`: from then on the clock of this machine counts."""

    def __init__(self, now: Callable[[], float], seconds: float) -> None:
        """`now`: a steady clock, in seconds. `seconds`: how long this node's own lease lasts."""
        self._now = now
        self._longest = max(seconds, _LONGEST_SECONDS)
        self._seen: dict[str, tuple[int, int, float]] = {}
        self._patient_until = float("-inf")

    def give_time(self, seconds: float) -> None:
        """No lease is over for so long: perhaps nobody could renew one until now."""
        self._patient_until = self._now() + seconds

    def is_over(self, lease: LeaseRecord) -> bool:
        epoch, until, over_at = self._seen.get(lease.name, (-1, -1, 0.0))
        if (epoch, until) != (lease.epoch, lease.until):
            over_at = self._now() + min(lease.seconds_left, self._longest)
            self._seen[lease.name] = lease.epoch, lease.until, over_at
        return self._now() >= max(over_at, self._patient_until)


class RenewedDeadline(Deadline, ABC):
    """The deadline of a lease that is renewed again and again."""

    def __init__(self, node: str, seconds: float, now: Callable[[], float]) -> None:
        """
        Args:
            node: the name of this node.
            seconds: how long a lease lasts that is not renewed.
            now: a steady clock, in seconds.
        """
        self.node = node
        self._seconds = seconds
        self._now = now
        self._until = float("-inf")
        self._renewed = trio.Event()
        self._latency_seconds = 0.0
        self._standbys: tuple[str, ...] = ()
        self._oldest_seconds = 0.0
        self.held: HeldLease | None = None

    def is_ahead(self) -> bool:
        return self._now() < self._until

    async def wait_ahead(self) -> None:
        while not self.is_ahead():
            await self._renewed.wait()

    def status(self) -> NodeStatus:
        epoch = 0 if self.held is None else self.held.epoch
        left = max(0.0, self._seconds_left()) if epoch else 0.0
        return NodeStatus(
            self.node,
            epoch,
            left,
            round(self._latency_seconds, 6),
            self._standbys,
            oldest_snapshot_seconds=round(self._oldest_seconds, 1),
        )

    async def _renew_once(
        self, held: HeldLease, renew: Callable[[], Awaitable[bool]], table: LeaseTable, outage: Outage
    ) -> str:
        """Why the store could not renew it; empty when it is renewed, or was given back. Raises FencedError."""
        asked = self._now()
        try:
            is_held = await renew()
            self._latency_seconds = self._now() - asked
        except StoreForkedError as error:
            self._give_up()
            raise FencedError(str(error)) from error
        except StoreError as error:  # the store is away: if it is for all nodes, nobody takes it over
            outage.failed(error)
            return str(error)
        if self.held is held:
            if not is_held:
                raise await self._fenced(held)
            outage.succeeded(epoch=held.epoch)
            self._note_renewed(asked)
            await self._look_around(table)
        return ""

    @abstractmethod
    async def _fenced(self, held: HeldLease) -> FencedError:
        """The lease is lost: give up, and say why."""

    async def _look_around(self, table: LeaseTable) -> None:
        """Look at who else is on the database. The next renewal looks again, and tells when it cannot be asked."""
        with suppress(StoreError):
            self._standbys, self._oldest_seconds = await table.look_around()

    def _seconds_left(self) -> float:
        """Until the lease is over for the others."""
        return self._until + EARLY_SECONDS - self._now()

    def _note_renewed(self, asked: float) -> None:
        """`asked`: when the store was asked to renew it."""
        self._until = asked + self._seconds - EARLY_SECONDS
        self._renewed.set()
        self._renewed = trio.Event()

    def _give_up(self) -> None:
        self.held = None
        self._until = float("-inf")
