"""Lights that are announced: on and off, brightness, colour and colour temperature (reference 16.9)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from broker.found.components import FoundComponent, NotTakenError
from broker.found.payloads import either, number_in, switched, within
from broker.found.switches import switch
from broker.found.templates import Template, template_of


def light(one: FoundComponent) -> None:
    schema = one.text("schema", "basic") if "schema" in one.options else "basic"
    if schema == "json":
        _json_light(one)
    elif schema == "basic":
        switch(one)
        scale = one.number("brightness_scale", 255)
        if state := one.topic("brightness_state_topic"):
            template = one.template("brightness_value_template")
            one.read(state, "Double", number_in, template, name=f"{one.name}_brightness")
        if command := one.topic("brightness_command_topic"):
            _brightness(one, command, scale, partial(within, 0, scale, "brightness", None))
        _basic_colour(one)
        _basic_color_temp(one)
    else:
        raise NotTakenError(f"{schema[:40]} is no schema of a light that Trunkline knows")


def _json_light(one: FoundComponent) -> None:
    command = one.require(one.topic("command_topic"), "command_topic")
    modes = one.texts("supported_color_modes")
    has_brightness, has_colour = bool(one.options.get("brightness")) or bool(modes), "rgb" in modes
    if state := one.topic("state_topic"):
        one.read(state, "Boolean", partial(either, "ON", "OFF"), template_of("{{ value_json.state }}"))
        if has_brightness:
            template = template_of("{{ value_json.brightness }}")
            one.read(state, "Double", number_in, template, name=f"{one.name}_brightness")
    parameter = {"name": one.name, "valueClass": "Boolean"}
    on, off = '{"state":"ON"}', '{"state":"OFF"}'
    one.act(f"set_{one.name}", command, partial(switched, on, off, one.name), parameter)
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
            template, unit = template_of("{{ value_json.color_temp }}"), _color_temp_bounds(one)[2]
            one.read(state, "Double", number_in, template, name=f"{one.name}_color_temp", unit=unit)
    if left := [mode for mode in modes if mode in {"xy", "hs", "rgbw", "rgbww", "white"}]:
        one.notes.append(f"{', '.join(left)} of a light")


def _read_colours(one: FoundComponent, topic: str, place: str) -> None:
    """A field for each part of a colour: a Manifest has no other form that charts and rules take."""
    for part, word in (("r", "red"), ("g", "green"), ("b", "blue")):
        template = template_of("{{ " + place.format(part) + " }}")
        one.read(topic, "Integer", _colour_part, template, name=f"{one.name}_{word}")


def _colour_part(text: str) -> int | None:
    value = number_in(text)
    return None if value is None or not 0 <= value <= 255 else round(value)


def _colour_action(one: FoundComponent, command: str, payload: Callable[[Mapping[str, Any]], str | None]) -> None:
    group = {"name": "color", "children": [{"name": name, "valueClass": "Integer"} for name in "rgb"]}
    one.act(f"set_{one.name}_color", command, payload, group)


def _basic_colour(one: FoundComponent) -> None:
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


def _color_temp_bounds(one: FoundComponent) -> tuple[float, float, str]:
    """The least and the largest colour temperature, in mireds or in kelvins, and the unit."""
    if one.options.get("color_temp_kelvin") is True:
        return one.number("min_kelvin", 2000), one.number("max_kelvin", 6535), "K"
    return one.number("min_mireds", 153), one.number("max_mireds", 500), "mired"


def _basic_color_temp(one: FoundComponent) -> None:
    least, most, unit = _color_temp_bounds(one)
    if state := one.topic("color_temp_state_topic"):
        template = one.template("color_temp_value_template")
        one.read(state, "Double", number_in, template, name=f"{one.name}_color_temp", unit=unit)
    if command := one.topic("color_temp_command_topic"):
        template = one.template("color_temp_command_template")
        payload = partial(within, least, most, "color_temp", template)
        _color_temp_action(one, command, least, most, unit, payload)


def _color_temp_action(
    one: FoundComponent,
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
    one: FoundComponent, command: str, scale: float, payload: Callable[[Mapping[str, Any]], str | None]
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
