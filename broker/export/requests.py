"""Export requests: their checks, and the plan of which devices' messages go under which name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from broker.accounts.permissions import Permission, Permissions
from broker.accounts.tokens import Caller
from broker.accounts.users import Users
from broker.device_types.catalog import DeviceTypes
from broker.devices.registry import Device, Devices
from broker.errors import REQUIRED, Finding, PermissionDenied, ValidationFailed, invalid, too_long
from broker.export.tables import by_type
from broker.messages.intervals import DAY_MS, MINUTE_MS
from broker.trials.exports import TrialExports
from config.limits import EXPORT_IDS_MAX, EXPORT_PAST_DAYS, EXPORT_RANGE_DAYS, EXPORT_URL_CHARACTERS
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, UserKey
from storage.records import UserRecord

#: A caller computes "30 days ago" a moment before the check.
_PAST_GRACE_MS = MINUTE_MS


ExportFormat = Literal["json", "csv1", "csv2", "csv", "jsonl", "parquet"]
#: The formats with one file for each device type.
TABLES: Final = ("csv", "jsonl", "parquet")


class ExportRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request as it was made. Lists are comma-separated texts; None: not given."""

    start_ms: Milliseconds
    end_ms: Milliseconds
    uids: str | None = None
    sdids: str | None = None
    sdtids: str | None = None
    trial_id: str | None = None
    order: Literal["asc", "desc"] = "asc"
    format: ExportFormat = "json"
    csv_headers: bool = True
    url: str | None = None

    @property
    def is_tables(self) -> bool:
        """Whether it is one file for each device type; such an export may be of any range."""
        return self.format in TABLES

    def check(self, now_ms: int) -> None:
        """Raise ValidationFailed with every finding."""
        findings = [*self._misses(), *self._is_too_much(now_ms)]
        if findings:
            raise ValidationFailed(tuple(findings))

    def _misses(self) -> Iterable[Finding]:
        uids, sdids, sdtids = (bool(items(text)) for text in (self.uids, self.sdids, self.sdtids))
        # `sdtids` needs `uids`, and a request needs at least one of the lists or a trial.
        if not uids and (sdtids or not (sdids or self.trial_id)):
            yield Finding("uids", (REQUIRED,))

    def _is_too_much(self, now_ms: int) -> Iterable[Finding]:
        for name, text in (("uids", self.uids), ("sdids", self.sdids), ("sdtids", self.sdtids)):
            if len(items(text)) > EXPORT_IDS_MAX:
                yield Finding(name, (too_long(EXPORT_IDS_MAX),))
        if self.is_tables:
            if self.start_ms > self.end_ms:
                yield Finding("startDate", (invalid("must not be after endDate"),))
        elif self.start_ms > self.end_ms or self.start_ms < now_ms - EXPORT_PAST_DAYS * DAY_MS - _PAST_GRACE_MS:
            yield Finding(
                "startDate", (invalid(f"must not be after endDate, nor more than {EXPORT_PAST_DAYS} days ago"),)
            )
        elif self.end_ms - self.start_ms > EXPORT_RANGE_DAYS * DAY_MS:
            yield Finding("endDate", (invalid(f"must be at most {EXPORT_RANGE_DAYS} days after startDate"),))
        if self.url is not None and len(self.url) > EXPORT_URL_CHARACTERS:
            yield Finding("url", (too_long(EXPORT_URL_CHARACTERS),))


class ExportPlan(msgspec.Struct, frozen=True):
    """`groups` are ids that name archive entries, each with the keys of its devices."""

    groups: list[tuple[str, list[DeviceKey]]]
    recipients: list[UserKey]  # the keys of the users who get a mail
    end_ms: Milliseconds | None = None  # the end of a trial: messages after it are not exported

    def narrowed(self, request: ExportRequest) -> ExportRequest:
        """The request up to the end of the trial."""
        if self.end_ms is None or self.end_ms >= request.end_ms:
            return request
        return msgspec.structs.replace(request, end_ms=self.end_ms)


def items(text: str | None) -> list[str]:
    return list(dict.fromkeys(item.strip() for item in (text or "").split(",") if item.strip()))


@dataclass(slots=True, eq=False, repr=False)
class Planner:
    """Finds the devices of a request and checks the caller's permissions."""

    _users: Users
    _devices: Devices
    _types: DeviceTypes
    _permissions: Permissions
    _trials: TrialExports

    async def plan(self, caller: Caller, request: ExportRequest) -> ExportPlan:
        """Raises NotFound for an unknown id in a list or an unknown trial, PermissionDenied."""
        plan = await self._plan(caller, request)
        if not request.is_tables:
            return plan
        keys = dict.fromkeys(key for _, devices in plan.groups for key in devices)
        groups = by_type([await self._devices.get(key) for key in keys])
        return msgspec.structs.replace(plan, groups=list(groups.items()))

    async def _plan(self, caller: Caller, request: ExportRequest) -> ExportPlan:
        if request.trial_id is not None:
            return await self._of_trial(caller, request, request.trial_id)
        users = [await self._user(caller, uid) for uid in items(request.uids)]
        types = {(await self._types.find(sdtid)).key for sdtid in items(request.sdtids)}
        listed = [await self._readable(caller, sdid) for sdid in items(request.sdids)]
        if listed:
            owners = {user.key for user in users}
            chosen = [one for one in listed if (not owners or one.owner in owners) and _is_of(one, types)]
            groups = [(one.id, [one.key]) for one in chosen] or [(listed[0].id, [])]
        else:
            groups = [(user.id, await self._owned(caller, user, types)) for user in users]
        recipients = [caller.user] if caller.user is not None else [user.key for user in users]
        return ExportPlan(groups, recipients or list(dict.fromkeys(one.owner for one in listed)))

    async def _of_trial(self, caller: Caller, request: ExportRequest, trial_id: str) -> ExportPlan:
        """The connected devices of the trial's participants, by participant; only listed ones if there are lists."""
        scope = await self._trials.scope(caller, trial_id)
        users = [await self._users.find(uid, caller) for uid in items(request.uids)]
        if any(user.key not in scope.participants for user in users):
            raise PermissionDenied(f"a participant of trial {trial_id}")
        types = {(await self._types.find(sdtid)).key for sdtid in items(request.sdtids)}
        listed = {(await self._devices.find(sdid)).key for sdid in items(request.sdids)}
        if not listed <= {one.key for one in scope.devices}:
            raise PermissionDenied(f"a device of trial {trial_id}")
        groups: dict[str, list[DeviceKey]] = {user.id: [] for user in users}
        for one in scope.devices:
            is_named = not users or one.owner_id in groups
            if is_named and _is_of(one, types) and (not listed or one.key in listed):
                groups.setdefault(one.owner_id, []).append(one.key)
        recipients = scope.administrators if caller.user is None else [caller.user]
        return ExportPlan(list(groups.items()) or [(scope.owner_id, [])], recipients, scope.ended_on)

    async def _user(self, caller: Caller, uid: str) -> UserRecord:
        user = await self._users.find(uid, caller)
        await self._permissions.require_user(caller, user.key)
        return user

    async def _readable(self, caller: Caller, sdid: str) -> Device:
        device = await self._devices.find(sdid)
        await self._permissions.require(caller, device, Permission.READ)
        return device

    async def _owned(self, caller: Caller, user: UserRecord, types: set[DeviceTypeKey]) -> list[DeviceKey]:
        reach = await self._permissions.reach(caller)
        owned: Sequence[Device] = await self._devices.owned_by(user.key)
        return [one.key for one in owned if _is_of(one, types) and reach.allows(one, Permission.READ)]


def _is_of(device: Device, types: set[DeviceTypeKey]) -> bool:
    return not types or device.type_key in types


def check_caller(caller: Caller, user: UserKey | None, application: ApplicationKey | None) -> None:
    """Raise PermissionDenied unless the caller made the export: the user by this application, or the application.

    Another application of the same user may have less granted than is in the archive.
    """
    if (caller.user, caller.application) != (user, application):
        raise PermissionDenied("access to this export")
