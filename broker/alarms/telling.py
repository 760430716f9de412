"""Tells users of their alarms (reference 12.13).

Of the alarms that are due, one step writes the mails and notices, and when each alarm is due next, in one commit. Mails
are sent by their queue, notices by `broker/alarms/notices.py`.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio

from broker.alarms.links import AlarmLinks
from broker.alarms.readers import AlarmReaders
from broker.alarms.telling_settings import TellingSettings
from broker.alarms.ways import SEVERITIES, AlarmNotice, Telling, quiet_until
from broker.alarms.words import AlarmWords, words_in
from broker.clock import Clock
from broker.errors import Conflict, ValidationFailed
from broker.loops import Loop, Wakeup
from broker.mail import AlarmMail, Mails
from broker.secrets import Vault
from config.limits import ALARM_NOTICES_A_HOUR, ALARM_NOTICES_WAITING
from storage.alarm_telling import NoticeRecord, TellingRecord
from storage.alarms import AlarmRecord
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.leases import Holder
from storage.records import UserRecord
from storage.transaction import Transaction

_DUE_AT_ONCE: Final = 500
_ONE_BY_ONE: Final = 3  # of a user; more are told together
_LISTED: Final = 10
_TIMES: Final = 100  # told of one alarm
_LOOK_SECONDS: Final = 30.0  # the wall clock may be set
_RETRY_SECONDS: Final = 5.0
_HOUR_MS: Final = 3_600_000
NO_WAYS: Final = "No way is set on which to tell"


class TellingStatistics(msgspec.Struct, frozen=True):
    """Alarms that were told since the start, by this node."""

    told: int


@dataclass(eq=False)
class AlarmTelling:
    """`wakeup`: alarms may be due. `notices_wait` wakes the sender of notices."""

    _database: Database
    _clock: Clock
    _vault: Vault
    _mails: Mails
    _links: AlarmLinks
    _settings: TellingSettings
    _readers: AlarmReaders
    _lease: Holder
    _wakeup: Wakeup
    _notices_wait: Wakeup

    def __post_init__(self) -> None:
        self._hour = 0
        self._in_hour = Counter[UserKey]()
        self._told = 0

    async def test(self, user: UserRecord) -> None:
        """Tell once, on all ways, that this is how it comes. Raises Conflict."""
        record = await self._database.read(lambda tx: tx.alarm_telling.of(user.key))
        telling = self._settings.opened(record)
        if not telling.has_ways or not self._room(user.key):
            raise Conflict(NO_WAYS if not telling.has_ways else "Too many notices in an hour")
        self._in_hour[user.key] += 1
        words = words_in(user.language)
        notice = AlarmNotice(words.test, words.test_text, "info")
        now_ms = self._clock.now_ms()
        await self._database.write(lambda tx: self._write(tx, user, telling, notice, now_ms))
        self._notices_wait.set()

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
        unreadable = await self._readers.unreadable(due)
        plans = [
            self._plan(users.get(key), tellings.get(key), some, unreadable, now_ms) for key, some in of_users.items()
        ]

        def work(tx: Transaction) -> int:
            return sum(self._carry_out(tx, plan, now_ms) for plan in plans)

        self._told += await self._database.write_own(self._lease, work)
        self._notices_wait.set()
        return len(due) == _DUE_AT_ONCE

    def _plan(
        self,
        user: UserRecord | None,
        record: TellingRecord | None,
        alarms: Sequence[AlarmRecord],
        unreadable: Collection[str],
        now_ms: Milliseconds,
    ) -> "_Plan":
        telling = self._settings.opened(record)
        plan = _Plan(user, telling)
        for alarm in alarms:
            is_told = telling.is_told_of(alarm.severity) and alarm.told < _TIMES and alarm.id not in unreadable
            if user is None or not is_told:
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
        for notice in self._notices(still, plan.user.language, together=plan.together):
            self._write(tx, plan.user, plan.telling, notice, now_ms)
        again = plan.telling.again_minutes
        next_on = Milliseconds(now_ms + again * 60_000) if again else None
        tx.alarms.note_told([one.key for one in still], next_on=next_on, was_told=True)
        return len(still)

    def _notices(self, alarms: Sequence[AlarmRecord], language: str | None, *, together: bool) -> list[AlarmNotice]:
        """One for each alarm, or one with their number."""
        words = words_in(language)
        if not together or len(alarms) == 1:
            return [self._notice(one, words) for one in alarms]
        worst = max(alarms, key=lambda one: SEVERITIES.index(one.severity))
        lines = [words.headed(one.severity, one.text) for one in alarms[:_LISTED]]
        if len(alarms) > _LISTED:
            lines.append(words.more.format(count=len(alarms) - _LISTED))
        listed = tuple(one.id for one in alarms[:_LISTED])
        return [AlarmNotice(words.alarms.format(count=len(alarms)), "\n".join(lines), worst.severity, alarms=listed)]

    def _notice(self, alarm: AlarmRecord, words: AlarmWords) -> AlarmNotice:
        text = alarm.text if alarm.count == 1 else words.times.format(text=alarm.text, count=alarm.count)
        return AlarmNotice(
            words.headed(alarm.severity, alarm.rule_name),
            text,
            alarm.severity,
            self._links.link(alarm.id),
            (alarm.id,),
            words.acknowledge,
        )

    def _write(
        self, tx: Transaction, user: UserRecord, telling: Telling, notice: AlarmNotice, now_ms: Milliseconds
    ) -> None:
        """Queue a notice on each way."""
        if telling.mail and user.email:
            mail = AlarmMail(title=notice.title, text=notice.text, address=notice.link)
            try:
                letter = self._mails.compose(user.email, mail, cause=f"user {user.id}", about=notice.alarms)
                if not self._mails.add(tx, letter):
                    tx.alarm_telling.note_problem(user.key, "mail: too many mails wait", now_ms)
            except ValidationFailed as error:  # no address that a mail can be sent to
                tx.alarm_telling.note_problem(user.key, str(error), now_ms)
        for way in ("ntfy", "apprise"):
            if getattr(telling, way) and tx.alarm_telling.waiting(user.key) < ALARM_NOTICES_WAITING:
                sealed = self._vault.seal(msgspec.json.encode(notice).decode())
                tx.alarm_telling.add_notice(NoticeRecord(0, user.key, way, sealed, now_ms, now_ms))

    # Mails that wait

    async def may_be_mailed(self, alarms: Sequence[str]) -> bool:
        """Whether a mail about these alarms may go. If not, its user is told again of the others."""
        if await self._readers.may_read(alarms):
            return True
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            for owner in {alarm.owner for alarm in tx.alarms.by_ids(alarms)}:
                tx.alarms.tell_again(owner, now_ms)

        await self._database.write_own(self._lease, work)
        self._wakeup.set()
        return False

    def statistics(self) -> TellingStatistics:
        return TellingStatistics(self._told)


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
