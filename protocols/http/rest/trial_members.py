"""/trials/…/administrators, /participants and /devices: who belongs to a trial, and with what (reference 14.4)."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import PermissionDenied
from broker.trials.members import ALREADY_CONNECTED, ConnectedDevice
from broker.trials.roles import LAST_ADMINISTRATOR, TrialRole
from broker.trials.room import TrialsRoom
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.device_records import DeviceObject, device_record
from protocols.http.rest.named import ADMINISTERED_TRIAL, TRIAL_ADMINISTRATOR
from protocols.http.rest.trials import ENDED, TRIAL_NAMES, TRIALS
from protocols.http.schema import Data, Id, NumberedPage, Paging, Shape, Timestamp, about, time_ms
from storage.keys import UserKey
from storage.records import UserRecord
from storage.trials import TrialRecord

_OF_PARTICIPANT: Final = "/trials/{tid}/participants/{uid}/devices"
#: A trial and one of its members, or a future member.
_Found = tuple[TrialRecord, UserRecord]


class MemberObject(Shape, kw_only=True):
    shape = "TrialMember"
    example = {
        "id": samples.UID,
        "name": "ada",
        "email": "ada@example.net",
        "fullName": "Ada Example",
        "createdOn": samples.TS,
        "modifiedOn": samples.TS,
    }

    id: Id
    name: Annotated[str, about("Unique user name")]
    email: Annotated[str, about("", format="email")]
    full_name: Annotated[str, about("Display name")]
    created_on: Timestamp
    modified_on: Timestamp


class _Administrators(Shape):
    administrators: list[MemberObject]


class _Participants(Shape):
    participants: list[MemberObject]


class _Removed(Shape):
    example = {"tid": samples.TRIAL, "uid": samples.UID}

    tid: Id
    uid: Id


class TrialDeviceObject(DeviceObject, kw_only=True):
    shape = "TrialDevice"
    example = samples.DEVICE | {"connected_on": samples.TS}

    connected_on: Annotated[int, time_ms("When it was connected to the trial")] = msgspec.field(name="connected_on")


class _Devices(Shape):
    devices: list[TrialDeviceObject]


class _NewDevice(Shape):
    example = {"did": samples.DID}

    did: Annotated[str, Meta(min_length=1, description="A device of the participant, of a device type of the trial")]


class _DeviceOfTrial(Shape):
    example = {"tid": samples.TRIAL, "uid": samples.UID, "did": samples.DID}

    tid: Id
    uid: Id
    did: Id


class TrialMemberCalls(RestCalls):
    chapter = TRIALS
    path_names = TRIAL_NAMES

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, trials: TrialsRoom) -> None:
        self._users = accounts.users
        self._devices = devices.registry
        self._trials = trials.trials
        self._members = trials.members

    async def _administrator(self, caller: Caller, tid: str, uid: str) -> _Found:
        return await self._removable(caller, tid, uid, TrialRole.ADMINISTRATOR)

    async def _participant(self, caller: Caller, tid: str, uid: str) -> _Found:
        return await self._removable(caller, tid, uid, TrialRole.PARTICIPANT)

    async def _removable(self, caller: Caller, tid: str, uid: str, role: TrialRole) -> _Found:
        trial, user = await self._trials.find(tid), await self._users.find(uid, caller)
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        await self._members.require_member(trial, user.key, role)
        return trial, user

    async def _shown_participant(self, caller: Caller, tid: str, uid: str) -> _Found:
        """The participant, for administrators and for the participant."""
        trial, user = await self._trials.find(tid), await self._users.find(uid, caller)
        if caller.user == user.key and await self._trials.has_role(trial, user.key, TrialRole.PARTICIPANT):
            return trial, user
        await self._trials.require(caller, trial, TRIAL_ADMINISTRATOR)
        await self._members.require_member(trial, user.key, TrialRole.PARTICIPANT)
        return trial, user

    async def _oneself(self, caller: Caller, tid: str, uid: str) -> _Found:
        """For the participant only."""
        trial, user = await self._trials.find(tid), await self._users.find(uid, caller)
        await self._require_oneself(caller, trial, user)
        return trial, user

    async def _own_device(self, caller: Caller, tid: str, uid: str, did: str) -> tuple[TrialRecord, UserRecord, Device]:
        """For the participant only."""
        trial, user = await self._trials.find(tid), await self._users.find(uid, caller)
        device = await self._devices.find(did)
        await self._require_oneself(caller, trial, user)
        if device.owner != user.key:
            raise PermissionDenied(f"ownership of device {device.id}")
        return trial, user, device

    async def _require_oneself(self, caller: Caller, trial: TrialRecord, user: UserRecord) -> None:
        if caller.user != user.key or not await self._trials.has_role(trial, user.key, TrialRole.PARTICIPANT):
            raise PermissionDenied(f"participant {user.id} of trial {trial.id}")

    @RestCall(
        "GET", "/trials/{tid}/administrators", tokens=USER, on=ADMINISTERED_TRIAL, summary="A trial's administrators"
    )
    async def administrators(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Administrators]:
        found, total = await self._page(trial, TrialRole.ADMINISTRATOR, query)
        return NumberedPage(_Administrators(found), total, query.offset, len(found))

    @RestCall(
        "DELETE",
        "/trials/{tid}/administrators/{uid}",
        tokens=USER,
        on=_administrator,
        summary="Remove an administrator from a trial",
        refusals={409: f"{LAST_ADMINISTRATOR}."},
    )
    async def remove_administrator(self, found: _Found) -> Data[_Removed]:
        return await self._remove(found, TrialRole.ADMINISTRATOR)

    @RestCall("GET", "/trials/{tid}/participants", tokens=USER, on=ADMINISTERED_TRIAL, summary="A trial's participants")
    async def participants(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Participants]:
        found, total = await self._page(trial, TrialRole.PARTICIPANT, query)
        return NumberedPage(_Participants(found), total, query.offset, len(found))

    @RestCall(
        "DELETE",
        "/trials/{tid}/participants/{uid}",
        tokens=USER,
        on=_participant,
        summary="Remove a participant from a trial",
        about="The participant's devices are disconnected from the trial, and the access of its application to them "
        "ends at once.",
    )
    async def remove_participant(self, found: _Found) -> Data[_Removed]:
        return await self._remove(found, TrialRole.PARTICIPANT)

    @RestCall("GET", "/trials/{tid}/devices", tokens=USER, on=ADMINISTERED_TRIAL, summary="All devices of a trial")
    async def devices(self, trial: TrialRecord, query: Paging) -> NumberedPage[_Devices]:
        return await self._devices_of(trial, None, query)

    @RestCall(
        "GET",
        _OF_PARTICIPANT,
        tokens=USER,
        on=_shown_participant,
        summary="The devices of a participant in a trial",
        about="For administrators, and for the participant.",
    )
    async def devices_of_participant(self, found: _Found, query: Paging) -> NumberedPage[_Devices]:
        trial, user = found
        return await self._devices_of(trial, user.key, query)

    @RestCall(
        "POST",
        _OF_PARTICIPANT,
        tokens=USER,
        on=_oneself,
        summary="Connect a device to a trial",
        about="For the participant only. The device is the participant's own, and of a device type of the trial.",
        refusals={
            403: "The device is somebody else's, or of another type.",
            404: "The device does not exist.",
            409: f"{ALREADY_CONNECTED}. {ENDED}",
        },
    )
    async def connect(self, found: _Found, body: _NewDevice) -> Data[_DeviceOfTrial]:
        trial, user = found
        device = await self._devices.find(body.did)
        await self._members.connect(trial, user.key, device)
        return Data(_DeviceOfTrial(trial.id, user.id, device.id))

    @RestCall(
        "DELETE",
        f"{_OF_PARTICIPANT}/{{did}}",
        tokens=USER,
        on=_own_device,
        summary="Disconnect a device from a trial",
        about="For the participant only.",
        refusals={404: "The device is not connected to the trial."},
    )
    async def disconnect(self, found: tuple[TrialRecord, UserRecord, Device]) -> Data[_DeviceOfTrial]:
        trial, user, device = found
        await self._members.disconnect(trial, user.key, device)
        return Data(_DeviceOfTrial(trial.id, user.id, device.id))

    async def _page(self, trial: TrialRecord, role: TrialRole, query: Paging) -> tuple[list[MemberObject], int]:
        found, total = await self._members.page(trial, role, offset=query.offset, count=query.count)
        return list(map(_member, found)), total

    async def _remove(self, found: _Found, role: TrialRole) -> Data[_Removed]:
        trial, user = found
        await self._members.remove(trial, user, role)
        return Data(_Removed(trial.id, user.id))

    async def _devices_of(self, trial: TrialRecord, user: UserKey | None, query: Paging) -> NumberedPage[_Devices]:
        found, total = await self._members.devices(trial, user, offset=query.offset, count=query.count)
        shown = list(map(_device, found))
        return NumberedPage(_Devices(shown), total, query.offset, len(shown))


def _member(user: UserRecord) -> MemberObject:
    return MemberObject(
        id=user.id,
        name=user.name,
        email=user.email,
        full_name=user.full_name,
        created_on=user.created_on,
        modified_on=user.modified_on,
    )


def _device(connected: ConnectedDevice) -> TrialDeviceObject:
    record = msgspec.structs.asdict(device_record(connected.device))
    return TrialDeviceObject(**record, connected_on=connected.connected_on)
