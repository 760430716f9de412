"""Which devices an export by trial covers (reference 10.1 and 14.2)."""

import msgspec

from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device, Devices
from broker.errors import NotFound, PermissionDenied
from broker.trials.access import readable_types
from broker.trials.roles import TrialRole
from broker.trials.trials import NOT_MANAGED, manages
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, UserKey
from storage.transaction import Transaction
from storage.trials import TrialRecord


class TrialScope(msgspec.Struct, frozen=True):
    """The connected devices that may be read, whose mails tell of the export, and the id of the trial's creator."""

    devices: list[Device]
    participants: set[UserKey]
    administrators: list[UserKey]
    owner_id: str
    ended_on: Milliseconds | None


class _Found(msgspec.Struct, frozen=True):
    trial: TrialRecord
    owner_id: str
    organization: OrganizationKey
    connected: list[DeviceKey]
    participants: set[UserKey]
    administrators: list[UserKey]
    readable: dict[UserKey, set[DeviceTypeKey]]


class TrialExports:
    def __init__(self, database: Database, permissions: Permissions, devices: Devices) -> None:
        self._database = database
        self._permissions = permissions
        self._devices = devices

    async def scope(self, caller: Caller, trial_id: str) -> TrialScope:
        """The scope of an export by an administrator of the trial, or by its application.

        While the trial goes on: the connected devices whose participants still grant its application READ. After its
        end: the devices that were connected at the end.

        Raises NotFound, PermissionDenied.
        """
        found = await self._database.read(lambda tx: _found(tx, trial_id))
        trial = found.trial
        is_application = caller.kind is TokenKind.APPLICATION and caller.application == trial.application
        if not is_application and caller.user not in found.administrators:
            raise PermissionDenied(f"administrator of trial {trial.id}")
        if not is_application and not manages(await self._permissions.reach(caller), trial):
            raise PermissionDenied(NOT_MANAGED)
        devices = [
            device
            for device in await self._devices.get_all(found.connected)
            if trial.ended_on is not None or _is_readable(device, found)
        ]
        return TrialScope(devices, found.participants, found.administrators, found.owner_id, trial.ended_on)


def _is_readable(device: Device, found: _Found) -> bool:
    """Whether the trial's application may read a device, as `broker/accounts/permissions.py: Reach` decides."""
    if device.type_protected and device.type_organization != found.organization:
        return False
    return device.type_key in found.readable.get(device.owner, ())


def _found(tx: Transaction, trial_id: str) -> _Found:
    trial = tx.trials.by_id(trial_id)
    owner = None if trial is None else tx.accounts.user(trial.owner)
    application = None if trial is None else tx.accounts.application(trial.application)
    if trial is None or owner is None or application is None:
        raise NotFound
    return _Found(
        trial,
        owner.id,
        application.organization,
        [row.device for row in tx.trials.devices(trial.key)],
        set(tx.trials.members(trial.key, TrialRole.PARTICIPANT)),
        tx.trials.members(trial.key, TrialRole.ADMINISTRATOR),
        readable_types(tx, trial),
    )
