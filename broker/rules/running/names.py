"""Finds the devices and types that a rule names, and checks what the rule may do with them (reference 12.3)."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from broker.accounts.permissions import Permission, Permissions, Reach
from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.registry import Device, Devices
from broker.errors import DeviceTypeNotFound, PermissionDenied
from broker.ids import is_id
from broker.rules.language.body_reader import ResolvedDevice, ResolvedNames, ResolvedType, names_in
from broker.rules.language.compiler import compile_rule
from broker.rules.language.rule import CompiledRule
from storage.keys import DeviceKey, DeviceTypeKey, UserKey
from storage.records import DeviceTypeRecord
from storage.rules import RuleRecord
from storage.transaction import Transaction


class NameResolver:
    def __init__(self, devices: Devices, device_types: DeviceTypes, permissions: Permissions) -> None:
        self._devices = devices
        self._types = device_types
        self._permissions = permissions

    async def resolve(self, owner: UserKey, body: Any) -> ResolvedNames:
        """Find the devices and types that a body names."""
        names = names_in(body)
        devices = await self._named_devices(names.devices)
        types = await self._named_types(names.device_types)
        usable = {id_: _device(one) for id_, one in devices.items() if owner == one.owner or owner in one.shared_with}
        return ResolvedNames(
            owner,
            usable,
            {name: ResolvedType(one.key, one.id, one.latest.manifest) for name, one in types.items()},
            frozenset(devices.keys() - usable.keys()),
        )

    async def compiled(self, record: RuleRecord) -> CompiledRule:
        """The rule as it is now. Raises ValidationFailed when it is not valid any more."""
        body = msgspec.json.decode(record.body)
        return compile_rule(body, await self.resolve(record.owner, body), key=record.key)

    async def devices_of(self, records: Iterable[RuleRecord]) -> Collection[Device]:
        """The devices that rules name, read at once. Held, they are in memory when each of the rules is compiled."""
        ids = {id_ for record in records for id_ in names_in(msgspec.json.decode(record.body)).devices}
        return (await self._named_devices(ids)).values()

    async def require_names(self, acting: Caller, body: Any) -> None:
        """Check that the rule may name what it names, before an answer tells anything about it.

        Raises PermissionDenied: for an existing device or type that the rule's user may not use.
        """
        names, reach = names_in(body), await self._permissions.reach(acting)
        for device in (await self._named_devices(names.devices)).values():
            if not reach.allows(device, Permission.READ) and not reach.allows(device, Permission.WRITE):
                raise PermissionDenied(f"READ on device {device.id}")
        for type_ in (await self._named_types(names.device_types)).values():
            await self._permissions.require_type(acting, type_.record, user=acting.user)

    async def may_use_devices(self, acting: Caller, body: Any) -> bool:
        """Whether the caller may read or control each device that a body names and that exists."""
        devices, reach = await self._named_devices(names_in(body).devices), await self._permissions.reach(acting)
        return all(
            reach.allows(one, Permission.READ) or reach.allows(one, Permission.WRITE) for one in devices.values()
        )

    async def require(self, rule: CompiledRule, acting: Caller) -> None:
        """Check that a rule may do what it says. Raises PermissionDenied."""
        if (missing := await self.missing(rule, acting)) is not None:
            raise PermissionDenied(missing)

    async def missing(
        self, rule: CompiledRule, acting: Caller, kinds: Collection[Permission] = (Permission.READ, Permission.WRITE)
    ) -> str | None:
        """The first permission that a caller lacks: READ on a source, WRITE on a destination. None: it lacks none."""
        reach = await self._permissions.reach(acting)
        for keys, types, permission in (
            (rule.reads, rule.type_reads, Permission.READ),
            (rule.writes, rule.type_writes, Permission.WRITE),
        ):
            if permission not in kinds:
                continue
            if (missing := await self._missing(reach, rule.owner, keys, types, permission)) is not None:
                return missing
        return None

    async def _missing(
        self,
        reach: Reach,
        owner: UserKey,
        devices: Iterable[DeviceKey],
        types: Iterable[DeviceTypeKey],
        permission: Permission,
    ) -> str | None:
        for device in await self._devices.get_all(devices):
            if not reach.allows(device, permission):
                return f"{permission.value} on device {device.id}"
        for key in types:
            type_ = (await self._types.get(key)).record
            if not reach.allows_type(owner, type_, permission):
                return f"{permission.value} on device type {type_.id}"
        return None

    async def _named_devices(self, ids: Iterable[str]) -> dict[str, Device]:
        found = await self._devices.find_all(id_ for id_ in ids if is_id(id_))
        return {id_: device for id_, device in found.items() if device is not None}

    async def _named_types(self, names: Iterable[str]) -> dict[str, DeviceType]:
        found = {}
        for name in names:
            try:
                found[name] = await self._types.find(name)
            except DeviceTypeNotFound:
                continue
        return found


def resolve_in(tx: Transaction, owner: UserKey, body: Any) -> ResolvedNames:
    """Resolve names within an open transaction; see `NameResolver.resolve`."""
    names, devices, types, unshared = names_in(body), {}, {}, set[str]()
    read: dict[DeviceTypeKey, DeviceType] = {}  # each once: a rule may name many devices of one type

    def of_record(record: DeviceTypeRecord) -> DeviceType:
        if record.key not in read:
            read[record.key] = DeviceType(record, tx.device_types.manifests(record.key))
        return read[record.key]

    for id_ in names.devices:
        record = tx.devices.by_id(id_)
        type_ = None if record is None else tx.device_types.device_type(record.device_type)
        if record is None or type_ is None:
            continue
        if record.owner == owner or owner in record.shared_with:
            devices[id_] = _device(Device(record, of_record(type_)))
        else:
            unshared.add(id_)
    for name in names.device_types:
        if (found := tx.device_types.by_id_or_name(name)) is not None:
            types[name] = ResolvedType(found.key, found.id, of_record(found).latest.manifest)
    return ResolvedNames(owner, devices, types, frozenset(unshared))


def _device(device: Device) -> ResolvedDevice:
    return ResolvedDevice(device.key, device.id, device.manifest.manifest)
