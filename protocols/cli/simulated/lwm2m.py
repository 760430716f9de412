"""A simulated LWM2M device over DTLS with a pre-shared key: registers, answers, notifies, and updates its firmware.

On its own it sends updates and notifications; each one that the daemon acknowledges counts as a message.
"""

import os
import random
import re
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.error import URLError

import click
import trio

from config.settings import Address
from protocols.cli.failures import leaves
from protocols.cli.simulated.board import CHANGED, OBJECTS, SENML_JSON, Board, State
from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation
from protocols.coap.dtls.client import DtlsClient
from protocols.coap.dtls.errors import ConnectionOver, DtlsUnavailable
from protocols.coap.incoming import Incoming
from protocols.coap.message_layer import Delivered, MessageLayer, RequestReceived, ResponseReceived
from protocols.coap.messages import (
    LINK_FORMAT,
    Code,
    MalformedMessage,
    Option,
    content_format,
    decode_message,
    encode_options,
    uint,
)

LIFETIME_SECONDS: Final = 60
_UPDATE_SECONDS: Final = LIFETIME_SECONDS / 2
_ANSWER_SECONDS: Final = 93.0
_REBOOT_SECONDS: Final = 1.0
_DOWNLOAD_SECONDS: Final = 30.0
_IMAGE_BYTES: Final = 64 * 1024 * 1024
#: It notifies of all that is observed each period, but of its firmware only when that has changed.
_FIRMWARE: Final = (5, 0)
_PMIN: Final = re.compile(rb"pmin=[0-9]{1,9}").fullmatch
_REGISTER, _UPDATE, _NOTIFY = "register", "update", "notify"


class _RebootError(Exception):
    """The device restarts."""


def run(plan: Simulation) -> None:
    """Serve until the plan is finished. Raises LinkLostError or RefusedError."""
    try:
        trio.run(serve_board, plan)
    except Exception as error:  # trio wraps errors in groups; what is not explained is raised again
        for leaf in leaves(error):
            if isinstance(leaf, RefusedError | LinkLostError):
                raise leaf from error
            if isinstance(leaf, DtlsUnavailable):
                raise RefusedError(str(leaf)) from error
            if isinstance(leaf, ConnectionOver | OSError):
                raise LinkLostError(str(leaf) or type(leaf).__name__) from error
        raise


async def serve_board(plan: Simulation, board_of: Callable[[Callable[[], float]], Board] = Board) -> None:
    """Register, and again after each restart of the device, until the plan is finished.

    `board_of` makes the board from its temperature.
    """
    board = board_of(partial(_temperature, plan))
    while not plan.is_finished:
        try:
            async with DtlsClient(
                Address(plan.host, plan.port), plan.device.encode(), bytes.fromhex(plan.token)
            ) as client:
                await _Conversation(plan, board, client).run()
        except Exception as error:
            if not all(isinstance(leaf, _RebootError) for leaf in leaves(error)):
                raise
            await trio.sleep(_REBOOT_SECONDS)
            board.reboot()
            click.echo(f"{plan.label} restarted with firmware {board.version}")


def _temperature(plan: Simulation) -> float:
    found = plan.next_data().get("temperature")
    return found if isinstance(found, float) else 21.0


class _Conversation:
    """One registration."""

    def __init__(self, plan: Simulation, board: Board, client: DtlsClient) -> None:
        self._plan = plan
        self._board = board
        self._client = client
        self._layer = MessageLayer(random.random)
        self._location: tuple[bytes, ...] = ()
        self._observers: dict[tuple[int, ...], bytes] = {}
        self._count = 1  # of notifications
        self._pmin_seconds = 0.01
        self._shown: State = board.state
        self._sooner = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive)
            nursery.start_soon(self._tick)
            with trio.move_on_after(_ANSWER_SECONDS) as scope:
                queries = f"ep={self._plan.device}", f"lt={LIFETIME_SECONDS}", "lwm2m=1.1", "b=U"
                options = ((Option.URI_PATH, b"rd"), content_format(LINK_FORMAT), *map(_query, queries))
                await self._send(Code.POST, options, OBJECTS, _REGISTER)
                while not self._location:
                    await self._wait()
            if scope.cancelled_caught:
                raise LinkLostError("no answer to the registration")
            await self._speak(nursery)
            nursery.cancel_scope.cancel()

    async def _wait(self) -> None:
        await self._sooner.wait()

    def _wake(self) -> None:
        self._sooner.set()
        self._sooner = trio.Event()

    async def _speak(self, nursery: trio.Nursery) -> None:
        """Notify every period, update at half of the lifetime, and do what the server asked for."""
        next_update, next_notification = trio.current_time() + _UPDATE_SECONDS, trio.current_time()
        is_downloading = False
        while not self._plan.is_finished:
            with trio.move_on_at(min(next_update, next_notification)):
                await self._wait()
            if self._board.is_rebooting:
                raise _RebootError
            if self._board.state is State.DOWNLOADING and not is_downloading:
                is_downloading = True
                nursery.start_soon(self._download)
            is_downloading = is_downloading and self._board.state is State.DOWNLOADING
            if trio.current_time() >= next_update:
                next_update = trio.current_time() + _UPDATE_SECONDS
                path = tuple((int(Option.URI_PATH), segment) for segment in self._location)
                await self._send(Code.POST, path, b"", _UPDATE)
            if self._board.state is not self._shown:
                self._shown = self._board.state
                await self._notify(_FIRMWARE)
            if trio.current_time() >= next_notification:
                next_notification = trio.current_time() + max(self._plan.period_seconds, self._pmin_seconds)
                for observed in [one for one in self._observers if one != _FIRMWARE]:
                    await self._notify(observed)

    async def _notify(self, path: tuple[int, ...]) -> None:
        """Send the values at a path to the server, if it observes them."""
        token = self._observers.get(path)
        if token is None:
            return
        self._count += 1
        options = ((Option.OBSERVE, uint(self._count & 0xFFFFFF)), content_format(SENML_JSON))
        await self._send(Code.CONTENT, options, self._board.read(path) or b"", _NOTIFY, token)

    async def _download(self) -> None:
        uri = self._board.package_uri
        click.echo(f"{self._plan.label} downloads a firmware image")
        image = await trio.to_thread.run_sync(_fetched, uri, abandon_on_cancel=True)
        if uri == self._board.package_uri:
            self._board.downloaded(image)
            self._wake()

    # --- Messages ----------------------------------------------------------------------------------------------------

    async def _send(
        self, code: int, options: tuple[tuple[int, bytes], ...], payload: bytes, tag: str, token: bytes | None = None
    ) -> None:
        token = os.urandom(4) if token is None else token
        ordered = encode_options(tuple(sorted(options, key=lambda option: option[0])))
        self._layer.send(code, token, ordered, payload, tag, trio.current_time())
        await self._flush()

    async def _flush(self) -> None:
        for datagram in self._layer.take_output():
            await self._client.send(datagram)

    async def _receive(self) -> None:
        while True:
            try:
                message = decode_message(await self._client.receive())
            except MalformedMessage:
                continue
            for event in self._layer.receive(message, trio.current_time()):
                match event:
                    case RequestReceived(incoming):
                        self._answer(incoming)
                    case ResponseReceived(tag, response):
                        self._responded(str(tag), response.code, response.options)
                    case Delivered(tag) if tag == _NOTIFY:
                        self._plan.acknowledged()
                    case _:
                        if event.tag == _NOTIFY:  # rejected: nobody observes any more
                            self._observers.clear()
                        else:
                            raise LinkLostError("the daemon does not answer")
            await self._flush()
            self._wake()

    def _responded(self, tag: str, code: int, options: tuple[tuple[int, bytes], ...]) -> None:
        shown = f"{code >> 5}.{code & 31:02}"
        if tag == _REGISTER:
            if code != Code.CREATED:
                raise RefusedError(f"the registration was answered with {shown}")
            self._location = tuple(value for number, value in options if number == Option.LOCATION_PATH)
        elif code == Code.CHANGED:
            self._plan.acknowledged()
        else:
            raise LinkLostError(f"an update was answered with {shown}")

    def _answer(self, incoming: Incoming) -> None:
        message = incoming.message
        segments = [value.decode() for number, value in message.options if number == Option.URI_PATH]
        path = tuple(int(one) for one in segments if one.isdecimal())
        observe = next((value for number, value in message.options if number == Option.OBSERVE), None)
        pmin = [value[5:] for number, value in message.options if number == Option.URI_QUERY and _PMIN(value)]
        code, payload = (CHANGED, b"") if pmin else self._board.answer(message.code, path, message.payload)
        options: tuple[tuple[int, bytes], ...] = (content_format(SENML_JSON),) if payload else ()
        if message.code == Code.GET and observe == b"\1":
            self._observers.pop(path, None)
        elif message.code == Code.GET and observe == b"" and payload:
            self._observers[path] = incoming.token
            options = ((Option.OBSERVE, uint(self._count)), *options)
        elif pmin:
            self._pmin_seconds = max(float(pmin[0]), 0.01)
        elif message.code in (Code.PUT, Code.POST):
            click.echo(
                f"{self._plan.label} received {'a write' if message.code == Code.PUT else 'an execute'} of {path}"
            )
        self._layer.respond(incoming, code, encode_options(options), payload, trio.current_time())

    async def _tick(self) -> None:
        while True:
            with trio.move_on_at(min(self._layer.deadline, trio.current_time() + 1)):
                await self._wait()
            if self._layer.tick(trio.current_time()):
                raise LinkLostError("the daemon does not answer")
            await self._flush()


def _query(text: str) -> tuple[int, bytes]:
    return Option.URI_QUERY, text.encode()


def _fetched(uri: str) -> bytes | None:
    """The image at an address; None when it cannot be fetched."""
    if not uri.startswith(("http://", "https://")):
        return None
    try:
        with urllib.request.urlopen(uri, timeout=_DOWNLOAD_SECONDS) as response:  # noqa: S310 - checked above
            image: bytes = response.read(_IMAGE_BYTES)
    except (URLError, OSError, ValueError):
        return None
    return image
