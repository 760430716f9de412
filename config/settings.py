"""One TOML file and the environment, parsed once into frozen settings (design/interfaces.md).

Every key `table.name` is also the variable `TRUNKLINE_TABLE_NAME`. An unknown key or a bad value is a `SettingsError`
that names where it stands and what would be allowed.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

PREFIX = "TRUNKLINE_"


class SettingsError(Exception):
    """The configuration cannot be used. The text is one line for the operator."""


class Address(msgspec.Struct, frozen=True):
    """Where a listener binds; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, separator, port = text.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"expected host:port, got {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Http(_Table, frozen=True):
    """REST under /v1.1, accounts under /accounts, console under /, WebSocket under /v1.1."""

    bind: Address | None = None
    tls_bind: Address | None = None


class TlsListener(_Table, frozen=True):
    tls_bind: Address | None = None


class Mqtt(_Table, frozen=True):
    bind: Address | None = None
    tls_bind: Address | None = None
    action_payload: Literal["object", "array"] = "object"


class Coap(_Table, frozen=True):
    bind: Address | None = None
    dtls_bind: Address | None = None


class Lwm2m(_Table, frozen=True):
    dtls_bind: Address | None = None
    tcp_bind: Address | None = None
    tls_bind: Address | None = None


class Tls(_Table, frozen=True):
    certificate: Path | None = None
    key: Path | None = None


class Limits(_Table, frozen=True):
    rate_limits: Literal["on", "off"] = "on"
    quotas: Literal["on", "off"] = "on"
    future_grace_seconds: int = 60


class Storage(_Table, frozen=True):
    url: str = "sqlite"
    synchronous: Literal["full", "normal"] = "full"
    retention_days: int = 0


class Subscriptions(_Table, frozen=True):
    payload: Literal["messages", "notification"] = "messages"
    batch_seconds: int = 0


class Outbound(_Table, frozen=True):
    allow_private_addresses: bool = False
    ca_file: str = ""
    smtp_url: str = ""
    stream_endpoint: str = ""


class Log(_Table, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Settings(_Table, frozen=True):
    state_dir: Path
    public_url: str = ""
    http: Http = Http()
    accounts: TlsListener = TlsListener()
    secure: TlsListener = TlsListener()
    mqtt: Mqtt = Mqtt()
    coap: Coap = Coap()
    lwm2m: Lwm2m = Lwm2m()
    tls: Tls = Tls()
    limits: Limits = Limits()
    storage: Storage = Storage()
    subscriptions: Subscriptions = Subscriptions()
    outbound: Outbound = Outbound()
    log: Log = Log()
    grace_seconds: float = 5.0


def load_settings(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read `path` (None: the environment alone) and lay the environment over it.

    Raises:
        SettingsError: with file, key, problem and allowed values in one line.
    """
    try:
        document: dict[str, Any] = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    where = str(path) if path is not None else "environment"
    settings = _convert(document, where, strict=True) if path is not None and not _overrides(environ) else None
    if settings is None:
        for keys, text in _overrides(environ):
            table = document
            for key in keys[:-1]:
                table = table.setdefault(key, {})
                if not isinstance(table, dict):
                    raise SettingsError(f"{where}: {key}: expected a table")
            table[keys[-1]] = text
        settings = _convert(document, where, strict=False)
    return _checked(settings, where)


def _overrides(environ: Mapping[str, str]) -> list[tuple[list[str], str]]:
    known = _variables()
    found = []
    for name in sorted(environ):
        # TRUNKLINE_TOKEN feeds the command line's clients; it is not a setting.
        if not name.startswith(PREFIX) or name == "TRUNKLINE_TOKEN":
            continue
        if name not in known:
            raise SettingsError(f"environment: {name}: unknown setting")
        found.append((known[name], environ[name]))
    return found


def _variables() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for key, kind in get_type_hints(Settings).items():
        if isinstance(kind, type) and issubclass(kind, _Table):
            for inner in get_type_hints(kind):
                if not inner.startswith("__"):
                    names[f"{PREFIX}{key}_{inner}".upper()] = [key, inner]
        elif not key.startswith("__"):
            names[f"{PREFIX}{key}".upper()] = [key]
    return names


def _decode(kind: type, value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    if kind is Path:
        return Path(value)
    return Address.parse(value)


def _convert(document: dict[str, Any], where: str, *, strict: bool) -> Settings:
    prepared = _with_addresses(document, where)
    try:
        return msgspec.convert(prepared, Settings, strict=strict, dec_hook=_decode)
    except msgspec.ValidationError as error:
        problem, _, location = str(error).partition(" - at `$")
        key = location.rstrip("`").lstrip(".")
        name = f"{key}: " if key else ""
        raise SettingsError(f"{where}: {name}{problem[:1].lower()}{problem[1:]}{_allowed(key)}") from error


def _with_addresses(document: dict[str, Any], where: str) -> dict[str, Any]:
    prepared = dict(document)
    for key, table in document.items():
        if not isinstance(table, dict):
            continue
        prepared[key] = dict(table)
        for inner, value in table.items():
            if inner.endswith("bind"):
                try:
                    address = Address.parse(value if isinstance(value, str) else repr(value))
                except ValueError as error:
                    raise SettingsError(f"{where}: {key}.{inner}: {error}") from error
                prepared[key][inner] = {"host": address.host, "port": address.port}
    return prepared


def _allowed(key: str) -> str:
    kind: Any = Settings
    for part in key.split("."):
        kind = get_type_hints(kind).get(part) if isinstance(kind, type) else None
    if get_origin(kind) is Literal:
        return f" (allowed: {', '.join(get_args(kind))})"
    return ""


def _checked(settings: Settings, where: str) -> Settings:
    needs_tls = [
        name for name in ("http", "accounts", "secure", "mqtt", "lwm2m") if getattr(settings, name).tls_bind is not None
    ]
    if needs_tls and (settings.tls.certificate is None or settings.tls.key is None):
        raise SettingsError(f"{where}: {needs_tls[0]}.tls_bind: needs tls.certificate and tls.key")
    for key, value, lowest in (
        ("limits.future_grace_seconds", settings.limits.future_grace_seconds, 0),
        ("storage.retention_days", settings.storage.retention_days, 0),
        ("subscriptions.batch_seconds", settings.subscriptions.batch_seconds, 0),
        ("grace_seconds", settings.grace_seconds, 0),
    ):
        if value < lowest:
            raise SettingsError(f"{where}: {key}: must be at least {lowest}")
    return settings
