"""The id of a store: the same in its backups, and in no other store."""

from hashlib import blake2b
from typing import Final

_PERSON: Final = b"trunkline-store"


def store_id(mid_key: bytes) -> str:
    """32 hexadecimal digits, of the key of the store's mids, which cannot be found from them."""
    return blake2b(b"", digest_size=16, key=mid_key, person=_PERSON).hexdigest()
