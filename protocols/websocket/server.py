"""The WebSocket server: who is let in, and the device channel on the wire.

What is said on the device channel is decided in device_channel.py, how a connection lives and ends in connection.py.
Here the two meet the broker: one task hands every message of what was read in one go to `Ingest`, and attaches one
callback that settles them all, and answers in one write, once they are durable.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

import structlog
import trio

from broker.accounts.permissions import READ_AND_WRITE, Permission, Reach
from broker.accounts.tokens import TokenKind
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import (
    DomainError,
    NotFound,
    PermissionDenied,
    SourceDeviceDisabled,
    StorageUnavailable,
    Unauthorized,
)
from broker.limits.meters import Channel
from broker.registration.certificates import ClientCertificate
from broker.routing.connections import CloseReason
from broker.services import Services
from config.limits import REGISTRATION_SECONDS
from protocols.streams import ReplayedStream
from protocols.tls import client_certificate
from protocols.websocket.connection import Connection, Conversation
from protocols.websocket.device_channel import (
    ActionOffered,
    Answer,
    Close,
    DeviceChannel,
    DeviceUnregistered,
    Event,
    MessageOffered,
    Offer,
    RegistrationRequested,
)
from protocols.websocket.errors import DeviceNotRegistered, TokenEnded
from protocols.websocket.events import EventFeed, select_events
from protocols.websocket.feeds import LiveFeed, encodings, select
from protocols.websocket.frames import Form
from protocols.websocket.handshake import Call, Handshake
from protocols.websocket.wire import encode
from storage.sql import StoreError

# What may wait for a commit before a channel stops reading; refusals of what is no message are no rows of the journal.
ANSWERS_WAITING: Final = 10_000
# Destinations that are remembered until the next check.
DESTINATIONS_REMEMBERED: Final = 1000

_log = structlog.get_logger(__name__)


async def converse(services: Services, stream: trio.abc.Stream) -> None:
    """One connection, from the first byte of its handshake to its last."""
    connection = await _shake_hands(services, stream)
    if connection is not None:
        await connection.run()


async def _shake_hands(services: Services, stream: trio.abc.Stream) -> Connection | None:
    handshake = Handshake(stream)
    try:
        call = await handshake.receive()
        if call is None:
            return None
        try:
            shown = client_certificate(stream)
            conversation = await _admit(services, call, shown)
            if call.token:
                await services.registration.admission.check_caller(
                    await services.accounts.tokens.caller(call.token), shown
                )
        except DomainError as error:
            await handshake.refuse(error)
            return None
        except StoreError as error:
            await handshake.refuse(StorageUnavailable(str(error)))
            return None
        early = await handshake.accept()
        return Connection(services, stream.rest if isinstance(stream, ReplayedStream) else stream, early, conversation)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return None


async def _admit(
    services: Services, call: Call, shown: ClientCertificate | None
) -> Callable[[Connection], Conversation]:
    """What is spoken on this path, if the caller may. Raises DomainError, StoreError."""
    match call.path:
        case "/v1.1/websocket":
            meter = None
            if call.token is not None:
                caller = await services.accounts.tokens.caller(call.token)
                await services.registration.admission.check_caller(caller, shown)  # before the limit: reference 3.2
                meter = services.limits.meters.of(Channel.WEBSOCKET, caller)
            if meter is not None:  # reference 19.1: it can fail the handshake
                meter.check()
            channel = DeviceChannel(ack=call.flag("ack"), handshake_token=call.token, handshake_meter=meter)
            return partial(DeviceConversation, services, channel, shown)
        case "/v1.1/live":
            return partial(LiveFeed, services, call, await select(services, call))
        case "/v1.1/events":
            return partial(EventFeed, services, call, await select_events(services, call))
        case _:
            raise NotFound


class _Registration:
    """A device that the channel speaks for."""

    __slots__ = ("device", "link", "reach", "token")

    def __init__(self, device: Device, reach: Reach, token: str, link: ExitStack) -> None:
        self.device = device
        self.reach = reach
        self.token = token
        self.link = link


class DeviceConversation:
    """The device channel of one connection."""

    def __init__(
        self, services: Services, channel: DeviceChannel, shown: ClientCertificate | None, connection: Connection
    ) -> None:
        self._services = services
        self._shown = shown
        self._ingest = services.messages.ingest
        self._channel = channel
        self._connection = connection
        self._registrations: dict[str, _Registration] = {}
        self._destinations: dict[tuple[str, str], Device] = {}
        self._deadline = trio.current_time() + REGISTRATION_SECONDS

    @property
    def form(self) -> Form:
        return self._channel.form

    @property
    def deadline(self) -> float:
        """reference 21.3: a device must register within 30 s."""
        return self._deadline

    def expired(self) -> None:
        self._deadline = math.inf
        self._act(self._channel.registration_timed_out())

    async def talk(self) -> None:
        connection, ingest = self._connection, self._ingest
        while (payloads := await connection.receive()) is not None:
            with connection.in_one_go():
                await self._handle(payloads)
            if not ingest.has_room:
                await ingest.wait_room()
            if not connection.has_room:
                await connection.wait_written()
            if self._channel.statistics().answers_waiting > ANSWERS_WAITING:
                await self._wait_settled()

    async def _handle(self, payloads: Iterable[str | bytes]) -> None:
        """Everything that was read in one go, in order. Only a registration or a new destination waits."""
        receive, submit, registrations = self._channel.receive, self._ingest.submit, self._registrations
        verdicts: list[tuple[Offer, int | DomainError]] = []
        for payload in payloads:
            for event in receive(payload):
                if type(event) is MessageOffered:
                    try:
                        verdicts.append((event, submit(registrations[event.sdid].device, event.data, event.ts)))
                    except DomainError as error:
                        verdicts.append((event, error))
                elif type(event) is ActionOffered:
                    if (event.sdid, event.ddid) not in self._destinations:
                        # Callbacks go to the rows since the last `await`, so it is their turn before the next one.
                        self._settle_when_durable(verdicts)
                        verdicts = []
                    verdicts.append((event, await self._submit_action(event)))
                elif type(event) is RegistrationRequested:
                    self._settle_when_durable(verdicts)
                    verdicts = []
                    await self._register(event)
                else:
                    self._act((event,))
        self._settle_when_durable(verdicts)

    # --- Registrations ---

    async def _register(self, request: RegistrationRequested) -> None:
        try:
            meter = self._services.limits.meters.of(
                Channel.WEBSOCKET, await self._services.accounts.tokens.caller(request.token)
            )
            if meter is not None:
                meter.count()
            device, reach = await self._authorize(request.sdid, request.token)
        except DomainError as error:
            self._act(self._channel.registration_refused(request.sdid, error))
        except StoreError as error:
            self._act(self._channel.registration_refused(request.sdid, StorageUnavailable(str(error))))
        else:
            self._connect(device, reach, request.token)
            self._deadline = math.inf
            self._act(self._channel.registration_accepted(request.sdid, meter))

    async def _authorize(self, sdid: str, token: str) -> tuple[Device, Reach]:
        """Raises DomainError, StoreError."""
        tokens = self._services.accounts.tokens
        caller = await tokens.caller(token)
        device = await self._services.devices.registry.find(sdid)
        await self._services.registration.admission.check_caller(caller, self._shown)
        reach = await self._services.accounts.permissions.reach(caller)
        await tokens.caller(token)  # it may have been revoked meanwhile
        if not _may_speak_for(reach, device):
            raise PermissionDenied(f"READ and WRITE on device {sdid}")
        if not device.enabled:
            raise SourceDeviceDisabled
        return device, reach

    def _connect(self, device: Device, reach: Reach, token: str) -> None:
        link, caller = ExitStack(), reach.caller
        link.enter_context(
            self._services.routing.connections.connect(
                device,
                protocol="WEBSOCKET",
                token=caller.token,
                exclusive=caller.kind is TokenKind.DEVICE,
                deliver=self._deliver,
                close=partial(self._end_link, device.id),
                is_allowed=partial(_may_speak_for, reach, device),
            )
        )
        self._registrations[device.id] = _Registration(device, reach, token, link)

    def _end_link(self, sdid: str, reason: CloseReason) -> None:
        """The broker's word; called on the loop at any time."""
        match reason:
            case CloseReason.REPLACED:
                self._act(self._channel.taken_over(sdid))
            case CloseReason.TOKEN_REVOKED:
                self._act(self._channel.access_ended(sdid, TokenEnded()))
            case CloseReason.DEVICE_DISABLED:
                self._act(self._channel.access_ended(sdid, SourceDeviceDisabled()))
            case CloseReason.PERMISSION_REMOVED:
                self._act(self._channel.access_ended(sdid, PermissionDenied(f"READ and WRITE on device {sdid}")))
            case CloseReason.SHUTDOWN:
                pass  # the connection hears it, too, and says goodbye for all its devices

    async def check(self) -> None:
        """Links hear of revoked tokens and disabled devices at once; of expiry and of lost permissions here."""
        self._destinations.clear()
        for sdid, registration in list(self._registrations.items()):
            try:
                await self._authorize(sdid, registration.token)
            except DomainError as error:
                if self._registrations.get(sdid) is registration:
                    ended = TokenEnded() if isinstance(error, Unauthorized) else error
                    self._act(self._channel.access_ended(sdid, ended))

    def pinged(self) -> None:
        for registration in self._registrations.values():
            self._services.devices.presence.touch(registration.device.key)

    # --- Messages and Actions ---

    async def _submit_action(self, offer: ActionOffered) -> int | DomainError:
        source = self._registrations.get(offer.sdid)
        try:
            destination = self._destinations.get((offer.sdid, offer.ddid))
            if destination is None and source is not None:
                destination = await self._find_destination(offer)
                source = self._registrations.get(offer.sdid)  # it may have lost its device while we looked
            if source is None or destination is None:
                raise DeviceNotRegistered
            if not source.reach.allows(destination, Permission.WRITE):
                raise PermissionDenied(f"WRITE on device {offer.ddid}")
            return self._ingest.submit_action(source.device, destination, offer.data, offer.ts)
        except DomainError as error:
            return error
        except StoreError as error:
            return StorageUnavailable(str(error))

    async def _find_destination(self, offer: ActionOffered) -> Device:
        destination = await self._services.devices.registry.find(offer.ddid)
        if len(self._destinations) >= DESTINATIONS_REMEMBERED:
            self._destinations.clear()
        self._destinations[offer.sdid, offer.ddid] = destination
        return destination

    def _settle_when_durable(self, verdicts: list[tuple[Offer, int | DomainError]]) -> None:
        if not verdicts or not self._channel.ack:
            return
        if any(type(verdict) is int for _, verdict in verdicts):
            self._ingest.after_commit(partial(self._settle, verdicts))
        else:
            self._settle(verdicts, None)

    def _settle(self, verdicts: list[tuple[Offer, int | DomainError]], error: StorageUnavailable | None) -> None:
        mid = self._ingest.mid
        self._act(
            self._channel.settle(
                [
                    (offer, verdict if isinstance(verdict, DomainError) else error or mid(verdict))
                    for offer, verdict in verdicts
                ]
            )
        )

    def _deliver(self, action: Action) -> bool:
        return self._connection.offer(encodings(self._ingest)[self.form].action(action))

    # --- What the channel decides ---

    def _act(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Answer(frames):
                    self._connection.say(b"".join(map(encode, frames)))
                case DeviceUnregistered(sdid):
                    self._registrations.pop(sdid).link.close()
                case Close(code, reason):
                    self._connection.close(code, reason)
                case _:
                    raise AssertionError(f"{event} is for the reader")

    async def finish(self) -> None:
        await self._wait_settled()
        self.leave()

    async def _wait_settled(self) -> None:
        """What was submitted is durable or refused, and the channel has said so."""
        if self._channel.statistics().answers_waiting:
            with suppress(StorageUnavailable):
                await self._ingest.wait_committed()

    def leave(self) -> None:
        self._act(self._channel.disconnected())


def _may_speak_for(reach: Reach, device: Device) -> bool:
    return all(reach.allows(device, permission) for permission in READ_AND_WRITE)
