"""The components of a device in Home Assistant, made from its Manifest (reference 16.7).

A component is what Home Assistant makes an entity of: a sensor, a switch, a button. Its id stays the same for as long
as the field or the Action has its name, and it is another one when its platform changes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from broker.device_types.manifest import DeclaredAction, Field, Manifest, ValueClass
from broker.home_assistant import commands
from broker.home_assistant.commands import OFF, ON, PRESS, Call, Command
from broker.home_assistant.units import MEASUREMENT, quantity_of
from config.limits import HOME_COMPONENTS_MAX

_NUMBERS: Final = frozenset({ValueClass.DOUBLE, ValueClass.FLOAT, ValueClass.INTEGER, ValueClass.LONG})
_WHOLE: Final = frozenset({ValueClass.INTEGER, ValueClass.LONG})
#: Bounds of a number whose Manifest gives none. Home Assistant has doubles.
_BOUNDS: Final[Mapping[ValueClass, tuple[float, float]]] = {
    ValueClass.INTEGER: (-(2**31), 2**31 - 1),
    ValueClass.LONG: (-(2**53), 2**53),
}
_ANY_NUMBER: Final = (-1e9, 1e9)
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_.]+")
_SWITCHED: Final = frozenset({"state", "on", "power", "switch"})
_COLOUR: Final = ("r", "g", "b")


class Component(msgspec.Struct, frozen=True):
    """`options` are those of Home Assistant, without the topics. `commands` are by the last level of their set topics,
    and the option that has the topic; `state`: options that have the state topic."""

    id: str
    platform: str
    options: Mapping[str, Any]
    state: tuple[str, ...] = ()
    commands: tuple[tuple[str, str, Command], ...] = ()


def components_of(manifest: Manifest) -> tuple[Component, ...]:
    """The first components of a Manifest, in its order: at most 500 (config/limits.py)."""
    return tuple(_Maker(manifest).all())[:HOME_COMPONENTS_MAX]


class _Maker:
    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._leaves = manifest.leaves
        #: Actions that a light or a switch has taken; fields of Boolean values that one shows.
        self._taken: set[str] = set()
        self._shown: set[str] = set()

    def all(self) -> Iterator[Component]:
        setters = [*self._lights(), *self._switches()]
        yield from (found for path, field in self._leaves.items() if (found := self._reading(path, field)))
        yield from setters
        for action in self._manifest.actions:
            if action.name not in self._taken and (found := self._setting(action)) is not None:
                yield found

    # Readings

    def _reading(self, path: str, field: Field) -> Component | None:
        options: dict[str, Any] = {"name": _spoken(path), "value_template": _value(path)}
        if field.is_collection or field.value_class is ValueClass.STRING:
            return _component("sensor", path, options, state=("state_topic",))
        if field.value_class is ValueClass.BOOLEAN:
            if path in self._shown:
                return None
            options |= {"payload_on": "True", "payload_off": "False"}
            return _component("binary_sensor", path, options, state=("state_topic",))
        quantity = quantity_of(path, field.unit)
        options["state_class"] = quantity.state_class if quantity.device_class else MEASUREMENT
        if quantity.device_class is not None:
            options["device_class"] = quantity.device_class
        if quantity.unit is not None:
            options["unit_of_measurement"] = quantity.unit
        return _component("sensor", path, options, state=("state_topic",))

    # Lights and switches, which take several Actions or show a field

    def _lights(self) -> Iterator[Component]:
        on, off = self._standard("SET_ON"), self._standard("SET_OFF")
        for action in self._manifest.actions:
            if len(action.parameters) != 1 or not (group := action.parameters[0]).is_group:
                continue
            parts = {one.name.lower()[:1]: one for one in group.children}
            if len(group.children) != 3 or set(parts) != set(_COLOUR) or not all(map(_is_number, parts.values())):
                continue
            names = (parts["r"].name, parts["g"].name, parts["b"].name)
            coloured = partial(commands.colour, action.name, group.name, names)
            calls = {ON: coloured(b"255,255,255"), OFF: coloured(b"0,0,0")}
            options: dict[str, Any] = {"name": _spoken(action.name.removeprefix("set"))}
            state: tuple[str, ...] = ()
            if on is not None and off is not None and not {on.name, off.name} & self._taken:
                calls = {ON: Call(on.name), OFF: Call(off.name)}
                self._taken |= {on.name, off.name}
                if (path := self._state()) is not None:
                    options |= {"state_value_template": _on_or_off(path)}
                    state = ("state_topic",)
                    self._shown.add(path)
            paths = [f"{group.name}.{name}" for name in names]
            if all(one in self._leaves for one in paths):
                options["rgb_value_template"] = _three(paths)
                state = (*state, "rgb_state_topic")
            self._taken.add(action.name)
            id_ = f"light_{action.name}"
            set_topics = (
                ("command_topic", id_, partial(commands.choose, calls)),
                ("rgb_command_topic", f"{id_}_rgb", coloured),
            )
            yield Component(id_, "light", options, state, set_topics)

    def _switches(self) -> Iterator[Component]:
        """A Boolean that Actions set: one Action with the value, two that write it to the resource of the field, or the
        standard Actions for on and off."""
        for path, field in self._leaves.items():
            if field.value_class is ValueClass.BOOLEAN and not field.is_collection and path not in self._shown:
                calls = self._by_value(field) or self._by_constants(field)
                if calls is not None:
                    yield self._switch(path, calls)
        on, off = self._standard("SET_ON"), self._standard("SET_OFF")
        if on is not None and off is not None and not {on.name, off.name} & self._taken:
            shown = self._state()
            if shown is not None and shown not in self._shown:
                yield self._switch(shown, {ON: Call(on.name), OFF: Call(off.name)})

    def _switch(self, path: str, calls: Mapping[str, Call]) -> Component:
        self._shown.add(path)
        self._taken |= {call.name for call in calls.values()}
        options = {"name": _spoken(path), "value_template": _value(path), "state_on": "True", "state_off": "False"}
        command = partial(commands.choose, calls)
        return _component("switch", path, options, state=("state_topic",), command=command)

    def _by_value(self, field: Field) -> Mapping[str, Call] | None:
        for action in self._manifest.actions:
            parameter = _only_parameter(action)
            if action.name in self._taken or parameter is None or parameter.value_class is not ValueClass.BOOLEAN:
                continue
            if parameter.name == field.name or _writes(action, field):
                return {ON: Call(action.name, {parameter.name: True}), OFF: Call(action.name, {parameter.name: False})}
        return None

    def _by_constants(self, field: Field) -> Mapping[str, Call] | None:
        writers = {
            action.lwm2m.value: Call(action.name)
            for action in self._manifest.actions
            if _writes(action, field) and action.lwm2m is not None and isinstance(action.lwm2m.value, bool)
        }
        return {ON: writers[True], OFF: writers[False]} if len(writers) == 2 else None

    def _standard(self, type_: str) -> DeclaredAction | None:
        fitting = (one for one in self._manifest.actions if one.type == type_ and not one.parameters)
        return next(fitting, None)

    def _state(self) -> str | None:
        """The field that says whether the device is on: the first one of the type STATE, by its name, or the only
        Boolean."""
        booleans = [path for path, one in self._leaves.items() if _is_boolean(one)]
        for path in booleans:
            if self._leaves[path].type == "STATE" or path.lower() in _SWITCHED:
                return path
        return booleans[0] if len(booleans) == 1 else None

    # Other Actions

    def _setting(self, action: DeclaredAction) -> Component | None:
        if not action.parameters:
            options = {"name": _spoken(action.name), "payload_press": PRESS}
            command: Command = partial(commands.choose, {PRESS: Call(action.name)})
            return _component("button", action.name, options, command=command)
        if (parameter := _only_parameter(action)) is None:
            return None
        path = self._shown_by(action, parameter)
        options = {"name": _spoken(action.name)} | ({} if path is None else {"value_template": _value(path)})
        state = () if path is None else ("state_topic",)
        kind = parameter.value_class
        if kind is ValueClass.STRING:
            command = partial(commands.text_call, action.name, parameter.name)
            return _component("text", action.name, options, state=state, command=command)
        if kind is ValueClass.BOOLEAN:
            calls = {word: Call(action.name, {parameter.name: word == ON}) for word in (ON, OFF)}
            return _component("switch", action.name, options, command=partial(commands.choose, calls))
        return self._number(action, parameter, options, state)

    def _number(
        self, action: DeclaredAction, parameter: Field, options: Mapping[str, Any], state: tuple[str, ...]
    ) -> Component:
        is_whole = parameter.value_class in _WHOLE
        least, most = _bounds_of(parameter)
        found: dict[str, Any] = {**options, "min": least, "max": most, "mode": "box", "step": 1 if is_whole else 0.01}
        if (unit := quantity_of(parameter.name, parameter.unit).unit) is not None:
            found["unit_of_measurement"] = unit
        command = partial(commands.number, action.name, parameter.name, (least, most), is_whole)
        return _component("number", action.name, found, state=state, command=command)

    def _shown_by(self, action: DeclaredAction, parameter: Field) -> str | None:
        """The field that has the value which the Action sets: the one of its resource, or of the parameter's name."""
        for path, field in self._leaves.items():
            is_alike = (field.value_class in _NUMBERS) == (parameter.value_class in _NUMBERS)
            if not field.is_collection and is_alike and (_writes(action, field) or path == parameter.name):
                return path
        return None


def _component(
    platform: str, name: str, options: Mapping[str, Any], *, state: tuple[str, ...] = (), command: Command | None = None
) -> Component:
    id_ = f"{platform}_{name.replace('.', '-')}"
    return Component(id_, platform, options, state, () if command is None else (("command_topic", id_, command),))


def _only_parameter(action: DeclaredAction) -> Field | None:
    """The one parameter of an Action, if it is a single value."""
    if len(action.parameters) != 1:
        return None
    parameter = action.parameters[0]
    return None if parameter.is_group or parameter.is_collection else parameter


def _writes(action: DeclaredAction, field: Field) -> bool:
    """The Action writes the resource of LWM2M that the field has."""
    operation = action.lwm2m
    return operation is not None and not operation.is_execute and operation.path == field.lwm2m


def _is_boolean(field: Field) -> bool:
    return field.value_class is ValueClass.BOOLEAN and not field.is_collection


def _is_number(field: Field) -> bool:
    return field.value_class in _NUMBERS and not field.is_collection


def _bounds_of(field: Field) -> tuple[float, float]:
    """Of the Manifest's metadata, else of the unit or the class."""
    kind = field.value_class or ValueClass.DOUBLE
    least, most = (0, 100) if field.unit == "%" else _BOUNDS.get(kind, _ANY_NUMBER)
    for entry in field.metadata:
        if isinstance(entry.value, int | float) and entry.type.startswith("MIN_VALUE_") and "STRICT" not in entry.type:
            least = entry.value
        elif (
            isinstance(entry.value, int | float) and entry.type.startswith("MAX_VALUE_") and "STRICT" not in entry.type
        ):
            most = entry.value
    return (least, most) if least < most else _ANY_NUMBER


def _spoken(name: str) -> str:
    """`wind.maxSpeed` as `Wind max speed`."""
    words = _WORDS.sub(" ", name).split()
    text = " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words)
    return text[:1].upper() + text[1:]


# Names have letters, digits and _ only, so they stand in a template as they are.


def _value(path: str) -> str:
    """`None` makes the state of an entity unknown."""
    return f"{{{{ value_json.get('{path}') }}}}"


def _on_or_off(path: str) -> str:
    return f"{{{{ {{true: 'ON', false: 'OFF'}}.get(value_json.get('{path}'), 'None') }}}}"


def _three(paths: Sequence[str]) -> str:
    first, *_ = paths
    values = ",".join(f"{{{{ value_json.get('{path}') }}}}" for path in paths)
    return f"{{% if value_json.get('{first}') is not none %}}{values}{{% endif %}}"
