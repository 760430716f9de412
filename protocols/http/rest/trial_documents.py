"""Metadata and rules of the sessions of trials (reference 14.5): JSON objects that are kept and returned."""

from typing import Annotated, Any, Final

from broker.accounts.tokens import Caller
from broker.trials.documents import DocumentKind, TrialDocument
from broker.trials.room import TrialsRoom
from broker.trials.sessions import uuid_of
from config.limits import TRIAL_DOCUMENT_BYTES, TRIAL_DOCUMENTS
from protocols.http.calls import USER, Accepts, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.trial_sessions import SESSIONS
from protocols.http.rest.trials import ADMINISTRATOR, ENDED, TRIAL_NAMES
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

#: A trial and a document of it.
_Found = tuple[TrialRecord, TrialDocument]


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

    async def _administered(self, caller: Caller, tid: str) -> TrialRecord:
        trial = await self._trials.find(tid)
        await self._trials.require(caller, trial, ADMINISTRATOR)
        return trial

    async def _metadata(self, caller: Caller, tid: str, mid: str) -> _Found:
        return await self._document(caller, tid, mid, DocumentKind.METADATA)

    async def _metadata_of_rules(self, caller: Caller, tid: str, rmid: str) -> _Found:
        return await self._document(caller, tid, rmid, DocumentKind.RULE_METADATA)

    async def _document(self, caller: Caller, tid: str, id_: str, kind: DocumentKind) -> _Found:
        trial = await self._trials.find(tid)
        document = await self._documents.find(trial, kind, id_)
        await self._trials.require(caller, trial, ADMINISTRATOR)
        return trial, document

    async def _rule(self, caller: Caller, rid: str) -> _Found:
        trial, rule = await self._documents.rule(rid)
        await self._trials.require(caller, trial, ADMINISTRATOR)
        return trial, rule

    async def _keyed(self, caller: Caller, tid: str, key: str) -> tuple[TrialRecord, str]:
        trial = await self._trials.find(tid)
        await self._documents.require_key(trial, DocumentKind.METADATA, key)
        await self._trials.require(caller, trial, ADMINISTRATOR)
        return trial, key

    # Metadata of sessions

    @RestCall(
        "POST",
        _METADATA,
        tokens=USER,
        on=_administered,
        summary="Keep metadata of sessions",
        about=f"{_ABOUT} By the text `key` it can be found, and by `sessionId` its session.",
        accepts=_free(_NOTE),
        refusals={409: ENDED},
    )
    async def add_metadata(self, trial: TrialRecord, body: dict[str, Any]) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.add(trial, DocumentKind.METADATA, body)).content)

    @RestCall("GET", _METADATA, tokens=USER, on=_administered, summary="Metadata of a trial's sessions")
    async def metadata_of_trial(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Metadata]:
        return await self._page(trial, DocumentKind.METADATA, query)

    @RestCall("GET", f"{_METADATA}/key/{{key}}", tokens=USER, on=_keyed, summary="Metadata with a key")
    async def metadata_with_key(self, found: tuple[TrialRecord, str], query: Paging) -> NumberedPage[_Metadata]:
        trial, key = found
        return await self._page(trial, DocumentKind.METADATA, query, key=key)

    @RestCall("GET", _ONE, tokens=USER, on=_metadata, summary="One object of metadata")
    async def metadata(self, found: _Found) -> _MetadataAnswer:
        return _MetadataAnswer(found[1].content)

    @RestCall(
        "PUT",
        _ONE,
        tokens=USER,
        on=_metadata,
        summary="Replace metadata",
        accepts=_free(_NOTE),
        refusals={409: ENDED},
    )
    async def replace_metadata(self, found: _Found, body: dict[str, Any]) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.replace(*found, body)).content)

    @RestCall("DELETE", _ONE, tokens=USER, on=_metadata, summary="Delete metadata", refusals={409: ENDED})
    async def remove_metadata(self, found: _Found) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.remove(*found)).content)

    # Rules

    @RestCall(
        "POST",
        _RULES,
        tokens=USER,
        on=_administered,
        summary="Keep a rule for sessions",
        about=f"{_ABOUT} It is not evaluated.",
        accepts=_free(_RULE_BODY),
        refusals={409: ENDED},
    )
    async def add_rule(self, trial: TrialRecord, body: dict[str, Any]) -> _RuleAnswer:
        return _RuleAnswer((await self._documents.add(trial, DocumentKind.RULE, body)).content)

    @RestCall("GET", _RULES, tokens=USER, on=_administered, summary="Rules for a trial's sessions")
    async def rules(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Rules]:
        found, total = await self._documents.page(trial, DocumentKind.RULE, offset=query.offset, count=query.count)
        return NumberedPage(_Rules([one.content for one in found]), total, query.offset, len(found))

    @RestCall("GET", _RULE, tokens=USER, on=_rule, summary="One rule for sessions")
    async def rule(self, found: _Found) -> _RuleAnswer:
        return _RuleAnswer(found[1].content)

    @RestCall(
        "PUT",
        _RULE,
        tokens=USER,
        on=_rule,
        summary="Replace a rule for sessions",
        accepts=_free(_RULE_BODY),
        refusals={409: ENDED},
    )
    async def replace_rule(self, found: _Found, body: dict[str, Any]) -> _RuleAnswer:
        return _RuleAnswer((await self._documents.replace(*found, body)).content)

    @RestCall("DELETE", _RULE, tokens=USER, on=_rule, summary="Delete a rule for sessions", refusals={409: ENDED})
    async def remove_rule(self, found: _Found) -> _RuleAnswer:
        return _RuleAnswer((await self._documents.remove(*found)).content)

    @RestCall("GET", f"{_RULE}/sharing", tokens=USER, on=_rule, summary="How a rule is shared")
    async def sharing(self, found: _Found) -> _SharingAnswer:
        return _SharingAnswer(found[1].sharing)

    @RestCall(
        "PUT",
        f"{_RULE}/sharing",
        tokens=USER,
        on=_rule,
        summary="Keep how a rule is shared",
        about="Any JSON object; it gives nobody any access.",
        accepts=_free({"users": [samples.UID]}),
        refusals={409: ENDED},
    )
    async def share(self, found: _Found, body: dict[str, Any]) -> _SharingAnswer:
        return _SharingAnswer((await self._documents.share(*found, body)).sharing)

    # Metadata of rules

    @RestCall(
        "POST",
        _RULE_METADATA,
        tokens=USER,
        on=_administered,
        summary="Keep metadata of rules",
        about=_ABOUT,
        accepts=_free(_NOTE),
        refusals={409: ENDED},
    )
    async def add_rule_metadata(self, trial: TrialRecord, body: dict[str, Any]) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.add(trial, DocumentKind.RULE_METADATA, body)).content)

    @RestCall("GET", _RULE_METADATA, tokens=USER, on=_administered, summary="Metadata of a trial's rules")
    async def rule_metadata_of_trial(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Metadata]:
        return await self._page(trial, DocumentKind.RULE_METADATA, query)

    @RestCall("GET", _OF_RULES, tokens=USER, on=_metadata_of_rules, summary="One object of rule metadata")
    async def rule_metadata(self, found: _Found) -> _MetadataAnswer:
        return _MetadataAnswer(found[1].content)

    @RestCall(
        "PUT",
        _OF_RULES,
        tokens=USER,
        on=_metadata_of_rules,
        summary="Replace rule metadata",
        accepts=_free(_NOTE),
        refusals={409: ENDED},
    )
    async def replace_rule_metadata(self, found: _Found, body: dict[str, Any]) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.replace(*found, body)).content)

    @RestCall(
        "DELETE", _OF_RULES, tokens=USER, on=_metadata_of_rules, summary="Delete rule metadata", refusals={409: ENDED}
    )
    async def remove_rule_metadata(self, found: _Found) -> _MetadataAnswer:
        return _MetadataAnswer((await self._documents.remove(*found)).content)

    async def _page(
        self, trial: TrialRecord, kind: DocumentKind, query: Paging, *, key: str | None = None
    ) -> NumberedPage[_Metadata]:
        found, total = await self._documents.page(trial, kind, key=key, offset=query.offset, count=query.count)
        return NumberedPage(_Metadata([one.content for one in found]), total, query.offset, len(found))
