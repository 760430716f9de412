"""A small world in the store: who exists in most tests, made through the stores themselves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.accounts.consent import sign_in_grant
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from broker.facts import GrantsChanged
from broker.secrets import Vault, token_hash
from broker.services import Services
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, UserKey
from storage.records import (
    NEW_KEY,
    ApplicationRecord,
    DeviceRecord,
    DeviceTokenRecord,
    DeviceTypeRecord,
    GrantRecord,
    ManifestRecord,
    TokenRecord,
    UserRecord,
)
from storage.transaction import Transaction

NOW_MS = Milliseconds(1_760_000_000_000)

LIGHT_MANIFEST: Mapping[str, object] = {
    "fields": [
        {"name": "state", "valueClass": "Boolean"},
        {"name": "intensity", "valueClass": "Integer", "settable": True},
        {"name": "temperature", "valueClass": "Double"},
        {"name": "text", "valueClass": "String"},
        {
            "name": "colorRGB",
            "children": [{"name": name, "valueClass": "Integer"} for name in ("r", "g", "b")],
        },
        {"name": "samples", "valueClass": "Double", "isCollection": True},
    ],
    "actions": [{"name": "setOn", "parameters": []}],
}

ACME = "0a" * 16
ADA, BOB = "ada0" * 8, "b0b0" * 8
LIGHT_TYPE = "dt" + "1e" * 16
KITCHEN, HALL, BOBS = "11" * 16, "12" * 16, "13" * 16
KITCHEN_TOKEN, HALL_TOKEN, BOBS_TOKEN = "21" * 16, "22" * 16, "23" * 16
DASHBOARD, PANEL = "aa" * 16, "ab" * 16
ADA_TOKEN, BOB_TOKEN, APPLICATION_TOKEN = "31" * 16, "32" * 16, "33" * 16


def make_device(
    key: int = 1,
    *,
    owner: UserKey = UserKey(1),
    type_key: DeviceTypeKey = DeviceTypeKey(1),
    organization: OrganizationKey = OrganizationKey(1),
    enabled: bool = True,
) -> Device:
    """A light that stands in no store."""
    type_ = DeviceTypeRecord(
        key=type_key,
        id=f"dt{type_key:032x}",
        unique_name=f"example.type_{type_key}",
        name="Type",
        organization=organization,
        organization_id=f"{organization:032x}",
        published=True,
        protected=False,
        rsp=False,
        description=None,
        tags=(),
        created_on=1,
    )
    record = DeviceRecord(
        key=DeviceKey(key),
        id=f"{key:032x}",
        owner=owner,
        owner_id=f"{owner:032x}",
        device_type=type_key,
        name="Light",
        manifest_version=1,
        manifest_version_policy="LATEST",
        enabled=enabled,
        created_on=1,
    )
    return Device(record, DeviceType(type_, [ManifestRecord(type_key, 1, json.dumps(LIGHT_MANIFEST), True, 1)]))


def new_user(
    id_: str,
    *,
    email: str,
    name: str,
    full_name: str,
    password_hash: str | None,
    now_ms: int,
    account_type: str = "LOCAL",
    email_verified: bool = True,
) -> UserRecord:
    """A user that is not stored yet."""
    return UserRecord(
        key=NEW_KEY,
        id=id_,
        email=email,
        name=name,
        full_name=full_name,
        account_type=account_type,
        password_hash=password_hash,
        created_on=now_ms,
        modified_on=now_ms,
        email_verified_on=now_ms if email_verified else None,
    )


def new_application(
    id_: str,
    *,
    organization: OrganizationKey,
    name: str,
    secret: bytes,
    methods: Sequence[str],
    redirect_uris: Sequence[str],
    permissions: Sequence[Mapping[str, object]],
    manages_organization: bool = True,
) -> ApplicationRecord:
    """An application that is not stored yet, as an operator makes it."""
    return ApplicationRecord(
        key=NEW_KEY,
        id=id_,
        organization=organization,
        name=name,
        secret=secret,
        methods=tuple(methods),
        redirect_uris=tuple(redirect_uris),
        permissions=tuple(permissions),
        manages_organization=manages_organization,
    )


def new_device_type(
    id_: str,
    *,
    unique_name: str,
    name: str,
    organization: OrganizationKey,
    published: bool,
    protected: bool,
    rsp: bool,
    description: str | None,
    tags: Sequence[str],
    now_ms: int,
    owner: UserKey | None = None,
    in_store: bool | None = None,
) -> DeviceTypeRecord:
    """A device type that is not stored yet."""
    return DeviceTypeRecord(
        key=NEW_KEY,
        id=id_,
        unique_name=unique_name,
        name=name,
        organization=organization,
        organization_id="",
        published=published,
        protected=protected,
        rsp=rsp,
        description=description,
        tags=tuple(tags),
        created_on=now_ms,
        owner=owner,
        in_store=in_store,
    )


def new_device(
    id_: str,
    *,
    owner: UserKey,
    device_type: DeviceTypeKey,
    name: str,
    manifest_version: int,
    manifest_version_policy: str,
    enabled: bool,
    now_ms: int,
) -> DeviceRecord:
    """A device that is not stored yet."""
    return DeviceRecord(
        key=NEW_KEY,
        id=id_,
        owner=owner,
        owner_id="",
        device_type=device_type,
        name=name,
        manifest_version=manifest_version,
        manifest_version_policy=manifest_version_policy,
        enabled=enabled,
        created_on=now_ms,
    )


async def allow(services: Services, grant: GrantRecord) -> None:
    """Store a user's grant, and publish the change."""

    def work(tx: Transaction) -> tuple[GrantRecord, ...]:
        tx.accounts.put_grant(grant)
        return tuple(tx.accounts.grants(grant.application, grant.user))

    grants = await services.core.database.write(work)
    services.core.router.publish(GrantsChanged(grant.user, grant.application, grants))


@dataclass(frozen=True, slots=True)
class World:
    """Keys of what `build_world` made."""

    ada: UserKey
    bob: UserKey
    light_type: DeviceTypeKey
    kitchen: DeviceKey
    hall: DeviceKey
    bobs: DeviceKey
    application: ApplicationKey


def change_application(
    tx: Transaction,
    id_: str,
    *,
    redirect_uris: Sequence[str] | None = None,
    permissions: Sequence[Mapping[str, object]] = (),
) -> None:
    """Register it again: with these permissions, and where its browsers may be sent, if that is given."""
    known = tx.accounts.application_by_id(id_)
    assert known is not None
    tx.accounts.put_application(
        new_application(
            known.id,
            organization=known.organization,
            name=known.name,
            secret=known.secret,
            methods=known.methods,
            redirect_uris=known.redirect_uris if redirect_uris is None else redirect_uris,
            permissions=permissions,
        )
    )


async def build_world(database: Database, vault: Vault) -> World:
    """Ada owns two lights and granted the Dashboard READ and WRITE on lights; Bob owns one and granted it nothing.

    Ada's token is the Dashboard's, Bob's that of another application of Acme, the Panel.
    """
    return await database.write(lambda tx: _build(tx, vault))


def _build(tx: Transaction, vault: Vault) -> World:
    organization = tx.accounts.add_organization(ACME, "Acme", 100_000).key
    ada, bob = (
        tx.accounts.add_user(
            new_user(
                id_,
                email=f"{name}@example.org",
                name=f"{name}-example",
                full_name=name.title(),
                password_hash=None,
                now_ms=1,
            )
        ).key
        for id_, name in ((ADA, "ada"), (BOB, "bob"))
    )
    light = tx.device_types.put_device_type(
        new_device_type(
            LIGHT_TYPE,
            unique_name="example.smart_light",
            name="Smart Light",
            organization=organization,
            published=True,
            protected=False,
            rsp=False,
            description=None,
            tags=(),
            now_ms=1,
        )
    )
    tx.device_types.add_manifest(ManifestRecord(light, 1, json.dumps(LIGHT_MANIFEST), True, 1))
    application = tx.accounts.put_application(
        new_application(
            DASHBOARD,
            organization=organization,
            name="Dashboard",
            secret=vault.seal("s3cret"),
            methods=("client_credentials",),
            redirect_uris=("https://app.example.org/callback",),
            permissions=(),
        )
    ).key
    panel = tx.accounts.put_application(
        new_application(
            PANEL,
            organization=organization,
            name="Panel",
            secret=vault.seal("s3cret"),
            methods=(),
            redirect_uris=(),
            permissions=(),
        )
    ).key
    far = NOW_MS * 2
    for token, holder, user in (
        (ADA_TOKEN, application, ada),
        (BOB_TOKEN, panel, bob),
        (APPLICATION_TOKEN, application, None),
    ):
        tx.accounts.put_token(TokenRecord(token_hash(token), holder, user, 1, far))
    tx.accounts.put_grant(GrantRecord(ada, application, light, True, True))
    tx.accounts.put_grant(sign_in_grant(panel, bob))
    devices = []
    for id_, owner, name, token in (
        (KITCHEN, ada, "Kitchen light", KITCHEN_TOKEN),
        (HALL, ada, "Hall light", HALL_TOKEN),
        (BOBS, bob, "Bob's light", BOBS_TOKEN),
    ):
        key = tx.devices.put_device(
            new_device(
                id_,
                owner=owner,
                device_type=light,
                name=name,
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
        )
        tx.devices.put_token(DeviceTokenRecord(key, token_hash(token), vault.seal(token), application, 1))
        devices.append(key)
    kitchen, hall, bobs = devices
    return World(ada, bob, light, kitchen, hall, bobs, application)
