"""Metadata and rules of the sessions of trials (reference 14.5): JSON objects that are kept and returned."""

from functools import partial
from typing import Annotated, Any, Final

from broker.accounts.tokens import Caller
from broker.trials.documents import DocumentKind, TrialDocument
from broker.trials.room import TrialsRoom
from broker.trials.sessions import uuid_of
from config.limits import TRIAL_DOCUMENT_BYTES, TRIAL_DOCUMENTS
from protocols.http.calls import USER, Accepts, RestCall, RestCalls, SharedFinder
from protocols.http.openapi import samples
from protocols.http.rest.named import ADMINISTERED_TRIAL, TRIAL_ADMINISTRATOR, Named
from protocols.http.rest.trial_sessions import SESSIONS
from protocols.http.rest.trials import ENDED, TRIAL_NAMES
from protocols.http.schema import Id, NumberedPage, Paging, Shape, about, text
from storage.trials import TrialRecord

_METADATA: Final = "/trials/{tid}/sessions/metadata"
_ONE: Final = f"{_METADATA}/{{mid}}"
_RULES: Final = "/trials/{tid}/sessions/rules"
_RULE: Final = "/trials/sessions/rules/{rid}"
_RULE_METADATA: Final = "/trials/{tid}/sessions/rules/metadata"
_OF_RULES: Final = f"{_RULE_METADATA}/{{rmid}}"
_NOTE: Final = {"key": "mood", "sessionId": samples.TRIAL_SESSION, "value": "good"}
_RULE_BODY: Final = {"name": "Remind", "enabled": True}
_ABOUT: Final = f"Any JSON object of at most {TRIAL_DOCUMENT_BYTES} bytes; a trial keeps at most {TRIAL_DOCUMENTS}."

#: A trial, and a document of it or a kind of its documents.
_Found = tuple[TrialRecord, TrialDocument]
_Collection = tuple[TrialRecord, DocumentKind]


def _kept(id_: str, sent: dict[str, Any]) -> dict[str, Any]:
    return {**sent, "id": id_, "uuid": uuid_of(id_)}


def _free(example: dict[str, Any]) -> Accepts:
    return Accepts({"application/json": Annotated[dict[str, Any], about("Free")]}, example)


_Object = Annotated[
    dict[str, Any],
    about("As it was sent, with `id` and `uuid`", example=_kept(samples.TRIAL_METADATA, _NOTE)),
]
_Rule = Annotated[
    dict[str, Any], about("As it was sent, with `id` and `uuid`", example=_kept(samples.TRIAL_RULE, _RULE_BODY))
]
_Sharing = Annotated[dict[str, Any], about("As it was sent", example={"users": [samples.UID]})]


class _MetadataAnswer(Shape):
    data: _Object


class _RuleAnswer(Shape):
    data: _Rule


class _SharingAnswer(Shape):
    data: _Sharing


class _Metadata(Shape):
    metadata: list[_Object]


class _Rules(Shape):
    rules: list[_Rule]


_get = partial(RestCall, "GET", tokens=USER)
_post = partial(RestCall, "POST", tokens=USER, refusals={409: ENDED})
_put = partial(RestCall, "PUT", tokens=USER, refusals={409: ENDED})
_delete = partial(RestCall, "DELETE", tokens=USER, refusals={409: ENDED})


def _collection(kind: DocumentKind) -> SharedFinder:
    async def find(named: Named, caller: Caller, tid: str) -> _Collection:
        return await named.administered_trial(caller, tid), kind

    return SharedFinder(find)


class TrialDocumentCalls(RestCalls):
    chapter = SESSIONS
    path_names = {
        **TRIAL_NAMES,
        "mid": (Annotated[Id, about("Metadata of sessions")], samples.TRIAL_METADATA),
        "key": (Annotated[str, text("The member `key` of metadata")], "mood"),
        "rid": (Annotated[Id, about("A rule for sessions")], samples.TRIAL_RULE),
        "rmid": (Annotated[Id, about("Metadata of rules")], samples.RULE_METADATA),
    }

    def __init__(self, trials: TrialsRoom) -> None:
        self._trials = trials.trials
        self._documents = trials.documents
        self._is_on = trials.sessions.is_on

    @property
    def is_served(self) -> bool:
        return self._is_on

    async def _metadata(self, caller: Caller, tid: str, mid: str) -> _Found:
        return await self._document(caller, tid, mid, DocumentKind.METADATA)

    async def _rule_metadata(self, caller: Caller, tid: str, rmid: str) -> _Found:
        return await self._document(caller, tid, rmid, DocumentKind.RULE_METADATA)

    async def _document(self, caller: Caller, tid: str, id_: str, kind: DocumentKind) -> _Found:
        trial = await self._trials.find(tid)
        document = await self._documents.find(trial, kind, id_)
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        return trial, document

    async def _rule(self, caller: Caller, rid: str) -> _Found:
        trial, rule = await self._documents.rule(rid)
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        return trial, rule

    async def _keyed(self, caller: Caller, tid: str, key: str) -> tuple[TrialRecord, str]:
        trial = await self._trials.find(tid)
        await self._documents.require_key(trial, DocumentKind.METADATA, key)
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        return trial, key

    # Metadata of sessions, and metadata of rules

    @_post(
        _METADATA,
        on=_collection(DocumentKind.METADATA),
        summary="Keep metadata of sessions",
        about=f"{_ABOUT} By the text `key` it can be found, and by `sessionId` its session.",
        accepts=_free(_NOTE),
    )
    @_post(
        _RULE_METADATA,
        on=_collection(DocumentKind.RULE_METADATA),
        summary="Keep metadata of rules",
        about=_ABOUT,
        accepts=_free(_NOTE),
    )
    async def add_metadata(self, collection: _Collection, body: dict[str, Any]) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.add(*collection, body)).content)

    @_get(_METADATA, on=_collection(DocumentKind.METADATA), summary="Metadata of a trial's sessions")
    @_get(_RULE_METADATA, on=_collection(DocumentKind.RULE_METADATA), summary="Metadata of a trial's rules")
    async def metadata_of_trial(self, collection: _Collection, query: Paging) -> NumberedPage[_Metadata]:
        return await self._page(*collection, query)

    @_get(f"{_METADATA}/key/{{key}}", on=_keyed, summary="Metadata with a key")
    async def metadata_with_key(self, found: tuple[TrialRecord, str], query: Paging) -> NumberedPage[_Metadata]:
        trial, key = found
        return await self._page(trial, DocumentKind.METADATA, query, key=key)

    @_get(_ONE, on=_metadata, summary="One object of metadata")
    @_get(_OF_RULES, on=_rule_metadata, summary="One object of rule metadata")
    async def metadata(self, found: _Found) -> _MetadataAnswer:
        return _MetadataAnswer(found[1].content)

    @_put(_ONE, on=_metadata, summary="Replace metadata", accepts=_free(_NOTE))
    @_put(_OF_RULES, on=_rule_metadata, summary="Replace rule metadata", accepts=_free(_NOTE))
    async def replace_metadata(self, found: _Found, body: dict[str, Any]) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.replace(*found, body)).content)

    @_delete(_ONE, on=_metadata, summary="Delete metadata")
    @_delete(_OF_RULES, on=_rule_metadata, summary="Delete rule metadata")
    async def remove_metadata(self, found: _Found) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.remove(*found)).content)

    async def _page(
        self, trial: TrialRecord, kind: DocumentKind, query: Paging, *, key: str | None = None
    ) -> NumberedPage[_Metadata]:
        found, total = await self._documents.page(trial, kind, key=key, offset=query.offset, count=query.count)
        return NumberedPage(_Metadata([one.content for one in found]), total, query.offset, len(found))

    # Rules

    @_post(
        _RULES,
        on=ADMINISTERED_TRIAL,
        summary="Keep a rule for sessions",
        about=f"{_ABOUT} It is not evaluated.",
        accepts=_free(_RULE_BODY),
    )
    async def add_rule(self, trial: TrialRecord, body: dict[str, Any]) -> _RuleAnswer:
        return _RuleAnswer((await self._documents.add(trial, DocumentKind.RULE, body)).content)

    @_get(_RULES, on=ADMINISTERED_TRIAL, summary="Rules for a trial's sessions")
    async def rules(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Rules]:
        found, total = await self._documents.page(trial, DocumentKind.RULE, offset=query.offset, count=query.count)
        return NumberedPage(_Rules([one.content for one in found]), total, query.offset, len(found))

    @_get(_RULE, on=_rule, summary="One rule for sessions")
    async def rule(self, found: _Found) -> _RuleAnswer:
        return _RuleAnswer(found[1].content)

    @_put(_RULE, on=_rule, summary="Replace a rule for sessions", accepts=_free(_RULE_BODY))
    async def replace_rule(self, found: _Found, body: dict[str, Any]) -> _RuleAnswer:
        return _RuleAnswer((await self._documents.replace(*found, body)).content)

    @_delete(_RULE, on=_rule, summary="Delete a rule for sessions")
    async def remove_rule(self, found: _Found) -> _RuleAnswer:
        return _RuleAnswer((await self._documents.remove(*found)).content)

    @_get(f"{_RULE}/sharing", on=_rule, summary="How a rule is shared")
    async def sharing(self, found: _Found) -> _SharingAnswer:
        return _SharingAnswer(found[1].sharing)

    @_put(
        f"{_RULE}/sharing",
        on=_rule,
        summary="Keep how a rule is shared",
        about="Any JSON object; it gives nobody any access.",
        accepts=_free({"users": [samples.UID]}),
    )
    async def share(self, found: _Found, body: dict[str, Any]) -> _SharingAnswer:
        return _SharingAnswer((await self._documents.share(*found, body)).sharing)
