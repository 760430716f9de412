"""The file of a backup: a tar, also compressed with gzip, whose last member has the SHA-256 of all others.

Members, in this order: `manifest.json`, `key` or `key.sealed`, `images/<id>`, `store.sqlite`, `SHA256SUMS`. The last
has the format of `sha256sum`: `tar x` and `sha256sum -c` check a backup without Trunkline.
"""

import gzip
import hashlib
import io
import os
import re
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Literal

import msgspec

FORMAT: Final = 1
STORE: Final = "store.sqlite"
KEY: Final = "key"
SEALED_KEY: Final = "key.sealed"
IMAGES: Final = "images"
_MANIFEST: Final = "manifest.json"
_SUMS: Final = "SHA256SUMS"
_IMAGE: Final = re.compile(r"images/[0-9a-f]{32}")
_SMALL_BYTES: Final = 16 * 1024 * 1024  # of every member but the store and the images
_CHUNK_BYTES: Final = 1024 * 1024
#: Level 1 takes a third of the time of level 6 for a file that is a tenth larger.
_LEVEL: Final = 1

#: Told how many bytes were read or written since the last call.
Progress = Callable[[int], None]
KeyIn = Literal["included", "sealed", "left out"]


class BackupError(Exception):
    """The file is no backup that can be used. The text is one line for the operator."""


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a backup, and the versions that can restore it."""

    format: int
    version: str  # of Trunkline
    made_at: str  # ISO 8601, UTC
    steps: tuple[str, ...]  # the schema steps of the store
    bytes: int  # of the store and the images
    key: KeyIn


class BackupWriter:
    """Writes the members one after the other."""

    def __init__(self, file: IO[bytes], *, is_compressed: bool, progress: Progress) -> None:
        self._gzip = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_LEVEL) if is_compressed else None
        self._tar = tarfile.open(fileobj=self._gzip or file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `finish`
        self._tar.copybufsize = _CHUNK_BYTES  # type: ignore[attr-defined]  # documented; typeshed lacks it
        self._progress = progress
        self._sums: list[str] = []

    def begin(self, manifest: BackupManifest) -> None:
        self.add_bytes(_MANIFEST, msgspec.json.encode(manifest))

    def add_bytes(self, name: str, content: bytes) -> None:
        self._add(name, io.BytesIO(content), len(content))

    def add_file(self, name: str, path: Path) -> None:
        """Raises OSError."""
        with path.open("rb") as file:
            self._add(name, file, os.fstat(file.fileno()).st_size)

    def _add(self, name: str, source: IO[bytes], size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        hashing = _Hashing(source, self._progress)
        self._tar.addfile(member, hashing)
        self._sums.append(f"{hashing.digest.hexdigest()}  {name}\n")

    def finish(self) -> None:
        """Write the checksums. The caller closes the file."""
        self.add_bytes(_SUMS, "".join(self._sums).encode())
        self._tar.close()
        if self._gzip is not None:
            self._gzip.close()


class _Hashing(io.RawIOBase):
    """A reader that hashes what it gives out."""

    def __init__(self, source: IO[bytes], progress: Progress) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self._source = source
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.digest.update(data)
        self._progress(len(data))
        return data


def read_manifest(path: Path) -> BackupManifest:
    """The manifest of a backup. Raises BackupError, OSError."""
    with _reading(path) as tar:
        return _first(tar, path)


def unpack(path: Path, folder: Path, *, progress: Progress) -> BackupManifest:
    """Write every member into `folder`, durably, and compare all with the checksums.

    Raises:
        BackupError: the file is no backup, or not a whole one. OSError: a file cannot be read or written.
    """
    digests: dict[str, str] = {}
    sums: bytes | None = None
    (folder / IMAGES).mkdir(mode=0o700)
    with _reading(path) as tar:
        manifest = _first(tar, path, digests)
        while (member := tar.next()) is not None:
            if sums is not None or not _is_expected(member) or member.name in digests:
                raise BackupError(f"{path}: not a backup of Trunkline: it has {member.name!r}")
            source = tar.extractfile(member)
            assert source is not None  # noqa: S101 - a regular file: `_is_expected`
            if member.name == _SUMS:
                sums = source.read()
            else:
                digests[member.name] = _write(source, folder / member.name, progress)
    if sums is None or sums.decode(errors="replace") != "".join(f"{sum_}  {name}\n" for name, sum_ in digests.items()):
        raise BackupError(f"{path}: damaged or incomplete: its contents are not those of its checksums")
    if STORE not in digests:
        raise BackupError(f"{path}: not a backup of Trunkline: it has no store")
    return manifest


@contextmanager
def _reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with _opened(path) as tar:
            yield tar
    except tarfile.ReadError as error:
        raise BackupError(f"{path}: damaged, incomplete or not a backup: {error}") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise BackupError(f"{path}: damaged or incomplete: {error}") from error


def _opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r|*")
    except (TypeError, AttributeError) as error:  # the head of gzip ends too early. tarfile of 3.11.2 raises the latter
        raise tarfile.ReadError("its head is incomplete") from error


def _first(tar: tarfile.TarFile, path: Path, digests: dict[str, str] | None = None) -> BackupManifest:
    member = tar.next()
    source = None if member is None or member.name != _MANIFEST or not _is_expected(member) else tar.extractfile(member)
    if source is None:
        raise BackupError(f"{path}: not a backup of Trunkline")
    content = source.read()
    if digests is not None:
        digests[_MANIFEST] = hashlib.sha256(content).hexdigest()
    try:
        found = msgspec.json.decode(content, type=dict[str, object])
        if found.get("format") != FORMAT:
            version = str(found.get("version", "another version"))
            raise BackupError(f"{path}: Trunkline {version} has made this backup, and this version cannot read it")
        return msgspec.convert(found, BackupManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(f"{path}: not a backup of Trunkline: {error}") from error


def _is_expected(member: tarfile.TarInfo) -> bool:
    if not member.isreg():
        return False
    if member.name == STORE or _IMAGE.fullmatch(member.name):
        return True
    return member.name in {_MANIFEST, KEY, SEALED_KEY, _SUMS} and member.size <= _SMALL_BYTES


def _write(source: IO[bytes], path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            progress(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


class CopyPace:
    """Limits the bytes per second of a backup, so that it leaves the disk to the daemon."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._now, self._sleep = now, sleep
        self._free_at = now()

    def spend(self, count: int) -> None:
        """Wait until `count` bytes more are within the rate. Time that was not used is not made up for later."""
        now = self._now()
        self._free_at = max(self._free_at, now) + count / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)
