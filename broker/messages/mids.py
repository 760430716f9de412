"""Public message ids: the log position and a keyed tag over it, 16 bytes in hex.

A lookup by mid is a lookup by rowid, mids grow with the log, and a client can neither guess nor enumerate mids.
"""

import hmac
from hashlib import blake2b

from broker.ids import is_id
from storage.keys import Position


class Mids:
    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(digest_size=8, key=key)

    def mid(self, position: Position) -> str:
        packed = position.to_bytes(8, "big")
        tag = self._keyed.copy()  # takes 0.6 of the time of a new one
        tag.update(packed)
        return packed.hex() + tag.hexdigest()

    def position(self, mid: str) -> Position | None:
        """The position in a mid; None when this store never issued the mid."""
        if not is_id(mid):
            return None
        position = Position(int(mid[:16], 16))
        if position >= 1 << 63 or not hmac.compare_digest(self.mid(position), mid):
            return None
        return position
