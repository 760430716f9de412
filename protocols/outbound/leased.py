"""The ways out of the machine, for a daemon that may be replaced: nothing is sent while another node may be sending.

A send cannot be taken back, so each send asks the lease of its worker first. A daemon that was paused waits here
until it has renewed the lease, or ends because another one has it. A send that was under way may come twice.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import trio

from broker.alarms.ways import AlarmNotice, AlarmWays, Ntfy
from broker.cluster.leases import Lease
from broker.connectors.plugin import Request, Response
from broker.connectors.port import ThirdParty
from broker.forwarding.port import Broker, BrokerMessage, Command, UpstreamAnswer, Upstreams
from broker.mail import MailTransport
from broker.mail.transport import OutgoingMail
from broker.rules.sending.requests import HttpContent, RuleRequests
from broker.subscriptions.port import (
    AttemptOutcome,
    Callback,
    CallbackNotification,
    Callbacks,
    Entry,
    Streams,
    StreamTarget,
)
from config.settings import Forward


class LeasedMails:
    def __init__(self, port: MailTransport, lease: Lease) -> None:
        self.port = port
        self.lease = lease
        self.done = port.done

    async def deliver(self, mail: OutgoingMail) -> None:
        await self.lease.wait_may_act()
        await self.port.deliver(mail)

    async def forget(self, address: str, name: str) -> None:
        await self.port.forget(address, name)


class LeasedCallbacks(msgspec.Struct, frozen=True):
    port: Callbacks
    lease: Lease

    async def check(self, url: str) -> str | None:
        return await self.port.check(url)

    async def notify(self, callback: Callback, notification: CallbackNotification) -> AttemptOutcome:
        await self.lease.wait_may_act()
        return await self.port.notify(callback, notification)

    async def shake_hands(self, url: str, *, application_id: str, subscription_id: str, nonce: str) -> AttemptOutcome:
        await self.lease.wait_may_act()
        return await self.port.shake_hands(
            url, application_id=application_id, subscription_id=subscription_id, nonce=nonce
        )

    async def keep_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.port.keep_forever(task_status=task_status)


class LeasedStreams(msgspec.Struct, frozen=True):
    port: Streams
    lease: Lease

    async def put(self, target: StreamTarget, entries: Sequence[Entry]) -> None:
        await self.lease.wait_may_act()
        await self.port.put(target, entries)


class LeasedRuleRequests(msgspec.Struct, frozen=True):
    port: RuleRequests
    lease: Lease

    async def send(self, request: HttpContent) -> int:
        await self.lease.wait_may_act()
        return await self.port.send(request)


class LeasedThirdParty(msgspec.Struct, frozen=True):
    port: ThirdParty
    lease: Lease

    async def send(self, request: Request) -> Response:
        await self.lease.wait_may_act()
        return await self.port.send(request)


class LeasedAlarmWays(msgspec.Struct, frozen=True):
    port: AlarmWays
    lease: Lease

    @property
    def has_apprise(self) -> bool:
        return self.port.has_apprise

    async def ntfy(self, way: Ntfy, notice: AlarmNotice) -> None:
        await self.lease.wait_may_act()
        await self.port.ntfy(way, notice)

    async def apprise(self, urls: tuple[str, ...], notice: AlarmNotice) -> None:
        await self.lease.wait_may_act()
        await self.port.apprise(urls, notice)


class LeasedUpstreams(msgspec.Struct, frozen=True):
    port: Upstreams
    lease: Lease

    async def post(self, entry: Forward, path: str, body: bytes, *, seconds: float) -> UpstreamAnswer:
        await self.lease.wait_may_act()
        return await self.port.post(entry, path, body, seconds=seconds)

    def broker(
        self, entry: Forward, client_id: str, commands: str, command: Command
    ) -> AbstractAsyncContextManager[Broker]:
        return self._leased(entry, client_id, commands, command)

    @asynccontextmanager
    async def _leased(self, entry: Forward, client_id: str, commands: str, command: Command) -> AsyncIterator[Broker]:
        await self.lease.wait_may_act()
        async with self.port.broker(entry, client_id, commands, command) as broker:
            yield _LeasedBroker(broker, self.lease)

    async def close_idle(self) -> None:
        await self.port.close_idle()


class _LeasedBroker(msgspec.Struct, frozen=True):
    port: Broker
    lease: Lease

    async def publish(self, messages: Sequence[BrokerMessage]) -> None:
        await self.lease.wait_may_act()
        await self.port.publish(messages)
