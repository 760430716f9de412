"""Callbacks and streams that a test holds in its own hands, and subscriptions to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from broker.accounts.tokens import Caller
from broker.alarm_views import AlarmView
from broker.services import Services
from broker.subscriptions.creation import NewSubscription
from broker.subscriptions.port import AttemptOutcome, Callback, CallbackNotification, Entry, StreamTarget
from broker.subscriptions.subscription import Subscription
from tests.factories import ADA, ADA_TOKEN, DASHBOARD, KITCHEN

URL = "https://app.example.org/trunkline"
OK = AttemptOutcome(http_status=200)
WAITING_SECONDS = 20


@dataclass
class Received:
    """One request of a callback."""

    url: str
    notification: CallbackNotification
    callback: Callback

    @property
    def positions(self) -> list[int]:
        return [one.position for one in self.notification.entries or () if not isinstance(one, AlarmView)]


@dataclass
class FakeCallbacks:
    """Records what callbacks get. `answer` decides the outcome; it may also wait first, as long as `gate` is closed."""

    answer: Callable[[Received], AttemptOutcome] = lambda _received: OK
    received: list[Received] = field(default_factory=list)
    handshakes: list[tuple[str, str, str, str]] = field(default_factory=list)
    handshake_outcome: AttemptOutcome = OK
    refused: str | None = None
    checked: list[str] = field(default_factory=list)
    gates: dict[str, trio.Event] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)

    async def check(self, url: str) -> str | None:
        self.checked.append(url)
        return self.refused

    async def notify(self, callback: Callback, notification: CallbackNotification) -> AttemptOutcome:
        received = Received(callback.url, notification, callback)
        self.received.append(received)
        self._change()
        if (gate := self.gates.get(callback.url)) is not None:
            await gate.wait()
        await trio.lowlevel.checkpoint()
        return self.answer(received)

    async def shake_hands(self, url: str, *, application_id: str, subscription_id: str, nonce: str) -> AttemptOutcome:
        self.handshakes.append((url, application_id, subscription_id, nonce))
        self._change()
        await trio.lowlevel.checkpoint()
        return self.handshake_outcome

    async def keep_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Return when it holds; it is asked after each request."""
        with trio.fail_after(WAITING_SECONDS):
            while not holds():
                await self._changed.wait()

    async def wait_received(self, count: int) -> None:
        await self.wait(lambda: len(self.received) >= count)


@dataclass
class FakeStreams:
    """Records what streams get; `fail` may raise instead."""

    written: list[Entry] = field(default_factory=list)
    calls: list[tuple[StreamTarget, int]] = field(default_factory=list)
    fail: Callable[[Sequence[Entry]], None] = lambda _entries: None

    async def put(self, target: StreamTarget, entries: Sequence[Entry]) -> None:
        self.calls.append((target, len(entries)))
        await trio.lowlevel.checkpoint()
        self.fail(entries)
        self.written += entries


async def ada_of(services: Services, token: str = ADA_TOKEN) -> Caller:
    return await services.accounts.tokens.caller(token)


async def subscribed(services: Services, *, url: str = URL, **wanted: object) -> Subscription:
    """Ada's active subscription to a callback; without more, to the messages of all her devices."""
    members = {"spelling": "httpCallback", "message_type": "message", "uid": ADA, "callback_url": url} | wanted
    created = await services.subscriptions.subscriptions.create(await ada_of(services), NewSubscription(**members))  # type: ignore[arg-type]
    if created.is_stream:
        return created
    assert created.record.nonce is not None
    nonce = services.core.vault.open(created.record.nonce)
    return await services.subscriptions.subscriptions.validate(created.id, DASHBOARD, nonce)


async def streaming(services: Services) -> Subscription:
    """Ada's subscription to a stream, of all her devices."""
    stream = {"stream_key": "k", "stream_secret": "secret", "stream_region": "eu-west-1", "stream_name": "lights"}
    members: dict[str, object] = {"spelling": "cloudStream", "callback_url": None, **stream}
    return await subscribed(services, **members)  # type: ignore[arg-type]


async def settled(services: Services, holds: Callable[[], bool]) -> None:
    """Return when it holds, whatever the workers have to do for that."""
    with trio.fail_after(WAITING_SECONDS):
        while not holds():  # noqa: ASYNC110 - what it waits for is spread over the workers
            await trio.sleep(0.002)


async def outcomes_stored(services: Services) -> None:
    """Return when the store has the outcomes of all attempts that have ended."""
    await services.subscriptions.sender.flush()
    await services.core.database.write(lambda _tx: None)  # what another task writes of them is committed before


async def sent(services: Services, count: int = 1, device: str = KITCHEN) -> list[int]:
    """The positions of new messages of a device."""
    found = await services.devices.registry.find(device)
    positions: list[int] = [
        services.messages.ingest.submit(found, b'{"intensity":%d}' % number) for number in range(count)
    ]
    await services.messages.ingest.wait_committed()
    return positions
