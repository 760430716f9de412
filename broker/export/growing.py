"""An archive that grows piece by piece: what its forms (`archive.py`, `zipped.py`) have in common."""

import hashlib


class GrowingArchive:
    """The bytes that were added, until they are taken; the size and the MD5 of all."""

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
