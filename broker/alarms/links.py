"""Signed links that acknowledge an alarm without a sign-in (reference 12.13)."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import Final

from broker.clock import Clock
from broker.ids import is_id
from broker.secrets import Vault
from broker.site import Site
from config.limits import ALARM_LINK_HOURS

_ID_BYTES: Final = 16
_TIME_BYTES: Final = 6
_TAG_BYTES: Final = 16
_PURPOSE: Final = "links of alarms"


class AlarmLinks:
    """A link has the alarm's id, when it expires, and a keyed tag of both. It ends with the key of the store."""

    def __init__(self, vault: Vault, clock: Clock, site: Site) -> None:
        self._key = vault.derived(_PURPOSE)
        self._clock = clock
        self._site = site

    def link(self, alarm_id: str) -> str:
        return f"{self._site.mailed_accounts_url}/alarm?code={self.code(alarm_id)}"

    def code(self, alarm_id: str) -> str:
        expires_s = self._clock.now_ms() // 1000 + ALARM_LINK_HOURS * 3600
        content = bytes.fromhex(alarm_id) + expires_s.to_bytes(_TIME_BYTES, "big")
        return urlsafe_b64encode(content + self._tag(content)).decode()

    def alarm_of(self, code: str) -> str | None:
        """The id of the alarm; None: the code is not valid, or over."""
        try:
            read = urlsafe_b64decode(code.encode("ascii"))
        except (Error, ValueError):
            return None
        if len(read) != _ID_BYTES + _TIME_BYTES + _TAG_BYTES:
            return None
        content, tag = read[:-_TAG_BYTES], read[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(content)):
            return None
        expires_s = int.from_bytes(content[_ID_BYTES:], "big")
        alarm_id = content[:_ID_BYTES].hex()
        return alarm_id if self._clock.now_ms() // 1000 < expires_s and is_id(alarm_id) else None

    def _tag(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")[:_TAG_BYTES]
