"""A `.tgz` that is written entry by entry and can be continued after a restart.

Each entry is a gzip member of its own; readers take consecutive members as one stream. So everything up to an entry is
a valid beginning.
"""

import hashlib
import tarfile
import zlib

_LEVEL = 4  # any level compresses messages to a tenth; this one is as fast as reading them
_GZIP = 31  # zlib's name for the gzip format with its largest window
_BLOCK = 512


class GrowingArchive:
    """Common to `.tgz` and `.zip` (zipped.py): the bytes that were added, until they are taken; size and MD5 of all."""

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._added: list[bytes] = []
        self.size = 0

    def resume_with(self, piece: bytes) -> None:
        """The next bytes of the beginning, which was written before."""
        self._md5.update(piece)
        self.size += len(piece)

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def _append(self, content: bytes) -> None:
        self._added.append(content)
        self.resume_with(content)

    def take(self) -> bytes:
        """The bytes that were added since the last call."""
        taken, self._added = b"".join(self._added), []
        return taken


class Archive(GrowingArchive):
    def add(self, name: str, content: bytes, *, now_ms: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = len(content), now_ms // 1000
        head = info.tobuf(tarfile.USTAR_FORMAT)
        self._append(_member(head + content + bytes(-len(content) % _BLOCK)))

    def finish(self) -> None:
        """Add the end of the archive."""
        self._append(_member(bytes(2 * _BLOCK)))


def _member(content: bytes) -> bytes:
    return zlib.compress(content, _LEVEL, _GZIP)
