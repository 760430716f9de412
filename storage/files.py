"""Files in the store: firmware images, archives of exports and of users. The caller holds the transaction.

A file that belongs to something has a name and is kept. Any other file has a time after which it is deleted, some
chunks at a time: what comes over the network or from a disk has no name before it is whole.
"""

from typing import Final, NewType

from storage.keys import Milliseconds
from storage.sql import Store, sure

FileKey = NewType("FileKey", int)

#: A chunk has at most this many bytes. It is written and read in one piece.
CHUNK_BYTES: Final = 256 * 1024


class FileStore(Store):
    def begin(self, *, name: str | None = None, due_on: Milliseconds | None = None) -> FileKey:
        """A new file without content. It has a name and is kept, or else `due_on` is when it is deleted."""
        row = self._insert("file", {"name": name, "size": 0, "due_on": due_on}, "RETURNING key").one()
        return FileKey(sure(row)["key"])

    def append(self, file: FileKey, position: int, content: bytes) -> None:
        """Add bytes at the end, which is `position`."""
        for start in range(0, len(content), CHUNK_BYTES):
            piece = content[start : start + CHUNK_BYTES]
            self._insert("file_chunk", {"file": file, "position": position + start, "content": piece})
        size = position + len(content)
        self._db.execute("UPDATE file SET size = :size WHERE key = :file", {"size": size, "file": file})

    def append_to(self, name: str, content: bytes) -> None:
        """Add bytes at the end of the file of this name, which is made if it is not there."""
        file, size = self.find(name) or (self.begin(name=name), 0)
        self.append(file, size, content)

    def keep(self, file: FileKey, name: str) -> bool:
        """The file is whole, and belongs to what the name says. False: it was deleted since."""
        sql = "UPDATE file SET name = :name, due_on = NULL WHERE key = :file RETURNING key"
        return self._db.execute(sql, {"name": name, "file": file}).one() is not None

    def end(self, name: str, *, due_on: Milliseconds = Milliseconds(0)) -> None:
        """The file of this name, if there is one, has no name any more, and is deleted after `due_on`."""
        sql = "UPDATE file SET name = NULL, due_on = :due WHERE name = :name"
        self._db.execute(sql, {"name": name, "due": due_on})

    def drop(self, file: FileKey) -> None:
        """Delete a file that did not become whole, soon."""
        self._db.execute("UPDATE file SET due_on = 0 WHERE key = :file AND name IS NULL", {"file": file})

    def drop_unnamed(self) -> None:
        """Delete all files that do not belong to anything, soon: nobody is at work on one."""
        self._db.execute("UPDATE file SET due_on = 0 WHERE due_on > 0")

    def find(self, name: str) -> tuple[FileKey, int] | None:
        """The file of this name, and its bytes."""
        row = self._db.execute("SELECT key, size FROM file WHERE name = :name", {"name": name}).one()
        return (FileKey(row["key"]), int(row["size"])) if row else None

    def read(self, file: FileKey, position: int, size: int) -> bytes:
        """Bytes from a position on: at most `size`, and only of one chunk; none behind the end."""
        row = self._db.execute(
            "SELECT position, content FROM file_chunk WHERE file = :file AND position <= :position"
            " ORDER BY position DESC LIMIT 1",
            {"file": file, "position": position},
        ).one()
        if row is None:
            return b""
        start = position - row["position"]
        return bytes(row["content"][start : start + size])

    def due(self, now_ms: Milliseconds) -> list[FileKey]:
        """Files to delete."""
        rows = self._db.execute("SELECT key FROM file WHERE due_on <= :now ORDER BY key", {"now": now_ms})
        return [FileKey(row["key"]) for row in rows]

    def delete_some(self, file: FileKey, *, chunks: int) -> bool:
        """Delete the last chunks of a file, and the file when it has no more. Whether more is left."""
        rows = self._db.execute(
            "DELETE FROM file_chunk WHERE file = :file AND position IN (SELECT position FROM file_chunk"
            " WHERE file = :file ORDER BY position DESC LIMIT :chunks) RETURNING position",
            {"file": file, "chunks": chunks},
        )
        if sum(1 for _ in rows) >= chunks:
            return True
        self._db.execute("DELETE FROM file WHERE key = :file", {"file": file})
        return False
