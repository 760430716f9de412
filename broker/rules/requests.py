"""HTTP requests of rules (reference 12.2): stored together with what caused them, sent once, never repeated.

A request waits in the store until its receiver has answered or failed. One that was under way when the daemon was
killed is sent again after the restart.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec
import structlog
import trio

from broker.clock import Clock
from broker.loops import Wakeup, repeat
from config.limits import RULE_REQUESTS_AT_ONCE
from config.rates import Rate
from storage.database import Database, Transaction
from storage.keys import Milliseconds, RuleKey, UserKey
from storage.rules import RuleRequest
from storage.sql import StoreError

#: reference 21.4: of the rules of one user.
REQUEST_RATE: Final = Rate(5, 50)
_DAY_MS: Final = 86_400_000
_KEPT_MS: Final = 2 * _DAY_MS
_LOOK_SECONDS: Final = 3600.0
_RETRY_SECONDS: Final = 5.0

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


class Problems(Protocol):
    async def note(self, rule: RuleKey, field: str, text: str) -> None:
        """Tell the owner of the rule that something went wrong."""


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    sent: int
    failed: int
    refused: int


_encode = msgspec.json.Encoder().encode


class RequestQueue:
    """The requests that wait, and the worker that sends them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._wakeup = Wakeup()
        self._last = 0  # the key of the last request that was taken from the store
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
        self, port: RuleRequests, problems: Problems, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The worker."""
        task_status.started()
        places = trio.CapacityLimiter(RULE_REQUESTS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            await repeat(
                partial(self._take, port, problems, nursery, places),
                at_once=True,
                every=_LOOK_SECONDS,
                wakeup=self._wakeup,
                failure="rule_requests_not_read",
                retry_seconds=_RETRY_SECONDS,
            )

    async def _take(
        self, port: RuleRequests, problems: Problems, nursery: trio.Nursery, places: trio.CapacityLimiter
    ) -> bool:
        """Begin to send what waits; True when there may be more."""
        before_ms = self._clock.now_ms() - _KEPT_MS
        await self._database.write(lambda tx: tx.rules.forget_requests(before_ms))
        waiting = await self._database.read(
            lambda tx: tx.rules.waiting_requests(after=self._last, limit=RULE_REQUESTS_AT_ONCE)
        )
        for request in waiting:
            async with places:  # a slow receiver takes one of the places, and the queue waits when all are taken
                pass
            self._last = request.key
            await nursery.start(partial(self._send, port, problems, request, places))
        return bool(waiting)

    async def _send(
        self,
        port: RuleRequests,
        problems: Problems,
        request: RuleRequest,
        places: trio.CapacityLimiter,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with places:
            task_status.started()
            try:
                await port.send(msgspec.json.decode(request.content, type=HttpContent))
            except RuleRequestFailedError as error:
                self._failed += 1
                await problems.note(request.rule, request.field, str(error))
            except Exception as error:  # noqa: BLE001 - a bug that one request triggers must not stop the others
                self._failed += 1
                _log.exception("rule_request_failed", rule=request.rule)
                await problems.note(request.rule, request.field, f"{type(error).__name__} in the service")
            else:
                self._sent += 1
            await self._finish(request.key)

    async def _finish(self, key: int) -> None:
        while True:  # however long that takes: without the outcome the request would be sent again
            try:
                return await self._database.write(lambda tx: tx.rules.finish_request(key))
            except StoreError as error:
                _log.warning("rule_request_not_finished", reason=str(error))
                await trio.sleep(_RETRY_SECONDS)

    def statistics(self) -> RequestStatistics:
        return RequestStatistics(self._sent, self._failed, self._refused)
