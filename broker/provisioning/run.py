"""One provisioning run inside one transaction: what the tables share, and the report.

An entry stands for the existing object with its id; without an id, for the object with its natural key (an
organization's name, a user's e-mail address, an application's name within its organization, a device type's unique
name, a device's key in the file, else its name and owner, a token's application and user). Otherwise it is
a new object.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec

from broker.accounts.consent import NOT_TYPES
from broker.accounts.issuance import Issuance
from broker.errors import Finding, ValidationFailed
from broker.facts import Fact
from broker.provisioning.reading import EntryLocation, Findings, names_of
from broker.provisioning.report import ChangedKey, ChangedObject, Counts, Generated, Notice, ProvisionReport
from broker.secrets import Vault
from storage.keys import Milliseconds, RuleKey
from storage.provision_marks import NAMED_TABLES
from storage.records import ApplicationRecord, DeviceRecord, DeviceTypeRecord, OrganizationRecord, UserRecord
from storage.transaction import Transaction

#: The kind of the marks by which devices keep their identity in the file.
DEVICE_KEY: Final = "device"


class _Stored(Protocol):
    """A record with a key and an id."""

    @property
    def key(self) -> int: ...
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=_Stored)


class MissingObject(ValidationFailed):
    """An entry refers to an object that is not there. Its table and the name by which the entry refers to it."""

    def __init__(self, at: EntryLocation, key: str, table: str, name: str, what: str) -> None:
        super().__init__((Finding(f"{at}.{key}", (f"there is no {what} {name!r}",)),))
        self.table = table
        self.name = name


class UnprovedAddress(MissingObject):
    """An entry names a user by an address that the account's holder has not proved to own: anybody may be that."""

    def __init__(self, at: EntryLocation, key: str, user: UserRecord) -> None:
        super().__init__(at, key, "users", user.email, "user")
        way_out = "invite the address, or give it to its owner with take_over = true in [[users]]"
        problem = f"nobody has proved to own the address {user.email!r}, which account {user.id} has: {way_out}"
        self.findings = (Finding(f"{at}.{key}", (problem,)),)


@dataclass(eq=False)
class ProvisioningRun:
    """Collects the `report`, the `findings`, the `rules` to run, and the `facts` to publish when all that was changed
    has been read again.

    A claim of an address ends through `issuance` what the former account has.

    `force` replaces what others changed since the last run, where it would stay otherwise.
    """

    tx: Transaction
    vault: Vault
    now_ms: Milliseconds
    findings: Findings
    issuance: Issuance
    dry_run: InitVar[bool]
    force: bool = False

    def __post_init__(self, dry_run: bool) -> None:
        self.report = ProvisionReport(dry_run=dry_run)
        self.facts: list[Fact] = []
        self.rules: list[RuleKey] = []
        self._seen: dict[object, EntryLocation] = {}
        #: Objects that entries of the present table refer to: thousands may refer to one user and one type.
        self._users: dict[str, UserRecord] = {}
        self._types: dict[str, DeviceTypeRecord] = {}

    # Entries

    def begin(self, table: str, *, is_given: bool) -> None:
        """The entries of a table follow: those of the one before may have changed what was found."""
        self._users.clear()
        self._types.clear()
        if is_given:
            self.report.tables[table] = Counts()

    def put(self, at: EntryLocation, entry: msgspec.Struct, put: Callable[[EntryLocation, Any], None]) -> None:
        """Put one entry. A refusal is among the findings, unless it comes of an earlier one."""

        def work() -> None:
            self._check_references(at, {key: getattr(entry, key) for key in _REFERENCES.get(at.table, ())})
            put(at, entry)

        self._collect(at, lambda: names_of(entry), work)

    def look_up(self, at: EntryLocation, texts: Mapping[str, str]) -> None:
        """Look up the objects that an entry names that cannot be used."""
        named = {key: texts.get(key.rstrip("_")) for key in _REFERENCES.get(at.table, ())}
        self._collect(at, set, lambda: self._check_references(at, named))

    def _collect(self, at: EntryLocation, names: Callable[[], set[str]], work: Callable[[], None]) -> None:
        try:
            work()
        except MissingObject as error:
            if not self.findings.explains(error.table, error.name):
                self.findings.add(*error.findings)
            self.findings.refuse(at.table, names())
        except ValidationFailed as error:
            self.findings.add(*error.findings)
            self.findings.refuse(at.table, names())

    def _check_references(self, at: EntryLocation, named: Mapping[str, str | None]) -> None:
        """Look up everything that an entry refers to, so that all that is missing is named at once."""
        missing: list[ValidationFailed] = []
        for key, find in _REFERENCES.get(at.table, {}).items():
            text = named[key]
            try:
                if text is not None:
                    find(self, at, key.rstrip("_"), text)
            except ValidationFailed as error:
                missing.append(error)
        if not missing:
            return
        for one in missing[:-1]:
            if not (isinstance(one, MissingObject) and self.findings.explains(one.table, one.name)):
                self.findings.add(*one.findings)
        raise missing[-1]

    # Objects that entries refer to

    def organization_named(self, at: EntryLocation, name: str) -> OrganizationRecord:
        found = self.tx.accounts.organization_named(name)
        if found is None:
            raise MissingObject(at, "organization", "organizations", name, "organization")
        return found

    def user_of(self, at: EntryLocation, key: str, text: str) -> UserRecord:
        if (known := self._users.get(text)) is not None:
            return known
        by_address = self.tx.accounts.user_by_email(text)
        found = by_address or self.tx.accounts.user_by_id(text)
        if found is None:
            raise MissingObject(at, key, "users", text, "user")
        if by_address is not None and by_address.email_verified_on is None:
            raise UnprovedAddress(at, key, by_address)
        self._users[text] = found
        return found

    def type_of(self, at: EntryLocation, key: str, text: str) -> DeviceTypeRecord:
        found = self._types.get(text) or self.tx.device_types.by_id_or_name(text)
        if found is None:
            raise MissingObject(at, key, "device_types", text, "device type")
        self._types[text] = found
        return found

    def application_of(self, at: EntryLocation, text: str) -> ApplicationRecord:
        if (found := self.tx.accounts.application_by_id(text)) is not None:
            return found
        homonyms = self.tx.accounts.applications_named(text)
        if not homonyms:
            raise MissingObject(at, "application", "applications", text, "application")
        if len(homonyms) > 1:
            raise at.refusal("application", f"several applications have the name {text!r}")
        return homonyms[0]

    def device_of(self, at: EntryLocation, key: str, text: str) -> DeviceRecord:
        """Find a device by its id or its key in the file."""
        id_ = self.tx.provision_marks.object_of(DEVICE_KEY, text) or text
        found = self.tx.devices.by_id(id_)
        if found is None:
            raise MissingObject(at, key, "devices", text, "device")
        return found

    # The report

    def only(self, at: EntryLocation, found: Sequence[R]) -> R | None:
        if len(found) > 1:
            raise at.refusal("id", f"required: {len(found)} {at.table} fit this entry")
        return found[0] if found else None

    def generate(self, at: EntryLocation, name: str, key: str, value: str) -> str:
        shown = None if self.report.dry_run else value
        self.report.generated.append(Generated(at.table, name, key, shown))
        return value

    def created(self, at: EntryLocation, identity: object, name: str) -> None:
        self._see(at, identity)
        self.report.tables[at.table].created += 1
        self.report.changes.append(ChangedObject(at.table, name, created=True))

    def found(self, at: EntryLocation, identity: object, name: str, keys: Sequence[ChangedKey] = ()) -> None:
        """The object is there; `keys` have changed."""
        self._see(at, identity)
        counts = self.report.tables[at.table]
        if keys:
            counts.changed += 1
            self.report.changes.append(ChangedObject(at.table, name, created=False, keys=tuple(keys)))
        else:
            counts.unchanged += 1

    def notice(self, at: EntryLocation, name: str, text: str) -> None:
        self.report.notices.append(Notice(at.table, name, text))

    def has_seen(self, table: str, identity: object) -> bool:
        """Whether an entry stands for this object."""
        return (table, identity) in self._seen

    def _see(self, at: EntryLocation, identity: object) -> None:
        """Refuse a second entry for one object: each of the two would change it on every run."""
        first = self._seen.setdefault((at.table, identity), at)
        if first is not at:
            raise ValidationFailed.of(str(at), f"the same as {first}")


_Find = Callable[[ProvisioningRun, EntryLocation, str, str], object]


def _organization(run: ProvisioningRun, at: EntryLocation, _key: str, text: str) -> object:
    return run.organization_named(at, text)


def _application(run: ProvisioningRun, at: EntryLocation, _key: str, text: str) -> object:
    return run.application_of(at, text)


def _granted(run: ProvisioningRun, at: EntryLocation, key: str, text: str) -> object:
    return None if text in NOT_TYPES else run.type_of(at, key, text)


#: By table: the keys that name other objects.
_REFERENCES: Final[Mapping[str, Mapping[str, _Find]]] = {
    "users": {"organization": _organization},
    "invitations": {"organization": _organization},
    "applications": {"organization": _organization},
    "connectors": {"device_type": ProvisioningRun.type_of},
    "plans": {"device_type": ProvisioningRun.type_of},
    "firmware": {"device_type": ProvisioningRun.type_of},
    "device_types": {"organization": _organization, "owner": ProvisioningRun.user_of},
    "devices": {"owner": ProvisioningRun.user_of, "type": ProvisioningRun.type_of},
    "tokens": {"application": _application, "user": ProvisioningRun.user_of},
    "grants": {"user": ProvisioningRun.user_of, "application": _application, "device_type": _granted},
    "shares": {"device": ProvisioningRun.device_of, "with_": ProvisioningRun.user_of},
    "rules": {"owner": ProvisioningRun.user_of, "application": _application},
    "scenes": {"owner": ProvisioningRun.user_of, "application": _application},
    "subscriptions": {"owner": ProvisioningRun.user_of, "application": _application},
    "topic_rules": {
        "device": ProvisioningRun.device_of,
        "device_type": ProvisioningRun.type_of,
        "user": ProvisioningRun.user_of,
    },
}


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


_LISTED_MAX: Final = 1_000  # of one table


def not_in_file(run: ProvisioningRun) -> dict[str, list[str]]:
    """The names of objects without an entry in this run, by table. These objects stay (reference 26.3)."""
    found = {
        table: [
            name
            for identity, name in run.tx.provision_marks.all_named(table, limit=_LISTED_MAX)
            if not run.has_seen(table, identity)
        ]
        for table in NAMED_TABLES
    }
    return {table: names for table, names in found.items() if names}
