"""The one token of a device (reference 6.2)."""

from dataclasses import dataclass, field
from functools import partial

from broker.accounts.tokens import CONSOLE_ID
from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound, NotFound
from broker.facts import Router, TokenRevoked
from broker.ids import new_id
from broker.secrets import Vault, token_hash
from broker.trace.audit import AuditEvent, note
from storage.database import Database, Transaction
from storage.keys import ApplicationKey, DeviceKey
from storage.records import DeviceRecord, DeviceTokenRecord


@dataclass(frozen=True, slots=True)
class DeviceToken:
    """A token in the clear, and the id of the application that made it."""

    token: str = field(repr=False)
    application_id: str


@dataclass(frozen=True, slots=True)
class TokenChange:
    """The change of a device's token by a transaction. Pass it to `DeviceTokens.tell` when it is durable."""

    device: DeviceRecord
    ended: bytes | None  # SHA-256 of the former token


class DeviceTokens:
    """The caller checks permissions."""

    def __init__(self, database: Database, router: Router, clock: Clock, vault: Vault, devices: Devices) -> None:
        self._database = database
        self._router = router
        self._clock = clock
        self._vault = vault
        self._devices = devices

    async def of(self, device: Device) -> DeviceToken:
        """The token of a device. Raises NotFound: it has none."""
        return self._opened(await self._database.read(partial(_kept, device.key)))

    async def renew(self, device: Device, *, application: ApplicationKey | None) -> DeviceToken:
        """A new token; the former one ends, and with it its connections. Raises DeviceNotFound."""
        token = new_id()

        def work(tx: Transaction) -> tuple[TokenChange, str]:
            change = self.put(tx, device.key, token, application=application)
            return change, _application_id(tx, application)

        _change, application_id = await self._database.write(work, announce=lambda done: self.tell(done[0]))
        return DeviceToken(token, application_id)

    def put(self, tx: Transaction, device: DeviceKey, token: str, *, application: ApplicationKey | None) -> TokenChange:
        """Give a device this token, in the caller's transaction. The caller passes the result to `tell`.

        Raises DeviceNotFound.
        """
        record = tx.devices.device(device)
        if record is None:
            raise DeviceNotFound
        former = tx.devices.token_of(device)
        now_ms = self._clock.now_ms()
        tx.devices.put_token(DeviceTokenRecord(device, token_hash(token), self._vault.seal(token), application, now_ms))
        event = AuditEvent.DEVICE_TOKEN_MADE if former is None else AuditEvent.DEVICE_TOKEN_REPLACED
        note(tx, event, f"device {record.id}", now_ms=now_ms)
        return TokenChange(record, None if former is None else former.hash)

    async def remove(self, device: Device) -> DeviceToken:
        """End the token of a device. Returns the former token. Raises NotFound: the device has none."""

        def work(tx: Transaction) -> tuple[TokenChange, tuple[DeviceTokenRecord, str]]:
            kept, record = _kept(device.key, tx), tx.devices.device(device.key)
            if record is None:
                raise NotFound
            tx.devices.remove_token(device.key)
            note(tx, AuditEvent.DEVICE_TOKEN_DELETED, f"device {record.id}", now_ms=self._clock.now_ms())
            return TokenChange(record, kept[0].hash), kept

        _change, kept = await self._database.write(work, announce=lambda done: self.tell(done[0]))
        return self._opened(kept)

    def tell(self, change: TokenChange) -> None:
        """Publish a change that is durable."""
        if change.ended is not None:
            self._router.publish(TokenRevoked(change.ended))
        self._devices.note_changed(change.device)

    def _opened(self, kept: tuple[DeviceTokenRecord, str]) -> DeviceToken:
        record, application_id = kept
        return DeviceToken(self._vault.open(record.sealed), application_id)


def _kept(device: DeviceKey, tx: Transaction) -> tuple[DeviceTokenRecord, str]:
    record = tx.devices.token_of(device)
    if record is None:
        raise NotFound
    return record, _application_id(tx, record.application)


def _application_id(tx: Transaction, application: ApplicationKey | None) -> str:
    """The id of the application; of what no application made (the operator, a registration), that of the console."""
    record = None if application is None else tx.accounts.application(application)
    return CONSOLE_ID if record is None else record.id
