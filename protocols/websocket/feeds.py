"""The live feed, /live: every message of the selected devices, as soon as it is stored (reference 19.2 and 19.6)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Final

import msgpack
import msgspec
import trio

from broker.accounts.permissions import Permission, Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import PermissionDenied, Unauthorized, ValidationFailed, too_long
from broker.messages.ingest import Ingest
from broker.messages.log_feeds import Begin, Gap, LogFeed, LogFeedForm
from broker.routing.feeds import FeedEncoding, Subscriber
from broker.routing.named_devices import NO_DEVICES, NamedDevices
from config.limits import IDS_MAX
from protocols.rendering import action_frame, action_object, message_object, message_text
from protocols.rooms import WebSocketRooms
from protocols.streams.hub import Hub
from protocols.websocket.frames import FrameForm
from protocols.websocket.handshake import HandshakeRequest
from protocols.websocket.watcher import Watcher
from protocols.websocket.wire import encode_frame, encode_frames, encode_text_frame
from storage.keys import DeviceKey, DeviceTypeKey, Position, UserKey
from storage.records import MessageRow

_to_message_pack = msgpack.Packer().pack
_to_json = msgspec.json.Encoder().encode
_MIDS_KEPT: Final = 4096  # of 0.1 KiB each; a commit of a busy daemon has some hundreds of messages


class RecentMids:
    """The mids of the messages that were just stored: subscribers get them, and then the senders."""

    __slots__ = ("_known", "_mid")

    def __init__(self, mid: Callable[[Position], str]) -> None:
        self._mid = mid
        self._known: dict[Position, str] = {}

    def of(self, positions: Sequence[Position]) -> list[str]:
        """The mids, which are kept for the next caller."""
        mids = self.find(positions)
        if len(self._known) + len(mids) > _MIDS_KEPT:
            self._known.clear()
        self._known.update(zip(positions[-_MIDS_KEPT:], mids[-_MIDS_KEPT:], strict=True))
        return mids

    def find(self, positions: Sequence[Position]) -> list[str]:
        """The mids, computed unless they were kept."""
        mid, known = self._mid, self._known.get
        return (
            [known(position) or mid(position) for position in positions] if self._known else list(map(mid, positions))
        )


@lru_cache(maxsize=1)
def recent_mids(ingest: Ingest) -> RecentMids:
    """The recent mids of all connections."""
    return RecentMids(ingest.mid)


@lru_cache(maxsize=1)
def encodings(ingest: Ingest) -> Mapping[FrameForm, FeedEncoding]:
    """The encodings of messages and Actions, one object for each form, so that subscribers share frames."""
    mids = recent_mids(ingest)

    def named(pairs: Sequence[tuple[MessageRow, Device]]) -> Iterator[tuple[tuple[MessageRow, Device], str]]:
        return zip(pairs, mids.of([row.position for row, _ in pairs]), strict=True)

    def json_messages(pairs: Sequence[tuple[MessageRow, Device]]) -> bytes:
        return encode_frames([message_text(row, device, mid) for (row, device), mid in named(pairs)])

    def json_action(action: Action) -> bytes:
        return encode_text_frame(action_frame(action))

    def packed_messages(pairs: Sequence[tuple[MessageRow, Device]]) -> bytes:
        return encode_frames(_to_message_pack(message_object(row, device, mid)) for (row, device), mid in named(pairs))

    def packed_action(action: Action) -> bytes:
        return encode_frame(_to_message_pack(action_object(action)))

    return {
        FrameForm.JSON: FeedEncoding(json_messages, json_action),
        FrameForm.MESSAGE_PACK: FeedEncoding(packed_messages, packed_action),
    }


class LiveSelection(msgspec.Struct, frozen=True):
    """Selects the devices that match all given filters and that the token may read."""

    reach: Reach
    devices: frozenset[DeviceKey] | None = None
    types: frozenset[DeviceTypeKey] | None = None
    owner: UserKey | None = None
    with_shared: bool = False  # also devices that are shared with `owner`
    named: NamedDevices = NO_DEVICES  # those of `devices`

    def watches(self, device: Device) -> bool:
        return (
            (self.devices is None or device.key in self.devices)
            and (self.types is None or device.type_key in self.types)
            and (self.owner is None or device.owner == self.owner or self._is_shared(device))
            and self.reach.allows(device, Permission.READ)
        )

    def _is_shared(self, device: Device) -> bool:
        return self.with_shared and self.owner in device.shared_with


async def select_live(rooms: WebSocketRooms, request: HandshakeRequest) -> LiveSelection:
    """Resolve the parameters of a request.

    Raises:
        Unauthorized: no token, or one that is not valid.
        DeviceNotFound, DeviceTypeNotFound, UserNotFound: something named does not exist.
        PermissionDenied: a device or a user named is not the caller's to read, or a device token asks by type.
        ValidationFailed: too many ids.
    """
    if not request.token:
        raise Unauthorized
    caller = await rooms.accounts.tokens.caller(request.token)
    devices = [await rooms.devices.registry.find(id_) for id_ in named_ids(request, "sdids", "sdid")]
    types = [await rooms.device_types.catalog.find(id_) for id_ in named_ids(request, "sdtids")]
    uid = request.value("uid")
    user = None if uid is None else await rooms.accounts.users.find(uid, caller)
    reach = await rooms.accounts.permissions.reach(caller)

    for device in devices:
        if not reach.allows(device, Permission.READ):
            raise PermissionDenied(f"READ on device {device.id}")
    if types and caller.kind is TokenKind.DEVICE:
        raise PermissionDenied("messages by device type with a device token")
    owner = None if devices else caller.user
    if user is not None:
        owner = user.key
    if user is not None and not await acts_for(rooms, reach, user.key):
        raise PermissionDenied(f"READ on user {user.id}")
    await rooms.routing.feeds.ready()
    await rooms.accounts.tokens.caller(request.token)  # it may have been revoked since
    return LiveSelection(
        reach,
        frozenset(device.key for device in devices) or None,
        frozenset(type_.key for type_ in types) or None,
        owner,
        with_shared=request.flag("includeSharedDevices"),
        named=NamedDevices(reach, devices) if devices else NO_DEVICES,
    )


def named_ids(request: HandshakeRequest, *names: str) -> tuple[str, ...]:
    """The ids in these parameters, each once. Raises ValidationFailed when there are too many."""
    ids = tuple(dict.fromkeys(id_ for name in names for id_ in request.ids(name)))
    if len(ids) > IDS_MAX:
        raise ValidationFailed.of(names[0], too_long(IDS_MAX))
    return ids


async def acts_for(rooms: WebSocketRooms, reach: Reach, user: UserKey) -> bool:
    """Whether the caller may select by `user`. A device token may name its owner, which changes nothing."""
    caller = reach.caller
    if caller.kind is TokenKind.DEVICE and caller.device is not None:
        return (await rooms.devices.registry.get(caller.device)).owner == user
    return reach.covers_user(user)


@lru_cache(maxsize=1)
def log_feed_forms(ingest: Ingest) -> Mapping[FrameForm, LogFeedForm]:
    """The forms of feeds that go on from a position (reference 19.6)."""
    mid = ingest.mid

    def made(form: FrameForm, members: dict[str, str]) -> bytes:
        if form is FrameForm.JSON:
            return encode_text_frame(_to_json(members))
        return encode_frame(_to_message_pack(members))

    def gap(form: FrameForm, told: Gap) -> bytes:
        return made(form, {"type": "gap", **gap_members(told, mid)})

    def position(form: FrameForm, upto: Position) -> bytes:
        return made(form, {"type": "position", "mid": mid(upto)})

    known = encodings(ingest)
    return {form: LogFeedForm(known[form], partial(gap, form), partial(position, form)) for form in FrameForm}


def gap_members(gap: Gap, mid: Callable[[Position], str]) -> dict[str, str]:
    """The members of a gap that clients are told."""
    return {"from": mid(gap.behind), "to": mid(gap.upto), "reason": "retention"}


class LiveFeed(Watcher[LiveSelection]):
    """One subscriber of the live feed."""

    __slots__ = ("_begin_at", "_log_feed")

    def __init__(
        self,
        rooms: WebSocketRooms,
        request: HandshakeRequest,
        selection: LiveSelection,
        begin_at: Begin | None,
        stream: trio.abc.Stream,
        hub: Hub,
    ) -> None:
        """`begin_at`: where it begins in the log; None: with what comes."""
        super().__init__(rooms, request, selection, stream, hub)
        self._begin_at = begin_at
        self._log_feed: LogFeed | None = None

    def begin(self) -> None:
        if self._begin_at is None:
            super().begin()
            return
        forms = log_feed_forms(self._rooms.messages.ingest)
        self._log_feed = LogFeed(
            self._rooms.log_feeds, self._begin_at, self._selection, forms[self.form], self, self._end_link
        )
        self._log_feed.open(self.hub.connections)

    def _subscribe(self) -> None:
        if self._log_feed is None:
            super()._subscribe()
        else:
            self._log_feed.select(self._selection, log_feed_forms(self._rooms.messages.ingest)[self.form])

    async def check(self) -> None:
        await super().check()
        if self._log_feed is not None:
            self._log_feed.tell_position()

    def leave(self) -> None:
        if self._log_feed is not None:
            self._log_feed.end()
        super().leave()

    def _subscribed(self) -> AbstractContextManager[None]:
        return self._rooms.routing.feeds.subscribe(
            Subscriber(
                self._selection.watches,
                self._offer_frames,
                encodings(self._rooms.messages.ingest)[self.form],
                self._selection.reach.caller.token,
                self._end_link,
                self._selection.named,
                self._served,
            )
        )

    def _served(self) -> Caller:
        return self._selection.reach.caller

    def _offer_frames(self, frames: bytes, count: int, _first: Position, _last: Position) -> None:
        self.offer(frames, count)

    async def _select(self) -> LiveSelection:
        return await select_live(self._rooms, self._request)
