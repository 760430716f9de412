"""Sessions of trials: when a participant used which devices (reference 14.5). An optional module."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Devices
from broker.errors import Conflict, NotFound, PermissionDenied, ValidationFailed, invalid, too_long
from broker.ids import new_id
from broker.trials.roles import TrialRole, going, present
from broker.trials.trials import Trials
from config.limits import TRIAL_SESSION_DEVICES, TRIAL_SESSIONS
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.records import NEW_KEY, UserRecord
from storage.transaction import Transaction
from storage.trial_sessions import SessionSearch, TrialSessionRecord
from storage.trials import TrialRecord

_ADMINISTRATORS = (TrialRole.ADMINISTRATOR,)


class TrialSession(msgspec.Struct, frozen=True):
    """A session, with the ids of its trial and its participant."""

    record: TrialSessionRecord
    trial_id: str
    user_id: str


def uuid_of(id_: str) -> str:
    """The session's id with dashes."""
    return str(UUID(id_))


class TrialSessions:
    def __init__(self, database: Database, clock: Clock, devices: Devices, trials: Trials, *, is_on: bool) -> None:
        self.is_on = is_on
        self._database = database
        self._clock = clock
        self._devices = devices
        self._trials = trials

    async def find(self, session_id: str) -> tuple[TrialRecord, TrialSessionRecord]:
        """A session and its trial. Raises NotFound."""

        def work(tx: Transaction) -> tuple[TrialRecord, TrialSessionRecord]:
            session = tx.trial_sessions.by_id(session_id)
            trial = None if session is None else tx.trials.trial(session.trial)
            if session is None or trial is None:
                raise NotFound
            return trial, session

        return await self._database.read(work)

    async def require_access(self, caller: Caller, trial: TrialRecord, participant: UserKey) -> None:
        """Require an administrator, or the participant whose session it is. Raises PermissionDenied."""
        if caller.user == participant and await self._trials.has_role(trial, participant, TrialRole.PARTICIPANT):
            return
        await self._trials.require(caller, trial, _ADMINISTRATORS)

    async def shown(self, sessions: Sequence[TrialSessionRecord]) -> list[TrialSession]:
        """The sessions as calls show them, except sessions of deleted trials."""

        def work(tx: Transaction) -> list[TrialSession]:
            shown = []
            for one in sessions:
                trial, user = tx.trials.trial(one.trial), tx.accounts.user(one.user)
                if trial is not None and user is not None:
                    shown.append(TrialSession(one, trial.id, user.id))
            return shown

        return await self._database.read(work)

    async def one(self, session: TrialSessionRecord) -> TrialSession:
        """The session as calls show it. Raises NotFound: its trial was deleted."""
        found = await self.shown([session])
        if not found:
            raise NotFound
        return found[0]

    async def create(self, trial: TrialRecord, participant: UserRecord, dids: Sequence[str]) -> TrialSessionRecord:
        """A session that has not begun.

        Raises:
            ValidationFailed: the user is no participant of the trial, or there are too many devices.
            DeviceNotFound: a device does not exist.
            PermissionDenied: a device is not one that the participant connected to the trial.
            NotFound: the trial was deleted.
            Conflict: it is stopped, or has too many sessions.
        """
        if len(dids) > TRIAL_SESSION_DEVICES:
            raise ValidationFailed.of("devices", too_long(TRIAL_SESSION_DEVICES))
        devices = [await self._devices.find(did) for did in dids]
        session = TrialSessionRecord(
            key=NEW_KEY,
            id=new_id(),
            trial=trial.key,
            user=participant.key,
            devices=",".join(dids),
            started_on=None,
            ended_on=None,
            created_on=self._clock.now_ms(),
        )

        def work(tx: Transaction) -> TrialSessionRecord:
            if not tx.trials.has_role(trial.key, participant.key, TrialRole.PARTICIPANT):
                raise ValidationFailed.of("participantId", invalid("must be a participant of the trial"))
            for device in devices:
                if device.owner != participant.key or not tx.trials.is_connected(trial.key, device.key):
                    raise PermissionDenied(f"device {device.id} in trial {trial.id}")
            if tx.trial_sessions.count(going(tx, trial).key) >= TRIAL_SESSIONS:
                raise Conflict(f"At most {TRIAL_SESSIONS} sessions of a trial")
            tx.trial_sessions.add(session)
            return session

        return await self._database.write(work)

    async def change(
        self, trial: TrialRecord, session_id: str, *, start_ms: int | None, end_ms: int | None
    ) -> TrialSessionRecord:
        """Set the times that are given.

        Raises:
            ValidationFailed: the session would end before its start, or without one.
            NotFound: the session was deleted.
            Conflict: the trial is stopped.
        """

        def work(tx: Transaction) -> TrialSessionRecord:
            session = tx.trial_sessions.by_id(session_id)
            if session is None:
                raise NotFound
            changed = replace(
                session,
                started_on=session.started_on if start_ms is None else Milliseconds(start_ms),
                ended_on=session.ended_on if end_ms is None else Milliseconds(end_ms),
            )
            if changed.ended_on is not None and (changed.started_on is None or changed.ended_on < changed.started_on):
                raise ValidationFailed.of("end", invalid("needs a start that is not later"))
            going(tx, trial)
            tx.trial_sessions.put(changed)
            return changed

        return await self._database.write(work)

    async def remove(self, trial: TrialRecord, session: TrialSessionRecord) -> None:
        """Remove a session. Raises NotFound: it was deleted."""

        def work(tx: Transaction) -> None:
            present(tx, trial)
            if tx.trial_sessions.by_id(session.id) is None:
                raise NotFound
            tx.trial_sessions.remove(session.key)

        await self._database.write(work)

    async def of_trial(
        self, trial: TrialRecord, caller: Caller, *, ongoing: bool, offset: int, count: int
    ) -> tuple[list[TrialSessionRecord], int]:
        """A page of the sessions that the caller may see, and the number of all: a participant sees the own ones."""
        sees_all = await self._trials.manages(caller, trial)
        user = None if sees_all else caller.user
        return await self._database.read(
            lambda tx: tx.trial_sessions.page(trial.key, user, ongoing=ongoing, offset=offset, limit=count)
        )

    async def search(
        self, caller: Caller, trial_ids: Sequence[str], wanted: SessionSearch, *, offset: int, count: int
    ) -> tuple[list[TrialSessionRecord], int]:
        """A page of the sessions that fit, in these trials or in all that the caller manages; the number of all.

        Raises NotFound: a trial does not exist; PermissionDenied: the caller does not administer one.
        """
        chosen = [await self._trials.find(one) for one in trial_ids]
        for trial in chosen:
            await self._trials.require(caller, trial, _ADMINISTRATORS)
        chosen = chosen or await self._trials.managed_by(caller)

        def work(tx: Transaction) -> tuple[list[TrialSessionRecord], int]:
            keys = [trial.key for trial in chosen]
            return tx.trial_sessions.search(replace(wanted, trials=keys), offset=offset, limit=count)

        return await self._database.read(work)
