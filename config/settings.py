"""The settings, with their defaults (reference 25): frozen, and read once (config/loading.py).

A table of the file is a class; the comments of config/example.toml say what each setting does.
"""

import re
import socket
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Literal, get_type_hints

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
from config.settings_checks import SOCKET_LIMITS

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})")
#: The host of a `bind` that means every address of the machine, IPv4 and IPv6.
ANY_HOST = "*"


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


class SettingsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Http(SettingsTable, frozen=True):
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


class Secure(SettingsTable, frozen=True):
    """REST and WebSocket for devices with client certificates, and how long their registration may take."""

    tls_bind: Address | None = None
    pin_seconds: int = REGISTRATION_PIN_SECONDS


class IdentityProvider(SettingsTable, frozen=True):
    """An external identity provider that speaks OpenID Connect. `account_type` selects a provider by its `name`."""

    name: str
    issuer: str
    client_id: str
    client_secret: str = ""
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    signup: Literal["accounts", "closed", "open"] = "accounts"


class Accounts(SettingsTable, frozen=True):
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


class Mqtt(SettingsTable, frozen=True):
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


class Coap(SettingsTable, frozen=True):
    bind: Address | None = None
    dtls_bind: Address | None = None


class Lwm2m(SettingsTable, frozen=True):
    dtls_bind: Address | None = None
    tcp_bind: Address | None = None
    tls_bind: Address | None = None


class DeviceManagement(SettingsTable, frozen=True):
    """Firmware images, and descriptions of LWM2M objects."""

    image_max_bytes: int = IMAGE_MAX_BYTES
    model_folder: str = ""


class TrialSettings(SettingsTable, frozen=True):
    """The optional module of trials: sessions."""

    sessions: Literal["off", "on"] = "off"


class Tls(SettingsTable, frozen=True):
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


class Limits(SettingsTable, frozen=True):
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


class Storage(SettingsTable, frozen=True):
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


class Cluster(SettingsTable, frozen=True):
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


class Subscriptions(SettingsTable, frozen=True):
    """Payload of notifications, how long messages are collected for one, and how long deliveries are on record."""

    payload: Literal["messages", "notification"] = "messages"
    batch_seconds: int = 0
    keep_days: int = DELIVERY_DAYS
    keep_bytes: int = DELIVERY_BYTES


class ConnectorSettings(SettingsTable, frozen=True):
    pull_minutes: int = CONNECTOR_PULL_MINUTES


class PaymentSettings(SettingsTable, frozen=True):
    """The payments for paid tiers: confirmed by the operator, or collected by Stripe."""

    processor: Literal["manual", "stripe"] = "manual"
    currency: str = "usd"
    stripe_key: str = ""
    stripe_webhook_secret: str = ""
    stripe_url: str = "https://api.stripe.com"


class Outbound(SettingsTable, frozen=True):
    allow_private_addresses: bool = False
    ca_file: str = ""
    smtp_url: str = ""
    mail_from: str = ""
    stream_endpoint: str = ""


class Log(SettingsTable, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Tracing(SettingsTable, frozen=True):
    """Where traces of messages go; nowhere without an endpoint."""

    endpoint: str = ""
    per_minute: int = 60


class Metrics(SettingsTable, frozen=True):
    """Peers besides this machine that may read /metrics, and aliases of the paths for monitoring."""

    allow: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`allow`, each as a network. Raises ValueError."""
        return tuple(map(ip_network, self.allow))


class Mcp(SettingsTable, frozen=True):
    """Assistants at /mcp, within the rights of their token: none, or ones that read, or that also send Actions."""

    tools: Literal["off", "read", "act"] = "off"


class Audit(SettingsTable, frozen=True):
    """How long the audit log is kept, and how many entries."""

    keep_days: int = AUDIT_DAYS
    keep_entries: int = AUDIT_ENTRIES


class AlarmSettings(SettingsTable, frozen=True):
    """How long cleared alarms are kept, and the ways of Apprise that users may choose, by scheme."""

    keep_days: int = ALARM_DAYS
    apprise: tuple[str, ...] = ()


class ConsoleSettings(SettingsTable, frozen=True):
    """Users of the operator's page, and the folder of its backups."""

    operators: tuple[str, ...] = ()  # e-mail addresses
    backup_dir: Path | None = None  # see `Settings.backup_dir`
    keep_backups: int = 7


class HomeAssistant(SettingsTable, frozen=True):
    """A user whose devices are announced to Home Assistant. `prefix` is its discovery prefix."""

    user: str  # an e-mail address, an id or a user name
    prefix: str = HOME_PREFIX


class TopicDevice(SettingsTable, frozen=True):
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


class Discover(SettingsTable, frozen=True):
    """An MQTT client whose announcements are taken over, and whose it is."""

    device: str  # an id, or the name of a device of the owner
    owner: str  # an e-mail address, an id or a user name
    prefix: str = HOME_PREFIX


class Forward(SettingsTable, frozen=True):
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


class Settings(SettingsTable, frozen=True):
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
