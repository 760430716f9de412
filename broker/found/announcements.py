"""Reads announcements of an MQTT client under the discovery prefix: the components of a device (reference 16.9).

The form is that of Home Assistant's MQTT discovery: a message for each component, or one for a whole device, with long
or abbreviated names, and `~` for the beginning of topics.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from broker.errors import Finding, ValidationFailed, invalid, too_long
from broker.nesting import NestedTooDeeplyError, check_nesting
from config.limits import FOUND_COMPONENTS_MAX, FOUND_DOCUMENT_BYTES, NAME_MAX_CHARACTERS

_ABBREVIATIONS: Final[Mapping[str, str]] = {
    "avty": "availability",
    "avty_t": "availability_topic",
    "avty_tpl": "availability_template",
    "bri_cmd_t": "brightness_command_topic",
    "bri_scl": "brightness_scale",
    "bri_stat_t": "brightness_state_topic",
    "bri_val_tpl": "brightness_value_template",
    "act_t": "action_topic",
    "act_tpl": "action_template",
    "clr_temp_cmd_t": "color_temp_command_topic",
    "clr_temp_cmd_tpl": "color_temp_command_template",
    "clr_temp_k": "color_temp_kelvin",
    "clr_temp_stat_t": "color_temp_state_topic",
    "clr_temp_val_tpl": "color_temp_value_template",
    "cmd_t": "command_topic",
    "cmd_tpl": "command_template",
    "cmps": "components",
    "curr_hum_t": "current_humidity_topic",
    "curr_hum_tpl": "current_humidity_template",
    "curr_temp_t": "current_temperature_topic",
    "curr_temp_tpl": "current_temperature_template",
    "dev": "device",
    "dev_cla": "device_class",
    "evt_typ": "event_types",
    "max_k": "max_kelvin",
    "max_mirs": "max_mireds",
    "min_k": "min_kelvin",
    "min_mirs": "min_mireds",
    "mode_cmd_t": "mode_command_topic",
    "mode_cmd_tpl": "mode_command_template",
    "mode_stat_t": "mode_state_topic",
    "mode_stat_tpl": "mode_state_template",
    "o": "origin",
    "obj_id": "object_id",
    "ops": "options",
    "p": "platform",
    "pl_avail": "payload_available",
    "pl_cls": "payload_close",
    "pl_lock": "payload_lock",
    "pl_not_avail": "payload_not_available",
    "pl_off": "payload_off",
    "pl_on": "payload_on",
    "pl_open": "payload_open",
    "pl_prs": "payload_press",
    "pl_stop": "payload_stop",
    "pl_unlk": "payload_unlock",
    "pos_t": "position_topic",
    "pos_tpl": "position_template",
    "rgb_cmd_t": "rgb_command_topic",
    "rgb_cmd_tpl": "rgb_command_template",
    "rgb_stat_t": "rgb_state_topic",
    "rgb_val_tpl": "rgb_value_template",
    "set_pos_t": "set_position_topic",
    "stat_cla": "state_class",
    "stat_locked": "state_locked",
    "stat_off": "state_off",
    "stat_on": "state_on",
    "stat_t": "state_topic",
    "stat_unlocked": "state_unlocked",
    "stat_val_tpl": "state_value_template",
    "sup_clrm": "supported_color_modes",
    "t": "topic",
    "temp_cmd_t": "temperature_command_topic",
    "temp_cmd_tpl": "temperature_command_template",
    "temp_stat_t": "temperature_state_topic",
    "temp_stat_tpl": "temperature_state_template",
    "temp_unit": "temperature_unit",
    "uniq_id": "unique_id",
    "unit_of_meas": "unit_of_measurement",
    "val_tpl": "value_template",
}
_OF_DEVICE: Final[Mapping[str, str]] = {
    "cns": "connections",
    "ids": "identifiers",
    "mdl": "model",
    "mf": "manufacturer",
}
_TOPIC: Final = re.compile(r"(?P<platform>\w+)/(?:(?P<node>[a-zA-Z0-9_-]+)/)?(?P<object>[a-zA-Z0-9_-]+)/config")
#: Options of a device that its components have, too, unless they say otherwise.
_SHARED: Final = (
    *("availability", "availability_mode", "availability_topic", "availability_template"),
    *("payload_available", "payload_not_available", "command_topic", "state_topic"),
)
_OWN_ORIGIN: Final = "trunkline"


class Announced(msgspec.Struct, frozen=True):
    """A component. `id` is what its publisher calls it, `topic` the one of the announcement."""

    topic: str
    id: str
    platform: str
    options: Mapping[str, Any]


class Announcement(msgspec.Struct, frozen=True):
    """A message of discovery: the device, and its components at this topic. Without an identity, what was announced at
    the topic is gone."""

    identity: str
    name: str = ""
    model: str = ""
    manufacturer: str = ""
    components: tuple[Announced, ...] = ()


def is_announcement(prefix: str, topic: str) -> bool:
    return topic.startswith(f"{prefix}/") and _TOPIC.fullmatch(topic[len(prefix) + 1 :]) is not None


def read_announcement(prefix: str, topic: str, payload: bytes) -> Announcement:
    """Read a message at a topic of `is_announcement`. Raises ValidationFailed with the reason."""
    place = _TOPIC.fullmatch(topic[len(prefix) + 1 :])
    if place is None:
        raise ValidationFailed.of("topic", invalid("is no topic of discovery"))
    if not payload:
        return Announcement("")
    document = _document(payload)
    platform, node, name = place["platform"], place["node"] or "", place["object"]
    _replace_abbreviations(document, _ABBREVIATIONS)
    about = document.get("device")
    device: dict[str, Any] = dict(about) if isinstance(about, Mapping) else {}
    _replace_abbreviations(device, _OF_DEVICE)
    _refuse_own(document, device, name)
    if platform == "device":
        components = tuple(_components(topic, document))
    else:
        _begin_topics(document)
        components = (Announced(topic, name, platform, _plain(document)),)
    identity = _identity(device) or (name if platform == "device" else node or name)
    shown = _named(device.get("name")) or _named(document.get("name")) or identity
    return Announcement(
        identity[:200],
        _name(shown),
        _named(device.get("model"))[:NAME_MAX_CHARACTERS],
        _named(device.get("manufacturer"))[:NAME_MAX_CHARACTERS],
        components,
    )


def _document(payload: bytes) -> dict[str, Any]:
    if len(payload) > FOUND_DOCUMENT_BYTES:
        raise ValidationFailed.of("payload", too_long(FOUND_DOCUMENT_BYTES))
    try:
        check_nesting(payload)
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, NestedTooDeeplyError, ValidationFailed):
        document = None
    if not isinstance(document, dict):
        raise ValidationFailed.of("payload", invalid("must be a JSON object"))
    return document


def _components(topic: str, document: dict[str, Any]) -> Iterator[Announced]:
    found = document.get("components")
    if not isinstance(found, dict) or not found:
        raise ValidationFailed.of("components", invalid("must be an object with components"))
    if len(found) > FOUND_COMPONENTS_MAX:
        raise ValidationFailed.of("components", too_long(FOUND_COMPONENTS_MAX))
    shared = {name: document[name] for name in _SHARED if name in document}
    base = {"~": document["~"]} if "~" in document else {}
    for id_, given in found.items():
        if not isinstance(given, dict):
            raise ValidationFailed((Finding(f"components.{id_[:64]}", (invalid("must be an object"),)),))
        options = dict(given)
        _replace_abbreviations(options, _ABBREVIATIONS)
        platform = options.pop("platform", None)
        if not isinstance(platform, str):
            raise ValidationFailed((Finding(f"components.{id_[:64]}.platform", (invalid("must be a text"),)),))
        if options:  # without further options, the component is gone
            options = {**base, **shared, **options}
            _begin_topics(options)
            yield Announced(topic, id_[:64], platform[:64], _plain(options))


def _replace_abbreviations(document: dict[str, Any], names: Mapping[str, str]) -> None:
    for short in names.keys() & document.keys():
        document[names[short]] = document.pop(short)
    availability = document.get("availability")
    for entry in availability if isinstance(availability, list) else [availability]:
        if isinstance(entry, dict) and entry is not document:
            for short in _ABBREVIATIONS.keys() & entry.keys():
                entry[_ABBREVIATIONS[short]] = entry.pop(short)
            if "val_tpl" in entry:
                entry["value_template"] = entry.pop("val_tpl")


def _begin_topics(options: dict[str, Any]) -> None:
    """Put the beginning that `~` has in the place of `~` in topics."""
    base = options.pop("~", None)
    if not isinstance(base, str):
        return

    def whole(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = base + value[1:] if value.startswith("~") else value
        return value[:-1] + base if value.endswith("~") else value

    for name, value in options.items():
        if name.endswith("topic"):
            options[name] = whole(value)
    availability = options.get("availability")
    for entry in availability if isinstance(availability, list) else [availability]:
        if isinstance(entry, dict) and "topic" in entry:
            entry["topic"] = whole(entry["topic"])


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a component alone."""
    return {name: value for name, value in options.items() if name not in {"device", "origin", "components"}}


def _refuse_own(document: Mapping[str, Any], device: Mapping[str, Any], name: str) -> None:
    """Announcements of this service itself come back, for example over a bridge."""
    origin = document.get("origin")
    made_by = origin.get("name") if isinstance(origin, Mapping) else None
    if isinstance(made_by, str) and made_by.lower() == _OWN_ORIGIN:
        raise ValidationFailed.of("origin", invalid("is Trunkline: its own devices are not taken over"))
    if name.startswith("tl_") or _identity(device).startswith("tl_"):
        raise ValidationFailed.of("device.identifiers", invalid("tl_ begins the identity of Trunkline's own devices"))


def _identity(device: Mapping[str, Any]) -> str:
    """The first identifier, else the first connection."""
    identifiers, connections = device.get("identifiers"), device.get("connections")
    first = identifiers[0] if isinstance(identifiers, list) and identifiers else identifiers
    if isinstance(first, str | int) and not isinstance(first, bool) and str(first):
        return str(first)
    pair = connections[0] if isinstance(connections, list) and connections else None
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair):
        return f"{pair[0]} {pair[1]}"
    return ""


def _named(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _name(text: str) -> str:
    """The name of the device here. Quotes and `&` are left out; markup is refused."""
    if "<" in text or ">" in text:
        raise ValidationFailed.of("device.name", invalid("must not have markup: < and >"))
    plain = "".join(" " if one in "&'\"" else one for one in text)
    return " ".join(plain.split())[:NAME_MAX_CHARACTERS].strip() or "Device"
