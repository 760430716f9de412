"""/trials: a trial, its application and its device types (reference 14.1 and 14.2)."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import REQUIRED, TEXT_ONLY, Finding, choice, invalid, too_long
from broker.names import name_problem
from broker.trials.invitations import NewInvitation
from broker.trials.roles import STOPPED, TrialRole, trial_tag
from broker.trials.room import TrialsRoom
from broker.trials.trials import NewTrial, Trial
from config.limits import (
    DESCRIPTION_MAX_CHARACTERS,
    EMAIL_MAX_CHARACTERS,
    FORBIDDEN_IN_NAMES,
    NAME_MAX_CHARACTERS,
    TRIAL_DEVICE_TYPES,
    TRIAL_INVITATIONS_AT_ONCE,
    TRIALS_OF_ONE_USER,
)
from protocols.http.calls import NOTHING, USER, Chapter, RestCall, RestCalls
from protocols.http.conditional import or_present, tagged
from protocols.http.openapi import samples
from protocols.http.reading import Checked, Given, Rule
from protocols.http.rest.named import ADMINISTERED_TRIAL, JOINED_TRIAL, NAMED_USER, TRIAL_MEMBER
from protocols.http.schema import (
    Count,
    Data,
    Id,
    NumberedPage,
    Offset,
    Shape,
    about,
    absent_if_none,
    text,
    time_ms,
)
from storage.records import UserRecord
from storage.trials import TrialRecord

TRIALS: Final = Chapter(
    "Trials",
    "A trial brings participants, who connect devices of chosen types, and administrators together. It has an "
    "application of its own, which reaches the participants' devices of these types. Calls for administrators only "
    "work in the console, through the application through which the trial was made, through the trial's own one, "
    "and through applications to which they granted `trials` on the permission screen.",
)
TRIAL_NAMES: Final = {"tid": (Annotated[Id, about("A trial")], samples.TRIAL)}
ENDED: Final = f"{STOPPED}."

_TRIAL: Final = "/trials/{tid}"
_EXAMPLE: Final = {
    "id": samples.TRIAL,
    "ownerId": samples.UID,
    "name": "Sleep and light",
    "description": "Does dimmed light help?",
    "aid": samples.AID,
    "clientSecret": samples.NONCE,
    "startDate": samples.TS,
    "endDate": None,
}
#: The types of invitations.
ROLES: Final = ("participant", "administrator")


def _objects(given: Given, member: str, most: int) -> Iterator[tuple[int, dict[str, Any] | Finding]]:
    """The objects of a list with their places, and findings about what is no object."""
    values = given.values[member] or []
    if len(values) > most:
        yield 0, Finding("", (too_long(most),))
        return
    for index, value in enumerate(values):
        yield index, value if isinstance(value, dict) else Finding(str(index), (invalid("must be an object"),))


def _types_are_named(given: Given) -> Iterator[Finding]:
    for index, one in _objects(given, "device_types", TRIAL_DEVICE_TYPES):
        if isinstance(one, Finding):
            yield Finding(_place("deviceTypes", one.field), one.messages)
        elif (wrong := _wrong_type(one.get("dtid"))) is not None:
            yield Finding(f"deviceTypes.{index}.dtid", (wrong,))


def _wrong_type(dtid: object) -> str | None:
    if not dtid:
        return REQUIRED
    if not isinstance(dtid, str):
        return TEXT_ONLY
    return None if FORBIDDEN_IN_NAMES.isdisjoint(dtid) else invalid("must not contain any of < > & ' \"")


def _people_are_named(given: Given) -> Iterator[Finding]:
    for index, one in _objects(given, "invitations", TRIAL_INVITATIONS_AT_ONCE):
        if isinstance(one, Finding):
            yield Finding(_place("invitations", one.field), one.messages)
            continue
        email, role = one.get("email"), one.get("invitationType")
        for member, value in (("email", email), ("invitationType", role)):
            if not value:
                yield Finding(f"invitations.{index}.{member}", (REQUIRED,))
            elif not isinstance(value, str):
                yield Finding(f"invitations.{index}.{member}", (TEXT_ONLY,))
        if isinstance(role, str) and role and role.lower() not in ROLES:
            yield Finding(f"invitations.{index}.invitationType", (invalid(choice(ROLES)),))


def _place(member: str, inner: str) -> str:
    return f"{member}.{inner}" if inner else member


_Name = Annotated[str, text("Also in invitations", longest=NAME_MAX_CHARACTERS)]
_Description = Annotated[str, text("What the trial is about", longest=DESCRIPTION_MAX_CHARACTERS)]
_CheckedName = Annotated[
    str, Meta(min_length=1, max_length=NAME_MAX_CHARACTERS, description="Also in invitations"), Checked(name_problem)
]
_CheckedDescription = Annotated[str, Meta(max_length=DESCRIPTION_MAX_CHARACTERS, description="What the trial is about")]
_Type = {"type": "object", "required": ["dtid"], "properties": {"dtid": {"type": "string"}}}
_Invited = {
    "type": "object",
    "required": ["email", "invitationType"],
    "properties": {
        "email": {"type": "string", "format": "email", "maxLength": EMAIL_MAX_CHARACTERS},
        "invitationType": {"type": "string", "enum": list(ROLES)},
    },
}


class TrialObject(Shape, kw_only=True):
    shape = "Trial"
    example = _EXAMPLE

    id: Id
    owner_id: Annotated[Id, about("Who created it")]
    name: _Name
    description: _Description | UnsetType = msgspec.UNSET
    aid: Annotated[Id, about("The trial's application; only for administrators")] | UnsetType = msgspec.UNSET
    client_secret: Annotated[str, about("Of that application; only for administrators")] | UnsetType = msgspec.UNSET
    start_date: Annotated[int, time_ms("When it was created")]
    end_date: Annotated[int | None, time_ms("When it was stopped; null: it goes on")]


class _Trials(Shape):
    trials: list[TrialObject]


class _NewTrial(Shape, kw_only=True):
    example = {
        "name": "Sleep and light",
        "description": "Does dimmed light help?",
        "deviceTypes": [{"dtid": samples.TYPE_NAME}],
        "invitations": [{"email": "bob@example.net", "invitationType": "participant"}],
    }

    name: _CheckedName
    description: _CheckedDescription | None = None
    device_types: (
        Annotated[
            list[Any],
            about("Its device types", items=_Type, maxItems=TRIAL_DEVICE_TYPES),
            Rule(_types_are_named),
        ]
        | None
    ) = None
    invitations: (
        Annotated[
            list[Any],
            about("Who is invited", items=_Invited, maxItems=TRIAL_INVITATIONS_AT_ONCE),
            Rule(_people_are_named),
        ]
        | None
    ) = None


class _Change(Shape):
    example = {"name": "Sleep and dimmed light"}

    name: _CheckedName | None = None
    description: _CheckedDescription | None = None
    status: Annotated[Literal["stop"], about("Ends the trial for good")] | None = None


class _OfUser(Shape):
    role: Annotated[Literal["administrator", "participant"], about("Absent: both")] | None = None
    count: Count = 100
    offset: Offset = 0


class TrialCalls(RestCalls):
    chapter = TRIALS
    path_names = TRIAL_NAMES

    def __init__(self, accounts: AccountsRoom, trials: TrialsRoom) -> None:
        self._users = accounts.users
        self._trials = trials.trials

    @RestCall(
        "POST",
        "/trials",
        tokens=USER,
        on=NOTHING,
        summary="Create a trial",
        about="The caller becomes its first administrator. With the trial comes an application; its id and secret get "
        "application tokens by client credentials. Everything is created, or nothing.",
        refusals={
            403: "You don't have the right permissions: use of a device type",
            404: "A device type does not exist.",
            409: f"At most {TRIALS_OF_ONE_USER} trials at a time. A type or an address is given twice.",
            429: "Too many trials today.",
        },
    )
    async def create(self, caller: Caller, body: _NewTrial) -> Data[TrialObject]:
        types = [one["dtid"] for one in body.device_types or []]
        invited = [
            NewInvitation(one["email"], TrialRole(one["invitationType"].lower()), f"invitations.{index}.email")
            for index, one in enumerate(body.invitations or [])
        ]
        return Data(
            trial_object(await self._trials.create(caller, NewTrial(body.name, body.description, types, invited)))
        )

    @RestCall(
        "GET",
        _TRIAL,
        tokens=USER,
        on=JOINED_TRIAL,
        summary="One trial",
        about="For administrators and participants. `aid` and `clientSecret` are shown to administrators only, and "
        "only through an application that may manage the trial; else the answer is that to a participant.",
        is_tagged=True,
    )
    async def show(self, caller: Caller, trial: TrialRecord) -> Data[TrialObject]:
        tagged(trial_tag(trial))
        return Data(trial_object(await self._trials.shown(trial, caller)))

    @RestCall(
        "PUT",
        _TRIAL,
        tokens=USER,
        on=ADMINISTERED_TRIAL,
        summary="Change or stop a trial",
        about="Stopping sets `endDate`, deletes open invitations, and ends at once the tokens of the trial's "
        "application, what the participants granted it, and their connections with it. No other change follows.",
        refusals={409: ENDED},
        is_tagged=True,
        is_conditional=True,
    )
    async def change(self, caller: Caller, trial: TrialRecord, body: _Change) -> Data[TrialObject]:
        async with or_present(partial(self._present, caller, trial.id)):
            changed = await self._trials.change(
                trial, name=body.name, description=body.description, stop=body.status is not None
            )
        tagged(trial_tag(changed.record))
        return Data(trial_object(changed))

    async def _present(self, caller: Caller, trial_id: str) -> TrialObject:
        """The trial as it is now, with its tag. Raises NotFound."""
        found = await self._trials.find(trial_id)
        tagged(trial_tag(found))
        return trial_object(await self._trials.shown(found, caller))

    @RestCall(
        "DELETE",
        _TRIAL,
        tokens=USER,
        on=ADMINISTERED_TRIAL,
        summary="Delete a trial",
        about="With its invitations, administrators, participants, connected devices and its application. The devices "
        "themselves stay with their owners.",
    )
    async def delete(self, trial: TrialRecord) -> Data[TrialObject]:
        return Data(trial_object(await self._trials.delete(trial)))

    @RestCall(
        "PUT",
        f"{_TRIAL}/application",
        tokens=USER,
        on=ADMINISTERED_TRIAL,
        summary="Renew a trial's application",
        about="New `aid` and `clientSecret`. The former ones and their tokens end at once; what the participants "
        "granted stays.",
        refusals={409: ENDED},
    )
    async def renew(self, trial: TrialRecord) -> Data[TrialObject]:
        return Data(trial_object(await self._trials.renew_application(trial)))

    @RestCall(
        "GET",
        "/users/{uid}/trials",
        tokens=USER,
        on=NAMED_USER,
        summary="A user's trials",
        about="Those that the user administers or takes part in, in the order of their creation.",
    )
    async def of_user(self, caller: Caller, user: UserRecord, query: _OfUser) -> NumberedPage[_Trials]:
        roles = TRIAL_MEMBER if query.role is None else (TrialRole(query.role),)
        found, total = await self._trials.of_user(caller, user.key, roles, offset=query.offset, count=query.count)
        return NumberedPage(_Trials(list(map(trial_object, found))), total, query.offset, len(found))


def trial_object(trial: Trial) -> TrialObject:
    record = trial.record
    return TrialObject(
        id=record.id,
        owner_id=trial.owner_id,
        name=record.name,
        description=absent_if_none(record.description),
        aid=absent_if_none(trial.application_id),
        client_secret=absent_if_none(trial.secret),
        start_date=record.started_on,
        end_date=record.ended_on,
    )
