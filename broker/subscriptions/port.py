"""The ways out to callbacks and cloud streams. protocols/outbound/ implements them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import trio

from broker.alarm_views import AlarmView
from broker.envelope import Action, Message

Entry = Message | Action
Shown = Entry | AlarmView


@dataclass(frozen=True, slots=True)
class Callback:
    """An address, and the secrets that sign its notifications (reference 11.4).

    `webhook_secrets` are those of the Standard Webhooks headers, the newest first; there are two while one replaces the
    other, and none if the subscription has none.
    """

    url: str
    application_id: str
    client_secret: str = field(repr=False)
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)


class CallbackNotification(msgspec.Struct, frozen=True):
    """Body of a callback (reference 11.3). `entries` None: without the messages."""

    id: str
    ts: int
    type: str  # message | action | alarm
    subscription_id: str
    query: Mapping[str, str]
    start_date: int
    end_date: int
    entries: Sequence[Shown] | None


class AttemptOutcome(msgspec.Struct, frozen=True):
    """Outcome of one attempt: the status of an answer, or an error. `excerpt` is the beginning of a refusal."""

    http_status: int | None = None
    error: str | None = None
    excerpt: str | None = None

    @property
    def is_delivered(self) -> bool:
        return self.http_status is not None and 200 <= self.http_status < 300

    @property
    def text(self) -> str:
        """Why it was not delivered, in one line."""
        return self.error if self.error is not None else f"HTTP status {self.http_status}"


class Callbacks(Protocol):
    async def check(self, url: str) -> str | None:
        """Why no callback may go to this address; None if one may."""

    async def notify(self, callback: Callback, notification: CallbackNotification) -> AttemptOutcome:
        """POST a signed notification. Returns after 15 s at the latest."""

    async def shake_hands(self, url: str, *, application_id: str, subscription_id: str, nonce: str) -> AttemptOutcome:
        """POST the handshake of reference 11.2."""

    async def keep_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close connections that are not used any more, until cancelled; then all."""


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """A cloud stream, and the credentials for writing to it."""

    name: str
    region: str
    key: str
    secret: str = field(repr=False)


class StreamFailed(Exception):
    """The records were not all written; writing may be tried again. The text is one line."""


class StreamRejected(Exception):
    """The stream does not exist, or these credentials may not write to it. The text is one line."""


class Streams(Protocol):
    async def put(self, target: StreamTarget, entries: Sequence[Entry]) -> None:
        """Write a record for each entry, in their order for each device.

        Raises StreamFailed, StreamRejected.
        """
