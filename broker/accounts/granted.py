"""The applications to which a user granted something: seeing and revoking them (reference 5.4)."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from broker.accounts.applications import Application, Method, find_application
from broker.accounts.consent import own_types
from broker.accounts.consent_words import EVERY_TYPE, PROFILE, TRIALS, Allowed, how_long, sentences
from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller, Tokens
from broker.errors import NotFound
from storage.database import Database
from storage.keys import ApplicationKey, UserKey
from storage.records import GrantRecord
from storage.transaction import Transaction

_BY_APPLICATION: Final = attrgetter("application")


class GrantedPermission(msgspec.Struct, frozen=True):
    """`target` is the id of a device type, `*` for every type, `profile`, or `trials`."""

    target: str
    read: bool
    write: bool


class GrantedApplication(msgspec.Struct, frozen=True):
    """An application, and a user's grants to it in addition to the device types of its own organization."""

    key: ApplicationKey
    id: str
    name: str
    organization: str
    permissions: tuple[GrantedPermission, ...]
    sentences: tuple[str, ...]  # the same, and what every sign-in grants, for a person
    how_long: str


class GrantedApplications:
    """A user token sees and revokes its own application; with WRITE on the profile, every application of the user.

    The caller's right to act for the user is already checked.
    """

    def __init__(self, database: Database, tokens: Tokens, permissions: Permissions) -> None:
        self._database = database
        self._tokens = tokens
        self._permissions = permissions

    async def of(self, caller: Caller, user: UserKey) -> list[GrantedApplication]:
        """The granted applications, in the order of their creation."""
        only = None if (await self._permissions.reach(caller)).writes_profile(user) else caller.application
        return await self._database.read(lambda tx: self._granted(tx, _grants(tx, user, only)))

    async def find(self, caller: Caller, user: UserKey, application_id: str) -> GrantedApplication:
        """Raises NotFound; PermissionDenied for another application than the caller's without WRITE on the profile."""
        application = await self._database.read(lambda tx: find_application(tx, application_id))
        if application is None:
            raise NotFound
        if application.key != caller.application:
            await self._permissions.require_profile(caller, user)
        found = await self._database.read(lambda tx: self._granted(tx, _grants(tx, user, application.key)))
        if not found:
            raise NotFound
        return found[0]

    async def revoke(self, user: UserKey, application: ApplicationKey) -> None:
        """End the user's grants for the application, and every token that it has for the user."""
        await self._tokens.change(lambda issuance: issuance.end_application(user, application))

    def _granted(self, tx: Transaction, grants: Iterable[GrantRecord]) -> list[GrantedApplication]:
        found = []
        for key, given in groupby(sorted(grants, key=_BY_APPLICATION), key=_BY_APPLICATION):
            record = tx.accounts.application(key)
            organization = None if record is None else tx.accounts.organization(record.organization)
            if record is None or organization is None:
                continue
            allowed = [one for grant in given for one in _allowed(tx, grant)]
            works_alone = Application(record).allows(Method.CLIENT_CREDENTIALS)
            found.append(
                GrantedApplication(
                    key,
                    record.id,
                    record.name,
                    organization.name,
                    tuple(GrantedPermission(one.target, one.read, one.write) for one in allowed),
                    tuple(sentences(allowed, own_types(tx, record))),
                    how_long(self._tokens.unused_days, works_alone=works_alone),
                )
            )
        return found


def _grants(tx: Transaction, user: UserKey, application: ApplicationKey | None) -> Sequence[GrantRecord]:
    return tx.accounts.grants_of(user) if application is None else tx.accounts.grants(application, user)


def _allowed(tx: Transaction, grant: GrantRecord) -> Iterable[Allowed]:
    if grant.profile:
        yield Allowed(PROFILE, "", read=True, write=True)
    if grant.trials:
        yield Allowed(TRIALS, "", read=True, write=True)
    if not (grant.read or grant.write):
        return
    type_ = None if grant.device_type is None else tx.device_types.device_type(grant.device_type)
    if type_ is not None:
        yield Allowed(type_.id, type_.name, grant.read, grant.write)
    elif grant.device_type is None:
        yield Allowed(EVERY_TYPE, "", grant.read, grant.write)
