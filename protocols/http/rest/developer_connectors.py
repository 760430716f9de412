"""/developer: the cloud connectors of a member's device types, and what fails at them (reference 27.21)."""

from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.accounts.organizations import Membership
from broker.connectors.catalog import NO_CONNECTOR
from broker.connectors.problems import Doing, Problem
from broker.connectors.service import Connectors, ConnectorStatus
from broker.device_types.catalog import DeviceType
from config.limits import CONNECTOR_PROBLEMS
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.developer import DEVELOPER, ORGANIZATION
from protocols.http.rest.named import DEVELOPED_TYPE, OWN_ORGANIZATION
from protocols.http.schema import Amount, Data, Id, NumberedPage, Paging, Shape, Timestamp, TypeId, about, one_of

_WORKING: Final = "WORKING"
_FAILING: Final = "FAILING"
_SENTENCE: Final = "The third party answered 503."
_LINE: Final = {
    "dtid": samples.DTID,
    "name": "Smart Light",
    "status": _FAILING,
    "problem": _SENTENCE,
    "lastOn": samples.TS,
    "linked": 12,
}


class _Line(Shape, kw_only=True):
    dtid: TypeId
    name: Annotated[str, about("Of the device type")]
    status: Annotated[str, one_of((_WORKING, _FAILING))]
    problem: Annotated[str, about("What failed last, in a sentence; absent while nothing fails")] | UnsetType = UNSET
    last_on: Annotated[Timestamp, about("When it failed last")] | UnsetType = UNSET
    linked: Annotated[Amount, about("Devices that are linked")]


class ConnectorLine(_Line, kw_only=True):
    example = _LINE


class _Problem(Shape, kw_only=True):
    did: Annotated[Id, about("Absent: it concerns no single device")] | UnsetType = UNSET
    doing: Annotated[str, one_of(tuple(Doing))]
    problem: Annotated[str, about("Why, in a sentence")]
    first_on: Annotated[Timestamp, about("When it failed first since it last succeeded")]
    last_on: Timestamp
    times: Annotated[Amount, about("How often it failed since it last succeeded")]


class ConnectorObject(_Line, kw_only=True):
    shape = "Connector"
    example = {
        **_LINE,
        "problems": [
            {
                "did": samples.DID,
                "doing": "fetch",
                "problem": _SENTENCE,
                "firstOn": samples.TS,
                "lastOn": samples.TS,
                "times": 3,
            }
        ],
    }

    problems: Annotated[
        list[_Problem], about(f"At most {CONNECTOR_PROBLEMS} of each kind of call, of 7 days, the latest first")
    ]


class DeveloperConnectorCalls(RestCalls):
    chapter = DEVELOPER

    def __init__(self, connectors: Connectors) -> None:
        self._connectors = connectors

    @RestCall(
        "GET",
        f"{ORGANIZATION}/connectors",
        tokens=USER,
        on=OWN_ORGANIZATION,
        summary="The cloud connectors of an organization's device types",
    )
    async def connectors(self, membership: Membership, query: Paging) -> NumberedPage[list[ConnectorLine]]:
        found = [one for one in self._connectors.types() if one.record.organization == membership.organization.key]
        page = [
            ConnectorLine(**_members(one, self._connectors.standing(one), await self._connectors.linked(one)))
            for one in found[query.offset : query.offset + query.count]
        ]
        return NumberedPage(page, len(found), query.offset, len(page))

    @RestCall(
        "GET",
        "/developer/devicetypes/{dtid}/connector",
        tokens=USER,
        on=DEVELOPED_TYPE,
        summary="The cloud connector of a device type, and what fails at it",
        about="A problem ends with the next call of its kind that succeeds. The content of a message is for its "
        "device's owner, and the errors of a plug-in are for the operator.",
        refusals={409: NO_CONNECTOR},
    )
    async def connector(self, type_: DeviceType) -> Data[ConnectorObject]:
        standing = self._connectors.standing(type_)
        devices = await self._connectors.devices_of(standing.problems)
        problems = [_problem(one, devices.get(one.device)) for one in standing.problems]
        members = _members(type_, standing, await self._connectors.linked(type_))
        return Data(ConnectorObject(**members, problems=problems))


def _members(type_: DeviceType, standing: ConnectorStatus, linked: int) -> dict[str, Any]:
    sentence = standing.sentence
    return {
        "dtid": type_.id,
        "name": type_.record.name,
        "status": _WORKING if sentence is None else _FAILING,
        "problem": sentence or UNSET,
        "last_on": standing.problems[0].last_on if standing.problems else UNSET,
        "linked": linked,
    }


def _problem(one: Problem, did: str | None) -> _Problem:
    return _Problem(
        did=did or UNSET,
        doing=one.doing,
        problem=one.sentence,
        first_on=one.first_on,
        last_on=one.last_on,
        times=one.times,
    )
