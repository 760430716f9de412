"""The tables of the provision file that devices and their types keep."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from broker.device_types.manifest import Manifest
from broker.errors import Finding, ValidationFailed
from broker.ids import new_device_type_id, new_id
from broker.messages.retention import LONGEST_DAYS
from broker.provisioning.document import Device, DeviceType
from broker.provisioning.run import Place, Run, given, identify
from broker.secrets import token_hash
from storage.records import DeviceTokenRecord, DeviceTypeRecord, ManifestRecord


class DeviceTables:
    def __init__(self, run: Run) -> None:
        self._run = run

    def put_device_type(self, at: Place, entry: DeviceType) -> None:
        types = self._run.tx.device_types
        organization = self._run.organization_named(at, entry.organization)
        known = identify(
            at, entry.id, types.by_id, "unique_name", entry.unique_name, types.by_unique_name(entry.unique_name)
        )
        base = known or DeviceTypeRecord(
            key=0,
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
            **given(entry, "unique_name", "name", "published", "protected", "description", "tags"),
        )
        key = base.key
        if wanted != known:
            key = types.put_device_type(
                wanted.id,
                unique_name=wanted.unique_name,
                name=wanted.name,
                organization=wanted.organization,
                published=wanted.published,
                protected=wanted.protected,
                rsp=wanted.rsp,
                description=wanted.description,
                tags=wanted.tags,
                now_ms=self._run.now_ms,
            )
        versioned = entry.manifest is not None and self._manifest(at, key, entry.manifest)
        retained = entry.retention_days is not None and self._retention(at, key, entry.retention_days)
        if known is None:
            return self._run.created(at, key)
        return self._run.found(at, key, changed=versioned or retained or wanted != known)

    def _retention(self, at: Place, device_type: int, days: int) -> bool:
        if not 0 <= days <= LONGEST_DAYS:
            raise at.refusal("retention_days", f"0 (for ever) to {LONGEST_DAYS}")
        retention = self._run.tx.retention
        if retention.days_of_types().get(device_type) == days:
            return False
        retention.set_days(device_type, days)
        return True

    def _manifest(self, at: Place, device_type: int, document: Mapping[str, Any]) -> bool:
        text = msgspec.json.encode(document)
        try:
            Manifest.parse(msgspec.json.decode(text))
        except ValidationFailed as error:
            raise ValidationFailed(
                tuple(Finding(f"{at}.manifest: {finding.field}", finding.messages) for finding in error.findings)
            ) from error
        latest = max(self._run.tx.device_types.manifests(device_type), key=lambda known: known.version, default=None)
        if latest is not None and _canonical(latest.document) == _canonical(text):
            return False
        version = latest.version + 1 if latest else 1
        # compatibility.md 8.2: a simple Manifest is approved at once.
        self._run.tx.device_types.add_manifest(
            ManifestRecord(device_type, version, text.decode(), True, self._run.now_ms)
        )
        return True

    def put_device(self, at: Place, entry: Device) -> None:
        devices = self._run.tx.devices
        owner, type_ = self._run.user_of(at, "owner", entry.owner), self._run.type_of(at, "type", entry.type)
        name = entry.name or type_.id  # compatibility.md 6.1
        known = devices.by_id(entry.id) if entry.id else self._run.only(at, devices.named(owner.key, name))
        if known is not None and known.owner != owner.key:
            raise at.refusal("owner", f"the device {known.id} belongs to somebody else")
        if known is not None and known.device_type != type_.key:
            raise at.refusal("type", f"the device {known.id} has another type, and keeps it")
        if known is None:
            key = devices.put_device(
                entry.id or self._run.generate(at, name, "id", new_id()),
                owner=owner.key,
                device_type=type_.key,
                name=name,
                manifest_version=max(
                    (known.version for known in self._run.tx.device_types.manifests(type_.key)), default=0
                ),
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=self._run.now_ms,
            )
            self._device_token(at, key, entry.token or self._run.generate(at, name, "token", new_id()))
            return self._run.created(at, key)
        renamed = entry.name is not None and entry.name != known.name
        if renamed:
            devices.put_device(
                known.id,
                owner=known.owner,
                device_type=known.device_type,
                name=name,
                manifest_version=known.manifest_version,
                manifest_version_policy=known.manifest_version_policy,
                enabled=known.enabled,
                now_ms=self._run.now_ms,
            )
        exchanged = entry.token is not None and self._device_token(at, known.key, entry.token)
        return self._run.found(at, known.key, changed=renamed or exchanged)

    def _device_token(self, at: Place, device: int, token: str) -> bool:
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


def _canonical(document: str | bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(document), order="sorted")
