"""Sessions of trials (reference 14.5): an optional module. While it is off, its paths answer 404."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.trials.room import TrialsRoom
from broker.trials.sessions import TrialSession, uuid_of
from config.limits import IDS_MAX, TRIAL_SESSION_DEVICES
from protocols.http.calls import NOTHING, USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import JOINED_TRIAL
from protocols.http.rest.trials import ENDED, TRIAL_NAMES
from protocols.http.schema import Count, Data, Id, NumberedPage, Offset, Paging, Shape, Timestamp, about, ids, time_ms
from storage.keys import Milliseconds
from storage.trial_sessions import SessionSearch, TrialSessionRecord
from storage.trials import TrialRecord

SESSIONS: Final = Chapter(
    "Sessions of trials",
    "An optional module: while the setting `trials.sessions` is off, these paths answer 404. A session says from when "
    "to when a participant used which devices. Metadata and rules are JSON objects that are kept and returned; rules "
    "are not evaluated.",
)
_SESSION: Final = "/trials/sessions/{sid}"
#: A trial and one of its sessions.
_Found = tuple[TrialRecord, TrialSessionRecord]

_Devices = Annotated[str, ids("Devices that the participant connected to the trial", longest=TRIAL_SESSION_DEVICES)]
Uuid = Annotated[str, about("The same id with dashes", format="uuid")]


class TrialSessionObject(Shape, kw_only=True):
    shape = "TrialSession"
    example = {
        "id": samples.TRIAL_SESSION,
        "uuid": uuid_of(samples.TRIAL_SESSION),
        "trialId": samples.TRIAL,
        "participantId": samples.UID,
        "devices": samples.DID,
        "start": samples.TS,
        "createdOn": samples.TS,
    }

    id: Id
    uuid: Uuid
    trial_id: Id
    participant_id: Id
    devices: _Devices
    start: Annotated[int, time_ms("Absent: it has not begun")] | UnsetType = UNSET
    end: Annotated[int, time_ms("Absent: it has not ended")] | UnsetType = UNSET
    created_on: Timestamp


class _Sessions(Shape):
    sessions: list[TrialSessionObject]


class _NewSession(Shape, kw_only=True):
    example = {"trialId": samples.TRIAL, "participantId": samples.UID, "devices": samples.DID}

    trial_id: Annotated[str, Meta(min_length=1, description="The trial")]
    participant_id: Annotated[str, Meta(min_length=1, description="A participant of the trial")]
    devices: _Devices = ""


_Time = Annotated[int, Meta(ge=0, le=2**53)]


class _Times(Shape):
    example = {"start": samples.TS}

    start: Annotated[_Time, about("When it began, in milliseconds since the epoch")] | None = None
    end: Annotated[_Time, about("When it ended, in milliseconds since the epoch")] | None = None


class _Search(Shape):
    trial_ids: Annotated[tuple[str, ...], ids("Absent: all that the caller administers", longest=IDS_MAX)] = ()
    participant_ids: Annotated[tuple[str, ...], ids("Only of these users", longest=IDS_MAX)] = ()
    start: Annotated[int, time_ms("Only sessions that began then or later")] | None = None
    end: Annotated[int, time_ms("Only sessions that ended then or earlier")] | None = None
    device_ids: Annotated[tuple[str, ...], ids("Only with one of these devices", longest=IDS_MAX)] = ()
    metadata: Annotated[
        tuple[str, ...],
        ids(
            "Only sessions that the member `sessionId` of metadata with one of these ids or keys names", longest=IDS_MAX
        ),
    ] = ()
    count: Count = 100
    offset: Offset = 0


class TrialSessionCalls(RestCalls):
    chapter = SESSIONS
    path_names = {**TRIAL_NAMES, "sid": (Annotated[Id, about("A session")], samples.TRIAL_SESSION)}

    def __init__(self, accounts: AccountsRoom, trials: TrialsRoom) -> None:
        self._users = accounts.users
        self._trials = trials.trials
        self._sessions = trials.sessions

    @property
    def is_served(self) -> bool:
        return self._sessions.is_on

    async def _session(self, caller: Caller, sid: str) -> _Found:
        trial, session = await self._sessions.find(sid)
        await self._sessions.require_access(caller, trial, session.user)
        return trial, session

    @RestCall(
        "POST",
        "/trials/sessions",
        tokens=USER,
        on=NOTHING,
        summary="Create a session",
        about="For administrators of the trial, and for the participant. It begins when its `start` is set.",
        refusals={
            403: "You don't have the right permissions: administrator of the trial",
            404: "The trial, the participant or a device does not exist.",
            409: ENDED,
        },
    )
    async def create(self, caller: Caller, body: _NewSession) -> Data[TrialSessionObject]:
        trial = await self._trials.find(body.trial_id)
        participant = await self._users.find(body.participant_id, caller)
        await self._sessions.require_access(caller, trial, participant.key)
        dids = list(dict.fromkeys(one.strip() for one in body.devices.split(",") if one.strip()))
        return await self._answer(await self._sessions.create(trial, participant, dids))

    @RestCall("GET", _SESSION, tokens=USER, on=_session, summary="One session")
    async def show(self, found: _Found) -> Data[TrialSessionObject]:
        return await self._answer(found[1])

    @RestCall(
        "PUT",
        _SESSION,
        tokens=USER,
        on=_session,
        summary="Begin or end a session",
        refusals={409: ENDED},
    )
    async def change(self, found: _Found, body: _Times) -> Data[TrialSessionObject]:
        trial, session = found
        changed = await self._sessions.change(trial, session.id, start_ms=body.start, end_ms=body.end)
        return await self._answer(changed)

    @RestCall("DELETE", _SESSION, tokens=USER, on=_session, summary="Delete a session")
    async def remove(self, found: _Found) -> Data[TrialSessionObject]:
        answer = await self._answer(found[1])
        await self._sessions.remove(*found)
        return answer

    @RestCall(
        "GET",
        "/trials/{tid}/sessions",
        tokens=USER,
        on=JOINED_TRIAL,
        summary="A trial's sessions",
        about="Participants see their own.",
    )
    async def of_trial(self, caller: Caller, trial: TrialRecord, query: Paging) -> NumberedPage[_Sessions]:
        return await self._listed(caller, trial, query, ongoing=False)

    @RestCall(
        "GET",
        "/trials/{tid}/sessions/ongoing",
        tokens=USER,
        on=JOINED_TRIAL,
        summary="Sessions that have begun and not ended",
        about="Participants see their own.",
    )
    async def ongoing(self, caller: Caller, trial: TrialRecord, query: Paging) -> NumberedPage[_Sessions]:
        return await self._listed(caller, trial, query, ongoing=True)

    @RestCall(
        "GET",
        "/trials/sessions/search",
        tokens=USER,
        on=NOTHING,
        summary="Search sessions",
        about="For administrators of the trials.",
        refusals={
            403: "You don't have the right permissions: administrator of a trial",
            404: "A trial does not exist.",
        },
    )
    async def search(self, caller: Caller, query: _Search) -> NumberedPage[_Sessions]:
        wanted = SessionSearch(
            (),
            query.participant_ids,
            query.device_ids,
            query.metadata,
            None if query.start is None else Milliseconds(query.start),
            None if query.end is None else Milliseconds(query.end),
        )
        found, total = await self._sessions.search(
            caller, query.trial_ids, wanted, offset=query.offset, count=query.count
        )
        return await self._page(found, total, query.offset)

    async def _listed(
        self, caller: Caller, trial: TrialRecord, query: Paging, *, ongoing: bool
    ) -> NumberedPage[_Sessions]:
        found, total = await self._sessions.of_trial(
            trial, caller, ongoing=ongoing, offset=query.offset, count=query.count
        )
        return await self._page(found, total, query.offset)

    async def _page(self, found: list[TrialSessionRecord], total: int, offset: int) -> NumberedPage[_Sessions]:
        shown = list(map(_object, await self._sessions.shown(found)))
        return NumberedPage(_Sessions(shown), total, offset, len(shown))

    async def _answer(self, session: TrialSessionRecord) -> Data[TrialSessionObject]:
        return Data(_object(await self._sessions.one(session)))


def _object(session: TrialSession) -> TrialSessionObject:
    record = session.record
    return TrialSessionObject(
        id=record.id,
        uuid=uuid_of(record.id),
        trial_id=session.trial_id,
        participant_id=session.user_id,
        devices=record.devices,
        start=UNSET if record.started_on is None else record.started_on,
        end=UNSET if record.ended_on is None else record.ended_on,
        created_on=record.created_on,
    )
