"""One Action on its way to the third party: its requests in order, each again while the third party cannot take it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Final

import msgspec
import trio

from broker.connectors.calls import Calls
from broker.connectors.catalog import Connector
from broker.connectors.links import ConnectorLink
from broker.connectors.plugin import ActionDefinition, Phase, Request
from broker.connectors.port import ThirdPartySilentError
from broker.limits.quotas import ReservedRequest
from storage.keys import DeviceKey

#: Between the attempts to send one request. No attempt begins later than a minute after the first one.
_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 25.0)
_MINUTE: Final = 60.0
_WANTED: Final = 600.0  # seconds until an Action's first attempt
_BUSY: Final = frozenset({503, 504})

LinkFor = Callable[[DeviceKey], Awaitable[tuple[ConnectorLink | None, str | None]]]


class WaitedTooLongError(Exception):
    """The Action has expired while earlier ones for the device were sent."""

    def __str__(self) -> str:
        return f"it waited for more than {_WANTED / 60:g} minutes"


class _Call(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Data(msgspec.Struct):
    actions: list[_Call]


_decode = msgspec.json.Decoder(_Data).decode


@dataclass(eq=False)
class PendingAction:
    """The state of an Action between attempts. `sent` and `failed` count its requests.

    `link_for` finds the link that authorizes requests for a device, and the device's external id.

    It is asked before each attempt, because a link may end between two. `reserved` is the device's request.
    """

    _connector: Connector
    device: DeviceKey
    data: InitVar[str]
    _calls: Calls
    _link_for: LinkFor
    _reserved: ReservedRequest | None

    def __post_init__(self, data: str) -> None:
        self._actions = _decode(data).actions
        self._requests: Sequence[Request] | None = None  # of the first one of `_actions`
        self._attempts = 0
        self._begun = self._taken = trio.current_time()
        self.sent = self.failed = 0
        self.refused_with: int | None = None  # the status of the latest answer for good that refused
        self.was_delayed = self._has_begun = False

    async def go_on(self) -> float | None:
        """Send what is left. Seconds to wait until the next call; None: the Action has ended.

        Raises one of CALL_FAILURES, WaitedTooLongError, StoreError: the Action has ended.
        """
        if not self._has_begun and trio.current_time() > self._taken + _WANTED:
            raise WaitedTooLongError
        self._has_begun = True
        while self._actions:
            link, sub_device = await self._link_for(self.device)
            if link is None:
                return None
            if self._requests is None:
                call = self._actions[0]
                definition = ActionDefinition(call.name, call.parameters)
                self._requests = await self._connector.hooks.action(link.device(sub_device), definition)
            while self._requests:
                if (wait := await self._send(link, self._requests[0], sub_device)) is not None:
                    return wait
                self._requests = self._requests[1:]
                self._attempts = 0
            self._requests = None
            del self._actions[0]
        return None

    def end(self) -> None:
        """Give back the unused reservation: the rest is not sent."""
        if self._reserved is not None:
            self._reserved.release()

    async def _send(self, link: ConnectorLink, request: Request, sub_device: str | None) -> float | None:
        """Seconds until the request is to be sent again; None: it was answered for good. Raises as `go_on`."""
        if not self._attempts:
            self._begun = trio.current_time()
        self._attempts += 1
        try:
            response = await self._calls.send(self._connector, link, request, Phase.ACTION, sub_device, self._reserved)
        except ThirdPartySilentError:
            if (wait := self._wait()) is None:
                raise
            return wait
        if response.status in _BUSY and (wait := self._wait()) is not None:
            return wait
        if response.ok:
            self.sent += 1
        else:
            self.failed += 1
            self.refused_with = response.status
        return None

    def _wait(self) -> float | None:
        """The wait until the next attempt; None when the minute is over."""
        self.was_delayed = True
        if self._attempts > len(_WAITS):
            return None
        wait = _WAITS[self._attempts - 1]
        return wait if trio.current_time() + wait <= self._begun + _MINUTE else None
