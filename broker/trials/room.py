"""Builds trials."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.mail import Mails
from broker.trials.applications import TrialApplications
from broker.trials.device_types import TrialTypes
from broker.trials.documents import TrialDocuments
from broker.trials.exports import TrialExports
from broker.trials.invitations import TrialInvitations
from broker.trials.members import TrialMembers
from broker.trials.sessions import TrialSessions
from broker.trials.trials import Trials


class TrialsRoom(msgspec.Struct, frozen=True):
    trials: Trials
    device_types: TrialTypes
    invitations: TrialInvitations
    members: TrialMembers
    exports: TrialExports
    sessions: TrialSessions
    documents: TrialDocuments


async def open_trials(
    core: Core, mails: Mails, accounts: AccountsRoom, device_types: DeviceTypesRoom, devices: DevicesRoom
) -> TrialsRoom:
    database, clock, tokens = core.database, core.clock, accounts.tokens
    types = TrialTypes(database, tokens, accounts.permissions, device_types.catalog, device_types.lists)
    invitations = TrialInvitations(database, clock, tokens, mails)
    applications = TrialApplications(core.vault)
    trials = Trials(database, clock, tokens, accounts.permissions, accounts.users, types, applications, invitations)
    accounts.claims.ends("Trials", trials.end_all_of)
    core.life.observe("trials", trials.statistics)
    core.life.observe("trial invitations", invitations.statistics)
    return TrialsRoom(
        trials=trials,
        device_types=types,
        invitations=invitations,
        members=TrialMembers(database, clock, tokens, devices.registry),
        exports=TrialExports(database, accounts.permissions, devices.registry),
        sessions=TrialSessions(database, clock, devices.registry, trials, is_on=core.settings.trials.sessions == "on"),
        documents=TrialDocuments(database, clock),
    )
