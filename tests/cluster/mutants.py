"""Mutants of the daemon, each of which breaks a rule while a test says so (tests/cluster/test_faults.py).

Tests have their commands import this first (tests/fork_server.py). A mutant is on while a file of its name is in the
folder; a file with the name of a mutant and that of a node is for this node alone.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from broker.cluster.facts import FactLog
from broker.routing.permission_fence import PermissionFence
from storage.deliveries import UNDER_WAY, DeliveryStore
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.postgresql_listening import Listening
from storage.facts import FactStore
from storage.journal import Journal
from storage.leases import HeldLease, LeaseStore
from storage.messages import MessageStore
from storage.peers import HeardOf
from storage.rules import RuleStore

FOLDER: Final = "TESTS_MUTANTS"
#: Rows are stored whatever others have ended.
NO_FENCE: Final = "no fence"
#: PostgreSQL tells nobody of what others have stored; each node looks once a second.
NO_NOTIFY: Final = "no notify"
#: A request does not hear first what others have told.
NO_CATCH_UP: Final = "no catch up"
#: A sender is answered before the commit.
EARLY: Final = "early"
#: The process stops itself, once, within a work: while it has the lock of the works.
STOPS: Final = "stops"
#: Nobody ends the sessions of a process that stands still.
NO_BOUND: Final = "no bound"
#: Whoever takes the lease of a worker has the epoch of the holder before.
SAME_EPOCH: Final = "same epoch"
#: Effects of rules are stored without the states of the rules and their position in the log.
NO_STATE: Final = "no state"
#: The position of a subscription is stored without its notifications.
NO_NOTIFICATION: Final = "no notification"


def _is_on(name: str) -> bool:
    return (_FOLDER / name).exists()


def _unless(name: str, of: type, method: str, instead: Callable[..., Any]) -> None:
    """Have a method call `instead`, with itself before its arguments, while the mutant is on."""
    original = getattr(of, method)

    def called(*arguments: Any, **named: Any) -> Any:
        if _is_on(name):
            return instead(original, *arguments, **named)
        return original(*arguments, **named)

    setattr(of, method, called)


def _behind_no_fence(original: Any, self: PostgresqlConnection, *arguments: Any) -> Any:
    if self.fence is not None and (row := self._run("SELECT last_value AS fence FROM fence", ()).one()):
        self.fence = int(row["fence"])
    return original(self, *arguments)


async def _heard_nothing(*_: object) -> None:
    """As if nobody had told anything."""


async def _looked_later(_original: object, _self: Listening, seconds: float, *, messages: bool) -> HeardOf:
    await trio.sleep(seconds)
    return HeardOf()


def _answered(_original: object, _self: Journal, callback: Callable[[None], None]) -> None:
    callback(None)


def _stopped(original: Any, self: FactStore, facts: Any) -> None:
    (_FOLDER / f"{STOPS} {_node()}").unlink()
    if _is_on(NO_BOUND):
        self._db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    os.kill(os.getpid(), signal.SIGSTOP)
    original(self, facts)


def _took_the_same(original: Any, self: LeaseStore, *arguments: Any) -> HeldLease | None:
    held: HeldLease | None = original(self, *arguments)
    if held is None or held.epoch == 1:
        return held
    self._db.execute("UPDATE lease SET epoch = epoch - 1 WHERE name = :name", {"name": held.name})
    return HeldLease(held.name, held.node, held.epoch - 1)


def _stood(original: Any, self: MessageStore, name: str, position: Any) -> None:
    if name != "rules":
        original(self, name, position)


def _put_none(original: Any, self: DeliveryStore, notifications: Any) -> None:
    original(self, [one for one in notifications if one.next_on != UNDER_WAY])


def _node() -> str:
    """The name of the node, which its folder has, too."""
    return Path(sys.argv[sys.argv.index("--config") + 1]).parent.name


def _install() -> None:
    _unless(NO_FENCE, PostgresqlConnection, "_alone", _behind_no_fence)
    _unless(NO_FENCE, FactLog, "refusal", lambda *_: None)
    _unless(NO_FENCE, PermissionFence, "ends", lambda *_: False)
    _unless(NO_NOTIFY, Listening, "wait", _looked_later)
    _unless(NO_CATCH_UP, FactLog, "catch_up", _heard_nothing)
    _unless(EARLY, Journal, "after_commit", _answered)
    _unless(f"{STOPS} {_node()}", FactStore, "add", _stopped)
    _unless(NO_BOUND, PostgresqlEngine, "end_sessions", lambda *_: None)
    _unless(SAME_EPOCH, LeaseStore, "take_worker", _took_the_same)
    _unless(NO_STATE, MessageStore, "set_consumer_position", _stood)
    _unless(NO_STATE, RuleStore, "put_states", lambda *_: None)
    _unless(NO_NOTIFICATION, DeliveryStore, "put", _put_none)


if FOLDER in os.environ and "serve" in sys.argv:
    _FOLDER = Path(os.environ[FOLDER])
    _install()
