"""Trials from their creation to their end (reference 14.1 and 14.2).

A user is an administrator of a trial only in the hands of an application that may manage it: see `Trials.manages`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permissions, Reach
from broker.accounts.tokens import Caller, Tokens
from broker.accounts.users import Users
from broker.clock import Clock
from broker.conditional import require_unchanged
from broker.errors import Conflict, NotFound, PermissionDenied
from broker.ids import new_id
from broker.trace.audit import AuditEvent, note
from broker.trials import access
from broker.trials.applications import TrialApplications, name_of
from broker.trials.device_types import TrialTypes, add_type
from broker.trials.invitations import NewInvitation, TrialInvitations
from broker.trials.roles import TooManyTrials, TrialRole, going, note_trial, present, trial_tag
from config.limits import TRIALS_OF_ONE_USER, TRIALS_PER_DAY
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.records import NEW_KEY, UserRecord
from storage.transaction import Transaction
from storage.trials import TrialRecord

_DAY_MS: Final = 86_400_000
#: Which permission an application lacks that does not manage the trial.
NOT_MANAGED: Final = "the grant 'trials', which the user gives on the permission screen"


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial as it is shown. Only who manages it sees the id and the secret of its application."""

    record: TrialRecord
    owner_id: str
    application_id: str | None = None
    secret: str | None = field(default=None, repr=False)


class NewTrial(msgspec.Struct, frozen=True):
    name: str
    description: str | None
    device_types: Sequence[str] = ()  # ids or unique names
    invitations: Sequence[NewInvitation] = ()


class TrialStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    created: int
    stopped: int
    deleted: int


@dataclass(slots=True, eq=False, repr=False)
class Trials:
    """The caller of a method without a `Caller` has checked the role (`require`)."""

    _database: Database
    _clock: Clock
    _tokens: Tokens
    _permissions: Permissions
    _users: Users
    _types: TrialTypes
    _applications: TrialApplications
    _invitations: TrialInvitations
    _created: int = field(default=0, init=False)
    _stopped: int = field(default=0, init=False)
    _deleted: int = field(default=0, init=False)

    # Finding and permissions

    async def find(self, trial_id: str) -> TrialRecord:
        """Raises NotFound."""
        found = await self._database.read(lambda tx: tx.trials.by_id(trial_id))
        if found is None:
            raise NotFound
        return found

    async def has_role(self, trial: TrialRecord, user: UserKey | None, role: TrialRole) -> bool:
        return user is not None and await self._database.read(lambda tx: tx.trials.has_role(trial.key, user, role))

    async def require(self, caller: Caller, trial: TrialRecord, roles: Collection[TrialRole]) -> None:
        """The caller's user has one of the roles in the trial; where it is that of an administrator only, the caller
        manages the trial. Raises PermissionDenied."""
        for role in roles:
            if await self.has_role(trial, caller.user, role):
                break
        else:
            raise PermissionDenied(f"{' or '.join(sorted(roles))} of trial {trial.id}")
        if TrialRole.PARTICIPANT not in roles:
            await self.require_managing(caller, trial)

    async def require_managing(self, caller: Caller, trial: TrialRecord) -> None:
        """Raises PermissionDenied unless the caller's application may do what an administrator may; see `manages`."""
        if not manages(await self._permissions.reach(caller), trial):
            raise PermissionDenied(NOT_MANAGED)

    async def manages(self, caller: Caller, trial: TrialRecord) -> bool:
        """The caller's user is an administrator, and the caller's application may manage the trial."""
        is_administrator = await self.has_role(trial, caller.user, TrialRole.ADMINISTRATOR)
        return is_administrator and manages(await self._permissions.reach(caller), trial)

    async def managed_by(self, caller: Caller) -> list[TrialRecord]:
        """All trials that the caller manages."""
        user, reach = caller.user, await self._permissions.reach(caller)
        if user is None:
            return []
        found = await self._database.read(lambda tx: tx.trials.administered_by(user))
        return [trial for trial in found if manages(reach, trial)]

    # Showing

    async def shown(self, trial: TrialRecord, caller: Caller) -> Trial:
        """The trial as the caller, a member, sees it. Raises NotFound: it was deleted."""
        reach = await self._permissions.reach(caller)

        def work(tx: Transaction) -> Trial:
            return self._shown(tx, present(tx, trial), reach)

        return await self._database.read(work)

    async def of_user(
        self, caller: Caller, user: UserKey, roles: Sequence[TrialRole], *, offset: int, count: int
    ) -> tuple[list[Trial], int]:
        """A page of the trials in which the user has one of the roles, as the caller sees them; the number of all."""
        reach = await self._permissions.reach(caller)

        def work(tx: Transaction) -> tuple[list[Trial], int]:
            found, total = tx.trials.page_of_user(user, roles, offset=offset, limit=count)
            return [self._shown(tx, one, reach) for one in found], total

        return await self._database.read(work)

    def _shown(self, tx: Transaction, trial: TrialRecord, reach: Reach) -> Trial:
        viewer = reach.caller.user
        is_shown = viewer is not None and tx.trials.has_role(trial.key, viewer, TrialRole.ADMINISTRATOR)
        if is_shown and manages(reach, trial):
            return self._whole(tx, trial)
        return replace(self._whole(tx, trial), application_id=None, secret=None)

    def _whole(self, tx: Transaction, trial: TrialRecord) -> Trial:
        owner, application = tx.accounts.user(trial.owner), tx.accounts.application(trial.application)
        if owner is None or application is None:
            raise NotFound  # an operator removed one of them
        return Trial(trial, owner.id, application.id, self._applications.secret_of(application))

    # Creating and ending

    async def create(self, caller: Caller, new: NewTrial) -> Trial:
        """Create a trial, whose administrator is the caller, with its device types and invitations: all or nothing.

        Raises:
            DeviceTypeNotFound: a type does not exist.
            PermissionDenied: the caller may not use one of the types.
            ValidationFailed: an address is none.
            Conflict: the caller has too many trials, or a type or an address is given twice.
            TooManyTrials: the caller created too many today.
        """
        creator = await self._users.self_of(caller)
        types = [await self._types.usable(caller, one) for one in new.device_types]
        invited = [self._invitations.prepared(creator, new.name, one) for one in new.invitations]
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> Trial:
            if tx.trials.count_of_owner(creator.key) >= TRIALS_OF_ONE_USER:
                raise Conflict(f"At most {TRIALS_OF_ONE_USER} trials at a time")
            if tx.trials.tally(creator.key, day=now_ms // _DAY_MS) > TRIALS_PER_DAY:
                raise TooManyTrials((_DAY_MS - now_ms % _DAY_MS) // 1000 + 1)
            application = self._applications.make(tx, creator, new.name)
            trial = tx.trials.add(
                TrialRecord(
                    key=NEW_KEY,
                    id=new_id(),
                    owner=creator.key,
                    name=new.name,
                    description=new.description,
                    application=application,
                    started_on=now_ms,
                    made_through=caller.application,
                )
            )
            tx.trials.add_member(trial.key, creator.key, TrialRole.ADMINISTRATOR, now_ms=now_ms)
            for type_ in types:
                add_type(tx, trial, type_)
            for one in invited:
                self._invitations.send(tx, trial, one)
            whole = self._whole(tx, trial)
            note_trial(tx, AuditEvent.TRIAL_CREATED, trial, now_ms, application=whole.application_id)
            return whole

        created = await self._database.write(work)
        self._created += 1
        self._invitations.count_sent(len(invited))
        return created

    async def change(self, trial: TrialRecord, *, name: str | None, description: str | None, stop: bool) -> Trial:
        """Change what is given. Stopping ends the application's access to what the participants granted, its tokens,
        and the open invitations. Returns the trial.

        Raises:
            NotFound: the trial was deleted.
            Conflict: it is stopped.
        """

        def work(issuance: Issuance) -> Trial:
            tx, now_ms = issuance.tx, Milliseconds(issuance.now_ms)
            current = going(tx, trial)
            require_unchanged(trial_tag(current))
            wanted = msgspec.structs.replace(
                current,
                name=current.name if name is None else name,
                description=current.description if description is None else description,
                ended_on=now_ms if stop else None,
            )
            if wanted != current:
                tx.trials.put(wanted)
            if wanted.name != current.name:
                tx.trials.name_application(current.application, name_of(wanted.name))
            if stop:
                self._stop(issuance, wanted)
            return self._whole(tx, wanted)

        changed = await self._tokens.change(work)
        self._stopped += stop
        return changed

    def _stop(self, issuance: Issuance, trial: TrialRecord) -> None:
        tx = issuance.tx
        # The owners of these revoked the application. The grants, which say so, end now.
        tx.trials.disconnect_ungranted(trial.key, trial.application)
        tx.trial_invitations.remove_open(trial.key, now_ms=issuance.now_ms)
        access.end_all_access(issuance, trial)
        self._applications.close(tx, trial.application)
        note_trial(tx, AuditEvent.TRIAL_STOPPED, trial, issuance.now_ms)

    async def delete(self, trial: TrialRecord) -> Trial:
        """Delete the trial with its members, invitations and connected devices, and end what `change` with `stop` ends.

        Returns the trial as it was. Raises NotFound: it was deleted.
        """

        def work(issuance: Issuance) -> Trial:
            current = present(issuance.tx, trial)
            was = self._whole(issuance.tx, current)
            self._delete(issuance, current)
            return was

        deleted = await self._tokens.change(work)
        self._deleted += 1
        return deleted

    def _delete(self, issuance: Issuance, trial: TrialRecord) -> None:
        access.end_all_access(issuance, trial)
        issuance.tx.trials.remove(trial.key)
        self._applications.retire(issuance.tx, trial.application)
        note_trial(issuance.tx, AuditEvent.TRIAL_DELETED, trial, issuance.now_ms)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Delete a user's own trials, and take the user out of others (`broker/accounts/claims.py: Ender`)."""
        tx = issuance.tx
        own = tx.trials.of_owner(user.key)
        for trial in own:
            self._delete(issuance, trial)
        names = [trial.name for trial in own]
        for trial, role in tx.trials.roles_of(user.key):
            tx.trials.remove_member(trial.key, user.key, role)
            if role == TrialRole.PARTICIPANT:
                tx.trials.disconnect_all(trial.key, user.key)
                access.end_users(issuance, trial, [user.key])
            details = {"user": user.id, "role": role}
            note_trial(tx, AuditEvent.TRIAL_MEMBER_REMOVED, trial, issuance.now_ms, **details)
            names.append(trial.name)
        return names

    async def renew_application(self, trial: TrialRecord) -> Trial:
        """Give the application another id and secret, and end its tokens. The participants' grants stay.

        Raises NotFound, Conflict: see `change`.
        """

        def work(issuance: Issuance) -> Trial:
            current = going(issuance.tx, trial)
            access.end_tokens(issuance, current)
            self._applications.renew(issuance.tx, current.application)
            renewed = self._whole(issuance.tx, current)
            event, about = AuditEvent.SECRET_RENEWED, f"application {renewed.application_id}"
            note(issuance.tx, event, about, now_ms=issuance.now_ms, trial=current.id)
            return renewed

        return await self._tokens.change(work)

    def statistics(self) -> TrialStatistics:
        return TrialStatistics(self._created, self._stopped, self._deleted)


def manages(reach: Reach, trial: TrialRecord) -> bool:
    """The caller's application may do in a trial what its user, an administrator, may (reference 14.1).

    These are the console, the application through which the trial was made, the trial's own one, and those to which the
    user granted `trials`.
    """
    caller = reach.caller
    if caller.user is None:
        return False
    own = {trial.application} if trial.made_through is None else {trial.application, trial.made_through}
    return caller.application in own or reach.manages_trials(caller.user)
