"""Applies a provision file to the store in one transaction, and publishes what changed (reference 26)."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from broker.accounts.tokens import Tokens
from broker.clock import Clock
from broker.connectors.catalog import Catalog
from broker.device_management.images import Images
from broker.device_types.catalog import DeviceTypes
from broker.devices.registry import Devices
from broker.facts import Router, TokenRevoked
from broker.limits.quotas import Quotas
from broker.mail import Mails
from broker.provisioning.account_tables import AccountTables, PreparedPassword
from broker.provisioning.connector_tables import ConnectorTables, check_connectors
from broker.provisioning.device_tables import DeviceTables
from broker.provisioning.document import Document, UserEntry, read_document
from broker.provisioning.firmware_tables import FirmwareTables, staged_images
from broker.provisioning.plan_tables import PlanTables
from broker.provisioning.report import Counts, ProvisionReport
from broker.provisioning.rule_tables import RuleTables
from broker.provisioning.run import EntryLocation, ProvisioningRun
from broker.provisioning.scene_tables import SceneTables
from broker.provisioning.subscription_tables import SubscriptionTables
from broker.registration.trust import Trust
from broker.rules.rulebook import Rulebook
from broker.secrets import Passwords, Vault
from broker.site import Site
from broker.subscriptions.subscriptions import Subscriptions
from broker.trace.audit import AuditEvent, note
from storage.database import Database, Transaction
from storage.records import UserRecord


class _DryRunDoneError(Exception):
    """Rolls back the transaction of a dry run; has its report."""

    def __init__(self, report: ProvisionReport) -> None:
        self.report = report


class Provisioning:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        passwords: Passwords,
        clock: Clock,
        router: Router,
        tokens: Tokens,
        device_types: DeviceTypes,
        devices: Devices,
        quotas: Quotas,
        trust: Trust,
        connectors: Catalog,
        images: Images,
        rulebook: Rulebook,
        subscriptions: Subscriptions,
        mails: Mails,
        site: Site,
    ) -> None:
        self._database = database
        self._vault = vault
        self._passwords = passwords
        self._clock = clock
        self._router = router
        self._tokens = tokens
        self._types = device_types
        self._devices = devices
        self._quotas = quotas
        self._trust = trust
        self._connectors = connectors
        self._images = images
        self._rulebook = rulebook
        self._subscriptions = subscriptions
        self._mails = mails
        self._site = site

    async def apply(self, document: Mapping[str, Any], *, dry_run: bool = False) -> ProvisionReport:
        """Create or update what a parsed provision file describes. Manifests and certificates are inline.

        Raises:
            ValidationFailed: the field of its finding is table, index and key; nothing was changed.
        """
        wanted = read_document(document)
        passwords = await self._prepare_passwords(wanted)
        await check_connectors(wanted.connectors)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> ProvisioningRun:
            run = ProvisioningRun(tx, self._vault, now_ms, dry_run=dry_run)
            accounts = AccountTables(run, passwords, self._mails, self._site)
            rules = RuleTables(run, self._rulebook.models)
            subscriptions = SubscriptionTables(
                run, payload=self._subscriptions.payload, allow_private=self._subscriptions.allow_private
            )
            _put_all(run, wanted, accounts, FirmwareTables(run, self._images, staged), rules, subscriptions)
            if tables := _changes(run.report):
                note(tx, AuditEvent.PROVISIONED, now_ms=now_ms, tables=tables)
            if dry_run:
                raise _DryRunDoneError(run.report)
            return run

        # Shielded: after the commit, caches must be reloaded and facts published also when the caller was cancelled,
        # otherwise a revoked token would stay valid in the cache.
        with trio.CancelScope(shield=True):
            try:
                async with staged_images(wanted.firmware, self._images) as staged:
                    run = await self._database.write(work)
            except _DryRunDoneError as done:
                return done.report
            for hashed in run.revoked:
                self._router.publish(TokenRevoked(hashed))
            self._tokens.forget_all()
            await self._types.reload()
            await self._trust.reload()
            await self._connectors.reload()
            await self._devices.reload()
            await self._quotas.reload()
            await self._rulebook.judging.judge(run.rules)
            await self._subscriptions.take(run.subscriptions)
        self._router.publish_all(run.facts)
        return run.report

    async def _prepare_passwords(self, document: Document) -> dict[int, PreparedPassword]:
        """The new passwords, hashed, by the index of the user. A password that the user has already is left out."""
        known = await self._database.read(lambda tx: [_known(tx, entry) for entry in document.users])
        prepared = {}
        for index, (entry, user) in enumerate(zip(document.users, known, strict=True)):
            password = await trio.to_thread.run_sync(self._prepare, entry, user)
            if password is not None:
                prepared[index] = password
        return prepared

    def _prepare(self, entry: UserEntry, known: UserRecord | None) -> PreparedPassword | None:
        if entry.password is None:
            if known is not None:
                return None
            generated = secrets.token_urlsafe(12)
            return PreparedPassword(self._passwords.hash(generated), generated)
        stored = known.password_hash if known is not None else None
        if stored is not None and self._passwords.matches(stored, entry.password):
            return None
        return PreparedPassword(self._passwords.hash(entry.password))


def _changes(report: ProvisionReport) -> dict[str, str]:
    """What was done to each table that was changed."""
    return {
        table: f"{counts.created} created, {counts.changed} changed"
        for table, counts in report.tables.items()
        if counts.created or counts.changed
    }


def _known(tx: Transaction, entry: UserEntry) -> UserRecord | None:
    return tx.accounts.user_by_email(entry.email) if entry.id is None else tx.accounts.user_by_id(entry.id)


def _put_all(
    run: ProvisioningRun,
    document: Document,
    accounts: AccountTables,
    firmware: FirmwareTables,
    rules: RuleTables,
    subscriptions: SubscriptionTables,
) -> None:
    devices = DeviceTables(run)
    # Entries refer only to entries of earlier tables.
    tables: Sequence[tuple[str, Sequence[Any], Callable[[EntryLocation, Any], None]]] = (
        ("organizations", document.organizations, accounts.put_organization),
        ("users", document.users, accounts.put_user),
        ("invitations", document.invitations, accounts.put_invitation),
        ("device_types", document.device_types, devices.put_device_type),
        ("connectors", document.connectors, ConnectorTables(run).put_connector),
        ("applications", document.applications, accounts.put_application),
        ("devices", document.devices, devices.put_device),
        ("tokens", document.tokens, accounts.put_token),
        ("grants", document.grants, accounts.put_grant),
        ("shares", document.shares, devices.put_share),
        ("plans", document.plans, PlanTables(run).put_plan),
        ("firmware", document.firmware, firmware.put_image),
        ("rules", document.rules, rules.put_rule),
        ("scenes", document.scenes, SceneTables(run).put_scene),
        ("subscriptions", document.subscriptions, subscriptions.put_subscription),
    )
    for table, entries, put in tables:
        if entries:
            run.report.tables[table] = Counts()
        for index, entry in enumerate(entries):
            put(EntryLocation(table, index), entry)
    run.tx.connectors.demand_authorization()
