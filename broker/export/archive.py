"""A `.tgz` that is written entry by entry and can be continued after a restart.

Each entry is a gzip member of its own; readers take consecutive members as one stream. So the file up to a checkpoint
is a valid beginning, and everything after it can be cut off.
"""

import hashlib
import os
import tarfile
import zlib
from pathlib import Path

_LEVEL = 4  # any level compresses messages to a tenth; this one is as fast as reading them
_GZIP = 31  # zlib's name for the gzip format with its largest window
_BLOCK = 512
_READ_BYTES = 1024 * 1024


class Archive:
    """The file at `path`, of which the first `size` bytes are valid."""

    def __init__(self, path: Path, *, size: int = 0) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0
        while self.size < size and (chunk := self._file.read(min(_READ_BYTES, size - self.size))):
            self._md5.update(chunk)
            self.size += len(chunk)
        self._file.truncate(self.size)

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def add(self, name: str, content: bytes, *, now_ms: int) -> None:
        """Add an entry, synced to the disk on return. Raises OSError."""
        info = tarfile.TarInfo(name)
        info.size, info.mtime = len(content), now_ms // 1000
        head = info.tobuf(tarfile.USTAR_FORMAT)
        self._append(head + content + bytes(-len(content) % _BLOCK))

    def finish(self) -> None:
        """Write the end of the archive. Raises OSError."""
        self._append(bytes(2 * _BLOCK))

    def _append(self, content: bytes) -> None:
        member = zlib.compress(content, _LEVEL, _GZIP)
        self._file.write(member)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._md5.update(member)
        self.size += len(member)

    def close(self) -> None:
        self._file.close()
