"""An account that a stranger opened with somebody else's address, with one of everything that an account can have."""

import json
from dataclasses import dataclass
from typing import Final

from broker.accounts.applications import Method
from broker.accounts.consent import sign_in_grant
from broker.accounts.sessions import Session
from broker.accounts.sign_up import add_account
from broker.accounts.tokens import Caller
from broker.alarms.ways import Ntfy, Telling
from broker.devices.inventory import NewDevice
from broker.devices.registry import Device
from broker.rules.rulebook import NewRule
from broker.services import Services
from broker.subscriptions.creation import NewSubscription
from broker.trials.trials import NewTrial
from storage.keys import ApplicationKey, UserKey
from storage.records import GrantRecord, SecondFactorRecord, UserRecord
from storage.transaction import Transaction
from tests.factories import ADA_TOKEN, BOB, KITCHEN, World, allow

ADDRESS: Final = "boss@corp.example"


@dataclass(frozen=True, slots=True)
class Former:
    """The stranger's objects: the account, a token of the Dashboard, a browser session, a device and its token."""

    user: UserRecord
    token: str
    session: Session
    device: Device
    device_token: str


async def open_unproved(services: Services, email: str = ADDRESS) -> UserRecord:
    """Open an account without proof, as sign-up does."""

    def work(tx: Transaction) -> UserRecord:
        return add_account(tx, email, full_name="Boss", password_hash="x", now_ms=1, email_verified=False)

    return await services.core.database.write(work)


async def sign_in(services: Services, application: ApplicationKey, user: UserKey) -> str:
    """The access token of a sign-in through an application that asks for nothing."""
    await services.core.database.write(lambda tx: tx.accounts.add_grant(sign_in_grant(application, user)))
    tokens, _family = await services.accounts.tokens.change(
        lambda issuance: issuance.for_user(application, user, Method.IMPLICIT)
    )
    return tokens.access_token


async def give_everything(services: Services, world: World, user: UserRecord) -> Former:
    """One of everything, made as people and applications make it."""
    await allow(services, GrantRecord(user.key, world.application, None, True, True, True))
    token = await sign_in(services, world.application, user.key)
    caller = await services.accounts.tokens.caller(token)
    light = await services.device_types.catalog.get(world.light_type)
    device = await services.devices.inventory.create(NewDevice(owner=user.key, type=light, name="Spy"))
    device_token = await services.devices.tokens.renew(device, application=world.application)
    await _watch(services, caller, user, device.id)
    scene = {"name": "Evening", "actions": [{"ddid": device.id, "action": "setOn"}]}
    await services.scenes.scenes.create(caller, scene)
    await services.alarms.settings.put(user, Telling(ntfy=Ntfy("https://ntfy.example.org/stranger")))
    await services.alarms.telling.test(user)
    await services.trials.trials.create(caller, NewTrial("Trial", None))
    shares = [{"device": KITCHEN, "with": user.id}, {"device": device.id, "with": BOB}]
    await services.provisioning.apply({"shares": shares})
    hall = await services.devices.registry.get(world.hall)
    await services.devices.transfers.offer(hall, uid=user.id)
    session = await services.accounts.sessions.begin(user)
    factor = SecondFactorRecord(user.key, services.core.vault.seal("secret"), 0, 1)
    await services.core.database.write(lambda tx: tx.second_factors.add(factor, [b"\0" * 32]))
    return Former(user, token, session, device, device_token.token)


async def make_rule_and_subscription(services: Services, ada: UserRecord) -> None:
    """Make what the Dashboard makes for Ada: a rule, and a subscription to its device."""
    await _watch(services, await services.accounts.tokens.caller(ADA_TOKEN), ada, KITCHEN)


async def _watch(services: Services, caller: Caller, user: UserRecord, device: str) -> None:
    condition = {"sdid": device, "field": "state", "operator": "=", "operand": {"value": True}}
    body = {"if": {"and": [condition]}, "then": [{"ddid": device, "action": "setOn"}]}
    await services.rules.rulebook.create(caller, user, NewRule("Watch", json.dumps(body).encode()))
    wanted = NewSubscription(
        spelling="httpCallback",
        message_type="message",
        uid=user.id,
        sdid=device,
        callback_url="https://app.example.org/x",
    )
    await services.subscriptions.subscriptions.create(caller, wanted)
