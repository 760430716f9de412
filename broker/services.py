"""Builds every capability once. `Services` is the one object that protocols receive."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Tokens
from broker.accounts.users import Users
from broker.clock import Clock
from broker.device_types.catalog import DeviceTypes
from broker.devices.presence import Presence
from broker.devices.registry import Devices
from broker.facts import Router
from broker.messages.history import Cursors, History
from broker.messages.ingest import Ingest
from broker.messages.mids import Mids
from broker.messages.snapshots import Snapshots
from broker.provisioning import Provisioning
from broker.routing.connections import Connections
from broker.routing.feeds import Feeds
from broker.secrets import Passwords, Vault
from config.settings import Settings
from storage.database import Database
from storage.journal import Journal


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    clock: Clock
    database: Database
    router: Router
    vault: Vault
    passwords: Passwords
    tokens: Tokens
    permissions: Permissions
    users: Users
    device_types: DeviceTypes
    devices: Devices
    presence: Presence
    connections: Connections
    feeds: Feeds
    ingest: Ingest
    history: History
    snapshots: Snapshots
    provisioning: Provisioning
    #: Set when the daemon begins to stop: whoever holds a connection open says goodbye now.
    stopping: trio.Event


@asynccontextmanager
async def open_services(
    settings: Settings, database: Database, vault: Vault, clock: Clock | None = None
) -> AsyncIterator[Services]:
    """Open the store, build the capabilities and run their workers for as long as the block lasts.

    When the block ends, the workers save where they stand and the journal is drained before the store is closed.

    Raises:
        StoreError: the store cannot be opened.
    """
    clock = clock or Clock()
    await database.open()
    async with trio.open_nursery() as writer:
        await writer.start(database.commit_forever)
        services = await _build(settings, database, vault, clock)
        async with trio.open_nursery() as workers:
            await workers.start(services.presence.flush_forever)
            await workers.start(services.snapshots.flush_forever)
            yield services
            workers.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await services.presence.flush()
            await services.snapshots.flush()
        writer.cancel_scope.cancel()


async def _build(settings: Settings, database: Database, vault: Vault, clock: Clock) -> Services:
    await database.write(lambda tx: tx.devices.end_online_periods())
    head, last_cts, mid_key = await database.read(
        lambda tx: (tx.messages.head(), tx.messages.last_cts(), tx.messages.mid_key())
    )
    router = Router()
    mids = Mids(mid_key)
    tokens = Tokens(database, clock, router)
    device_types = DeviceTypes(database)
    devices = Devices(database, router, device_types, tokens)
    journal = Journal(database, head=head)
    snapshots = Snapshots(database, router)
    presence = Presence(database, router, clock)
    ingest = Ingest(journal, mids, router, clock, future_grace_ms=settings.limits.future_grace_seconds * 1000)
    ingest.resume_after(last_cts)
    database.on_commit = ingest.committed
    await snapshots.catch_up()
    passwords = Passwords()
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        router=router,
        vault=vault,
        passwords=passwords,
        tokens=tokens,
        permissions=Permissions(database),
        users=Users(database),
        device_types=device_types,
        devices=devices,
        presence=presence,
        connections=Connections(router, clock),
        feeds=Feeds(router, ingest.sender),
        ingest=ingest,
        history=History(database, devices, mids, Cursors(mid_key)),
        snapshots=snapshots,
        provisioning=Provisioning(database, vault, passwords, clock, router, tokens, device_types, devices),
        stopping=trio.Event(),
    )
