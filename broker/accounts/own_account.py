"""A person's own account beside signing in: the name, the language, and the history of the account."""

from typing import Final

from msgspec.structs import replace

from broker.accounts.sign_up import check_full_name
from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.errors import Finding, UserNotFound, ValidationFailed, choice, invalid
from broker.facts import UserProfileUpdated
from broker.trace.audit import AuditEvent, AuditLog, note
from config.languages import LANGUAGES
from storage.database import Database
from storage.records import AuditRecord, UserRecord
from storage.transaction import Transaction

#: Events whose details have somebody's address.
_INVITING: Final = frozenset(
    {
        AuditEvent.TRIAL_INVITATION_SENT,
        AuditEvent.TRIAL_INVITATION_ACCEPTED,
        AuditEvent.TRIAL_INVITATION_REVOKED,
    }
)


class OwnAccount:
    def __init__(self, database: Database, clock: Clock, audit: AuditLog) -> None:
        self._database = database
        self._clock = clock
        self._audit = audit

    async def change(self, user: UserRecord, full_name: str, language: str | None = None) -> UserRecord:
        """Give a user another display name, and another language. Returns the user as changed.

        Args:
            user: the person.
            full_name: the display name.
            language: of the pages; empty: as the browser wants it; None: it stays as it is.

        Raises:
            ValidationFailed: the name is too long or has characters that cannot be shown, or there are no pages in the
                language.
            UserNotFound: the user was deleted.
            StoreError: nothing was changed.
        """
        full_name, now_ms = full_name.strip(), self._clock.now_ms()
        if finding := check_full_name(full_name):
            raise ValidationFailed((finding,))
        if language and language not in LANGUAGES:
            raise ValidationFailed((Finding("language", (invalid(choice((*LANGUAGES, "an empty text"))),)),))

        def work(tx: Transaction) -> UserRecord:
            known = tx.accounts.user(user.key)
            if known is None:
                raise UserNotFound
            spoken = known.language if language is None else language or None
            if (known.full_name, known.language) == (full_name, spoken):
                return known
            if known.full_name != full_name:
                tx.accounts.rename_user(user.key, full_name, now_ms=now_ms)
            if known.language != spoken:
                tx.accounts.set_language(user.key, spoken, now_ms=now_ms)
            note(tx, AuditEvent.PROFILE_CHANGED, f"account {user.id}", now_ms=now_ms)
            publish(tx, UserProfileUpdated(user.key, user.id, now_ms))
            return replace(known, full_name=full_name, language=spoken, modified_on=now_ms)

        return await self._database.write(work)

    async def activity(
        self, user: UserRecord, *, offset: int, limit: int, with_invited: bool
    ) -> tuple[list[AuditRecord], int]:
        """The user's actions and changes of the account (reference 28.2), the newest first; and the number of all.

        `with_invited`: also the addresses that the user invited to trials. Raises StoreError.
        """
        await self._audit.flush()
        found, total = await self._database.read(lambda tx: tx.audit.of_user(user.id, offset=offset, limit=limit))
        return [one if with_invited or one.event not in _INVITING else _without_address(one) for one in found], total


def _without_address(entry: AuditRecord) -> AuditRecord:
    return replace(entry, details={name: text for name, text in entry.details.items() if name != "email"})
