"""The report of a provisioning run: counts for each table, and the values that were generated."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    created: int = 0
    changed: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """A value that the file did not give. A generated secret cannot be shown again later.

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
