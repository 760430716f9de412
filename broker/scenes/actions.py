"""The Actions of a scene: read from JSON, and judged by the devices and Manifests that they name (reference 12.5).

All findings are collected, so that a caller learns of all of them at once.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.device_types.manifest import DeclaredAction, Field, Manifest, ValueClass
from broker.devices.registry import Device, Devices, device_in
from broker.errors import (
    BOOLEAN_ONLY,
    NUMERIC_ONLY,
    REQUIRED,
    TEXT_ONLY,
    DeviceTypeNotFound,
    Finding,
    invalid,
    too_long,
)
from broker.wanted.values import NOT_SETTABLE
from config.limits import (
    MAX_DATA_BYTES,
    SCENE_ACTIONS_MAX,
    WANTED_FIELDS_MAX,
    WANTED_SECONDS,
    WANTED_SECONDS_MAX,
)
from storage.keys import UserKey
from storage.transaction import Transaction

EVERY: Final = "every"
_LEVELS_MAX: Final = 20  # of groups in a parameter
_DOUBLE: Final = sys.float_info.max
_NUMBERS: Final = frozenset({ValueClass.DOUBLE, ValueClass.FLOAT, ValueClass.INTEGER, ValueClass.LONG})
_WHOLE: Final = {ValueClass.INTEGER: range(-(2**31), 2**31), ValueClass.LONG: range(-(2**63), 2**63)}

_encode = msgspec.json.Encoder().encode


class SceneAction(msgspec.Struct, frozen=True):
    """One Action. It goes to the device with the id `device`, or to all of the user's devices of the type `every`, an
    id or a unique name; the other of the two is empty. `parameters` has plain values: of the Action `name`, or,
    with `wanted_seconds`, the values that are wanted of the device for that time."""

    path: str
    device: str
    every: str
    name: str
    parameters: Mapping[str, Any]
    wanted_seconds: int = 0

    @property
    def data(self) -> bytes:
        """The data of the Action message (reference 9.1), or the wanted values (9.10)."""
        if self.wanted_seconds:
            return _encode(self.parameters)
        return _encode({"actions": [{"name": self.name, "parameters": self.parameters}]})


class NamedObjects(msgspec.Struct, frozen=True):
    """The named devices and types, by the text that names them; None: there is no such device or type."""

    devices: Mapping[str, Device | None]
    types: Mapping[str, DeviceType | None]


def read_actions(given: object, findings: list[Finding]) -> list[SceneAction]:
    """The Actions of a JSON value. Their problems are added to `findings`, and Actions with problems are left out."""
    if not isinstance(given, list):
        findings.append(Finding("actions", (REQUIRED if given is None else invalid("must be a list"),)))
        return []
    if not 1 <= len(given) <= SCENE_ACTIONS_MAX:
        findings.append(Finding("actions", (too_long(SCENE_ACTIONS_MAX) if given else REQUIRED,)))
        return []
    return [action for index, one in enumerate(given) if (action := _read(f"actions.{index}", one, findings))]


def _read(path: str, given: object, findings: list[Finding]) -> SceneAction | None:
    if not isinstance(given, dict):
        findings.append(Finding(path, (invalid("must be an object"),)))
        return None
    before = len(findings)
    device = every = ""
    destination = given.get("ddid")
    if isinstance(destination, dict):
        every = _text(f"{path}.ddid.dtid", destination.get("dtid"), findings)
        selector = _text(f"{path}.ddid.selector", destination.get("selector"), findings)
        if selector and selector != EVERY:
            findings.append(Finding(f"{path}.ddid.selector", (invalid(f"must be {EVERY}"),)))
    else:
        device = _text(f"{path}.ddid", destination, findings)
    if given.get("want") is not None:
        return _read_want(path, given, device, every, findings, before)
    name = _text(f"{path}.action", given.get("action"), findings)
    parameters = given.get("parameters")
    if not isinstance(parameters, dict | None):
        findings.append(Finding(f"{path}.parameters", (invalid("must be an object"),)))
        parameters = None
    values = {key: _value(f"{path}.parameters.{key}", one, findings) for key, one in (parameters or {}).items()}
    action = SceneAction(path, device, every, name, values)
    if len(findings) == before and len(action.data) > MAX_DATA_BYTES:
        findings.append(Finding(f"{path}.parameters", (too_long(MAX_DATA_BYTES),)))
    return action if len(findings) == before else None


def _read_want(
    path: str, given: dict[str, Any], device: str, every: str, findings: list[Finding], before: int
) -> SceneAction | None:
    """Values that are wanted of the device."""
    others = [member for member in ("action", "parameters") if given.get(member) is not None]
    findings += [Finding(f"{path}.{member}", (invalid("an entry with want has none"),)) for member in others]
    wanted = given["want"]
    if not isinstance(wanted, dict) or not 1 <= len(wanted) <= WANTED_FIELDS_MAX:
        findings.append(Finding(f"{path}.want", (invalid(f"must be an object of 1 to {WANTED_FIELDS_MAX} fields"),)))
        return None
    values = {key: _value(f"{path}.want.{key}", one, findings) for key, one in wanted.items()}
    seconds = given.get("expiresAfter", WANTED_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= WANTED_SECONDS_MAX:
        text = invalid(f"must be a number from 1 to {WANTED_SECONDS_MAX}")
        findings.append(Finding(f"{path}.expiresAfter", (text,)))
        return None
    action = SceneAction(path, device, every, "", values, seconds)
    if len(findings) == before and len(action.data) > MAX_DATA_BYTES:
        findings.append(Finding(f"{path}.want", (too_long(MAX_DATA_BYTES),)))
    return action if len(findings) == before else None


def _text(path: str, given: object, findings: list[Finding]) -> str:
    """A text that is not empty; else an empty one, and a finding."""
    if given is None or given == "":
        findings.append(Finding(path, (REQUIRED,)))
    elif not isinstance(given, str):
        findings.append(Finding(path, (TEXT_ONLY,)))
    else:
        return given
    return ""


def _value(path: str, given: object, findings: list[Finding], level: int = 1) -> Any:
    """The plain value of a value object: `{"value": …}`, whose value may have such objects as its members."""
    if not isinstance(given, dict) or level > _LEVELS_MAX:
        findings.append(Finding(path, (invalid(f"must be an object with a value, at most {_LEVELS_MAX} levels deep"),)))
        return None
    findings += [Finding(f"{path}.{key}", (invalid("must be value, nothing else"),)) for key in given if key != "value"]
    value = given.get("value")
    if value is None:
        findings.append(Finding(f"{path}.value", (REQUIRED,)))
    if isinstance(value, dict):
        return {key: _value(f"{path}.value.{key}", one, findings, level + 1) for key, one in value.items()}
    return value


def check_actions(user: UserKey, actions: Sequence[SceneAction], named: NamedObjects) -> list[Finding]:
    """The obstacles to sending the user's Actions, as devices, shares and Manifests are now."""
    return [finding for action in actions for finding in _judge(user, action, named)]


def _judge(user: UserKey, action: SceneAction, named: NamedObjects) -> Iterator[Finding]:
    if action.every:
        type_ = named.types[action.every]
        if type_ is None:
            yield Finding(f"{action.path}.ddid.dtid", (f'Device type "{action.every}" does not exist',))
        else:
            yield from _judge_action(action, type_.latest.manifest)
        return
    device = named.devices[action.device]
    if device is None:
        yield Finding(f"{action.path}.ddid", (f'Device "{action.device}" does not exist',))
    elif not device.is_held_by(user):
        yield Finding(f"{action.path}.ddid", (f'Device "{action.device}" is no longer shared',))
    else:
        yield from _judge_action(action, device.manifest.manifest)


def _judge_action(action: SceneAction, manifest: Manifest) -> Iterator[Finding]:
    if action.wanted_seconds:
        for name, value in action.parameters.items():
            yield from _judge_member(f"{action.path}.want.{name}", name, value, manifest.fields, is_wanted=True)
        return
    declared = next((one for one in manifest.actions if one.name == action.name), None)
    if declared is None:
        yield Finding(f"{action.path}.action", (f'Action "{action.name}" does not exist',))
    else:
        yield from _judge_parameters(f"{action.path}.parameters", action, declared)


def _judge_parameters(path: str, action: SceneAction, declared: DeclaredAction) -> Iterator[Finding]:
    for name, value in action.parameters.items():
        yield from _judge_member(f"{path}.{name}", name, value, declared.parameters)


def _judge_member(
    path: str, name: str, value: object, fields: Iterable[Field], *, is_wanted: bool = False
) -> Iterator[Finding]:
    field = next((one for one in fields if one.name == name), None)
    if field is None:
        yield Finding(path, (f'Field "{name}" does not exist',))
    elif field.is_group:
        if not isinstance(value, dict):
            yield Finding(f"{path}.value", (invalid("must be an object"),))
            return
        for member, inner in value.items():
            yield from _judge_member(f"{path}.value.{member}", member, inner, field.children, is_wanted=is_wanted)
    elif is_wanted and not field.settable:
        yield Finding(path, (NOT_SETTABLE,))
    elif field.is_collection:
        items = value if isinstance(value, list) else [None]
        if problem := next((found for one in items if (found := _problem(one, field.value_class))), ""):
            yield Finding(f"{path}.value", (problem if isinstance(value, list) else invalid("must be a list"),))
    elif problem := _problem(value, field.value_class):
        yield Finding(f"{path}.value", (problem,))


def _problem(value: object, kind: ValueClass | None) -> str:
    """The problem of a value of this class; empty without one."""
    if kind is ValueClass.STRING:
        return "" if isinstance(value, str) else TEXT_ONLY
    if kind is ValueClass.BOOLEAN:
        return "" if isinstance(value, bool) else BOOLEAN_ONLY
    if kind not in _NUMBERS or isinstance(value, bool) or not isinstance(value, int | float):
        return NUMERIC_ONLY
    if not abs(value) <= _DOUBLE:  # TOML has infinite numbers, JSON has integers of thousands of digits
        return invalid("must be a double")
    whole = _WHOLE.get(kind)
    return (
        invalid("must be a whole number that fits the class of the field")
        if whole is not None and (value != int(value) or int(value) not in whole)
        else ""
    )


class Resolver:
    """Finds the devices and types that Actions name, in the registries."""

    def __init__(self, devices: Devices, device_types: DeviceTypes) -> None:
        self._devices = devices
        self._types = device_types

    async def named(self, actions: Sequence[SceneAction]) -> NamedObjects:
        devices = await self._devices.find_all(one.device for one in actions if one.device)
        types = {name: await self._type(name) for name in dict.fromkeys(one.every for one in actions) if name}
        return NamedObjects(devices, types)

    async def _type(self, id_or_name: str) -> DeviceType | None:
        try:
            return await self._types.find(id_or_name)
        except DeviceTypeNotFound:
            return None


def named_in(tx: Transaction, actions: Sequence[SceneAction]) -> NamedObjects:
    """The named objects as an open transaction sees them; see `Resolver.named`."""
    devices: dict[str, Device | None] = {}
    for id_ in (one.device for one in actions if one.device):
        devices[id_] = device_in(tx, tx.devices.by_id(id_))
    types: dict[str, DeviceType | None] = {}
    for name in (one.every for one in actions if one.every):
        found = tx.device_types.by_id_or_name(name)
        types[name] = None if found is None else DeviceType(found, tx.device_types.manifests(found.key))
    return NamedObjects(devices, types)
