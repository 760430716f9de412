"""Claims: an address that nobody had proved to own is proved (reference 4.2), by a reset mail, an identity provider or
an invitation, or an operator gives it to its owner.

Anybody may have opened an account with the address. So the person who proves it gets a new account, and
the former one is closed: it loses the address, cannot be signed in to, and everything of it ends in the transaction of
the claim. A new account has a new key, so that what a capability forgot to end still does not reach the new holder.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from broker.accounts.issuance import Issuance
from broker.accounts.sign_up import add_account
from broker.accounts.users import LOCAL
from broker.ids import new_id
from broker.trace.audit import AuditEvent, note
from storage.claims import ClaimRecord
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.records import UserRecord

#: Most names of each kind that are kept for the page.
_NAMES_KEPT: Final = 100

#: Ends the objects of a user in one capability, within the transaction, and returns their names. It tells what
#: others keep in memory.
Ender = Callable[[Issuance, UserRecord], Sequence[str]]


class Ended(msgspec.Struct, frozen=True):
    """The objects of one kind that ended: their first names, and how many in all."""

    kind: str
    names: tuple[str, ...]
    count: int


class Claim(msgspec.Struct, frozen=True):
    """The objects of the closed account `former` (an id) when its address was claimed."""

    former: str
    claimed_on: Milliseconds
    ended: tuple[Ended, ...]


class Claims:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._enders: list[tuple[str, Ender]] = [
            ("Applications with access", _end_applications),
            ("Second factor", _end_second_factor),
        ]

    def ends(self, kind: str, ender: Ender) -> None:
        """Have a claim end this, too. `kind` is its heading on the page."""
        self._enders.append((kind, ender))

    def claim(
        self,
        issuance: Issuance,
        former: UserRecord,
        *,
        password_hash: str | None,
        full_name: str = "",
        account_type: str = LOCAL,
        id_: str | None = None,
        email: str | None = None,
    ) -> UserRecord:
        """Close the account `former`, whose address is not verified; return the new account with its address.

        `id_`: of the new account; where it is that of the former one, the former one gets another. `email`: the address
        in another writing.
        """
        tx, now_ms = issuance.tx, issuance.now_ms
        issuance.end_everything_of(former.key)
        for token in tx.accounts.tokens_of_user(former.key):
            issuance.end_token(token)
        ended = self.end_all(issuance, former)
        closed = new_id() if id_ == former.id else former.id
        tx.accounts.close_user(
            former.key, id_=closed, email=f"{closed}@claimed.invalid", name=closed, disabled_on=now_ms
        )
        user = add_account(
            tx,
            email or former.email,
            full_name=full_name,
            password_hash=password_hash,
            now_ms=now_ms,
            id_=id_,
            account_type=account_type,
        )
        if former.disabled_on is not None:  # a disabled user does not come back by a mail
            tx.accounts.set_disabled(user.key, former.disabled_on)
        content = msgspec.json.encode([one for one in ended if one.count]).decode()
        tx.claims.put(ClaimRecord(user.key, closed, Milliseconds(now_ms), content))
        note(tx, AuditEvent.ACCOUNT_CLAIMED, f"account {user.id}", now_ms=now_ms, former=closed)
        return user

    def end_all(self, issuance: Issuance, user: UserRecord) -> list[Ended]:
        """End what every capability has of a user."""
        return [_ended(kind, ender(issuance, user)) for kind, ender in self._enders]

    async def of(self, user: UserKey) -> Claim | None:
        """The claim by which the user got the address; None if the user opened the account."""
        found = await self._database.read(lambda tx: tx.claims.of(user))
        if found is None:
            return None
        return Claim(found.former, found.claimed_on, msgspec.json.decode(found.content, type=tuple[Ended, ...]))


def _ended(kind: str, names: Sequence[str]) -> Ended:
    return Ended(kind, tuple(names[:_NAMES_KEPT]), len(names))


def _end_applications(issuance: Issuance, user: UserRecord) -> Sequence[str]:
    names = []
    for application in issuance.end_grants_of(user.key):
        record = issuance.tx.accounts.application(application)
        names.append("" if record is None else record.name)
    return sorted(names)


def _end_second_factor(issuance: Issuance, user: UserRecord) -> Sequence[str]:
    return ("one-time codes of an app",) if issuance.tx.second_factors.remove(user.key) else ()
