"""State of a simulated LWM2M device: the objects 1, 3, 5, 3303 and 3311, and a firmware that installs itself.

An image for it is a text whose first line is its version number, such as `1.2.0`; what follows has no meaning.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

OBJECTS: Final = b"</1/0>,</3/0>,</5/0>,</3303/0>,</3311/0>"
SENML_JSON: Final = 110
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")

CHANGED, CONTENT, BAD, NOT_FOUND, NOT_ALLOWED = 0x44, 0x45, 0x80, 0x84, 0x85
GET, POST, PUT = 1, 2, 3
_INSTANCE, _RESOURCE = 2, 3
_UTC_OFFSET: Final = (3, 0, 14)
_TIMEZONE: Final = (3, 0, 15)
_ON: Final = (3311, 0, 5850)
_DIMMER: Final = (3311, 0, 5851)


class State(IntEnum):
    """State of the firmware update (resource /5/0/3)."""

    IDLE = 0
    DOWNLOADING = 1
    DOWNLOADED = 2
    UPDATING = 3


class Result(IntEnum):
    """Result of the firmware update (resource /5/0/5)."""

    INITIAL = 0
    SUCCESS = 1
    CONNECTION_LOST = 4
    UNSUPPORTED = 6
    INVALID_URI = 7


@dataclass
class Board:
    """The device over all its restarts. `temperature` gives degrees Celsius."""

    temperature: Callable[[], float]
    version: str = "1.0.0"
    state: State = State.IDLE
    result: Result = Result.INITIAL
    package_uri: str = ""
    written: dict[tuple[int, int, int], str] = field(default_factory=lambda: {_UTC_OFFSET: "+00:00"})
    is_on: bool = False
    dimmer: int = 100
    is_rebooting: bool = False
    _new_version: str = ""
    _began: float = field(default_factory=time.monotonic)

    def resources(self) -> Mapping[tuple[int, int, int], str | float | bool]:
        """All readable resources."""
        running = time.monotonic() - self._began
        return {
            (1, 0, 0): 1,
            (1, 0, 1): 60,
            (1, 0, 6): False,
            (1, 0, 7): "U",
            (3, 0, 0): "Trunkline",
            (3, 0, 1): "Simulated board",
            (3, 0, 2): "SIM-1",
            (3, 0, 3): self.version,
            (3, 0, 9): max(5, 100 - int(running / 60)),
            (3, 0, 10): 512,
            (3, 0, 13): int(time.time()),
            **self.written,
            (3, 0, 16): "U",
            (5, 0, 3): int(self.state),
            (5, 0, 5): int(self.result),
            (3303, 0, 5700): self.temperature(),
            (3303, 0, 5701): "Cel",
            _ON: self.is_on,
            _DIMMER: self.dimmer,
        }

    def answer(self, method: int, path: tuple[int, ...], payload: bytes) -> tuple[int, bytes]:
        """The code and the payload (SenML JSON) of the answer to a request of the server."""
        if method == GET:
            body = self.read(path)
            return (NOT_FOUND, b"") if body is None else (CONTENT, body)
        if method == PUT:
            return self._write(path, payload), b""
        return (self._execute(path) if method == POST else NOT_ALLOWED), b""

    def read(self, path: tuple[int, ...]) -> bytes | None:
        """The values at an instance or a resource in SenML JSON; None if there are none."""
        found = {where: value for where, value in self.resources().items() if where[: len(path)] == path}
        if not found or len(path) not in (_INSTANCE, _RESOURCE):
            return None
        base = "/" + "/".join(map(str, path[:_INSTANCE])) + "/"
        records = [{"n": str(where[2]), _member(value): value} for where, value in found.items()]
        records[0] = {"bn": base, **records[0]}
        return msgspec.json.encode(records)

    def _write(self, path: tuple[int, ...], payload: bytes) -> int:
        if len(path) == _INSTANCE:  # attributes
            return CHANGED
        if path in (_UTC_OFFSET, _TIMEZONE):
            self.written[path] = payload.decode(errors="replace")
            return CHANGED
        if path in (_ON, _DIMMER):
            return self._switch(path, payload)
        if path != (5, 0, 1):
            return NOT_ALLOWED if path in self.resources() else NOT_FOUND
        self.package_uri = payload.decode(errors="replace")
        self.state = State.DOWNLOADING if self.package_uri else State.IDLE
        self.result = Result.INITIAL
        return CHANGED

    def _switch(self, path: tuple[int, ...], payload: bytes) -> int:
        if not payload.isdigit() or int(payload) > (1 if path == _ON else 100):
            return BAD
        if path == _ON:
            self.is_on = payload == b"1"
        else:
            self.dimmer = int(payload)
        return CHANGED

    def _execute(self, path: tuple[int, ...]) -> int:
        if path == (3, 0, 4):
            self.is_rebooting = True
        elif path == (5, 0, 2):
            if self.state is not State.DOWNLOADED:
                return NOT_ALLOWED
            self.state = State.UPDATING
            self.is_rebooting = True
        else:
            return NOT_FOUND
        return CHANGED

    def downloaded(self, image: bytes | None) -> None:
        """The download has ended; None when it failed."""
        if self.state is not State.DOWNLOADING:
            return
        version = "" if image is None else image[:200].partition(b"\n")[0].strip().decode(errors="replace")
        if image is None:
            self.state, self.result = State.IDLE, Result.INVALID_URI
        elif _VERSION.fullmatch(version) is None:
            self.state, self.result = State.IDLE, Result.UNSUPPORTED
        else:
            self.state, self._new_version = State.DOWNLOADED, version

    def reboot(self) -> None:
        """Restart, with the new firmware if one is to be installed."""
        if self.state is State.UPDATING:
            self.version, self.state, self.result = self._new_version, State.IDLE, Result.SUCCESS
        self.is_rebooting = False
        self._began = time.monotonic()


def _member(value: str | float | bool) -> str:
    return "vb" if isinstance(value, bool) else "vs" if isinstance(value, str) else "v"
