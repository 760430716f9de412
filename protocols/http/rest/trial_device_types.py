"""/trials/…/devicetypes: of which types the devices of a trial are (reference 14.2)."""

from typing import Annotated, Final

from msgspec import Meta

from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType
from broker.trials.device_types import ALREADY_THERE
from broker.trials.room import TrialsRoom
from config.limits import FORBIDDEN_IN_NAMES
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Valid
from protocols.http.rest.device_types import DeviceTypeObject, type_record
from protocols.http.rest.named import ADMINISTERED_TRIAL, JOINED_TRIAL, TRIAL_ADMINISTRATOR
from protocols.http.rest.trials import ENDED, TRIAL_NAMES, TRIALS
from protocols.http.schema import Data, Id, NumberedPage, Paging, Shape, TypeId
from storage.trials import TrialRecord

_TYPES: Final = "/trials/{tid}/devicetypes"


class _TypeOfTrial(Shape):
    example = {"tid": samples.TRIAL, "dtid": samples.DTID}

    tid: Id
    dtid: TypeId


class _Types(Shape):
    device_types: list[DeviceTypeObject]


class _NewType(Shape):
    example = {"dtid": samples.TYPE_NAME}

    dtid: Annotated[
        TypeId,
        Meta(min_length=1, description="Id or unique name of the device type"),
        Valid(FORBIDDEN_IN_NAMES.isdisjoint, "must not contain any of < > & ' \""),
    ]


class TrialTypeCalls(RestCalls):
    chapter = TRIALS
    path_names = TRIAL_NAMES

    def __init__(self, trials: TrialsRoom) -> None:
        self._trials = trials.trials
        self._types = trials.device_types

    async def _type_of(self, caller: Caller, tid: str, dtid: str) -> tuple[TrialRecord, DeviceType]:
        trial = await self._trials.find(tid)
        type_ = await self._types.known(dtid)
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        return trial, type_

    @RestCall(
        "GET",
        _TYPES,
        tokens=USER,
        on=JOINED_TRIAL,
        summary="A trial's device types",
        about="For administrators and participants.",
    )
    async def types(self, caller: Caller, trial: TrialRecord, query: Paging) -> NumberedPage[_Types]:
        page = await self._types.page(caller, trial, offset=query.offset, count=query.count)
        shown = list(map(type_record, page.types))
        return NumberedPage(_Types(shown), page.total, query.offset, len(shown))

    @RestCall(
        "POST",
        _TYPES,
        tokens=USER,
        on=ADMINISTERED_TRIAL,
        summary="Add a device type to a trial",
        about="The participants grant the trial's application READ and WRITE on it, too.",
        refusals={404: "Device type does not exist.", 409: f"{ALREADY_THERE}. {ENDED}"},
    )
    async def add_type(self, caller: Caller, trial: TrialRecord, body: _NewType) -> Data[_TypeOfTrial]:
        type_ = await self._types.add(caller, trial, body.dtid)
        return Data(_TypeOfTrial(trial.id, type_.id))

    @RestCall(
        "DELETE",
        f"{_TYPES}/{{dtid}}",
        tokens=USER,
        on=_type_of,
        summary="Take a device type out of a trial",
        about="Its devices are disconnected from the trial, and the grants on it end.",
        refusals={404: "The trial does not have it.", 409: ENDED},
    )
    async def remove_type(self, found: tuple[TrialRecord, DeviceType]) -> Data[_TypeOfTrial]:
        trial, type_ = found
        await self._types.remove(trial, type_)
        return Data(_TypeOfTrial(trial.id, type_.id))
