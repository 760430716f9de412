"""Sends the notices that wait, on ntfy and on ways of Apprise (reference 12.13).

At least once: one that was under way when the daemon was killed is sent again. A user and a server have only some of
the places each, so whoever is slow delays no others. A notice of which one alarm may not be read any more is not sent.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog
import trio
from cryptography.fernet import InvalidToken

from broker.alarms.readers import AlarmReaders
from broker.alarms.telling_settings import TellingSettings
from broker.alarms.ways import AlarmNotice, AlarmWays, NotToldError, Telling, is_allowed
from broker.clock import Clock
from broker.loops import Loop, Wakeup
from broker.secrets import Vault
from config.limits import ALARM_NOTICE_HOURS
from storage.alarm_telling import NoticeHead, NoticeRecord
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.leases import Holder
from storage.outages import Outage
from storage.sql import StoreError
from storage.transaction import Transaction

_LOOK_SECONDS: Final = 10.0  # the wall clock may be set
_RETRY_SECONDS: Final = 5.0
#: After a try that failed; the notice is given up after the last one.
_AGAIN_SECONDS: Final = (10, 60, 300, 900, 3_600)
_OLDEST_MS: Final = ALARM_NOTICE_HOURS * 3_600_000
_PLACES: Final = {"ntfy": 24, "apprise": 4}  # a notice of Apprise takes a process
_OF_USER: Final = 2
_OF_SERVER: Final = 4
_LOOKED_AT: Final = 10_000  # due notices; further ones wait for these
_AT_ONCE: Final = 200
_REMEMBERED: Final = 20_000

_log = structlog.get_logger(__name__)
_decode: Final = msgspec.json.Decoder(AlarmNotice).decode


class NoticeStatistics(msgspec.Struct, frozen=True):
    """Since the start, by this node."""

    sent: int = 0
    failed: int = 0
    given_up: int = 0


class _Outcome(msgspec.Struct, frozen=True):
    """`is_final`: to try again is of no use. `is_withdrawn`: an alarm of it may not be read any more."""

    problem: str = ""
    is_final: bool = False
    is_withdrawn: bool = False


@dataclass(eq=False)
class NoticeSender:
    """`wakeup`: notices may wait. `due` says that alarms are due."""

    _database: Database
    _clock: Clock
    _vault: Vault
    _settings: TellingSettings
    _readers: AlarmReaders
    _lease: Holder
    _wakeup: Wakeup
    _ways: AlarmWays
    _due: Callable[[], None]

    def __post_init__(self) -> None:
        self._under_way = dict[int, tuple[NoticeHead, frozenset[str]]]()
        self._of_way = Counter[str]()
        self._of_user = Counter[UserKey]()
        self._of_server = Counter[str]()
        self._servers = dict[UserKey, tuple[Milliseconds, dict[str, frozenset[str]]]]()
        self._unsaved = Outage("notice_outcome_not_saved")
        self._sent = self._failed = self._given_up = 0

    async def send_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await Loop(
                lambda: self._start(nursery),
                every=_LOOK_SECONDS,
                wakeup=self._wakeup,
                at_once=True,
                failure="notices_not_sent",
                retry_seconds=_RETRY_SECONDS,
            ).run(task_status=task_status)

    # The next ones

    async def _start(self, nursery: trio.Nursery) -> None:
        """Begin to send what there are places for: first the oldest notice of each user."""
        now_ms = self._clock.now_ms()
        heads = await self._database.read(
            lambda tx: tx.alarm_telling.due_notices(now_ms, of_one=_OF_USER, limit=_LOOKED_AT)
        )
        for first in range(0, len(heads), _AT_ONCE):
            if all(self._of_way[way] >= most for way, most in _PLACES.items()):
                return
            some = heads[first : first + _AT_ONCE]
            await self._learn_servers({head.user for head in some})
            for head in some:
                servers = self._servers[head.user][1].get(head.way, frozenset())
                if head.key not in self._under_way and self._has_place(head, servers):
                    self._take(head, servers)
                    nursery.start_soon(self._send_in_place, head)

    async def _learn_servers(self, users: set[UserKey]) -> None:
        """Opening the settings takes time, so what they say is kept until they change."""
        records = await self._database.read(lambda tx: tx.alarm_telling.of_users(users))
        if len(self._servers) > _REMEMBERED:
            self._servers.clear()
        for user in users:
            record = records.get(user)
            changed_on = Milliseconds(0) if record is None else record.changed_on
            if user not in self._servers or self._servers[user][0] != changed_on:
                self._servers[user] = (changed_on, _servers(self._settings.opened(record)))

    def _has_place(self, head: NoticeHead, servers: frozenset[str]) -> bool:
        return (
            self._of_way[head.way] < _PLACES.get(head.way, 1)
            and self._of_user[head.user] < _OF_USER
            and all(self._of_server[one] < _OF_SERVER for one in servers)
        )

    def _take(self, head: NoticeHead, servers: frozenset[str]) -> None:
        self._under_way[head.key] = head, servers
        self._of_way[head.way] += 1
        self._of_user[head.user] += 1
        self._of_server.update(servers)

    def _leave(self, key: int) -> None:
        head, servers = self._under_way.pop(key)
        self._of_way[head.way] -= 1
        self._of_user -= Counter((head.user,))  # without those of which none is left
        self._of_server -= Counter(servers)

    async def _send_in_place(self, head: NoticeHead) -> None:
        try:
            await self._send(head.key)
        finally:
            self._leave(head.key)
            self._wakeup.set()

    # One notice

    async def _send(self, key: int) -> None:
        while True:
            try:
                found = await self._database.read(lambda tx: tx.alarm_telling.notice(key))
            except StoreError as error:
                await self._wait_for_the_store(error)
            else:
                break
        if found is None:
            return
        record, settings = found
        outcome = await self._tell(record, self._settings.opened(settings))
        await self._save(record, outcome)

    async def _tell(self, record: NoticeRecord, telling: Telling) -> _Outcome:
        if self._clock.now_ms() - record.created_on >= _OLDEST_MS and self._clock.may_delete():
            return _Outcome(f"it has waited for {ALARM_NOTICE_HOURS} hours", is_final=True)
        try:
            notice = _decode(self._vault.open(record.sealed))
            if notice.alarms and not await self._readers.may_read(notice.alarms):
                return _Outcome(is_withdrawn=True)
            if record.way == "ntfy" and telling.ntfy is not None:
                await self._ways.ntfy(telling.ntfy, notice)
            elif record.way == "apprise" and telling.apprise:
                # The operator may allow fewer than when they were set.
                allowed = tuple(one for one in telling.apprise if is_allowed(one, self._settings.schemes))
                if allowed:
                    await self._ways.apprise(allowed, notice)
                if len(allowed) < len(telling.apprise):
                    return _Outcome("the operator does not allow all of the addresses any more", is_final=True)
        except StoreError:
            return _Outcome("the store could not be read")
        except (InvalidToken, msgspec.DecodeError):
            return _Outcome("the notice was sealed with another key", is_final=True)
        except NotToldError as error:
            return _Outcome(str(error), is_final=error.is_final)
        except Exception as error:  # noqa: BLE001 - a bug that one notice triggers must not stop the others
            _log.exception("alarm_notice_failed", way=record.way)
            return _Outcome(f"{type(error).__name__} in the service", is_final=True)
        return _Outcome()

    async def _save(self, record: NoticeRecord, outcome: _Outcome) -> None:
        """However long that takes: without its outcome the notice would be sent again and again."""
        problem, is_over = outcome.problem, outcome.is_final or record.tries >= len(_AGAIN_SECONDS)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            if problem and not is_over:
                tx.alarm_telling.retry(record.key, Milliseconds(now_ms + _AGAIN_SECONDS[record.tries] * 1000))
            else:
                tx.alarm_telling.drop(record.key)
            if outcome.is_withdrawn:
                tx.alarms.tell_again(record.user, now_ms)
            else:
                said = f"{record.way}: {problem}" if problem else ""
                tx.alarm_telling.note_problem(record.user, said, now_ms if problem else None)

        while True:
            try:
                await self._database.write_own(self._lease, work)
            except StoreError as error:
                await self._wait_for_the_store(error)
            else:
                self._unsaved.succeeded()
                break
        if outcome.is_withdrawn:
            self._due()
        elif problem and is_over:
            self._given_up += 1
            _log.warning("alarm_notice_given_up", way=record.way, problem=problem)
        elif problem:
            self._failed += 1
        else:
            self._sent += 1

    async def _wait_for_the_store(self, error: StoreError) -> None:
        self._unsaved.failed(error)
        await trio.sleep(_RETRY_SECONDS)

    def statistics(self) -> NoticeStatistics:
        return NoticeStatistics(self._sent, self._failed, self._given_up)


def _servers(telling: Telling) -> dict[str, frozenset[str]]:
    """The servers to which the notices of each way go."""
    ntfy = frozenset() if telling.ntfy is None else frozenset({_server(telling.ntfy.url)})
    return {"ntfy": ntfy, "apprise": frozenset(map(_server, telling.apprise))}


def _server(url: str) -> str:
    """Scheme, host and port; of an address of Apprise, whatever stands there."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"
