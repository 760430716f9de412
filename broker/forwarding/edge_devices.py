"""Devices of edges: the first message of one makes one here, with an id of its own (reference 30.2)."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.inventory import Inventory, NewDevice
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound, DomainError, ValidationFailed, invalid
from broker.forwarding.edge_refusals import ForwardLoop, NotNowError
from broker.forwarding.wire import Batch, SentDevice
from broker.names import plain_name_problem
from config.limits import NAME_MAX_CHARACTERS
from storage.database import Database
from storage.forwarding import EdgeDeviceRecord, EdgeRecord
from storage.records import DeviceRecord
from storage.transaction import Transaction

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class EdgeDevices:
    """`store`: the id of this store."""

    _database: Database
    _devices: Devices
    _inventory: Inventory
    _types: DeviceTypes
    store: str

    async def of(
        self, edge: EdgeRecord, batch: Batch, known: Mapping[str, EdgeDeviceRecord]
    ) -> dict[str, Device | None]:
        """The devices of the batch, which are made at first sight. None: it was deleted here.

        Raises ForwardLoop, NotNowError.
        """
        found = dict[str, Device | None]()
        for remote, sent in batch.devices.items():
            self._refuse_path(remote, sent, batch.store)
            record = known.get(remote)
            if record is None:
                found[remote] = await self._make(edge, remote, sent)
            elif record.device is None:
                found[remote] = None
            else:
                try:
                    found[remote] = await self._devices.get(record.device)
                except DeviceNotFound:
                    found[remote] = None
                if record.path != sent.path:
                    changed = replace(record, path=sent.path)
                    await self._database.write(lambda tx, one=changed: tx.forwarding.put_edge_device(edge.key, one))  # type: ignore[misc]
            if (device := found[remote]) is not None and not device.manifest.version:
                raise NotNowError(f"The device type {sent.type} has no approved Manifest here.")
        return found

    def _refuse_path(self, remote: str, sent: SentDevice, store: str) -> None:
        if self.store in sent.path:
            raise ForwardLoop(f"those of the device {remote} have come through this store")
        if sent.path[-1] != store or len(set(sent.path)) != len(sent.path):
            raise ValidationFailed.of("devices", invalid("a path ends with the store that sends, and has each once"))

    async def _make(self, edge: EdgeRecord, remote: str, sent: SentDevice) -> Device:
        type_: DeviceType = await self._types.find(sent.type)
        if not type_.latest.version:
            raise NotNowError(f"The device type {sent.type} has no approved Manifest here.")
        name = sent.name if len(sent.name) <= NAME_MAX_CHARACTERS and not plain_name_problem(sent.name) else None

        def check(tx: Transaction) -> None:
            if remote in tx.forwarding.edge_devices(edge.key, [remote]):
                raise NotNowError("Another request has made the device.")
            if tx.forwarding.count_edge_devices(edge.key) >= edge.devices_max:
                raise NotNowError(
                    f"{edge.name} has {edge.devices_max} devices here, and may make no more (trunkline edge add"
                    " --devices)."
                )

        def beside(tx: Transaction, record: DeviceRecord) -> None:
            tx.forwarding.put_edge_device(edge.key, EdgeDeviceRecord(remote, record.key, sent.path))

        try:
            device = await self._inventory.create(
                NewDevice(owner=edge.owner, type=type_, name=name), check=check, beside=beside
            )
        except DomainError as refusal:
            raise NotNowError(f"No device can be made: {refusal}.") from refusal
        _log.info("edge_device_made", edge=edge.name, device=device.id)
        return device
