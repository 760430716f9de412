"""The inventory: creates, changes and deletes devices, and tells facts about it.

A deleted device is invisible at once and kept for some time (removal.py); its token is deleted at once.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from broker.accounts.issuance import Issuance
from broker.clock import Clock
from broker.cluster.kinds import ACCOUNT_CLOSED, DEVICE, WANTED, publish
from broker.cluster.news import News
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device, Devices
from broker.errors import (
    Conflict,
    DeviceNotFound,
    Finding,
    ValidationFailed,
    invalid,
    too_long,
    too_low,
    too_short,
)
from broker.facts import (
    DeviceCreated,
    DeviceDeleted,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceUpdated,
    TokenRevoked,
)
from broker.ids import new_id
from broker.loops import Loop, Wakeup
from broker.names import plain_name_problem
from broker.trace.audit import AuditEvent, note
from config.limits import NAME_MAX_CHARACTERS
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.records import NEW_KEY, DeviceRecord, DeviceTypeRecord, UserRecord
from storage.transaction import Transaction

_DELETED_AT_ONCE: Final = 100
VENDOR_ID_TAKEN: Final = "Vendor device id already registered for this device type"

Policy = Literal["LATEST", "DEVICE"]
CloudAuthorization = Literal["NO_AUTHORIZATION", "AUTHORIZED", "UNAUTHORIZED"]
POLICIES: Final[tuple[Policy, ...]] = ("LATEST", "DEVICE")

F = TypeVar("F", bound=DeviceFact)


class NewDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a new device. None stands for the default (reference 6.1)."""

    owner: UserKey
    type: DeviceType
    name: str | None = None
    manifest_version: int | None = None
    manifest_version_policy: Policy = "LATEST"
    eid: str | None = None
    vdid: str | None = None
    cloud_authorization: CloudAuthorization | None = None
    certificate: bytes | None = None  # DER
    id: str | None = None


class DeviceChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a device. None leaves the attribute as it is."""

    name: str | None = None
    manifest_version: int | None = None
    manifest_version_policy: Policy | None = None
    enabled: bool | None = None


class Inventory:
    """The caller checks permissions. `application_id` is that of the token that causes a change; events show it."""

    def __init__(self, database: Database, news: News, clock: Clock, devices: Devices) -> None:
        self._database = database
        self._clock = clock
        self._devices = devices
        self._closed = Wakeup()
        news.listen(ACCOUNT_CLOSED, self._account_closed)
        #: Deletes the devices of accounts that are closed.
        self.delete_of_closed_forever = Loop(
            self.delete_of_closed,
            wakeup=self._closed,
            at_once=True,
            failure="devices_of_closed_accounts_not_deleted",
            retry_seconds=60,
            deletes=True,
        ).run

    async def create(
        self,
        new: NewDevice,
        *,
        application_id: str | None = None,
        check: Callable[[Transaction], None] | None = None,
        beside: Callable[[Transaction, DeviceRecord], None] | None = None,
    ) -> Device:
        """Create a device, enabled and without a token.

        Args:
            new: its attributes.
            application_id: of the token that causes it.
            check: called in the transaction before the device is added. When it raises, no device is created.
            beside: called in the transaction with the new record, to write what belongs to it. When it raises, no
                device is created.

        Raises:
            ValidationFailed: the name or the Manifest version is invalid.
            Conflict: another device of the type has this `vdid`, or of the owner and the type this `eid`.
        """
        _check(new.type, new.name, new.manifest_version)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> DeviceRecord:
            if check is not None:
                check(tx)
            return add_in(tx, new, application_id, now_ms, beside)

        record = await self._database.write(work)
        return await self._devices.get(record.key)

    async def change(self, device: Device, changes: DeviceChanges, *, application_id: str | None = None) -> None:
        """Apply changes. Disabling a device closes its connections.

        Raises:
            ValidationFailed: the name or the Manifest version is invalid.
            DeviceNotFound: it was deleted.
        """
        _check(device.type, changes.name, changes.manifest_version)
        now_ms, type_ = self._clock.now_ms(), device.type

        def work(tx: Transaction) -> None:
            known = _known(tx, device)
            wanted = _changed(known, changes, latest=type_.latest.version)
            if wanted == known:
                return
            tx.devices.put_device(wanted)
            tx.tell(DEVICE, wanted.key)
            about = (wanted, type_.record, application_id, now_ms)
            if wanted != replace(known, enabled=wanted.enabled):
                publish(tx, device_fact(DeviceUpdated, *about))
            if wanted.enabled is not known.enabled:
                publish(tx, device_fact(DeviceEnabled if wanted.enabled else DeviceDisabled, *about))

        await self._database.write(work)

    async def delete(self, device: Device, *, application_id: str | None = None) -> DeviceRecord:
        """Delete a device: no query finds it, its token ends, its connections close. Returns its last record.

        Raises DeviceNotFound: it was deleted.
        """
        now_ms, type_ = self._clock.now_ms(), device.type

        def work(tx: Transaction) -> DeviceRecord:
            known = _known(tx, device)
            _delete(tx, known, type_.record, application_id, now_ms)
            return known

        return await self._database.write(work)

    def end_all_of(self, issuance: Issuance, owner: UserRecord) -> Sequence[str]:
        """End the tokens of a user's devices in the caller's transaction (`broker/accounts/claims.py: Ender`).

        The devices are deleted: a hundred there, the others in steps afterwards, because other writes wait for it.
        """
        tx = issuance.tx
        names = tx.devices.names_of_owner(owner.key)
        issuance.tell_revoked(tx.devices.remove_tokens_of(owner.key))
        _delete_some(tx, tx.devices.keys_of_owner(owner.key)[:_DELETED_AT_ONCE], issuance.now_ms)
        tx.tell(ACCOUNT_CLOSED, owner.key)
        return names

    async def delete_of_closed(self) -> bool:
        """One step. Returns whether there may be more to do."""
        now_ms = self._clock.now_ms()
        if not await self._database.read(lambda tx: tx.claims.devices_of_former(limit=1)):
            return False
        return await self._database.write(
            lambda tx: _delete_some(tx, tx.claims.devices_of_former(limit=_DELETED_AT_ONCE), now_ms)
        )

    def _account_closed(self, _user: UserKey, _content: None) -> None:
        self._closed.set()

    async def set_cloud_authorization(self, device: Device, value: CloudAuthorization) -> None:
        """Record how the device stands with its third-party cloud. Raises DeviceNotFound."""

        def work(tx: Transaction) -> None:
            wanted = replace(_known(tx, device), cloud_authorization=value)
            put_origin(tx, wanted)
            tx.tell(DEVICE, wanted.key)

        await self._database.write(work)


def device_fact(
    kind: type[F], record: DeviceRecord, type_: DeviceTypeRecord, application_id: str | None, at_ms: Milliseconds
) -> F:
    return kind(
        device=record.key,
        device_id=record.id,
        device_type=type_.key,
        device_type_id=type_.id,
        type_organization=type_.organization,
        type_protected=type_.protected,
        owner=record.owner,
        owner_id=record.owner_id,
        application_id=application_id,
        at_ms=at_ms,
    )


def put_origin(tx: Transaction, record: DeviceRecord) -> None:
    """Store the record's `eid`, `vdid`, `cloud_authorization` and `certificate`. Raises Conflict: an id is taken."""
    if record.vdid is not None:
        namesake = tx.devices.by_vdid(record.device_type, record.vdid)
        if namesake is not None and namesake.key != record.key:
            raise Conflict(VENDOR_ID_TAKEN)
    if record.eid is not None:
        namesake = tx.devices.by_eid(record.owner, record.device_type, record.eid)
        if namesake is not None and namesake.key != record.key:
            raise Conflict("External device id already in use")
    tx.devices.put_origin(
        record.key,
        eid=record.eid,
        vdid=record.vdid,
        cloud_authorization=record.cloud_authorization,
        certificate=record.certificate,
    )


def name_findings(name: str) -> list[Finding]:
    """The findings about a device's name (reference 21.3)."""
    if not name:
        return [Finding("name", (too_short(1),))]
    if len(name) > NAME_MAX_CHARACTERS:
        return [Finding("name", (too_long(NAME_MAX_CHARACTERS),))]
    problem = plain_name_problem(name)
    return [] if problem is None else [Finding("name", (invalid(problem),))]


def _check(type_: DeviceType, name: str | None, manifest_version: int | None) -> None:
    findings = [] if name is None else name_findings(name)
    if manifest_version is not None and manifest_version < 1:
        findings.append(Finding("manifestVersion", (too_low(1),)))
    elif manifest_version is not None and type_.version(manifest_version) is None:
        findings.append(Finding("manifestVersion", (invalid("is no version of the device type's Manifest"),)))
    if findings:
        raise ValidationFailed(tuple(findings))


def _delete_some(tx: Transaction, keys: Sequence[DeviceKey], now_ms: int) -> bool:
    """Delete devices; return whether there were any."""
    deleted = False
    for key in keys:
        known = tx.devices.device(key)
        type_ = None if known is None else tx.device_types.device_type(known.device_type)
        if known is not None and type_ is not None:
            _delete(tx, known, type_, None, Milliseconds(now_ms))
            deleted = True
    return deleted


def _delete(
    tx: Transaction, known: DeviceRecord, type_: DeviceTypeRecord, application_id: str | None, now_ms: Milliseconds
) -> None:
    token = tx.devices.token_of(known.key)
    tx.devices.remove_token(known.key)
    tx.devices.set_deleted(known.key, now_ms)
    if tx.wanted.drop(known.key):
        tx.tell(WANTED, known.key)
    note(tx, AuditEvent.DEVICE_DELETED, f"device {known.id}", now_ms=now_ms, owner=known.owner_id)
    about = (known, type_, application_id, now_ms)
    publish(tx, device_fact(DeviceDisabled, *about))
    if token is not None:
        publish(tx, TokenRevoked(token.hash))
    tx.tell(DEVICE, known.key)
    publish(tx, device_fact(DeviceDeleted, *about))


def _known(tx: Transaction, device: Device) -> DeviceRecord:
    known = tx.devices.device(device.key)
    if known is None:
        raise DeviceNotFound(device.id)
    return known


def add_in(
    tx: Transaction,
    new: NewDevice,
    application_id: str | None,
    now_ms: Milliseconds,
    beside: Callable[[Transaction, DeviceRecord], None] | None = None,
) -> DeviceRecord:
    """Add a device in the caller's transaction, whose attributes are checked. Raises Conflict."""
    record = _add(tx, new, now_ms)
    note(tx, AuditEvent.DEVICE_CREATED, f"device {record.id}", now_ms=now_ms, owner=record.owner_id)
    if beside is not None:
        beside(tx, record)
    about = (record, new.type.record, application_id, now_ms)
    publish(tx, device_fact(DeviceCreated, *about), device_fact(DeviceEnabled, *about))
    return record


def _add(tx: Transaction, new: NewDevice, now_ms: int) -> DeviceRecord:
    type_ = new.type.record
    key = tx.devices.put_device(
        DeviceRecord(
            key=NEW_KEY,
            id=new.id or new_id(),
            owner=new.owner,
            owner_id="",  # read back with the record
            device_type=type_.key,
            name=type_.id if new.name is None else new.name,
            manifest_version=new.manifest_version or new.type.latest.version,
            manifest_version_policy=new.manifest_version_policy,
            enabled=True,
            created_on=now_ms,
        )
    )
    unauthorized = "UNAUTHORIZED" if type_.has_cloud_connector else "NO_AUTHORIZATION"
    added = tx.devices.device(key)
    assert added is not None  # noqa: S101 - it was added just now
    wanted = replace(
        added,
        eid=new.eid,
        vdid=new.vdid,
        cloud_authorization=new.cloud_authorization or unauthorized,
        certificate=new.certificate,
    )
    if wanted != added:
        put_origin(tx, wanted)
    return wanted


def _changed(known: DeviceRecord, changes: DeviceChanges, *, latest: int) -> DeviceRecord:
    policy = changes.manifest_version_policy or known.manifest_version_policy
    # With LATEST, clients are shown the latest version. A change to DEVICE without a version pins the one shown.
    shown = latest if known.manifest_version_policy == "LATEST" else known.manifest_version
    stays = known.manifest_version if policy == known.manifest_version_policy else shown
    return replace(
        known,
        name=known.name if changes.name is None else changes.name,
        manifest_version=stays if changes.manifest_version is None else changes.manifest_version,
        manifest_version_policy=policy,
        enabled=known.enabled if changes.enabled is None else changes.enabled,
    )
