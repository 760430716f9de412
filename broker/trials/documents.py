"""Documents beside the sessions of a trial, stored unevaluated: metadata, rules, metadata of rules (reference 14.5)."""

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.errors import TEXT_ONLY, Conflict, NotFound, ValidationFailed, too_long
from broker.ids import new_id
from broker.trials.roles import going
from broker.trials.sessions import uuid_of
from config.limits import TRIAL_DOCUMENT_BYTES, TRIAL_DOCUMENTS, TRIAL_KEY_CHARACTERS
from storage.database import Database
from storage.records import NEW_KEY
from storage.transaction import Transaction
from storage.trial_sessions import TrialDocumentRecord
from storage.trials import TrialRecord

_TEXTS: Final = ("key", "sessionId")


class DocumentKind(StrEnum):
    METADATA = "metadata"
    RULE = "rule"
    RULE_METADATA = "rule metadata"


class TrialDocument(msgspec.Struct, frozen=True):
    record: TrialDocumentRecord

    @property
    def content(self) -> dict[str, Any]:
        """The object as it was sent, with `id` and `uuid`."""
        sent: dict[str, Any] = msgspec.json.decode(self.record.content)
        return sent | {"id": self.record.id, "uuid": uuid_of(self.record.id)}

    @property
    def sharing(self) -> dict[str, Any]:
        sent: dict[str, Any] = msgspec.json.decode(self.record.sharing)
        return sent


class TrialDocuments:
    """The caller checks the role."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find(self, trial: TrialRecord, kind: DocumentKind, document_id: str) -> TrialDocument:
        """Raises NotFound."""
        found = await self._database.read(lambda tx: tx.trial_sessions.document(document_id))
        if found is None or (found.trial, found.kind) != (trial.key, kind):
            raise NotFound
        return TrialDocument(found)

    async def rule(self, rule_id: str) -> tuple[TrialRecord, TrialDocument]:
        """A rule and its trial. Raises NotFound."""

        def work(tx: Transaction) -> tuple[TrialRecord, TrialDocument]:
            found = tx.trial_sessions.document(rule_id)
            trial = None if found is None else tx.trials.trial(found.trial)
            if found is None or trial is None or found.kind != DocumentKind.RULE:
                raise NotFound
            return trial, TrialDocument(found)

        return await self._database.read(work)

    async def page(
        self, trial: TrialRecord, kind: DocumentKind, *, key: str | None = None, offset: int, count: int
    ) -> tuple[list[TrialDocument], int]:
        """A page of the documents of one kind, oldest first, and the number of all. `key`: only with this key."""
        found, total = await self._database.read(
            lambda tx: tx.trial_sessions.page_of_documents(trial.key, kind, key, offset=offset, limit=count)
        )
        return list(map(TrialDocument, found)), total

    async def require_key(self, trial: TrialRecord, kind: DocumentKind, key: str) -> None:
        """Raises NotFound: no document has the key."""
        _, total = await self.page(trial, kind, key=key, offset=0, count=1)
        if not total:
            raise NotFound

    async def add(self, trial: TrialRecord, kind: DocumentKind, content: dict[str, Any]) -> TrialDocument:
        """Keep a new object.

        Raises:
            ValidationFailed: it is too large, or its `key` or `sessionId` is no text.
            NotFound: the trial was deleted.
            Conflict: it is stopped, or has too many.
        """
        record = TrialDocumentRecord(
            key=NEW_KEY,
            id=new_id(),
            trial=trial.key,
            kind=kind,
            content=_json(content, kind),
            sharing="{}",
            created_on=self._clock.now_ms(),
            **_named(content),
        )

        def work(tx: Transaction) -> TrialDocument:
            if tx.trial_sessions.count_documents(going(tx, trial).key, kind) >= TRIAL_DOCUMENTS:
                raise Conflict(f"At most {TRIAL_DOCUMENTS} of a trial")
            tx.trial_sessions.put_document(record)
            return TrialDocument(record)

        return await self._database.write(work)

    async def replace(self, trial: TrialRecord, document: TrialDocument, content: dict[str, Any]) -> TrialDocument:
        """Replace the object. Raises ValidationFailed, NotFound, Conflict: see `add`."""
        return await self._put(
            trial, replace(document.record, content=_json(content, document.record.kind), **_named(content))
        )

    async def share(self, trial: TrialRecord, document: TrialDocument, sharing: dict[str, Any]) -> TrialDocument:
        """Replace what is kept about the sharing of a rule. Raises ValidationFailed, NotFound, Conflict: see `add`."""
        return await self._put(trial, replace(document.record, sharing=_json(sharing, "sharing")))

    async def remove(self, trial: TrialRecord, document: TrialDocument) -> TrialDocument:
        """Remove a document. Raises NotFound: it was deleted; Conflict: the trial is stopped."""

        def work(tx: Transaction) -> TrialDocument:
            _check_present(tx, trial, document.record)
            tx.trial_sessions.remove_document(document.record.id)
            return document

        return await self._database.write(work)

    async def _put(self, trial: TrialRecord, record: TrialDocumentRecord) -> TrialDocument:
        def work(tx: Transaction) -> TrialDocument:
            _check_present(tx, trial, record)
            tx.trial_sessions.put_document(record)
            return TrialDocument(record)

        return await self._database.write(work)


def _check_present(tx: Transaction, trial: TrialRecord, record: TrialDocumentRecord) -> None:
    if tx.trial_sessions.document(record.id) is None:
        raise NotFound
    going(tx, trial)


def _json(content: dict[str, Any], member: str) -> str:
    text = msgspec.json.encode(content)
    if len(text) > TRIAL_DOCUMENT_BYTES:
        raise ValidationFailed.of(member, too_long(TRIAL_DOCUMENT_BYTES))
    return text.decode()


def _named(content: dict[str, Any]) -> dict[str, Any]:
    """The members by which an object is found."""
    for member in _TEXTS:
        value = content.get(member)
        if value is not None and not isinstance(value, str):
            raise ValidationFailed.of(member, TEXT_ONLY)
        if isinstance(value, str) and len(value) > TRIAL_KEY_CHARACTERS:
            raise ValidationFailed.of(member, too_long(TRIAL_KEY_CHARACTERS))
    return {"name": content.get("key"), "session": content.get("sessionId")}
