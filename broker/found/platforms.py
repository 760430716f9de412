"""The kinds of components that are taken over, but lights (reference 16.9)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from broker.found.components import FoundComponent, NotTakenError
from broker.found.lights import light
from broker.found.payloads import chosen, either, fixed, number_in, within, words_in, written
from broker.found.switches import fan, switch

_TRUE, _FALSE = "true", "false"
#: Device classes of sensors whose states are texts.
_TEXTS: Final = frozenset({"timestamp", "date", "enum"})
_UNITS_MAX: Final = 32

_decode: Final = msgspec.json.Decoder().decode


def _sensor(one: FoundComponent) -> None:
    topic = one.require(one.topic("state_topic"), "state_topic")
    kind, unit = one.text("device_class"), one.text("unit_of_measurement")[:_UNITS_MAX]
    is_number = kind not in _TEXTS and bool(unit or one.text("state_class") or kind)
    value: Callable[[str], Any] = number_in if is_number else words_in
    one.read(topic, "Double" if is_number else "String", value, one.template("value_template"), unit=unit)


def _binary_sensor(one: FoundComponent) -> None:
    topic = one.require(one.topic("state_topic"), "state_topic")
    value = partial(either, one.text("payload_on", "ON"), one.text("payload_off", "OFF"))
    one.read(topic, "Boolean", value, one.template("value_template"))


def _number_setting(one: FoundComponent) -> None:
    least, most = one.number("min", 1), one.number("max", 100)
    unit = one.text("unit_of_measurement")[:_UNITS_MAX]
    bounds = [{"type": "MIN_VALUE_DOUBLE", "value": least}, {"type": "MAX_VALUE_DOUBLE", "value": most}]
    if state := one.topic("state_topic"):
        one.read(state, "Double", number_in, one.template("value_template"), unit=unit)
    command = one.require(one.topic("command_topic"), "command_topic")
    parameter: dict[str, Any] = {"name": one.name, "valueClass": "Double", "metaData": bounds}
    if unit:
        parameter["unitSymbol"] = unit
    template = one.template("command_template")
    one.act(f"set_{one.name}", command, partial(within, least, most, one.name, template), parameter)


def _select(one: FoundComponent) -> None:
    options = one.texts("options")
    if not options or len(options) > 100:
        raise NotTakenError("options must be a list of 1 to 100 texts")
    if state := one.topic("state_topic"):
        one.read(state, "String", words_in, one.template("value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    parameter = {
        "name": one.name,
        "valueClass": "String",
        "metaData": [{"type": "VALUES_STRING", "value": [option[:64] for option in options]}],
    }
    payload = partial(chosen, frozenset(options), one.name, one.template("command_template"))
    one.act(f"set_{one.name}", command, payload, parameter)


def _text(one: FoundComponent) -> None:
    if state := one.topic("state_topic"):
        one.read(state, "String", words_in, one.template("value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    payload = partial(written, one.name, one.template("command_template"))
    one.act(f"set_{one.name}", command, payload, {"name": one.name, "valueClass": "String"})


def _button(one: FoundComponent) -> None:
    command = one.require(one.topic("command_topic"), "command_topic")
    one.act(one.name, command, partial(fixed, one.text("payload_press", "PRESS")))


def _cover(one: FoundComponent) -> None:
    if state := one.topic("state_topic"):
        one.read(state, "String", words_in, one.template("value_template"))
    if position := one.topic("position_topic"):
        template = one.template("position_template")
        one.read(position, "Double", number_in, template, name=f"{one.name}_position")
    if command := one.topic("command_topic"):
        for verb, default in (("open", "OPEN"), ("close", "CLOSE"), ("stop", "STOP")):
            if one.options.get(f"payload_{verb}", default) is not None:
                payload = partial(fixed, one.text(f"payload_{verb}", default))
                one.act(f"{verb}_{one.name}", command, payload)
    if command := one.topic("set_position_topic"):
        parameter = {"name": "position", "valueClass": "Double"}
        one.act(f"set_{one.name}_position", command, partial(within, 0, 100, "position", None), parameter)
    if not one.fields and not one.actions:
        raise NotTakenError("a cover without topics")


def _lock(one: FoundComponent) -> None:
    if state := one.topic("state_topic"):
        value = partial(either, one.text("state_locked", "LOCKED"), one.text("state_unlocked", "UNLOCKED"))
        one.read(state, "Boolean", value, one.template("value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    one.act(f"lock_{one.name}", command, partial(fixed, one.text("payload_lock", "LOCK")))
    one.act(f"unlock_{one.name}", command, partial(fixed, one.text("payload_unlock", "UNLOCK")))


def _climate(one: FoundComponent) -> None:
    """Mode, target temperature, and what is measured."""
    unit = "°F" if one.text("temperature_unit").upper() == "F" else "°C"
    if current := one.topic("current_temperature_topic"):
        template = one.template("current_temperature_template")
        one.read(current, "Double", number_in, template, name=f"{one.name}_current", unit=unit)
    if humidity := one.topic("current_humidity_topic"):
        template = one.template("current_humidity_template")
        one.read(humidity, "Double", number_in, template, name=f"{one.name}_humidity", unit="%")
    if state := one.topic("temperature_state_topic"):
        one.read(
            state, "Double", number_in, one.template("temperature_state_template"), name=f"{one.name}_target", unit=unit
        )
    if action := one.topic("action_topic"):
        one.read(action, "String", words_in, one.template("action_template"), name=f"{one.name}_action")
    if mode := one.topic("mode_state_topic"):
        one.read(mode, "String", words_in, one.template("mode_state_template"), name=f"{one.name}_mode")
    if command := one.topic("temperature_command_topic"):
        least, most = (
            (one.number("min_temp", 44.6), one.number("max_temp", 95))
            if unit == "°F"
            else (one.number("min_temp", 7), one.number("max_temp", 35))
        )
        bounds = [{"type": "MIN_VALUE_DOUBLE", "value": least}, {"type": "MAX_VALUE_DOUBLE", "value": most}]
        parameter = {"name": "target", "valueClass": "Double", "unitSymbol": unit, "metaData": bounds}
        payload = partial(within, least, most, "target", one.template("temperature_command_template"))
        one.act(f"set_{one.name}_target", command, payload, parameter)
    if command := one.topic("mode_command_topic"):
        modes = one.texts("modes") or ["auto", "off", "cool", "heat", "dry", "fan_only"]
        if len(modes) > 100:
            raise NotTakenError("modes must be a list of at most 100 texts")
        choice = {"type": "VALUES_STRING", "value": [mode[:64] for mode in modes]}
        parameter = {"name": "mode", "valueClass": "String", "metaData": [choice]}
        payload = partial(chosen, frozenset(modes), "mode", one.template("mode_command_template"))
        one.act(f"set_{one.name}_mode", command, payload, parameter)
    if not one.fields and not one.actions:
        raise NotTakenError("a climate without topics")
    if {name for name in one.options if name.startswith(("fan_mode", "swing", "preset", "temperature_high"))}:
        one.notes.append("of a climate, mode, temperatures, humidity and action are taken over")


def _event(one: FoundComponent) -> None:
    """The type of the latest event: each is a message, also when the type is the one before."""
    topic = one.require(one.topic("state_topic"), "state_topic")
    types = frozenset(one.texts("event_types"))
    if not types:
        raise NotTakenError("event_types must be a list of texts")
    one.read(topic, "String", partial(_event_type, types), one.template("value_template"))


def _event_type(types: frozenset[str], text: str) -> str | None:
    """Of an object, as Home Assistant wants it; many publishers have a template that makes one."""
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    type_ = found.get("event_type") if isinstance(found, dict) else None
    return type_ if isinstance(type_, str) and type_ in types else None


PLATFORMS: Final[Mapping[str, Callable[[FoundComponent], None]]] = {
    "binary_sensor": _binary_sensor,
    "button": _button,
    "climate": _climate,
    "cover": _cover,
    "event": _event,
    "fan": fan,
    "light": light,
    "lock": _lock,
    "number": _number_setting,
    "select": _select,
    "sensor": _sensor,
    "switch": switch,
    "text": _text,
}
