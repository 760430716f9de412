"""Deleting applications (reference 27.21).

One transaction ends everything that an application has: tokens, grants, codes, and the objects that capabilities end in
`ApplicationEnds.ends`. Devices, their tokens and their messages stay: they are of their owners.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from broker.accounts.applications import Method
from broker.accounts.issuance import Issuance
from broker.accounts.organizations import require_administrator
from broker.accounts.tokens import CONSOLE_ID, Caller, Tokens
from broker.cluster.kinds import publish
from broker.errors import Conflict, NotFound
from broker.facts import ApplicationGrantsChanged
from broker.ids import new_id
from broker.secrets import Vault
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.records import ApplicationRecord
from storage.transaction import Transaction

#: The kind of the provision marks of applications.
PROVISIONED: Final = "application"
OF_CONSOLE: Final = "It is the application of the console"
OF_FILE: Final = (
    "A provision file makes this application: take it out of the file and apply the file. Then it can be deleted"
)
LAST_MANAGER: Final = (
    "It is the only application that manages its organization: let another one manage it, or let this one not"
)

#: Ends what a capability has of an application, within the transaction. See `broker/accounts/claims.py: Ender`.
Ender = Callable[[Issuance, ApplicationRecord], None]


class Consequences(msgspec.Struct, frozen=True):
    """The objects that a deletion would end, by kind, and why the application cannot be deleted; None: it can be."""

    counts: Mapping[str, int]
    refusal: str | None


class ApplicationEnds:
    """The caller of a method has found the application for its caller (`Organizations.application`)."""

    def __init__(self, database: Database, tokens: Tokens, vault: Vault) -> None:
        self._database = database
        self._tokens = tokens
        self._vault = vault
        self._enders: list[tuple[str, Ender]] = []

    def ends(self, table: str, ender: Ender) -> None:
        """Have a deletion end this, too. `table` is one of `storage/application_ends.py: OBJECTS`."""
        self._enders.append((table, ender))

    @property
    def tables(self) -> Sequence[str]:
        return [table for table, _ in self._enders]

    async def consequences(self, application: ApplicationRecord) -> Consequences:
        """The consequences of deleting the application. Raises NotFound: it is already deleted."""

        def work(tx: Transaction) -> Consequences:
            known = _present(tx, application)
            return Consequences(self._counts(tx, known), _refusal(tx, known))

        return await self._database.read(work)

    async def delete(self, caller: Caller, application: ApplicationRecord) -> ApplicationRecord:
        """Delete an application; return it as it was. One with rights of its own is deleted by an administrator.

        Raises NotFound: it is already deleted; PermissionDenied; Conflict: it cannot be deleted.
        """
        no_secret = self._vault.seal(new_id())

        def work(issuance: Issuance) -> ApplicationRecord:
            tx = issuance.tx
            known = _present(tx, application)
            if known.manages_organization or Method.CLIENT_CREDENTIALS in known.methods:
                require_administrator(tx, caller, known.organization)
            if (refusal := _refusal(tx, known)) is not None:
                raise Conflict(refusal)
            counts = self._counts(tx, known)
            for _, ender in self._enders:
                ender(issuance, known)
            issuance.tell_revoked(tx.application_ends.token_hashes(known.key))
            users = tx.application_ends.users(known.key)
            if users:
                publish(tx, ApplicationGrantsChanged(known.key, dict.fromkeys(users, ())))
            tx.application_ends.end(known, secret=no_secret, now_ms=issuance.now_ms)
            ended = {kind: str(count) for kind, count in counts.items() if count}
            note(tx, AuditEvent.APPLICATION_DELETED, f"application {known.id}", now_ms=issuance.now_ms, **ended)
            return known

        return await self._tokens.change(work)

    def _counts(self, tx: Transaction, application: ApplicationRecord) -> dict[str, int]:
        ends = tx.application_ends
        counts = {"users": len(ends.users(application.key)), "tokens": ends.count("token", application.key)}
        return counts | {f"{table}s": ends.count(table, application.key) for table in self.tables}


def _present(tx: Transaction, application: ApplicationRecord) -> ApplicationRecord:
    """Raises NotFound."""
    known = tx.accounts.application(application.key)
    if known is None:
        raise NotFound
    return known


def _refusal(tx: Transaction, application: ApplicationRecord) -> str | None:
    if application.id == CONSOLE_ID:
        return OF_CONSOLE
    if tx.provision_marks.object_of(PROVISIONED, application.id) is not None:
        return OF_FILE
    managing = [one.key for one in tx.accounts.applications_of(application.organization) if one.manages_organization]
    return LAST_MANAGER if managing == [application.key] else None
