"""How `parquet` and `parquet_writing` talk. The program that writes imports no more of the broker than this: all of it
would take longer to load than the library.
"""

from typing import IO, Final

import msgspec

_LENGTH: Final = 8


class ParquetColumn(msgspec.Struct, frozen=True):
    name: str
    kind: str
    is_list: bool = False
    unit: str = ""


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH) + content


def read_frame(stream: IO[bytes]) -> bytes:
    """Raises EOFError."""
    length = int.from_bytes(_read(stream, _LENGTH))
    return _read(stream, length)


def _read(stream: IO[bytes], number: int) -> bytes:
    content = stream.read(number)
    if len(content) < number:
        raise EOFError
    return content
