"""What a provisioning run did: counts for each table, and what was generated on the way."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    created: int = 0
    changed: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """A value that the file did not give. It can be shown now and, if it is secret, never again.

    `value` is None in a dry run: the real run generates another one.
    """

    table: str
    name: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    tables: dict[str, Counts] = field(default_factory=dict)
    generated: list[Generated] = field(default_factory=list)
    dry_run: bool = False
