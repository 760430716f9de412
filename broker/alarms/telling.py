"""Tells users of their alarms (reference 12.13).

Of the alarms that are due, one step writes the mails and notices, and when each alarm is due next, in one commit. Mails
are sent by their queue; notices by a second worker, at least once: one that was under way when the daemon was killed is
sent again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from cryptography.fernet import InvalidToken

from broker.alarms.links import AlarmLinks
from broker.alarms.ways import (
    SEVERITIES,
    AlarmNotice,
    AlarmWays,
    NotToldError,
    Telling,
    check_telling,
    is_allowed,
    quiet_until,
)
from broker.clock import Clock
from broker.errors import Conflict, ValidationFailed
from broker.loops import Loop, Wakeup
from broker.mail import AlarmMail, Mails
from broker.secrets import Vault
from broker.trace.audit import AuditEvent, note
from config.limits import ALARM_NOTICES_A_HOUR, ALARM_NOTICES_WAITING
from storage.alarm_telling import NoticeRecord, TellingRecord
from storage.alarms import AlarmRecord
from storage.database import Database, Transaction
from storage.keys import Milliseconds, UserKey
from storage.leases import Holder
from storage.records import UserRecord

_DUE_AT_ONCE: Final = 500
_ONE_BY_ONE: Final = 3  # of a user; more are told together
_LISTED: Final = 10
_TIMES: Final = 100  # told of one alarm
_LOOK_SECONDS: Final = 30.0  # the wall clock may be set
_RETRY_SECONDS: Final = 5.0
_HOUR_MS: Final = 3_600_000
#: After a try that failed; the notice is given up after the last one.
_AGAIN_SECONDS: Final = (10, 60, 300, 900, 3_600)
_AT_ONCE: Final = 8
_OF_ONE: Final = 2
_TITLES: Final = {"info": "Info", "warning": "Warning", "critical": "Critical"}
NO_WAYS: Final = "No way is set on which to tell"

_log = structlog.get_logger(__name__)
_decode: Final = msgspec.json.Decoder(Telling).decode
_decode_notice: Final = msgspec.json.Decoder(AlarmNotice).decode


class TellingStatistics(msgspec.Struct, frozen=True):
    """Since the start, by this node. `told`: alarms; the others are notices."""

    told: int
    sent: int
    failed: int
    given_up: int


class ShownTelling(msgspec.Struct, frozen=True):
    telling: Telling
    problem: str
    problem_on: Milliseconds | None


@dataclass(eq=False)
class AlarmTelling:
    _database: Database
    _clock: Clock
    _vault: Vault
    _mails: Mails
    _links: AlarmLinks
    _lease: Holder
    _wakeup: Wakeup
    _schemes: tuple[str, ...]
    _ways: AlarmWays | None = None

    def __post_init__(self) -> None:
        self._notices_wait = Wakeup()
        self._hour = 0
        self._in_hour = Counter[UserKey]()
        self._told = self._sent = self._failed = self._given_up = 0

    # The settings

    @property
    def schemes(self) -> tuple[str, ...]:
        """The ways of Apprise that users may choose."""
        return self._schemes if self._ways is not None and self._ways.has_apprise else ()

    async def show(self, user: UserKey) -> ShownTelling:
        record = await self._database.read(lambda tx: tx.alarm_telling.of(user))
        if record is None:
            return ShownTelling(Telling(), "", None)
        return ShownTelling(self._opened(record), record.problem, record.problem_on)

    async def put(self, user: UserRecord, wanted: Telling) -> ShownTelling:
        """Raises ValidationFailed."""
        check_telling(wanted, self.schemes)
        now_ms = self._clock.now_ms()
        sealed = self._vault.seal(msgspec.json.encode(wanted).decode())

        def work(tx: Transaction) -> None:
            tx.alarm_telling.put(TellingRecord(user.key, sealed, now_ms))
            note(tx, AuditEvent.ALARM_TELLING_CHANGED, f"user {user.id}", now_ms=now_ms)

        await self._database.write(work)
        return ShownTelling(wanted, "", None)

    async def test(self, user: UserRecord) -> None:
        """Tell once, on all ways, that this is how it comes. Raises Conflict."""
        record = await self._database.read(lambda tx: tx.alarm_telling.of(user.key))
        telling = Telling() if record is None else self._opened(record)
        if not telling.has_ways or not self._room(user.key):
            raise Conflict(NO_WAYS if not telling.has_ways else "Too many notices in an hour")
        self._in_hour[user.key] += 1
        notice = AlarmNotice("Test", "This is how Trunkline tells of an alarm.", "info")
        now_ms = self._clock.now_ms()
        await self._database.write(lambda tx: self._write(tx, user, telling, notice, now_ms))
        self._notices_wait.set()

    def _opened(self, record: TellingRecord) -> Telling:
        try:
            return _decode(self._vault.open(record.sealed))
        except (InvalidToken, msgspec.DecodeError):  # another key has sealed it
            return Telling()

    # Alarms that are due

    def wake(self) -> None:
        self._wakeup.set()
        self._notices_wait.set()

    async def tell_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await Loop(
            self.step,
            every=_LOOK_SECONDS,
            wakeup=self._wakeup,
            at_once=True,
            failure="alarms_not_told",
            retry_seconds=_RETRY_SECONDS,
        ).run(task_status=task_status)

    async def step(self) -> bool:
        """Tell of some alarms; return whether there is more to do at once."""
        now_ms = self._clock.now_ms()
        due, tellings, users = await self._database.read(partial(_due, now_ms))
        if not due:
            return False
        of_users: dict[UserKey, list[AlarmRecord]] = {}
        for alarm in due:
            of_users.setdefault(alarm.owner, []).append(alarm)
        plans = [self._plan(users.get(key), tellings.get(key), some, now_ms) for key, some in of_users.items()]

        def work(tx: Transaction) -> int:
            return sum(self._carry_out(tx, plan, now_ms) for plan in plans)

        self._told += await self._database.write_own(self._lease, work)
        self._notices_wait.set()
        return len(due) == _DUE_AT_ONCE

    def _plan(
        self, user: UserRecord | None, record: TellingRecord | None, alarms: Sequence[AlarmRecord], now_ms: Milliseconds
    ) -> "_Plan":
        telling = Telling() if record is None else self._opened(record)
        plan = _Plan(user, telling)
        for alarm in alarms:
            if user is None or not telling.is_told_of(alarm.severity) or alarm.told >= _TIMES:
                plan.later.append((alarm.key, None))
            elif (until := quiet_until(telling.quiet, alarm.severity, now_ms)) is not None:
                plan.later.append((alarm.key, until))
            else:
                plan.now.append(alarm)
        if plan.now and user is not None:
            room = self._room(user.key)
            plan.together = len(plan.now) > min(room, _ONE_BY_ONE)
            if not room:
                next_hour = Milliseconds((now_ms // _HOUR_MS + 1) * _HOUR_MS)
                plan.later += [(alarm.key, next_hour) for alarm in plan.now]
                plan.now = []
            self._in_hour[user.key] += 1 if plan.together and room else len(plan.now)
        return plan

    def _room(self, user: UserKey) -> int:
        """How many notices the user may get yet in this hour."""
        hour = self._clock.now_ms() // _HOUR_MS
        if hour != self._hour:
            self._hour = hour
            self._in_hour.clear()
        return ALARM_NOTICES_A_HOUR - self._in_hour[user]

    def _carry_out(self, tx: Transaction, plan: "_Plan", now_ms: Milliseconds) -> int:
        for key, until in plan.later:
            tx.alarms.note_told([key], next_on=until, was_told=False)
        # One that was acknowledged or cleared since it was read is told to nobody.
        still = [
            one for one in plan.now if (known := tx.alarms.by_key(one.key)) is not None and known.tell_on == one.tell_on
        ]
        if not still or plan.user is None:
            return 0
        for notice in self._notices(still, together=plan.together):
            self._write(tx, plan.user, plan.telling, notice, now_ms)
        again = plan.telling.again_minutes
        next_on = Milliseconds(now_ms + again * 60_000) if again else None
        tx.alarms.note_told([one.key for one in still], next_on=next_on, was_told=True)
        return len(still)

    def _notices(self, alarms: Sequence[AlarmRecord], *, together: bool) -> list[AlarmNotice]:
        """One for each alarm, or one with their number."""
        if not together or len(alarms) == 1:
            return [self._notice(one) for one in alarms]
        worst = max(alarms, key=lambda one: SEVERITIES.index(one.severity))
        lines = [f"{_TITLES[one.severity]}: {one.text}" for one in alarms[:_LISTED]]
        if len(alarms) > _LISTED:
            lines.append(f"and {len(alarms) - _LISTED} more")
        return [AlarmNotice(f"{len(alarms)} alarms", "\n".join(lines), worst.severity)]

    def _notice(self, alarm: AlarmRecord) -> AlarmNotice:
        title = f"{_TITLES[alarm.severity]}: {alarm.rule_name}"
        text = alarm.text if alarm.count == 1 else f"{alarm.text} ({alarm.count} times)"
        return AlarmNotice(title, text, alarm.severity, self._links.link(alarm.id))

    def _write(
        self, tx: Transaction, user: UserRecord, telling: Telling, notice: AlarmNotice, now_ms: Milliseconds
    ) -> None:
        """Queue a notice on each way."""
        if telling.mail and user.email:
            mail = AlarmMail(title=notice.title, text=notice.text, address=notice.link)
            try:
                if not self._mails.add(tx, self._mails.compose(user.email, mail, cause=f"user {user.id}")):
                    tx.alarm_telling.note_problem(user.key, "mail: too many mails wait", now_ms)
            except ValidationFailed as error:  # no address that a mail can be sent to
                tx.alarm_telling.note_problem(user.key, str(error), now_ms)
        for way in ("ntfy", "apprise"):
            if getattr(telling, way) and tx.alarm_telling.waiting(user.key) < ALARM_NOTICES_WAITING:
                sealed = self._vault.seal(msgspec.json.encode(notice).decode())
                tx.alarm_telling.add_notice(NoticeRecord(0, user.key, way, sealed, now_ms, now_ms))

    # Notices

    async def send_forever(
        self, ways: AlarmWays, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await Loop(
            partial(self.send, ways),
            every=_LOOK_SECONDS / 3,
            wakeup=self._notices_wait,
            at_once=True,
            failure="notices_not_sent",
            retry_seconds=_RETRY_SECONDS,
        ).run(task_status=task_status)

    async def send(self, ways: AlarmWays) -> bool:
        """Send some notices; return whether there may be more."""
        now_ms = self._clock.now_ms()
        due = await self._database.read(lambda tx: tx.alarm_telling.due_notices(now_ms, of_one=_OF_ONE, limit=_AT_ONCE))
        async with trio.open_nursery() as nursery:
            for notice in due:
                nursery.start_soon(self._send, ways, notice)
        return bool(due)

    async def _send(self, ways: AlarmWays, record: NoticeRecord) -> None:
        problem, is_final = "", False
        stored = await self._database.read(lambda tx: tx.alarm_telling.of(record.user))
        telling = Telling() if stored is None else self._opened(stored)
        try:
            notice = _decode_notice(self._vault.open(record.sealed))
            if record.way == "ntfy" and telling.ntfy is not None:
                await ways.ntfy(telling.ntfy, notice)
            elif record.way == "apprise" and telling.apprise:
                # The operator may allow fewer than when they were set.
                allowed = tuple(one for one in telling.apprise if is_allowed(one, self.schemes))
                if len(allowed) < len(telling.apprise):
                    problem, is_final = "the operator does not allow all of the addresses any more", True
                if allowed:
                    await ways.apprise(allowed, notice)
        except (InvalidToken, msgspec.DecodeError):
            problem, is_final = "the notice was sealed with another key", True
        except NotToldError as error:
            problem, is_final = str(error), error.is_final
        except Exception as error:  # noqa: BLE001 - a bug that one notice triggers must not stop the others
            _log.exception("alarm_notice_failed", way=record.way)
            problem, is_final = f"{type(error).__name__} in the service", True
        is_over = is_final or record.tries >= len(_AGAIN_SECONDS)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            if problem and not is_over:
                tx.alarm_telling.retry(record.key, Milliseconds(now_ms + _AGAIN_SECONDS[record.tries] * 1000))
            else:
                tx.alarm_telling.drop(record.key)
            tx.alarm_telling.note_problem(
                record.user, f"{record.way}: {problem}" if problem else "", now_ms if problem else None
            )

        await self._database.write_own(self._lease, work)
        if not problem:
            self._sent += 1
        elif is_over:
            self._given_up += 1
            _log.warning("alarm_notice_given_up", way=record.way, problem=problem)
        else:
            self._failed += 1

    def statistics(self) -> TellingStatistics:
        return TellingStatistics(self._told, self._sent, self._failed, self._given_up)


class _Plan:
    """The due alarms of a user that are told `now`, one by one or `together`. `later`: the keys of others, and when
    they are told."""

    def __init__(self, user: UserRecord | None, telling: Telling) -> None:
        self.user = user
        self.telling = telling
        self.now: list[AlarmRecord] = []
        self.together = False
        self.later: list[tuple[int, Milliseconds | None]] = []


_Due = tuple[list[AlarmRecord], dict[UserKey, TellingRecord], dict[UserKey, UserRecord]]


def _due(now_ms: Milliseconds, tx: Transaction) -> _Due:
    alarms = tx.alarms.due(now_ms, limit=_DUE_AT_ONCE)
    owners = {one.owner for one in alarms}
    return alarms, tx.alarm_telling.of_users(owners), dict(tx.accounts.users_with(owners))
