"""Finds the devices and types that Actions name: for callers in the registries, for provisioning in its transaction."""

from collections.abc import Sequence

from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.registry import Device, Devices
from broker.errors import DeviceTypeNotFound
from broker.scenes.actions import NamedObjects, SceneAction
from storage.database import Transaction
from storage.records import DeviceTypeRecord


class Resolver:
    def __init__(self, devices: Devices, device_types: DeviceTypes) -> None:
        self._devices = devices
        self._types = device_types

    async def named(self, actions: Sequence[SceneAction]) -> NamedObjects:
        devices = await self._devices.find_all(one.device for one in actions if one.device)
        types = {name: await self._type(name) for name in dict.fromkeys(one.every for one in actions) if name}
        return NamedObjects(devices, types)

    async def _type(self, id_or_name: str) -> DeviceType | None:
        try:
            return await self._types.find(id_or_name)
        except DeviceTypeNotFound:
            return None


def named_in(tx: Transaction, actions: Sequence[SceneAction]) -> NamedObjects:
    """What the Actions name, as it stands in an open transaction."""
    devices: dict[str, Device | None] = {}
    for id_ in (one.device for one in actions if one.device):
        record = tx.devices.by_id(id_)
        type_ = None if record is None else tx.device_types.device_type(record.device_type)
        devices[id_] = None if record is None or type_ is None else Device(record, _with_manifests(tx, type_))
    types: dict[str, DeviceType | None] = {}
    for name in (one.every for one in actions if one.every):
        found = tx.device_types.by_id_or_name(name)
        types[name] = None if found is None else _with_manifests(tx, found)
    return NamedObjects(devices, types)


def _with_manifests(tx: Transaction, record: DeviceTypeRecord) -> DeviceType:
    return DeviceType(record, tx.device_types.manifests(record.key))
