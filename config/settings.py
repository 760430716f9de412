"""One TOML file and the environment, parsed once into frozen settings (reference 25).

Every key `table.name` is also the variable `TRUNKLINE_TABLE_NAME`. An unknown key or a bad value is a `SettingsError`
that names the place of the error and the allowed values.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from config.limits import (
    ALARM_DAYS,
    APPLICATION_TOKEN_SECONDS,
    AUDIT_DAYS,
    AUDIT_ENTRIES,
    BIND_ADDRESSES,
    CALLS_PER_ADDRESS,
    CONNECTIONS_PER_APPLICATION,
    CONNECTIONS_PER_DEVICE,
    CONNECTIONS_PER_TOKEN,
    CONNECTIONS_PER_USER,
    CONNECTOR_PULL_MINUTES,
    DELIVERY_BYTES,
    DELIVERY_DAYS,
    DEVICE_CODE_SECONDS,
    DEVICE_POLL_SECONDS,
    FEEDS_PER_APPLICATION,
    FEEDS_PER_TOKEN,
    FEEDS_PER_USER,
    FORWARD_COMMANDS,
    FORWARD_TOPIC,
    HOME_PREFIX,
    IMAGE_MAX_BYTES,
    MQTT_OPEN_PACKET_BYTES,
    MQTT_PACKET_BYTES,
    MQTT_SESSION_SECONDS,
    NODE_NAME_CHARACTERS,
    PASSWORD_MEMORY_MIB,
    REFRESH_WINDOW_DAYS,
    REGISTRATION_PIN_SECONDS,
    TOPIC_DEVICES_MADE,
    UNAUTHENTICATED_CONNECTIONS,
    UNAUTHENTICATED_CONNECTIONS_PER_ADDRESS,
    USER_TOKEN_SECONDS,
)
from config.settings_checks import SOCKET_LIMITS, settings_problems
from config.toml import read_toml

PREFIX = "TRUNKLINE_"
_ENVIRONMENT = "environment"
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})")
#: The host of a `bind` that means every address of the machine, IPv4 and IPv6.
ANY_HOST = "*"
_UNKNOWN = re.compile(r"unknown field `(.+?)`")
_MISSING = re.compile(r"missing required field `(.+?)`")


class SettingsError(Exception):
    """The configuration cannot be used. The text is one line for the operator; `others` are further problems of it."""

    def __init__(self, problem: str, others: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.others = tuple(others)


class Address(msgspec.Struct, frozen=True):
    """The host and port of a listener; port 0 takes a free port. `others` are where the same listener listens, too."""

    host: str
    port: int
    others: "tuple[Address, ...]" = ()

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise ValueError(f"expected host:port or [IPv6]:port, got {text!r}")
        return cls(match["ipv6"] or match["host"], int(match["port"]))

    @classmethod
    def of(cls, value: object) -> "Address":
        """A `bind`: an address, or an array of addresses. Raises ValueError."""
        if not isinstance(value, list):
            return cls.parse(value if isinstance(value, str) else repr(value))
        if not 0 < len(value) <= BIND_ADDRESSES:
            raise ValueError(f"expected 1 to {BIND_ADDRESSES} addresses, got {len(value)}")
        first, *others = (cls.parse(one if isinstance(one, str) else repr(one)) for one in value)
        twice = next((one for one in (first, *others) if one.port and [first, *others].count(one) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is there twice")
        return cls(first.host, first.port, tuple(others))

    @property
    def all(self) -> "tuple[Address, ...]":
        """Every address of the listener, each by itself."""
        return (Address(self.host, self.port), *self.others)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Http(_Table, frozen=True):
    """REST under /v1.1, accounts under /accounts, console under /, WebSocket under /v1.1."""

    bind: Address | None = None
    tls_bind: Address | None = None
    trusted_proxies: tuple[str, ...] = ()
    proxy_protocol: Literal["off", "required"] = "off"
    hsts_seconds: int = 0

    @property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`trusted_proxies`, each as a network. Raises ValueError."""
        return tuple(map(ip_network, self.trusted_proxies))


class Secure(_Table, frozen=True):
    """REST and WebSocket for devices with client certificates, and how long their registration may take."""

    tls_bind: Address | None = None
    pin_seconds: int = REGISTRATION_PIN_SECONDS


class IdentityProvider(_Table, frozen=True):
    """An external identity provider that speaks OpenID Connect. `account_type` selects a provider by its `name`."""

    name: str
    issuer: str
    client_id: str
    client_secret: str = ""
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    signup: Literal["accounts", "closed", "open"] = "accounts"


class Accounts(_Table, frozen=True):
    """The accounts paths on a listener of their own, who may sign in, and how long tokens and codes live."""

    tls_bind: Address | None = None
    public_url: str = ""
    user_token_seconds: int = USER_TOKEN_SECONDS
    application_token_seconds: int = APPLICATION_TOKEN_SECONDS
    refresh_window_days: int = REFRESH_WINDOW_DAYS
    device_code_seconds: int = DEVICE_CODE_SECONDS
    device_poll_seconds: int = DEVICE_POLL_SECONDS
    signup: Literal["closed", "open"] = "closed"
    second_factor: Literal["optional", "administrators"] = "optional"
    password_memory_mib: int = PASSWORD_MEMORY_MIB
    providers: tuple[IdentityProvider, ...] = ()


class Mqtt(_Table, frozen=True):
    bind: Address | None = None
    tls_bind: Address | None = None
    action_payload: Literal["object", "array"] = "object"
    keep_alive_max_seconds: int = 0
    topics: Literal["service", "open"] = "service"
    persistent_sessions: Literal["off", "on"] = "off"
    session_max_seconds: int = MQTT_SESSION_SECONDS
    packet_max_bytes: int = MQTT_OPEN_PACKET_BYTES

    @property
    def packet_bytes(self) -> int:
        """The largest packet of a device that is known; the setting is for open topics."""
        return self.packet_max_bytes if self.topics == "open" else MQTT_PACKET_BYTES


class Coap(_Table, frozen=True):
    bind: Address | None = None
    dtls_bind: Address | None = None


class Lwm2m(_Table, frozen=True):
    dtls_bind: Address | None = None
    tcp_bind: Address | None = None
    tls_bind: Address | None = None


class DeviceManagement(_Table, frozen=True):
    """Firmware images, and descriptions of LWM2M objects."""

    image_max_bytes: int = IMAGE_MAX_BYTES
    model_folder: str = ""


class TrialSettings(_Table, frozen=True):
    """The optional module of trials: sessions."""

    sessions: Literal["off", "on"] = "off"


class Tls(_Table, frozen=True):
    certificate: Path | None = None
    key: Path | None = None
    certificate_rsa: Path | None = None
    key_rsa: Path | None = None

    @property
    def first(self) -> tuple[Path, Path] | None:
        """The chain and its key."""
        return None if self.certificate is None or self.key is None else (self.certificate, self.key)

    @property
    def second(self) -> tuple[Path, Path] | None:
        """A second chain and key, for peers without a cipher suite for the first."""
        return None if self.certificate_rsa is None or self.key_rsa is None else (self.certificate_rsa, self.key_rsa)


class Limits(_Table, frozen=True):
    """Rates are `minute/day` (reference 21.1), each for one user in one application, or for one device."""

    rate_limits: Literal["on", "off"] = "on"
    quotas: Literal["on", "off"] = "on"
    future_grace_seconds: int = 60
    rest_user: str = "100/1000"
    rest_device: str = "100/1000"
    rest_application: str = "500/5000"
    messages_user: str = "100/100000"
    messages_device: str = "100/100000"
    messages_application: str = "500/100000"
    websocket_user: str = "1000/100000"
    websocket_device: str = "1000/100000"
    websocket_application: str = "5000/500000"
    mqtt_device: str = "1000/100000"
    coap_device: str = "100/10000"
    calls_per_address: int = CALLS_PER_ADDRESS
    unauthenticated_connections: int = UNAUTHENTICATED_CONNECTIONS
    unauthenticated_connections_per_address: int = UNAUTHENTICATED_CONNECTIONS_PER_ADDRESS
    connections_per_token: int = CONNECTIONS_PER_TOKEN
    connections_per_user: int = CONNECTIONS_PER_USER
    connections_per_application: int = CONNECTIONS_PER_APPLICATION
    connections_per_device: int = CONNECTIONS_PER_DEVICE
    feeds_per_token: int = FEEDS_PER_TOKEN
    feeds_per_user: int = FEEDS_PER_USER
    feeds_per_application: int = FEEDS_PER_APPLICATION

    @property
    def rates(self) -> dict[str, str]:
        """The settings that are rates, by name."""
        names = get_type_hints(Limits).keys()
        ends = ("_user", "_device", "_application")
        return {name: getattr(self, name) for name in names if name.endswith(ends) and name not in SOCKET_LIMITS}


class Storage(_Table, frozen=True):
    """Where the store is: a file in `state_dir`, or a database of PostgreSQL. `url` may hold a password."""

    url: str = "sqlite"
    password_file: Path | None = None
    synchronous: Literal["full", "normal"] = "full"
    retention_days: int = 0
    minute_rollup_days: int = 0
    hour_rollup_days: int = 0
    day_rollup_days: int = 0

    @property
    def is_postgresql(self) -> bool:
        return self.url != "sqlite"


class Cluster(_Table, frozen=True):
    """Daemons on one database of PostgreSQL: one serves and the others stand by, or several serve.

    `workers`: the works that this node may do for all, by their names.
    """

    node: str = ""
    nodes: Literal["one", "several"] = "one"
    workers: str = "all"
    lease_seconds: float = 8.0
    patience_seconds: float = 5.0
    drain_notice_seconds: float = 5.0
    drain_seconds: float = 10.0

    @property
    def may_do(self) -> frozenset[str]:
        """The names in `workers`."""
        return frozenset(filter(None, re.split(r"[\s,]+", self.workers)))

    @property
    def name(self) -> str:
        """The name of this node: by default that of the machine."""
        return self.node or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:NODE_NAME_CHARACTERS] or "node"


class Subscriptions(_Table, frozen=True):
    """Payload of notifications, how long messages are collected for one, and how long deliveries are on record."""

    payload: Literal["messages", "notification"] = "messages"
    batch_seconds: int = 0
    keep_days: int = DELIVERY_DAYS
    keep_bytes: int = DELIVERY_BYTES


class ConnectorSettings(_Table, frozen=True):
    pull_minutes: int = CONNECTOR_PULL_MINUTES


class PaymentSettings(_Table, frozen=True):
    """The payments for paid tiers: confirmed by the operator, or collected by Stripe."""

    processor: Literal["manual", "stripe"] = "manual"
    currency: str = "usd"
    stripe_key: str = ""
    stripe_webhook_secret: str = ""
    stripe_url: str = "https://api.stripe.com"


class Outbound(_Table, frozen=True):
    allow_private_addresses: bool = False
    ca_file: str = ""
    smtp_url: str = ""
    mail_from: str = ""
    stream_endpoint: str = ""


class Log(_Table, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Tracing(_Table, frozen=True):
    """Where traces of messages go; nowhere without an endpoint."""

    endpoint: str = ""
    per_minute: int = 60


class Metrics(_Table, frozen=True):
    """Peers besides this machine that may read /metrics, and aliases of the paths for monitoring."""

    allow: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`allow`, each as a network. Raises ValueError."""
        return tuple(map(ip_network, self.allow))


class Mcp(_Table, frozen=True):
    """Assistants at /mcp, within the rights of their token: none, or ones that read, or that also send Actions."""

    tools: Literal["off", "read", "act"] = "off"


class Audit(_Table, frozen=True):
    """How long the audit log is kept, and how many entries."""

    keep_days: int = AUDIT_DAYS
    keep_entries: int = AUDIT_ENTRIES


class AlarmSettings(_Table, frozen=True):
    """How long cleared alarms are kept, and the ways of Apprise that users may choose, by scheme."""

    keep_days: int = ALARM_DAYS
    apprise: tuple[str, ...] = ()


class ConsoleSettings(_Table, frozen=True):
    """Users of the operator's page, and the folder of its backups."""

    operators: tuple[str, ...] = ()  # e-mail addresses
    backup_dir: Path | None = None  # see `Settings.backup_dir`
    keep_backups: int = 7


class HomeAssistant(_Table, frozen=True):
    """A user whose devices are announced to Home Assistant. `prefix` is its discovery prefix."""

    user: str  # an e-mail address, an id or a user name
    prefix: str = HOME_PREFIX


class TopicDevice(_Table, frozen=True):
    """Messages that are made of what devices publish on open topics, or of what `POST /hooks/<name>/<secret>` brings.

    `mapping` names a shipped one. `key` and the expressions are explained in reference 16.8. `hook` is the hash of the
    secret. `devices` are known devices, ids by key.
    """

    name: str
    owner: str  # an e-mail address, an id or a user name
    type: str  # a unique name or an id
    mapping: str = ""
    topic: str = ""
    hook: str = ""
    key: str = ""
    data: str = ""
    ts: str = ""
    make: bool = False
    make_max: int = TOPIC_DEVICES_MADE
    devices: dict[str, str] = {}


class Discover(_Table, frozen=True):
    """An MQTT client whose announcements are taken over, and whose it is."""

    device: str  # an id, or the name of a device of the owner
    owner: str  # an e-mail address, an id or a user name
    prefix: str = HOME_PREFIX


class Forward(_Table, frozen=True):
    """An upstream: another Trunkline, or a broker of MQTT, that gets what this store gets (reference 30).

    `devices`: `*`, ids, `type:` with a unique name, `owner:` with an e-mail address, an id or a user name. `topic` and
    `commands` are of a broker, with {did}, {dtid}, {type} and {name}.
    """

    name: str
    to: str
    devices: tuple[str, ...] = ("*",)
    token_file: str = ""
    user: str = ""  # of a broker; `token_file` has the password
    ca_file: str = ""
    allow_plain: bool = False
    begin: Literal["now", "start"] = "now"
    order: Literal["oldest", "newest"] = "oldest"
    max_kbit: int = 0
    actions: bool = True
    topic: str = FORWARD_TOPIC
    commands: str = FORWARD_COMMANDS


class Settings(_Table, frozen=True):
    state_dir: Path
    public_url: str = ""
    http: Http = Http()
    accounts: Accounts = Accounts()
    secure: Secure = Secure()
    mqtt: Mqtt = Mqtt()
    coap: Coap = Coap()
    lwm2m: Lwm2m = Lwm2m()
    device_management: DeviceManagement = DeviceManagement()
    trials: TrialSettings = TrialSettings()
    tls: Tls = Tls()
    limits: Limits = Limits()
    storage: Storage = Storage()
    cluster: Cluster = Cluster()
    subscriptions: Subscriptions = Subscriptions()
    connectors: ConnectorSettings = ConnectorSettings()
    payments: PaymentSettings = PaymentSettings()
    outbound: Outbound = Outbound()
    mcp: Mcp = Mcp()
    log: Log = Log()
    audit: Audit = Audit()
    alarms: AlarmSettings = AlarmSettings()
    metrics: Metrics = Metrics()
    console: ConsoleSettings = ConsoleSettings()
    tracing: Tracing = Tracing()
    home_assistant: tuple[HomeAssistant, ...] = ()
    topic_devices: tuple[TopicDevice, ...] = ()
    discover: tuple[Discover, ...] = ()
    forward: tuple[Forward, ...] = ()
    grace_seconds: float = 5.0

    @property
    def backup_dir(self) -> Path:
        """Where backups go that name no other place, those of the operator's page and those of the command."""
        state = self.state_dir.absolute()
        return self.console.backup_dir or state.with_name(f"{state.name}-backups")

    @property
    def listeners(self) -> tuple[str, ...]:
        """The keys of the listeners that are on, such as `http.bind`."""
        return tuple(
            f"{table}.{key}"
            for table in self.__struct_fields__
            for key in getattr(getattr(self, table), "__struct_fields__", ())
            if key.endswith("bind") and getattr(getattr(self, table), key) is not None
        )


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
        if isinstance(kind, type) and issubclass(kind, _Table):
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
    elif isinstance(kind, type) and issubclass(kind, _Table):
        names = kind.__struct_fields__
    else:
        return ""
    return f" (allowed: {', '.join(names)})"
