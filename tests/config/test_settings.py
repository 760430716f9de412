"""One TOML file and the environment become frozen settings, or one clear line for the operator."""

import json
from pathlib import Path

import pytest

from config.limits import CLUSTER_WORKERS
from config.loading import SettingsError, load_settings
from config.settings import Address, IdentityProvider, Settings
from config.settings_checks import SOCKET_LIMITS
from tests.rows import each_row

EXPECTED_RATE = "expected minute/day like 100/1000, the first from 1 to 1000000"
STATE = 'state_dir = "/var/lib/trunkline"\n'
OPEN = '[mqtt]\ntopics = "open"\n'
HOME = '[[home_assistant]]\nuser = "ada@example.org"\n'
FINDS = '[[discover]]\ndevice = "zigbee2mqtt"\nowner = "ada@example.org"\n'
_SEVERAL = '[storage]\nurl = "postgresql://h/d"\n[cluster]\nnodes = "several"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trunkline.toml"


def refusal(path: Path | None, environ: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environ)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_only_the_state_directory_is_required(file: Path) -> None:
    file.write_text(STATE)
    settings = load_settings(file, {})
    assert settings == Settings(state_dir=Path("/var/lib/trunkline"))
    assert settings.http.bind is None
    assert settings.limits.future_grace_seconds == 60
    assert settings.storage.synchronous == "full"


def test_the_example_file_is_accepted(file: Path) -> None:
    file.write_text(_WHOLE_FILE)
    settings = load_settings(file, {})
    assert settings.http.bind == Address("127.0.0.1", 8080)
    assert settings.lwm2m.tcp_bind == Address("127.0.0.1", 5688)
    assert settings.tls.key == Path("/etc/trunkline/key.pem")
    assert settings.subscriptions.batch_seconds == 0


_VARIABLES = [
    ("STATE_DIR", "/srv/state", "state_dir", Path("/srv/state")),
    ("PUBLIC_URL", "https://x.example", "public_url", "https://x.example"),
    ("GRACE_SECONDS", "1.5", "grace_seconds", 1.5),
    ("HTTP_BIND", "127.0.0.1:8080", "http.bind", Address("127.0.0.1", 8080)),
    ("HTTP_TLS_BIND", "[::]:8443", "http.tls_bind", Address("::", 8443)),
    ("ACCOUNTS_TLS_BIND", "h:1", "accounts.tls_bind", Address("h", 1)),
    ("SECURE_TLS_BIND", "h:2", "secure.tls_bind", Address("h", 2)),
    ("SECURE_PIN_SECONDS", "60", "secure.pin_seconds", 60),
    ("MQTT_BIND", "h:3", "mqtt.bind", Address("h", 3)),
    ("MQTT_TLS_BIND", "h:4", "mqtt.tls_bind", Address("h", 4)),
    ("MQTT_ACTION_PAYLOAD", "array", "mqtt.action_payload", "array"),
    ("MQTT_TOPICS", "open", "mqtt.topics", "open"),
    ("MQTT_PERSISTENT_SESSIONS", "on", "mqtt.persistent_sessions", "on"),
    ("MQTT_SESSION_MAX_SECONDS", "60", "mqtt.session_max_seconds", 60),
    ("MQTT_PACKET_MAX_BYTES", "70000", "mqtt.packet_max_bytes", 70_000),
    ("MQTT_KEEP_ALIVE_MAX_SECONDS", "60", "mqtt.keep_alive_max_seconds", 60),
    ("COAP_BIND", "h:5", "coap.bind", Address("h", 5)),
    ("COAP_DTLS_BIND", "h:6", "coap.dtls_bind", Address("h", 6)),
    ("LWM2M_DTLS_BIND", "h:7", "lwm2m.dtls_bind", Address("h", 7)),
    ("LWM2M_TCP_BIND", "h:8", "lwm2m.tcp_bind", Address("h", 8)),
    ("LWM2M_TLS_BIND", "h:9", "lwm2m.tls_bind", Address("h", 9)),
    ("DEVICE_MANAGEMENT_IMAGE_MAX_BYTES", "1024", "device_management.image_max_bytes", 1024),
    ("DEVICE_MANAGEMENT_MODEL_FOLDER", "/srv/models", "device_management.model_folder", "/srv/models"),
    ("TRIALS_SESSIONS", "on", "trials.sessions", "on"),
    ("TLS_CERTIFICATE", "/c.pem", "tls.certificate", Path("/c.pem")),
    ("TLS_KEY", "/k.pem", "tls.key", Path("/k.pem")),
    ("TLS_CERTIFICATE_RSA", "/rc.pem", "tls.certificate_rsa", Path("/rc.pem")),
    ("TLS_KEY_RSA", "/rk.pem", "tls.key_rsa", Path("/rk.pem")),
    ("ACCOUNTS_USER_TOKEN_SECONDS", "60", "accounts.user_token_seconds", 60),
    ("ACCOUNTS_APPLICATION_TOKEN_SECONDS", "61", "accounts.application_token_seconds", 61),
    ("ACCOUNTS_REFRESH_WINDOW_DAYS", "0", "accounts.refresh_window_days", 0),
    ("ACCOUNTS_DEVICE_CODE_SECONDS", "62", "accounts.device_code_seconds", 62),
    ("ACCOUNTS_DEVICE_POLL_SECONDS", "1", "accounts.device_poll_seconds", 1),
    ("ACCOUNTS_SIGNUP", "open", "accounts.signup", "open"),
    ("ACCOUNTS_SECOND_FACTOR", "administrators", "accounts.second_factor", "administrators"),
    ("ACCOUNTS_PUBLIC_URL", "https://a", "accounts.public_url", "https://a"),
    (
        "ACCOUNTS_PROVIDERS",
        '[{"name":"a","issuer":"https://a","client_id":"b"}]',
        "accounts.providers",
        (IdentityProvider(name="a", issuer="https://a", client_id="b"),),
    ),
    ("HOME_ASSISTANT", "[]", "home_assistant", ()),
    ("TOPIC_DEVICES", "[]", "topic_devices", ()),
    ("DISCOVER", "[]", "discover", ()),
    ("FORWARD", "[]", "forward", ()),
    ("ALARMS_KEEP_DAYS", "30", "alarms.keep_days", 30),
    ("ALARMS_APPRISE", '["json"]', "alarms.apprise", ("json",)),
    ("LIMITS_RATE_LIMITS", "off", "limits.rate_limits", "off"),
    ("LIMITS_REST_USER", "10/20", "limits.rest_user", "10/20"),
    ("LIMITS_REST_DEVICE", "10/20", "limits.rest_device", "10/20"),
    ("LIMITS_REST_APPLICATION", "10/20", "limits.rest_application", "10/20"),
    ("LIMITS_MESSAGES_USER", "10/20", "limits.messages_user", "10/20"),
    ("LIMITS_MESSAGES_DEVICE", "10/20", "limits.messages_device", "10/20"),
    ("LIMITS_MESSAGES_APPLICATION", "10/20", "limits.messages_application", "10/20"),
    ("LIMITS_WEBSOCKET_USER", "10/20", "limits.websocket_user", "10/20"),
    ("LIMITS_WEBSOCKET_DEVICE", "10/20", "limits.websocket_device", "10/20"),
    ("LIMITS_WEBSOCKET_APPLICATION", "10/20", "limits.websocket_application", "10/20"),
    ("LIMITS_MQTT_DEVICE", "10/20", "limits.mqtt_device", "10/20"),
    ("LIMITS_COAP_DEVICE", "10/20", "limits.coap_device", "10/20"),
    ("HTTP_TRUSTED_PROXIES", '["10.0.0.0/8","::1"]', "http.trusted_proxies", ("10.0.0.0/8", "::1")),
    ("CONSOLE_OPERATORS", '["ada@example.org"]', "console.operators", ("ada@example.org",)),
    ("CONSOLE_BACKUP_DIR", "/var/backups", "console.backup_dir", Path("/var/backups")),
    ("CONSOLE_KEEP_BACKUPS", "2", "console.keep_backups", 2),
    ("METRICS_ALLOW", '["192.0.2.0/24"]', "metrics.allow", ("192.0.2.0/24",)),
    ("METRICS_HOSTS", '["gw.example"]', "metrics.hosts", ("gw.example",)),
    ("HTTP_PROXY_PROTOCOL", "off", "http.proxy_protocol", "off"),
    ("HTTP_HSTS_SECONDS", "3600", "http.hsts_seconds", 3600),
    ("ACCOUNTS_PASSWORD_MEMORY_MIB", "32", "accounts.password_memory_mib", 32),
    ("LIMITS_UNAUTHENTICATED_CONNECTIONS", "40", "limits.unauthenticated_connections", 40),
    (
        "LIMITS_UNAUTHENTICATED_CONNECTIONS_PER_ADDRESS",
        "20",
        "limits.unauthenticated_connections_per_address",
        20,
    ),
    *((f"LIMITS_{name.upper()}", "7", f"limits.{name}", 7) for name in SOCKET_LIMITS),
    ("LIMITS_CALLS_PER_ADDRESS", "60", "limits.calls_per_address", 60),
    ("LIMITS_QUOTAS", "off", "limits.quotas", "off"),
    ("LIMITS_FUTURE_GRACE_SECONDS", "5", "limits.future_grace_seconds", 5),
    ("STORAGE_URL", "postgresql://db", "storage.url", "postgresql://db"),
    ("STORAGE_PASSWORD_FILE", "/etc/password", "storage.password_file", Path("/etc/password")),
    ("CLUSTER_NODE", "a", "cluster.node", "a"),
    ("CLUSTER_NODES", "one", "cluster.nodes", "one"),
    ("CLUSTER_WORKERS", "rules, mails", "cluster.workers", "rules, mails"),
    ("CLUSTER_LEASE_SECONDS", "9.5", "cluster.lease_seconds", 9.5),
    ("CLUSTER_PATIENCE_SECONDS", "7.5", "cluster.patience_seconds", 7.5),
    ("CLUSTER_DRAIN_NOTICE_SECONDS", "2.5", "cluster.drain_notice_seconds", 2.5),
    ("CLUSTER_DRAIN_SECONDS", "30", "cluster.drain_seconds", 30.0),
    ("STORAGE_SYNCHRONOUS", "normal", "storage.synchronous", "normal"),
    ("STORAGE_RETENTION_DAYS", "30", "storage.retention_days", 30),
    ("STORAGE_MINUTE_ROLLUP_DAYS", "31", "storage.minute_rollup_days", 31),
    ("STORAGE_HOUR_ROLLUP_DAYS", "32", "storage.hour_rollup_days", 32),
    ("STORAGE_DAY_ROLLUP_DAYS", "33", "storage.day_rollup_days", 33),
    ("SUBSCRIPTIONS_PAYLOAD", "notification", "subscriptions.payload", "notification"),
    ("CONNECTORS_PULL_MINUTES", "5", "connectors.pull_minutes", 5),
    ("MCP_TOOLS", "read", "mcp.tools", "read"),
    ("AUDIT_KEEP_DAYS", "30", "audit.keep_days", 30),
    ("AUDIT_KEEP_ENTRIES", "5000", "audit.keep_entries", 5000),
    ("SUBSCRIPTIONS_BATCH_SECONDS", "2", "subscriptions.batch_seconds", 2),
    ("SUBSCRIPTIONS_KEEP_DAYS", "3", "subscriptions.keep_days", 3),
    ("SUBSCRIPTIONS_KEEP_BYTES", "1000", "subscriptions.keep_bytes", 1000),
    ("PAYMENTS_PROCESSOR", "manual", "payments.processor", "manual"),
    ("PAYMENTS_CURRENCY", "eur", "payments.currency", "eur"),
    ("PAYMENTS_STRIPE_KEY", "sk", "payments.stripe_key", "sk"),
    ("PAYMENTS_STRIPE_WEBHOOK_SECRET", "wh", "payments.stripe_webhook_secret", "wh"),
    ("PAYMENTS_STRIPE_URL", "https://p", "payments.stripe_url", "https://p"),
    ("OUTBOUND_ALLOW_PRIVATE_ADDRESSES", "true", "outbound.allow_private_addresses", True),
    ("OUTBOUND_CA_FILE", "/ca.pem", "outbound.ca_file", "/ca.pem"),
    ("OUTBOUND_SMTP_URL", "smtp://m", "outbound.smtp_url", "smtp://m"),
    ("TRACING_ENDPOINT", "http://c:4318/v1/traces", "tracing.endpoint", "http://c:4318/v1/traces"),
    ("TRACING_PER_MINUTE", "6", "tracing.per_minute", 6),
    ("OUTBOUND_MAIL_FROM", "a@b.example", "outbound.mail_from", "a@b.example"),
    ("OUTBOUND_STREAM_ENDPOINT", "https://s", "outbound.stream_endpoint", "https://s"),
    ("LOG_LEVEL", "debug", "log.level", "debug"),
    ("LOG_FORMAT", "json", "log.format", "json"),
]
_TLS = {
    "TRUNKLINE_TLS_CERTIFICATE": "/c.pem",
    "TRUNKLINE_TLS_KEY": "/k.pem",
}


@each_row(("variable", "text", "key", "value"), _VARIABLES)
def test_every_key_is_also_a_variable(variable: str, text: str, key: str, value: object) -> None:
    needed = {"TRUNKLINE_ACCOUNTS_TLS_BIND": "127.0.0.1:9443"} if key == "accounts.public_url" else {}
    environment = {"TRUNKLINE_STATE_DIR": "/s", **_TLS, **needed, f"TRUNKLINE_{variable}": text}
    settings: object = load_settings(None, environment)
    for part in key.split("."):
        settings = getattr(settings, part)
    assert settings == value


def test_every_problem_is_found_at_once(file: Path) -> None:
    file.write_text(
        STATE
        + """public_url = "gateway.example.org"
colour = "red"
[http]
bind = "127.0.0.1:99999"
hsts_seconds = "soon"
[mqtt]
tls_bind = "127.0.0.1:8883"
[accounts]
public_url = "https://accounts.example.org"
[console]
operators = ["nobody", "ada@example.org", "none"]
"""
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {})
    assert [problem.removeprefix(f"{file}: ") for problem in (str(caught.value), *caught.value.others)] == [
        "http.bind: expected host:port or [IPv6]:port, got '127.0.0.1:99999'",
        "colour: unknown setting (allowed: " + ", ".join(Settings.__struct_fields__) + ")",
        "http.hsts_seconds: expected `int`, got `str`",
        "mqtt.tls_bind: needs tls.certificate and tls.key",
        "public_url: expected http://… or https://…, got 'gateway.example.org'",
        "accounts.public_url: needs accounts.tls_bind, the listener that has this address",
        "console.operators: 'nobody' is no e-mail address",
        "console.operators: 'none' is no e-mail address",
    ]


@each_row(
    ("url", "is_taken"),
    [
        ("https://gateway.example.org", True),
        ("http://[::1]:8080/", True),
        ("https://gateway.example.org/trunkline", True),
        ("gateway.example.org:8080", False),
        ("//gateway.example.org", False),
        ("ftp://gateway.example.org", False),
        ("https://", False),
        ("https://gateway.example.org:x", False),
        ("https://ada:secret@gateway.example.org", False),
        ("https://gateway.example.org/?a=b", False),
        ("https://[::1", False),
    ],
)
def test_a_public_url_has_a_scheme_and_a_host(url: str, is_taken: bool) -> None:
    environment = {"TRUNKLINE_STATE_DIR": "/s", "TRUNKLINE_PUBLIC_URL": url}
    if is_taken:
        assert load_settings(None, environment).public_url == url
        return
    with pytest.raises(SettingsError, match="environment: public_url: ") as caught:
        load_settings(None, environment)
    assert "secret" not in str(caught.value)


def test_the_table_of_variables_is_complete() -> None:
    keys = set()
    for name in Settings.__struct_fields__:
        inner = getattr(getattr(Settings(state_dir=Path()), name), "__struct_fields__", None)
        keys |= {name} if inner is None else {f"{name}.{field}" for field in inner}
    assert keys == {key for _, _, key, _ in _VARIABLES}


def test_a_variable_overrides_the_file(file: Path) -> None:
    file.write_text(STATE + '[mqtt]\nbind = "127.0.0.1:1"\naction_payload = "array"\n')
    settings = load_settings(file, {"TRUNKLINE_MQTT_BIND": "127.0.0.1:2"})
    assert settings.mqtt.bind == Address("127.0.0.1", 2)
    assert settings.mqtt.action_payload == "array"


def test_a_bind_may_be_a_list(file: Path) -> None:
    file.write_text(STATE + '[mqtt]\nbind = ["127.0.0.1:1", "[::1]:1"]\n[coap]\nbind = "*:3"\n')
    listed = '["*:0", "*:0"]'  # a free port each
    settings = load_settings(file, {"TRUNKLINE_HTTP_BIND": listed, "TRUNKLINE_LWM2M_TCP_BIND": "[::1]:2"})
    assert settings.mqtt.bind is not None
    assert settings.mqtt.bind.all == (Address("127.0.0.1", 1), Address("::1", 1))
    assert settings.http.bind == Address("*", 0, (Address("*", 0),))
    assert (settings.coap.bind, settings.lwm2m.tcp_bind) == (Address("*", 3), Address("::1", 2))
    with pytest.raises(SettingsError, match="expected host:port"):
        load_settings(file, {"TRUNKLINE_HTTP_BIND": '["h:1", 2]'})


def test_other_variables_are_ignored(file: Path) -> None:
    file.write_text(STATE)
    # The command line's clients read the second one.
    load_settings(file, {"HOME": "/root", "TRUNKLINE_TOKEN": "x"})


def test_without_a_configuration_it_is_said_where_the_state_directory_comes_from() -> None:
    with pytest.raises(SettingsError, match=r"state_dir: is required \(--config .*, TRUNKLINE_STATE_DIR the value\)$"):
        load_settings(None, {})


_TLS_FILE = '[http]\ntls_bind = "h:1"\n[tls]\ncertificate = "c"\nkey = "k"\n'


@each_row(
    ("toml", "problem"),
    [
        ("", "state_dir: is required"),
        ("state_dir = 3", "state_dir: expected a path, got 3"),
        ('state_dir = ""', "state_dir: expected a path, got ''"),
        (STATE + "colour = 1", "colour: unknown setting (allowed: state_dir, public_url, http,"),
        (STATE + "[htpp]\nport = 1", "htpp: unknown setting (allowed: state_dir, public_url, http,"),
        (STATE + "[http]\nport = 1", "http.port: unknown setting (allowed: bind, tls_bind, "),
        (STATE + "http = 1", "http: expected `object`, got `int`"),
        (
            STATE + '[mqtt]\naction_payload = "x"',
            "mqtt.action_payload: invalid enum value 'x' (allowed: object, array)",
        ),
        (STATE + "[limits]\nquotas = true", "limits.quotas: expected `str`, got `bool` (allowed: on, off)"),
        (STATE + '[limits]\nfuture_grace_seconds = "60"', "limits.future_grace_seconds: expected `int`, got `str`"),
        (STATE + "[limits]\nfuture_grace_seconds = 1.5", "limits.future_grace_seconds: expected `int`, got `float`"),
        (STATE + "[limits]\nfuture_grace_seconds = -1", "limits.future_grace_seconds: must be at least 0"),
        (
            STATE + '[http]\ntrusted_proxies = ["10.0.0.1/8"]',
            "http.trusted_proxies: 10.0.0.1/8 has host bits set",
        ),
        (STATE + '[metrics]\nallow = ["10.0.0.1/8"]', "metrics.allow: 10.0.0.1/8 has host bits set"),
        (STATE + '[metrics]\nhosts = ["gw.example:8080"]', "metrics.hosts: 'gw.example:8080' is no host name"),
        (STATE + '[http]\ntrusted_proxies = ["proxy"]', "http.trusted_proxies: 'proxy' does not appear to be"),
        (STATE + '[http]\nproxy_protocol = "required"', "http.proxy_protocol: needs http.trusted_proxies"),
        (STATE + "[http]\nhsts_seconds = -1", "http.hsts_seconds: must be at least 0"),
        (STATE + "[accounts]\npassword_memory_mib = 18", "accounts.password_memory_mib: must be at least 19"),
        (
            STATE + "[limits]\nunauthenticated_connections = 0",
            "limits.unauthenticated_connections: must be at least 1",
        ),
        (
            STATE + "[limits]\nunauthenticated_connections_per_address = 0",
            "limits.unauthenticated_connections_per_address: must be at least 1",
        ),
        *((STATE + f"[limits]\n{name} = 0", f"limits.{name}: must be at least 1") for name in SOCKET_LIMITS),
        (STATE + "[limits]\ncalls_per_address = 0", "limits.calls_per_address: must be at least 1"),
        *(
            (STATE + f'[limits]\nmqtt_device = "{text}"', f"limits.mqtt_device: {EXPECTED_RATE}, got '{text}'")
            for text in ("", "100", "0/100", "100/0", "1000001/1", "-1/5", "1/2/3", "a/b", "１/２")
        ),
        (STATE + '[storage]\nurl = "mysql://u:secret@h/d"', "storage.url: expected sqlite or postgresql://…"),
        (
            STATE + '[cluster]\nworkers = "rules, males"',
            f"cluster.workers: expected all, or some of {', '.join(CLUSTER_WORKERS)}; got males",
        ),
        (STATE + FINDS, 'discover: needs mqtt.topics = "open"'),
        (STATE + OPEN + FINDS + FINDS, "discover[1].device: is there twice"),
        (STATE + OPEN + '[[discover]]\ndevice = "a"\nowner = ""', "discover[0].owner: must not be empty"),
        (STATE + OPEN + FINDS + 'prefix = "a/+"', "discover[0].prefix: expected letters"),
        (STATE + HOME, 'home_assistant: needs mqtt.topics = "open"'),
        (STATE + OPEN + HOME + HOME, "home_assistant[1].user: is there twice"),
        (STATE + OPEN + '[[home_assistant]]\nuser = " "', "home_assistant[0].user: expected an e-mail address"),
        (STATE + OPEN + "[[home_assistant]]\n", "home_assistant[0].user: is required"),
        *(
            (STATE + OPEN + HOME + f'prefix = "{prefix}"\n', f"home_assistant[0].prefix: {problem}")
            for prefix, problem in (
                ("", "expected letters"),
                ("a/#", "expected letters"),
                ("/v1.1/a", "expected letters"),
                ("$SYS", "expected letters"),
                ("a" * 201, "expected letters"),
                ("trunkline/a", "trunkline is for the states of devices"),
            )
        ),
        (STATE + '[cluster]\nnodes = "several"', "cluster.nodes: several need PostgreSQL (storage.url)"),
        (
            STATE + _SEVERAL + '[mqtt]\ntopics = "open"',
            "mqtt.topics: open topics are in the memory of one node; several (cluster.nodes) need service",
        ),
        (STATE + "[cluster]\npatience_seconds = -1", "cluster.patience_seconds: must be at least 0"),
        (STATE + "[cluster]\ndrain_seconds = -1", "cluster.drain_seconds: must be at least 0"),
        (STATE + "[cluster]\ndrain_notice_seconds = nan", "cluster.drain_notice_seconds: must be at least 0"),
        (STATE + "[storage]\nretention_days = -1", "storage.retention_days: must be at least 0"),
        (STATE + "[storage]\nhour_rollup_days = -1", "storage.hour_rollup_days: must be at least 0"),
        (
            STATE + "[storage]\nday_rollup_days = 9\nretention_days = 10",
            "storage.day_rollup_days: must be at least storage.retention_days",
        ),
        (STATE + "[connectors]\npull_minutes = 0", "connectors.pull_minutes: must be at least 1"),
        (STATE + '[console]\noperators = ["ada"]', "console.operators: 'ada' is no e-mail address"),
        (STATE + "[console]\nkeep_backups = 0", "console.keep_backups: must be at least 1"),
        (STATE + "[audit]\nkeep_days = 0", "audit.keep_days: must be at least 1"),
        (STATE + "[audit]\nkeep_entries = 999", "audit.keep_entries: must be at least 1000"),
        (
            STATE + '[payments]\nprocessor = "cash"',
            "payments.processor: invalid enum value 'cash' (allowed: manual, stripe)",
        ),
        (
            STATE + '[payments]\nprocessor = "stripe"',
            "payments.processor: stripe needs stripe_key and stripe_webhook_secret",
        ),
        *(
            (STATE + f'[payments]\ncurrency = "{code}"', "payments.currency: expected the code of a currency")
            for code in ("", "USD", "jpy", "kwd", "dollar")
        ),
        (STATE + "[subscriptions]\nbatch_seconds = -1", "subscriptions.batch_seconds: must be at least 0"),
        (STATE + "[accounts]\nuser_token_seconds = 0", "accounts.user_token_seconds: must be at least 1"),
        (STATE + "[accounts]\nrefresh_window_days = -1", "accounts.refresh_window_days: must be at least 0"),
        ("grace_seconds = -0.1\n" + STATE, "grace_seconds: must be at least 0"),
        ("grace_seconds = nan\n" + STATE, "grace_seconds: must be at least 0"),
        (
            STATE + "[outbound]\nallow_private_addresses = 1",
            "outbound.allow_private_addresses: expected `bool`, got `i",
        ),
        (STATE + "[http]\nbind = 8080", "http.bind: expected host:port or [IPv6]:port, got '8080'"),
        *(
            (STATE + f"[mqtt]\npacket_max_bytes = {size}", "mqtt.packet_max_bytes: must be 65536 to 16777216")
            for size in (-1, 65_535, 16_777_217)
        ),
        (STATE + "[http]\nbind = []", "http.bind: expected 1 to 16 addresses, got 0"),
        (STATE + f"[http]\nbind = {['h:1'] * 17}", "http.bind: expected 1 to 16 addresses, got 17"),
        (STATE + '[http]\nbind = ["h:1", "*"]', "http.bind: expected host:port or [IPv6]:port, got '*'"),
        (STATE + '[http]\nbind = ["h:1", ["h:2"]]', "http.bind: expected host:port or [IPv6]:port, got \"['h:2']\""),
        (STATE + '[coap]\nbind = ["h:1", "g:1", "h:1"]', "coap.bind: h:1 is there twice"),
        (STATE + '[http]\ntls_bind = "h:1"', "http.tls_bind: needs tls.certificate and tls.key"),
        (STATE + '[coap]\ndtls_bind = "h:1"', "coap.dtls_bind: needs tls.certificate and tls.key"),
        (STATE + _TLS_FILE + 'certificate_rsa = "c"', "tls.certificate_rsa: needs tls.key_rsa"),
        (STATE + _TLS_FILE + 'key_rsa = "k"', "tls.certificate_rsa: needs tls.key_rsa"),
        (STATE + '[lwm2m]\ntls_bind = "h:1"\n[tls]\nkey = "k"', "lwm2m.tls_bind: needs tls.certificate and tls.key"),
        ("state_dir = ", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_with_file_key_and_allowed_values(file: Path, toml: str, problem: str) -> None:
    file.write_text(toml)
    assert refusal(file, {}).startswith(f"{file}: {problem}")


@each_row(
    ("variable", "text", "problem"),
    [
        ("TRUNKLINE_HTTP_PORT", "1", "unknown setting"),
        ("TRUNKLINE_MQTT_ACTION_PAYLOAD", "x", "invalid enum value 'x' (allowed: object, array)"),
        ("TRUNKLINE_LIMITS_FUTURE_GRACE_SECONDS", "soon", "expected `int`, got `str`"),
        ("TRUNKLINE_OUTBOUND_ALLOW_PRIVATE_ADDRESSES", "perhaps", "expected `bool`, got `str`"),
        ("TRUNKLINE_HTTP_BIND", "8080", "expected host:port or [IPv6]:port, got '8080'"),
        ("TRUNKLINE_STATE_DIR", "", "expected a path, got ''"),
        ("TRUNKLINE_ACCOUNTS_PROVIDERS", "[1]", "expected a JSON array of objects"),
        ("TRUNKLINE_ACCOUNTS_PROVIDERS", "s3cret", "expected a JSON array of objects"),
    ],
)
def test_a_bad_variable_is_refused_by_its_own_name(file: Path, variable: str, text: str, problem: str) -> None:
    file.write_text(STATE)
    assert refusal(file, {variable: text}) == f"environment: {variable}: {problem}"


def test_a_variable_does_not_make_the_file_lenient(file: Path) -> None:
    file.write_text(STATE + '[limits]\nfuture_grace_seconds = "60"\n')
    assert refusal(file, {"TRUNKLINE_LOG_LEVEL": "info"}).startswith(f"{file}: limits.future_grace_seconds:")


def test_a_variable_for_a_table_that_the_file_made_a_value(file: Path) -> None:
    file.write_text(STATE + "http = 1\n")
    assert refusal(file, {"TRUNKLINE_HTTP_BIND": "h:1"}) == f"{file}: http: expected a table"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml", {}) == f"{tmp_path / 'none.toml'}: No such file or directory"
    (tmp_path / "latin.toml").write_bytes(b'state_dir = "\xe9"')
    assert refusal(tmp_path / "latin.toml", {}).startswith(f"{tmp_path / 'latin.toml'}: not valid TOML")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("localhost:65535", "localhost", 65535),
        ("[::1]:8080", "::1", 8080),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_an_address_reads_and_writes_the_same(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@each_row(
    "text",
    ["", ":80", "h", "h:", "h:x", "h:-1", "h:65536", "h:٣", "::1", "::1:80", "[]:80", "[::1]", "[::1:80", "a b:1"],
)
def test_texts_that_are_no_listener_address_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Address.parse(text)


_WHOLE_FILE = """
state_dir = "/var/lib/trunkline"
public_url = "https://gateway.example.org:8080"
[http]
bind = "127.0.0.1:8080"
tls_bind = "0.0.0.0:8443"
[accounts]
tls_bind = "0.0.0.0:9443"
[secure]
tls_bind = "0.0.0.0:8444"
[mqtt]
bind = "127.0.0.1:1883"
tls_bind = "0.0.0.0:8883"
action_payload = "object"
[coap]
bind = "127.0.0.1:5683"
dtls_bind = "0.0.0.0:5684"
[lwm2m]
dtls_bind = "0.0.0.0:5686"
tcp_bind = "127.0.0.1:5688"
tls_bind = "0.0.0.0:5689"
[tls]
certificate = "/etc/trunkline/cert.pem"
key = "/etc/trunkline/key.pem"
[limits]
rate_limits = "on"
quotas = "on"
future_grace_seconds = 60
[storage]
url = "sqlite"
synchronous = "full"
retention_days = 0
[subscriptions]
payload = "messages"
batch_seconds = 0
[outbound]
allow_private_addresses = false
ca_file = ""
smtp_url = ""
stream_endpoint = ""
"""


PROVIDER = {"name": "example", "issuer": "https://id.example.org/realm", "client_id": "us"}


def providers(*entries: dict[str, object]) -> str:
    """A file with these keys; None leaves a key out."""
    lines = [STATE]
    for entry in entries:
        given = {key: value for key, value in {**PROVIDER, **entry}.items() if value is not None}
        lines += ["[[accounts.providers]]", *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
    return "\n".join(lines)


@each_row(
    "entry",
    [
        {},
        {"name": "A-1._b"},
        {"issuer": "http://127.0.0.1:8090"},
        {"issuer": "http://localhost/realms/x/"},
        {"client_secret": "x"},
        {"client_secret_file": "/etc/x"},
        {"scopes": ["openid"]},
        {"signup": "open"},
    ],
)
def test_identity_providers(file: Path, entry: dict[str, object]) -> None:
    file.write_text(providers(entry, {"name": "another"}))
    first, second = load_settings(file, {}).accounts.providers
    assert (first.name, second.name) == (entry.get("name", "example"), "another")


@each_row(
    ("entries", "problem"),
    [
        ([{"name": ""}], "providers[0].name: must be 1 to 32 characters"),
        ([{"name": "a b"}], "providers[0].name: must be 1 to 32 characters"),
        ([{"name": "Local"}], "providers[0].name: 'Local' is taken"),
        ([{}, {"name": "EXAMPLE"}], "providers[1].name: 'EXAMPLE' is taken"),
        ([{"issuer": "http://id.example.org"}], "providers[0].issuer: must be an https URL"),
        ([{"issuer": "https://id.example.org?x"}], "providers[0].issuer: must be an https URL"),
        ([{"issuer": "https://id.example.org#x"}], "providers[0].issuer: must be an https URL"),
        ([{"issuer": "https://a@id.example.org"}], "providers[0].issuer: must be an https URL"),
        ([{"issuer": "https://"}], "providers[0].issuer: must be an https URL"),
        ([{"issuer": "https://[x"}], "providers[0].issuer: must be an https URL"),
        ([{"client_id": ""}], "providers[0].client_id: must not be empty"),
        ([{"scopes": ["email"]}], "providers[0].scopes: must be scopes, openid among them"),
        ([{"scopes": ["openid email"]}], "providers[0].scopes: must be scopes, openid among them"),
        ([{"client_secret": "s3cret", "client_secret_file": "/x"}], "providers[0].client_secret_file: there is a"),
        ([{"colour": 1}], "providers[0].colour: unknown setting"),
        ([{"issuer": None}], "providers[0].issuer: is required"),
    ],
)
def test_identity_providers_that_are_refused(file: Path, entries: list[dict[str, object]], problem: str) -> None:
    file.write_text(providers(*entries))
    assert refusal(file, {}).startswith(f"{file}: accounts.{problem}")
    assert "s3cret" not in refusal(file, {})
