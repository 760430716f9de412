"""Stores what connectors bring through Ingest, as all other messages."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import structlog

from broker.connectors.hooks import Record
from broker.connectors.links import ConnectorLink
from broker.connectors.sub_devices import SubDevices
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound, DomainError
from broker.messages.ingest import Ingest
from storage.keys import Position

_AT_ONCE: Final = 100  # records that are submitted before other tasks get their turn
_log = structlog.get_logger(__name__)


class Intake:
    def __init__(self, devices: Devices, sub_devices: SubDevices, ingest: Ingest) -> None:
        self._devices = devices
        self._sub_devices = sub_devices
        self._ingest = ingest
        #: Positions of Actions that came from third parties and are not durable yet. They are not sent back.
        self.echoes: set[Position] = set()
        self.stored = self.refused = 0

    async def store(self, link: ConnectorLink, records: Sequence[Record]) -> None:
        """Store a hook's records for a linked device; they are durable on return. Refused records are logged.

        Raises StorageUnavailable.
        """
        if not records:
            return
        try:
            holder = await self._devices.get(link.record.device)
        except DeviceNotFound:  # deleted meanwhile
            return
        wanted = {record.sub_device for record in records if record.sub_device is not None}
        targets: Mapping[str | None, Device] = {None: holder} | await self._sub_devices.of(holder, wanted)
        remaining = iter(records)
        while batch := tuple(islice(remaining, _AT_ONCE)):
            await self._ingest.wait_room()
            actions = self._submit(targets, batch)
            try:
                await self._ingest.wait_committed()
            finally:
                self.echoes -= actions

    def _submit(self, targets: Mapping[str | None, Device], records: Iterable[Record]) -> set[Position]:
        """Submit records; the positions of the Actions among them."""
        actions: set[Position] = set()
        for record in records:
            device = targets.get(record.sub_device)
            if device is None:  # a sub-device beyond the limit
                self.refused += 1
                continue
            try:
                if record.is_action:
                    position = self._ingest.submit_action(device, device, record.data, record.ts)
                    self.echoes.add(position)
                    actions.add(position)
                else:
                    self._ingest.submit(device, record.data, record.ts)
                self.stored += 1
            except DomainError as error:
                self.refused += 1
                _log.info("connector_record_refused", device=device.id, code=error.code, reason=str(error))
        return actions
