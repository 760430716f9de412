"""The organizations of a user, and their applications: what members do on the developer's pages (reference 27.21)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.accounts.applications import Method
from broker.accounts.consent import NOT_TYPES
from broker.accounts.permissions import Role, manages_organization
from broker.accounts.tokens import Caller, TokenKind
from broker.clock import Clock
from broker.conditional import require_unchanged, tag_of
from broker.errors import Conflict, Finding, NotFound, PermissionDenied, ValidationFailed
from broker.ids import new_id
from broker.secrets import Vault
from broker.trace.audit import AuditEvent, note
from config.limits import ORGANIZATION_APPLICATIONS_MAX, REDIRECT_URIS_MAX
from storage.database import Database
from storage.keys import OrganizationKey, UserKey
from storage.records import NEW_KEY, ApplicationRecord, OrganizationRecord
from storage.transaction import Transaction

DEVELOPERS: Final = frozenset({Role.ADMINISTRATOR, Role.DEVELOPER})
TAKEN: Final = "The organization has an application of this name"
TOO_MANY: Final = f"The organization has {ORGANIZATION_APPLICATIONS_MAX} applications"


class Membership(msgspec.Struct, frozen=True):
    organization: OrganizationRecord
    role: Role


class ApplicationChanges(msgspec.Struct, frozen=True):
    """Changes of an application; None leaves a value as it is. Each of `permissions` has `device_type` (an id, `*`,
    `profile` or `trials`) and `permissions`."""

    name: str | None = None
    methods: Collection[Method] | None = None
    redirect_uris: Sequence[str] | None = None
    permissions: Sequence[Mapping[str, Any]] | None = None
    any_loopback_port: bool | None = None
    manages_organization: bool | None = None


class Organizations:
    """An application may act for a member only in its own organization; the console acts in all of them.

    What gives an application rights beyond those of one user needs an administrator: marking it as one that manages the
    organization, and the method `client_credentials`. Of an application that has such rights, it needs an administrator
    to say who gets its tokens: with another redirect URI, method or secret, they would be a developer's.
    """

    def __init__(self, database: Database, clock: Clock, vault: Vault) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault

    async def of(self, caller: Caller) -> list[Membership]:
        """The organizations in which the caller may act, by name."""
        user = caller.user
        if caller.kind is not TokenKind.USER or user is None:
            return []
        found = await self._database.read(lambda tx: tx.accounts.memberships(user))
        return [Membership(one, Role(role)) for one, role in found if _may_act(caller, one.key)]

    async def has_developer(self, user: UserKey) -> bool:
        """The user is an administrator or a developer of some organization."""
        return await self._database.read(lambda tx: any(tx.accounts.has_role(user, role) for role in DEVELOPERS))

    async def find(self, caller: Caller, id_: str, roles: Collection[Role] = DEVELOPERS) -> Membership:
        """Raises NotFound, PermissionDenied."""
        return await self._of(caller, await self._database.read(lambda tx: tx.accounts.organization_by_id(id_)), roles)

    async def _of(
        self, caller: Caller, organization: OrganizationRecord | None, roles: Collection[Role] = DEVELOPERS
    ) -> Membership:
        if organization is None:
            raise NotFound
        user = caller.user
        if user is not None and _may_act(caller, organization.key):
            role = await self._database.read(lambda tx: tx.accounts.role_of(organization.key, user))
            if role is not None and role in roles:
                return Membership(organization, Role(role))
        raise PermissionDenied(f"{' or '.join(sorted(roles))} of the organization")

    # Applications

    async def applications(self, organization: OrganizationKey) -> list[ApplicationRecord]:
        """The applications by name, except applications of trials, which belong to their trials (reference 14.2)."""
        return await self._database.read(lambda tx: _applications(tx, organization))

    async def application(self, caller: Caller, id_: str) -> ApplicationRecord:
        """Raises NotFound, PermissionDenied."""

        def work(tx: Transaction) -> tuple[ApplicationRecord, OrganizationRecord | None] | None:
            found = tx.accounts.application_by_id(id_)
            if found is None or tx.trials.of_application(found.key) is not None:
                return None
            return found, tx.accounts.organization(found.organization)

        found = await self._database.read(work)
        if found is None:
            raise NotFound
        await self._of(caller, found[1])
        return found[0]

    async def add_application(
        self, caller: Caller, organization: OrganizationRecord, name: str, wanted: ApplicationChanges
    ) -> tuple[ApplicationRecord, str]:
        """A new application and its secret. One that an administrator makes manages the organization by default.

        Raises ValidationFailed, Conflict, PermissionDenied.
        """
        secret, now_ms = new_id(), self._clock.now_ms()
        sealed = self._vault.seal(secret)
        new = ApplicationRecord(NEW_KEY, new_id(), organization.key, name, sealed, (), (), ())

        def work(tx: Transaction) -> ApplicationRecord:
            if len(_applications(tx, organization.key)) >= ORGANIZATION_APPLICATIONS_MAX:
                raise Conflict(TOO_MANY)
            base = new
            if wanted.manages_organization is None:
                base = replace(new, manages_organization=_is_administrator(tx, caller, organization.key))
            changed = _changed(tx, base, wanted)
            _check_rights(tx, caller, base, changed)
            added = tx.accounts.put_application(changed)
            note(tx, AuditEvent.APPLICATION_CREATED, f"application {new.id}", now_ms=now_ms)
            return added

        return await self._database.write(work), secret

    async def change_application(
        self, caller: Caller, application: ApplicationRecord, wanted: ApplicationChanges
    ) -> ApplicationRecord:
        """Raises ValidationFailed, PermissionDenied."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> ApplicationRecord:
            known = tx.accounts.application(application.key)
            if known is None:
                raise NotFound
            require_unchanged(application_tag(known))
            changed = _changed(tx, known, wanted)
            if changed == known:
                return known
            _check_rights(tx, caller, known, changed)
            note(tx, AuditEvent.APPLICATION_CHANGED, f"application {known.id}", now_ms=now_ms)
            return tx.accounts.put_application(changed)

        return await self._database.write(work)

    async def renew_secret(self, caller: Caller, application: ApplicationRecord) -> str:
        """The former secret ends at once; tokens that came with it stay. Raises PermissionDenied."""
        secret, now_ms = new_id(), self._clock.now_ms()
        sealed = self._vault.seal(secret)

        def work(tx: Transaction) -> None:
            known = tx.accounts.application(application.key)
            if known is None:
                raise NotFound
            if known.manages_organization or Method.CLIENT_CREDENTIALS in known.methods:
                require_administrator(tx, caller, known.organization)
            tx.accounts.put_application(replace(known, secret=sealed))
            note(tx, AuditEvent.SECRET_RENEWED, f"application {known.id}", now_ms=now_ms)

        await self._database.write(work)
        return secret


def application_tag(application: ApplicationRecord) -> str:
    """The tag of the changeable members of an application."""
    about = (application.methods, application.redirect_uris, application.permissions)
    return tag_of(application.name, *about, application.any_loopback_port, application.manages_organization)


def _may_act(caller: Caller, organization: OrganizationKey) -> bool:
    return caller.is_console or caller.application_organization == organization


def _check_rights(tx: Transaction, caller: Caller, known: ApplicationRecord, changed: ApplicationRecord) -> None:
    """Raises PermissionDenied unless the caller may give the application what `changed` has beyond `known`."""
    added = set(changed.methods).difference(known.methods)
    is_given_rights = Method.CLIENT_CREDENTIALS in added or changed.manages_organization != known.manages_organization
    if is_given_rights or (known.manages_organization and _receivers(changed) != _receivers(known)):
        require_administrator(tx, caller, known.organization)


def _receivers(application: ApplicationRecord) -> tuple[object, ...]:
    """The properties that decide who gets the tokens of an application."""
    return application.methods, application.redirect_uris, application.any_loopback_port


def require_administrator(tx: Transaction, caller: Caller, organization: OrganizationKey) -> None:
    """Raises PermissionDenied."""
    if not _is_administrator(tx, caller, organization):
        raise PermissionDenied("administrator of the organization, in the console or an application that manages it")


def _is_administrator(tx: Transaction, caller: Caller, organization: OrganizationKey) -> bool:
    """Whether the caller is an administrator, in the console or in an application that manages the organization: no
    application marks itself because an administrator signs in to it."""
    role = None if caller.user is None else tx.accounts.role_of(organization, caller.user)
    return role == Role.ADMINISTRATOR and (caller.is_console or manages_organization(tx, caller))


def _applications(tx: Transaction, organization: OrganizationKey) -> list[ApplicationRecord]:
    found = tx.accounts.applications_of(organization)
    return [one for one in found if tx.trials.of_application(one.key) is None]


def _changed(tx: Transaction, known: ApplicationRecord, wanted: ApplicationChanges) -> ApplicationRecord:
    """Raises ValidationFailed with every finding."""
    findings = []
    changed = known
    if wanted.name is not None:
        changed = replace(changed, name=wanted.name)
        homonyms = tx.accounts.applications_named(wanted.name)
        if any(one.organization == known.organization and one.key != known.key for one in homonyms):
            findings.append(Finding("name", (TAKEN,)))
    if wanted.manages_organization is not None:
        changed = replace(changed, manages_organization=wanted.manages_organization)
    if wanted.any_loopback_port is not None:
        changed = replace(changed, any_loopback_port=wanted.any_loopback_port)
    if wanted.methods is not None:
        changed = replace(changed, methods=tuple(one for one in Method if one in wanted.methods))
    if wanted.redirect_uris is not None:
        changed = replace(changed, redirect_uris=tuple(dict.fromkeys(wanted.redirect_uris)))
        if len(changed.redirect_uris) > REDIRECT_URIS_MAX:
            findings.append(Finding("redirectUris", (f"At most {REDIRECT_URIS_MAX}",)))
    if wanted.permissions is not None:
        asked = []
        for index, request in enumerate(wanted.permissions):
            target = str(request["device_type"])
            if target not in NOT_TYPES:
                type_ = tx.device_types.by_id_or_name(target)
                if type_ is None:
                    findings.append(Finding(f"permissions.{index}.deviceType", ("There is no such device type",)))
                    continue
                target = type_.id
            asked.append({"device_type": target, "permissions": list(request["permissions"])})
        changed = replace(changed, permissions=tuple(asked))
    if findings:
        raise ValidationFailed(tuple(findings))
    return changed
