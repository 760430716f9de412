"""The interface of plug-ins for cloud connectors: the hooks, their arguments and their results.

A plug-in is a subclass of `ConnectorPlugin` that an installed distribution names in the entry-point group
`trunkline.connectors`. Hooks are plain functions without I/O: they return the requests to send, and interpret the
answers. Several worker threads may call the hooks of a plug-in at the same time. A call may take a few seconds at most;
an exception is logged and ends only that call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal

import msgspec

from broker.nesting import check_nesting


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the third party. `tag` is for the plug-in: its response hook gets the request with the tag."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of the third party. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The decoded body. Raises msgspec.DecodeError and UnicodeDecodeError."""
        check_nesting(self.body)
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request that the third party sent to `/cloudconnectors/{dtid}/thirdpartynotifications`.

    Header names are in lower case.
    """

    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """The right to act for a user at the third party. `secret` is OAuth 1's, `refresh` OAuth 2's."""

    value: str
    secret: str = ""
    refresh: str = ""
    expires_on: int | None = None  # ms since the epoch
    scope: str = ""

    def __repr__(self) -> str:
        return f"AccessToken(expires_on={self.expires_on})"


class LinkedDevice(msgspec.Struct, frozen=True):
    """A device that its user has linked with the third party.

    `account` is the id of the user's account there, if the plug-in reported it (`Account`); `remembered` has the texts
    that the plug-in asked to keep (`Remember`). In the fetch hook, `since` has the `ts` of the newest stored reading of
    each series, in ms: readings after it are to be fetched.
    `sub_device` is the external id of the device that an Action is for, when that is one of its sub-devices.
    """

    id: str
    token: AccessToken
    account: str | None = None
    remembered: Mapping[str, str] = msgspec.field(default_factory=dict)
    sub_device: str | None = None
    since: Mapping[str, int] = msgspec.field(default_factory=dict)


class Phase(Enum):
    """Purpose of a request."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    FETCH = "fetch"
    ACTION = "action"


class Event(msgspec.Struct, frozen=True):
    """An event at the third party. `payload` is `data` as the Manifest of the device type declares it.

    Kind `action` records an Action that the device got at the third party: its payload is `{"actions": […]}`. `ts` is
    in ms; None is now. `sub_device` is the external id of the event's device when that is not the linked device itself;
    a sub-device is created when it is first named.

    `series` names what the event is a reading of, such as one request of the fetch hook. An event with a series and a
    `ts` may be returned again and again: it is stored once, also after a crash and when the device is linked again. The
    readings of one device in one series are taken to come in the order of their `ts`.
    """

    payload: Mapping[str, Any]
    ts: int | None = None
    kind: Literal["data", "action"] = "data"
    sub_device: str | None = None
    series: str = ""


class Unreadable(msgspec.Struct, frozen=True):
    """An item of the third party that cannot be read as an event: it is kept among the failed messages of the device.

    With a `series`, an item that is returned again is kept once.
    """

    item: Any
    reason: str
    series: str = ""


class ActionDefinition(msgspec.Struct, frozen=True):
    """One Action for the device."""

    name: str
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    ts: int | None = None
    sub_device: str | None = None


class Remember(msgspec.Struct, frozen=True):
    """Keep a text with the link of the device, for later hooks. An empty text removes it."""

    name: str
    value: str


class Account(msgspec.Struct, frozen=True):
    """The id of the linked device's user at the third party, by which notifications may name the device."""

    id: str


Result = Event | Unreadable | ActionDefinition | Remember | Account


class Notified(msgspec.Struct, frozen=True):
    """Content of a notification about one device, or about all devices of one account.

    `results` are stored before the third party is answered. After that, `requests` are sent; `fetch` sends the requests
    of the `fetch` hook. The answers to both go to `fetch_response`.
    """

    device: str | None = None
    account: str | None = None
    results: Sequence[Result] = ()
    requests: Sequence[Request] = ()
    fetch: bool = False


class Notification(msgspec.Struct, frozen=True):
    """The meaning of an incoming request, and the answer to it."""

    devices: Sequence[Notified] = ()
    status: int = 200
    body: bytes = b""


class Setting:
    """The device type of a plug-in and its configuration. `parameters` are from the operator's provision file."""

    def __init__(self, device_type: str, parameters: Mapping[str, Any], notification_url: Callable[[], str]) -> None:
        self.device_type = device_type
        self.parameters = parameters
        self._notification_url = notification_url

    @property
    def notification_url(self) -> str:
        """The address for the third party's notifications. It is known once the daemon listens."""
        return self._notification_url()


class ConnectorPlugin:
    """The hooks, each with the behaviour of a plug-in that does not use it."""

    #: Whether data of linked devices are fetched periodically, in the operator's interval.
    pulls: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        """Raises ValueError when the parameters are invalid; its text is for the operator."""
        self.setting = setting

    def sign_and_prepare(self, request: Request, device: LinkedDevice, phase: Phase) -> Request | None:
        """The request as it is to be sent, with its own credentials.

        None: the service adds the bearer token or the OAuth 1 signature.
        """
        del request, device, phase
        return None

    def subscribe(self, device: LinkedDevice) -> Sequence[Request]:
        """Requests that make the third party send notifications about the device."""
        del device
        return ()

    def subscribe_response(self, device: LinkedDevice, request: Request, response: Response) -> Sequence[Result]:
        """Interpret the answer to a request of `subscribe`. Raise ValueError to refuse to link the device."""
        del device, request
        if not response.ok:
            raise ValueError(f"the subscription was answered with {response.status}")
        return ()

    def unsubscribe(self, device: LinkedDevice) -> Sequence[Request]:
        """Requests that end the notifications about the device."""
        del device
        return ()

    def unsubscribe_response(self, device: LinkedDevice, request: Request, response: Response) -> None:
        """Interpret the answer to a request of `unsubscribe`. The link is ended in any case."""
        del device, request, response

    def notification(self, request: IncomingRequest) -> Notification:
        """Interpret a request of the third party. Check first that the third party sent it."""
        del request
        return Notification(status=404)

    def fetch(self, device: LinkedDevice) -> Sequence[Request]:
        """Requests that ask for the device's data."""
        del device
        return ()

    def fetch_response(self, device: LinkedDevice, request: Request, response: Response) -> Sequence[Result]:
        """Interpret the answer to a request of `fetch` or of a notification."""
        del device, request, response
        return ()

    def action(self, device: LinkedDevice, action: ActionDefinition) -> Sequence[Request]:
        """Requests that carry out the Action."""
        del device, action
        return ()
