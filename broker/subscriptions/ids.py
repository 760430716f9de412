"""Public ids of notifications: made of their keys, as those of messages are made of their positions."""

from hashlib import blake2b

from broker.messages.mids import Mids
from storage.keys import Position


class NotificationIds:
    def __init__(self, mid_key: bytes) -> None:
        """`mid_key` is the secret of message ids; that of notifications is derived from it."""
        self._tagged = Mids(blake2b(key=mid_key, person=b"notifications").digest()[:32])

    def id_of(self, key: int) -> str:
        return self._tagged.mid(Position(key))

    def key_of(self, id_: str) -> int | None:
        """None when this store never gave out the id."""
        return self._tagged.position(id_)
