"""The device types of found devices: one for each kind of device in an organization."""

import hashlib
from functools import partial
from typing import Any, Final

import msgspec

from broker.accounts.organizations import DEVELOPERS
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.device_types.making import TypeChanges, TypeMaking
from broker.devices.registry import Device
from broker.errors import Conflict, DeviceTypeNotFound
from broker.found.clients import FoundDevice
from broker.found.definitions import FoundDefinition
from storage.database import Database
from storage.keys import UserKey
from storage.records import OrganizationRecord
from storage.transaction import Transaction

NO_ORGANIZATION: Final = "A device type belongs to an organization: be an administrator or developer of one"

_encode: Final = msgspec.json.Encoder().encode


class FoundTypes:
    def __init__(self, database: Database, types: DeviceTypes, making: TypeMaking) -> None:
        self._database, self._types, self._making = database, types, making

    async def of(self, user: UserKey, found: FoundDevice) -> DeviceType:
        """The type of its Manifest, which devices of the same kind share. Raises Conflict."""
        organization = await self._database.read(partial(_organization_of, user))
        if organization is None:
            raise Conflict(NO_ORGANIZATION)
        document = found.definition.manifest
        title = found.record.model or found.record.name
        digest = hashlib.sha256(_encode([organization.id, title, document])).hexdigest()[:16]
        unique_name = f"found.{digest}"
        try:
            type_ = await self._types.find(unique_name)
        except DeviceTypeNotFound:
            changes = TypeChanges(description=f"Announced over MQTT by {found.record.manufacturer or 'a client'}"[:200])
            await self._making.add(organization, unique_name, title, changes)
            type_ = await self._types.find(unique_name)
        if type_.record.organization != organization.key:
            raise Conflict("The device type belongs to another organization")
        if not type_.versions:
            await self._making.upload(type_, document)
        return type_

    async def extend(self, device: Device, definition: FoundDefinition) -> None:
        """Add new fields and Actions to the type of an accepted device. Nothing is taken away: others may have it."""
        manifest, wanted = device.manifest.manifest, definition.manifest
        fields = {one.name for one in manifest.fields}
        actions = {one.name for one in manifest.actions}
        more = [one for one in wanted["fields"] if one["name"] not in fields]
        further = [one for one in wanted["actions"] if one["name"] not in actions]
        if not more and not further:
            return
        documents = await self._database.read(partial(_newest_document, device.type.key))
        document = msgspec.json.decode(documents) if documents else {"fields": [], "actions": []}
        document["fields"] = [*document.get("fields", ()), *more]
        document["actions"] = [*document.get("actions", ()), *further]
        await self._making.upload(device.type, document)


def _newest_document(type_: Any, tx: Transaction) -> str | None:
    newest = tx.device_types.newest_manifest(type_)
    return None if newest is None else newest.document


def _organization_of(user: UserKey, tx: Transaction) -> OrganizationRecord | None:
    """The first organization, by name, in which the user may make types."""
    roles = {role.value for role in DEVELOPERS}
    return next((one for one, role in tx.accounts.memberships(user) if role in roles), None)
