"""Writes one Parquet file. A program of its own, with which `parquet.ParquetFile` talks through its standard input and
output: each request and each answer is a length in 8 bytes and that many bytes.

The first request has the columns as JSON, the next ones rows, column by column, and one without bytes ends the file.
The answer to each is what the file has grown by. In a process of its own, the library takes neither the daemon's memory
nor can an error in it end the daemon, which never imports this module, as pyarrow may be missing.
"""

import os
import resource
import sys
from typing import IO, Final, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from broker.export.parquet_frames import ParquetColumn, framed, read_frame

#: Of the process's memory, most of which the library only reserves.
_MEMORY_BYTES: Final = 4 * 1024**3
#: Rows of a group: readers take a group at a time, and hold it in memory.
_GROUP_ROWS: Final = 100_000
_GROUP_BYTES: Final = 64 * 1024**2
_TYPES: Final = {
    "time": pa.timestamp("ms", tz="UTC"),
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
}


class _Grown:
    """A file that only grows, and gives the bytes that were written since the last look."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, content: bytes) -> int:
        self._parts.append(bytes(content))
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def taken(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def schema_of(columns: list[ParquetColumn]) -> pa.Schema:
    fields = []
    for one in columns:
        kind = pa.list_(_TYPES[one.kind]) if one.is_list else _TYPES[one.kind]
        fields.append(pa.field(one.name, kind, metadata={"unit": one.unit} if one.unit else None))
    return pa.schema(fields)


def write_parquet(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the file has ended."""
    schema = schema_of(msgspec.json.decode(read_frame(requests), type=list[ParquetColumn]))
    grown = _Grown()
    writer = pq.ParquetWriter(pa.PythonFile(grown, mode="w"), schema, compression="zstd")
    waiting: list[pa.RecordBatch] = []

    def write_group() -> None:
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
            waiting.clear()

    def answer() -> None:
        answers.write(framed(grown.taken()))
        answers.flush()

    answer()
    while request := read_frame(requests):
        columns = msgspec.json.decode(request)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        waiting.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        if sum(one.num_rows for one in waiting) >= _GROUP_ROWS or sum(one.nbytes for one in waiting) >= _GROUP_BYTES:
            write_group()
        answer()
    write_group()
    writer.close()
    answer()


def main() -> NoReturn:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    write_parquet(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout.flush()
    os._exit(0)  # threads of the library may hold up a usual end


if __name__ == "__main__":
    main()
