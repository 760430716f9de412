"""Interface to the daemon's own state: its listeners, its machine, its backups."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

#: How many bytes more were copied, and how many there are in all. Another thread calls it.
Copied = Callable[[int, int], None]


class BackupFailedError(Exception):
    """There is no backup. The text is one line for the operator."""


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor: what was found, or what to do where it is not `ok`."""

    check: str
    ok: bool
    text: str


class RoomPart(msgspec.Struct, frozen=True):
    """Bytes of a part of the store, and how many come in a day; 0 where that is not known."""

    name: str
    size: int
    grows: int


class Room(msgspec.Struct, frozen=True):
    """The store and its disk, in bytes. `grows` is None while the log is too young for a forecast. `full_in_days`: None
    when the disk does not get full within ten years, or belongs to the server of the database."""

    store: int
    available: int
    grows: int | None  # a day
    full_in_days: int | None
    sentence: str
    parts: Sequence[RoomPart] = ()


class ListenerStatus(msgspec.Struct, frozen=True):
    """`problem` is why it is closed. `answers` are those of HTTP, by status."""

    name: str
    address: str
    problem: str
    answers: Mapping[str, int]


class Machine(Protocol):
    @property
    def version(self) -> str: ...

    async def problem(self) -> str:
        """Why the daemon is not ready; empty when it is."""

    def listeners(self) -> Sequence[ListenerStatus]: ...

    def counters(self) -> Mapping[str, object]:
        """The counters of the listeners."""

    async def room(self) -> Room: ...

    async def examine(self) -> Sequence[Check]:
        """All checks of `trunkline doctor`."""

    async def back_up(self, folder: Path, *, keep: int, copied: Copied) -> Path:
        """Write a backup into `folder`, and keep that many. Raises BackupFailedError."""

    async def available(self, folder: Path) -> int:
        """Bytes that are free on the disk of `folder`, which need not be there yet."""

    async def backups(self, folder: Path) -> Sequence[tuple[str, int, int]]:
        """Name, bytes and time of each backup in `folder`, the newest first."""
