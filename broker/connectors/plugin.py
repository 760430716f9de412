"""What a cloud connector is written against: the hooks of a plug-in, and what passes through them.

A plug-in is a subclass of `ConnectorPlugin` that an installed distribution names in the entry-point group
`trunkline.connectors`. Hooks are plain functions: they do no I/O, but say which requests to send and what an answer
means. They run in a worker thread, one call at a time for each thread, for a few seconds at most; what they raise is
logged and harms nobody else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal

import msgspec


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the third party. `tag` is the plug-in's own: it comes back with the response."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """What the third party answered. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """What the third party sent to `/cloudconnectors/{dtid}/thirdpartynotifications`. Header names in lower case."""

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


@dataclass(frozen=True, slots=True)
class LinkedDevice:
    """A device that its user has linked with the third party.

    `account` is the id of the user's account there, if a plug-in told it; `remembered` is what it asked to remember.
    `sub_device` is the external id of the device that an Action is for, when that is one of its sub-devices.
    """

    id: str
    token: AccessToken
    account: str | None = None
    remembered: Mapping[str, str] = field(default_factory=dict)
    sub_device: str | None = None


class Phase(Enum):
    """What a request is for."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    FETCH = "fetch"
    ACTION = "action"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at the third party. `payload` is `data` as the Manifest of the device type has it.

    Kind `action` records what the device was told to do there: its payload is `{"actions": […]}`. `ts` is in ms; None
    is now. `sub_device` is the external id of the device that it is about, when that is not the linked device itself;
    it is created when it is first named.
    """

    payload: Mapping[str, Any]
    ts: int | None = None
    kind: Literal["data", "action"] = "data"
    sub_device: str | None = None


@dataclass(frozen=True, slots=True)
class ActionDefinition:
    """One Action that the device was told to do."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ts: int | None = None
    sub_device: str | None = None


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep a text with the link of the device, for later hooks. An empty one is forgotten."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Account:
    """The linked device's user has this id at the third party: notifications may name the device by it."""

    id: str


Result = Event | ActionDefinition | Remember | Account


@dataclass(frozen=True, slots=True)
class Notified:
    """What a notification says of one device, or of every device of one account.

    `results` are stored before the third party is answered. After that, `requests` are sent and their answers go to
    `fetch_response`; `fetch` asks for what the `fetch` hook asks for.
    """

    device: str | None = None
    account: str | None = None
    results: Sequence[Result] = ()
    requests: Sequence[Request] = ()
    fetch: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """What an incoming request means, and how it is answered."""

    devices: Sequence[Notified] = ()
    status: int = 200
    body: bytes = b""


class Setting:
    """What a plug-in is told about its device type. `parameters` are the operator's own, from the provision file."""

    def __init__(self, device_type: str, parameters: Mapping[str, Any], notification_url: Callable[[], str]) -> None:
        self.device_type = device_type
        self.parameters = parameters
        self._notification_url = notification_url

    @property
    def notification_url(self) -> str:
        """Where the third party reaches us. It is known once the daemon listens."""
        return self._notification_url()


class ConnectorPlugin:
    """The hooks, each with the behaviour of a plug-in that does not care."""

    #: Whether linked devices are pulled, at most once in the operator's interval.
    pulls: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        """Raises ValueError when the parameters do not fit; its text is for the operator."""
        self.setting = setting

    def sign_and_prepare(self, request: Request, device: LinkedDevice, phase: Phase) -> Request | None:
        """The request as it is to be sent, with its own proof of who sends it.

        None leaves that to the service, which adds the bearer token or the OAuth 1 signature.
        """
        del request, device, phase
        return None

    def subscribe(self, device: LinkedDevice) -> Sequence[Request]:
        """Requests by which the third party will notify us of the device."""
        del device
        return ()

    def subscribe_response(self, device: LinkedDevice, request: Request, response: Response) -> Sequence[Result]:
        """What the third party said to that. Raise ValueError to refuse: the device is not linked then."""
        del device, request
        if not response.ok:
            raise ValueError(f"the subscription was answered with {response.status}")
        return ()

    def unsubscribe(self, device: LinkedDevice) -> Sequence[Request]:
        """Requests by which the third party will forget the device."""
        del device
        return ()

    def unsubscribe_response(self, device: LinkedDevice, request: Request, response: Response) -> None:
        """What the third party said to that. The device is unlinked anyway."""
        del device, request, response

    def notification(self, request: IncomingRequest) -> Notification:
        """What the third party's call means. Check first that it comes from the third party."""
        del request
        return Notification(status=404)

    def fetch(self, device: LinkedDevice) -> Sequence[Request]:
        """Requests that ask for the device's data."""
        del device
        return ()

    def fetch_response(self, device: LinkedDevice, request: Request, response: Response) -> Sequence[Result]:
        """What the data mean."""
        del device, request, response
        return ()

    def action(self, device: LinkedDevice, action: ActionDefinition) -> Sequence[Request]:
        """Requests by which the device does what it is told."""
        del device, action
        return ()
