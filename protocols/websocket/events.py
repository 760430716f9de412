"""The event feed, /events (reference 19.4 and 20)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgpack
import msgspec

from broker.accounts.permissions import Permission, Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.errors import REQUIRED, PermissionDenied, Unauthorized, ValidationFailed, choice, invalid, too_long
from broker.operating.progress import Follower, Hint, Work
from broker.routing.events import EventNames, EventSubscriber, FeedEvent
from broker.routing.named_devices import NO_DEVICES, NamedDevices
from config.limits import EVENT_PATTERN_MAX_CHARACTERS
from protocols.rooms import WebSocketRooms
from protocols.websocket.feeds import acts_for, named_ids
from protocols.websocket.frames import FrameForm
from protocols.websocket.handshake import HandshakeRequest
from protocols.websocket.watcher import Watcher
from protocols.websocket.wire import encode_frame, encode_text_frame
from storage.keys import DeviceKey, UserKey

_to_json = msgspec.json.Encoder().encode
_to_message_pack = msgpack.Packer().pack


def _object(event: FeedEvent | Hint) -> dict[str, object]:
    return {"event": event.name, "ts": event.ts, "data": event.data}


def _json(event: FeedEvent | Hint) -> bytes:
    return encode_text_frame(_to_json(_object(event)))


def _message_pack(event: FeedEvent | Hint) -> bytes:
    return encode_frame(_to_message_pack(_object(event)))


_ENCODINGS: Final[dict[FrameForm, Callable[[FeedEvent | Hint], bytes]]] = {
    FrameForm.JSON: _json,
    FrameForm.MESSAGE_PACK: _message_pack,
}


class EventSelection(msgspec.Struct, frozen=True):
    """Selects the events that match all given filters and that the token may receive.

    Without `names` there are no events, only hints of the progress of long work: of these kinds, by this token.
    """

    reach: Reach
    names: EventNames | None
    devices: frozenset[DeviceKey] | None = None
    user: UserKey | None = None
    progress: frozenset[Work] = frozenset()
    named: NamedDevices = NO_DEVICES  # those of `devices`

    def concerns(self, event: FeedEvent) -> bool:
        if self.names is None or event.name not in self.names:
            return False
        caller, device = self.reach.caller, event.device
        if event.application not in {None, caller.application}:
            return False
        if device is None:
            return self.user in {None, event.user} and self.devices is None and self.reach.covers_user(event.user)
        if self.user not in {None, event.user} and self.user not in device.shared_with:
            return False
        if self.devices is not None and device.key not in self.devices:
            return False
        # Users with whom a device is shared get its online status, and no other event of it.
        if caller.kind is TokenKind.USER and caller.user != event.user and not event.is_status:
            return False
        return self.reach.allows(device, Permission.READ)


async def select_events(rooms: WebSocketRooms, request: HandshakeRequest) -> EventSelection:
    """Resolve the parameters of a request.

    Raises:
        Unauthorized: no token, or one that is not valid.
        DeviceNotFound, UserNotFound: something named does not exist.
        PermissionDenied: a device or a user named is not the caller's to read, or the progress is not for the caller.
        ValidationFailed: too many ids or patterns, an application that names neither a user nor a device, or progress
            of something unknown.
    """
    if not request.token:
        raise Unauthorized
    caller = await rooms.accounts.tokens.caller(request.token)
    devices = [await rooms.devices.registry.find(id_) for id_ in named_ids(request, "dids", "did")]
    uid = request.value("uid")
    user = None if uid is None else await rooms.accounts.users.find(uid, caller)
    reach = await rooms.accounts.permissions.reach(caller)

    for device in devices:
        if not reach.allows(device, Permission.READ):
            raise PermissionDenied(f"READ on device {device.id}")
    if user is not None and not await acts_for(rooms, reach, user.key):
        raise PermissionDenied(f"READ on user {user.id}")
    patterns = named_ids(request, "events", "event")
    progress = await _followed(rooms, caller, request)
    # A request for progress gets events only if it names them.
    has_events = bool(patterns) or not progress
    if has_events and caller.kind is TokenKind.APPLICATION and user is None and not devices:
        raise ValidationFailed.of("uid", REQUIRED)
    if any(len(pattern) > EVENT_PATTERN_MAX_CHARACTERS for pattern in patterns):
        raise ValidationFailed.of("events", too_long(EVENT_PATTERN_MAX_CHARACTERS))
    await rooms.accounts.tokens.caller(request.token)  # it may have been revoked since
    keys = frozenset(device.key for device in devices) or None
    names = EventNames(patterns) if has_events else None
    user_key = None if user is None else user.key
    named = NamedDevices(reach, devices) if devices else NO_DEVICES
    return EventSelection(reach, names, keys, user_key, progress, named)


async def _followed(rooms: WebSocketRooms, caller: Caller, request: HandshakeRequest) -> frozenset[Work]:
    """The kinds of long work that the request names. Raises ValidationFailed, PermissionDenied."""
    try:
        kinds = frozenset(map(Work, named_ids(request, "progress")))
    except ValueError as error:
        raise ValidationFailed.of("progress", invalid(choice(Work))) from error
    if kinds and caller.kind is TokenKind.DEVICE:
        raise PermissionDenied("progress with a device token")
    await rooms.operating.progress.require(caller, kinds)
    return kinds


class EventFeed(Watcher[EventSelection]):
    """One subscriber of the event feed."""

    __slots__ = ("_follower",)

    def begin(self) -> None:
        #: One for the whole connection: a hint on its way must not be lost when the selection is checked.
        self._follower = Follower(self._selection.progress, self._request.token or "", self._tell)
        super().begin()

    def _tell(self, hint: Hint) -> None:
        self.offer(_ENCODINGS[self.form](hint))

    @contextmanager
    def _subscribed(self) -> Iterator[None]:
        encode, offer = _ENCODINGS[self.form], self.offer
        chosen = self._selection
        subscriber = EventSubscriber(
            chosen.concerns, offer, encode, chosen.reach.caller.token, self._end_link, chosen.named
        )
        with self._rooms.routing.events.subscribe(subscriber):
            if not self._follower.kinds:
                yield
                return
            with self._rooms.operating.progress.follow(self._follower):
                yield

    async def _select(self) -> EventSelection:
        return await select_events(self._rooms, self._request)
