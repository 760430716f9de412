"""A `.tgz` that is written entry by entry and can be continued after a restart.

Each entry is a gzip member of its own; readers take consecutive members as one stream. So everything up to an entry is
a valid beginning.
"""

import tarfile
import zlib

from broker.export.growing import GrowingArchive

_LEVEL = 4  # any level compresses messages to a tenth; this one is as fast as reading them
_GZIP = 31  # zlib's name for the gzip format with its largest window
_BLOCK = 512


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
