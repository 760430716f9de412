"""The tables `device_types`, `devices` and `shares` of the provision file."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.devices.inventory import device_fact, put_origin
from broker.errors import Conflict
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
from broker.provisioning.document import DeviceEntry, DeviceTypeEntry, ShareEntry
from broker.provisioning.manifest_versions import put_file_manifest
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import ChangedKey, compared, masked_key
from broker.provisioning.run import DEVICE_KEY, ProvisioningRun, find_existing, given
from broker.registration.certificates import BadCertificate, issuer_dn, read_authorities
from broker.secrets import Vault, token_hash
from storage.keys import DeviceKey, DeviceTypeKey, UserKey
from storage.records import NEW_KEY, DeviceRecord, DeviceTokenRecord, DeviceTypeRecord, ShareRecord, UserRecord

_RENAMES_SHOWN: Final = 3
_TAKEN: Final = "somebody else has this token"
_NO_NAMES: Final[set[object]] = {("id", None), ("key", None), ("token", None)}
#: Attributes of a device type that are keys of the file.
_TYPE_KEYS: Final = (
    *("unique_name", "name", "published", "protected", "rsp", "description", "tags"),
    *("vid", "in_store"),
)


class PreparedToken(msgspec.Struct, frozen=True):
    """The token of an entry, or the one that it gets if it makes or restores a device."""

    text: str
    hash: bytes
    sealed: bytes


def prepare_tokens(vault: Vault, entries: Sequence[tuple[EntryLocation, Any]]) -> dict[int, PreparedToken]:
    """Seal the tokens, by the index of the device, before the transaction: sealing doubles the work per device, and
    nobody else writes during the transaction."""
    texts = {at.index: entry.token or new_id() for at, entry in entries}
    return {index: PreparedToken(text, token_hash(text), vault.seal(text)) for index, text in texts.items()}


class DeviceTables:
    def __init__(self, run: ProvisioningRun, tokens: Mapping[int, PreparedToken]) -> None:
        self._run = run
        self._tokens = tokens
        self._made: list[tuple[EntryLocation, DeviceRecord]] = []
        self._newest: dict[DeviceTypeKey, int] = {}
        #: New devices that are not written yet, their marks by key, and what other entries may find them by.
        self._new: list[tuple[DeviceRecord, DeviceTokenRecord]] = []
        self._new_marks: dict[str, str] = {}
        self._new_names: set[object] = set()
        self._next_key: DeviceKey | None = None

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
        keys = compared(base, wanted, _TYPE_KEYS)
        if wanted.owner != base.owner:
            keys.append(ChangedKey("owner", self._email_of(base.owner), self._email_of(wanted.owner)))
        if wanted.organization != base.organization:
            former = self._run.tx.accounts.organization(base.organization)
            keys.append(ChangedKey("organization", former.name if former else None, entry.organization))
        key = base.key
        if wanted != known:
            key = types.put_device_type(wanted)
        if entry.manifest is not None:
            versions = put_file_manifest(self._run, at, wanted, key, entry.manifest)
            if versions:
                self._run.facts.append(DeviceTypeChanged(key))
                keys += versions
        if entry.retention_days is not None:
            keys += self._retention(key, entry.retention_days)
        keys += self._authorities(at, key, entry.ca, rsp=wanted.rsp)
        if known is None:
            return self._run.created(at, key, entry.unique_name)
        return self._run.found(at, key, known.unique_name, keys)

    def _email_of(self, user: UserKey | None) -> str | None:
        found = None if user is None else self._run.tx.accounts.user(user)
        return None if found is None else found.email

    def _authorities(
        self, at: EntryLocation, device_type: DeviceTypeKey, pem: str | None, *, rsp: bool
    ) -> list[ChangedKey]:
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
            return []
        store.put_authorities(device_type, wanted, issuer_dn=issuer_dn(wanted[0]) if wanted else None)
        return [ChangedKey("ca", *(f"{len(certificates)} certificates" for certificates in (known, wanted)))]

    def _retention(self, device_type: DeviceTypeKey, days: int) -> list[ChangedKey]:
        retention = self._run.tx.retention
        known = retention.days_of_types().get(device_type)
        if known == days:
            return []
        retention.set_days(device_type, days)
        return [ChangedKey("retention_days", known, days)]

    def put_device(self, at: EntryLocation, entry: DeviceEntry) -> None:
        devices = self._run.tx.devices
        owner, type_ = self._run.user_of(at, "owner", entry.owner), self._run.type_of(at, "type", entry.type)
        name = entry.name or type_.id  # reference 6.1
        if not self._new_names.isdisjoint(_names(entry, owner.key, name)):
            self.write_new()
        known = self._known(at, entry, owner.key, name)
        if known is not None and known.owner != owner.key:
            raise at.refusal("owner", f"the device {known.id} belongs to somebody else")
        if known is not None and known.device_type != type_.key:
            raise at.refusal("type", f"the device {known.id} has another type, and keeps it")
        if known is None:
            return self._add(at, entry, owner, type_, name)
        keys = [ChangedKey("restored", False, True)] if self._restore(at, entry, known) else []
        restored = bool(keys)
        renamed = entry.name is not None and entry.name != known.name
        if renamed:
            devices.put_device(replace(known, name=name))
            keys.append(ChangedKey("name", known.name, name))
        if entry.token is not None and self._given_token(at, known.key):
            keys.append(masked_key("token"))
        keys += self._mark(entry, known.id)
        if restored:
            self._tell(known, type_, DeviceCreated, DeviceEnabled if known.enabled else DeviceDisabled)
        elif renamed:
            self._tell(known, type_, DeviceUpdated)
        return self._run.found(at, known.key, known.name, keys)

    def _add(
        self, at: EntryLocation, entry: DeviceEntry, owner: UserRecord, type_: DeviceTypeRecord, name: str
    ) -> None:
        """Keep a new device for `write_new`."""
        tx, token = self._run.tx, self._tokens[at.index]
        if self._next_key is None:
            self._next_key = tx.devices.next_key()
        added = DeviceRecord(
            key=self._next_key,
            id=entry.id or self._run.generate(at, name, "id", new_id()),
            owner=owner.key,
            owner_id=owner.id,
            device_type=type_.key,
            name=name,
            manifest_version=self._newest_version(type_.key),
            manifest_version_policy="LATEST",
            enabled=True,
            created_on=self._run.now_ms,
        )
        if entry.token is None:
            self._run.generate(at, name, "token", token.text)
        elif self._is_of_another(token):
            raise at.refusal("token", _TAKEN)
        self._next_key = DeviceKey(added.key + 1)
        self._new.append((added, self._token_record(at, added.key)))
        if entry.id is not None:
            self._mark(entry, added.id)
        else:
            self._made.append((at, added))
            if entry.key is not None:
                self._new_marks[entry.key] = added.id
        self._new_names.update(_names(entry, owner.key, name))
        self._tell(added, type_, DeviceCreated, DeviceEnabled)
        self._run.created(at, added.key, name)

    def write_new(self) -> None:
        """Write the devices that are new: many at once take half the time. After the last entry."""
        self._run.tx.devices.add_all([one for one, _ in self._new], [token for _, token in self._new])
        self._run.tx.provision_marks.put_all(DEVICE_KEY, self._new_marks)
        self._new.clear()
        self._new_marks.clear()
        self._new_names.clear()

    def _known(self, at: EntryLocation, entry: DeviceEntry, owner: UserKey, name: str) -> DeviceRecord | None:
        """The device with the entry's id, also a deleted one: its entry restores it (reference 6.1). Else the one that
        has its key in the file, else the one with its name."""
        devices = self._run.tx.devices
        if entry.id is not None:
            return devices.by_id(entry.id) or devices.deleted(entry.id)
        marked = None if entry.key is None else self._run.tx.provision_marks.object_of(DEVICE_KEY, entry.key)
        known = None if marked is None else devices.by_id(marked) or devices.deleted(marked)
        return known or self._run.only(at, devices.named(owner, name))

    def _mark(self, entry: DeviceEntry, id_: str) -> list[ChangedKey]:
        """Let the device keep its identity in the file when its name changes."""
        marks = self._run.tx.provision_marks
        if entry.key is None or marks.object_of(DEVICE_KEY, entry.key) == id_:
            return []
        former = marks.name_of(DEVICE_KEY, id_)
        if former is not None:
            marks.remove(DEVICE_KEY, former)
        marks.put(DEVICE_KEY, entry.key, id_)
        return [ChangedKey("key", former, entry.key)]

    def point_out_renames(self) -> None:
        """Note for each new device without an id which other one may have had its entry. Call after the last entry."""
        left = {made: self._left(*made) for made in {(device.owner, device.device_type) for _, device in self._made}}
        for at, device in self._made:
            if others := left[device.owner, device.device_type]:
                named = " or ".join(f"{other.name} (id {other.id})" for other in others)
                self._run.notice(
                    at,
                    device.name,
                    f"is a new device. If it is {named} with another name, give its entry that id before you apply it",
                )

    def _left(self, owner: UserKey, device_type: DeviceTypeKey) -> list[DeviceRecord]:
        """Some devices of a user and a type that the file does not have; the user may have tens of thousands."""
        devices = self._run.tx.devices
        some = devices.some_keys(owner, device_type, limit=len(self._tokens) + _RENAMES_SHOWN)
        left = [key for key in some if not self._run.has_seen("devices", key)]
        return [found for key in left[:_RENAMES_SHOWN] if (found := devices.device(key)) is not None]

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
            self._run.generate(at, known.name, "token", self._tokens[at.index].text)
            devices.put_token(self._token_record(at, known.key))
        return True

    def _newest_version(self, device_type: DeviceTypeKey) -> int:
        """The newest version of a type that has devices in the file: no later entry adds a Manifest."""
        if device_type not in self._newest:
            self._newest[device_type] = self._run.tx.device_types.newest_version(device_type)
        return self._newest[device_type]

    def _tell(self, record: DeviceRecord, type_: DeviceTypeRecord, *kinds: type[DeviceFact]) -> None:
        self._run.facts += [device_fact(kind, record, type_, None, self._run.now_ms) for kind in kinds]

    def put_share(self, at: EntryLocation, entry: ShareEntry) -> None:
        shares = self._run.tx.shares
        device = self._run.device_of(at, "device", entry.device)
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
        name = f"{device.name} with {user.email}"
        if known is None:
            return self._run.created(at, identity, name)
        return self._run.found(at, identity, name, compared(known, wanted, ("status",)))

    def _given_token(self, at: EntryLocation, device: DeviceKey) -> bool:
        devices, token = self._run.tx.devices, self._tokens[at.index]
        known = devices.token_of(device)
        if known is not None and known.hash == token.hash:
            return False
        if self._is_of_another(token):
            raise at.refusal("token", _TAKEN)
        if known is not None:
            self._run.issuance.tell_revoked((known.hash,))
        devices.put_token(self._token_record(at, device))
        return True

    def _is_of_another(self, token: PreparedToken) -> bool:
        tx = self._run.tx
        return tx.devices.token_by_hash(token.hash) is not None or tx.accounts.token(token.hash) is not None

    def _token_record(self, at: EntryLocation, device: DeviceKey) -> DeviceTokenRecord:
        token = self._tokens[at.index]
        return DeviceTokenRecord(device, token.hash, token.sealed, None, self._run.now_ms)


def _names(entry: DeviceEntry, owner: UserKey, name: str) -> set[object]:
    """Names that another entry of the same device, or with the same token, shares with this one."""
    names: set[object] = {("id", entry.id), ("key", entry.key), ("token", entry.token), (owner, name)}
    return names - _NO_NAMES
