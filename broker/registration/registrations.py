"""Secure registration of a device with its client certificate and a PIN (reference 7.1).

The device begins with the certificate from its factory, gets a PIN and shows it. The user enters the PIN and so becomes
the owner. Then the device fetches its token. Certificate and nonce prove that all requests come from the same device.
"""

import hashlib
import secrets
from dataclasses import InitVar, dataclass
from functools import partial
from hmac import compare_digest
from typing import Final

import trio
from msgspec.structs import replace

from broker.accounts.device_codes import ALPHABET
from broker.accounts.permissions import Permission, Permissions
from broker.accounts.throttle import Throttle
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.cluster.kinds import DEVICE
from broker.device_types.catalog import DeviceTypes
from broker.devices.device_tokens import DeviceTokens, tell_token
from broker.devices.inventory import VENDOR_ID_TAKEN, Inventory, NewDevice, put_origin
from broker.devices.registry import Device
from broker.errors import Conflict, DeviceNotFound, NotFound, PermissionDenied, ValidationFailed, invalid
from broker.ids import new_id
from broker.registration.certificates import UNREADABLE, BadCertificate, ClientCertificate, certificate_info
from broker.registration.progress import BegunRegistration, Completed, RegistrationResult, Status, status_of
from broker.registration.trust import Trust
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from config.limits import PIN_MISSES, PIN_WINDOW_SECONDS, REGISTRATION_KEPT_DAYS
from storage.database import Database
from storage.keys import DeviceTypeKey, UserKey
from storage.records import DeviceRecord, RegistrationRecord
from storage.transaction import Transaction

NOT_AWAITED: Final = "Registration does not await its completion"

OTHER_TYPE_OF_DEVICE: Final = "Device is of another device type"

_PIN_CHARACTERS: Final = 8
_CHECKED_AT_ONCE: Final = 2
_PURGED_AT_ONCE: Final = 100
_KEPT_MS: Final = REGISTRATION_KEPT_DAYS * 86_400_000


@dataclass(eq=False)
class Registrations:
    _database: Database
    _clock: Clock
    _permissions: Permissions
    _types: DeviceTypes
    _inventory: Inventory
    _device_tokens: DeviceTokens
    _trust: Trust
    pin_seconds: InitVar[int]

    def __post_init__(self, pin_seconds: int) -> None:
        self._pin_ms = pin_seconds * 1000
        self._throttle = Throttle(self._clock, misses=PIN_MISSES, window_seconds=PIN_WINDOW_SECONDS)
        self._guessing = trio.Lock()
        self._checking = trio.CapacityLimiter(_CHECKED_AT_ONCE)

    # The device's side

    async def begin(self, shown: ClientCertificate, device_type: str, vendor_device_id: str) -> BegunRegistration:
        """Step 1. A pending registration of the same certificate expires.

        Raises:
            DeviceTypeNotFound: there is no such type.
            ValidationFailed: the type does not use secure registration.
            PermissionDenied: no authority of the type has issued the certificate.
            Conflict: another device, or another registration, has the vendor id or the certificate.
        """
        type_ = await self._types.find(device_type)
        if not type_.record.rsp:
            raise ValidationFailed.of("deviceTypeId", invalid("does not use secure registration"))
        await self._require_trust(type_.key, shown)
        _require_readable(shown)
        now_ms = self._clock.now_ms()
        nonce = new_id()
        registration = RegistrationRecord(
            id=new_id(),
            device_type=type_.key,
            device_type_id=type_.id,
            vendor_device_id=vendor_device_id,
            certificate=shown.leaf,
            certificate_hash=_hash(shown),
            nonce_hash=token_hash(nonce),
            status=Status.PENDING_USER_CONFIRMATION,
            created_on=now_ms,
            expires_on=now_ms + self._pin_ms,
        )
        pin = await self._database.write(partial(_begin, registration))
        return BegunRegistration(registration.id, pin, nonce, registration.expires_on)

    async def progress(self, shown: ClientCertificate, id_: str) -> RegistrationResult:
        """Step 2. Raises NotFound, PermissionDenied."""
        return self._progress(await self._of_device(shown, id_))

    async def complete(self, shown: ClientCertificate, id_: str, nonce: str) -> Completed:
        """Step 4: the device gets its token, which it must use together with its certificate.

        Raises:
            NotFound: no such registration.
            PermissionDenied: another certificate, one that is no longer trusted, or another nonce.
            Conflict: the PIN was not entered, the registration has ended, or its vendor id or certificate was taken.
        """
        registration = await self._of_device(shown, id_)
        await self._require_trust(registration.device_type, shown)
        if not compare_digest(token_hash(nonce), registration.nonce_hash):
            raise PermissionDenied("the nonce of this registration")
        token = new_id()
        device = await self._database.write(partial(self._complete, id_, token))
        return Completed(token, device.owner_id, device.id)

    def _complete(self, id_: str, token: str, tx: Transaction) -> DeviceRecord:
        registration = tx.registrations.by_id(id_)
        device = None if registration is None or registration.device is None else tx.devices.device(registration.device)
        if registration is None or device is None or self._status(registration) is not Status.PENDING_DEVICE_COMPLETION:
            raise Conflict(NOT_AWAITED)
        _require_free(tx, registration)
        _require_unregistered(device)
        put_origin(tx, replace(device, certificate=registration.certificate, vdid=registration.vendor_device_id))
        device = self._device_tokens.put(tx, device.key, token, application=registration.application)
        tx.tell(DEVICE, device.key)
        tx.registrations.end(id_, Status.REGISTERED)
        note(tx, AuditEvent.CERTIFICATE_REGISTERED, f"device {device.id}", now_ms=self._clock.now_ms())
        return device

    async def _of_device(self, shown: ClientCertificate, id_: str) -> RegistrationRecord:
        registration = await self._find(id_)
        if not compare_digest(registration.certificate_hash, _hash(shown)):
            raise PermissionDenied("the client certificate of this registration")
        return registration

    async def _require_trust(self, device_type: DeviceTypeKey, shown: ClientCertificate) -> None:
        """Check the certificate in a worker thread, because peers without a token can cause this work."""
        try:
            await trio.to_thread.run_sync(self._trust.check, device_type, shown, limiter=self._checking)
        except BadCertificate as error:
            raise PermissionDenied("a client certificate of an authority of the device type") from error

    # The user's side

    async def progress_for(self, caller: Caller, id_: str) -> RegistrationResult:
        """Step 2 for the user who entered the PIN. Raises NotFound, PermissionDenied."""
        registration = await self._find(id_)
        is_theirs = (
            registration.application == caller.application if caller.user is None else registration.user == caller.user
        )
        if not is_theirs or registration.status == Status.PENDING_USER_CONFIRMATION:
            raise PermissionDenied("access to this registration")
        if caller.user is not None:
            type_ = await self._types.get(registration.device_type)
            await self._permissions.require_granted(caller, caller.user, type_.record, Permission.WRITE)
        return self._progress(registration)

    async def confirm_new(self, caller: Caller, pin: str, *, owner: UserKey, name: str) -> str:
        """Step 3 with a device that does not exist yet. Returns the id of the registration.

        Raises:
            NotFound: no registration waits for this PIN.
            TooManyAttempts: this caller has guessed too often.
            PermissionDenied: `owner` has not granted this to the caller, or may not use the type.
            ValidationFailed: the name is invalid.
        """
        registration = await self._by_pin(caller, pin)
        type_ = await self._types.get(registration.device_type)
        await self._permissions.require_type(caller, type_.record, user=owner)
        await self._permissions.require_granted(caller, owner, type_.record, Permission.WRITE)
        await self._inventory.create(
            NewDevice(owner=owner, type=type_, name=name),
            application_id=caller.application_id,
            beside=partial(self._confirm, registration.id, caller),
        )
        return registration.id

    async def confirm_existing(self, caller: Caller, pin: str, device: Device) -> str:
        """Step 3 with a device that exists, which the caller may manage. Returns the id of the registration.

        Raises:
            NotFound: no registration waits for this PIN.
            TooManyAttempts: this caller has guessed too often.
            Conflict: the device is of another type, or registered already.
        """
        registration = await self._by_pin(caller, pin)

        def work(tx: Transaction) -> None:
            record = tx.devices.device(device.key)
            if record is None:
                raise DeviceNotFound(device.id)
            if record.device_type != registration.device_type:
                raise Conflict(OTHER_TYPE_OF_DEVICE)
            self._confirm(registration.id, caller, tx, record)

        await self._database.write(work)
        return registration.id

    def _confirm(self, id_: str, caller: Caller, tx: Transaction, device: DeviceRecord) -> None:
        """Bind a registration to its device. Raises NotFound when another user of the same PIN was faster."""
        registration = tx.registrations.by_id(id_)
        if registration is None or self._status(registration) is not Status.PENDING_USER_CONFIRMATION:
            raise NotFound
        _require_unregistered(device)
        tx.registrations.confirm(id_, user=caller.user, application=caller.application, device=device.key)

    async def revoke(self, device: Device) -> None:
        """Step 5: end the device's token, its certificate and its connections. Raises NotFound: not registered."""

        def work(tx: Transaction) -> None:
            record = tx.devices.device(device.key)
            if record is None or not tx.registrations.revoke_of_device(record.key):
                raise NotFound
            token = tx.devices.token_of(record.key)
            tx.devices.remove_token(record.key)
            record = replace(record, certificate=None, vdid=None)
            put_origin(tx, record)
            note(tx, AuditEvent.CERTIFICATE_REVOKED, f"device {record.id}", now_ms=self._clock.now_ms())
            tell_token(tx, record.key, None if token is None else token.hash)
            tx.tell(DEVICE, record.key)

        await self._database.write(work)

    async def _by_pin(self, caller: Caller, pin: str) -> RegistrationRecord:
        """The registration of a PIN. One call at a time, so that parallel guesses are all counted.

        Raises NotFound, TooManyAttempts.
        """
        key = f"application {caller.application}" if caller.user is None else f"user {caller.user}"
        async with self._guessing:
            self._throttle.check(key)
            found = await self._database.read(lambda tx: tx.registrations.by_pin(pin.upper()))
            if found is None or found.expires_on <= self._clock.now_ms():
                self._throttle.missed(key)
                raise NotFound
        return found

    async def _find(self, id_: str) -> RegistrationRecord:
        found = await self._database.read(lambda tx: tx.registrations.by_id(id_))
        if found is None:
            raise NotFound
        return found

    def _progress(self, registration: RegistrationRecord) -> RegistrationResult:
        return RegistrationResult(self._status(registration), registration.device_id)

    def _status(self, registration: RegistrationRecord) -> Status:
        return status_of(registration, self._clock.now_ms())


def _hash(shown: ClientCertificate) -> bytes:
    return hashlib.sha256(shown.leaf).digest()


def _begin(registration: RegistrationRecord, tx: Transaction) -> str:
    """Store a registration; returns its PIN."""
    store, now_ms = tx.registrations, registration.created_on
    store.release_pins(now_ms=now_ms)
    store.purge(created_before_ms=now_ms - _KEPT_MS, limit=_PURGED_AT_ONCE)
    _require_free(tx, registration)
    pending = store.pending(registration.device_type, registration.vendor_device_id, now_ms=now_ms)
    if pending is not None and pending.certificate_hash != registration.certificate_hash:
        raise Conflict("Another device is registering with this vendor id")
    store.expire_pending_of(registration.certificate_hash)
    pin = _new_pin()
    while store.by_pin(pin) is not None:  # another registration has it: a chance of 1 in 10^11 for each one pending
        pin = _new_pin()
    store.add(registration, pin=pin)
    return pin


def _require_free(tx: Transaction, registration: RegistrationRecord) -> None:
    """Raises Conflict."""
    if tx.devices.by_vdid(registration.device_type, registration.vendor_device_id) is not None:
        raise Conflict(VENDOR_ID_TAKEN)
    if tx.registrations.is_certificate_used(registration.certificate_hash):
        raise Conflict("Certificate already registered")


def _require_readable(shown: ClientCertificate) -> None:
    """Raise PermissionDenied for a certificate whose members the device record could not show."""
    try:
        certificate_info(shown.leaf)
    except UNREADABLE as error:
        raise PermissionDenied("a client certificate that can be read") from error


def _require_unregistered(device: DeviceRecord) -> None:
    if device.certificate is not None:
        raise Conflict("Device already registered")


def _new_pin() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(_PIN_CHARACTERS))
