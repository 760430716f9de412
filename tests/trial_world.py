"""A trial with somebody in each role, made through the broker."""

from dataclasses import dataclass
from typing import Final

from broker.accounts.consent import sign_in_grant
from broker.secrets import token_hash
from broker.services import Services
from broker.trials.invitations import NewInvitation
from broker.trials.roles import TrialRole
from broker.trials.trials import NewTrial, Trial
from storage.keys import UserKey
from storage.records import TokenRecord, UserRecord
from storage.transaction import Transaction
from storage.trial_invitations import TrialInvitationRecord
from tests.factories import ADA_TOKEN, BOBS, LIGHT_TYPE, NOW_MS, World, new_user

INA, INA_TOKEN = "1a" * 16, "41" * 16  # invited
SAM, SAM_TOKEN = "5a" * 16, "42" * 16  # a stranger
OLA, OLA_TOKEN = "01a0" * 8, "43" * 16  # administrates the organization of the trial's application
PEOPLE: Final = ((INA, "ina", INA_TOKEN), (SAM, "sam", SAM_TOKEN), (OLA, "ola", OLA_TOKEN))


@dataclass(frozen=True, slots=True)
class TrialWorld:
    """Ada administers the trial of lights, Bob takes part with his light, Ina is invited to take part."""

    trial: Trial
    invitation: TrialInvitationRecord


async def add_people(services: Services, world: World) -> None:
    """Users who sign in with the Dashboard. Ada and Ola are members of Acme."""

    def work(tx: Transaction) -> None:
        for id_, name, token in PEOPLE:
            user = tx.accounts.add_user(
                new_user(
                    id_,
                    email=f"{name}@example.org",
                    name=f"{name}-example",
                    full_name=name.title(),
                    password_hash=None,
                    now_ms=1,
                )
            ).key
            tx.accounts.put_token(TokenRecord(token_hash(token), world.application, user, 1, NOW_MS * 2))
            tx.accounts.put_grant(sign_in_grant(world.application, user))
            if id_ == OLA:
                acme = tx.accounts.application(world.application)
                assert acme is not None
                tx.accounts.set_role(acme.organization, user, "administrator")
                tx.accounts.set_role(acme.organization, world.ada, "viewer")

    await services.core.database.write(work)


async def user_of(services: Services, key: UserKey) -> UserRecord:
    user = await services.core.database.read(lambda tx: tx.accounts.user(key))
    assert user is not None
    return user


async def new_trial(services: Services, world: World, **members: object) -> Trial:
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    given = {"name": "Sleep", "description": None, "device_types": [LIGHT_TYPE], **members}
    return await services.trials.trials.create(caller, NewTrial(**given))  # type: ignore[arg-type]


async def join(services: Services, world: World, trial: Trial, user: UserKey, role: TrialRole) -> None:
    invited = await invite(services, world, trial, (await user_of(services, user)).email, role)
    await services.trials.invitations.accept(trial.record, invited.id, user)


async def invite(
    services: Services, world: World, trial: Trial, email: str, role: TrialRole = TrialRole.PARTICIPANT
) -> TrialInvitationRecord:
    inviter = await user_of(services, world.ada)
    return await services.trials.invitations.invite(inviter, trial.record, NewInvitation(email, role))


async def build_trial(services: Services, world: World) -> TrialWorld:
    trial = await new_trial(services, world)
    await join(services, world, trial, world.bob, TrialRole.PARTICIPANT)
    device = await services.devices.registry.find(BOBS)
    await services.trials.members.connect(trial.record, world.bob, device)
    return TrialWorld(trial, await invite(services, world, trial, "ina@example.org"))
