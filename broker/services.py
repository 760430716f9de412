"""Builds every capability once. `Services` is the one object that protocols receive."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from broker.accounts.applications import Applications
from broker.accounts.authorize import Authorize
from broker.accounts.device_codes import DeviceCodes
from broker.accounts.grants import Grants
from broker.accounts.issuance import Lifetimes
from broker.accounts.permissions import Permissions
from broker.accounts.properties import ApplicationProperties
from broker.accounts.sessions import Sessions
from broker.accounts.sign_up import SignUp
from broker.accounts.site import Site
from broker.accounts.token_server import DeviceCodeTerms
from broker.accounts.tokens import Tokens
from broker.accounts.users import Users
from broker.clock import Clock
from broker.device_types.catalog import DeviceTypes
from broker.devices.presence import Presence
from broker.devices.registry import Devices
from broker.export.exports import Exports
from broker.export.requests import Planner
from broker.facts import Router
from broker.mail import Mails, MailTransport
from broker.messages.analytics import Analytics
from broker.messages.consumers import Folder
from broker.messages.history import Cursors, History
from broker.messages.ingest import Ingest
from broker.messages.mids import Mids
from broker.messages.retention import Retention
from broker.messages.rollups import Rollups
from broker.messages.snapshots import Snapshots
from broker.messages.status import Statuses
from broker.provisioning import Provisioning
from broker.routing.connections import Connections
from broker.routing.events import Events
from broker.routing.feeds import Feeds
from broker.secrets import Passwords, Vault
from config.settings import Settings
from storage.database import Database
from storage.journal import Journal
from storage.sql import StoreError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    clock: Clock
    database: Database
    router: Router
    vault: Vault
    mails: Mails
    passwords: Passwords
    tokens: Tokens
    permissions: Permissions
    users: Users
    applications: Applications
    properties: ApplicationProperties
    authorize: Authorize
    sessions: Sessions
    sign_up: SignUp
    site: Site
    grants: Grants
    device_codes: DeviceCodes
    device_types: DeviceTypes
    devices: Devices
    presence: Presence
    connections: Connections
    feeds: Feeds
    events: Events
    ingest: Ingest
    history: History
    folder: Folder
    snapshots: Snapshots
    analytics: Analytics
    exports: Exports
    retention: Retention
    statuses: Statuses
    provisioning: Provisioning
    #: Set when the daemon begins to stop: whoever holds a connection open says goodbye now.
    stopping: trio.Event

    def statistics(self) -> Mapping[str, object]:
        """Every stateful part's own statistics, by its name."""
        return {
            "store": self.database.statistics(),
            "ingest": self.ingest.statistics(),
            "folds": self.folder.statistics(),
            "connections": self.connections.statistics(),
            "feeds": self.feeds.statistics(),
            "events": self.events.statistics(),
            "presence": self.presence.statistics(),
            "exports": self.exports.statistics(),
            "retention": self.retention.statistics(),
            "mails": self.mails.statistics(),
        }


@asynccontextmanager
async def open_services(
    settings: Settings,
    database: Database,
    vault: Vault,
    clock: Clock | None = None,
    *,
    mail_transport: MailTransport | None = None,
) -> AsyncIterator[Services]:
    """Open the store, build the capabilities and run their workers for as long as the block lasts.

    When the block ends, the workers save where they stand and the journal is drained before the store is closed.
    Without a `mail_transport`, mails stay in the queue.

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
            await workers.start(services.folder.fold_forever)
            await workers.start(services.exports.work_forever)
            await workers.start(services.retention.sweep_forever)
            await workers.start(services.tokens.end_expired_forever)
            if mail_transport is not None:
                await workers.start(services.mails.deliver_forever, mail_transport)
            yield services
            workers.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await _save_state(services)
        writer.cancel_scope.cancel()


async def _save_state(services: Services) -> None:
    try:
        await services.presence.flush()
        await services.folder.flush()
    except StoreError as error:  # the log is the truth: the next start folds again what could not be saved
        _log.warning("state_not_saved", reason=str(error))


async def _build(settings: Settings, database: Database, vault: Vault, clock: Clock) -> Services:
    await database.write(lambda tx: tx.devices.end_online_periods())
    head, last_cts, mid_key = await database.read(
        lambda tx: (tx.messages.head(), tx.messages.last_cts(), tx.messages.mid_key())
    )
    router = Router()
    mids = Mids(mid_key)
    site = Site(settings)
    lifetimes = Lifetimes.of(settings.accounts)
    tokens = Tokens(database, clock, router, lifetimes)
    device_types = DeviceTypes(database)
    devices = Devices(database, router, device_types, tokens)
    journal = Journal(database, head=head)
    snapshots = Snapshots(database)
    folder = Folder(database, router, (snapshots, Rollups()))
    presence = Presence(database, router, clock)
    ingest = Ingest(journal, mids, router, clock, future_grace_ms=settings.limits.future_grace_seconds * 1000)
    ingest.resume_after(last_cts)
    database.on_commit = ingest.committed
    await folder.resume()
    passwords = Passwords()
    mails = Mails(database, vault, clock, settings)
    permissions = Permissions(database)
    users = Users(database, clock, router)
    planner = Planner(users, devices, device_types, permissions)
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        router=router,
        vault=vault,
        mails=mails,
        passwords=passwords,
        tokens=tokens,
        permissions=permissions,
        users=users,
        applications=Applications(database),
        properties=ApplicationProperties(database),
        authorize=Authorize(database, tokens),
        sessions=Sessions(database, clock, passwords),
        sign_up=SignUp(database, clock, passwords, settings.accounts),
        site=site,
        grants=Grants(tokens, vault, DeviceCodeTerms.of(settings.accounts, site)),
        device_codes=DeviceCodes(database, clock),
        device_types=device_types,
        devices=devices,
        presence=presence,
        connections=Connections(router, clock),
        feeds=Feeds(router, ingest.sender),
        events=Events(router, devices),
        ingest=ingest,
        history=History(database, devices, mids, Cursors(mid_key)),
        folder=folder,
        snapshots=snapshots,
        analytics=Analytics(database, clock),
        exports=Exports(database, devices, mids, mails, clock, planner, settings.state_dir / "exports"),
        retention=Retention(database, clock, days=settings.storage.retention_days),
        statuses=Statuses(database, presence, snapshots),
        provisioning=Provisioning(database, vault, passwords, clock, router, tokens, device_types, devices),
        stopping=trio.Event(),
    )
