"""Sub-devices: devices behind a linked device, created when the third party first names them (reference 23)."""

from collections.abc import Collection

import structlog

from broker.devices.inventory import Inventory, NewDevice
from broker.devices.registry import Device, Devices
from broker.errors import Conflict
from config.limits import CONNECTOR_SUB_DEVICES
from storage.database import Database
from storage.records import DeviceRecord
from storage.transaction import Transaction

_log = structlog.get_logger(__name__)


class SubDevices:
    def __init__(self, database: Database, devices: Devices, inventory: Inventory) -> None:
        self._database = database
        self._devices = devices
        self._inventory = inventory

    async def of(self, holder: Device, eids: Collection[str]) -> dict[str, Device]:
        """The sub-devices of a linked device, by external id; missing ones are created.

        They have the owner and the type of `holder`. Further ones than `CONNECTOR_SUB_DEVICES` are left out.
        """
        if not eids:
            return {}
        known = await self._database.read(lambda tx: tx.connectors.sub_devices(holder.owner, holder.type_key, eids))
        found = {}
        for eid in eids:
            key, current_holder = known.get(eid, (None, None))
            if key is None:
                device = await self._created(holder, eid)
            else:
                device = await self._devices.get(key)
                if current_holder != holder.key:
                    await self._adopt(holder, device)
            if device is not None:
                found[eid] = device
        return found

    async def _created(self, holder: Device, eid: str) -> Device | None:
        new = NewDevice(owner=holder.owner, type=holder.type, eid=eid, cloud_authorization="AUTHORIZED")

        def beside(tx: Transaction, record: DeviceRecord) -> None:
            if tx.connectors.count_sub_devices(holder.key) >= CONNECTOR_SUB_DEVICES:
                raise Conflict(f"Device {holder.id} has {CONNECTOR_SUB_DEVICES} sub-devices already")
            tx.connectors.put_sub_device(record.key, holder=holder.key)

        try:
            return await self._inventory.create(new, beside=beside)
        except Conflict as error:  # beyond the limit, or another task has created the device
            device = await self._devices.by_eid(holder.owner, holder.type_key, eid)
            if device is None:
                _log.warning("connector_sub_device_refused", device=holder.id, reason=str(error))
            return device

    async def _adopt(self, holder: Device, device: Device) -> None:
        """Make an existing device with this external id a sub-device of this holder."""

        def work(tx: Transaction) -> None:
            tx.connectors.put_sub_device(device.key, holder=holder.key)

        await self._database.write(work)
        await self._inventory.set_cloud_authorization(device, "AUTHORIZED")
