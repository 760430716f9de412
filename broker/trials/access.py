"""Access of a trial's application to the participants' devices, and its end (reference 14.2).

All changes are part of the caller's transaction; what they end and the facts about them come after its commit
(`broker/accounts/tokens.py: Tokens.change`).
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from broker.accounts.consent import sign_in_grant
from broker.accounts.issuance import Issuance
from broker.accounts.permissions import READ_AND_WRITE, Grants, Reach
from broker.accounts.tokens import user_through
from broker.cluster.kinds import publish
from broker.facts import ApplicationGrantsChanged, DeviceChanged
from broker.trials.roles import TrialRole
from storage.keys import ApplicationKey, DeviceTypeKey, UserKey
from storage.records import GrantRecord
from storage.transaction import Transaction
from storage.trials import TrialRecord


def give(issuance: Issuance, trial: TrialRecord, user: UserKey, through: ApplicationKey | None) -> None:
    """A new participant grants READ and WRITE on the trial's device types.

    `through`: the application with whose token the participant accepted. It cannot give what the user did not grant it:
    else every application could make a trial, let its user take part, and reach all devices with the trial's
    application.
    """
    tx, granted = issuance.tx, sign_in_grant(trial.application, user)
    given = _given(tx, [(user, through)], tx.trials.types(trial.key))
    tx.accounts.add_grants([granted, *(_of_type(granted, type_) for _, type_ in given)])
    _tell(issuance, trial, [user])


def give_type(issuance: Issuance, trial: TrialRecord, device_type: DeviceTypeKey) -> None:
    """The trial has one more device type. Participants who revoked its application grant nothing; see `give`, too."""
    tx = issuance.tx
    granting = {grant.user for grant in tx.accounts.grants(trial.application)}
    participants = [one for one in tx.trials.participants(trial.key) if one[0] in granting]
    users = [user for user, _ in _given(tx, participants, [device_type])]
    tx.accounts.add_grants([_of_type(sign_in_grant(trial.application, user), device_type) for user in users])
    _tell(issuance, trial, users)


def end_type(issuance: Issuance, trial: TrialRecord, device_type: DeviceTypeKey) -> None:
    _tell(issuance, trial, issuance.tx.trials.remove_type_grants(trial.application, device_type))


def end_users(issuance: Issuance, trial: TrialRecord, users: Collection[UserKey]) -> None:
    """End what these users granted, their tokens of the application, and the tokens that it made for their devices."""
    tx = issuance.tx
    issuance.end_tokens_of(trial.application, users)
    for device, hashed in tx.trials.remove_tokens_of_devices(users, trial.application):
        issuance.tell_revoked((hashed,))
        publish(tx, DeviceChanged(device))
    tx.accounts.remove_grants_of(users, trial.application)
    _tell(issuance, trial, users)


def end_tokens(issuance: Issuance, trial: TrialRecord) -> None:
    """End all tokens of users and of the application itself. Grants and tokens of devices stay."""
    issuance.end_tokens_of(trial.application, issuance.tx.trials.token_holders(trial.application))
    issuance.end_tokens_of(trial.application, None)


def end_all_access(issuance: Issuance, trial: TrialRecord) -> None:
    granting = {grant.user for grant in issuance.tx.accounts.grants(trial.application)}
    members = issuance.tx.trials.members(trial.key, TrialRole.PARTICIPANT)
    end_users(issuance, trial, sorted(granting.union(members)))
    end_tokens(issuance, trial)


def readable_types(tx: Transaction, trial: TrialRecord) -> dict[UserKey, set[DeviceTypeKey]]:
    """The device types that the participants let the trial's application read."""
    found: dict[UserKey, set[DeviceTypeKey]] = {}
    for grant in tx.accounts.grants(trial.application):
        if grant.read and grant.device_type is not None:
            found.setdefault(grant.user, set()).add(grant.device_type)
    return found


def _given(
    tx: Transaction, participants: Sequence[tuple[UserKey, ApplicationKey | None]], types: Sequence[DeviceTypeKey]
) -> list[tuple[UserKey, DeviceTypeKey]]:
    """The device types on which each participant's word covers READ and WRITE. With a user is the application whose
    token gave the word; with None it is the user's own, on the page of the invitation."""
    users: dict[ApplicationKey, list[UserKey]] = {}
    for user, through in participants:
        if through is not None:
            users.setdefault(through, []).append(user)
    known = tx.device_types.with_keys(types) if users else []
    covered = set[tuple[UserKey, DeviceTypeKey]]()
    for through, of in users.items():
        if (application := tx.accounts.application(through)) is None:
            continue
        for user, grants in tx.accounts.grants_of_users(through, of).items():
            caller = user_through(user, None, through, application.id, application.organization)
            reach = Reach(caller, Grants(grants))
            covered |= {
                (user, type_.key)
                for type_ in known
                if all(reach.allows_type(user, type_, permission) for permission in READ_AND_WRITE)
            }
    pairs = ((user, through, type_) for user, through in participants for type_ in types)
    return [(user, type_) for user, through, type_ in pairs if through is None or (user, type_) in covered]


def _of_type(granted: GrantRecord, device_type: DeviceTypeKey) -> GrantRecord:
    return replace(granted, device_type=device_type, read=True, write=True)


def _tell(issuance: Issuance, trial: TrialRecord, users: Collection[UserKey]) -> None:
    if users:
        of = issuance.tx.accounts.grants_of_users(trial.application, users)
        publish(issuance.tx, ApplicationGrantsChanged(trial.application, of))
