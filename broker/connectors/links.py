"""Links: a device and its user's authorization at the third party, encrypted in the store."""

from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

import msgspec
import trio
from cryptography.fernet import InvalidToken

from broker.connectors.hooks import HookOutcome
from broker.connectors.plugin import AccessToken, LinkedDevice
from broker.devices.registry import Devices
from broker.secrets import Vault, token_hash
from storage.database import Database, Transaction
from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import ConnectorLinkRecord, DeviceRecord

_AUTHORIZED: Final = "AUTHORIZED"
_UNAUTHORIZED: Final = "UNAUTHORIZED"
_REMEMBERED = 20


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The encrypted part of a link."""

    token: AccessToken
    account: str | None = None
    remembered: Mapping[str, str] = {}


class ConnectorLink:
    """One device's link as it was last read or written."""

    __slots__ = ("contents", "record")

    def __init__(self, record: ConnectorLinkRecord, contents: Contents) -> None:
        self.record = record
        self.contents = contents

    def device(self, sub_device: str | None = None) -> LinkedDevice:
        """The link in the form that plug-ins get."""
        contents = self.contents
        return LinkedDevice(
            self.record.device_id, contents.token, contents.account, dict(contents.remembered), sub_device
        )


class ConnectorLinks:
    def __init__(self, database: Database, vault: Vault, devices: Devices) -> None:
        self._database = database
        self._vault = vault
        self._devices = devices
        self._locks: WeakValueDictionary[DeviceKey, trio.Lock] = WeakValueDictionary()

    def lock(self, device: DeviceKey) -> trio.Lock:
        """The lock of a device's link, to be held while the link is read and changed."""
        if (known := self._locks.get(device)) is not None:
            return known
        lock = self._locks[device] = trio.Lock()
        return lock

    async def of_device(self, device: DeviceKey) -> ConnectorLink | None:
        record = await self._database.read(lambda tx: tx.connectors.link(device))
        return None if record is None else self.opened(record)

    async def of_account(self, device_type: DeviceTypeKey, account: str, *, limit: int) -> list[ConnectorLink]:
        """The links of an account, at most `limit`, oldest device first."""
        hashed = token_hash(account)
        records = await self._database.read(lambda tx: tx.connectors.links_of_account(device_type, hashed, limit=limit))
        return [link for record in records if (link := self.opened(record)) is not None]

    def opened(self, record: ConnectorLinkRecord) -> ConnectorLink | None:
        """The link with its decrypted contents; None when they were encrypted with another key."""
        try:
            return ConnectorLink(record, msgspec.json.decode(self._vault.open(record.sealed), type=Contents))
        except (InvalidToken, msgspec.DecodeError):
            return None

    async def make(
        self, device: DeviceKey, device_type: DeviceTypeKey, contents: Contents, *, now_ms: int, next_fetch_on: int
    ) -> ConnectorLink | None:
        """Link the device; a former link is replaced. The device is not authorized yet. None: it was deleted."""

        def work(tx: Transaction) -> ConnectorLinkRecord | None:
            former = tx.connectors.link(device)
            tx.connectors.put_link(
                device,
                device_type=device_type,
                account=self._hash_of(contents),
                sealed=self._sealed(contents),
                # `linked_on` identifies the link, so it must grow even when the clock was set back.
                linked_on=now_ms if former is None else max(now_ms, former.linked_on + 1),
                next_fetch_on=next_fetch_on,
            )
            return tx.connectors.link(device)

        async with self.lock(device):
            record = await self._database.write(work)
        return None if record is None else ConnectorLink(record, contents)

    async def note(self, link: ConnectorLink, outcome: HookOutcome) -> None:
        """Store what a hook asked to remember, unless the link was ended or replaced meanwhile."""
        if not outcome.remembered and outcome.account is None:
            return
        async with self.lock(link.record.device):
            current = await self.of_device(link.record.device)
            if current is None or current.record.linked_on != link.record.linked_on:
                return
            remembered = dict(current.contents.remembered)
            for one in outcome.remembered:
                remembered.pop(one.name, None)
                if one.value:
                    remembered[one.name] = one.value
            newest = dict(list(remembered.items())[-_REMEMBERED:])
            account = current.contents.account if outcome.account is None else outcome.account
            await self.replace(link, msgspec.structs.replace(current.contents, remembered=newest, account=account))

    async def replace(self, link: ConnectorLink, contents: Contents) -> None:
        """Change the contents of the link, unless it was ended or replaced. The caller holds its lock."""
        record = link.record
        account, sealed = self._hash_of(contents), self._sealed(contents)
        await self._database.write(
            lambda tx: tx.connectors.update_link(
                record.device, linked_on=record.linked_on, account=account, sealed=sealed
            )
        )
        link.contents = contents

    async def confirm(self, link: ConnectorLink) -> bool:
        """Mark the device and its sub-devices as authorized. False when the link was ended or replaced."""
        device, linked_on = link.record.device, link.record.linked_on

        def work(tx: Transaction) -> list[DeviceRecord] | None:
            current = tx.connectors.link(device)
            if current is None or current.linked_on != linked_on:
                return None
            return _set_authorization(tx, device, _AUTHORIZED)

        return await self._database.write(work, announce=self._announce) is not None

    async def end(self, record: ConnectorLinkRecord) -> bool:
        """End the link: device and sub-devices need a new authorization. False when it had ended already."""
        device, linked_on = record.device, record.linked_on

        def work(tx: Transaction) -> list[DeviceRecord] | None:
            if not tx.connectors.remove_link(device, linked_on=linked_on):
                return None
            return _set_authorization(tx, device, _UNAUTHORIZED)

        return await self._database.write(work, announce=self._announce) is not None

    def _announce(self, changed: list[DeviceRecord] | None) -> None:
        for record in changed or ():
            self._devices.note_changed(record)

    def _sealed(self, contents: Contents) -> bytes:
        return self._vault.seal(msgspec.json.encode(contents).decode())

    @staticmethod
    def _hash_of(contents: Contents) -> bytes | None:
        return None if contents.account is None else token_hash(contents.account)


def _set_authorization(tx: Transaction, holder: DeviceKey, state: str) -> list[DeviceRecord]:
    """The records that changed; a deleted device has none."""
    records = map(tx.devices.device, tx.connectors.set_authorization(holder, state))
    return [record for record in records if record is not None]
