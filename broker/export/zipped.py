"""A `.zip` that is written piece by piece and can be continued after a restart.

Each piece of a file ends at a byte, with nothing that a later piece refers to; so a piece is compressed alone, and
everything up to its end is a valid beginning. Sizes and checksums stand behind each file and in the directory at the
end (APPNOTE.TXT 4.3.9 and 4.4.4), all in the form that has 8 bytes for them: nobody knows before how long a file gets.
"""

import struct
import zlib
from typing import Final

import msgspec

from broker.export.archive import GrowingArchive

_LEVEL: Final = 4
_RAW: Final = -15  # zlib's name for deflate without a head
_LAST_BLOCK: Final = b"\x03\x00"  # an empty block of deflate that is the last one
_VERSION: Final = 45  # of the format: sizes of 8 bytes
_FLAGS: Final = 0x0808  # sizes come behind the content; the name is UTF-8
_DEFLATED: Final = 8
_UNKNOWN: Final = 0xFFFFFFFF
_FIRST_YEAR: Final = 1980


class ZipEntry(msgspec.Struct, array_like=True):
    """One file: where its head begins, and what is known of its content so far."""

    name: str
    at: int
    crc: int = 0
    size: int = 0
    packed: int = 0


class Zip(GrowingArchive):
    """`entries` is what a continued archive needs of the beginning."""

    def __init__(self, entries: list[ZipEntry]) -> None:
        super().__init__()
        self.entries = entries

    def begin(self, name: str) -> None:
        """Begin a file."""
        self.entries.append(ZipEntry(name, self.size))
        encoded = name.encode()
        extra = struct.pack("<HHQQ", 1, 16, 0, 0)
        head = struct.pack(
            "<IHHHHHIIIHH",
            0x04034B50,
            _VERSION,
            _FLAGS,
            _DEFLATED,
            *_NO_TIME,
            0,
            _UNKNOWN,
            _UNKNOWN,
            len(encoded),
            len(extra),
        )
        self._append(head + encoded + extra)

    def add(self, content: bytes, *, is_packed: bool = False) -> None:
        """Add to the file that was begun last. `is_packed`: it is compressed already."""
        if not content:
            return
        packer = zlib.compressobj(0 if is_packed else _LEVEL, zlib.DEFLATED, _RAW)
        self._append_packed(packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH))
        entry = self.entries[-1]
        entry.crc = zlib.crc32(content, entry.crc)
        entry.size += len(content)

    def end(self) -> None:
        """End the file that was begun last."""
        self._append_packed(_LAST_BLOCK)
        entry = self.entries[-1]
        self._append(struct.pack("<IIQQ", 0x08074B50, entry.crc, entry.packed, entry.size))

    def finish(self) -> None:
        """Add the directory. All files have ended."""
        begin = self.size
        for entry in self.entries:
            self._append(_listed(entry))
        length, number = self.size - begin, len(self.entries)
        large = struct.pack(
            "<IQHHIIQQQQ", 0x06064B50, 44, _VERSION, _VERSION, 0, 0, number, number, length, begin
        ) + struct.pack("<IIQI", 0x07064B50, 0, self.size, 1)
        end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, _UNKNOWN, _UNKNOWN, 0)
        self._append(large + end)

    def _append_packed(self, content: bytes) -> None:
        self.entries[-1].packed += len(content)
        self._append(content)


#: The time of each file: none, so that the same messages make the same archive.
_NO_TIME: Final = (0, 1 << 5 | 1)  # midnight, the first day of `_FIRST_YEAR`


def _listed(entry: ZipEntry) -> bytes:
    """The entry of the directory."""
    name = entry.name.encode()
    extra = struct.pack("<HHQQQ", 1, 24, entry.size, entry.packed, entry.at)
    readable = 0o100644 << 16  # a file that its owner writes and all read
    made_by = 3 << 8 | _VERSION  # Unix
    head = struct.pack(
        "<IHHHHHHIIIHHHHHII",
        0x02014B50,
        made_by,
        _VERSION,
        _FLAGS,
        _DEFLATED,
        *_NO_TIME,
        entry.crc,
        _UNKNOWN,
        _UNKNOWN,
        len(name),
        len(extra),
        0,
        0,
        0,
        readable,
        _UNKNOWN,
    )
    return head + name + extra
