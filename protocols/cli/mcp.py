"""`trunkline mcp`: carries the messages of an assistant between its standard streams and POST /mcp (reference 29.5)."""

import base64
import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import click
import httpx
import msgspec
import trio

from protocols.cli.failures import CommandError
from protocols.cli.options import cafile_option, trusting

#: The longest line. The service takes messages of 64 KiB.
_LINE_BYTES: Final = 1024 * 1024
_AT_ONCE: Final = 8
_SECONDS: Final = 60.0
_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_INTERNAL_ERROR: Final = -32603
_PARSE_ERROR: Final = -32700
_SAFE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")


@click.command()
@click.option("--url", metavar="URL", default="http://127.0.0.1:8080", show_default=True)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token; else the environment variable TRUNKLINE_TOKEN has it.",
)
@cafile_option
def mcp(url: str, token_file: Path | None, cafile: Path | None) -> None:
    """Let an assistant on this machine ask the service: the Model Context Protocol over stdin and stdout.

    The service must have [mcp] in its configuration. The assistant can do what the token may do.
    """
    token = _token(token_file)
    trio.run(partial(_serve, f"{url.rstrip('/')}/mcp", token, trusting(cafile)))


def _token(file: Path | None) -> str:
    if file is None:
        token = os.environ.get("TRUNKLINE_TOKEN", "")
    else:
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"--token-file {file}: cannot be read", 2) from error
    if not token.strip():
        raise CommandError("TRUNKLINE_TOKEN, or the file of --token-file, must hold a token", 2)
    return token.strip()


async def _serve(url: str, token: str, trust: Any) -> None:
    """Answer each line of stdin until its end."""
    lines = _Lines()
    headers = {"Authorization": f"bearer {token}", "Accept": "application/json, text/event-stream"}
    places = trio.Semaphore(_AT_ONCE)
    async with httpx.AsyncClient(headers=headers, timeout=_SECONDS, verify=trust) as client:
        bridge = _Bridge(url, client, lines)
        async with trio.open_nursery() as nursery:
            while (line := await lines.read()) is not None:
                if not line.strip():
                    continue
                await places.acquire()
                nursery.start_soon(bridge.carry, line, places)


class _Lines:
    """The standard streams, of which stdout has messages only."""

    def __init__(self) -> None:
        self._in = trio.wrap_file(sys.stdin.buffer)
        self._out = trio.wrap_file(sys.stdout.buffer)
        self._lock = trio.Lock()

    async def read(self) -> bytes | None:
        """The next line; None at the end. A line that is too long comes without its rest, which is no JSON."""
        line: bytes = await self._in.readline(_LINE_BYTES)
        while line and not line.endswith(b"\n") and len(line) >= _LINE_BYTES:
            rest: bytes = await self._in.readline(_LINE_BYTES)
            if rest.endswith(b"\n") or not rest:
                break
        return line or None

    async def write(self, message: bytes) -> None:
        async with self._lock:
            await self._out.write(message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
            await self._out.flush()


class _Bridge:
    def __init__(self, url: str, client: httpx.AsyncClient, lines: _Lines) -> None:
        self._url = url
        self._client = client
        self._lines = lines
        #: The revision of the handshake, which clients of these revisions do not repeat.
        self._agreed = ""

    async def carry(self, line: bytes, places: trio.Semaphore) -> None:
        """Have a message answered, and give its place back."""
        try:
            answer = await self._answer(_object(line), line) if _is_json(line) else _NO_JSON
            if answer is not None:
                await self._lines.write(answer)
        finally:
            places.release()

    async def _answer(self, asked: Mapping[str, Any], line: bytes) -> bytes | None:
        """The answer to a message; None: it gets none."""
        is_request = "id" in asked and "method" in asked
        try:
            answer = await self._client.post(
                self._url, content=line, headers={"Content-Type": "application/json", **self._headers(asked)}
            )
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            return _error(asked.get("id"), _INTERNAL_ERROR, f"{self._url}: {reason}") if is_request else None
        if answer.status_code == HTTPStatus.ACCEPTED:
            return None
        said = _object(answer.content)
        if said.get("jsonrpc") == "2.0":
            if asked.get("method") == "initialize":
                self._agreed = str(said.get("result", {}).get("protocolVersion", ""))
            return (
                answer.content if "id" in said or not is_request else msgspec.json.encode({**said, "id": asked["id"]})
            )
        return _error(asked.get("id"), _INTERNAL_ERROR, _refusal(answer, said)) if is_request else None

    def _headers(self, asked: Mapping[str, Any]) -> dict[str, str]:
        """The headers that repeat parts of the message."""
        params = asked.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        version = meta.get(_VERSION) if isinstance(meta, dict) else None
        if not isinstance(version, str):
            return {"MCP-Protocol-Version": self._agreed} if self._agreed else {}
        named = {"MCP-Protocol-Version": version, "Mcp-Method": asked.get("method"), "Mcp-Name": params.get("name")}
        return {name: _header_value(value) for name, value in named.items() if isinstance(value, str)}


def _header_value(value: str) -> str:
    if _SAFE.fullmatch(value) and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(answer: httpx.Response, said: Mapping[str, Any]) -> str:
    error = said.get("error")
    reason = error.get("message") if isinstance(error, dict) else None
    if answer.status_code == HTTPStatus.NOT_FOUND:
        reason = "there is nothing for assistants: mcp.tools is off, or this is another service"
    return f"{answer.status_code} {reason or answer.reason_phrase}"


def _error(id_: Any, code: int, message: str) -> bytes:
    return msgspec.json.encode(
        {"jsonrpc": "2.0", **({} if id_ is None else {"id": id_}), "error": {"code": code, "message": message}}
    )


_NO_JSON: Final = _error(None, _PARSE_ERROR, "The line is not JSON")
