"""The one token of a device (reference 6.2)."""

from dataclasses import dataclass, field
from functools import partial

from broker.accounts.tokens import CONSOLE_ID
from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.devices.registry import Device
from broker.errors import DeviceNotFound, NotFound
from broker.facts import DeviceChanged, TokenRevoked
from broker.ids import new_id
from broker.secrets import Vault, token_hash
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey
from storage.records import DeviceRecord, DeviceTokenRecord
from storage.transaction import Transaction


@dataclass(frozen=True, slots=True)
class DeviceToken:
    """A token in the clear, and the id of the application that made it."""

    token: str = field(repr=False)
    application_id: str


class DeviceTokens:
    """The caller checks permissions."""

    def __init__(self, database: Database, clock: Clock, vault: Vault) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault

    async def of(self, device: Device) -> DeviceToken:
        """The token of a device. Raises NotFound: it has none."""
        return self._opened(await self._database.read(partial(_kept, device.key)))

    async def renew(self, device: Device, *, application: ApplicationKey | None) -> DeviceToken:
        """A new token; the former one ends, and with it its connections. Raises DeviceNotFound."""
        token = new_id()

        def work(tx: Transaction) -> str:
            self.put(tx, device.key, token, application=application)
            return _application_id(tx, application)

        return DeviceToken(token, await self._database.write(work))

    def put(
        self, tx: Transaction, device: DeviceKey, token: str, *, application: ApplicationKey | None
    ) -> DeviceRecord:
        """Give a device this token, in the caller's transaction. Raises DeviceNotFound."""
        record = tx.devices.device(device)
        if record is None:
            raise DeviceNotFound
        former = tx.devices.token_of(device)
        now_ms = self._clock.now_ms()
        tx.devices.put_token(DeviceTokenRecord(device, token_hash(token), self._vault.seal(token), application, now_ms))
        event = AuditEvent.DEVICE_TOKEN_MADE if former is None else AuditEvent.DEVICE_TOKEN_REPLACED
        note(tx, event, f"device {record.id}", now_ms=now_ms)
        tell_token(tx, device, None if former is None else former.hash)
        return record

    async def remove(self, device: Device) -> DeviceToken:
        """End the token of a device. Returns the former token. Raises NotFound: the device has none."""

        def work(tx: Transaction) -> tuple[DeviceTokenRecord, str]:
            kept, record = _kept(device.key, tx), tx.devices.device(device.key)
            if record is None:
                raise NotFound
            tx.devices.remove_token(device.key)
            note(tx, AuditEvent.DEVICE_TOKEN_DELETED, f"device {record.id}", now_ms=self._clock.now_ms())
            tell_token(tx, record.key, kept[0].hash)
            return kept

        return self._opened(await self._database.write(work))

    def _opened(self, kept: tuple[DeviceTokenRecord, str]) -> DeviceToken:
        record, application_id = kept
        return DeviceToken(self._vault.open(record.sealed), application_id)


def tell_token(tx: Transaction, device: DeviceKey, ended: bytes | None) -> None:
    """Tell that a device's token changed. `ended`: the hash of the former one."""
    if ended is not None:
        publish(tx, TokenRevoked(ended))
    publish(tx, DeviceChanged(device))


def _kept(device: DeviceKey, tx: Transaction) -> tuple[DeviceTokenRecord, str]:
    record = tx.devices.token_of(device)
    if record is None:
        raise NotFound
    return record, _application_id(tx, record.application)


def _application_id(tx: Transaction, application: ApplicationKey | None) -> str:
    """The id of the application; of what no application made (the operator, a registration), that of the console."""
    record = None if application is None else tx.accounts.application(application)
    return CONSOLE_ID if record is None else record.id
