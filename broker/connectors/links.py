"""Links: a device and its user's authorization at the third party, encrypted in the store."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.fernet import InvalidToken

from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.cluster.kinds import DEVICE, publish
from broker.connectors.hooks import HookOutcome
from broker.connectors.plugin import AccessToken, LinkedDevice
from broker.connectors.turns import Turns
from broker.device_types.catalog import DeviceTypes
from broker.devices.inventory import device_fact
from broker.devices.registry import Device
from broker.facts import DeviceUpdated
from broker.secrets import Vault, token_hash
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import ConnectorLinkRecord, DeviceRecord
from storage.transaction import Transaction

_AUTHORIZED: Final = "AUTHORIZED"
_UNAUTHORIZED: Final = "UNAUTHORIZED"
_REMEMBERED = 20


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The encrypted part of a link."""

    token: AccessToken
    account: str | None = None
    remembered: Mapping[str, str] = {}


class ConnectorLink:
    """One device's link as it was last read or written.

    A link in the making (`is_new`) is in no store yet: until it is whole, the former link of the device stands.
    """

    __slots__ = ("contents", "is_new", "record")

    def __init__(self, record: ConnectorLinkRecord, contents: Contents, *, is_new: bool = False) -> None:
        self.record = record
        self.contents = contents
        self.is_new = is_new

    def device(self, sub_device: str | None = None, since: Mapping[str, int] | None = None) -> LinkedDevice:
        """The link in the form that plug-ins get."""
        contents = self.contents
        return LinkedDevice(
            self.record.device_id, contents.token, contents.account, dict(contents.remembered), sub_device, since or {}
        )


@dataclass(eq=False, repr=False)
class ConnectorLinks:
    _database: Database
    _vault: Vault
    _clock: Clock
    _types: DeviceTypes
    _peers: FactLog | None = None

    def __post_init__(self) -> None:
        #: Of each device: for reading and changing the contents of its link, also over a renewal of its token; and for
        #: storing its readings, and beginning or ending its link.
        self.contents = Turns("contents", self._database, self._peers)
        self.standings = Turns("standing", self._database, self._peers)

    def lock(self, device: DeviceKey) -> AbstractAsyncContextManager[None]:
        return self.contents.of(device)

    def standing(self, device: DeviceKey) -> AbstractAsyncContextManager[None]:
        return self.standings.of(device)

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

    async def current(self, link: ConnectorLink) -> ConnectorLink | None:
        """The link as it is stored; None if it was ended or replaced."""
        stored = await self.of_device(link.record.device)
        return stored if stored is not None and stored.record.linked_on == link.record.linked_on else None

    async def new(self, device: Device, contents: Contents) -> ConnectorLink:
        """A link in the making for the device: its credentials are there, and the subscription is to come."""
        former = await self.of_device(device.key)
        if former is not None and former.contents.account == contents.account:
            contents = msgspec.structs.replace(contents, remembered=former.contents.remembered)
        now_ms = self._clock.now_ms()
        record = ConnectorLinkRecord(
            device=device.key,
            device_id=device.id,
            owner=device.owner,
            owner_id=device.owner_id,
            device_type=device.type_key,
            account=None,
            sealed=b"",
            linked_on=now_ms,
            next_fetch_on=now_ms,
        )
        return ConnectorLink(record, contents, is_new=True)

    async def begin(self, link: ConnectorLink, state: bytes, *, application_id: str | None) -> bool | None:
        """Store a link that is whole: it replaces the former one, and device and sub-devices are authorized.

        `state` is the hash of the authorization's state. None: it has ended, because the authorization was revoked.
        False: the device was deleted, or has another owner. The caller holds `standing`.
        """
        is_revoked = False
        about, contents = link.record, link.contents

        def work(tx: Transaction) -> list[DeviceRecord] | None:
            nonlocal is_revoked
            device, is_revoked = tx.devices.device(about.device), not tx.connectors.end_state(state)
            if is_revoked or device is None or device.owner != about.owner:
                return None
            former = tx.connectors.link(about.device)
            tx.connectors.put_link(
                about.device,
                device_type=about.device_type,
                account=self._hash_of(contents),
                sealed=self._sealed(contents),
                # `linked_on` identifies the link, so it must grow even when the clock was set back.
                linked_on=about.linked_on if former is None else max(about.linked_on, former.linked_on + 1),
                next_fetch_on=about.next_fetch_on,
            )
            note(tx, AuditEvent.LINK_BEGUN, f"device {about.device_id}", now_ms=self._clock.now_ms())
            return _set_authorization(tx, about.device, _AUTHORIZED)

        is_begun = await self._change(about, work, application_id) is not None
        return is_begun if is_begun or not is_revoked else None

    async def note(self, link: ConnectorLink, outcome: HookOutcome) -> None:
        """Store what a hook asked to remember, unless the link was ended or replaced."""
        if not outcome.remembered and outcome.account is None:
            return
        if link.is_new:
            link.contents = _noted(link.contents, outcome)
            return
        async with self.lock(link.record.device):
            if (current := await self.current(link)) is not None:
                await self.replace(link, _noted(current.contents, outcome))

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

    async def end(self, record: ConnectorLinkRecord, *, application_id: str | None = None) -> bool:
        """End the link: device and sub-devices need a new authorization. False when it had ended already.

        The caller holds `standing`, so no reading is being stored: none is after the link has ended.
        """
        device, linked_on = record.device, record.linked_on

        def work(tx: Transaction) -> list[DeviceRecord] | None:
            if not tx.connectors.remove_link(device, linked_on=linked_on):
                return None
            note(tx, AuditEvent.LINK_ENDED, f"device {record.device_id}", now_ms=self._clock.now_ms())
            return _set_authorization(tx, device, _UNAUTHORIZED)

        return await self._change(record, work, application_id) is not None

    async def _change(
        self,
        link: ConnectorLinkRecord,
        work: Callable[[Transaction], list[DeviceRecord] | None],
        application_id: str | None,
    ) -> list[DeviceRecord] | None:
        """Write, and tell what changed: a link begins and ends with `device.updated` (reference 20)."""
        type_, now_ms = (await self._types.get(link.device_type)).record, self._clock.now_ms()

        def and_tell(tx: Transaction) -> list[DeviceRecord] | None:
            changed = work(tx)
            for record in changed or ():
                tx.tell(DEVICE, record.key)
                publish(tx, device_fact(DeviceUpdated, record, type_, application_id, now_ms))
            return changed

        return await self._database.write(and_tell)

    def _sealed(self, contents: Contents) -> bytes:
        return self._vault.seal(msgspec.json.encode(contents).decode())

    @staticmethod
    def _hash_of(contents: Contents) -> bytes | None:
        return None if contents.account is None else token_hash(contents.account)


def _noted(contents: Contents, outcome: HookOutcome) -> Contents:
    """The contents with the values that a hook asked to remember."""
    remembered = dict(contents.remembered)
    for one in outcome.remembered:
        remembered.pop(one.name, None)
        if one.value:
            remembered[one.name] = one.value
    newest = dict(list(remembered.items())[-_REMEMBERED:])
    account = contents.account if outcome.account is None else outcome.account
    return msgspec.structs.replace(contents, remembered=newest, account=account)


def _set_authorization(tx: Transaction, holder: DeviceKey, state: str) -> list[DeviceRecord]:
    """The records that changed; a deleted device has none."""
    records = map(tx.devices.device, tx.connectors.set_authorization(holder, state))
    return [record for record in records if record is not None]
