"""Connects one device channel with the broker.

For each read from the socket, one task hands all messages to `Ingest`, and attaches one callback, which settles them
and sends the answers in one write once they are durable. device_channel.py has the rules of the channel.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter
from typing import Final

import trio

from broker.accounts.permissions import READ_AND_WRITE, Permission, Reach
from broker.accounts.tokens import TokenKind
from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import DomainError, PermissionDenied, SourceDeviceDisabled, StorageUnavailable, Unauthorized
from broker.limits.meters import Channel
from broker.messages.ingest import Commit
from broker.registration.certificates import ClientCertificate
from broker.routing.connections import CloseReason, DeviceLink
from config.limits import REGISTRATION_SECONDS
from protocols.refusals import note_refusal, refusal_for
from protocols.rooms import WebSocketRooms
from protocols.streams.connection import Need
from protocols.streams.hub import Hub
from protocols.streams.peers import authenticated
from protocols.websocket.connection import WebSocket
from protocols.websocket.device_channel import (
    ActionOffered,
    ChannelAnswer,
    ChannelClose,
    ChannelEvent,
    ChannelOffer,
    DeviceChannel,
    DeviceUnregistered,
    MessageOffered,
    RegistrationRequested,
)
from protocols.websocket.errors import DeviceNotRegistered, TokenEnded
from protocols.websocket.feeds import encodings, recent_mids
from protocols.websocket.frames import FrameForm, wanted_frame
from protocols.websocket.wire import encode_frames
from storage.keys import Ticket
from storage.sql import StoreError

# Answers that may wait for a commit before a channel stops reading. Refusals count, too, though they are no rows of the
# journal.
ANSWERS_WAITING: Final = 10_000
# Destination devices of Actions that are cached until the next check.
DESTINATIONS_REMEMBERED: Final = 1000

Verdicts = list[tuple[ChannelOffer, Ticket | DomainError]]


class _Registration:
    """A device of the channel."""

    __slots__ = ("device", "link", "reach", "token")

    def __init__(self, device: Device, reach: Reach, token: str, link: DeviceLink) -> None:
        self.device = device
        self.reach = reach
        self.token = token
        self.link = link


class DeviceConversation(WebSocket):
    """Connects one device channel with the broker."""

    __slots__ = ("_channel", "_destinations", "_ingest", "_left", "_registers_until", "_registrations", "_shown")

    def __init__(
        self,
        rooms: WebSocketRooms,
        channel: DeviceChannel,
        shown: ClientCertificate | None,
        stream: trio.abc.Stream,
        hub: Hub,
    ) -> None:
        super().__init__(rooms, stream, hub)
        self._shown = shown
        self._ingest = rooms.messages.ingest
        self._channel = channel
        self._registrations: dict[str, _Registration] = {}
        self._destinations: dict[tuple[str, str], Device] = {}
        #: The message that has to wait, and the messages behind it.
        self._left: tuple[ActionOffered | RegistrationRequested, Iterator[str | bytes]] | None = None
        #: reference 21.3: a device must register within 30 s.
        self._registers_until = trio.current_time() + REGISTRATION_SECONDS

    @property
    def form(self) -> FrameForm:  # type: ignore[override]
        return self._channel.form

    def due(self) -> float:
        return min(super().due(), self._registers_until)

    async def beat(self, now: float) -> None:
        if now >= self._registers_until:
            self._registers_until = math.inf
            self._act(self._channel.registration_timed_out())
        await super().beat(now)

    def take_messages(self, messages: Sequence[str | bytes]) -> None:
        """Process the messages of one turn, in order, or some of them: see `_left`."""
        self.cork()
        try:
            offers = self._channel.receive_usual(messages)
            self._handle(iter(messages[len(offers) :] if offers else messages), offers)
        finally:
            self.uncork()

    def next_need(self) -> Need:
        if self._left is not None:
            return Need.TASK
        if not self._ingest.has_room or self._channel.answers_waiting > ANSWERS_WAITING:
            return Need.STORE
        return super().next_need()

    async def wait_store(self) -> None:
        await self._ingest.wait_room()
        if self._channel.answers_waiting > ANSWERS_WAITING:
            await self.settle()

    async def work(self) -> None:
        if self._left is not None:
            await self._go_on(*self._left)

    async def _go_on(self, waits: ActionOffered | RegistrationRequested, payloads: Iterator[str | bytes]) -> None:
        """Process what is left of a turn."""
        self.cork()
        try:
            if isinstance(waits, ActionOffered):
                verdict = await self._submit_action(waits)
                self._settle_when_durable([(waits, verdict)])
                if isinstance(verdict, DomainError):
                    self.pace.spend()
            else:
                await self._register(waits)
                self.pace.spend()
            self._left = None
            self._handle(payloads)
        finally:
            self.uncork()

    def _handle(self, payloads: Iterator[str | bytes], offers: Sequence[MessageOffered] = ()) -> None:
        """Process messages in order, until one must wait: a registration, or an Action to a new destination. That one
        and all behind it are then in `_left`. `offers` are the messages before the payloads."""
        receive, overhead, verdicts = self._channel.receive, 0, Verdicts()
        if offers:
            overhead = len(offers) - self._submit_all(offers, verdicts)
        for payload in payloads:
            overhead += 1
            for event in receive(payload):
                if type(event) is MessageOffered:
                    overhead -= self._submit(self._registrations[event.sdid].device, event, verdicts)
                elif type(event) is ActionOffered:
                    destination = self._destinations.get((event.sdid, event.ddid))
                    if destination is None:
                        self._left = event, payloads
                        break
                    verdict = self._send_action(event, destination)
                    overhead -= not isinstance(verdict, DomainError)
                    verdicts.append((event, verdict))
                elif type(event) is RegistrationRequested:
                    self._left = event, payloads
                    break
                else:
                    self._act((event,))
            if self._left is not None:
                overhead -= 1  # `_go_on` counts it
                break
        # `after_commit` covers the rows since the last `await`, so it comes before the next one.
        self._settle_when_durable(verdicts)
        if overhead:  # frames that no message came of
            self.pace.spend(overhead)

    # --- Registrations ---

    async def _register(self, request: RegistrationRequested) -> None:
        try:
            meter = self._rooms.limits.meters.of(
                Channel.WEBSOCKET, await self._rooms.accounts.tokens.caller(request.token)
            )
            if meter is not None:
                meter.count()
            device, reach = await self._authorize(request.sdid, request.token)
            if not self._registrations:  # of several devices, the connection counts for the first
                authenticated(reach.caller)
        except (DomainError, StoreError) as error:
            refusal = refusal_for(error)
            note_refusal(self._rooms.core.refusals, "websocket", refusal)
            self._rooms.messages.claims.note(request.sdid, "WebSocket", error)
            self._act(self._channel.registration_refused(request.sdid, refusal))
        else:
            link, is_entered = self._connect(device, reach, request.token), False
            try:
                await self._rooms.routing.connections.entered(link)
                is_entered = True
            except StoreError as error:
                self._act(self._channel.registration_refused(request.sdid, refusal_for(error)))
            finally:
                if not is_entered:
                    self._leave(request.sdid)
            if is_entered:
                self._registers_until = math.inf
                self._act(self._channel.registration_accepted(request.sdid, meter))
                if (document := self._rooms.wanted.document(device.key)) is not None:
                    self._tell_wanted(device, document)

    async def _authorize(self, sdid: str, token: str) -> tuple[Device, Reach]:
        """The device and the reach of the token. Raises DomainError, StoreError."""
        tokens = self._rooms.accounts.tokens
        caller = await tokens.caller(token)
        device = await self._rooms.devices.registry.find(sdid)
        await self._rooms.registration.admission.check_caller(caller, self._shown)
        reach = await self._rooms.accounts.permissions.reach(caller)
        await tokens.caller(token)  # it may have been revoked since
        if not _may_speak_for(reach, device):
            raise PermissionDenied(f"READ and WRITE on device {sdid}")
        if not device.enabled:
            raise SourceDeviceDisabled
        return device, reach

    def _connect(self, device: Device, reach: Reach, token: str) -> DeviceLink:
        connections, caller = self._rooms.routing.connections, reach.caller
        link = connections.connect(
            device,
            protocol="WEBSOCKET",
            token=caller.token,
            exclusive=caller.kind is TokenKind.DEVICE,
            deliver=self._deliver,
            close=partial(self._end_link, device.id),
            is_allowed=partial(_may_speak_for, reach, device),
            tell_wanted=partial(self._tell_wanted, device),
        )
        connections.enter(link)
        self._registrations[device.id] = _Registration(device, reach, token, link)
        return link

    def _leave(self, sdid: str) -> None:
        self._rooms.routing.connections.leave(self._registrations.pop(sdid).link)

    def _end_link(self, sdid: str, reason: CloseReason) -> None:
        """The broker ends a device's link. May be called at any time on the event loop."""
        match reason:
            case CloseReason.REPLACED:
                self._act(self._channel.taken_over(sdid))
            case CloseReason.TOKEN_REVOKED:
                self._act(self._channel.access_ended(sdid, TokenEnded()))
            case CloseReason.DEVICE_DISABLED | CloseReason.DEVICE_DELETED:
                self._act(self._channel.access_ended(sdid, SourceDeviceDisabled()))
            case CloseReason.PERMISSION_REMOVED:
                self._act(self._channel.access_ended(sdid, PermissionDenied(f"READ and WRITE on device {sdid}")))
            case CloseReason.NOT_STORED:
                self._act(self._channel.access_ended(sdid, StorageUnavailable(reason.value)))
            case CloseReason.SHUTDOWN:
                pass  # the connection itself closes when the daemon stops

    async def check(self) -> None:
        """Check expired tokens and lost permissions. Revoked tokens and disabled devices end links at once."""
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
            self._rooms.devices.presence.touch(registration.device.key)

    def heard_overhead(self, frames: int, pings: int) -> None:
        self._act(self._channel.receive_overhead(frames, pings, self.pace.floods))

    # --- Messages and Actions ---

    def _submit_all(self, offers: Sequence[MessageOffered], verdicts: Verdicts) -> int:
        """Submit messages, in their order; returns how many were accepted."""
        accepted, is_told = 0, self._channel.ack
        for sdid, some in groupby(offers, attrgetter("sdid")):
            device, of_device = self._registrations[sdid].device, list(some)
            payloads, stamps = [offer.data for offer in of_device], [offer.ts for offer in of_device]
            for index, tickets in self._ingest.submit_all(device, payloads, stamps, is_told=is_told):
                if tickets:
                    verdicts += zip(of_device[index:], tickets, strict=False)
                    accepted += len(tickets)
                else:
                    accepted += self._submit(device, of_device[index], verdicts)
        return accepted

    def _submit(self, device: Device, offer: MessageOffered, verdicts: Verdicts) -> bool:
        """Submit one message; returns whether it was accepted."""
        dropped: list[DroppedField] | None = [] if self._channel.ack else None
        try:
            verdicts.append((offer, self._ingest.submit(device, offer.data, offer.ts, dropped)))
        except DomainError as error:
            note_refusal(self._rooms.core.refusals, "websocket", error)
            verdicts.append((offer, error))
            return False
        if dropped:
            offer.warnings = tuple(dropped)
        return True

    async def _submit_action(self, offer: ActionOffered) -> Ticket | DomainError:
        """Send an Action whose destination is to be found first."""
        try:
            if offer.sdid not in self._registrations:
                raise DeviceNotRegistered
            destination = await self._find_destination(offer)
        except (DomainError, StoreError) as error:
            refusal = refusal_for(error)
            note_refusal(self._rooms.core.refusals, "websocket", refusal)
            return refusal
        return self._send_action(offer, destination)

    def _send_action(self, offer: ActionOffered, destination: Device) -> Ticket | DomainError:
        try:
            source = self._registrations.get(offer.sdid)
            if source is None:  # it has ended since
                raise DeviceNotRegistered
            if not source.reach.allows(destination, Permission.WRITE):
                raise PermissionDenied(f"WRITE on device {offer.ddid}")
            dropped: list[DroppedField] = []
            ticket = self._ingest.submit_action(source.device, destination, offer.data, offer.ts, dropped)
            offer.warnings = tuple(dropped)
            return ticket
        except DomainError as refusal:
            note_refusal(self._rooms.core.refusals, "websocket", refusal)
            return refusal

    async def _find_destination(self, offer: ActionOffered) -> Device:
        destination = await self._rooms.devices.registry.find(offer.ddid)
        if len(self._destinations) >= DESTINATIONS_REMEMBERED:
            self._destinations.clear()
        self._destinations[offer.sdid, offer.ddid] = destination
        return destination

    def _settle_when_durable(self, verdicts: Verdicts) -> None:
        if not verdicts or not self._channel.ack:
            return
        if any(type(verdict) is int for _, verdict in verdicts):
            self._ingest.after_commit(partial(self._settle, verdicts, self._ingest.group))
        else:
            self._settle(verdicts, self._ingest.group, None)

    def _settle(self, verdicts: Verdicts, group: Commit, error: StoreError | None) -> None:
        stored = [verdict for _, verdict in verdicts if isinstance(verdict, int)]
        results: Iterator[str | DomainError] = (
            repeat(refusal_for(error)) if error else iter(recent_mids(self._ingest).find(group.positions(stored)))
        )
        self._act(
            self._channel.settle(
                [(offer, next(results) if isinstance(verdict, int) else verdict) for offer, verdict in verdicts]
            )
        )

    def _deliver(self, action: Action) -> bool:
        return self.offer(encodings(self._ingest)[self.form].action(action))

    def _tell_wanted(self, device: Device, document: bytes) -> None:
        if self.offer(encode_frames((wanted_frame(device.id, document, self.form),))):
            self._rooms.wanted.given(device.key)

    # --- Events of the channel ---

    def _act(self, events: Iterable[ChannelEvent]) -> None:
        for event in events:
            match event:
                case ChannelAnswer(frames):
                    self.say(encode_frames(frames))
                case DeviceUnregistered(sdid):
                    self._leave(sdid)
                case ChannelClose(code, reason):
                    self.close(code, reason)
                case _:
                    raise AssertionError(f"{event} must be handled by the reading task")

    async def settle(self) -> None:
        """Wait until all submitted messages are durable or refused, and their answers are sent."""
        if self._channel.answers_waiting:
            with suppress(StorageUnavailable):
                await self._ingest.wait_committed()

    def leave(self) -> None:
        self._act(self._channel.disconnected())


def _may_speak_for(reach: Reach, device: Device) -> bool:
    return all(reach.allows(device, permission) for permission in READ_AND_WRITE)
