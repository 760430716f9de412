"""HTTP requests of rules (reference 12.2): stored together with their cause, sent once, never repeated.

A request waits in the store until its receiver has answered or failed. One that was under way when the daemon was
killed is sent again after the restart.

The oldest requests of each user are in memory and get places fairly: a user has some of those of all, and some of those
of each host. So receivers that hang hold up the requests of their users, and to their host, and no others.
"""

from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog
import trio

from broker.clock import Clock
from broker.loops import Loop, Wakeup
from config.limits import RULE_REQUESTS_AT_ONCE, RULE_REQUESTS_OF_ONE_USER, RULE_REQUESTS_TO_ONE_HOST
from config.rates import Rate
from storage.database import Database
from storage.fair_places import FairPlaces
from storage.keys import Milliseconds, RuleKey, UserKey
from storage.leases import Holder
from storage.outages import Outage
from storage.rules import RuleRequest
from storage.sql import StoreError
from storage.transaction import Transaction

#: reference 21.4: of the rules of one user.
REQUEST_RATE: Final = Rate(5, 50)
_DAY_MS: Final = 86_400_000
_KEPT_MS: Final = 2 * _DAY_MS
_LOOK_SECONDS: Final = 3600.0
_RETRY_SECONDS: Final = 5.0
_HELD_OF_ONE: Final = 2 * RULE_REQUESTS_OF_ONE_USER  # in memory, so that the next one begins at once
_HELD: Final = 2_000

_log = structlog.get_logger(__name__)


class RuleRequestFailedError(Exception):
    """The request had no answer. The text is one line without the request's secrets."""


class HttpContent(msgspec.Struct, frozen=True):
    """One request as it leaves."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""


class RuleRequests(Protocol):
    """The port through which requests of rules leave. `protocols/outbound` implements it."""

    async def send(self, request: HttpContent) -> int:
        """Send one request and return the status of the answer. Redirects are not followed.

        Raises RuleRequestFailedError.
        """


class ProblemReporter(Protocol):
    async def note(self, rule: RuleKey, field: str, text: str) -> None:
        """Tell the owner of the rule that something went wrong."""


class RequestStatistics(msgspec.Struct, frozen=True):
    sent: int
    failed: int
    refused: int


_encode = msgspec.json.Encoder().encode


class RequestQueue:
    """The requests that wait, and the worker that sends them."""

    def __init__(self, database: Database, lease: Holder, clock: Clock, wakeup: Wakeup | None = None) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self._wakeup = wakeup or Wakeup()
        self._places = FairPlaces(RULE_REQUESTS_AT_ONCE, of_one=RULE_REQUESTS_OF_ONE_USER)
        self._hosts: dict[str, FairPlaces] = {}
        self._held: set[int] = set()  # the keys of the requests that were taken from the store and are not finished
        self._finished: set[int] = set()  # the keys that were finished since the last read of the store began
        self._outage = Outage("rule_request_not_finished")
        self._sent = self._failed = self._refused = 0

    def add(
        self, tx: Transaction, rule: RuleKey, owner: UserKey, field: str, request: HttpContent, now_ms: Milliseconds
    ) -> bool:
        """Store a request in the transaction of its cause; `wake` after the commit. False: the rate is exceeded."""
        day_ms = now_ms // _DAY_MS * _DAY_MS
        minute, day = tx.rules.requests_since(owner, minute_ms=now_ms - 60_000, day_ms=day_ms)
        if minute >= REQUEST_RATE.minute or day >= REQUEST_RATE.day:
            self._refused += 1
            _log.warning("rule_request_refused", rule=rule, owner=owner)
            return False
        tx.rules.add_request(rule, owner, field, _encode(request).decode(), now_ms)
        return True

    def wake(self) -> None:
        self._wakeup.set()

    async def send_forever(
        self,
        port: RuleRequests,
        problems: ProblemReporter,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The worker."""
        task_status.started()
        self._held.clear()  # of a time when this node sent them before
        self._finished.clear()
        async with trio.open_nursery() as nursery:
            await Loop(
                partial(self._take, port, problems, nursery),
                at_once=True,
                every=_LOOK_SECONDS,
                wakeup=self._wakeup,
                failure="rule_requests_not_read",
                retry_seconds=_RETRY_SECONDS,
            ).run()

    async def _take(self, port: RuleRequests, problems: ProblemReporter, nursery: trio.Nursery) -> None:
        """Take the oldest requests of each user from the store."""
        before_ms = self._clock.now_ms() - _KEPT_MS
        await self._database.write_own(self._lease, lambda tx: tx.rules.forget_requests(before_ms))
        self._finished.clear()
        waiting = await self._database.read(lambda tx: tx.rules.waiting_requests(of_one=_HELD_OF_ONE, limit=_HELD))
        for request in waiting:
            is_new = request.key not in self._held and request.key not in self._finished
            if is_new and len(self._held) < _HELD:
                self._held.add(request.key)
                await nursery.start(self._send_in_turn, port, problems, request)  # those of a user in their order

    async def _send_in_turn(
        self,
        port: RuleRequests,
        problems: ProblemReporter,
        request: RuleRequest,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send a request when its host and its user have a place."""
        content = msgspec.json.decode(request.content, type=HttpContent)
        host = _host(content.url)
        places = self._hosts.setdefault(
            host, FairPlaces(RULE_REQUESTS_TO_ONE_HOST, of_one=RULE_REQUESTS_TO_ONE_HOST // 2)
        )
        task_status.started()
        try:
            async with places.of(request.owner), self._places.of(request.owner):
                await self._send(port, problems, request, content)
            await self._finish(request.key)
            self._held.discard(request.key)
            self._finished.add(request.key)
            self._wakeup.set()
        finally:
            if not places.taken and not places.waiting and self._hosts.get(host) is places:  # not those of a later one
                del self._hosts[host]

    async def _send(
        self, port: RuleRequests, problems: ProblemReporter, request: RuleRequest, content: HttpContent
    ) -> None:
        try:
            await port.send(content)
        except RuleRequestFailedError as error:
            self._failed += 1
            await problems.note(request.rule, request.field, str(error))
        except Exception as error:  # noqa: BLE001 - a bug that one request triggers must not stop the others
            self._failed += 1
            _log.exception("rule_request_failed", rule=request.rule)
            await problems.note(request.rule, request.field, f"{type(error).__name__} in the service")
        else:
            self._sent += 1

    async def _finish(self, key: int) -> None:
        while True:  # however long that takes: without the outcome the request would be sent again
            try:
                await self._database.write_own(self._lease, lambda tx: tx.rules.finish_request(key))
            except StoreError as error:
                self._outage.failed(error)
                await trio.sleep(_RETRY_SECONDS)
            else:
                self._outage.succeeded()
                return

    def statistics(self) -> RequestStatistics:
        return RequestStatistics(self._sent, self._failed, self._refused)


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:  # the sender reports it
        return ""
