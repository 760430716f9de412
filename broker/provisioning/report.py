"""The report of a provisioning run: created and changed objects, generated values, and open points of the file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Stands for both values of a secret that changes.
MASKED: Final = "***"


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
class ChangedKey:
    """A key of the file and its values as JSON; those of a secret are `MASKED`."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ChangedObject:
    """An object that was created (without keys) or changed. An object that is there again has the key `restored`."""

    table: str
    name: str
    created: bool
    keys: tuple[ChangedKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """An open point of the file, or an object that stays although the file says otherwise; `text` says what to do."""

    table: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """`not_in_file`: by table, what the store has and the file does not name; None when nobody asked for it."""

    tables: dict[str, Counts] = field(default_factory=dict)
    generated: list[Generated] = field(default_factory=list)
    changes: list[ChangedObject] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    not_in_file: dict[str, list[str]] = field(default_factory=dict)
    dry_run: bool = False


def compared(before: object, after: object, names: Mapping[str, str] | Collection[str]) -> list[ChangedKey]:
    """The attributes that differ between two records; `names` may map them to the keys of the file."""
    keys = names if isinstance(names, Mapping) else {name: name for name in names}
    return [
        ChangedKey(key, _shown(old), _shown(new))
        for name, key in keys.items()
        if (old := getattr(before, name)) != (new := getattr(after, name))
    ]


def masked(key: str) -> ChangedKey:
    return ChangedKey(key, MASKED, MASKED)


def _shown(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value
