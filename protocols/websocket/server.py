"""The WebSocket server: from the head of a handshake to the conversation of its path. A request for Server-Sent Events
goes on in event_stream.py.

connection.py has what all open connections have in common, device_conversation.py the device channel, and feeds.py and
events.py the feeds.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from broker.errors import BadRequest, DomainError, NotFound
from broker.limits.meters import Channel
from broker.registration.certificates import ClientCertificate
from protocols.refusals import refusal_for
from protocols.rooms import WebSocketRooms
from protocols.streams.hub import Hub
from protocols.streams.peers import authenticated
from protocols.streams.tls import peer_certificate
from protocols.websocket.connection import WebSocket
from protocols.websocket.device_channel import DeviceChannel
from protocols.websocket.device_conversation import DeviceConversation
from protocols.websocket.event_stream import serve_event_stream
from protocols.websocket.events import EventFeed, select_events
from protocols.websocket.feeds import LiveFeed, select_live
from protocols.websocket.handshake import Handshake, HandshakeRequest, is_upgrade
from protocols.websocket.tunnel import Tunnel
from storage.sql import StoreError

_LIVE: Final = "/v1.1/live"
_FEEDS: Final = frozenset({_LIVE, "/v1.1/events"})
#: The names of MQTT as a subprotocol; the first is that of 3.1.1 and 5.0 [MQTT-6.0.0-3], the second that of 3.1.
_MQTT_SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")

#: Serves a protocol on the stream inside a WebSocket.
Carried = Callable[[trio.abc.Stream], Awaitable[None]]


async def serve_websocket_connection(
    rooms: WebSocketRooms,
    head: bytes,
    early: bytes,
    stream: trio.abc.Stream,
    *,
    hub: Hub,
    mqtt: Carried | None = None,
) -> None:
    """Serve one connection to its end.

    Args:
        rooms: the broker.
        head: the whole head of the client's handshake, or of its request for events.
        early: what the client has sent behind the head.
        stream: the rest of the connection.
        hub: what the connections share.
        mqtt: serves MQTT at its path.
    """
    if not is_upgrade(head):
        await serve_event_stream(rooms, head, early, stream, hub=hub)
        return
    connection = await _shake_hands(rooms, head, early, stream, carries_mqtt=mqtt is not None, hub=hub)
    if isinstance(connection, WebSocket):
        await connection.run(early)
    elif connection is not None and mqtt is not None:
        await mqtt(connection)


async def _shake_hands(
    rooms: WebSocketRooms,
    head: bytes,
    early: bytes,
    stream: trio.abc.Stream,
    *,
    carries_mqtt: bool,
    hub: Hub,
) -> WebSocket | Tunnel | None:
    handshake = Handshake(head, stream, rooms.core.refusals)
    try:
        request = await handshake.receive()
        if request is None:
            return None
        try:
            shown = peer_certificate(stream)
            if carries_mqtt and request.path == "/mqtt":  # who asks is known with the packet CONNECT
                await handshake.accept(_mqtt_subprotocol(request))
                return Tunnel(stream, early, rooms.limits.overhead.pace(), shown)
            conversation = await _admit(rooms, request, shown)
            if request.token:
                caller = await rooms.accounts.tokens.caller(request.token)
                await rooms.registration.admission.check_caller(caller, shown)
                authenticated(caller, is_feed=request.path in _FEEDS)
                if request.path == _LIVE and request.goes_on:
                    rooms.log_feeds.check_room(caller)
                    caller.act()
        except (DomainError, StoreError) as error:
            await handshake.refuse(refusal_for(error))
            return None
        connection = conversation(stream, hub)
        # Nothing is awaited from here to the subscription of a feed: a client that has the answer misses nothing.
        connection.say(handshake.acceptance())
        return connection
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return None


def _mqtt_subprotocol(request: HandshakeRequest) -> str:
    """The one to serve. Raises BadRequest when none is offered [MQTT-6.0.0-3]."""
    for name in _MQTT_SUBPROTOCOLS:
        if name in request.subprotocols:
            return name
    raise BadRequest


async def _admit(
    rooms: WebSocketRooms, request: HandshakeRequest, shown: ClientCertificate | None
) -> Callable[[trio.abc.Stream, Hub], WebSocket]:
    """The conversation of a path.

    Raises:
        DomainError: the path is unknown, or the caller may not use it.
        StoreError: the store failed.
    """
    match request.path:
        case "/v1.1/websocket":
            meter = None
            if request.token is not None:
                caller = await rooms.accounts.tokens.caller(request.token)
                await rooms.registration.admission.check_caller(caller, shown)  # before the limit: reference 3.2
                meter = rooms.limits.meters.of(Channel.WEBSOCKET, caller)
            if meter is not None:  # reference 19.1: a used-up limit fails the handshake
                meter.check()
            channel = DeviceChannel(ack=request.flag("ack"), handshake_token=request.token, handshake_meter=meter)
            return partial(DeviceConversation, rooms, channel, shown)
        case "/v1.1/live":
            selection, begin = await select_live(rooms, request), None
            if request.goes_on:
                begin = await rooms.log_feeds.begin(request.value("after"), request.value("since"))
            return partial(LiveFeed, rooms, request, selection, begin)
        case "/v1.1/events":
            return partial(EventFeed, rooms, request, await select_events(rooms, request))
        case _:
            raise NotFound
