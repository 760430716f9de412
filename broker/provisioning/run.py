"""One provisioning run inside one transaction: what the tables share, and the report.

An entry stands for the existing object with its id; without an id, for the object with its natural key (an
organization's name, a user's e-mail address, an application's name within its organization, a device type's unique
name, a device's name and owner, a token's application and user). Otherwise it is a new object.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from broker.errors import ValidationFailed
from broker.facts import Fact
from broker.provisioning.report import Generated, ProvisionReport
from broker.secrets import Vault
from storage.database import Transaction
from storage.keys import Milliseconds, RuleKey
from storage.records import ApplicationRecord, DeviceTypeRecord, OrganizationRecord, UserRecord


class _Stored(Protocol):
    """A record with a key and an id."""

    @property
    def key(self) -> int: ...
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=_Stored)


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """Table and index of an entry in the file."""

    table: str
    index: int

    def __str__(self) -> str:
        return f"{self.table}[{self.index}]"

    def refusal(self, key: str, problem: str) -> ValidationFailed:
        return ValidationFailed.of(f"{self}.{key}", problem)


class ProvisioningRun:
    """Collects the `report`, the hashes of `revoked` tokens, the `rules` to run, the `subscriptions` to take, and the
    `facts` to publish after the commit."""

    def __init__(self, tx: Transaction, vault: Vault, now_ms: Milliseconds, *, dry_run: bool) -> None:
        self.tx = tx
        self.vault = vault
        self.now_ms = now_ms
        self.report = ProvisionReport(dry_run=dry_run)
        self.revoked: list[bytes] = []
        self.facts: list[Fact] = []
        self.rules: list[RuleKey] = []
        self.subscriptions: list[int] = []
        self._seen: dict[object, EntryLocation] = {}

    # Objects that entries refer to

    def organization_named(self, at: EntryLocation, name: str) -> OrganizationRecord:
        found = self.tx.accounts.organization_named(name)
        if found is None:
            raise at.refusal("organization", f"there is no organization {name!r}")
        return found

    def user_of(self, at: EntryLocation, key: str, text: str) -> UserRecord:
        found = self.tx.accounts.user_by_email(text) or self.tx.accounts.user_by_id(text)
        if found is None:
            raise at.refusal(key, f"there is no user {text!r}")
        return found

    def type_of(self, at: EntryLocation, key: str, text: str) -> DeviceTypeRecord:
        found = self.tx.device_types.by_id_or_name(text)
        if found is None:
            raise at.refusal(key, f"there is no device type {text!r}")
        return found

    def application_of(self, at: EntryLocation, text: str) -> ApplicationRecord:
        if (found := self.tx.accounts.application_by_id(text)) is not None:
            return found
        homonyms = self.tx.accounts.applications_named(text)
        if len(homonyms) != 1:
            many = "several applications have the name" if homonyms else "there is no application"
            raise at.refusal("application", f"{many} {text!r}")
        return homonyms[0]

    # The report

    def only(self, at: EntryLocation, found: Sequence[R]) -> R | None:
        if len(found) > 1:
            raise at.refusal("id", f"required: {len(found)} {at.table} fit this entry")
        return found[0] if found else None

    def generate(self, at: EntryLocation, name: str, key: str, value: str) -> str:
        shown = None if self.report.dry_run else value
        self.report.generated.append(Generated(at.table, name, key, shown))
        return value

    def created(self, at: EntryLocation, identity: object) -> None:
        self._see(at, identity)
        self.report.tables[at.table].created += 1

    def found(self, at: EntryLocation, identity: object, *, changed: bool) -> None:
        self._see(at, identity)
        counts = self.report.tables[at.table]
        if changed:
            counts.changed += 1
        else:
            counts.unchanged += 1

    def _see(self, at: EntryLocation, identity: object) -> None:
        """Refuse a second entry for one object: each of the two would change it on every run."""
        first = self._seen.setdefault((at.table, identity), at)
        if first is not at:
            raise ValidationFailed.of(str(at), f"the same as {first}")


def find_existing(
    at: EntryLocation,
    id_: str | None,
    by_id: Callable[[str], R | None],
    natural_key: str,
    text: str,
    namesake: R | None,
) -> R | None:
    """The existing object of an entry whose natural key is unique.

    Raises:
        ValidationFailed: another object has the natural key.
    """
    if id_ is None:
        return namesake
    known = by_id(id_)
    if namesake is not None and (known is None or known.key != namesake.key):
        raise at.refusal(natural_key, f"{text!r} has another id: {namesake.id}")
    return known


def given(entry: msgspec.Struct, *keys: str) -> dict[str, Any]:
    """The values of these keys, without the keys that the entry leaves out."""
    return {key: value for key in keys if (value := getattr(entry, key)) is not None}
