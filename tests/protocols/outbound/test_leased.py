"""Each way out of the machine waits while another node may be sending."""

from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.leases import Deadline, Lease, LeaseName
from broker.connectors.plugin import Request
from broker.mail.transport import OutgoingMail
from broker.rules.sending.requests import HttpContent
from broker.subscriptions.port import Callback, CallbackNotification, StreamTarget
from protocols.outbound.leased import (
    LeasedCallbacks,
    LeasedMails,
    LeasedRuleRequests,
    LeasedStreams,
    LeasedThirdParty,
)
from tests.rows import each_row


class Until(Deadline):
    """A deadline that the test moves."""

    def __init__(self) -> None:
        self.ahead = trio.Event()

    def is_ahead(self) -> bool:
        return self.ahead.is_set()

    async def wait_ahead(self) -> None:
        await self.ahead.wait()


class AnyPort:
    """Stands for each of the ports: notes what leaves."""

    done = "sent"

    def __init__(self) -> None:
        self.left: list[object] = []

    async def _leave(self, what: object, *_: object, **__: object) -> Any:
        await trio.lowlevel.checkpoint()
        self.left.append(what)

    deliver = notify = shake_hands = put = send = _leave


MAIL = OutgoingMail("m", 0, "a@example.org", "b@example.org", EmailMessage())
CALLBACK, NOTE = Callback("https://x.example", "app", ""), CallbackNotification("n", 0, "message", "s", {}, 0, 0, None)
TARGET = StreamTarget("s", "eu", "k", "")


def handshake(port: Any, lease: Lease) -> Awaitable[object]:
    return LeasedCallbacks(port, lease).shake_hands("u", application_id="a", subscription_id="s", nonce="n")


@each_row(
    ("send", "what"),
    [
        (lambda port, lease: LeasedMails(port, lease).deliver(MAIL), MAIL),
        (lambda port, lease: LeasedCallbacks(port, lease).notify(CALLBACK, NOTE), CALLBACK),
        (handshake, "u"),
        (lambda port, lease: LeasedStreams(port, lease).put(TARGET, []), TARGET),
        (lambda port, lease: LeasedRuleRequests(port, lease).send(HttpContent("GET", "u")), HttpContent("GET", "u")),
        (lambda port, lease: LeasedThirdParty(port, lease).send(Request("GET", "u")), Request("GET", "u")),
    ],
)
async def test_nothing_leaves_while_another_node_may_be_sending(
    send: Callable[[AnyPort, Lease], Awaitable[object]], what: object
) -> None:
    port, until = AnyPort(), Until()
    lease = Lease(LeaseName.MAILS, until)

    async def go() -> None:
        await send(port, lease)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go)
        await wait_all_tasks_blocked()
        assert port.left == []
        until.ahead.set()
    assert port.left == [what]
