"""The queue of outgoing mails: stored with their cause, delivered at least once, given up after 24 hours.

A mail is composed (checked, rendered, sealed) before the transaction of its cause and added within it, so the mail
exists if and only if its cause does. The worker takes the mail that is due first, hands it to the transport and stores
the outcome. After a crash in between, the mail is sent again with the same Message-ID. A mail that is being sent when
the daemon stops has `grace_seconds` to finish; otherwise it stays queued.

While the mail server cannot be reached, no mail is tried until a pause is over. The mail whose attempt failed goes to
the end of the queue. Such failures do not count as attempts of a mail; only answers of the server do.

Beyond the rates of its recipient and its cause, a mail of most kinds is not refused: it is planned for when
the rates allow it, and the mails of the same kind, recipient and cause that come until then are put into it.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import WORK_WAITS
from broker.cluster.news import News
from broker.loops import Loop, Wakeup
from broker.mail.kinds import LinkOrigins, Mail
from broker.mail.letters import Letter, Letters
from broker.mail.transport import MailDeferred, MailRejected, MailServerUnavailable, MailTransport
from broker.secrets import Vault
from config.mail import Sender
from config.settings import Settings
from storage.database import Database
from storage.keys import Milliseconds
from storage.leases import Holder
from storage.outages import Outage
from storage.records import MailRecord
from storage.sql import StoreError
from storage.transaction import Transaction

#: The delays after attempts that the server deferred; the last delay repeats.
RETRY_SECONDS: Final = (60, 300, 900, 1800, 3600, 7200, 14400)
#: The pauses after the server was not reached; the last pause repeats.
OUTAGE_SECONDS: Final = (10, 30, 60, 120, 300)
GIVE_UP_MS: Final = 24 * 3600 * 1000  # reference 22
_LONGEST_PAUSE_MS: Final = max(*RETRY_SECONDS, *OUTAGE_SECONDS) * 1000
WAITING_MAX: Final = 10_000
_DAY_MS: Final = 86_400_000
_LOOK_SECONDS: Final = 60  # the longest wait between two reads of the queue: the wall clock may be set
_STORE_SECONDS: Final = 5
_WORKER: Final = "mails"
_MINUTE_MS: Final = 60_000
_SOON_MS: Final = 1_000  # before its time a mail is not changed any more: the worker may have read it

_log = structlog.get_logger(__name__)


class MailStatistics(msgspec.Struct, frozen=True):
    """`waiting` is the length of the queue when the worker last read it; the others count since the start.

    `joined` counts mails that were put into one that waited.
    """

    waiting: int
    queued: int
    joined: int
    refused: int
    sent: int
    deferred: int
    given_up: int
    server_available: bool


class Mails:
    def __init__(
        self, database: Database, lease: Holder, vault: Vault, clock: Clock, settings: Settings, links: LinkOrigins
    ) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        sender = Sender.of(settings.outbound.mail_from, settings.public_url)
        self._letters = Letters(vault, clock, sender, links)
        self._grace_seconds = settings.grace_seconds
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_shared = False
        self._wakeup = Wakeup()
        self._transport: MailTransport | None = None
        self._sending = trio.Lock()  # one mail is with the transport
        self._asked: dict[str, Callable[[Sequence[str]], Awaitable[bool]]] = {}
        self._outage = 0  # attempts in a row that did not reach the server
        self._paused_until = 0.0
        self._unsaved = Outage("mail_outcome_not_saved")
        self._waiting = self._queued = self._joined = self._refused = self._sent = self._deferred = self._given_up = 0

    def share(self, news: News) -> None:
        """Other nodes add mails, too, and one of them delivers."""
        self._is_shared = True
        news.listen_elsewhere(WORK_WAITS, self._waits)

    def _waits(self, worker: str, _content: None) -> None:
        if worker == _WORKER:
            self._wakeup.set()

    async def send(self, to: str, mail: Mail, *, cause: str) -> bool:
        """Queue a mail in a transaction of its own. With other writes in one transaction: `compose`, then `add`.

        Raises:
            ValidationFailed: see `Letters.compose`.
            StoreError: the mail was not queued.
        """
        letter = self.compose(to, mail, cause=cause)
        return await self._database.write(lambda tx: self.add(tx, letter))

    def compose(self, to: str, mail: Mail, *, cause: str, about: tuple[str, ...] = ()) -> Letter:
        """Check and render a mail for `add`; arguments and errors are those of `Letters.compose`."""
        return self._letters.compose(to, mail, cause=cause, about=about)

    def ask_before(self, kind: str, may_go: Callable[[Sequence[str]], Awaitable[bool]]) -> None:
        """Before a mail of this kind is sent, `may_go` is asked about the objects whose texts it has."""
        self._asked[kind] = may_go

    def add(self, tx: Transaction, letter: Letter) -> bool:
        """Queue a composed mail in the transaction of its cause, on any thread.

        Returns:
            False if the mail is not sent, because the queue is full, or because the rate of its recipient or its cause
            is exceeded: of a kind that `waits`, for a day. The transaction goes on.
        """
        recipient = tx.accounts.user_by_email(letter.record.recipient)
        letter = letter.in_language(None if recipient is None else recipient.language)
        record = letter.record
        if self._join(tx, letter):
            self._joined += 1
            return True
        on = None if tx.mails.count_waiting() >= WAITING_MAX else _first_time(tx, letter)
        if on is None:
            self._refused += 1
            _log.warning("mail_refused", kind=record.kind, recipient=record.recipient, cause=record.cause)
            return False
        tx.mails.add(replace(record, created_on=on, next_on=on))
        self._queued += 1
        if self._token is not None:
            # The worker reads the queue in a write transaction, which comes after the commit of this mail.
            self._token.run_sync_soon(self._wake, idempotent=True)
        elif self._is_shared:
            tx.tell(WORK_WAITS, _WORKER)
        return True

    def _join(self, tx: Transaction, letter: Letter) -> bool:
        """Put the mail into one that is planned for later, which the worker has not taken."""
        if not letter.waits:
            return False
        soon_ms = self._clock.now_ms() + _SOON_MS
        waiting = tx.mails.planned(letter.record, after_ms=soon_ms, until_ms=soon_ms + _DAY_MS)
        content = None if waiting is None else self._letters.joined(waiting, letter)
        if waiting is None or content is None:
            return False
        tx.mails.set_content(waiting.message_id, content)
        return True

    async def forget(self, address: str, name: str) -> None:
        """Remove what the transport keeps of mails to a person who is gone, or that name the person.

        The queue has none of them any more. One that is being sent now is waited for.

        Raises MailServerUnavailable.
        """
        async with self._sending:
            if self._transport is not None:
                await self._transport.forget(address, name)

    def _wake(self) -> None:
        self._wakeup.set()

    async def deliver_forever(
        self,
        transport: MailTransport,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The worker. When it is cancelled, a mail that is being sent has `grace_seconds` to finish."""
        self._token = trio.lowlevel.current_trio_token()
        self._transport = transport
        task_status.started()
        try:
            await Loop(
                partial(self._deliver_next, transport),
                at_once=True,
                failure="mails_not_read",
                retry_seconds=_STORE_SECONDS,
            ).run()
        finally:
            self._token = None  # others tell who sends from now on

    async def _deliver_next(self, transport: MailTransport) -> bool:
        await trio.sleep_until(self._paused_until)
        mail = await self._database.write_own(self._lease, self._look)
        due_ms = _LOOK_SECONDS * 1000 if mail is None else (mail.next_on or 0) - self._clock.now_ms()
        is_first = mail is not None and mail.next_on == mail.created_on
        if due_ms > (_DAY_MS if is_first else _LONGEST_PAUSE_MS):  # the clock was ahead when the attempt was planned
            due_ms = 0
        if mail is not None and due_ms <= 0:
            await self._attempt_shielded(transport, mail)
        else:
            await self._wakeup.wait(min(due_ms / 1000, _LOOK_SECONDS))
        return True

    def _look(self, tx: Transaction) -> MailRecord | None:
        tx.mails.forget_done(self._clock.now_ms() - 2 * _DAY_MS)
        self._waiting = tx.mails.count_waiting()
        return tx.mails.next()

    async def _attempt_shielded(self, transport: MailTransport, mail: MailRecord) -> None:
        sending = trio.CancelScope(shield=True)

        async def send() -> None:
            with sending:
                async with self._sending:
                    if await self._database.read(lambda tx: tx.mails.is_waiting(mail.message_id)):
                        await self._attempt(transport, mail)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            try:
                await trio.sleep_forever()
            finally:
                sending.deadline = trio.current_time() + self._grace_seconds

    async def _attempt(self, transport: MailTransport, mail: MailRecord) -> None:
        log = _log.bind(message_id=mail.message_id, kind=mail.kind)
        try:
            may_go = self._asked.get(mail.kind)
            if may_go is not None and (about := self._letters.about(mail)) and not await may_go(about):
                await self._save(lambda tx: tx.mails.finish(mail.message_id, "withdrawn"))
                log.info("mail_withdrawn")
                return
            await transport.deliver(self._letters.outgoing(mail))
        except MailServerUnavailable as error:
            await self._server_unavailable(mail, str(error))
            return
        except MailRejected as error:
            await self._give_up(mail, str(error))
        except MailDeferred as error:
            log.info("mail_deferred", attempts=mail.attempts + 1, reason=str(error))
            await self._defer(mail, str(error))
        except Exception as error:  # a bug that one mail triggers must not stop the delivery of other mails
            log.exception("mail_attempt_failed")
            await self._defer(mail, type(error).__name__)
        else:
            await self._save(lambda tx: tx.mails.finish(mail.message_id, "sent"))
            self._sent += 1
            log.info(transport.done, attempts=mail.attempts + 1)
        if self._outage:
            _log.info("mail_server_available", failures=self._outage)
            self._outage = 0

    async def _server_unavailable(self, mail: MailRecord, reason: str) -> None:
        pause = _step(OUTAGE_SECONDS, self._outage)
        now_ms = self._clock.now_ms()
        if not self._outage:
            _log.error("mail_server_unavailable", reason=reason)
        self._outage += 1
        self._paused_until = trio.current_time() + pause

        given_up: list[MailRecord] = []

        def note(tx: Transaction) -> None:
            next_on = now_ms + pause * 1000
            tx.mails.defer(mail.message_id, next_on=next_on, attempts=mail.attempts, last_error=reason)
            if self._clock.may_delete():
                given_up[:] = tx.mails.give_up_older(now_ms - GIVE_UP_MS, last_error=reason)

        await self._save(note)
        for old in given_up:
            self._note_given_up(old, reason)

    async def _defer(self, mail: MailRecord, reason: str) -> None:
        now_ms, last_ms = self._clock.now_ms(), mail.created_on + GIVE_UP_MS
        if (
            now_ms >= last_ms and self._clock.may_delete()
        ):  # checked only after an attempt: after a long stop every mail is tried once more
            await self._give_up(mail, reason)
            return
        next_on = now_ms + _step(RETRY_SECONDS, mail.attempts) * 1000
        if now_ms < last_ms:
            next_on = min(next_on, last_ms)
        attempts = mail.attempts + 1
        await self._save(
            lambda tx: tx.mails.defer(mail.message_id, next_on=next_on, attempts=attempts, last_error=reason)
        )
        self._deferred += 1

    async def _give_up(self, mail: MailRecord, reason: str) -> None:
        await self._save(lambda tx: tx.mails.finish(mail.message_id, "given up", last_error=reason))
        self._note_given_up(replace(mail, attempts=mail.attempts + 1), reason)

    def _note_given_up(self, mail: MailRecord, reason: str) -> None:
        self._given_up += 1
        _log.error(
            "mail_given_up",
            message_id=mail.message_id,
            kind=mail.kind,
            recipient=mail.recipient,
            attempts=mail.attempts,
            reason=reason,
        )

    async def _save(self, work: Callable[[Transaction], None]) -> None:
        """Store the outcome of a mail, however long that takes: without the outcome the mail would be sent again."""
        while True:
            try:
                await self._database.write_own(self._lease, work)
            except StoreError as error:
                self._unsaved.failed(error)
                await trio.sleep(_STORE_SECONDS)
            else:
                self._unsaved.succeeded()
                return

    def statistics(self) -> MailStatistics:
        return MailStatistics(
            self._waiting,
            self._queued,
            self._joined,
            self._refused,
            self._sent,
            self._deferred,
            self._given_up,
            server_available=not self._outage,
        )


def _step(delays: tuple[int, ...], taken: int) -> int:
    return delays[min(taken, len(delays) - 1)]


def _first_time(tx: Transaction, letter: Letter) -> Milliseconds | None:
    """The first time at which the rates allow the mail; None if there is none, or none within a day."""
    mail, on = letter.record, letter.record.created_on
    while on < mail.created_on + _DAY_MS:
        ahead_ms = _MINUTE_MS if letter.waits else 0  # mails may be planned already for the minute that begins
        count = partial(
            tx.mails.count_since,
            mail.kind,
            minute_ms=on - _MINUTE_MS,
            day_ms=on // _DAY_MS * _DAY_MS,
            now_ms=on + ahead_ms,
        )
        to_recipient, of_cause = count("recipient", mail.recipient), count("cause", mail.cause)
        rates = ((to_recipient, letter.per_recipient), (of_cause, letter.per_cause))
        if any(day >= rate.day for (_, day), rate in rates):
            next_on = (on // _DAY_MS + 1) * _DAY_MS
        elif any(minute >= rate.minute for (minute, _), rate in rates):
            next_on = on + _MINUTE_MS
        else:
            return Milliseconds(on)
        if not letter.waits:
            return None
        on = next_on
    return None
