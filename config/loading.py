"""Reads one TOML file and the environment into the settings, once (reference 25).

Every key `table.name` is also the variable `TRUNKLINE_TABLE_NAME`. An unknown key or a bad value is a `SettingsError`
that names the place of the error and the allowed values.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from config.settings import Address, Settings, SettingsTable
from config.settings_checks import settings_problems
from config.toml import read_toml

PREFIX: Final = "TRUNKLINE_"
_ENVIRONMENT: Final = "environment"
_UNKNOWN: Final = re.compile(r"unknown field `(.+?)`")
_MISSING: Final = re.compile(r"missing required field `(.+?)`")


class SettingsError(Exception):
    """The configuration cannot be used. The text is one line for the operator; `others` are further problems of it."""

    def __init__(self, problem: str, others: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.others = tuple(others)


def load_settings(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read `path` (None: only the environment); variables override the file.

    Raises:
        SettingsError: for each problem one line with file, key, problem and allowed values.
    """
    try:
        document: dict[str, Any] = {} if path is None else read_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    where = str(path) if path is not None else _ENVIRONMENT
    found: list[str] = []
    for (*tables, key), value in _overrides(environ):
        table = document
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{where}: {name}: expected a table")
        table[key] = value
    settings, removed = _convert(_with_addresses(document, where, found), where, found)
    if settings is not None:
        # A key that was removed has its default now, which its neighbours may not fit.
        others = [text for text in settings_problems(settings) if not any(key in text for key in removed)]
        found += [f"{where}: {text}" for text in others]
    if settings is None or found:
        raise SettingsError(found[0], found[1:])
    return settings


def _overrides(environ: Mapping[str, str]) -> list[tuple[list[str], object]]:
    """The settings in the environment: each key with the value that TOML would have."""
    known = _variables()
    found = []
    for name in sorted(environ):
        # TRUNKLINE_TOKEN feeds the command line's clients; it is not a setting.
        if not name.startswith(PREFIX) or name == "TRUNKLINE_TOKEN":
            continue
        if name not in known:
            raise SettingsError(f"environment: {name}: unknown setting")
        found.append((known[name], _from_text(environ[name], known[name], f"environment: {name}")))
    return found


def _from_text(text: str, keys: list[str], where: str) -> object:
    if keys[-1].endswith("bind"):
        value: object = text
        if text.startswith("["):
            with suppress(msgspec.DecodeError):  # of an IPv6 address
                value = msgspec.json.decode(text)
        try:
            Address.of(value)
        except ValueError as error:
            raise SettingsError(f"{where}: {error}") from error
        return value
    kind = _kind_of(keys)
    if get_origin(kind) is tuple:
        return _array_from_json(text, kind, where)
    try:
        value = msgspec.convert(text, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {_lower(str(error))}{_allowed(kind)}") from error
    return text if isinstance(value, Path) else value


def _array_from_json(text: str, kind: Any, where: str) -> object:
    """Decode an array, which a variable holds as JSON. The contents of tables are checked with the other settings."""
    is_of_texts = get_args(kind)[0] is str
    try:
        return msgspec.json.decode(text, type=list[str] if is_of_texts else list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeEncodeError):  # the error's text could quote a secret
        raise SettingsError(f"{where}: expected a JSON array of {'texts' if is_of_texts else 'objects'}") from None


def _variables() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for key, kind in get_type_hints(Settings).items():
        if isinstance(kind, type) and issubclass(kind, SettingsTable):
            for inner in get_type_hints(kind):
                if not inner.startswith("__"):
                    names[f"{PREFIX}{key}_{inner}".upper()] = [key, inner]
        elif not key.startswith("__"):
            names[f"{PREFIX}{key}".upper()] = [key]
    return names


def _decode(_kind: type[Path], value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a path, got {value!r}")
    return Path(value)


def _convert(document: dict[str, Any], where: str, found: list[str]) -> tuple[Settings | None, list[str]]:
    """The settings, and the keys that were left out because their values cannot be used; each is added to `found`."""
    removed: list[str] = []
    while True:
        try:
            return msgspec.convert(document, Settings, dec_hook=_decode), removed
        except msgspec.ValidationError as error:
            problem, _, location = str(error).partition(" - at `$")
            keys = location.rstrip("`").lstrip(".").split(".") if location else []
            allowed = _allowed(_kind_of(keys))
            if (unknown := _UNKNOWN.search(problem)) is not None:
                keys, problem = [*keys, unknown[1]], "unknown setting"
            elif (missing := _MISSING.search(problem)) is not None:
                keys, problem, allowed = [*keys, missing[1]], "is required", ""
                if where == _ENVIRONMENT:
                    problem = f"{problem} (--config names a configuration, {PREFIX}{'_'.join(keys).upper()} the value)"
            found.append(f"{where}: {'.'.join(keys)}: {_lower(problem)}{allowed}")
            if not _remove(document, keys):
                return None, removed
            removed.append(".".join(keys))


def _remove(document: dict[str, Any], keys: Sequence[str]) -> bool:
    """Take a key out, with the array that it is in. Whether it was there."""
    table = document
    for key in keys:
        name = key.partition("[")[0]
        inner = table.get(name)
        if not isinstance(inner, dict) or key == keys[-1]:
            return table.pop(name, None) is not None
        table = inner
    return False


def _lower(problem: str) -> str:
    return problem[:1].lower() + problem[1:]


def _with_addresses(document: dict[str, Any], where: str, found: list[str]) -> dict[str, Any]:
    """A copy of the document with addresses parsed from their texts; texts that are no address are added to `found`."""
    prepared = dict(document)
    for key, table in document.items():
        if not isinstance(table, dict):
            continue
        prepared[key] = dict(table)
        for inner, value in table.items():
            if inner.endswith("bind"):
                try:
                    prepared[key][inner] = msgspec.to_builtins(Address.of(value))
                except ValueError as error:
                    found.append(f"{where}: {key}.{inner}: {error}")
                    del prepared[key][inner]
    return prepared


def _kind_of(keys: list[str]) -> Any:
    kind: Any = Settings
    for key in keys:
        kind = get_type_hints(kind).get(key) if isinstance(kind, type) else None
    return kind


def _allowed(kind: Any) -> str:
    if get_origin(kind) is Literal:
        names = get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, SettingsTable):
        names = kind.__struct_fields__
    else:
        return ""
    return f" (allowed: {', '.join(names)})"
