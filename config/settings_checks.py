"""The checks beyond the types of settings: bounds, and settings that need each other. Texts have the key, no secret."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from config.forward_target import ForwardTarget
from config.limits import (
    CLUSTER_WORKERS,
    FORWARD_DEVICES_MAX,
    FORWARD_TOPIC_CHARACTERS,
    FORWARDS_MAX,
    MQTT_OPEN_PACKET_BYTES_MAX,
    MQTT_PACKET_BYTES,
    NODE_NAME_CHARACTERS,
    PASSWORD_MEMORY_MIB,
)
from config.mail import Sender, SmtpServer
from config.providers import provider_problems
from config.rates import Rate

if TYPE_CHECKING:
    from config.settings import Forward, Http, IdentityProvider, Limits, PaymentSettings, Settings

#: Currencies with no or three decimals: refused, because prices have two decimals.
WHOLE_CURRENCIES: Final = frozenset(
    {"bif", "clp", "djf", "gnf", "isk", "jpy", "kmf", "krw", "mga", "pyg", "rwf", "ugx", "vnd", "vuv", "xaf", "xof"}
    | {"xpf", "bhd", "jod", "kwd", "omr", "tnd"}
)

#: The settings of `limits` that bound connections (reference 21.8).
SOCKET_LIMITS: Final = (
    *("connections_per_token", "connections_per_user", "connections_per_application", "connections_per_device"),
    *("feeds_per_token", "feeds_per_user", "feeds_per_application"),
)


def settings_problems(settings: "Settings") -> Iterator[str]:
    """One text for each problem: the key and what is wrong with it."""
    yield from _of_tls(settings)
    yield from _of_addresses(settings)
    yield from _of_numbers(settings)
    yield from _of_proxies(settings.http)
    yield from _of_monitoring(settings)
    yield from _of_providers(settings.accounts.providers)
    yield from _of_rates(settings.limits)
    yield from _of_storage(settings)
    yield from _of_mail(settings)
    yield from _of_payments(settings.payments)
    yield from _of_home_assistant(settings)
    yield from _of_discover(settings)
    yield from _of_forwards(settings)


def _of_tls(settings: "Settings") -> Iterator[str]:
    needs_tls = [
        f"{name}.{key}"
        for name, key in (
            ("http", "tls_bind"),
            ("accounts", "tls_bind"),
            ("secure", "tls_bind"),
            ("mqtt", "tls_bind"),
            ("coap", "dtls_bind"),
            ("lwm2m", "tls_bind"),
        )
        if getattr(getattr(settings, name), key) is not None
    ]
    if needs_tls and (settings.tls.certificate is None or settings.tls.key is None):
        yield f"{needs_tls[0]}: needs tls.certificate and tls.key"
    if needs_tls and (settings.tls.certificate_rsa is None) is not (settings.tls.key_rsa is None):
        yield "tls.certificate_rsa: needs tls.key_rsa, and the other way round"


def _of_addresses(settings: "Settings") -> Iterator[str]:
    """The addresses that links begin with."""
    for key, url in (("public_url", settings.public_url), ("accounts.public_url", settings.accounts.public_url)):
        if url and (problem := _of_url(url)):
            yield f"{key}: {problem}"
    if settings.accounts.public_url and settings.accounts.tls_bind is None:
        yield "accounts.public_url: needs accounts.tls_bind, the listener that has this address"


def _of_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return f"expected http://… or https://…, got {url!r}"
    if parts.username is not None or parts.query or parts.fragment:
        return "expected an address without user, query and fragment"
    return ""


def _of_numbers(settings: "Settings") -> Iterator[str]:
    for key, value, lowest in (
        ("mqtt.keep_alive_max_seconds", settings.mqtt.keep_alive_max_seconds, 0),
        ("mqtt.session_max_seconds", settings.mqtt.session_max_seconds, 1),
        ("limits.future_grace_seconds", settings.limits.future_grace_seconds, 0),
        ("limits.calls_per_address", settings.limits.calls_per_address, 1),
        ("limits.unauthenticated_connections", settings.limits.unauthenticated_connections, 1),
        *((f"limits.{name}", getattr(settings.limits, name), 1) for name in SOCKET_LIMITS),
        (
            "limits.unauthenticated_connections_per_address",
            settings.limits.unauthenticated_connections_per_address,
            1,
        ),
        ("http.hsts_seconds", settings.http.hsts_seconds, 0),
        ("accounts.password_memory_mib", settings.accounts.password_memory_mib, PASSWORD_MEMORY_MIB),
        ("storage.retention_days", settings.storage.retention_days, 0),
        ("storage.minute_rollup_days", settings.storage.minute_rollup_days, 0),
        ("storage.hour_rollup_days", settings.storage.hour_rollup_days, 0),
        ("storage.day_rollup_days", settings.storage.day_rollup_days, 0),
        ("subscriptions.batch_seconds", settings.subscriptions.batch_seconds, 0),
        ("subscriptions.keep_days", settings.subscriptions.keep_days, 1),
        ("subscriptions.keep_bytes", settings.subscriptions.keep_bytes, 1),
        ("connectors.pull_minutes", settings.connectors.pull_minutes, 1),
        ("grace_seconds", settings.grace_seconds, 0),
        ("cluster.patience_seconds", settings.cluster.patience_seconds, 0),
        ("cluster.lease_seconds", settings.cluster.lease_seconds, 4),
        ("cluster.drain_notice_seconds", settings.cluster.drain_notice_seconds, 0),
        ("cluster.drain_seconds", settings.cluster.drain_seconds, 0),
        ("accounts.user_token_seconds", settings.accounts.user_token_seconds, 1),
        ("accounts.application_token_seconds", settings.accounts.application_token_seconds, 1),
        ("accounts.refresh_window_days", settings.accounts.refresh_window_days, 0),
        ("accounts.device_code_seconds", settings.accounts.device_code_seconds, 1),
        ("accounts.device_poll_seconds", settings.accounts.device_poll_seconds, 1),
        ("device_management.image_max_bytes", settings.device_management.image_max_bytes, 1),
        ("secure.pin_seconds", settings.secure.pin_seconds, 1),
        ("tracing.per_minute", settings.tracing.per_minute, 1),
        ("alarms.keep_days", settings.alarms.keep_days, 1),
        ("audit.keep_days", settings.audit.keep_days, 1),
        ("audit.keep_entries", settings.audit.keep_entries, 1_000),
        ("console.keep_backups", settings.console.keep_backups, 1),
    ):
        if not value >= lowest:  # also refuses NaN
            yield f"{key}: must be at least {lowest}"
    kept = settings.storage
    if 0 < kept.day_rollup_days < kept.retention_days:
        yield "storage.day_rollup_days: must be at least storage.retention_days"
    if not MQTT_PACKET_BYTES <= settings.mqtt.packet_max_bytes <= MQTT_OPEN_PACKET_BYTES_MAX:
        yield f"mqtt.packet_max_bytes: must be {MQTT_PACKET_BYTES} to {MQTT_OPEN_PACKET_BYTES_MAX}"


def _of_storage(settings: "Settings") -> Iterator[str]:
    url = settings.storage.url  # it may hold a password
    if url != "sqlite" and not url.startswith(("postgresql://", "postgres://")):
        yield "storage.url: expected sqlite or postgresql://…"
    if not re.fullmatch(rf"[A-Za-z0-9._-]{{0,{NODE_NAME_CHARACTERS}}}", settings.cluster.node):
        yield f"cluster.node: expected letters, digits, '.', '_' and '-', at most {NODE_NAME_CHARACTERS}"
    if unknown := sorted(settings.cluster.may_do - {"all", *CLUSTER_WORKERS}):
        yield f"cluster.workers: expected all, or some of {', '.join(CLUSTER_WORKERS)}; got {', '.join(unknown)}"
    if settings.cluster.nodes == "several":
        yield from _of_several_nodes(settings)


def _of_several_nodes(settings: "Settings") -> Iterator[str]:
    """A part of the service is of one node alone."""
    if not settings.storage.is_postgresql:
        yield "cluster.nodes: several need PostgreSQL (storage.url)"
    if settings.mqtt.topics == "open":
        yield "mqtt.topics: open topics are in the memory of one node; several (cluster.nodes) need service"


def _of_proxies(http: "Http") -> Iterator[str]:
    try:
        proxies = http.proxies
    except ValueError as error:
        yield f"http.trusted_proxies: {error}"
        return
    if http.proxy_protocol == "required" and not proxies:
        yield "http.proxy_protocol: needs http.trusted_proxies"


def _of_monitoring(settings: "Settings") -> Iterator[str]:
    if not re.fullmatch(r"(https?://[^\s@]+)?", settings.tracing.endpoint):
        yield "tracing.endpoint: expected http://… or https://… without a password"
    try:
        settings.metrics.networks  # noqa: B018 - reading it checks it
    except ValueError as error:
        yield f"metrics.allow: {error}"
    for host in settings.metrics.hosts:
        if not re.fullmatch(r"[\w.-]+", host):
            yield f"metrics.hosts: {host!r} is no host name"
    for operator in settings.console.operators:
        if "@" not in operator:
            yield f"console.operators: {operator!r} is no e-mail address"


def _of_providers(providers: "Sequence[IdentityProvider]") -> Iterator[str]:
    """Check the providers by the rules of config/providers.py."""
    names = {"local"}
    for index, provider in enumerate(providers):
        for key, problem in provider_problems(
            provider.name, provider.issuer, provider.client_id, provider.scopes, taken=names
        ):
            yield f"accounts.providers[{index}].{key}: {problem}"
        if provider.client_secret and provider.client_secret_file:
            yield f"accounts.providers[{index}].client_secret_file: there is a client_secret"
        names.add(provider.name.lower())


def _of_rates(limits: "Limits") -> Iterator[str]:
    for name, text in limits.rates.items():
        try:
            Rate.parse(text)
        except ValueError as error:
            yield f"limits.{name}: {error}"


def _of_mail(settings: "Settings") -> Iterator[str]:
    try:
        if settings.outbound.smtp_url:
            SmtpServer.parse(settings.outbound.smtp_url)
    except ValueError as error:
        yield f"outbound.smtp_url: {error}"
    try:
        Sender.of(settings.outbound.mail_from, settings.public_url)
    except ValueError as error:
        yield f"outbound.mail_from: {error}"


def _of_home_assistant(settings: "Settings") -> Iterator[str]:
    entries = settings.home_assistant
    if entries and settings.mqtt.topics != "open":
        yield 'home_assistant: needs mqtt.topics = "open"'
    users = [one.user for one in entries]
    for index, one in enumerate(entries):
        if not one.user.strip():
            yield f"home_assistant[{index}].user: expected an e-mail address, an id or a user name"
        elif one.user in users[:index]:
            yield f"home_assistant[{index}].user: is there twice"
        if problem := _of_prefix(one.prefix):
            yield f"home_assistant[{index}].prefix: {problem}"


def _of_discover(settings: "Settings") -> Iterator[str]:
    entries = settings.discover
    if entries and settings.mqtt.topics != "open":
        yield 'discover: needs mqtt.topics = "open"'
    clients = [(one.device, one.owner) for one in entries]
    for index, one in enumerate(entries):
        for key, value in (("device", one.device), ("owner", one.owner)):
            if not value.strip():
                yield f"discover[{index}].{key}: must not be empty"
        if (one.device, one.owner) in clients[:index]:
            yield f"discover[{index}].device: is there twice"
        if problem := _of_prefix(one.prefix):
            yield f"discover[{index}].prefix: {problem}"


def _of_forwards(settings: "Settings") -> Iterator[str]:
    entries = settings.forward
    if len(entries) > FORWARDS_MAX:
        yield f"forward: at most {FORWARDS_MAX} entries"
    for index, one in enumerate(entries):
        where = f"forward[{index}]"
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one.name):
            yield f"{where}.name: expected 1 to 64 letters, digits, _ and -"
        elif one.name in [other.name for other in entries[:index]]:
            yield f"{where}.name: is there twice"
        yield from (f"{where}.{text}" for text in _of_forward(one, settings))


def _of_forward(one: "Forward", settings: "Settings") -> Iterator[str]:
    try:
        target = ForwardTarget.parse(one.to)
    except ValueError as error:
        yield f"to: {error}"
        return
    if not (target.is_secure or target.is_loopback or one.allow_plain):
        yield f"to: {target.scheme}:// to another machine sends the token in the clear; allow_plain = true allows it"
    if (
        target.is_broker
        and target.is_loopback
        and any(
            bind is not None and target.port in {address.port for address in bind.all}
            for bind in (settings.mqtt.bind, settings.mqtt.tls_bind)
        )
    ):
        yield "to: this is the service itself"
    if not target.is_broker and not one.token_file:
        yield "token_file: is required: the file has the token that `trunkline edge add` has shown at the upstream"
    if one.max_kbit < 0:
        yield "max_kbit: must be at least 0, which is no limit"
    if not one.devices or len(one.devices) > FORWARD_DEVICES_MAX:
        yield f"devices: expected 1 to {FORWARD_DEVICES_MAX} entries"
    for device in one.devices:
        if not re.fullmatch(r"\*|[0-9a-f]{32}|(type|owner):\S.*", device):
            yield f"devices: {device!r} is neither *, nor the id of a device, nor type:… or owner:…"
    for key, topic in (("topic", one.topic), ("commands", one.commands)):
        bare = re.sub(r"\{(did|dtid|type|name)\}", "x", topic)
        if not (key == "commands" and not topic) and (
            not bare or re.search(r"[{}+#\x00]", bare) or len(topic) > FORWARD_TOPIC_CHARACTERS
        ):
            yield f"{key}: expected a topic without + and #, with {{did}}, {{dtid}}, {{type}} or {{name}}"
    if one.commands and "{did}" not in one.commands.split("/"):
        yield "commands: needs a level that is {did}"


def _of_prefix(prefix: str) -> str:
    """The problem of a discovery prefix; empty without one."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){0,9}", prefix) or len(prefix) > 200:
        return "expected letters, digits, _ and -, in levels with / between them"
    return "trunkline is for the states of devices" if prefix.split("/", maxsplit=1)[0] == "trunkline" else ""


def _of_payments(payments: "PaymentSettings") -> Iterator[str]:
    if re.fullmatch(r"[a-z]{3}", payments.currency) is None or payments.currency in WHOLE_CURRENCIES:
        yield "payments.currency: expected the code of a currency with hundredths, as in usd"
    if payments.processor == "stripe" and not (payments.stripe_key and payments.stripe_webhook_secret):
        yield "payments.processor: stripe needs stripe_key and stripe_webhook_secret"
