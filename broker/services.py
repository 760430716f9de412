"""Builds every capability once. `Services` is the one object that protocols receive."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from broker.accounts.applications import Applications
from broker.accounts.authorize import Authorize
from broker.accounts.device_codes import DeviceCodes
from broker.accounts.device_grant import DeviceCodeTerms
from broker.accounts.external import ExternalSignIn
from broker.accounts.grants import Grants
from broker.accounts.hashing import Hashing
from broker.accounts.invitations import Invitations
from broker.accounts.issuance import Lifetimes
from broker.accounts.permissions import Permissions
from broker.accounts.properties import ApplicationProperties
from broker.accounts.provider_port import Providers
from broker.accounts.resets import PasswordResets
from broker.accounts.sessions import Sessions
from broker.accounts.sign_up import SignUp
from broker.accounts.site import Site
from broker.accounts.tokens import Tokens
from broker.accounts.users import Users
from broker.clock import Clock
from broker.connectors.port import ThirdParty
from broker.connectors.service import Connectors
from broker.device_types.catalog import DeviceTypes
from broker.device_types.lists import DeviceTypeLists
from broker.device_types.manifests import Manifests
from broker.devices.device_tokens import DeviceTokens
from broker.devices.inventory import Inventory
from broker.devices.listing import DeviceLists
from broker.devices.presence import Presence
from broker.devices.registry import Devices
from broker.devices.removal import Removal
from broker.devices.shares import Shares
from broker.export.exports import Exports
from broker.export.requests import Planner
from broker.facts import Router
from broker.limits.addresses import AddressLimit
from broker.limits.ledger import Ledger
from broker.limits.meters import Meters, rates_of
from broker.limits.quotas import Quotas
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
from broker.monetization.payments import Payments
from broker.monetization.plans import Plans
from broker.monetization.port import ManualProcessor, Processor
from broker.monetization.tiers import Tiers
from broker.provisioning import Provisioning
from broker.registration.admission import Admission
from broker.registration.approved_lists import ApprovedLists
from broker.registration.registrations import Registrations
from broker.registration.trust import Trust
from broker.registration.uploads import Uploads
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
    invitations: Invitations
    resets: PasswordResets
    external: ExternalSignIn
    site: Site
    grants: Grants
    device_codes: DeviceCodes
    device_types: DeviceTypes
    device_type_lists: DeviceTypeLists
    manifests: Manifests
    devices: Devices
    inventory: Inventory
    device_lists: DeviceLists
    device_tokens: DeviceTokens
    shares: Shares
    removal: Removal
    presence: Presence
    admission: Admission
    registrations: Registrations
    approved_lists: ApprovedLists
    uploads: Uploads
    connections: Connections
    connectors: Connectors
    ledger: Ledger
    meters: Meters
    addresses: AddressLimit
    quotas: Quotas
    plans: Plans
    tiers: Tiers
    payments: Payments
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
            "rate limits": self.meters.statistics(),
            "addresses": self.addresses.statistics(),
            "quotas": self.quotas.statistics(),
            "counters": self.ledger.statistics(),
            "feeds": self.feeds.statistics(),
            "events": self.events.statistics(),
            "presence": self.presence.statistics(),
            "removal": self.removal.statistics(),
            "exports": self.exports.statistics(),
            "approved lists": self.uploads.statistics(),
            "retention": self.retention.statistics(),
            "connectors": self.connectors.statistics(),
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
    providers: Providers | None = None,
    third_party: ThirdParty | None = None,
    processor: Processor | None = None,
) -> AsyncIterator[Services]:
    """Open the store, build the capabilities and run their workers for as long as the block lasts.

    When the block ends, the workers save where they stand and the journal is drained before the store is closed.
    Without a `mail_transport`, mails stay in the queue; without `providers`, nobody signs in with an external one;
    without a `third_party`, cloud connectors rest; without a `processor`, the operator confirms payments.

    Raises:
        StoreError: the store cannot be opened.
    """
    clock = clock or Clock()
    await database.open()
    async with trio.open_nursery() as writer:
        await writer.start(database.commit_forever)
        services = await _build(settings, database, vault, clock, providers, third_party, processor)
        async with trio.open_nursery() as workers:
            await workers.start(services.presence.flush_forever)
            await workers.start(services.folder.fold_forever)
            await workers.start(services.ledger.save_forever)
            await workers.start(services.quotas.attend_forever)
            await workers.start(services.tiers.follow_forever)
            await workers.start(services.exports.work_forever)
            await workers.start(services.uploads.work_forever)
            await workers.start(services.retention.sweep_forever)
            await workers.start(services.removal.sweep_forever)
            await workers.start(services.tokens.end_expired_forever)
            if mail_transport is not None:
                await workers.start(services.mails.deliver_forever, mail_transport)
            if third_party is not None:
                await workers.start(services.connectors.run_forever)
            yield services
            workers.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await _save_state(services)
        writer.cancel_scope.cancel()


async def _save_state(services: Services) -> None:
    try:
        await services.presence.flush()
        await services.folder.flush()
        await services.ledger.flush()
        await services.connectors.save()
    except StoreError as error:  # the log is the truth: the next start folds again what could not be saved
        _log.warning("state_not_saved", reason=str(error))


async def _build(
    settings: Settings,
    database: Database,
    vault: Vault,
    clock: Clock,
    providers: Providers | None,
    third_party: ThirdParty | None,
    processor: Processor | None,
) -> Services:
    head, last_cts, mid_key = await database.read(
        lambda tx: (tx.messages.head(), tx.messages.last_cts(), tx.messages.mid_key())
    )
    router = Router()
    permissions = Permissions(database, router)  # before those who decide by it, so that it hears of changes first
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
    await presence.resume()
    passwords = Passwords()
    mails = Mails(database, vault, clock, settings, site)
    connections = Connections(router, clock)
    limits = settings.limits
    ledger = Ledger(database, clock)
    await ledger.resume()
    quotas = Quotas(database, clock, ledger, mails, connections.is_online)
    await quotas.reload()
    charged = quotas if limits.quotas == "on" else None
    connections.toll = charged
    counts_calls = limits.rate_limits == "on"
    ingest = Ingest(journal, mids, router, clock, future_grace_ms=limits.future_grace_seconds * 1000, quotas=charged)
    ingest.resume_after(last_cts)
    database.on_commit = ingest.committed
    await folder.resume()
    tiers = Tiers(database, clock, router, quotas)
    await tiers.resume()
    hashing = Hashing(passwords)
    users = Users(database, clock, router)
    inventory = Inventory(database, router, clock, devices)
    device_tokens = DeviceTokens(database, router, clock, vault, devices)
    trust = Trust(database, clock)
    await trust.reload()
    uploads = Uploads(database, clock)
    meters = Meters(rates_of(limits) if counts_calls else None, ledger, clock)
    connectors = Connectors(
        database,
        vault,
        clock,
        router,
        device_types,
        devices,
        inventory,
        ingest,
        meters,
        charged,
        third_party,
        base_url=lambda: f"{site.origin}/v1.1",
        pull_minutes=settings.connectors.pull_minutes,
    )
    await connectors.catalog.reload()
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
        sessions=Sessions(database, clock, hashing),
        sign_up=SignUp(database, clock, hashing, settings.accounts),
        invitations=Invitations(database, clock, hashing),
        resets=PasswordResets(database, clock, tokens, hashing, mails, settings.accounts),
        external=ExternalSignIn(database, vault, clock, tokens, settings.accounts, providers),
        site=site,
        grants=Grants(tokens, vault, DeviceCodeTerms.of(settings.accounts, site.accounts)),
        device_codes=DeviceCodes(database, clock, router),
        device_types=device_types,
        device_type_lists=DeviceTypeLists(database),
        manifests=Manifests(database, clock, device_types),
        devices=devices,
        inventory=inventory,
        device_lists=DeviceLists(database, devices, device_types, permissions),
        device_tokens=device_tokens,
        shares=Shares(database, router, clock, devices, mails),
        removal=Removal(database, clock),
        presence=presence,
        admission=Admission(devices, trust),
        registrations=Registrations(
            database,
            clock,
            permissions,
            device_types,
            inventory,
            device_tokens,
            trust,
            pin_seconds=settings.secure.pin_seconds,
        ),
        approved_lists=ApprovedLists(database, clock, uploads),
        uploads=uploads,
        connections=connections,
        connectors=connectors,
        ledger=ledger,
        meters=meters,
        addresses=AddressLimit(limits.calls_per_address if counts_calls else None, clock),
        quotas=quotas,
        plans=Plans(database, clock, router, device_types, mails),
        tiers=tiers,
        payments=Payments(database, clock, devices, tiers, site, processor or ManualProcessor(), settings.payments),
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
        provisioning=Provisioning(
            database,
            vault,
            passwords,
            clock,
            router,
            tokens,
            device_types,
            devices,
            quotas,
            trust,
            connectors.catalog,
            mails,
            site,
        ),
        stopping=trio.Event(),
    )
