"""The LWM2M server: registrations, whatever transport they come by (reference 18.2, 18.3).

A registration is authenticated with the store, so it is awaited; updates and deregistrations are not. All lifetimes are
in one heap.
"""

from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
import trio

from broker.accounts.tokens import Caller
from broker.device_management.sessions import RegistrationPort
from broker.devices.registry import Device
from broker.errors import (
    DeviceNotFound,
    DomainError,
    NotFound,
    PermissionDenied,
    SourceDeviceDisabled,
    StorageUnavailable,
    Unauthorized,
)
from broker.facts import DeviceChanged, DeviceTypeChanged, FactPhase, ManagementConfigured
from broker.limits.meters import Channel
from broker.limits.refusals import RateLimitExceeded
from broker.registration.certificates import ClientCertificate
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from protocols.coap.containment import Failure, contain
from protocols.coap.errors import InternalError, MethodNotAllowed, Unfit, UnsupportedFormat, response_code
from protocols.coap.lwm2m.device import OnStored, RegisteredDevice
from protocols.coap.lwm2m.exchanges import Lwm2mLink
from protocols.coap.lwm2m.formats.content import SENML_CBOR, SENML_JSON, decode_content
from protocols.coap.lwm2m.formats.values import UnreadablePayload
from protocols.coap.lwm2m.kinds import KindOf, kind_of, kind_of_either
from protocols.coap.lwm2m.lifetimes import RegistrationTable
from protocols.coap.lwm2m.links import parse_offer
from protocols.coap.lwm2m.requests import LIFETIME_SECONDS, DeviceRequest, Parameters, read_parameters
from protocols.coap.lwm2m.sequence import Sequence
from protocols.coap.messages import CoapMessage, Code, Option
from protocols.refusals import note_refusal
from protocols.rooms import CoapRooms
from storage.sql import StoreError

#: Devices need time between the answer to their registration and the first request (reference 18.3).
PAUSE_SECONDS: Final = 0.5
_RD: Final = b"rd"
_DATA_PUSH: Final = b"dp"
_UPDATE_DEPTH: Final = 2
_LOCATION_DIGITS: Final = 5

_log = structlog.get_logger(__name__)


class Lwm2mResponse(NamedTuple):
    """A response to a device."""

    code: int
    options: tuple[tuple[int, bytes], ...] = ()
    payload: bytes = b""


class Lwm2mPeer(Lwm2mLink, Protocol):
    """A connection from which requests come, and what its device has proved."""

    #: In DTLS with a pre-shared key: the device id and the key.
    pre_shared_key: tuple[bytes, bytes] | None
    certificate: ClientCertificate | None
    #: The device that was registered or last updated over this connection.
    registered: RegisteredDevice | None

    @property
    def is_stream(self) -> bool:
        """TCP and TLS: devices authenticate with a token, and the registration ends with the connection."""


class Lwm2mStatistics(msgspec.Struct, frozen=True):
    """The counters as `trunkline statistics` shows them."""

    registered: int
    asleep: int  # in queue mode, and silent for longer than they stay awake
    registrations: int
    updates: int
    refused: int  # requests of devices
    expired: int  # registrations whose lifetime has passed
    notifications: int
    unreadable: int  # answers and notifications
    communication_failures: int  # that interrupted the sequence after a registration


class Lwm2mServer:
    """The registrations of all listeners."""

    def __init__(
        self,
        rooms: CoapRooms,
        registrations: RegistrationPort,
        *,
        now: Callable[[], float] = trio.current_time,
        pause_seconds: float = PAUSE_SECONDS,
        described: KindOf = kind_of,
    ) -> None:
        """A server without registrations; `run` must run while it serves.

        Args:
            rooms: the broker.
            registrations: device management.
            now: the clock, in seconds.
            pause_seconds: between the answer to a registration and the first request.
            described: what the resources of objects hold that the server does not know by itself.
        """
        self._rooms = rooms
        self._registrations = registrations
        self.now = now
        self._clock = rooms.core.clock
        self.refusals = rooms.core.refusals
        self.life = rooms.core.life
        self.new_pace = rooms.limits.overhead.pace
        self.strangers, self.sockets = rooms.limits.strangers, rooms.limits.sockets
        self._sequence = Sequence(rooms.core, registrations, pause_seconds)
        self._kinds = kind_of_either(described)
        self._table = RegistrationTable()
        self._sooner = trio.Event()
        self._registered = self._updates = self._refused = self._expired = 0
        self._notifications = 0
        rooms.core.router.subscribe(ManagementConfigured, self._configured, FactPhase.EFFECT)
        rooms.core.router.subscribe(DeviceTypeChanged, self._type_changed, FactPhase.EFFECT)
        rooms.core.router.subscribe(DeviceChanged, self._device_changed, FactPhase.EFFECT)

    def _type_changed(self, fact: DeviceTypeChanged) -> None:
        """The registered devices of the type are observed as the new Manifest says."""
        for registered in self._table:
            if registered.device.type_key == fact.device_type:
                self._sequence.begin(registered)

    def _device_changed(self, fact: DeviceChanged) -> None:
        """The device may have another version of the Manifest."""
        if (registered := self._table.of_device(fact.device)) is not None:
            self._sequence.begin(registered)

    def _configured(self, fact: ManagementConfigured) -> None:
        """Write the new attributes to the registered devices of the type, and read what may be read now."""
        for registered in self._table:
            if registered.device.type_key == fact.device_type:
                registered.ask_anew()
                self._sequence.forget_fields(registered)
                self._sequence.begin(registered)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out what follows registrations, and end them after their lifetimes, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._sequence.nursery = nursery
            task_status.started()
            try:
                await self._expire_forever()
            finally:
                self._sequence.nursery = None
                for registered in self._table:
                    self._end(registered)

    async def _expire_forever(self) -> None:
        while True:
            self._sooner = trio.Event()
            with trio.move_on_after(max(0.0, self._table.next_end - self.now())):
                await self._sooner.wait()
            self.expire(self.now())

    def expire(self, now: float) -> None:
        """End the registrations whose lifetime has passed."""
        for registered in self._table.due(now):
            self._expired += 1
            _log.info("lwm2m_registration_expired", device=registered.device.id)
            self._end(registered)

    # --- Requests of devices -----------------------------------------------------------------------------------------

    def needs_store(self, request: DeviceRequest) -> bool:
        """Whether the request is a registration or a Send, which `answer_stored` answers."""
        return request.method == Code.POST and request.path in ((_RD,), (_DATA_PUSH,))

    async def answer_stored(self, peer: Lwm2mPeer, request: DeviceRequest) -> Lwm2mResponse:
        """Answer a request that changes the store, when the change is durable. Raises DomainError."""
        try:
            return await (self.register if request.path == (_RD,) else self._sent)(peer, request)
        except StoreError as error:
            raise StorageUnavailable.of(error) from error

    def answer(self, peer: Lwm2mPeer, request: DeviceRequest) -> Lwm2mResponse:
        """Answer any other request. Raises DomainError."""
        if len(request.path) != _UPDATE_DEPTH or request.path[0] != _RD:
            raise NotFound
        if request.method not in (Code.POST, Code.PUT, Code.DELETE):
            raise MethodNotAllowed
        registered = self._at(peer, request.path[1])
        if request.method == Code.DELETE:
            self._end(registered)
            return Lwm2mResponse(Code.DELETED)
        self._update(peer, registered, read_parameters(request))
        return Lwm2mResponse(Code.CHANGED)

    def _at(self, peer: Lwm2mPeer, location: bytes) -> RegisteredDevice:
        """The peer's registration at this location. Raises NotFound, also for the location of another device."""
        found = None
        if location.isdigit() and len(location) <= _LOCATION_DIGITS:
            found = self._table.find(int(location))
        if found is None or not _is_of(found, peer):
            raise NotFound
        return found

    async def _sent(self, peer: Lwm2mPeer, request: DeviceRequest) -> Lwm2mResponse:
        """The operation Send of LwM2M 1.1 (6.4.6): values that nobody asked for. Raises DomainError."""
        registered = peer.registered
        if registered is None or registered.is_over:
            raise NotFound
        if request.format not in (SENML_JSON, SENML_CBOR):
            raise UnsupportedFormat
        try:
            readings = decode_content(request.format, request.payload, (), self._clock.now_ms(), self._kinds)
        except UnreadablePayload as error:
            self._sequence.unreadable += 1
            raise Unfit(f"The Send {error}") from error
        self._notifications += 1
        registered.heard(peer)
        self._rooms.devices.presence.touch(registered.device.key)
        if registered.device.manifest.manifest.resources:
            self._count(registered)
        await self._registrations.receive_values(registered.device, readings)
        return Lwm2mResponse(Code.CHANGED)

    def _update(self, peer: Lwm2mPeer, registered: RegisteredDevice, given: Parameters) -> None:
        self._updates += 1
        if given.lifetime_seconds is not None:
            registered.lifetime_seconds = given.lifetime_seconds
        if given.binding is not None or given.has_queue_mode:
            registered.has_queue_mode = given.has_queue_mode
        if given.offer is not None and given.offer != registered.offer:
            registered.offer = given.offer
            registered.ask_anew()
        peer.registered = registered
        registered.updated(peer)
        self._extend(registered)
        self._rooms.devices.presence.touch(registered.device.key)
        self._sequence.begin(registered)

    def moved(self, former: Lwm2mPeer, peer: Lwm2mPeer) -> RegisteredDevice | None:
        """A peer has begun another session from its address. Returns its registration if that goes on over it."""
        registered = former.registered
        if registered is None or registered.is_over or registered.link is not former or not _is_of(registered, peer):
            return None
        peer.registered = registered
        registered.moved(peer)
        return registered

    def note_refusal(self, peer: Lwm2mPeer, error: DomainError) -> None:
        """A request of a device was refused."""
        self._refused += 1
        about = {} if peer.registered is None else {"device": peer.registered.device.id}
        note_refusal(self.refusals, "lwm2m", error, **about)

    async def register(self, peer: Lwm2mPeer, request: DeviceRequest) -> Lwm2mResponse:
        """Register a device. Call `begin` after the answer was sent. Raises DomainError and StoreError."""
        given = read_parameters(request)
        try:
            device, token = await self._authenticate(peer, given)
        except Unauthorized as error:
            self._rooms.messages.claims.note(given.endpoint or "", "LWM2M", error)
            raise
        if self._table.of_device(device.key) is None:
            await self._registrations.admit(device)
            device, token = await self._authenticate(peer, given)  # its token may have ended during the wait
        number = self._table.free_number()
        if peer.is_closed or self._sequence.nursery is None:
            raise StorageUnavailable
        registered = RegisteredDevice(
            device,
            number,
            peer,
            given.offer or parse_offer(b""),
            given.lifetime_seconds or LIFETIME_SECONDS,
            given.has_queue_mode,
            self.now,
            self._clock.now_ms,
            self._kinds,
            version=given.version,
        )
        registered.on_written = partial(self._sequence.read_back, registered)
        former = self._table.of_device(device.key)
        self._registrations.begin(registered)
        connections = self._rooms.routing.connections
        link = connections.connect(
            device,
            protocol="LWM2M",
            token=token,
            exclusive=False,
            is_registration=True,
            deliver=None,
            close=partial(self._closed_by_broker, registered),
        )
        registered.connection.enter_context(link)
        # A connection is one device: what was registered over it before would never be heard again.
        for ended in (former, peer.registered):
            if ended is not None:
                self._end(ended, keep=peer)
        self._table.add(registered)
        peer.registered = registered
        self._extend(registered)
        self._registered += 1
        try:
            await self._registrations.begun(registered)
            await connections.entered(link)
        except StoreError:
            self._end(registered)
            raise
        location = ((int(Option.LOCATION_PATH), _RD), (int(Option.LOCATION_PATH), str(number).encode()))
        return Lwm2mResponse(Code.CREATED, location)

    def begin(self, peer: Lwm2mPeer) -> None:
        """The answer to a registration has left."""
        if peer.registered is not None:
            self._sequence.begin(peer.registered)

    async def _authenticate(self, peer: Lwm2mPeer, given: Parameters) -> tuple[Device, bytes]:
        """The device and the hash of its token; no token for a device that shows its registered certificate.

        Raises:
            Unauthorized: neither a valid token nor a registered certificate.
            PermissionDenied: the endpoint name is another device's, or the certificate is missing.
            SourceDeviceDisabled: the device is disabled.
        """
        devices = self._rooms.devices.registry
        caller: Caller | None = None
        if peer.pre_shared_key is not None:
            identity, key = peer.pre_shared_key
            device, caller = await devices.authenticate(identity.decode(), key.hex())
        elif peer.is_stream and given.token is not None:
            device, caller = await devices.by_token(given.token)
        else:
            device = await self._certified(peer, given)
        if not device.enabled:
            raise SourceDeviceDisabled
        self._rooms.registration.admission.check(device, peer.certificate)
        if given.endpoint not in (None, device.id):
            raise PermissionDenied(f"the endpoint name of device {device.id}")
        if caller is not None:
            caller.act()
        return device, token_hash("") if caller is None else caller.token

    async def _certified(self, peer: Lwm2mPeer, given: Parameters) -> Device:
        """A securely registered device, whose certificate `Admission` compares. Raises Unauthorized."""
        if peer.certificate is None or given.endpoint is None:
            raise Unauthorized
        try:
            device = await self._rooms.devices.registry.find(given.endpoint)
        except DeviceNotFound:
            raise Unauthorized from None
        if not device.type.record.rsp:
            raise Unauthorized
        return device

    # --- The end of registrations ------------------------------------------------------------------------------------

    def _end(self, registered: RegisteredDevice, *, keep: Lwm2mPeer | None = None) -> None:
        """End a registration. With `keep`, another one over this connection replaces it."""
        if not self._table.remove(registered):
            return
        contain("lwm2m_end_failed", None, registered.device.id, registered.end)
        contain("lwm2m_end_failed", None, registered.device.id, self._registrations.ended, registered)
        if keep is None:
            registered.link.unregistered()
        elif registered.link is not keep:
            registered.link.close()

    def _closed_by_broker(self, registered: RegisteredDevice, _reason: CloseReason) -> None:
        self._end(registered)
        registered.link.close()

    def lost(self, peer: Lwm2mPeer) -> None:
        """The connection has ended. Over TCP and TLS the registration ends with it (reference 18.2)."""
        registered = peer.registered
        if registered is not None and registered.link is peer and peer.is_stream:
            self._end(registered)

    def _extend(self, registered: RegisteredDevice) -> None:
        before = self._table.next_end
        self._table.extend(registered, self.now())
        if self._table.next_end < before:
            self._sooner.set()

    # --- Notifications -----------------------------------------------------------------------------------------------

    def notified(self, peer: Lwm2mPeer, message: CoapMessage, on_stored: OnStored | None = None) -> bool | None:
        """Take a response that answers no request.

        Returns whether it is of an observation that goes on; None when `on_stored` will be called as soon as what it
        says is durable, or could not be stored.
        """
        registered = peer.registered
        if registered is None or registered.is_over or not registered.observes(message.token):
            return False
        self._notifications += 1
        registered.heard(peer)
        self._rooms.devices.presence.touch(registered.device.key)
        wanted = registered.device.manifest.manifest.resources
        is_of_field = bool(wanted) and not set(registered.paths_of(message.token)).isdisjoint(wanted.values())
        try:
            if is_of_field:
                self._count(registered)
            found = registered.notified(message)
        except RateLimitExceeded:
            return True
        except UnreadablePayload as error:
            reason = f"A notification {error}."
            self._sequence.unreadable += 1
            self._sequence.note(registered, "lwm2m_unreadable", reason)
            if is_of_field:
                self._registrations.receive_unreadable(registered.device, message.payload, reason)
            return True
        if found is None:
            return registered.observes(message.token)
        paths, readings = found
        if readings is None:
            self._sequence.read_later(registered, paths)
            return True
        if on_stored is None:
            self._sequence.store_later(registered, paths, readings)
            return True
        self._sequence.store_later(registered, paths, readings, partial(_stored, registered, message.token, on_stored))
        return None

    def _count(self, registered: RegisteredDevice) -> None:
        """Count a notification or Send that makes messages of fields (reference 18.6). Raises RateLimitExceeded."""
        device = registered.device
        meter = self._rooms.limits.meters.of_device(Channel.COAP, device.key, device.id)
        try:
            if meter is not None:
                meter.count()
        except RateLimitExceeded as error:
            self._rooms.messages.ingest.refused.note(device, error)
            raise

    def statistics(self) -> Lwm2mStatistics:
        return Lwm2mStatistics(
            registered=len(self._table),
            asleep=sum(one.is_asleep for one in self._table),
            registrations=self._registered,
            updates=self._updates,
            refused=self._refused,
            expired=self._expired,
            notifications=self._notifications,
            unreadable=self._sequence.unreadable,
            communication_failures=self._sequence.failures,
        )


def _stored(registered: RegisteredDevice, token: bytes, on_stored: OnStored, is_stored: bool) -> None:
    if not is_stored:
        registered.not_stored(token)
    on_stored(is_stored)


def _is_of(registered: RegisteredDevice, peer: Lwm2mPeer) -> bool:
    """Whether the peer has proved that it is the registered device."""
    if peer.is_stream:
        return peer.registered is registered
    device = registered.device
    if peer.pre_shared_key is not None:
        return peer.pre_shared_key[0] == device.id.encode()
    known, shown_ = device.record.certificate, peer.certificate
    return known is not None and shown_ is not None and compare_digest(shown_.leaf, known)


def lwm2m_refusal(error: DomainError) -> Lwm2mResponse:
    """The answer for an error, with its text as diagnostic payload (RFC 7252, 5.5.2)."""
    return Lwm2mResponse(response_code(error), (), str(error).encode())


def internal_error(failure: Failure) -> Lwm2mResponse:
    """The answer after an exception that no code expects; its id is in the log."""
    return Lwm2mResponse(response_code(InternalError()), (), f"{InternalError()} {failure.error_id}".encode())
