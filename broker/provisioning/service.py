"""Applies a provision file to the store in one transaction, and publishes what changed (reference 26)."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from broker.accounts.claims import Claims
from broker.accounts.common_passwords import is_common_password
from broker.accounts.tokens import Tokens
from broker.clock import Clock
from broker.cluster.kinds import PROVISIONED, Provisioned
from broker.connectors.catalog import Catalog
from broker.device_management.images import Images
from broker.device_types.catalog import DeviceTypes
from broker.device_types.documents import DeviceTypeDocuments
from broker.devices.registry import Devices
from broker.facts import Router
from broker.limits.quotas import Quotas
from broker.mail import Mails
from broker.provisioning.account_tables import AccountTables, PreparedPassword
from broker.provisioning.connector_tables import ConnectorTables, check_connectors
from broker.provisioning.device_tables import DeviceTables, prepare_tokens
from broker.provisioning.document import TABLES, UserEntry
from broker.provisioning.firmware_tables import FirmwareTables, staged_images
from broker.provisioning.manifest_versions import check_manifests
from broker.provisioning.plan_tables import PlanTables
from broker.provisioning.reading import EntryLocation, ReadTables, read_document
from broker.provisioning.report import ProvisionReport
from broker.provisioning.rule_tables import RuleTables
from broker.provisioning.run import ProvisioningRun, not_in_file
from broker.provisioning.scene_tables import SceneTables
from broker.provisioning.subscription_tables import SubscriptionTables
from broker.provisioning.told import encode_facts
from broker.provisioning.topic_tables import TopicTables
from broker.registration.trust import Trust
from broker.rules.rulebook import Rulebook
from broker.secrets import Passwords, Vault
from broker.site import Site
from broker.subscriptions.subscriptions import Subscriptions
from broker.threads import run_in_thread
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.records import UserRecord
from storage.transaction import Transaction

#: To publish one takes up to 0.02 ms.
_FACTS_AT_ONCE: Final = 100


class _DryRunDoneError(Exception):
    """Rolls back the transaction of a dry run; has its report."""

    def __init__(self, report: ProvisionReport) -> None:
        self.report = report


class _TooCommonError(Exception):
    """A new password is one that everybody tries first."""


@dataclass(slots=True, eq=False, repr=False)
class Provisioning:
    _database: Database
    _vault: Vault
    _passwords: Passwords
    _clock: Clock
    _router: Router
    _tokens: Tokens
    _claims: Claims
    _types: DeviceTypes
    _documents: DeviceTypeDocuments
    _devices: Devices
    _quotas: Quotas
    _trust: Trust
    _connectors: Catalog
    _images: Images
    _rulebook: Rulebook
    _subscriptions: Subscriptions
    _mails: Mails
    _site: Site

    async def apply(
        self, document: Mapping[str, Any], *, dry_run: bool = False, force: bool = False, survey: bool = False
    ) -> ProvisionReport:
        """Create or update what a parsed provision file describes. Manifests and certificates are inline.

        Args:
            document: the tables.
            dry_run: report what would change, and change nothing.
            force: also replace Manifests that others approved since the last run.
            survey: the report names what the store has and the file does not.

        Raises:
            ValidationFailed: with all findings, whose fields are table, index and key; nothing was changed.
        """
        reading = await run_in_thread(partial(read_document, document))
        passwords = await self._prepare_passwords(reading)
        check_manifests(reading, document, self._documents.models)
        await check_connectors(reading)
        tokens = await run_in_thread(partial(prepare_tokens, self._vault, reading.of("devices")))
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> ProvisioningRun:
            issuance = self._tokens.issuance(tx, now_ms)
            run = ProvisioningRun(
                tx, self._vault, now_ms, reading.findings.copy(), issuance, dry_run=dry_run, force=force
            )
            accounts = AccountTables(run, passwords, self._claims, self._mails, self._site)
            rules = RuleTables(run, self._rulebook.models)
            subscriptions = SubscriptionTables(run, self._subscriptions)
            devices, firmware = DeviceTables(run, tokens), FirmwareTables(run, staged)
            _put_all(run, reading, accounts, devices, firmware, rules, subscriptions)
            if (failure := run.findings.failure()) is not None:
                raise failure
            if "applications" in document:
                accounts.release_applications()
            if survey:
                run.report.not_in_file.update(not_in_file(run))
            if tables := _changes(run.report):
                note(tx, AuditEvent.PROVISIONED, now_ms=now_ms, tables=tables)
            if dry_run:
                raise _DryRunDoneError(run.report)
            tx.tell(PROVISIONED, Provisioned(encode_facts(run.facts)))
            return run

        # Shielded: after the commit, caches must be reloaded and facts published also when the caller was cancelled,
        # otherwise a revoked token would stay valid in the cache.
        with trio.CancelScope(shield=True):
            try:
                async with staged_images(reading, self._images) as staged:
                    run = await self._database.write(work)
            except _DryRunDoneError as done:
                return done.report
            await self.reload()
            await self._rulebook.loader.reload(run.rules)
            for begin in range(0, len(run.facts), _FACTS_AT_ONCE):
                self._router.publish_all(run.facts[begin : begin + _FACTS_AT_ONCE])
                await trio.lowlevel.checkpoint()
        return run.report

    async def reload(self) -> None:
        """Read everything again that a file may have changed. Raises StoreError."""
        self._tokens.forget_all()
        await self._types.reload()
        await self._trust.reload()
        await self._connectors.reload()
        await self._devices.reload()
        await self._quotas.reload()

    async def _prepare_passwords(self, reading: ReadTables) -> dict[int, PreparedPassword]:
        """The new passwords, hashed, by the index of the user. A password that the user has already is left out."""
        users = reading.of("users")
        known = await self._database.read(lambda tx: [_known(tx, entry) for _, entry in users])
        prepared = {}
        for (at, entry), user in zip(users, known, strict=True):
            try:
                password = await trio.to_thread.run_sync(self._prepare, entry, user)
            except _TooCommonError:
                reading.refuse(at, entry, at.refusal("password", "is one of the most common passwords"))
                continue
            if password is not None:
                prepared[at.index] = password
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
        keeps_own = known is not None and not entry.reset_password
        if not keeps_own and is_common_password(entry.password):
            raise _TooCommonError
        return PreparedPassword(None if keeps_own else self._passwords.hash(entry.password))


def _changes(report: ProvisionReport) -> dict[str, str]:
    """The numbers of changes, by changed table."""
    return {
        table: f"{counts.created} created, {counts.changed} changed"
        for table, counts in report.tables.items()
        if counts.created or counts.changed
    }


def _known(tx: Transaction, entry: UserEntry) -> UserRecord | None:
    """The user who may keep a password: not one whose account is closed because the entry takes the address over."""
    known = tx.accounts.user_by_email(entry.email) if entry.id is None else tx.accounts.user_by_id(entry.id)
    return None if known is not None and entry.take_over and known.email_verified_on is None else known


def _put_all(
    run: ProvisioningRun,
    reading: ReadTables,
    accounts: AccountTables,
    devices: DeviceTables,
    firmware: FirmwareTables,
    rules: RuleTables,
    subscriptions: SubscriptionTables,
) -> None:
    puts: Mapping[str, Callable[[EntryLocation, Any], None]] = {
        "organizations": accounts.put_organization,
        "users": accounts.put_user,
        "invitations": accounts.put_invitation,
        "device_types": devices.put_device_type,
        "connectors": ConnectorTables(run).put_connector,
        "applications": accounts.put_application,
        "devices": devices.put_device,
        "tokens": accounts.put_token,
        "grants": accounts.put_grant,
        "shares": devices.put_share,
        "plans": PlanTables(run).put_plan,
        "firmware": firmware.put_image,
        "rules": rules.put_rule,
        "scenes": SceneTables(run).put_scene,
        "subscriptions": subscriptions.put_subscription,
        "topic_rules": TopicTables(run).put_rule,
    }
    for table in TABLES:  # entries refer only to entries of earlier tables
        entries = reading.of(table)
        run.begin(table, is_given=bool(entries))
        for at, entry in entries:
            run.put(at, entry, puts[table])
        devices.write_new()
        for at, texts in reading.unusable:
            if at.table == table:
                run.look_up(at, texts)
    devices.point_out_renames()
    run.tx.connectors.demand_authorization()
