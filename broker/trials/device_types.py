"""The device types of a trial (reference 14.2)."""

from dataclasses import dataclass

from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller, Tokens
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.device_types.lists import DeviceTypeLists, TypePage
from broker.errors import Conflict, DeviceTypeNotFound
from broker.trace.audit import AuditEvent
from broker.trials import access
from broker.trials.roles import going, note_trial
from config.limits import TRIAL_DEVICE_TYPES
from storage.database import Database
from storage.transaction import Transaction
from storage.trials import TrialRecord

ALREADY_THERE = "Device type is in the trial already"


@dataclass(slots=True, eq=False, repr=False)
class TrialTypes:
    """The caller checks the role; whether a device type may be used is checked here."""

    _database: Database
    _tokens: Tokens
    _permissions: Permissions
    _types: DeviceTypes
    _lists: DeviceTypeLists

    async def page(self, caller: Caller, trial: TrialRecord, *, offset: int, count: int) -> TypePage:
        """A page of the trial's device types, as a member sees them."""

        def work(tx: Transaction) -> list[str]:
            types = map(tx.device_types.device_type, tx.trials.types(trial.key))
            return [type_.id for type_ in types if type_ is not None]

        return await self._lists.with_ids(caller, await self._database.read(work), count=count, offset=offset)

    async def known(self, id_or_name: str) -> DeviceType:
        """Raises DeviceTypeNotFound: it does not exist."""
        return await self._types.find(id_or_name)

    async def usable(self, caller: Caller, id_or_name: str) -> DeviceType:
        """A type that the caller may use. Raises DeviceTypeNotFound, PermissionDenied."""
        type_ = await self._types.find(id_or_name)
        await self._permissions.require_type(caller, type_.record)
        return type_

    async def add(self, caller: Caller, trial: TrialRecord, id_or_name: str) -> DeviceType:
        """Add a device type; the participants grant it like the others.

        Raises:
            DeviceTypeNotFound: it does not exist.
            PermissionDenied: the caller may not use it.
            Conflict: the trial has it already, has too many, or is stopped.
        """
        type_ = await self.usable(caller, id_or_name)

        def work(issuance: Issuance) -> None:
            current = going(issuance.tx, trial)
            add_type(issuance.tx, current, type_)
            access.give_type(issuance, current, type_.key)
            note_trial(issuance.tx, AuditEvent.TRIAL_TYPE_ADDED, current, issuance.now_ms, device_type=type_.id)

        await self._tokens.change(work)
        return type_

    async def remove(self, trial: TrialRecord, type_: DeviceType) -> None:
        """Take a type out of the trial: its devices are disconnected, and its grants end.

        Raises DeviceTypeNotFound: the trial does not have it; NotFound, Conflict: see `going`.
        """

        def work(issuance: Issuance) -> None:
            current = going(issuance.tx, trial)
            if type_.key not in issuance.tx.trials.types(current.key):
                raise DeviceTypeNotFound
            issuance.tx.trials.remove_type(current.key, type_.key)
            access.end_type(issuance, current, type_.key)
            note_trial(issuance.tx, AuditEvent.TRIAL_TYPE_REMOVED, current, issuance.now_ms, device_type=type_.id)

        await self._tokens.change(work)


def add_type(tx: Transaction, trial: TrialRecord, type_: DeviceType) -> None:
    """Raises Conflict: the trial has it already, or has too many."""
    types = tx.trials.types(trial.key)
    if type_.key in types:
        raise Conflict(ALREADY_THERE)
    if len(types) >= TRIAL_DEVICE_TYPES:
        raise Conflict(f"At most {TRIAL_DEVICE_TYPES} device types in a trial")
    tx.trials.add_type(trial.key, type_.key)
