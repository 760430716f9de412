"""A device in a test's hand: it speaks to an endpoint without a network."""

import json
from collections.abc import Sequence
from itertools import count

from broker.facts import TokenRevoked
from broker.secrets import token_hash
from broker.services import Services
from protocols.coap.endpoint import Endpoint
from protocols.coap.messages import ACK, CON, RST, Code, Message, Option, decode, empty, encode, uint
from protocols.coap.session import Session
from storage.records import DeviceTokenRecord
from tests.factories import KITCHEN, KITCHEN_TOKEN, World, new_device

Options = Sequence[tuple[int, bytes]]


class Peer:
    """Sends messages as they are told, and keeps what comes back."""

    def __init__(self, endpoint: Endpoint, address: object = ("192.0.2.1", 40000)) -> None:
        self._endpoint = endpoint
        self._address = address
        self._ids = count(1)
        self.inbox: list[Message] = []

    def send(self, datagram: bytes) -> None:
        self._endpoint.receive_from(self._address, datagram, lambda _address, sent: self.inbox.append(decode(sent)))
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
        self.send(encode(Message(type_, code, message_id, token, ordered, payload)))

    def post(self, token: str, body: object, options: Options = (), *, type_: int = CON) -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.request(Code.POST, f"v1.1/messages/{token}", payload, options, type_=type_)

    def observe(self, token: str, value: int = 0, options: Options = (), *, request_token: bytes = b"ob") -> None:
        path = f"v1.1/actions/{token}"
        self.request(Code.GET, path, b"", [(Option.OBSERVE, uint(value)), *options], token=request_token)

    def take(self) -> Message:
        """The only message that came."""
        (message,) = self.inbox
        self.inbox.clear()
        return message

    def acknowledge(self, message: Message) -> None:
        self.send(empty(ACK, message.message_id))

    def reset(self, message: Message) -> None:
        self.send(empty(RST, message.message_id))

    def session(self) -> Session:
        session = self._endpoint.find(self._address)
        assert session is not None
        return session


def option(message: Message, number: int) -> bytes | None:
    for found, value in message.options:
        if found == number:
            return value
    return None


def error(message: Message) -> tuple[str, str]:
    """`("4.04", "Not Found")`."""
    body = json.loads(message.payload)["error"]
    code = f"{message.code >> 5}.{message.code & 31:02}"
    assert body["code"] == (message.code >> 5) * 100 + (message.code & 31)
    return code, body["message"]


async def disable_kitchen(services: Services, world: World) -> None:
    """As its owner would."""
    await services.core.database.write(
        lambda tx: tx.devices.put_device(
            new_device(
                KITCHEN,
                owner=world.ada,
                device_type=world.light_type,
                name="Kitchen light",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=False,
                now_ms=1,
            )
        )
    )
    await services.devices.registry.reload()


async def revoke_kitchen_token(services: Services, world: World) -> None:
    """By a new one."""
    fresh = "99" * 16
    record = DeviceTokenRecord(world.kitchen, token_hash(fresh), services.core.vault.seal(fresh), world.application, 1)
    await services.core.database.write(lambda tx: tx.devices.put_token(record))
    services.core.router.publish(TokenRevoked(token_hash(KITCHEN_TOKEN)))
