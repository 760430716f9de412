"""Targets: documents that people, devices and other services send, each through the function that the product calls."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.serialization import Encoding
from joserfc import jws
from joserfc.jwk import ECKey

from broker.accounts.id_tokens import IdTokenRefused, read_id_token, read_userinfo
from broker.accounts.redirects import QueryParameters, with_parameters
from broker.backup.archive import BackupError, read_manifest, unpack
from broker.device_management.models import ModelError, parse_models
from broker.device_management.objects import ObjectMap
from broker.device_management.properties import manifest as management_manifest
from broker.device_management.properties import parse_filter
from broker.device_types.catalog import ManifestVersion
from broker.device_types.documents import DeviceTypeDocument
from broker.device_types.dropped import DroppedField
from broker.device_types.expressions import Expression, ExpressionFailedError, InvalidExpressionError
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.transform import TransformFailedError
from broker.errors import BadRequest, DomainError, ValidationFailed
from broker.found.announcements import is_announcement, read_announcement
from broker.found.definitions import definition_of, values_of
from broker.found.templates import Template, TemplateRefusedError
from broker.messages.columns import shape_of
from broker.models.definition import read_definition
from broker.nesting import check_nesting
from broker.registration.certificates import (
    UNREADABLE,
    BadCertificate,
    ClientCertificate,
    certificate_fields,
    certificate_info,
    certificate_signature,
    issuer_dn,
    read_authorities,
    read_signer,
)
from broker.registration.trust import Authorities
from broker.registration.uploads import BadList, read_rows
from broker.rules.language.body_reader import names_in
from broker.rules.language.compiler import compile_rule
from broker.rules.language.condition_parser import parse_schedule
from broker.rules.language.evaluation import NO_TIMERS, after
from broker.rules.language.schedule import InvalidScheduleError
from broker.rules.rulebook import rule_text
from broker.scenes.reading import read_scene
from broker.subscriptions.addresses import is_allowed_callback
from config.limits import FOUND_TEXT_CHARACTERS
from config.loading import SettingsError, load_settings
from protocols.coap.lwm2m.formats.content import (
    LWM2M_JSON,
    SENML_CBOR,
    SENML_JSON,
    TLV,
    decode_content,
    encode_plain_text,
)
from protocols.coap.lwm2m.formats.values import UnreadablePayload, parse_path
from protocols.coap.lwm2m.links import parse_discovered, parse_offer
from protocols.coap.messages import CBOR, JSON, OCTETS, TEXT
from protocols.coap.requests import cbor_to_json, json_to
from protocols.http.accounts.forms import FormData, as_field, in_address
from protocols.http.rest.approved_lists import _csv as csv_of_form
from storage.keys import Milliseconds
from tests.broker.rules.language.rule_world import WORLD, FakeView
from tests.factories import NOW_MS
from tests.fuzz.target import CORPUS, Target, example

# --- Values of devices ---------------------------------------------------------------------------------------------

_ASKED = ((3,), (3, 0), (3, 0, 9), (3303, 0), (3303, 0, 5700), (5, 0), (4, 0, 4), (3, 0, 6, 0), (26_241, 1))

#: What a device sends of its own accord.
_SENT = ((), SENML_JSON)


def _values(*formats: int) -> Callable[[bytes], None]:
    """Answers of a device: the first byte chooses what was asked, the second one the format."""

    def run(data: bytes) -> None:
        asked, format_ = (_ASKED[data[0] % len(_ASKED)], formats[data[1] % len(formats)]) if data[1:] else _SENT
        for reading in decode_content(format_, data[2:], asked, NOW_MS):
            for path, value in reading.values.items():
                if not isinstance(value, list):
                    encode_plain_text(path, value)

    return run


def cbor(data: bytes) -> None:
    """What was CBOR becomes JSON, and CBOR again."""
    text = cbor_to_json(data)
    assert cbor_to_json(json_to(CBOR, text))


def link_format(data: bytes) -> None:
    offer = parse_offer(data)
    parse_discovered(data, offer.root)
    parse_path(data.decode())


# --- Device types --------------------------------------------------------------------------------------------------


def _document_and_payload(data: bytes) -> tuple[Any, bytes]:
    """A JSON document, as the REST API reads it, and what stands behind a line with nothing."""
    text, _, payload = data.partition(b"\n\n")
    check_nesting(text)
    return msgspec.json.decode(text), payload


def manifests(data: bytes) -> None:
    """A Manifest, and a payload that it normalises: each way to do so gives the same."""
    document, payload = _document_and_payload(data)
    version = ManifestVersion(1, DeviceTypeDocument.of(document).manifest)
    version.manifest.properties()
    _normalise(version, payload)


def _normalise(version: ManifestVersion, payload: bytes) -> None:
    kept = fitting = None
    try:
        kept = version.normalize(payload)
    except (BadRequest, TransformFailedError):
        return
    finally:
        fitting = version.normalize_fitting(payload) if not version.takes_any_payload else None
    assert fitting in (None, kept)
    dropped: list[DroppedField] = []
    assert version.normalize_noting(payload, dropped) == kept
    if kept is not None:
        assert version.takes_any_payload or version.normalize(kept) == kept, kept
        if (shape := shape_of(kept.decode())) is not None and (columns := shape.columns([kept.decode()])) is not None:
            list(columns.numbers())


_TRANSFORMS: tuple[dict[str, Any], ...] = (
    {"format": "csv", "columns": ["t", "on"]},
    {"format": "csv", "columns": ["t", "on", "text"], "encoding": "hex"},
    {"format": "keyvalue"},
    {"format": "keyvalue", "pairSeparator": "&", "valueSeparator": ":", "expression": "{t: to_number(t), text: @.a}"},
    {"format": "text", "expression": "{t: to_number(split(text, ' ')[1]), text: substring(text, `0`, `4`)}"},
    {"format": "json", "expression": "{t: values(@)[0], text: to_string(@), on: choose(a, `1`, b)}"},
    {"format": "json", "expression": "{t: sum(a[*].b), text: join(',', map(&to_string(@), a[]))}"},
    {
        "format": "binary",
        "layout": [
            {"name": "t", "type": "float64", "scale": 0.1, "offset": -40},
            {"name": "text", "type": "text", "length": 4},
            {"name": "on", "type": "bytes", "length": 2},
        ],
    },
    {"format": "binary", "encoding": "base64", "layout": [{"name": "t", "type": "uint64", "scale": 1e15}]},
)
_FIELDS = [
    {"name": "t", "valueClass": "Double"},
    {"name": "on", "valueClass": "Boolean"},
    {"name": "text", "valueClass": "String"},
]


@cache
def _transformed(number: int) -> ManifestVersion:
    document = {"fields": _FIELDS, "transform": _TRANSFORMS[number]}
    return ManifestVersion(1, DeviceTypeDocument.of(document).manifest)


def transforms(data: bytes) -> None:
    """A payload for one of some transforms."""
    if data:
        _normalise(_transformed(data[0] % len(_TRANSFORMS)), data[1:])


def jmespath(data: bytes) -> None:
    """An expression, and a JSON value for it."""
    text, _, payload = data.partition(b"\n\n")
    expression = Expression(text.decode())
    check_nesting(payload)
    expression.evaluate(msgspec.json.decode(payload or b"null"))


# --- What devices announce for Home Assistant ---------------------------------------------------------------------


def announcements(data: bytes) -> None:
    """The rest of a topic of discovery, what was published there, and at an own topic of the device."""
    place, _, rest = data.partition(b"\n")
    text, _, payload = rest.partition(b"\n\n")
    topic = f"homeassistant/{place.decode()}/config"
    if not is_announcement("homeassistant", topic):
        return
    definition = definition_of(read_announcement("homeassistant", topic, text).components)
    if not definition.is_empty:
        parse_manifest(definition.manifest)
    values_of(definition.readings, payload)
    for setting in definition.settings.values():
        setting.payload({"value": payload.decode(errors="replace")})
        setting.payload({})


def templates(data: bytes) -> None:
    """A template, and the state that it is for: a line of text, and a JSON value."""
    source, _, payload = data.partition(b"\n\n")
    template, found = Template(source.decode()), {"value": payload.decode()}
    with suppress(msgspec.DecodeError, DomainError):
        check_nesting(payload)
        found["value_json"] = msgspec.json.decode(payload)
    text = template.render(**found)
    assert text is None or len(text) <= FOUND_TEXT_CHARACTERS


# --- Rules, scenes, models -----------------------------------------------------------------------------------------


def rules(data: bytes) -> None:
    """A rule, and a message for it."""
    text, _, payload = data.partition(b"\n\n")
    body = msgspec.json.decode(rule_text(text))
    names_in(body)
    rule = compile_rule(body, WORLD, key=7)
    if not payload:
        return
    check_nesting(payload)
    message = msgspec.json.decode(payload, type=dict[str, Any])
    for device in ("s1", "l1"):
        view = FakeView().sends(device, message)
        outcome = rule.on_message(view)
        if outcome.match is not None:
            rule.outgoing(view, outcome.match)
        rule.explain_message(view)
        timers = after(NO_TIMERS, outcome.timers)
        for due in list(timers):
            rule.on_elapsed(view.later(60), timers, due)
        rule.on_minute(view, timers)
        rule.next_minute(view.now_ms)


def schedules(data: bytes) -> None:
    """A cron expression, or one of the sun."""
    schedule = parse_schedule(data.decode())
    at: Milliseconds | None = NOW_MS
    for operator in ("<", "<=", "=", ">", ">="):
        schedule.holds(operator, NOW_MS)
    schedule.missing(NOW_MS)
    for _ in range(4):
        following = None if at is None else schedule.next_after(at)
        assert following is None or at is None or following > at
        at = following


def scenes_and_models(data: bytes) -> None:
    findings: list[Any] = []
    check_nesting(data)
    members = msgspec.json.decode(data, type=dict[str, Any])
    read_scene(members, findings, is_new=True)
    read_definition(members, findings)


# --- Filters and parameters ----------------------------------------------------------------------------------------


def property_filters(data: bytes) -> None:
    assert parse_filter(data.decode()) is not None


def queries(data: bytes) -> None:
    """Parameters of browsers: redirects carry them unchanged."""
    parameters = QueryParameters(data)
    state = parameters.one("state")
    uri = with_parameters("https://app.example.org/cb?a=1", [("state", state), ("code", "x")], fragment=bool(state))
    assert uri.startswith("https://app.example.org/cb?a=1")
    parameters.same("client_id")
    parameters.repeated(["client_id", "state"])
    form = FormData(data)
    in_address(form.query("continue"), but="prompt")
    assert as_field(data).encode("latin-1") == data
    text = data.decode("latin-1")
    is_allowed_callback(text, "https://app.example.org/callback", allow_private=True)
    is_allowed_callback("https://app.example.org/x", text, allow_private=False)


def approved_lists(data: bytes) -> None:
    """A content type, and the body of an upload."""
    kind, _, body = data.partition(b"\n")
    rows = read_rows(csv_of_form(body, kind.decode("latin-1")))
    assert len(rows) <= len(body)


# --- Certificates and tokens ---------------------------------------------------------------------------------------


def certificates(data: bytes) -> None:
    """DER, as a TLS handshake shows it, and the same bytes as PEM, as people upload them."""
    if data.startswith(b"-----"):
        read = data.decode(errors="surrogateescape")
        for der in (*read_authorities(read), read_signer(read)):
            certificate_fields(der)
            certificate_info(der)
            issuer_dn(der)
        return
    shown = ClientCertificate(data, (data,) if len(data) % 2 else ())
    try:
        certificate_info(shown.leaf)
    except UNREADABLE:
        return
    finally:
        _authorities().check(shown, _authority().not_valid_before_utc)
    certificate_signature(data)


@cache
def _authority() -> x509.Certificate:
    return x509.load_pem_x509_certificate(example(CORPUS / "certificates/authority.pem"))


@cache
def _authorities() -> Authorities:
    return Authorities([_authority().public_bytes(Encoding.DER)])


@cache
def _key() -> ECKey:
    """A key of everybody: its private number is 1."""
    return ECKey.import_key(derive_private_key(1, SECP256R1()))


def id_tokens(data: bytes) -> None:
    """A token in compact form; or claims, which are signed; or, behind an empty line, a set of keys."""
    text, _, other = data.decode().partition("\n\n")
    claims: dict[str, Any] = {}
    keys: dict[str, Any] = {"keys": [_key().as_dict(private=False)]}
    if other:
        check_nesting(other)
        keys = msgspec.json.decode(other, type=dict[str, Any])
    if text.startswith("{"):
        check_nesting(text)
        claims = msgspec.json.decode(text, type=dict[str, Any])
        text = jws.serialize_compact({"alg": "ES256"}, text.encode(), _key())
    person = read_id_token(
        text,
        keys,
        algorithms=["ES256", "RS256"],
        issuer="https://id.example.org",
        client_id="c",
        nonce="n",
        now_ms=NOW_MS,
    )
    read_userinfo(person, claims)


# --- Files of operators --------------------------------------------------------------------------------------------


def _scratch() -> Path:
    return Path(gettempdir())


def settings(data: bytes) -> None:
    """The file of the settings, and a variable of the environment."""
    path = _scratch() / "fuzzed.toml"
    text, _, variable = data.partition(b"\n\n\n")
    path.write_bytes(text)
    name, _, value = variable.decode("latin-1").replace("\0", "").partition("=")
    load_settings(path, {f"TRUNKLINE_{name}": value} if name else {})


def backups(data: bytes) -> None:
    """A file of a backup: its manifest, and all of it."""
    path = _scratch() / "fuzzed.backup"
    path.write_bytes(data)
    read_manifest(path)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="trunkline-fuzz-") as folder:
        unpack(path, Path(folder), progress=lambda _count: None)


def object_models(data: bytes) -> None:
    objects = ObjectMap(parse_models(data))
    management_manifest(objects)


TARGETS = (
    Target("tlv", _values(TLV), allowed=(UnreadablePayload,)),
    Target("senml-json", _values(SENML_JSON, LWM2M_JSON, JSON), allowed=(UnreadablePayload,)),
    Target("senml-cbor", _values(SENML_CBOR, CBOR), allowed=(UnreadablePayload,)),
    Target("lwm2m-text", _values(TEXT, OCTETS), allowed=(UnreadablePayload,)),
    Target("cbor", cbor),
    Target("link-format", link_format, allowed=(UnreadablePayload, UnicodeDecodeError)),
    Target("manifests", manifests, allowed=(DomainError, msgspec.DecodeError, UnicodeDecodeError)),
    Target("transforms", transforms, allowed=(TransformFailedError,)),
    Target(
        "jmespath",
        jmespath,
        allowed=(InvalidExpressionError, ExpressionFailedError, msgspec.DecodeError, UnicodeDecodeError),
    ),
    Target("announcements", announcements, allowed=(DomainError, UnicodeDecodeError)),
    Target("templates", templates, allowed=(TemplateRefusedError, UnicodeDecodeError)),
    Target("rules", rules, allowed=(DomainError, msgspec.DecodeError, UnicodeDecodeError)),
    Target("schedules", schedules, allowed=(InvalidScheduleError, UnicodeDecodeError)),
    Target("scenes-and-models", scenes_and_models, allowed=(msgspec.DecodeError, UnicodeDecodeError)),
    Target("property-filters", property_filters, allowed=(ValidationFailed, UnicodeDecodeError)),
    Target("queries", queries, allowed=()),
    Target("approved-lists", approved_lists, allowed=(DomainError, BadList)),
    Target("certificates", certificates, allowed=(BadCertificate,)),
    Target("id-tokens", id_tokens, allowed=(IdTokenRefused, msgspec.DecodeError, UnicodeDecodeError)),
    Target("settings", settings, allowed=(SettingsError,)),
    Target("backups", backups, allowed=(BackupError,)),
    Target("object-models", object_models, allowed=(ModelError,)),
)
