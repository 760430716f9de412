"""The administrators and participants of a trial, and the devices that participants connect (reference 14.4)."""

from typing import Final

import msgspec

from broker.accounts.issuance import Issuance
from broker.accounts.tokens import Tokens
from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DeviceNotFound, NotFound, PermissionDenied
from broker.trace.audit import AuditEvent
from broker.trials import access
from broker.trials.roles import LAST_ADMINISTRATOR, TrialRole, going, note_trial, present
from config.limits import TRIAL_DEVICES, TRIAL_DEVICES_OF_ONE
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.records import UserRecord
from storage.transaction import Transaction
from storage.trials import TrialDeviceRow, TrialRecord

ALREADY_CONNECTED: Final = "Device is connected to the trial already"


class ConnectedDevice(msgspec.Struct, frozen=True):
    device: Device
    connected_on: Milliseconds


class TrialMembers:
    """Members of trials. The caller checks the role of the user who asks."""

    def __init__(self, database: Database, clock: Clock, tokens: Tokens, devices: Devices) -> None:
        self._database = database
        self._clock = clock
        self._tokens = tokens
        self._devices = devices

    async def page(
        self, trial: TrialRecord, role: TrialRole, *, offset: int, count: int
    ) -> tuple[list[UserRecord], int]:
        """A page of the members in this role, in the order in which they came, and the number of all."""
        return await self._database.read(
            lambda tx: tx.trials.page_of_members(trial.key, role, offset=offset, limit=count)
        )

    async def require_member(self, trial: TrialRecord, user: UserKey, role: TrialRole) -> None:
        """Raises NotFound: the user does not have the role in the trial."""
        if not await self._database.read(lambda tx: tx.trials.has_role(trial.key, user, role)):
            raise NotFound

    async def remove(self, trial: TrialRecord, user: UserRecord, role: TrialRole) -> None:
        """Take the role from a user, also after the trial's end.

        A participant's devices are disconnected, and the access of the trial's application for the participant ends.

        Raises:
            NotFound: the user does not have the role, or the trial was deleted.
            Conflict: the user is the last administrator.
        """

        def work(issuance: Issuance) -> None:
            tx, current = issuance.tx, present(issuance.tx, trial)
            if not tx.trials.has_role(current.key, user.key, role):
                raise NotFound
            if role is TrialRole.ADMINISTRATOR and tx.trials.count_members(current.key, role) == 1:
                raise Conflict(LAST_ADMINISTRATOR)
            tx.trials.remove_member(current.key, user.key, role)
            if role is TrialRole.PARTICIPANT:
                tx.trials.disconnect_all(current.key, user.key)
                access.end_users(issuance, current, [user.key])
            event = AuditEvent.TRIAL_MEMBER_REMOVED
            note_trial(tx, event, current, issuance.now_ms, user=user.id, role=str(role))

        await self._tokens.change(work)

    # Devices

    async def devices(
        self, trial: TrialRecord, user: UserKey | None, *, offset: int, count: int
    ) -> tuple[list[ConnectedDevice], int]:
        """A page of the connected devices of one participant or of all, and the number of all."""

        def work(tx: Transaction) -> tuple[list[TrialDeviceRow], int]:
            return tx.trials.page_of_devices(trial.key, user, offset=offset, limit=count)

        rows, total = await self._database.read(work)
        since = {row.device: row.connected_on for row in rows}
        found = await self._devices.get_all(since)
        return [ConnectedDevice(device, since[device.key]) for device in found], total

    async def connect(self, trial: TrialRecord, user: UserKey, device: Device) -> None:
        """Connect a device of a participant.

        Raises:
            PermissionDenied: it is not the participant's own, or not of a device type of the trial.
            Conflict: it is connected already, the participant has too many, or the trial is stopped.
            NotFound: the trial or the participant was removed.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            current = present(tx, trial)
            if device.owner != user:
                raise PermissionDenied(f"ownership of device {device.id}")
            if device.type_key not in tx.trials.types(current.key):
                raise PermissionDenied(f"a device of a type of trial {current.id}")
            going(tx, current)
            if not tx.trials.has_role(current.key, user, TrialRole.PARTICIPANT):
                raise NotFound
            if tx.devices.device(device.key) is None:
                raise DeviceNotFound(device.id)
            if tx.trials.is_connected(current.key, device.key):
                raise Conflict(ALREADY_CONNECTED)
            if tx.trials.count_devices(current.key, user) >= TRIAL_DEVICES_OF_ONE:
                raise Conflict(f"At most {TRIAL_DEVICES_OF_ONE} devices of one participant")
            if tx.trials.count_devices(current.key) >= TRIAL_DEVICES:
                raise Conflict(f"At most {TRIAL_DEVICES} devices in a trial")
            tx.trials.connect(current.key, user, device.key, now_ms=now_ms)
            note_trial(tx, AuditEvent.TRIAL_DEVICE_CONNECTED, current, now_ms, device=device.id)

        await self._database.write(work)

    async def disconnect(self, trial: TrialRecord, user: UserKey, device: Device) -> None:
        """Disconnect a device of a participant, also after the trial's end. Raises NotFound: it is not connected."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            current = present(tx, trial)
            if device.owner != user or not tx.trials.is_connected(current.key, device.key):
                raise NotFound
            tx.trials.disconnect(current.key, device.key)
            note_trial(tx, AuditEvent.TRIAL_DEVICE_DISCONNECTED, current, now_ms, device=device.id)

        await self._database.write(work)
