"""Access of a trial's application to the participants' devices, and its end (reference 14.2).

All changes are part of the caller's transaction; what they end and the facts about them come after its commit
(`broker/accounts/tokens.py: Tokens.change`).
"""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from broker.accounts.consent import sign_in_grant
from broker.accounts.issuance import Issuance
from broker.accounts.permissions import READ_AND_WRITE, Grants, Reach
from broker.accounts.tokens import user_through
from broker.cluster.kinds import publish
from broker.facts import ApplicationGrantsChanged, DeviceChanged
from broker.trials.roles import TrialRole
from storage.database import Transaction
from storage.keys import ApplicationKey, DeviceTypeKey, UserKey
from storage.records import GrantRecord
from storage.trials import TrialRecord


def give(issuance: Issuance, trial: TrialRecord, user: UserKey, through: ApplicationKey | None) -> None:
    """A new participant grants READ and WRITE on the trial's device types.

    `through`: the application with whose token the participant accepted. It cannot give what the user did not grant it:
    else every application could make a trial, let its user take part, and reach all devices with the trial's
    application.
    """
    tx, granted = issuance.tx, sign_in_grant(trial.application, user)
    tx.accounts.add_grant(granted)
    for type_ in tx.trials.types(trial.key):
        if _may_give(tx, user, through, type_):
            tx.accounts.add_grant(_of_type(granted, type_))
    _tell(issuance, trial, [user])


def give_type(issuance: Issuance, trial: TrialRecord, device_type: DeviceTypeKey) -> None:
    """The trial has one more device type. Participants who revoked its application grant nothing; see `give`, too."""
    tx = issuance.tx
    granting = {grant.user for grant in tx.accounts.grants(trial.application)}
    users = [
        user
        for user, through in tx.trials.participants(trial.key)
        if user in granting and _may_give(tx, user, through, device_type)
    ]
    for user in users:
        tx.accounts.add_grant(_of_type(sign_in_grant(trial.application, user), device_type))
    _tell(issuance, trial, users)


def end_type(issuance: Issuance, trial: TrialRecord, device_type: DeviceTypeKey) -> None:
    _tell(issuance, trial, issuance.tx.trials.remove_type_grants(trial.application, device_type))


def end_users(issuance: Issuance, trial: TrialRecord, users: Collection[UserKey]) -> None:
    """End what these users granted, their tokens of the application, and the tokens that it made for their devices."""
    tx = issuance.tx
    for user in set(users).intersection(tx.trials.token_holders(trial.application)):
        _end_tokens_of(issuance, trial, user)
    for user in users:
        for device, hashed in tx.trials.tokens_of_devices(user, trial.application):
            tx.devices.remove_token(device)
            issuance.tell_revoked((hashed,))
            publish(tx, DeviceChanged(device))
        tx.accounts.remove_grants(user, trial.application)
    _tell(issuance, trial, users)


def end_tokens(issuance: Issuance, trial: TrialRecord) -> None:
    """End all tokens of users and of the application itself. Grants and tokens of devices stay."""
    for user in issuance.tx.trials.token_holders(trial.application):
        _end_tokens_of(issuance, trial, user)
    for token in issuance.tx.accounts.tokens_of(trial.application, None):
        issuance.end_token(token)


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


def _end_tokens_of(issuance: Issuance, trial: TrialRecord, user: UserKey) -> None:
    tx = issuance.tx
    for family in tx.authorizations.families_of(user, trial.application):
        issuance.end_family(family)
    for token in tx.accounts.tokens_of(trial.application, user):
        issuance.end_token(token)


def _may_give(tx: Transaction, user: UserKey, through: ApplicationKey | None, device_type: DeviceTypeKey) -> bool:
    """Whether the user's word, given with a token of this application, covers READ and WRITE on the device type."""
    if through is None:  # the user's own word, on the page of the invitation
        return True
    application, type_ = tx.accounts.application(through), tx.device_types.device_type(device_type)
    if application is None or type_ is None:
        return False
    caller = user_through(user, None, through, application.id, application.organization)
    reach = Reach(caller, Grants(tx.accounts.grants(through, user)))
    return all(reach.allows_type(user, type_, permission) for permission in READ_AND_WRITE)


def _of_type(granted: GrantRecord, device_type: DeviceTypeKey) -> GrantRecord:
    return replace(granted, device_type=device_type, read=True, write=True)


def _tell(issuance: Issuance, trial: TrialRecord, users: Iterable[UserKey]) -> None:
    of = {user: tuple(issuance.tx.accounts.grants(trial.application, user)) for user in users}
    if of:
        publish(issuance.tx, ApplicationGrantsChanged(trial.application, of))
