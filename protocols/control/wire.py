"""Protocol of the control socket, for client and server: the socket's path, and the JSON objects of the messages."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from broker.errors import Finding

MAX_CONTROL_BYTES: Final = 64 * 1024 * 1024  # a provision file with its Manifests


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    arguments: dict[str, Any]


class ControlFailure(msgspec.Struct, frozen=True):
    message: str
    findings: tuple[Finding, ...] = ()


class ControlAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    data: Any = None
    error: ControlFailure | None = None


async def receive_all(stream: trio.SocketStream) -> bytes | None:
    """Everything up to the end of the stream; None when that is more than `MAX_CONTROL_BYTES`."""
    content = bytearray()
    async for chunk in stream:
        content += chunk
        if len(content) > MAX_CONTROL_BYTES:
            return None
    return bytes(content)


def socket_path(state_dir: Path) -> Path:
    return state_dir / "control.sock"


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for `path` that fits into a socket address (108 bytes), also when the path is longer."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
