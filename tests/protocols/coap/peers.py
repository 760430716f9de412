"""A client of an endpoint, without a network."""

import json
from collections.abc import Sequence
from itertools import count

from trio.testing import wait_all_tasks_blocked

from broker.devices.inventory import DeviceChanges
from broker.services import Services
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import (
    ACK,
    CON,
    RST,
    CoapMessage,
    Code,
    Option,
    decode_message,
    empty,
    encode_options,
    frame,
    uint,
)
from protocols.coap.session import CoapSession
from storage.keys import DeviceKey
from tests.factories import KITCHEN_TOKEN, World

Options = Sequence[tuple[int, bytes]]


class Peer:
    """Sends messages to an endpoint and keeps the answers in `inbox`."""

    def __init__(self, endpoint: CoapEndpoint, address: object = ("192.0.2.1", 40000)) -> None:
        self._endpoint = endpoint
        self._address = address
        self._ids = count(1)
        self.inbox: list[CoapMessage] = []

    def send(self, datagram: bytes) -> None:
        self._endpoint.receive_from(
            lambda _address, sent: self.inbox.append(decode_message(sent)), self._address, datagram
        )
        self._endpoint.submitted()

    def request(
        self,
        code: Code,
        path: str,
        payload: bytes = b"",
        options: Options = (),
        *,
        type_: int = CON,
        token: bytes = b"tk",
        message_id: int | None = None,
    ) -> None:
        segments = [(int(Option.URI_PATH), one.encode()) for one in path.strip("/").split("/")]
        ordered = tuple(sorted([*segments, *options], key=lambda one: one[0]))
        message_id = next(self._ids) if message_id is None else message_id
        self.send(encode_message(CoapMessage(type_, code, message_id, token, ordered, payload)))

    def post(self, token: str, body: object, options: Options = (), *, type_: int = CON) -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.request(Code.POST, f"v1.1/messages/{token}", payload, options, type_=type_)

    def observe(self, token: str, value: int = 0, options: Options = (), *, request_token: bytes = b"ob") -> None:
        path = f"v1.1/actions/{token}"
        self.request(Code.GET, path, b"", [(Option.OBSERVE, uint(value)), *options], token=request_token)

    def take(self) -> CoapMessage:
        """The message that came. Fails unless exactly one came."""
        (message,) = self.inbox
        self.inbox.clear()
        return message

    def acknowledge(self, message: CoapMessage) -> None:
        self.send(empty(ACK, message.message_id))

    def reset(self, message: CoapMessage) -> None:
        self.send(empty(RST, message.message_id))

    def session(self) -> CoapSession:
        session = self._endpoint.find(self._address)
        assert session is not None
        return session


def encode_message(message: CoapMessage) -> bytes:
    """A message as a datagram."""
    options = encode_options(message.options)
    return frame(message.type, message.code, message.message_id, message.token, options, message.payload)


def option(message: CoapMessage, number: int) -> bytes | None:
    for found, value in message.options:
        if found == number:
            return value
    return None


def error(message: CoapMessage) -> tuple[str, str]:
    """`("4.04", "Not Found")`."""
    body = json.loads(message.payload)["error"]
    code = f"{message.code >> 5}.{message.code & 31:02}"
    assert body["code"] == (message.code >> 5) * 100 + (message.code & 31)
    return code, body["message"]


async def disable_kitchen(services: Services, world: World) -> None:
    """Disable the kitchen light."""
    light = await services.devices.registry.get(world.kitchen)
    await services.devices.inventory.change(light, DeviceChanges(enabled=False))


async def revoke_kitchen_token(services: Services, world: World) -> None:
    """Revoke the token of the kitchen light, by a new one."""
    light = await services.devices.registry.get(world.kitchen)
    await services.devices.tokens.renew(light, application=world.application)


ACTION = {"actions": [{"name": "setOn"}]}


async def send_action(services: Services, device: DeviceKey, data: object = ACTION) -> None:
    """Send an Action to a device, and wait until it is stored."""
    light = await services.devices.registry.get(device)
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    services.messages.ingest.submit_action(light, light, text)
    await services.messages.ingest.wait_committed()


async def observing(peer: Peer, token: str = KITCHEN_TOKEN, *options: tuple[int, bytes]) -> CoapMessage:
    """Register an observation. Returns the response."""
    peer.observe(token, 0, options)
    await wait_all_tasks_blocked()
    return peer.take()


def observe_number(message: CoapMessage) -> int:
    """The value of the option Observe."""
    value = option(message, Option.OBSERVE)
    assert value is not None
    return int.from_bytes(value, "big")
