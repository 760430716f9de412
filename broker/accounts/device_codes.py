"""The person's part of the limited-input flow (RFC 8628, 3.3; reference 4.4): typing a user code and deciding about it.

For the page at `/go`. The signed-in person types the code. `find` returns which application the code belongs to and
what it asks for. The page always shows that and asks; `approve` or `deny` decides. The application's next poll at
`/token` returns the outcome. Every method counts wrong codes, by IP address and by code, against guessing.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.accounts.applications import Application
from broker.accounts.consent import ConsentScreen, save_consent, screen_of
from broker.accounts.throttle import Throttle
from broker.clock import Clock
from broker.errors import NotFound
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import address_key
from config.limits import USER_CODE_MISSES, USER_CODE_WINDOW_SECONDS
from storage.database import Database
from storage.keys import UserKey
from storage.records import DeviceCodeRecord
from storage.transaction import Transaction

#: Of user codes, such as `XXXX-XXXX`: without characters that look alike (reference 1.1).
ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_TYPED: Final = re.compile(rf"([{ALPHABET}]{{4}})-?([{ALPHABET}]{{4}})")


def new_user_code() -> str:
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(4)) for _ in range(2))


def typed_user_code(text: str) -> str | None:
    """The code that a person typed, in the form that devices show; None for other texts.

    Case, blanks and the dash do not matter.
    """
    typed = "".join(text.split())
    match = _TYPED.fullmatch(typed.upper()) if typed.isascii() else None  # other letters may become these
    return None if match is None else f"{match[1]}-{match[2]}"


@dataclass(eq=False)
class UserCodeNotFound(NotFound):
    """No device waits for this code: the code is unknown, has expired, or was decided."""

    template = "This code is not valid."


class WaitingDevice(msgspec.Struct, frozen=True):
    """The content of the page before it asks. `user_code` is in the form that the device shows, with the dash."""

    user_code: str
    screen: ConsentScreen


class _Decided(msgspec.Struct, frozen=True):
    """When nothing was decided, `instead` is shown."""

    instead: WaitingDevice | None = None


class DeviceCodes:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._throttle = Throttle(clock, misses=USER_CODE_MISSES, window_seconds=USER_CODE_WINDOW_SECONDS)

    async def find(self, user_code: str, *, address: str) -> WaitingDevice:
        """The device that waits for this code.

        Args:
            user_code: as typed; the dash is optional.
            address: the person's IP address.

        Raises:
            UserCodeNotFound: no device waits for this code.
            TooManyAttempts: too many wrong codes came from this address, or this code was tried too often.
        """
        code = self._typed(user_code, address)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> WaitingDevice | None:
            found = _waiting(tx, code, now_ms)
            return WaitingDevice(found[0].user_code, screen_of(tx, found[1])) if found is not None else None

        waiting = await self._database.look_up(work)
        if waiting is None:
            raise self._missed(code, address)
        return waiting

    async def approve(self, waiting: WaitingDevice, user: UserKey, *, address: str) -> WaitingDevice | None:
        """Store the grants that `find` returned, and let the application's next poll have tokens. Raises as `find`.

        Returns:
            None; or, when the application now asks for something else, what to show instead. Then nothing was stored.
        """
        return await self._decide(waiting.user_code, user, address, agreed=waiting)

    async def deny(self, user_code: str, user: UserKey, *, address: str) -> None:
        """Let the application's next poll have `access_denied`. Raises as `find`."""
        await self._decide(user_code, user, address, agreed=None)

    async def _decide(
        self, user_code: str, user: UserKey, address: str, *, agreed: WaitingDevice | None
    ) -> WaitingDevice | None:
        code = self._typed(user_code, address)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> _Decided | None:
            found = _waiting(tx, code, now_ms)
            if found is None:
                return None
            record, application = found
            if agreed is None:
                tx.authorizations.decide_device_code(record.hash, state="denied", user=user)
                asker = f"application {application.id}"
                note(tx, AuditEvent.CONSENT_DENIED, asker, now_ms=now_ms, outcome="refused")
                return _Decided()
            shown = WaitingDevice(record.user_code, screen_of(tx, application))
            if shown != agreed:
                return _Decided(instead=shown)
            tx.authorizations.decide_device_code(record.hash, state="approved", user=user)
            note(tx, AuditEvent.CONSENT_GIVEN, f"application {application.id}", now_ms=now_ms)
            save_consent(tx, application, user)
            return _Decided()

        decided = await self._database.write(work)
        if decided is None:
            raise self._missed(code, address)
        return decided.instead

    def _typed(self, user_code: str, address: str) -> str:
        self._throttle.check(address_key(address), f"code {user_code[:16]}")
        code = typed_user_code(user_code)
        if code is None:
            raise self._missed(user_code[:16], address)
        self._throttle.check(f"code {code}")
        return code

    def _missed(self, code: str, address: str) -> UserCodeNotFound:
        self._throttle.missed(address_key(address), f"code {code}")
        return UserCodeNotFound()


def _waiting(tx: Transaction, code: str, now_ms: int) -> tuple[DeviceCodeRecord, Application] | None:
    found = tx.authorizations.device_code_shown_as(code)
    if found is None or found.state != "pending" or found.expires_on <= now_ms:
        return None
    record = tx.accounts.application(found.application)
    return (found, Application(record)) if record is not None else None
