"""Sessions of trials, and the documents that are kept with them. The caller holds the transaction."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from storage.keys import Milliseconds, UserKey
from storage.sql import Store, record_values, replacing, sure


class TrialSessionRecord(msgspec.Struct, frozen=True):
    """A session of a participant. `devices` are ids, separated by commas."""

    key: int
    id: str
    trial: int
    user: UserKey
    devices: str
    started_on: Milliseconds | None
    ended_on: Milliseconds | None
    created_on: Milliseconds


class TrialDocumentRecord(msgspec.Struct, frozen=True):
    """`kind` is metadata, rule or rule metadata; `content` and `sharing` are JSON objects.

    `name` and `session` are the members `key` and `sessionId` of the content, if these are texts.
    """

    key: int
    id: str
    trial: int
    kind: str
    name: str | None
    session: str | None
    content: str
    sharing: str
    created_on: Milliseconds


class SessionSearch(msgspec.Struct, frozen=True):
    """Sessions of these trials that fit all that is given. An empty list fits every session."""

    trials: Sequence[int]
    participants: Sequence[str] = ()  # user ids
    devices: Sequence[str] = ()  # ids, of which the session has one
    metadata: Sequence[str] = ()  # ids or keys of metadata, of which one names the session
    start_ms: int | None = None  # it began then or later
    end_ms: int | None = None  # it ended then or earlier


_SESSION: Final = TrialSessionRecord.__struct_fields__[1:]
_DOCUMENT: Final = TrialDocumentRecord.__struct_fields__[1:]


class TrialSessionStore(Store):
    # Sessions

    def add(self, session: TrialSessionRecord) -> None:
        row = self._insert("trial_session", record_values(session, _SESSION), "RETURNING key").one()
        key = int(sure(row)["key"])
        for device in filter(None, session.devices.split(",")):
            self._insert("trial_session_device", {"session": key, "device": device})

    def put(self, session: TrialSessionRecord) -> None:
        """Change start and end of the session with this key."""
        self._db.execute(
            "UPDATE trial_session SET started_on = :start, ended_on = :end WHERE key = :key",
            {"key": session.key, "start": session.started_on, "end": session.ended_on},
        )

    def remove(self, key: int) -> None:
        self._db.execute("DELETE FROM trial_session WHERE key = :key", {"key": key})

    def by_id(self, id_: str) -> TrialSessionRecord | None:
        row = self._db.execute("SELECT * FROM trial_session WHERE id = :id", {"id": id_}).one()
        return TrialSessionRecord(**dict(row)) if row else None

    def count(self, trial: int) -> int:
        return self._number_of(" FROM trial_session WHERE trial = :trial", {"trial": trial})

    def page(
        self, trial: int, user: UserKey | None, *, ongoing: bool, offset: int, limit: int
    ) -> tuple[list[TrialSessionRecord], int]:
        """A page of the sessions of one participant or of all, oldest first, and the number of all."""
        where = " FROM trial_session WHERE trial = :trial" + ("" if user is None else " AND user = :user")
        if ongoing:
            where += " AND started_on IS NOT NULL AND ended_on IS NULL"
        return self._page(where, {"trial": trial, "user": user, "offset": offset, "limit": limit})

    def search(self, wanted: SessionSearch, *, offset: int, limit: int) -> tuple[list[TrialSessionRecord], int]:
        """A page of the sessions that fit, oldest first, and the number of all."""
        given: dict[str, object] = {"offset": offset, "limit": limit}
        trials = ", ".join(_named("trial", wanted.trials, given))
        where = f" FROM trial_session AS s WHERE s.trial IN ({trials})"
        if wanted.participants:
            users = ", ".join(_named("user", wanted.participants, given))
            where += f" AND s.user IN (SELECT key FROM user WHERE id IN ({users}))"  # noqa: S608 - parameters
        if wanted.devices:
            dids = ", ".join(_named("device", wanted.devices, given))
            where += f" AND s.key IN (SELECT session FROM trial_session_device WHERE device IN ({dids}))"  # noqa: S608 - parameters
        if wanted.metadata:
            keys = ", ".join(_named("metadata", wanted.metadata, given))
            where += (
                " AND s.id IN (SELECT session FROM trial_document WHERE kind = 'metadata'"  # noqa: S608 - parameters
                f" AND trial IN ({trials}) AND (id IN ({keys}) OR name IN ({keys})))"
            )
        for name, condition in (("start_ms", "s.started_on >= :start_ms"), ("end_ms", "s.ended_on <= :end_ms")):
            if (value := getattr(wanted, name)) is not None:
                given[name] = value
                where += f" AND {condition}"
        return self._page(where, given)

    def _page(self, where: str, given: Mapping[str, object]) -> tuple[list[TrialSessionRecord], int]:
        rows = self._db.execute(f"SELECT *{where} ORDER BY key LIMIT :limit OFFSET :offset", given)
        return [TrialSessionRecord(**dict(row)) for row in rows], self._number_of(where, given)

    # Documents

    def put_document(self, document: TrialDocumentRecord) -> None:
        """Add a document, or replace content and sharing of the one with its id."""
        changed = replacing(("name", "session", "content", "sharing"))
        self._insert("trial_document", record_values(document, _DOCUMENT), f"ON CONFLICT (id) DO UPDATE SET {changed}")

    def remove_document(self, id_: str) -> None:
        self._db.execute("DELETE FROM trial_document WHERE id = :id", {"id": id_})

    def document(self, id_: str) -> TrialDocumentRecord | None:
        row = self._db.execute("SELECT * FROM trial_document WHERE id = :id", {"id": id_}).one()
        return TrialDocumentRecord(**dict(row)) if row else None

    def count_documents(self, trial: int, kind: str) -> int:
        given = {"trial": trial, "kind": kind}
        return self._number_of(" FROM trial_document WHERE trial = :trial AND kind = :kind", given)

    def page_of_documents(
        self, trial: int, kind: str, name: str | None, *, offset: int, limit: int
    ) -> tuple[list[TrialDocumentRecord], int]:
        """A page of a trial's documents of one kind, oldest first, and the number of all. `name`: only these."""
        where = " FROM trial_document WHERE trial = :trial AND kind = :kind" + (
            "" if name is None else " AND name = :name"
        )
        given = {"trial": trial, "kind": kind, "name": name, "offset": offset, "limit": limit}
        rows = self._db.execute(f"SELECT *{where} ORDER BY key LIMIT :limit OFFSET :offset", given)
        return [TrialDocumentRecord(**dict(row)) for row in rows], self._number_of(where, given)


def _named(kind: str, values: Sequence[object], given: dict[str, object]) -> list[str]:
    """The names of parameters for the values, which are added to `given`."""
    names = [f"{kind}_{index}" for index in range(len(values))]
    given |= dict(zip(names, values, strict=True))
    return [f":{name}" for name in names] or ["NULL"]
