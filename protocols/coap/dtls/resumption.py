"""DTLS sessions that their devices may resume (RFC 5246, 7.3), with certificates and with pre-shared keys.

A session is kept in memory once its peer has proved which device it is: with a pre-shared key in the handshake, with a
certificate or none by a request that was not refused. So strangers take no place here.

A resumed session has the rights of a full handshake and no more: whether the token is valid and the certificate is
trusted is asked for each request. A session with a pre-shared key is for the key of now alone.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.streams.tls import SESSION_SECONDS

#: Sessions of one device: some have a second connection, and one that has lost its memory begins a new session.
SESSIONS_PER_DEVICE: Final = 4
SESSIONS: Final = 16_384
SESSIONS_BYTES: Final = 32 * 1024 * 1024
#: Bytes of a session beside its data: its names, and its places in both dictionaries (measured, rounded up).
_ENTRY_BYTES: Final = 1024


class Resumable(NamedTuple):
    """A session as GnuTLS gives it: its id, which ClientHello and ServerHello show to everybody, and all of it."""

    id: bytes
    data: bytes


class KeptSession(NamedTuple):
    """A session, the id of its device, the hash of its pre-shared key if it has one, and its end."""

    session: Resumable
    device: str
    key: bytes | None
    until: float

    def has(self, key: bytes) -> bool:
        """Whether the session was begun with this pre-shared key."""
        return self.key == hashlib.sha256(key).digest()


class KeptSessions:
    """The sessions of one listener, the oldest first. Beyond a bound, the oldest are forgotten."""

    def __init__(self, now: Callable[[], float]) -> None:
        """None yet; `now` gives seconds."""
        self._now = now
        self._kept: OrderedDict[bytes, KeptSession] = OrderedDict()
        self._by_device: dict[str, list[bytes]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, session: Resumable, key: bytes | None, device: str) -> None:
        """Keep a session of a device for SESSION_SECONDS; `key` is its pre-shared key."""
        self.forget(session.id)
        now, hashed = self._now(), None if key is None else hashlib.sha256(key).digest()
        self._kept[session.id] = KeptSession(session, device, hashed, now + SESSION_SECONDS)
        self._bytes += len(session.data) + _ENTRY_BYTES
        of_device = self._by_device.setdefault(device, [])
        of_device.append(session.id)
        if len(of_device) > SESSIONS_PER_DEVICE:
            self.forget(of_device[0])
        while len(self._kept) > SESSIONS or self._bytes > SESSIONS_BYTES or self._oldest.until <= now:
            self.forget(self._oldest.session.id)

    @property
    def _oldest(self) -> KeptSession:
        return next(iter(self._kept.values()))

    def find(self, id_: bytes) -> KeptSession | None:
        """The session with this id, unless its time is over."""
        kept = self._kept.get(id_)
        return kept if kept is not None and kept.until > self._now() else None

    def forget(self, id_: bytes) -> None:
        """The session is not resumed any more, if there is one."""
        kept = self._kept.pop(id_, None)
        if kept is None:
            return
        self._bytes -= len(kept.session.data) + _ENTRY_BYTES
        of_device = self._by_device[kept.device]
        of_device.remove(id_)
        if not of_device:
            del self._by_device[kept.device]
