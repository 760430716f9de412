"""Notifications to systemd: one datagram each to the socket that systemd names (sd_notify(3))."""

import os
import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio

from storage.database import Database
from storage.sql import StoreError, StoreFullError
from storage.transaction import Transaction

#: Counts the writes of the watchdog.
_WRITES: Final = "watchdog"
#: An upgrade tells of itself every five seconds; a disk may stand still for longer.
_UPGRADE_SECONDS: Final = 120

_log = structlog.get_logger(__name__)


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1`, `STATUS=…` or `WATCHDOG=1`, if systemd has started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket; the kernel writes it with a null byte
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError as error:
        _log.warning("systemd_notification_failed", error=str(error))


def tell_of_upgrade(text: str) -> None:
    """Tell the log and systemd what an upgrade of the store is at, and that it takes longer than a usual start."""
    notify(f"EXTEND_TIMEOUT_USEC={_UPGRADE_SECONDS * 1_000_000}\nSTATUS=Upgrading the store: {text}")
    _log.info("upgrading_store", doing=text)


def tell_of_wait(text: str) -> None:
    """Tell systemd, at least once a minute, what a start waits for."""
    notify(f"EXTEND_TIMEOUT_USEC={_UPGRADE_SECONDS * 1_000_000}\nSTATUS={' '.join(text.split())}")


def watchdog_seconds() -> float | None:
    """The longest time between two watchdog notifications; None when systemd does not watch this process."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    watched = os.environ.get("WATCHDOG_PID")
    if not microseconds.isdecimal() or (watched is not None and watched != str(os.getpid())):
        return None
    return int(microseconds) / 1_000_000


def write_probe(tx: Transaction) -> None:
    """An empty transaction would succeed on a disk that takes nothing."""
    tx.messages.set_counter(_WRITES, tx.messages.counter(_WRITES) + 1)


async def feed_watchdog(database: Database, is_damaged: Callable[[], bool] = lambda: False) -> None:
    """Write to the store periodically, and notify the watchdog after each success.

    So systemd restarts a daemon whose store takes nothing. On a full disk a restart would not help, and devices would
    lose their connections: the watchdog is notified all the same, and the status says what is wrong.
    """
    period = watchdog_seconds()
    if period is None:
        return
    while True:
        try:
            await database.write(write_probe)
        except StoreFullError:
            notify("WATCHDOG=1\nSTATUS=The disk is full: nothing is stored")
        except StoreError:
            pass  # the store tells the operator
        else:
            statistics = database.statistics()
            damage = ". A part of the store is damaged: see the log" if is_damaged() else ""
            stored = f"{statistics.rows} messages stored in {statistics.commits} commits"
            notify(f"WATCHDOG=1\nSTATUS={stored}{damage}")
        await trio.sleep(period / 3)
