"""The ways out to upstreams: another Trunkline over HTTPS, a broker over MQTT (reference 30).

The operator names the address, so it may be a private one; nothing is redirected, and names are resolved once for each
connection.
"""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from broker.forwarding.port import Broker, Command, UpstreamAnswer, UpstreamError, Upstreams
from config.forward_target import ForwardTarget
from config.limits import FORWARD_ANSWER_BYTES
from config.loading import SettingsError
from config.settings import Forward, Settings
from protocols.outbound.addresses import resolve
from protocols.outbound.http import HttpFailedError, OutboundHttp
from protocols.outbound.mqtt import connected
from protocols.outbound.tls import client_context

_IDLE_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 20.0
_TOKEN_BYTES: Final = 4_096


def upstreams(settings: Settings) -> Upstreams:
    return OutboundUpstreams(settings.outbound.ca_file)


@dataclass(eq=False)
class OutboundUpstreams:
    """`ca_file`: of entries that name none."""

    _ca_file: str
    _http: dict[str, OutboundHttp] = field(default_factory=dict)

    async def post(self, entry: Forward, path: str, body: bytes, *, seconds: float) -> UpstreamAnswer:
        headers = {"content-type": "application/json", "authorization": f"Bearer {_secret(entry)}"}
        try:
            answer = await self._http_of(entry).send(
                "POST",
                ForwardTarget.parse(entry.to).root + path,
                headers=headers,
                body=body,
                seconds=seconds,
                most_bytes=FORWARD_ANSWER_BYTES,
            )
        except HttpFailedError as error:
            _, unreachable, why = str(error).partition("no connection: ")
            raise UpstreamError(
                f"The upstream cannot be reached: {why}."
                if unreachable
                else f"The upstream gives no usable answer: {error}."
            ) from error
        return UpstreamAnswer(answer.status, answer.headers, answer.body)

    def _http_of(self, entry: Forward) -> OutboundHttp:
        """Raises UpstreamError."""
        ca_file = entry.ca_file or self._ca_file
        if (known := self._http.get(ca_file)) is None:
            known = OutboundHttp(_context(ca_file), allow_private=True, idle_seconds=_IDLE_SECONDS)
            self._http[ca_file] = known
        return known

    async def close_idle(self) -> None:
        for one in self._http.values():
            await one.close_idle()

    @asynccontextmanager
    async def broker(self, entry: Forward, client_id: str, commands: str, command: Command) -> AsyncIterator[Broker]:
        target, password = ForwardTarget.parse(entry.to), _secret(entry) if entry.token_file else ""
        context = _context(entry.ca_file or self._ca_file) if target.is_secure else None

        async def open_stream() -> trio.abc.Stream:
            with trio.move_on_after(_CONNECT_SECONDS):
                return await _opened(target, context)
            raise UpstreamError(f"No connection to the broker within {_CONNECT_SECONDS:.0f} s.")

        client = await connected(open_stream, client_id, entry.user, password, command)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                if commands:
                    await client.subscribe(commands)
                yield client
                nursery.cancel_scope.cancel()
        finally:
            await client.close()


async def _opened(target: ForwardTarget, context: ssl.SSLContext | None) -> trio.abc.Stream:
    """Raises UpstreamError."""
    why = "the name stands for no address"
    try:
        addresses = await resolve(target.host, target.port, allow_private=True)
    except (OSError, UnicodeError):
        raise UpstreamError("The name of the broker cannot be resolved.") from None
    for address in addresses:
        try:
            plain = await trio.open_tcp_stream(str(address), target.port)
        except OSError as error:
            cause = error.__cause__
            inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause or error
            number = inner.errno if isinstance(inner, OSError) else None
            why = (os.strerror(number) if number else str(inner)).lower()
            continue
        if context is None:
            return plain
        stream = trio.SSLStream(plain, context, server_hostname=target.host)
        try:
            await stream.do_handshake()
        except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
            await trio.aclose_forcefully(plain)
            cause = error.__cause__ or error
            raise UpstreamError(f"No TLS with the broker: {_line(cause)}.") from error
        except BaseException:  # whatever it is, a cancellation, too: the socket must not stay open; raised again
            await trio.aclose_forcefully(plain)
            raise
        return stream
    raise UpstreamError(f"No connection to the broker: {why}.")


def _line(error: BaseException) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in str(error) or type(error).__name__)[:200]


def _context(ca_file: str) -> ssl.SSLContext:
    """Raises UpstreamError."""
    try:
        return client_context(ca_file)
    except SettingsError as error:
        raise UpstreamError(f"ca_file cannot be used: {str(error).partition(': ')[2]}.") from error


def _secret(entry: Forward) -> str:
    """The secret in the file, which is read each time: it may be renewed. Raises UpstreamError."""
    try:
        with Path(entry.token_file).open("rb") as file:
            found = file.read(_TOKEN_BYTES + 1)
        secret = found.decode("ascii" if not entry.user else "utf-8").strip()
    except OSError as error:
        raise UpstreamError(f"token_file cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UpstreamError("token_file has signs that no token has.") from None
    if not secret or len(found) > _TOKEN_BYTES or not secret.isprintable():
        raise UpstreamError("token_file has no token in its one line.")
    return secret
