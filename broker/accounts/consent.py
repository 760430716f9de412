"""Consent (reference 4.7): what an application asks for, when a screen must be shown, and which grants are stored.

An application that asks for nothing, or only for device types of its own organization, needs no screen at the user's
first sign-in, and none that asks for no more than the user agreed to before. Once the user has revoked it, or a new
password has ended what was granted, the next sign-in shows the screen, whatever it asks for. Every user who signs in
through an application grants it READ and WRITE on all types of its organization, present and future: `sign_in_grant`
(permissions.py says what it covers). Changing the profile and managing trials are always asked for.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.accounts.applications import Application, Method
from broker.accounts.consent_words import EVERY_TYPE, PROFILE, TRIALS, Allowed, OwnTypes, sentences
from broker.cluster.kinds import publish
from broker.facts import GrantsChanged
from storage.keys import ApplicationKey, UserKey
from storage.records import ApplicationRecord, DeviceTypeRecord, GrantRecord
from storage.transaction import Transaction

#: Requestable permissions that are not device types.
NOT_TYPES: Final = frozenset({EVERY_TYPE, PROFILE, TRIALS})
_OWN_TYPES_COUNTED: Final = 1_000
_PROFILE_ALIASES: Final = {"PROFILE_READ": "READ", "PROFILE_WRITE": "WRITE"}
_TYPE_ALIASES: Final = {"DEVICE_READ": "READ", "DEVICE_WRITE": "WRITE"}


class ConsentScreen(msgspec.Struct, frozen=True):
    """The permission screen: application, organization and requested permissions, in sentences.

    `works_alone`: the application gets tokens without the person, too.
    """

    application: str
    organization: str
    asked: tuple[Allowed, ...]
    sentences: tuple[str, ...]
    works_alone: bool


class _Request(msgspec.Struct, frozen=True):
    """One entry of `ApplicationRecord.permissions`. `device_type` is None when `target` is in NOT_TYPES."""

    target: str
    device_type: DeviceTypeRecord | None
    permissions: frozenset[str]

    @property
    def read(self) -> bool:
        return "READ" in self.permissions

    @property
    def write(self) -> bool:
        return "WRITE" in self.permissions


def screen_of(tx: Transaction, application: Application) -> ConsentScreen:
    """The screen of an application, whether `must_ask` or not."""
    organization = tx.accounts.organization(application.record.organization)
    asked = tuple(_shown(request) for request in _requests(tx, application))
    return ConsentScreen(
        application.name,
        organization.name if organization is not None else "",
        asked,
        tuple(sentences(asked, own_types(tx, application.record))),
        works_alone=application.allows(Method.CLIENT_CREDENTIALS),
    )


def own_types(tx: Transaction, application: ApplicationRecord) -> OwnTypes | None:
    """Access to the application's own device types, which every sign-in through it grants; None: it asks for none."""
    organization = tx.accounts.organization(application.organization)
    if organization is None or tx.trials.of_application(application.key) is not None:
        return None
    names = tx.device_types.published_names(application.organization, limit=_OWN_TYPES_COUNTED)
    return OwnTypes(organization.name, names)


def must_ask(tx: Transaction, application: Application, user: UserKey) -> bool:
    """The application asks for something that it does not get without consent, and to which the user never agreed; or
    what the user granted it has ended."""
    if tx.claims.consent_ended(user, application.key):
        return True
    grants = tx.accounts.grants(application.key, user)
    return any(not _is_granted(request, application, grants) for request in _requests(tx, application))


def _is_granted(request: _Request, application: Application, grants: Sequence[GrantRecord]) -> bool:
    if request.target == PROFILE:  # reading it is granted to every application (reference 4.1)
        return not request.write or any(grant.profile for grant in grants)
    if request.target == TRIALS:
        return any(grant.trials for grant in grants)
    key = None
    if request.device_type is not None:
        if request.device_type.organization == application.record.organization:
            return True
        key = request.device_type.key
    covering = [grant for grant in grants if grant.device_type in {None, key}]
    reads, writes = any(grant.read for grant in covering), any(grant.write for grant in covering)
    return (reads or not request.read) and (writes or not request.write)


def sign_in_grant(application: ApplicationKey, user: UserKey) -> GrantRecord:
    """The grant of a sign-in without a consent screen."""
    return GrantRecord(user, application, None, read=False, write=False)


def save_consent(tx: Transaction, application: Application, user: UserKey) -> None:
    """Add the grants that the application asks for; earlier grants stay."""
    before = tx.accounts.grants(application.key, user)
    signed_in = sign_in_grant(application.key, user)
    tx.claims.consented_again(user, application.key)
    tx.accounts.add_grant(signed_in)
    for request in _requests(tx, application):
        if request.target == PROFILE:
            tx.accounts.add_grant(replace(signed_in, profile=request.write))
        elif request.target == TRIALS:
            tx.accounts.add_grant(replace(signed_in, trials=True))
        else:
            key = request.device_type.key if request.device_type is not None else None
            tx.accounts.add_grant(replace(signed_in, device_type=key, read=request.read, write=request.write))
    after = tx.accounts.grants(application.key, user)
    if after != before:  # at most sign-ins, everything was granted before
        publish(tx, GrantsChanged(user, application.key, tuple(after)))


def _requests(tx: Transaction, application: Application) -> Iterator[_Request]:
    """The entries, except for deleted types and for protected types of other organizations."""
    for entry in application.record.permissions:
        target, names = str(entry["device_type"]), entry["permissions"]
        assert isinstance(names, list | tuple)  # noqa: S101 - the store wrote it so
        aliases = _PROFILE_ALIASES if target == PROFILE else _TYPE_ALIASES
        permissions = frozenset(str(aliases.get(name, name)) for name in names)
        if target == TRIALS:  # a person who sees the secret of a trial's application can act as it
            permissions = frozenset({"READ", "WRITE"})
        if target in NOT_TYPES:
            yield _Request(target, None, permissions)
            continue
        type_ = tx.device_types.by_id(target)
        if type_ is not None and not (type_.protected and type_.organization != application.record.organization):
            yield _Request(target, type_, permissions)


def _shown(request: _Request) -> Allowed:
    name = "" if request.device_type is None else request.device_type.name
    return Allowed(request.target, name, request.read, request.write)
