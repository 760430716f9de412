"""Calls the hooks of a plug-in in worker threads, with bounds on their time and their results."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
import trio

from broker.connectors.plugin import (
    Account,
    ActionDefinition,
    ConnectorPlugin,
    Event,
    IncomingRequest,
    LinkedDevice,
    Notification,
    Phase,
    Remember,
    Request,
    Response,
    Unreadable,
)
from broker.threads import RunInThread, run_in_thread
from config.limits import (
    CONNECTOR_ANSWER_BYTES,
    CONNECTOR_HOOK_SECONDS,
    CONNECTOR_REQUESTS,
    CONNECTOR_RESULTS,
    IDS_MAX,
    MAX_DATA_BYTES,
)

T = TypeVar("T")
_THREADS: Final = 4  # of one plug-in: hooks that hang delay only its own devices
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_URL_CHARACTERS: Final = 8_000
_TEXT_CHARACTERS: Final = 1_000
_REMEMBERED_CHARACTERS: Final = 16_384
_ID_CHARACTERS: Final = 128
_PROBLEM: Final = 200  # characters of the reason why an item cannot be read
_RECORD_BYTES: Final = 64 * MAX_DATA_BYTES  # Ingest refuses what is too large; this bounds what Ingest has to read
_NOTIFICATION_ANSWER_BYTES: Final = 65_536


class PluginFailedError(Exception):
    """A hook raised an exception, took too long or returned an invalid result. The text is for the operator's log."""


class AnswerNotReadError(PluginFailedError):
    """A hook failed to read an answer that was a refusal: the status of the answer says why."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Record(msgspec.Struct, frozen=True):
    """An event or an Action as Ingest takes it: `data` is JSON, `sub_device` an external id.

    `problem` is not empty for an item that could not be read: `data` is then what came.
    """

    data: bytes
    ts: int | float | None
    sub_device: str | None
    is_action: bool
    series: str = ""
    problem: str = ""


class HookOutcome(msgspec.Struct, frozen=True):
    """The results of a hook: the records to store, and the values to keep with the link."""

    records: tuple[Record, ...] = ()
    remembered: tuple[Remember, ...] = ()
    account: str | None = None


class NotifiedDevices(msgspec.Struct, frozen=True):
    """One entry of a notification: a device by its id, or the devices of an account."""

    device: str | None
    account: str | None
    outcome: HookOutcome
    requests: tuple[Request, ...]
    fetch: bool


class Heard(msgspec.Struct, frozen=True):
    """A notification as the plug-in interpreted it, and the answer to it."""

    devices: tuple[NotifiedDevices, ...]
    status: int
    body: bytes


class Hooks:
    """The hooks of one plug-in. Every method raises PluginFailedError."""

    def __init__(self, plugin: ConnectorPlugin, run: RunInThread = run_in_thread) -> None:
        self._plugin = plugin
        self._run = run
        self._limiter = trio.CapacityLimiter(_THREADS)

    @property
    def pulls(self) -> bool:
        return self._plugin.pulls

    async def prepared(self, request: Request, device: LinkedDevice, phase: Phase) -> Request | None:
        return await self._call(
            lambda: _optional_request(self._plugin.sign_and_prepare(request, device, phase)), "sign_and_prepare"
        )

    async def subscribe(self, device: LinkedDevice) -> tuple[Request, ...]:
        return await self._call(lambda: _requests(self._plugin.subscribe(device)), "subscribe")

    async def subscribed(self, device: LinkedDevice, request: Request, response: Response) -> HookOutcome:
        return await self._call(
            lambda: _outcome(self._plugin.subscribe_response(device, request, response)),
            "subscribe_response",
            response,
        )

    async def unsubscribe(self, device: LinkedDevice) -> tuple[Request, ...]:
        return await self._call(lambda: _requests(self._plugin.unsubscribe(device)), "unsubscribe")

    async def unsubscribed(self, device: LinkedDevice, request: Request, response: Response) -> None:
        await self._call(lambda: self._plugin.unsubscribe_response(device, request, response), "unsubscribe_response")

    async def notification(self, request: IncomingRequest) -> Heard:
        return await self._call(lambda: _heard(self._plugin.notification(request)), "notification")

    async def fetch(self, device: LinkedDevice) -> tuple[Request, ...]:
        return await self._call(lambda: _requests(self._plugin.fetch(device)), "fetch")

    async def fetched(self, device: LinkedDevice, request: Request, response: Response) -> HookOutcome:
        return await self._call(
            lambda: _outcome(self._plugin.fetch_response(device, request, response)), "fetch_response", response
        )

    async def action(self, device: LinkedDevice, action: ActionDefinition) -> tuple[Request, ...]:
        return await self._call(lambda: _requests(self._plugin.action(device, action)), "action")

    async def _call(self, hook: Callable[[], T], name: str, read: Response | None = None) -> T:
        """`read`: the answer that the hook reads."""
        with trio.move_on_after(CONNECTOR_HOOK_SECONDS):
            try:
                return await self._run(lambda: guarded(hook, name), limiter=self._limiter)
            except PluginFailedError as error:
                if read is None or read.ok:
                    raise
                raise AnswerNotReadError(str(error), read.status) from error
        raise PluginFailedError(f"{name}: not done after {CONNECTOR_HOOK_SECONDS} s")


def guarded(hook: Callable[[], T], name: str) -> T:
    """Call a hook. Any exception of it, SystemExit included, becomes a PluginFailedError."""
    try:
        return hook()
    except PluginFailedError as error:
        raise PluginFailedError(f"{name}: {error}") from None
    except BaseException as error:  # a plug-in may raise anything, and must not end the daemon
        text = str(error)[:_TEXT_CHARACTERS] if isinstance(error, ValueError) else ""
        raise PluginFailedError(f"{name}: {type(error).__name__}{text and ': '}{text}") from error


# Results are checked in the hook's thread, because reading them may run code of the plug-in.


def _several(returned: Iterable[Any], most: int, what: str) -> tuple[Any, ...]:
    found = tuple(islice(returned, most + 1))
    if len(found) > most:
        raise PluginFailedError(f"more than {most} {what}")
    return found


def _checked(fits: bool, problem: str) -> None:
    if not fits:
        raise PluginFailedError(problem)


def _request(returned: Any) -> Request:
    _checked(isinstance(returned, Request), f"{type(returned).__name__} is no Request")
    _checked(returned.method in _METHODS, f"the method {returned.method!r}")
    _checked(isinstance(returned.url, str) and len(returned.url) <= _URL_CHARACTERS, "an address that is too long")
    _checked(isinstance(returned.body, bytes) and len(returned.body) <= CONNECTOR_ANSWER_BYTES, "a body too large")
    request: Request = returned
    return request


def _optional_request(returned: Any) -> Request | None:
    return None if returned is None else _request(returned)


def _requests(returned: Iterable[Any]) -> tuple[Request, ...]:
    return tuple(map(_request, _several(returned, CONNECTOR_REQUESTS, "requests")))


def _outcome(returned: Iterable[Any]) -> HookOutcome:
    records: list[Record] = []
    remembered: list[Remember] = []
    account = None
    for result in _several(returned, CONNECTOR_RESULTS, "results"):
        match result:
            case Event():
                _checked(result.kind in {"data", "action"}, f"the kind {result.kind!r}")
                _checked(_is_series(result.series), "a series that is no text of at most 128 characters")
                records.append(_record(result.payload, result, is_action=result.kind == "action", series=result.series))
            case Unreadable():
                _checked(_is_series(result.series), "a series that is no text of at most 128 characters")
                records.append(_unreadable(result.item, str(result.reason), result.series))
            case ActionDefinition():
                records.append(_record({"actions": [_action(result)]}, result, is_action=True))
            case Remember(name, value):
                _checked(
                    _is_text(name, _ID_CHARACTERS) and len(value) <= _REMEMBERED_CHARACTERS, "too much to remember"
                )
                remembered.append(result)
            case Account(id_):
                _checked(_is_text(id_, _TEXT_CHARACTERS), "an account that is no text")
                account = id_
            case _:
                raise PluginFailedError(f"{type(result).__name__} is no result")
    return HookOutcome(tuple(records), tuple(remembered), account)


def _action(definition: ActionDefinition) -> dict[str, object]:
    parameters = {"parameters": definition.parameters} if definition.parameters else {}
    return {"name": definition.name, **parameters}


def _record(payload: object, about: Event | ActionDefinition, *, is_action: bool, series: str = "") -> Record:
    """The record of a payload. A payload that cannot be stored becomes a record with its problem."""
    if about.sub_device is not None and not _is_text(about.sub_device, _ID_CHARACTERS):
        return _unreadable(payload, "a sub-device id that is no text of 1 to 128 characters", series)
    data = msgspec.json.encode(payload)
    if len(data) > _RECORD_BYTES:
        return _unreadable(payload, "a payload that is far too large", series)
    return Record(data, about.ts, about.sub_device, is_action, series)


def _unreadable(item: object, problem: str, series: str) -> Record:
    return Record(msgspec.json.encode(item), None, None, is_action=False, series=series, problem=problem[:_PROBLEM])


def _is_series(series: object) -> bool:
    return series == "" or _is_text(series, _ID_CHARACTERS)


def _heard(returned: Any) -> Heard:
    _checked(isinstance(returned, Notification), f"{type(returned).__name__} is no Notification")
    _checked(type(returned.status) is int and 200 <= returned.status <= 599, f"the status {returned.status!r}")
    _checked(isinstance(returned.body, bytes) and len(returned.body) <= _NOTIFICATION_ANSWER_BYTES, "its body")
    devices = []
    for one in _several(returned.devices, IDS_MAX, "devices"):
        named = one.device if one.account is None else one.account
        _checked((one.device is None) != (one.account is None), "an entry without device or account, or with both")
        _checked(_is_text(named, _TEXT_CHARACTERS), "a device that is no text")
        outcome, requests = _outcome(one.results), _requests(one.requests)
        devices.append(NotifiedDevices(one.device, one.account, outcome, requests, bool(one.fetch)))
    return Heard(tuple(devices), returned.status, returned.body)


def _is_text(value: object, most: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= most and value.isprintable()
