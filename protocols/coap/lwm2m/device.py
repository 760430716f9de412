"""A registered device: the requests to it, one at a time, and the notifications from it.

A device in queue mode sleeps. A request to it waits until the device was heard, and is sent within LWM2M_AWAKE_SECONDS
after that. When it does not answer although it should be awake, the request fails (reference 15.2, a communication
failure).
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import Final, NamedTuple

import trio

from broker.device_management.sessions import (
    DeviceRefusedError,
    NotSentError,
    ObservationSettings,
    Reading,
    Readings,
    ResourcePath,
    ResourceValue,
    SessionLostError,
    UnreadableAnswerError,
    latest,
)
from broker.devices.registry import Device
from config.limits import DEVICE_VALUE_BYTES, LWM2M_AWAKE_SECONDS
from protocols.coap.lwm2m.blocks import Blocks, BodyChanged, option_of
from protocols.coap.lwm2m.exchanges import TOKEN_BYTES, Exchange, Lwm2mLink
from protocols.coap.lwm2m.formats.content import (
    LWM2M_JSON,
    SENML_CBOR,
    SENML_JSON,
    decode_content,
    encode_paths,
    encode_plain_text,
    is_link_format,
    says_types,
)
from protocols.coap.lwm2m.formats.values import UnreadablePayload, path_text
from protocols.coap.lwm2m.kinds import KindOf
from protocols.coap.lwm2m.links import Offer, parse_discovered
from protocols.coap.messages import LINK_FORMAT, TEXT, CoapMessage, Code, Option, content_format, encode_options, uint
from storage.keys import Milliseconds

_INSTANCE_DEPTH: Final = 2
_FIXED: Final = range(3, 8)  # objects of which the server takes a fixed list of resources (reference 18.4)
_FRESH_SECONDS: Final = 128.0  # RFC 7641, 3.4
_OBSERVE_RANGE: Final = 1 << 23
_ATTEMPTS: Final = 3  # of a request to a device that begins another session instead of answering
#: Formats of Observe-Composite, and the codes of a device that wants another one (4.06, 4.15).
_COMPOSITE: Final = (SENML_CBOR, SENML_JSON)
_OTHER_FORMAT: Final = frozenset({"4.06", "4.15"})
#: Wakaama acknowledges the request of Observe-Composite and never answers it.
_COMPOSITE_SECONDS: Final = 15.0

Queries = tuple[tuple[str, int], ...]
#: Paths of one observation.
ObservedPaths = tuple[ResourcePath, ...]
#: Called when a notification is stored, with False when it could not be.
OnStored = Callable[[bool], None]


class NotifiedReading(NamedTuple):
    """A reading of a notification; the last one of a notification has what follows when it is stored."""

    reading: Reading
    on_stored: OnStored | None = None


class _NoAnswerError(Exception):
    """The device has not answered in time."""


class _Observed:
    """An observation: what is observed, and the last notification. `paths` of Observe-Composite are several."""

    __slots__ = ("at", "message_id", "number", "paths")

    def __init__(self, *paths: ResourcePath) -> None:
        self.paths = paths
        self.number: int | None = None
        self.message_id: int | None = None
        self.at = 0.0

    @property
    def asked(self) -> ResourcePath:
        """The path below which values may be; the root for several paths."""
        return self.paths[0] if len(self.paths) == 1 else ()

    def is_new(self, message: CoapMessage, now: float) -> bool:
        """Whether the notification is newer than the last one (RFC 7641, 3.4); some devices never count on."""
        encoded = option_of(message, Option.OBSERVE)
        number = None if encoded is None else int.from_bytes(encoded[:3], "big")
        last = self.number
        is_old = (
            last is not None
            and number is not None
            and number != last
            and (number - last) % (2 * _OBSERVE_RANGE) >= _OBSERVE_RANGE
            and now < self.at + _FRESH_SECONDS
        )
        is_again = number == last and message.message_id == self.message_id and self.message_id is not None
        if is_old or is_again:
            return False
        self.number, self.message_id, self.at = number, message.message_id or None, now
        return True


@dataclass(eq=False, slots=True)
class RegisteredDevice:
    """One registration, which begins now; a ManagedSession for device management.

    Args:
        device, number, link, offer, lifetime_seconds, has_queue_mode: what has registered, as what, over what.
        now: a steady clock, in seconds.
        now_ms: the time.
        kinds: what resources hold.
        version: of LwM2M, as the device says it; None is 1.0.
    """

    device: Device
    number: int
    _link: Lwm2mLink
    offer: Offer
    lifetime_seconds: int
    has_queue_mode: bool
    _now: Callable[[], float]
    _now_ms: Callable[[], Milliseconds]
    _kinds: KindOf
    version: InitVar[str | None] = None
    connection: ExitStack = field(default_factory=ExitStack)  # its entry among the connections of the device
    expires: float = 0.0
    awake_until: float = 0.0
    is_working: bool = False  # of the server's sequence
    is_due: bool = False
    is_read: bool = False
    is_storing: bool = False
    #: By observed paths: what was notified.
    unsaved: dict[ObservedPaths, list[NotifiedReading]] = field(default_factory=dict)
    read_again: set[ObservedPaths] = field(default_factory=set)  # whose last notification has to be read
    #: Why resources of the Manifest are not observed, in sentences.
    unobserved: dict[ResourcePath, str] = field(default_factory=dict)
    takes_composite: bool = False  # as far as is known
    #: Resources that were written, and have not been reported since; called after each Write.
    unreported: set[ResourcePath] = field(default_factory=set)
    on_written: Callable[[ResourcePath], None] | None = None
    #: Formats that say the types of values, and that the device has not refused; the likeliest first.
    _typed: list[int] = field(default_factory=lambda: [LWM2M_JSON, SENML_JSON, SENML_CBOR])
    _untyped: set[int] = field(default_factory=set)  # objects whose values came without types
    _turn: trio.Lock = field(default_factory=trio.Lock)
    _woken: trio.Event = field(default_factory=trio.Event)
    _current: Exchange | None = None
    _observed: dict[bytes, _Observed] = field(default_factory=dict)
    _is_over: bool = False
    _has_moved: bool = False  # to a session that the device has not updated its registration over

    def __post_init__(self, version: str | None) -> None:
        if (version or "1.0") != "1.0":
            self._typed.reverse()
            self.takes_composite = True
        self.heard(self._link)

    @property
    def offers(self) -> frozenset[ResourcePath]:
        return self.offer.paths

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_asleep(self) -> bool:
        return self.has_queue_mode and self.awake_until <= self._now()

    @property
    def link(self) -> Lwm2mLink:
        return self._link

    def heard(self, link: Lwm2mLink) -> None:
        """The device sent something over this connection: it is awake, and is reached over it from now on."""
        if link is not self._link:
            former, self._link = self._link, link
            former.close()
            self._observed.clear()  # observations end with their connection (RFC 7641, 4.1)
        self._is_awake()

    def moved(self, link: Lwm2mLink) -> None:
        """The device has begun another session from its address. Requests go on over it, and what the device still
        notifies is taken. Whether it has kept its observations is not known: its next update begins them again."""
        self._link, self._has_moved = link, True
        self._is_awake()

    def _is_awake(self) -> None:
        self.awake_until = self._now() + LWM2M_AWAKE_SECONDS
        self._woken.set()
        self._woken = trio.Event()

    def updated(self, link: Lwm2mLink) -> None:
        """As `heard`, by an update. Over another session than the last one, everything is asked again."""
        if link is not self._link or self._has_moved:
            self._has_moved = False
            self._observed.clear()
            self.ask_anew()
        self.heard(link)

    def ask_anew(self) -> None:
        """Everything is read and observed again with the next steps."""
        self.is_read = False
        self.unobserved.clear()

    def end(self) -> None:
        """End the registration: tasks that wait for the device get SessionLostError."""
        self._is_over = True
        self.connection.close()
        self._woken.set()
        if self._current is not None:
            self._current.lost()

    # --- Requests ----------------------------------------------------------------------------------------------------

    async def wait_awake(self) -> None:
        """Implements ManagedSession."""
        while not self._is_over and self.is_asleep:
            await self._woken.wait()

    async def read(self, path: ResourcePath) -> Readings:
        """Implements ManagedSession. Values of unknown types are asked for in a format that names the types."""
        if self._typed and path[0] in self._untyped and (typed := await self._read_typed(path)) is not None:
            return typed
        format_, readings = await self._read(path)
        if says_types(format_, path) or path[0] in _FIXED or all(map(self._kinds, latest(readings))):
            return readings
        self._untyped.add(path[0])
        typed = await self._read_typed(path)
        return readings if typed is None else typed

    async def _read_typed(self, path: ResourcePath) -> Readings | None:
        """The answer in a format that says types; None when the device has none."""
        while self._typed:
            try:
                format_, readings = await self._read(path, (int(Option.ACCEPT), uint(self._typed[0])))
            except (DeviceRefusedError, UnreadableAnswerError):
                del self._typed[0]
                continue
            if says_types(format_, path):
                return readings
            del self._typed[0]  # it ignores the option
        return None

    async def _read(self, path: ResourcePath, *options: tuple[int, bytes]) -> tuple[int | None, Readings]:
        """The content-format of the answer, and its values."""
        body, answer = await self._get(path, "Read", *options)
        format_ = _number(option_of(answer, Option.CONTENT_FORMAT))
        try:
            return format_, decode_content(format_, body, path, self._now_ms(), self._kinds)
        except UnreadablePayload as error:
            raise _unreadable("Read", path, error) from error

    async def write(self, path: ResourcePath, value: ResourceValue) -> None:
        """As ManagedSession."""
        payload = encode_plain_text(path, value, self._kinds)
        if len(payload) > DEVICE_VALUE_BYTES:
            raise ValueError(f"a value of more than {DEVICE_VALUE_BYTES} bytes cannot be written")
        await self._change(Code.PUT, path, "Write", (content_format(TEXT),), payload)
        if self.on_written is not None:
            self.on_written(path)

    async def execute(self, path: ResourcePath) -> None:
        """As ManagedSession."""
        await self._change(Code.POST, path, "Execute")

    async def write_attributes(self, path: ResourcePath, observation: ObservationSettings) -> None:
        """Say how often the device notifies at least and at most. Errors as of ManagedSession."""
        queries = f"pmin={observation.pmin_of(path)}", f"pmax={observation.pmax}"
        options = tuple((int(Option.URI_QUERY), query.encode()) for query in queries)
        await self._change(Code.PUT, path, "Write-Attributes", options)

    async def discover(self, path: ResourcePath) -> list[ResourcePath]:
        """The instances and resources that the device names below a path. Errors as of ManagedSession."""
        body, answer = await self._get(path, "Discover", (int(Option.ACCEPT), uint(LINK_FORMAT)))
        try:
            if not is_link_format(_number(option_of(answer, Option.CONTENT_FORMAT))):
                raise UnreadablePayload("is not in link format")
            return parse_discovered(body, self.offer.root)
        except UnreadablePayload as error:
            raise _unreadable("Discover", path, error) from error

    async def observe(self, path: ResourcePath) -> Readings:
        """Begin to observe an object instance or a resource; the answer has its values. Errors as of ManagedSession."""
        for token in [token for token, one in self._observed.items() if one.paths == (path,)]:
            del self._observed[token]
        try:
            format_, body = await self._begin_observing(_Observed(path), _Question(Code.GET, path), "Observe")
        except BodyChanged:
            # Some devices choose another format for an observation than for the plain requests of its further blocks.
            return await self.read(path)
        return self._decoded(format_, body, path, "Observe")

    async def observe_composite(self, paths: ObservedPaths) -> Readings | None:
        """Begin to observe several resources together (LwM2M 1.1, 6.4.3.1); the answer has their values.

        None: the device does not take the operation. Errors as of ManagedSession.
        """
        for format_ in _COMPOSITE:
            question = _composite(paths, format_)
            try:
                found, body = await self._begin_observing(_Observed(*paths), question, "Observe-Composite")
            except DeviceRefusedError as error:
                if error.code not in _OTHER_FORMAT:
                    return None
                continue
            except _NoAnswerError:
                return None
            except BodyChanged:
                return await self.read_composite(paths)
            return self._decoded(found, body, (), "Observe-Composite")
        return None

    async def _begin_observing(self, observed: _Observed, question: "_Question", name: str) -> tuple[int | None, bytes]:
        """The content-format and the body of the answer. Raises BodyChanged and _NoAnswerError besides."""
        token = os.urandom(TOKEN_BYTES)
        self._observed[token] = observed  # the first notification may come with the answer
        is_observed = False
        first = question._replace(options=(*question.options, (int(Option.OBSERVE), b"")))
        try:
            async with self._turn:
                within = _COMPOSITE_SECONDS if question.code == Code.FETCH else inf
                answer = await self._ask(first, token=token, within=within)
                is_observed = option_of(answer, Option.OBSERVE) is not None
                body, answer = await self._rest(question, answer)
        except BodyChanged:
            raise
        except UnreadablePayload as error:
            raise _unreadable(name, observed.asked, error) from error
        finally:
            if not is_observed:
                self._observed.pop(token, None)
        return _number(option_of(answer, Option.CONTENT_FORMAT)), body

    async def read_composite(self, paths: ObservedPaths) -> Readings:
        """The values of several resources (Read-Composite). Errors as of ManagedSession."""
        async with self._turn:
            try:
                question = _composite(paths, SENML_CBOR)
                body, answer = await self._rest(question, await self._ask(question))
            except UnreadablePayload as error:
                raise _unreadable("Read-Composite", (), error) from error
        return self._decoded(_number(option_of(answer, Option.CONTENT_FORMAT)), body, (), "Read-Composite")

    def _decoded(self, format_: int | None, body: bytes, asked: ResourcePath, operation: str) -> Readings:
        try:
            return decode_content(format_, body, asked, self._now_ms(), self._kinds)
        except UnreadablePayload as error:
            raise _unreadable(operation, asked, error) from error

    async def stop_observing(self, paths: ObservedPaths) -> None:
        """End an observation (RFC 7641, 3.6). Errors as of ManagedSession, after which it has ended, too."""
        for token in [token for token, one in self._observed.items() if one.paths == paths]:
            del self._observed[token]
            question = _Question(Code.GET, paths[0]) if len(paths) == 1 else _composite(paths, SENML_CBOR)
            async with self._turn:
                await self._ask(
                    question._replace(options=(*question.options, (int(Option.OBSERVE), b"\1"))), token=token
                )

    def forget(self, paths: ObservedPaths) -> None:
        """Take an observation for ended, without a request: what comes of it is rejected."""
        for token in [token for token, one in self._observed.items() if one.paths == paths]:
            del self._observed[token]

    def observations(self) -> list[ObservedPaths]:
        """The paths of each observation."""
        return [one.paths for one in self._observed.values()]

    def is_observed(self, path: ResourcePath) -> bool:
        """Whether notifications of the resource come: it is observed, or what it belongs to."""
        return any(path[: len(found)] == found for paths in self.observations() for found in paths)

    def lists(self, path: ResourcePath) -> bool:
        """Whether the device named the instance of a resource, or its object without any instance."""
        return path[:_INSTANCE_DEPTH] in self.offers or path[:1] in self.instances()

    async def _change(
        self,
        code: Code,
        path: ResourcePath,
        operation: str,
        options: tuple[tuple[int, bytes], ...] = (),
        payload: bytes = b"",
    ) -> None:
        async with self._turn:
            answer = await self._ask(_Question(code, path, options, payload))
        if answer.code != Code.CHANGED:
            _raise_if_refused(answer)
            raise _unreadable(operation, path, UnreadablePayload(f"is {_code(answer)} instead of 2.04"))

    async def _get(self, path: ResourcePath, operation: str, *options: tuple[int, bytes]) -> tuple[bytes, CoapMessage]:
        question = _Question(Code.GET, path, options)
        async with self._turn:
            try:
                return await self._rest(question, await self._ask(question))
            except UnreadablePayload as error:
                raise _unreadable(operation, path, error) from error

    async def _rest(self, question: "_Question", answer: CoapMessage) -> tuple[bytes, CoapMessage]:
        """The whole body of an answer whose first block has come, and the answer. Raises Unreadable.

        The requests for the further blocks have the options of the first one (RFC 7959, 2.4).
        """
        blocks, first = Blocks(), answer
        while True:
            if answer.code != Code.CONTENT:
                _raise_if_refused(answer)
                raise UnreadablePayload(f"is {_code(answer)} instead of 2.05")
            if not blocks.take(answer):
                return blocks.body, first
            answer = await self._ask(question._replace(options=(*question.options, blocks.next)))

    async def _ask(self, question: "_Question", *, token: bytes | None = None, within: float = inf) -> CoapMessage:
        """Send one request and wait for its answer. The caller holds the turn. Raises SessionLostError.

        A device may begin another session instead of answering. It is asked again then, but for what must not be done
        twice. Raises _NoAnswerError after `within` seconds.
        """
        segments = (*self.offer.root, *(str(number).encode() for number in question.path))
        located = tuple((int(Option.URI_PATH), segment) for segment in segments)
        ordered = tuple(sorted((*located, *question.options), key=lambda option: option[0]))
        options = encode_options(ordered)
        for attempt in range(1, _ATTEMPTS + 1):
            link = await self._reachable()
            exchange = Exchange(question.code, token or os.urandom(TOKEN_BYTES), options, question.payload)
            self._current = exchange
            try:
                with trio.move_on_after(within):
                    answer = await link.ask(exchange)
                    self.awake_until = self._now() + LWM2M_AWAKE_SECONDS
                    return answer
                raise _NoAnswerError
            except SessionLostError:
                if self._link is not link and question.code != Code.POST and attempt < _ATTEMPTS:
                    continue
                self.awake_until = 0.0
                raise
            finally:
                self._current = None
        raise AssertionError

    async def _reachable(self) -> Lwm2mLink:
        """The connection of a device that is awake. Raises SessionLostError."""
        while not self._is_over:
            if self._link.is_closed and not self.has_queue_mode:
                break
            if not self._link.is_closed and not self.is_asleep:
                return self._link
            await self._woken.wait()
        raise NotSentError

    # --- Notifications -----------------------------------------------------------------------------------------------

    def awaits(self, token: bytes) -> bool:
        """Whether a request with this token waits for its answer."""
        return self._current is not None and self._current.token == token and not self._current.has_ended

    def observes(self, token: bytes) -> bool:
        """Whether a message with this token is a notification, and not the answer to a request."""
        return token in self._observed and not self.awaits(token)

    def notified(self, message: CoapMessage) -> tuple[ObservedPaths, Readings | None] | None:
        """Take a notification.

        Returns the observed paths and the values, or None for them if they are in several blocks and have to be read.
        Returns None when the notification is old, or ends the observation.

        Raises:
            Unreadable: the notification cannot be read.
        """
        observed = self._observed[message.token]
        if message.code != Code.CONTENT:
            del self._observed[message.token]
            return None
        # RFC 8323, 7.1: over TCP the number says nothing.
        if not self._link.is_stream and not observed.is_new(message, self._now()):
            return None
        if Blocks().take(message):
            return observed.paths, None
        format_ = _number(option_of(message, Option.CONTENT_FORMAT))
        readings = decode_content(format_, message.payload, observed.asked, self._now_ms(), self._kinds)
        if self.unobserved or self.unreported:
            for path in latest(readings):
                self.unobserved.pop(path, None)
                self.unreported.discard(path)
        return observed.paths, readings

    def paths_of(self, token: bytes) -> ObservedPaths:
        """The paths of the observation with this token; none if there is no such one."""
        found = self._observed.get(token)
        return () if found is None else found.paths

    def not_stored(self, token: bytes) -> None:
        """The last notification could not be stored: when it comes again, it is new."""
        if (observed := self._observed.get(token)) is not None:
            observed.number = observed.message_id = None

    def instances(self) -> list[ResourcePath]:
        """The object instances that the device named, in their order, and objects without any."""
        paths = self.offer.paths
        with_instances = {path[:1] for path in paths if len(path) == _INSTANCE_DEPTH}
        return sorted(path for path in paths if len(path) == _INSTANCE_DEPTH or path not in with_instances)


class _Question(NamedTuple):
    """A request. `options` are those besides the path."""

    code: Code
    path: ResourcePath
    options: tuple[tuple[int, bytes], ...] = ()
    payload: bytes = b""


def _composite(paths: ObservedPaths, format_: int) -> _Question:
    """A request about several resources: FETCH with their list in SenML (LwM2M 1.1, 6.3.6)."""
    options = content_format(format_), (int(Option.ACCEPT), uint(format_))
    return _Question(Code.FETCH, (), options, encode_paths(format_, paths))


def _number(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value[:4], "big")


def _code(answer: CoapMessage) -> str:
    return f"{answer.code >> 5}.{answer.code & 31:02}"


def _raise_if_refused(answer: CoapMessage) -> None:
    if answer.code >> 5 in (4, 5):
        raise DeviceRefusedError(_code(answer))


def _unreadable(operation: str, path: ResourcePath, error: UnreadablePayload) -> UnreadableAnswerError:
    return UnreadableAnswerError(f"The answer to {operation} {path_text(path)} {error}.")
