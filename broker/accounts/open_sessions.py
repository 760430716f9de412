"""The browser sessions of one person, as the person sees and ends them (reference 5.5)."""

import msgspec

from broker.accounts.sessions import password_mark
from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.facts import SessionsEnded
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.records import SessionRecord, UserRecord
from storage.transaction import Transaction


class OpenSession(msgspec.Struct, frozen=True):
    """A session as its person sees it. `id` is not the id that the browser has, and does not lead to it."""

    id: str
    address: str
    user_agent: str
    created_on: int
    used_on: int
    expires_on: int


class OpenSessions:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def of(self, user: UserRecord) -> list[OpenSession]:
        """The person's sessions, the newest first."""
        now_ms, mark = self._clock.now_ms(), password_mark(user)
        records = await self._database.read(lambda tx: tx.sessions.of(user.key, now_ms=now_ms))
        return [_shown(record) for record in records if record.password == mark]

    async def end(self, user: UserRecord, shown_id: str) -> bool:
        """End one of the person's sessions, by the id that `of` gives. Returns whether there was one."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> bool:
            of_user = tx.sessions.of(user.key, now_ms=now_ms)
            found = [one.hash for one in of_user if shown_session_id(one.hash) == shown_id]
            for hash_ in found:
                tx.sessions.remove(hash_)
                note(tx, AuditEvent.SIGN_OUT, f"account {user.id}", now_ms=now_ms)
            if found:
                publish(tx, SessionsEnded(user.key))
            return bool(found)

        return await self._database.write(work)

    async def end_all(self, user: UserRecord) -> None:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.sessions.remove_of(user.key)
            note(tx, AuditEvent.SIGN_OUT, f"account {user.id}", now_ms=now_ms, sessions="all")
            publish(tx, SessionsEnded(user.key))

        await self._database.write(work)


def shown_session_id(hash_: bytes) -> str:
    """The id under which a person sees a session, from the hash in the store."""
    return token_hash(hash_.hex())[:16].hex()


def _shown(record: SessionRecord) -> OpenSession:
    used_on = max(record.used_on, record.created_on)
    return OpenSession(
        shown_session_id(record.hash), record.address, record.user_agent, record.created_on, used_on, record.expires_on
    )
