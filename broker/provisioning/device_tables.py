"""The tables `device_types`, `devices` and `shares` of the provision file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker.device_types.manifests import put_manifest
from broker.devices.inventory import device_fact, put_origin
from broker.errors import Conflict, Finding, ValidationFailed
from broker.facts import (
    DeviceCreated,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceTypeChanged,
    DeviceUpdated,
    SharesChanged,
)
from broker.ids import new_device_type_id, new_id
from broker.messages.retention import LONGEST_DAYS
from broker.provisioning.document import DeviceEntry, DeviceTypeEntry, ShareEntry
from broker.provisioning.run import EntryLocation, ProvisioningRun, find_existing, given
from broker.registration.certificates import BadCertificate, issuer_dn, read_authorities
from broker.secrets import token_hash
from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import NEW_KEY, DeviceRecord, DeviceTokenRecord, DeviceTypeRecord, ShareRecord


class DeviceTables:
    def __init__(self, run: ProvisioningRun) -> None:
        self._run = run

    def put_device_type(self, at: EntryLocation, entry: DeviceTypeEntry) -> None:
        types = self._run.tx.device_types
        organization = self._run.organization_named(at, entry.organization)
        known = find_existing(
            at, entry.id, types.by_id, "unique_name", entry.unique_name, types.by_unique_name(entry.unique_name)
        )
        base = known or DeviceTypeRecord(
            key=NEW_KEY,
            id=entry.id or self._run.generate(at, entry.unique_name, "id", new_device_type_id()),
            unique_name=entry.unique_name,
            name=entry.unique_name,
            organization=organization.key,
            organization_id=organization.id,
            published=False,
            protected=False,
            rsp=False,
            description=None,
            tags=(),
            created_on=self._run.now_ms,
        )
        wanted = replace(
            base,
            organization=organization.key,
            organization_id=organization.id,
            **given(entry, "unique_name", "name", "published", "protected", "rsp"),
            **given(entry, "description", "tags", "vid", "in_store"),
        )
        if entry.owner is not None:
            owner = self._run.user_of(at, "owner", entry.owner)
            wanted = replace(wanted, owner=owner.key, owner_id=owner.id)
        key = base.key
        if wanted != known:
            key = types.put_device_type(wanted)
        versioned = entry.manifest is not None and self._manifest(at, key, entry.manifest)
        if versioned:
            self._run.facts.append(DeviceTypeChanged(key))
        retained = entry.retention_days is not None and self._retention(at, key, entry.retention_days)
        secured = self._authorities(at, key, entry.ca, rsp=wanted.rsp)
        if known is None:
            return self._run.created(at, key)
        return self._run.found(at, key, changed=versioned or retained or secured or wanted != known)

    def _authorities(self, at: EntryLocation, device_type: DeviceTypeKey, pem: str | None, *, rsp: bool) -> bool:
        """Store the certificate authorities of a type, which only types with secure registration have."""
        store = self._run.tx.registrations
        known = store.authorities(device_type)
        if pem is None and rsp and not known:
            raise at.refusal("ca", "required with rsp = true")
        if pem is not None and not rsp:
            raise at.refusal("ca", "only with rsp = true")
        try:
            wanted = known if pem is None and rsp else read_authorities(pem or "") if rsp else ()
        except BadCertificate as error:
            raise at.refusal("ca", str(error)) from error
        if wanted == known:
            return False
        store.put_authorities(device_type, wanted, issuer_dn=issuer_dn(wanted[0]) if wanted else None)
        return True

    def _retention(self, at: EntryLocation, device_type: DeviceTypeKey, days: int) -> bool:
        if not 0 <= days <= LONGEST_DAYS:
            raise at.refusal("retention_days", f"0 (for ever) to {LONGEST_DAYS}")
        retention = self._run.tx.retention
        if retention.days_of_types().get(device_type) == days:
            return False
        retention.set_days(device_type, days)
        return True

    def _manifest(self, at: EntryLocation, device_type: DeviceTypeKey, document: Mapping[str, Any]) -> bool:
        try:
            # Provisioning is done by the operator, so the Manifest is approved.
            _, is_new = put_manifest(self._run.tx, device_type, document, approve=True, now_ms=self._run.now_ms)
        except ValidationFailed as error:
            raise ValidationFailed(
                tuple(Finding(f"{at}.manifest: {finding.field}", finding.messages) for finding in error.findings)
            ) from error
        return is_new

    def put_device(self, at: EntryLocation, entry: DeviceEntry) -> None:
        devices = self._run.tx.devices
        owner, type_ = self._run.user_of(at, "owner", entry.owner), self._run.type_of(at, "type", entry.type)
        name = entry.name or type_.id  # reference 6.1
        known = self._device(entry.id) if entry.id else self._run.only(at, devices.named(owner.key, name))
        if known is not None and known.owner != owner.key:
            raise at.refusal("owner", f"the device {known.id} belongs to somebody else")
        if known is not None and known.device_type != type_.key:
            raise at.refusal("type", f"the device {known.id} has another type, and keeps it")
        if known is None:
            versions = (manifest.version for manifest in self._run.tx.device_types.manifests(type_.key))
            added = DeviceRecord(
                key=NEW_KEY,
                id=entry.id or self._run.generate(at, name, "id", new_id()),
                owner=owner.key,
                owner_id=owner.id,
                device_type=type_.key,
                name=name,
                manifest_version=max(versions, default=0),
                manifest_version_policy="LATEST",
                enabled=True,
                created_on=self._run.now_ms,
            )
            key = devices.put_device(added)
            self._device_token(at, key, entry.token or self._run.generate(at, name, "token", new_id()))
            self._tell(key, DeviceCreated, DeviceEnabled)
            return self._run.created(at, key)
        restored = self._restore(at, entry, known)
        renamed = entry.name is not None and entry.name != known.name
        if renamed:
            devices.put_device(replace(known, name=name))
        exchanged = entry.token is not None and self._device_token(at, known.key, entry.token)
        if restored:
            self._tell(known.key, DeviceCreated, DeviceEnabled if known.enabled else DeviceDisabled)
        elif renamed:
            self._tell(known.key, DeviceUpdated)
        return self._run.found(at, known.key, changed=restored or renamed or exchanged)

    def _device(self, id_: str) -> DeviceRecord | None:
        """The device with this id, also a deleted one: an entry with its id restores it (reference 6.1)."""
        return self._run.tx.devices.by_id(id_) or self._run.tx.devices.deleted(id_)

    def _restore(self, at: EntryLocation, entry: DeviceEntry, known: DeviceRecord) -> bool:
        """Restore a device if it was deleted: its messages are there again, its former token is not."""
        devices = self._run.tx.devices
        if devices.device(known.key) is not None:
            return False
        try:
            put_origin(self._run.tx, known)
        except Conflict as error:
            raise at.refusal("id", f"the deleted device {known.id} cannot be restored: {error}") from error
        devices.set_deleted(known.key, None)
        if entry.token is None:
            self._device_token(at, known.key, self._run.generate(at, known.name, "token", new_id()))
        return True

    def _tell(self, key: DeviceKey, *kinds: type[DeviceFact]) -> None:
        record = self._run.tx.devices.device(key)
        type_ = None if record is None else self._run.tx.device_types.device_type(record.device_type)
        if record is not None and type_ is not None:
            self._run.facts += [device_fact(kind, record, type_, None, self._run.now_ms) for kind in kinds]

    def put_share(self, at: EntryLocation, entry: ShareEntry) -> None:
        shares = self._run.tx.shares
        device = self._run.tx.devices.by_id(entry.device)
        if device is None:
            raise at.refusal("device", f"there is no device {entry.device!r}")
        user = self._run.user_of(at, "with", entry.with_)
        if user.key == device.owner:
            raise at.refusal("with", f"the device {device.id} belongs to {user.email}")
        known = shares.standing(device.key, user.email, user.key)
        wanted = replace(
            known or ShareRecord(new_id(), device.key, user.email, user.key, "ACCEPTED", self._run.now_ms),
            user=user.key,
            status="ACCEPTED",
            code_hash=None,
        )
        if wanted != known:
            shares.put(wanted)
            self._run.facts.append(SharesChanged(device.key))
        identity = (device.key, user.key)
        if known is None:
            return self._run.created(at, identity)
        return self._run.found(at, identity, changed=wanted != known)

    def _device_token(self, at: EntryLocation, device: DeviceKey, token: str) -> bool:
        devices, hashed = self._run.tx.devices, token_hash(token)
        known = devices.token_of(device)
        if known is not None and known.hash == hashed:
            return False
        if devices.token_by_hash(hashed) is not None or self._run.tx.accounts.token(hashed) is not None:
            raise at.refusal("token", "somebody else has this token")
        if known is not None:
            self._run.revoked.append(known.hash)
        devices.put_token(DeviceTokenRecord(device, hashed, self._run.vault.seal(token), None, self._run.now_ms))
        return True
