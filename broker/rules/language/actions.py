"""The Actions of `then`, which are sent when a rule triggers (reference 12.11)."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from broker.rules.language.conditions import Choice
from broker.rules.language.values import Bound, LastValue, NestedValue, Operand, UnknownValueError, View, as_text
from config.limits import RULE_ACTION_MESSAGES
from config.mail import mail_address
from storage.keys import DeviceKey, DeviceTypeKey, UserKey

TOO_MANY_MESSAGES: Final = f"Not sent: more than {RULE_ACTION_MESSAGES} messages at once"


class SendAction(msgspec.Struct, frozen=True):
    """An Action for a device. `index` is its place in `then`."""

    index: int
    device: DeviceKey
    name: str
    parameters: Mapping[str, NestedValue]


class WantValues(msgspec.Struct, frozen=True):
    """Values that are wanted of a device for some seconds (reference 9.10)."""

    index: int
    device: DeviceKey
    values: Mapping[str, NestedValue]
    expires_after: int


class CallHttp(msgspec.Struct, frozen=True):
    """`httpRequest`. `url` is checked for its form only: the sender refuses private addresses (reference 11.2)."""

    index: int
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: str | None


class SendMail(msgspec.Struct, frozen=True):
    """`sendEmail`. `to` None: the rule's owner. `subject` has one line."""

    index: int
    to: str | None
    subject: str
    body: str


class NotSent(msgspec.Struct, frozen=True):
    """An Action that cannot be made, and why: a value is unknown, or is not what the Action needs."""

    index: int
    reason: str


Outgoing = SendAction | WantValues | CallHttp | SendMail | NotSent


class UnfitValueError(Exception):
    """A value is not what the Action needs. The text says which one."""


# Values of parameters


class FixedParameter(msgspec.Struct, frozen=True):
    """A value without `valueFrom` and operations."""

    value: NestedValue

    def read(self, view: View, bound: Bound) -> NestedValue:  # noqa: ARG002
        return self.value

    def operands(self) -> Iterator[Operand]:
        yield from ()


class OperandParameter(msgspec.Struct, frozen=True):
    operand: Operand

    def read(self, view: View, bound: Bound) -> NestedValue:
        return self.operand.read(view, bound)

    def operands(self) -> Iterator[Operand]:
        yield from self.operand.parts()


class CompoundParameter(msgspec.Struct, frozen=True):
    """`{"value": {member: …}}`"""

    members: Mapping[str, "Parameter"]

    def read(self, view: View, bound: Bound) -> NestedValue:
        return {name: member.read(view, bound) for name, member in self.members.items()}

    def operands(self) -> Iterator[Operand]:
        for member in self.members.values():
            yield from member.operands()


class ListParameter(msgspec.Struct, frozen=True):
    """An array of values, such as the headers of `httpRequest`."""

    items: tuple["Parameter", ...]

    def read(self, view: View, bound: Bound) -> NestedValue:
        return [item.read(view, bound) for item in self.items]  # type: ignore[misc] # of compound values, too

    def operands(self) -> Iterator[Operand]:
        for item in self.items:
            yield from item.operands()


Parameter = FixedParameter | OperandParameter | CompoundParameter | ListParameter
"""Source of a parameter's value when the Action is sent.

`read` returns its value now (it raises UnknownValueError), and `operands` all operands inside it.
"""

# Actions

Special = Callable[[int, Mapping[str, NestedValue]], CallHttp | SendMail]
"""Makes what a special Action sends, of its index and its values. Raises UnfitValueError, UnknownValueError."""


class ThenAction(msgspec.Struct, frozen=True):
    """One entry of `then`. `special` makes what a special Action sends; the others go to devices.

    `device`, or `device_type` and `choice`, say which devices.
    """

    index: int
    name: str
    parameters: Mapping[str, Parameter]
    special: Special | None = None
    device: DeviceKey | None = None
    device_type: DeviceTypeKey | None = None
    choice: Choice | None = None
    #: The parameters are values that are wanted for this time; 0: they are those of an Action.
    wanted_seconds: int = 0

    @property
    def is_static(self) -> bool:
        """Whether it has neither `matched` nor `valueFrom` (reference 12.1)."""
        return self.choice is not Choice.MATCHED and not any(self.last_values())

    def last_values(self) -> Iterator[LastValue]:
        """The last values that its parameters read."""
        for parameter in self.parameters.values():
            for operand in parameter.operands():
                if isinstance(operand, LastValue):
                    yield operand

    def outgoing(self, view: View, bound: Bound, owner: UserKey) -> Iterator[Outgoing]:
        """The Actions to send now. `bound` has the devices that satisfied `any`."""
        try:
            values = {name: parameter.read(view, bound) for name, parameter in self.parameters.items()}
            special = None if self.special is None else self.special(self.index, values)
        except (UnknownValueError, UnfitValueError) as error:
            yield NotSent(self.index, str(error))
            return
        if special is not None:
            yield special
            return
        for device in self._destinations(view, bound, owner):
            if self.wanted_seconds:
                yield WantValues(self.index, device, values, self.wanted_seconds)
            else:
                yield SendAction(self.index, device, self.name, values)

    def _destinations(self, view: View, bound: Bound, owner: UserKey) -> Collection[DeviceKey]:
        if self.device is not None:
            return (self.device,)
        if self.device_type is None:
            return ()
        if self.choice is Choice.EVERY:
            return view.devices_of(owner, self.device_type)
        return (bound[self.device_type],)


class ActionList(msgspec.Struct, frozen=True):
    """The Actions of a rule, whose owner is a user."""

    owner: UserKey
    actions: tuple[ThenAction, ...]

    def outgoing(self, view: View, bound: Bound) -> list[Outgoing]:
        """The Actions to send now, in order, at most `RULE_ACTION_MESSAGES`.

        An Action that cannot be made does not stop the others.
        """
        found: list[Outgoing] = []
        for action in self.actions:
            for one in action.outgoing(view, bound, self.owner):
                if len(found) == RULE_ACTION_MESSAGES:
                    return [*found, NotSent(one.index, TOO_MANY_MESSAGES)]
                found.append(one)
        return found

    @property
    def is_static(self) -> bool:
        """All Actions are static (reference 12.1)."""
        return bool(self.actions) and all(action.is_static for action in self.actions)

    @property
    def is_testable(self) -> bool:
        """At least one Action is static."""
        return any(action.is_static for action in self.actions)

    @property
    def reads(self) -> frozenset[DeviceKey]:
        """The devices whose values the parameters use."""
        return frozenset(part.device for part in self._last_values() if part.device is not None)

    @property
    def writes(self) -> frozenset[DeviceKey]:
        """The devices that Actions are sent to."""
        return frozenset(action.device for action in self.actions if action.device is not None)

    @property
    def type_reads(self) -> frozenset[DeviceTypeKey]:
        """The types of which the parameters use the owner's devices."""
        return frozenset(part.device_type for part in self._last_values() if part.device_type is not None)

    @property
    def type_writes(self) -> frozenset[DeviceTypeKey]:
        """The types of which Actions are sent to the owner's devices."""
        return frozenset(action.device_type for action in self.actions if action.device_type is not None)

    def _last_values(self) -> Iterator[LastValue]:
        for action in self.actions:
            yield from action.last_values()


# The special Actions `httpRequest` and `sendEmail`

HTTP_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE"})
MAX_URL_CHARACTERS: Final = 2_048
MAX_HEADERS: Final = 20
MAX_HEADER_CHARACTERS: Final = 1_024
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER_VALUE: Final = re.compile(rf"[\t\x20-\x7e]{{0,{MAX_HEADER_CHARACTERS}}}")
#: Headers that say where a request ends or where it goes: the sender of the request sets them.
_HEADERS_OF_THE_SENDER: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_BLANKS: Final = re.compile(r"\s+")


def http_request(index: int, values: Mapping[str, NestedValue]) -> CallHttp:
    """Raises UnfitValueError."""
    headers = values.get("headers", [])
    if not isinstance(headers, list) or len(headers) > MAX_HEADERS:
        raise UnfitValueError("the headers are not valid")
    return CallHttp(
        index,
        method=checked_method(values["method"]),
        url=checked_url(values["url"]),
        headers=tuple(map(checked_header, headers)),
        body=None if "body" not in values else _body(values["body"]),
    )


def send_email(index: int, values: Mapping[str, NestedValue]) -> SendMail:
    """Raises UnfitValueError, UnknownValueError."""
    return SendMail(
        index,
        to=checked_recipient(values.get("to", "")),
        subject=_BLANKS.sub(" ", _text(values.get("subject", ""))).strip(),
        body=_text(values.get("body", "")),
    )


def checked_method(value: NestedValue) -> str:
    if not isinstance(value, str) or value not in HTTP_METHODS:
        raise UnfitValueError("the method is not valid")
    return value


def checked_url(value: NestedValue) -> str:
    if not isinstance(value, str) or len(value) > MAX_URL_CHARACTERS or not value.isprintable() or " " in value:
        raise UnfitValueError("the url is no address of http or https")
    try:
        parts = urlsplit(value)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is no number
        is_complete = False
    if not is_complete or "@" in parts.netloc:
        raise UnfitValueError("the url is no address of http or https")
    return value


def checked_header(value: object) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise UnfitValueError("the headers are not valid")
    name, text = value.get("key"), value.get("value")
    if not isinstance(name, str) or _HEADER_NAME.fullmatch(name) is None or name.lower() in _HEADERS_OF_THE_SENDER:
        raise UnfitValueError("the headers are not valid")
    if isinstance(text, bool | int | float):
        text = as_text(text)
    if not isinstance(text, str) or _HEADER_VALUE.fullmatch(text) is None:
        raise UnfitValueError("the headers are not valid")
    return name, text


def checked_recipient(value: NestedValue) -> str | None:
    """An address; None: the rule's owner."""
    if not isinstance(value, str):
        raise UnfitValueError("the recipient is no e-mail address")
    try:
        return mail_address(value) if value else None
    except ValueError as error:
        raise UnfitValueError("the recipient is no e-mail address") from error


def _body(value: NestedValue) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else _text(value)


def _text(value: NestedValue) -> str:
    if isinstance(value, dict):
        raise UnknownValueError("a group cannot be made a text")
    return as_text(value)
