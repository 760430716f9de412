"""Fields, Actions and topics of a found device, made from the components that were announced (reference 16.9)."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from broker.errors import ValidationFailed
from broker.found.announcements import Announced
from broker.found.templates import Template, TemplateRefusedError, template_of
from broker.topics.space import SERVICE
from broker.topics.tree import is_topic
from config.limits import FOUND_TEXT_CHARACTERS, FOUND_TOPIC_NODES

_WORD: Final = re.compile(r"[^A-Za-z0-9]+")
_NAME_MAX: Final = 48
_TRUE, _FALSE = "true", "false"
#: Costs of a value without a template, in parts of one.
_PLAIN_COST: Final = 3
#: Device classes of sensors whose states are texts.
_TEXTS: Final = frozenset({"timestamp", "date", "enum"})
_OWN: Final = ("trunkline/",)
_UNITS_MAX: Final = 32

_decode: Final = msgspec.json.Decoder().decode


class FieldReading(msgspec.Struct, frozen=True):
    """Makes a field's value of what is published at a topic."""

    topic: str
    field: str
    value: Callable[[str], Any]  # of the text; None: no value
    template: Template | None = None

    @property
    def cost(self) -> int:
        return _PLAIN_COST if self.template is None else self.template.cost


class TopicCommand(msgspec.Struct, frozen=True):
    """Makes what is published at a topic of an Action's parameters; None: they do not fit."""

    topic: str
    payload: Callable[[Mapping[str, Any]], str | None]


class AvailabilityTopic(msgspec.Struct, frozen=True):
    topic: str
    available: str
    not_available: str
    template: Template | None = None


class NotTaken(msgspec.Struct, frozen=True):
    """Something of a component that is not taken over."""

    component: str
    text: str


class FoundDefinition(msgspec.Struct, frozen=True):
    """`manifest` is the document of a device type."""

    manifest: Mapping[str, Any]
    readings: tuple[FieldReading, ...] = ()
    settings: Mapping[str, TopicCommand] = {}
    availability: tuple[AvailabilityTopic, ...] = ()
    problems: tuple[NotTaken, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.manifest["fields"] and not self.manifest["actions"]


class _NotTakenError(Exception):
    pass


def definition_of(components: Iterable[Announced]) -> FoundDefinition:
    """Each component that cannot be taken is a problem, and the others are taken."""
    maker = _Maker()
    for component in sorted(components, key=lambda one: (one.topic, one.id)):
        maker.add(component)
    return maker.definition()


class _Maker:
    def __init__(self) -> None:
        self._fields: dict[str, dict[str, Any]] = {}
        self._actions: dict[str, dict[str, Any]] = {}
        self._readings: list[FieldReading] = []
        self._settings: dict[str, TopicCommand] = {}
        self._availability: dict[str, AvailabilityTopic] = {}
        self._problems: list[NotTaken] = []
        self._cost: dict[str, int] = {}

    def definition(self) -> FoundDefinition:
        manifest = {"fields": list(self._fields.values()), "actions": list(self._actions.values())}
        return FoundDefinition(
            manifest, tuple(self._readings), self._settings, tuple(self._availability.values()), tuple(self._problems)
        )

    def add(self, component: Announced) -> None:
        made = _Component(component)
        maker = _PLATFORMS.get(component.platform)
        try:
            if maker is None:
                raise _NotTakenError(f"{component.platform} is no kind of component that Trunkline knows")
            maker(made)
            self._check(made)
        except (_NotTakenError, TemplateRefusedError) as error:
            self._problems.append(NotTaken(component.id, str(error)))
            return
        self._problems += [NotTaken(component.id, text) for text in made.notes]
        names = self._put_fields(made)
        for reading in made.readings:
            self._cost[reading.topic] = self._cost.get(reading.topic, 0) + reading.cost
            self._readings.append(msgspec.structs.replace(reading, field=names[reading.field]))
        for action, setting in made.settings.items():
            name = _free(action, self._actions)
            self._actions[name] = {**made.actions[action], "name": name}
            self._settings[name] = setting
        for one in made.availability():
            self._availability.setdefault(one.topic, one)

    def _check(self, made: "_Component") -> None:
        costs = dict[str, int]()
        for reading in made.readings:
            costs[reading.topic] = costs.get(reading.topic, 0) + reading.cost
        for topic, cost in costs.items():
            if self._cost.get(topic, 0) + cost > FOUND_TOPIC_NODES:
                raise _NotTakenError(f"the templates for one message have more than {FOUND_TOPIC_NODES} parts")
        if len(self._fields) + len(made.fields) > 450 or len(self._actions) + len(made.actions) > 100:
            raise _NotTakenError("a device has at most 450 fields and 100 Actions")

    def _put_fields(self, made: "_Component") -> dict[str, str]:
        """The names that the fields got, by their own."""
        names = {}
        for name, field in made.fields.items():
            names[name] = free = _free(name, self._fields)
            self._fields[free] = {**field, "name": free}
        return names


def _free(name: str, taken: Mapping[str, object]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def word_of(text: str) -> str:
    """A name of a Manifest that is like this text: `Outdoor temp.` is `outdoor_temp`."""
    word = _WORD.sub("_", text).strip("_")[:_NAME_MAX].strip("_")
    return f"v_{word}" if not word or word[0].isdigit() else word


class _Component:
    """Collects what one component becomes."""

    def __init__(self, component: Announced) -> None:
        self.options = component.options
        self.name = word_of(component.id)
        self.fields: dict[str, dict[str, Any]] = {}
        self.actions: dict[str, dict[str, Any]] = {}
        self.readings: list[FieldReading] = []
        self.settings: dict[str, TopicCommand] = {}
        self.notes: list[str] = []

    # Options

    def text(self, name: str, default: str = "") -> str:
        value = self.options.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return "True" if value else "False"
        if not isinstance(value, str | int | float):
            raise _NotTakenError(f"{name} must be a text")
        text = str(value)
        if len(text) > FOUND_TEXT_CHARACTERS:
            raise _NotTakenError(f"{name} is too long")
        return text

    def texts(self, name: str) -> list[str]:
        """The texts of a list; none without one."""
        given = self.options.get(name)
        return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []

    def number(self, name: str, default: float) -> float:
        value = self.options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e15:
            raise _NotTakenError(f"{name} must be a number")
        return value

    def topic(self, name: str) -> str:
        """The topic of an option; empty without one."""
        topic = self.text(name)
        if not topic:
            return ""
        encoded = topic.encode(errors="replace")
        if not is_topic(encoded):
            raise _NotTakenError(f"{name} must be a topic without wildcards, of at most 1,024 bytes and 32 levels")
        if encoded.startswith(SERVICE) or topic.startswith(_OWN):
            raise _NotTakenError(f"{name} is a topic of Trunkline itself")
        return topic

    def template(self, *names: str) -> Template | None:
        for name in names:
            if source := self.text(name):
                return template_of(source)
        return None

    # Parts

    def read(
        self,
        topic: str,
        value_class: str,
        value: Callable[[str], Any],
        template: Template | None,
        *,
        name: str = "",
        unit: str = "",
        metadata: Iterable[Mapping[str, Any]] = (),
    ) -> str:
        """Add a field that is read at this topic."""
        name = name or self.name
        field: dict[str, Any] = {"valueClass": value_class, "description": self.text("name")[:200]}
        if unit:
            field["unitSymbol"] = unit
        if metadata:
            field["metaData"] = list(metadata)
        self.fields[name] = field
        self.readings.append(FieldReading(topic, name, value, template))
        return name

    def act(self, name: str, topic: str, payload: Callable[[Mapping[str, Any]], str | None], *parameters: Any) -> None:
        self.actions[name] = {"parameters": list(parameters), "description": self.text("name")[:120]}
        self.settings[name] = TopicCommand(topic, payload)

    def require(self, topic: str, name: str) -> str:
        if not topic:
            raise _NotTakenError(f"{name} is missing")
        return topic

    def availability(self) -> Iterable[AvailabilityTopic]:
        """The topics at which the device says whether it is there, without the ones that cannot be read."""
        entries = self.options.get("availability")
        given = entries if isinstance(entries, list) else [entries] if isinstance(entries, dict) else []
        if topic := self.options.get("availability_topic"):
            template = self.options.get("availability_template")
            given = [{**self.options, "topic": topic, "value_template": template}]
        for entry in given[:5]:
            if not isinstance(entry, dict):
                continue
            one = _Component(Announced("", "", "", entry))
            try:
                if topic := one.topic("topic"):
                    yes, no = one.text("payload_available", "online"), one.text("payload_not_available", "offline")
                    yield AvailabilityTopic(topic, yes, no, one.template("value_template"))
            except (_NotTakenError, TemplateRefusedError):
                continue


# Values


def _number(text: str) -> float | int | None:
    try:
        value = float(text) if len(text) <= 64 else None
    except ValueError:
        return None
    if value is None or not abs(value) < 1e300:
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _words(text: str) -> str | None:
    return text[:512] if text and text != "None" else None


def _either(true: str, false: str, text: str) -> bool | None:
    return True if text == true else False if text == false else None


def _fixed(payload: str, _parameters: Mapping[str, Any]) -> str:
    return payload


def _switched(on: str, off: str, parameter: str, parameters: Mapping[str, Any]) -> str | None:
    value = parameters.get(parameter)
    return (on if value else off) if isinstance(value, bool) else None


def _written(parameter: str, template: Template | None, parameters: Mapping[str, Any]) -> str | None:
    value = parameters.get(parameter)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if template is None else template.render(value=value)


def _chosen(options: frozenset[str], parameter: str, template: Template | None, given: Mapping[str, Any]) -> str | None:
    value = given.get(parameter)
    return _written(parameter, template, given) if isinstance(value, str) and value in options else None


def _within(
    least: float, most: float, parameter: str, template: Template | None, given: Mapping[str, Any]
) -> str | None:
    value = given.get(parameter)
    fits = isinstance(value, int | float) and least <= value <= most
    return _written(parameter, template, given) if fits else None


# Platforms


def _sensor(one: _Component) -> None:
    topic = one.require(one.topic("state_topic"), "state_topic")
    kind, unit = one.text("device_class"), one.text("unit_of_measurement")[:_UNITS_MAX]
    is_number = kind not in _TEXTS and bool(unit or one.text("state_class") or kind)
    value: Callable[[str], Any] = _number if is_number else _words
    one.read(topic, "Double" if is_number else "String", value, one.template("value_template"), unit=unit)


def _binary_sensor(one: _Component) -> None:
    topic = one.require(one.topic("state_topic"), "state_topic")
    value = partial(_either, one.text("payload_on", "ON"), one.text("payload_off", "OFF"))
    one.read(topic, "Boolean", value, one.template("value_template"))


def _switch(one: _Component) -> None:
    on, off = one.text("payload_on", "ON"), one.text("payload_off", "OFF")
    if state := one.topic("state_topic"):
        value = partial(_either, one.text("state_on", on), one.text("state_off", off))
        one.read(state, "Boolean", value, one.template("value_template", "state_value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    parameter = {"name": one.name, "valueClass": "Boolean"}
    one.act(f"set_{one.name}", command, partial(_switched, on, off, one.name), parameter)


def _fan(one: _Component) -> None:
    _switch(one)
    if {name for name in one.options if name.startswith(("percentage", "preset", "oscillation", "direction"))}:
        one.notes.append("of a fan, on and off are taken over")


def _light(one: _Component) -> None:
    schema = one.text("schema", "basic") if "schema" in one.options else "basic"
    if schema == "json":
        _json_light(one)
    elif schema == "basic":
        _switch(one)
        scale = one.number("brightness_scale", 255)
        if state := one.topic("brightness_state_topic"):
            template = one.template("brightness_value_template")
            one.read(state, "Double", _number, template, name=f"{one.name}_brightness")
        if command := one.topic("brightness_command_topic"):
            _brightness(one, command, scale, partial(_within, 0, scale, "brightness", None))
        _basic_colour(one)
        _basic_color_temp(one)
    else:
        raise _NotTakenError(f"{schema[:40]} is no schema of a light that Trunkline knows")


def _json_light(one: _Component) -> None:
    command = one.require(one.topic("command_topic"), "command_topic")
    modes = one.texts("supported_color_modes")
    has_brightness, has_colour = bool(one.options.get("brightness")) or bool(modes), "rgb" in modes
    if state := one.topic("state_topic"):
        one.read(state, "Boolean", partial(_either, "ON", "OFF"), template_of("{{ value_json.state }}"))
        if has_brightness:
            template = template_of("{{ value_json.brightness }}")
            one.read(state, "Double", _number, template, name=f"{one.name}_brightness")
    parameter = {"name": one.name, "valueClass": "Boolean"}
    on, off = '{"state":"ON"}', '{"state":"OFF"}'
    one.act(f"set_{one.name}", command, partial(_switched, on, off, one.name), parameter)
    scale = one.number("brightness_scale", 255)
    if has_brightness:
        _brightness(one, command, scale, partial(_json_brightness, scale))
    if has_colour:
        _colour_action(one, command, _json_colour)
    if "color_temp" in modes:
        least, most, unit = _color_temp_bounds(one)
        _color_temp_action(one, command, least, most, unit, partial(_json_color_temp, least, most))
    if state := one.topic("state_topic"):
        if has_colour:
            _read_colours(one, state, "value_json.color.{}")
        if "color_temp" in modes:
            template = template_of("{{ value_json.color_temp }}")
            one.read(state, "Double", _number, template, name=f"{one.name}_color_temp", unit=_color_temp_bounds(one)[2])
    if left := [mode for mode in modes if mode in {"xy", "hs", "rgbw", "rgbww", "white"}]:
        one.notes.append(f"{', '.join(left)} of a light")


def _read_colours(one: _Component, topic: str, place: str) -> None:
    """A field for each part of a colour: a Manifest has no other form that charts and rules take."""
    for part, word in (("r", "red"), ("g", "green"), ("b", "blue")):
        template = template_of("{{ " + place.format(part) + " }}")
        one.read(topic, "Integer", _colour_part, template, name=f"{one.name}_{word}")


def _colour_part(text: str) -> int | None:
    value = _number(text)
    return None if value is None or not 0 <= value <= 255 else round(value)


def _colour_action(one: _Component, command: str, payload: Callable[[Mapping[str, Any]], str | None]) -> None:
    group = {"name": "color", "children": [{"name": name, "valueClass": "Integer"} for name in "rgb"]}
    one.act(f"set_{one.name}_color", command, payload, group)


def _basic_colour(one: _Component) -> None:
    """`255,128,0`, or the text that a template makes of red, green and blue."""
    if state := one.topic("rgb_state_topic"):
        template = one.template("rgb_value_template")
        for index, word in enumerate(("red", "green", "blue")):
            one.read(state, "Integer", partial(_part_of_colour, index), template, name=f"{one.name}_{word}")
    if command := one.topic("rgb_command_topic"):
        _colour_action(one, command, partial(_written_colour, one.template("rgb_command_template")))


def _part_of_colour(index: int, text: str) -> int | None:
    parts = text.split(",") if len(text) <= 64 else []
    return _colour_part(parts[index].strip()) if len(parts) == 3 else None


def _written_colour(template: Template | None, given: Mapping[str, Any]) -> str | None:
    if (values := _colour_of(given)) is None:
        return None
    if template is None:
        return ",".join(map(str, values.values()))
    red, green, blue = values.values()
    return template.render(red=red, green=green, blue=blue)


def _color_temp_bounds(one: _Component) -> tuple[float, float, str]:
    """The least and the largest colour temperature, in mireds or in kelvins, and the unit."""
    if one.options.get("color_temp_kelvin") is True:
        return one.number("min_kelvin", 2000), one.number("max_kelvin", 6535), "K"
    return one.number("min_mireds", 153), one.number("max_mireds", 500), "mired"


def _basic_color_temp(one: _Component) -> None:
    least, most, unit = _color_temp_bounds(one)
    if state := one.topic("color_temp_state_topic"):
        template = one.template("color_temp_value_template")
        one.read(state, "Double", _number, template, name=f"{one.name}_color_temp", unit=unit)
    if command := one.topic("color_temp_command_topic"):
        template = one.template("color_temp_command_template")
        payload = partial(_within, least, most, "color_temp", template)
        _color_temp_action(one, command, least, most, unit, payload)


def _color_temp_action(
    one: _Component,
    command: str,
    least: float,
    most: float,
    unit: str,
    payload: Callable[[Mapping[str, Any]], str | None],
) -> None:
    bounds = [{"type": "MIN_VALUE_DOUBLE", "value": least}, {"type": "MAX_VALUE_DOUBLE", "value": most}]
    parameter = {"name": "color_temp", "valueClass": "Double", "unitSymbol": unit, "metaData": bounds}
    one.act(f"set_{one.name}_color_temp", command, payload, parameter)


def _json_color_temp(least: float, most: float, given: Mapping[str, Any]) -> str | None:
    value = given.get("color_temp")
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return msgspec.json.encode({"state": "ON", "color_temp": int(value)}).decode()


def _brightness(
    one: _Component, command: str, scale: float, payload: Callable[[Mapping[str, Any]], str | None]
) -> None:
    bounds = [{"type": "MIN_VALUE_DOUBLE", "value": 0}, {"type": "MAX_VALUE_DOUBLE", "value": scale}]
    parameter = {"name": "brightness", "valueClass": "Double", "metaData": bounds}
    one.act(f"set_{one.name}_brightness", command, payload, parameter)


def _json_brightness(scale: float, given: Mapping[str, Any]) -> str | None:
    value = given.get("brightness")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= scale:
        return None
    return msgspec.json.encode({"state": "ON", "brightness": int(value)}).decode()


def _json_colour(given: Mapping[str, Any]) -> str | None:
    if (values := _colour_of(given)) is None:
        return None
    return msgspec.json.encode({"state": "ON", "color": values}).decode()


def _colour_of(given: Mapping[str, Any]) -> dict[str, int] | None:
    """Red, green and blue, each from 0 to 255."""
    colour = given.get("color")
    found = {name: colour.get(name) for name in "rgb"} if isinstance(colour, Mapping) else {}
    values = {name: one for name, one in found.items() if type(one) is int and 0 <= one <= 255}
    return values if len(values) == len("rgb") else None


def _number_setting(one: _Component) -> None:
    least, most = one.number("min", 1), one.number("max", 100)
    unit = one.text("unit_of_measurement")[:_UNITS_MAX]
    bounds = [{"type": "MIN_VALUE_DOUBLE", "value": least}, {"type": "MAX_VALUE_DOUBLE", "value": most}]
    if state := one.topic("state_topic"):
        one.read(state, "Double", _number, one.template("value_template"), unit=unit)
    command = one.require(one.topic("command_topic"), "command_topic")
    parameter: dict[str, Any] = {"name": one.name, "valueClass": "Double", "metaData": bounds}
    if unit:
        parameter["unitSymbol"] = unit
    template = one.template("command_template")
    one.act(f"set_{one.name}", command, partial(_within, least, most, one.name, template), parameter)


def _select(one: _Component) -> None:
    options = one.texts("options")
    if not options or len(options) > 100:
        raise _NotTakenError("options must be a list of 1 to 100 texts")
    if state := one.topic("state_topic"):
        one.read(state, "String", _words, one.template("value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    parameter = {
        "name": one.name,
        "valueClass": "String",
        "metaData": [{"type": "VALUES_STRING", "value": [option[:64] for option in options]}],
    }
    payload = partial(_chosen, frozenset(options), one.name, one.template("command_template"))
    one.act(f"set_{one.name}", command, payload, parameter)


def _text(one: _Component) -> None:
    if state := one.topic("state_topic"):
        one.read(state, "String", _words, one.template("value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    payload = partial(_written, one.name, one.template("command_template"))
    one.act(f"set_{one.name}", command, payload, {"name": one.name, "valueClass": "String"})


def _button(one: _Component) -> None:
    command = one.require(one.topic("command_topic"), "command_topic")
    one.act(one.name, command, partial(_fixed, one.text("payload_press", "PRESS")))


def _cover(one: _Component) -> None:
    if state := one.topic("state_topic"):
        one.read(state, "String", _words, one.template("value_template"))
    if position := one.topic("position_topic"):
        template = one.template("position_template")
        one.read(position, "Double", _number, template, name=f"{one.name}_position")
    if command := one.topic("command_topic"):
        for verb, default in (("open", "OPEN"), ("close", "CLOSE"), ("stop", "STOP")):
            if one.options.get(f"payload_{verb}", default) is not None:
                payload = partial(_fixed, one.text(f"payload_{verb}", default))
                one.act(f"{verb}_{one.name}", command, payload)
    if command := one.topic("set_position_topic"):
        parameter = {"name": "position", "valueClass": "Double"}
        one.act(f"set_{one.name}_position", command, partial(_within, 0, 100, "position", None), parameter)
    if not one.fields and not one.actions:
        raise _NotTakenError("a cover without topics")


def _lock(one: _Component) -> None:
    if state := one.topic("state_topic"):
        value = partial(_either, one.text("state_locked", "LOCKED"), one.text("state_unlocked", "UNLOCKED"))
        one.read(state, "Boolean", value, one.template("value_template"))
    command = one.require(one.topic("command_topic"), "command_topic")
    one.act(f"lock_{one.name}", command, partial(_fixed, one.text("payload_lock", "LOCK")))
    one.act(f"unlock_{one.name}", command, partial(_fixed, one.text("payload_unlock", "UNLOCK")))


def _climate(one: _Component) -> None:
    """Mode, target temperature, and what is measured."""
    unit = "°F" if one.text("temperature_unit").upper() == "F" else "°C"
    if current := one.topic("current_temperature_topic"):
        template = one.template("current_temperature_template")
        one.read(current, "Double", _number, template, name=f"{one.name}_current", unit=unit)
    if humidity := one.topic("current_humidity_topic"):
        template = one.template("current_humidity_template")
        one.read(humidity, "Double", _number, template, name=f"{one.name}_humidity", unit="%")
    if state := one.topic("temperature_state_topic"):
        one.read(
            state, "Double", _number, one.template("temperature_state_template"), name=f"{one.name}_target", unit=unit
        )
    if action := one.topic("action_topic"):
        one.read(action, "String", _words, one.template("action_template"), name=f"{one.name}_action")
    if mode := one.topic("mode_state_topic"):
        one.read(mode, "String", _words, one.template("mode_state_template"), name=f"{one.name}_mode")
    if command := one.topic("temperature_command_topic"):
        least, most = (
            (one.number("min_temp", 44.6), one.number("max_temp", 95))
            if unit == "°F"
            else (one.number("min_temp", 7), one.number("max_temp", 35))
        )
        bounds = [{"type": "MIN_VALUE_DOUBLE", "value": least}, {"type": "MAX_VALUE_DOUBLE", "value": most}]
        parameter = {"name": "target", "valueClass": "Double", "unitSymbol": unit, "metaData": bounds}
        payload = partial(_within, least, most, "target", one.template("temperature_command_template"))
        one.act(f"set_{one.name}_target", command, payload, parameter)
    if command := one.topic("mode_command_topic"):
        modes = one.texts("modes") or ["auto", "off", "cool", "heat", "dry", "fan_only"]
        if len(modes) > 100:
            raise _NotTakenError("modes must be a list of at most 100 texts")
        choice = {"type": "VALUES_STRING", "value": [mode[:64] for mode in modes]}
        parameter = {"name": "mode", "valueClass": "String", "metaData": [choice]}
        payload = partial(_chosen, frozenset(modes), "mode", one.template("mode_command_template"))
        one.act(f"set_{one.name}_mode", command, payload, parameter)
    if not one.fields and not one.actions:
        raise _NotTakenError("a climate without topics")
    if {name for name in one.options if name.startswith(("fan_mode", "swing", "preset", "temperature_high"))}:
        one.notes.append("of a climate, mode, temperatures, humidity and action are taken over")


def _event(one: _Component) -> None:
    """The type of the latest event: each is a message, also when the type is the one before."""
    topic = one.require(one.topic("state_topic"), "state_topic")
    types = frozenset(one.texts("event_types"))
    if not types:
        raise _NotTakenError("event_types must be a list of texts")
    one.read(topic, "String", partial(_event_type, types), one.template("value_template"))


def _event_type(types: frozenset[str], text: str) -> str | None:
    """Of an object, as Home Assistant wants it; many publishers have a template that makes one."""
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    type_ = found.get("event_type") if isinstance(found, dict) else None
    return type_ if isinstance(type_, str) and type_ in types else None


_PLATFORMS: Final[Mapping[str, Callable[[_Component], None]]] = {
    "binary_sensor": _binary_sensor,
    "button": _button,
    "climate": _climate,
    "cover": _cover,
    "event": _event,
    "fan": _fan,
    "light": _light,
    "lock": _lock,
    "number": _number_setting,
    "select": _select,
    "sensor": _sensor,
    "switch": _switch,
    "text": _text,
}


class PublishedState:
    """A published state as templates see it: `value` and, where it is JSON, `value_json`."""

    __slots__ = ("_json", "text")

    def __init__(self, payload: bytes) -> None:
        """Raises ValidationFailed: it is no text, or too long."""
        if len(payload) > FOUND_TEXT_CHARACTERS:
            raise ValidationFailed.of("payload", f"Maximum length {FOUND_TEXT_CHARACTERS}")
        try:
            self.text = payload.decode()
        except UnicodeDecodeError:
            raise ValidationFailed.of("payload", "Text field only") from None
        try:
            self._json: dict[str, Any] = {"value_json": _decode(payload)}
        except (msgspec.DecodeError, RecursionError):
            self._json = {}

    def rendered(self, template: Template | None) -> str | None:
        return self.text.strip() if template is None else template.render(value=self.text, **self._json)


def values_of(readings: Iterable[FieldReading], payload: bytes) -> dict[str, Any]:
    """The fields that are read of a message. Raises ValidationFailed."""
    state, found = PublishedState(payload), dict[str, Any]()
    for reading in readings:
        text = state.rendered(reading.template)
        value = None if text is None else reading.value(text)
        if value is not None:
            found[reading.field] = value
    return found
