"""The report of a provisioning run: created and changed objects, generated values, and open points of the file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

#: Stands for both values of a secret that changes.
MASKED: Final = "***"


@dataclass(slots=True)
class Counts:
    created: int = 0
    changed: int = 0
    unchanged: int = 0


class Generated(msgspec.Struct, frozen=True):
    """A value that the file did not give. A generated secret cannot be shown again later.

    `value` is None in a dry run: the real run generates another one.
    """

    table: str
    name: str
    key: str
    value: str | None


class ChangedKey(msgspec.Struct, frozen=True):
    """A key of the file and its values as JSON; those of a secret are `MASKED`."""

    key: str
    before: Any
    after: Any


class ChangedObject(msgspec.Struct, frozen=True):
    """An object that was created (without keys) or changed. An object that is there again has the key `restored`."""

    table: str
    name: str
    created: bool
    keys: tuple[ChangedKey, ...] = ()


class Notice(msgspec.Struct, frozen=True):
    """An open point of the file, or an object that stays although the file says otherwise; `text` says what to do."""

    table: str
    name: str
    text: str


class ProvisionReport(msgspec.Struct, frozen=True):
    """`not_in_file`: by table, what the store has and the file does not name; None when nobody asked for it."""

    tables: dict[str, Counts] = msgspec.field(default_factory=dict)
    generated: list[Generated] = msgspec.field(default_factory=list)
    changes: list[ChangedObject] = msgspec.field(default_factory=list)
    notices: list[Notice] = msgspec.field(default_factory=list)
    not_in_file: dict[str, list[str]] = msgspec.field(default_factory=dict)
    dry_run: bool = False


def compared(before: object, after: object, names: Mapping[str, str] | Collection[str]) -> list[ChangedKey]:
    """The attributes that differ between two records; `names` may map them to the keys of the file."""
    keys = names if isinstance(names, Mapping) else {name: name for name in names}
    return [
        ChangedKey(key, _shown(old), _shown(new))
        for name, key in keys.items()
        if (old := getattr(before, name)) != (new := getattr(after, name))
    ]


def masked_key(key: str) -> ChangedKey:
    return ChangedKey(key, MASKED, MASKED)


def _shown(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value
