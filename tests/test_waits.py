"""Nothing that was read before a wait is trusted after it: each place where it could be, and why it is right there.

A place is an attribute of an object that a coroutine reads, and after an `await` empties, replaces or takes something
out of. What others put there meanwhile would be lost: a subscription that became active while others were opened was
never served. Whoever writes a new place looks at it and adds it to the table. What helpers of the coroutine read and
empty is not seen here: `tests/broker/test_any_schedule.py` runs all others between the steps of each consumer.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.slow


_ROOT: Final = Path(__file__).parent.parent
_FLOORS: Final = ("broker", "protocols", "storage")
_TAKES_OUT: Final = {"clear", "difference_update", "discard", "pop", "popitem", "popleft", "remove"}

#: Class, method and attributes, by the reason.
PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "One task runs it, and nobody else writes the attribute": (
        "FoundCommands.resume _has_resumed",
        "MqttExchange.prepare _unready",
        "Turn.pause _ends",
        "FactLog.follow_forever _told_messages_only",
        "Forwarder._wait_for_line _free_at",
        "LogPosition.begin _record",
        "SentManifests.bring _brought",
        "NodeMembership._give_away _stays_until",
        "NodeMembership._take_workers _free_since",
        "FailedAgain._step _stored",
        "Following._read_on _read",
        "Following._save _saved",
        "Following._save _saved_at",
        "Following._sweep _swept_at",
        "AlarmUpkeep.step _swept_at",
        "Actions.save _saved",
        "HomeAnnouncer._look_at_some _reading",
        "Backups.work_forever _wakeup",
        "Database._gather _gathered",
        "DtlsClient._record _waiting",
        "Exports._write _files",
        "HeldBody.ask _reservation",
        "Leaving._remove _erasing",
        "Leaving._work _is_log_clean",
        "Outbox.send_forever _wakeup",
        "HttpConnection._wait_committed _committed",
        "LogFeed._catch_up _position",
        "LogFeed._step _wakeup",
        "PendingAction.go_on _actions",
        "PendingAction.go_on _requests",
        "Projector._add _folds",
        "Projector._write _written",
        "Reader.save _has_reader_row",
        "RegisteredDevice._read_typed _typed",
        "Retention.sweep _rollups_swept_on",
        "Retention.sweep _statistics",
        "Samples.take _last",
        "RuleEngine.run_forever _must_restore",
        "StreamConnection.run _scope",
        "Tokens.end_expired _swept_until",
        "Tunnel._receive_turn _early",
        "Uploads._process_some _rows",
        "UsageDays.note _noted",
        "UsageDays.note _noted_on",
    ),
    "A lock is held from the first read to the last write": (
        "FactLog.catch_up _answered",
        "SharedLedger.flush _unwritten",
        "DaemonMachine.examine _checks",
        "Hashing._run _rested_at",
        "Ledger.flush _batch",
        "Vitals._store_problem _refusal",
        "Vitals._store_problem _refused_at",
    ),
    "Taken out whole before the wait; what comes during it is in a new one, and after a failure both are joined": (
        "NotificationSender._retry_forever _must_look",
        "NotificationSender.flush _failing",
        "NotificationSender.flush _settled",
        "ProgressFeed._tell _waiting",
        "Projector._write _unwritten",
        "TypesElsewhere._read _changed",
        "RuleInvalidator.step _all_wait",
        "RuleInvalidator.step _waiting",
        "Training.check _is_stale",
    ),
    "Takes out what the task itself put in, by its own key or identity": (
        "EdgeActions.next _waiters",
        "Forwarding.rewind _held",
        "MqttClient.publish _waiting",
        "Turns._end_again _left",
        "RegisteredDevice._begin_observing _observed",
        "DeviceActions._session _changed",
        "Following._store_ends _ended",
        "DeviceStream.ask _exchanges",
        "DeviceWork._serve _work",
        "Leaving.delete _waiting",
        "Lwm2mEndpoint.ask _exchanges",
        "NotificationSender._retry _under_way",
        "RequestQueue._send_in_turn _hosts",
        "WebSocket._send _offered",
        "_Places.one _limiters",
        "_Places.one _users",
    ),
    "Looked at again after the wait, and nothing is awaited from there to the write": (
        "HomeAnnouncer._withdraw_former _former",
        "UnendedActions.save _saved",
        "DeviceFinder._look_up _clients",
        "DeviceWork._update _updates",
        "Following._expire _next_due",
        "Following._note_given _given",
        "HomeAnnouncer.step _lines",
        "Overhead._take_turn _is_taken",
        "Reader._catch_up _behind",
        "Resources.look_up_forever _unknown",
        "RuleEngine._commit _saved",
        "RuleEngine._commit _saved_at",
        "Tunnel._close _said_close",
    ),
    "What comes during the wait is found in the log from the position that was reached, so none is lost": (
        "Projector._catch_up _follows",
        "Reader._read_on _position",
        "RuleEngine._next_rows _follows",
    ),
    "A cache: of two tasks that measured the same, either result may stay": ("Sheets._measured _known",),
    "Who waited looks at all that there is afterwards": (
        "NodeMembership.keep_forever _hurry",
        "FactLog.follow_forever _wanted",
        "Wakeup.wait _event",
    ),
    "Only this task takes from the front; others add at the end": (
        "SharedRegistrations.change_again _failed",
        "Events._tell_of_others _waiting",
        "ProvisionedElsewhere._read _waiting",
    ),
    "Each key is put in once, and only this task takes it out": ("ConnectionClaims.end_again _left",),
    "What is forgotten is read again": ("Signers._client_secret _clients", "Kiosk._points _charts"),
    "The next commit begins here, after the one that was awaited": ("Database._commit_open_group _ahead",),
    "No more is read of the connection until it is done": (
        "DeviceStream.work _asked",
        "HttpConnection._answer _begun",
        "HttpConnection._answer _received",
        "HttpConnection._exchange _received",
        "HttpConnection._has_read _received",
        "StreamConnection._read need",
    ),
}


class _Steps(ast.NodeVisitor):
    """The uses of attributes of `self` in a coroutine, in their order."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Does not run here."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Does not run here."""

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Does not run here."""

    def visit_Await(self, node: ast.Await) -> None:
        self.generic_visit(node)
        self.steps.append(("wait", ""))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item)
        self.steps.append(("wait", ""))
        for one in node.body:
            self.visit(one)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.steps.append(("wait", ""))
        for one in (*node.body, *node.orelse):
            self.visit(one)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._visit_target(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._visit_target(node.target)

    def _visit_target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            for one in target.elts:
                self._visit_target(one)
        elif isinstance(target, ast.Attribute) and (name := _attribute(target)):
            self.steps.append(("write", name))
        else:
            self.visit(target)

    def visit_Delete(self, node: ast.Delete) -> None:
        self.steps += [("write", name) for one in node.targets if (name := _attribute(one))]

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _TAKES_OUT and (name := _attribute(called.value)):
            for one in node.args:
                self.visit(one)
            self.steps.append(("write", name))
        else:
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if name := _attribute(node):
            self.steps.append(("read" if isinstance(node.ctx, ast.Load) else "write", name))
        else:
            self.generic_visit(node)


def _attribute(node: ast.expr) -> str:
    """The name of an attribute of `self`, also of one of its entries; else nothing."""
    while isinstance(node, ast.Subscript):
        node = node.value
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if isinstance(node, ast.Attribute) and is_own else ""


def _places(source: str) -> Iterator[str]:
    for class_ in (one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.ClassDef)):
        for method in class_.body:
            if isinstance(method, ast.AsyncFunctionDef):
                found = _Steps()
                for one in method.body:
                    found.visit(one)
                for name in sorted(_written_after_a_wait(found.steps)):
                    yield f"{class_.name}.{method.name} {name}"


def _written_after_a_wait(steps: list[tuple[str, str]]) -> set[str]:
    read, waited, written = set[str](), set[str](), set[str]()
    for what, name in steps:
        if what == "read":
            read.add(name)
        elif what == "wait":
            waited |= read
        elif name in waited:
            written.add(name)
    return written


_FIXED: Final = """
class Deliveries:
    async def open_new(self):
        for one in self._new:
            await self._open(one)
        self._new.clear()

    async def count(self):
        await self._open(self._new)
        self._opened += 1
"""


def test_each_place_that_writes_after_a_wait_has_a_reason() -> None:
    assert list(_places(_FIXED)) == ["Deliveries.open_new _new"]
    files = [file for floor in _FLOORS for file in (_ROOT / floor).rglob("*.py")]
    found = {place for file in files for place in _places(file.read_text(encoding="utf-8"))}
    known = {place for places in PLACES.values() for place in places}
    assert len(found) > 50
    assert not found - known, "May others write to it during the wait? If nothing is lost then, say why in PLACES."
    assert not known - found, "These are no places any more."
