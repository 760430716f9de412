"""The resources that an LWM2M device offers to the Manifest of its type, by the models of its objects (reference 18.8).

These are measured and settable resources of which the device gave a value, without the ones that describe a sensor,
such as its range. Where nothing is read of the device, it is the main resource of each object. Of the objects that
manage a device only what is measured: a battery, a signal, a place.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from broker.device_management.objects import ObjectMap, Resource
from broker.device_management.registry import unit_of
from broker.device_management.sessions import ResourcePath
from broker.device_management.values import ValueType
from broker.device_types.manifest import Field, Manifest, ValueClass, address_text
from broker.device_types.manifest_parser import MAX_ACTIONS, MAX_FIELDS, MAX_NAME
from broker.device_types.units import unit_text
from config.limits import LWM2M_PATHS_MAX

_NAMED: Final = 8  # in the sentence
#: Of the OMA's own objects, which have the numbers below 1,024 and manage a device.
_OF_MANAGEMENT: Final[frozenset[ResourcePath]] = frozenset({(3, 0, 9), (4, 0, 2), (6, 0, 0), (6, 0, 1), (6, 0, 2)})
#: Of these, what each device with the object has.
_MANDATORY: Final[frozenset[ResourcePath]] = frozenset({(4, 0, 2), (6, 0, 0), (6, 0, 1)})
_MANAGED: Final = range(1024)
_REBOOT: Final[ResourcePath] = (3, 0, 4)
_UNITS_OF_SENSOR: Final = 5701
#: Resources of IPSO that describe a sensor: its range and extremes, its application type, its time and quality.
_DESCRIBING: Final = frozenset(
    {5518, 5601, 5602, 5603, 5604, _UNITS_OF_SENSOR, 5750, 5751, 5801, 5802, 5803, 5804, 5811, 5812, 5813, 5814, 5821}
    | {6042, 6049, 6050}
)
#: Resources that adjust a sensor: fields, and no Actions.
_ADJUSTING: Final = frozenset({5502, 5503, 5504, 5903, 5904})
#: The main resource of an object, which its name stands for.
_MAIN: Final = (5700, 5500, 5600, 5800, 5550, 5650)
_ON_OFF: Final = 5850
_MAIN_OF_CONTROLS: Final = (_ON_OFF, 5851)
_CLASSES: Final[Mapping[ValueType, ValueClass]] = {
    ValueType.STRING: ValueClass.STRING,
    ValueType.INTEGER: ValueClass.LONG,
    ValueType.UNSIGNED_INTEGER: ValueClass.LONG,
    ValueType.FLOAT: ValueClass.DOUBLE,
    ValueType.BOOLEAN: ValueClass.BOOLEAN,
    ValueType.TIME: ValueClass.LONG,
}
#: Units of a Manifest (reference 8.5) by those of the registry and of SenML (RFC 8428, 12.1).
_UNITS: Final[Mapping[str, str]] = {
    "%": "NonSI.PERCENT",
    "%RH": "NonSI.PERCENT",
    "/": "",
    "/100": "NonSI.PERCENT",
    "A": "SI.AMPERE",
    "Cel": "SI.CELSIUS",
    "Hz": "SI.HERTZ",
    "J": "SI.JOULE",
    "K": "SI.KELVIN",
    "Pa": "SI.PASCAL",
    "V": "SI.VOLT",
    "W": "SI.WATT",
    "cd": "SI.CANDELA",
    "deg": "NonSI.DEGREE_ANGLE",
    "h": "NonSI.HOUR",
    "kg": "SI.KILOGRAM",
    "lat": "NonSI.DEGREE_ANGLE",
    "lm": "SI.LUMEN",
    "lon": "NonSI.DEGREE_ANGLE",
    "lx": "SI.LUX",
    "m": "SI.METER",
    "m/s": "SI.METERS_PER_SECOND",
    "min": "NonSI.MINUTE",
    "ppm": "PARTS_PER_MILLION",
    "rad": "SI.RADIAN",
    "s": "SI.SECOND",
}


class OfferedField(msgspec.Struct, frozen=True):
    """A resource as a field: `unit` is that of a Manifest, empty for none."""

    path: ResourcePath
    name: str
    value_class: ValueClass
    is_collection: bool
    unit: str

    @property
    def unit_shown(self) -> str:
        return (unit_text(self.unit) or "") if self.unit else ""

    def document(self) -> dict[str, Any]:
        """A field of a Manifest."""
        unit = {"unit": self.unit} if self.unit else {}
        return {
            "name": self.name,
            "type": "CUSTOM",
            "valueClass": str(self.value_class),
            "isCollection": self.is_collection,
            **unit,
            "lwm2m": address_text(self.path),
        }


class Offers(msgspec.Struct, frozen=True):
    """The fields and the Actions, as a Manifest has them, that a device offers and its Manifest lacks. `sentence` names
    the fields; it is empty when there is nothing."""

    sentence: str
    fields: tuple[OfferedField, ...]
    actions: tuple[Mapping[str, Any], ...]

    def added_to(self, document: Mapping[str, Any] | None) -> dict[str, Any]:
        """The document of the next version: the present one with what is offered."""
        known: dict[str, Any] = dict(document or {"messageFormat": "json"})
        fields = [self._with_path(one) for one in known.get("fields") or ()]
        taken = {one.get("name") for one in fields}
        known["fields"] = fields + [one.document() for one in self.fields if one.name not in taken]
        known["actions"] = [*(known.get("actions") or ()), *self.actions]
        return known

    def _with_path(self, field: Any) -> Any:
        """A field that is there under the name of an offered one gets its path."""
        offered = next((one for one in self.fields if one.name == field.get("name")), None)
        return field if offered is None else {**field, "lwm2m": address_text(offered.path)}


NOTHING: Final = Offers("", (), ())


def offers_of(
    objects: ObjectMap, instances: Iterable[ResourcePath], values: Mapping[ResourcePath, Any], manifest: Manifest
) -> Offers:
    """The offers of a device that lists these objects and instances, and gave these values of its resources."""
    if manifest.transform is not None:  # which excludes paths
        return NOTHING
    found = [
        (path, described)
        for path in _offered(objects, sorted(set(instances)), values)
        if (described := objects.described(path)) is not None and described.type in _CLASSES
    ]
    used = set(manifest.resources.values())
    room = min(LWM2M_PATHS_MAX - len(used), MAX_FIELDS - len(manifest.leaves))
    taken = {one.name for one in manifest.fields}
    fields = list[OfferedField]()
    names = dict[ResourcePath, str]()
    for path, described in found:
        field = _field(objects, path, described, values)
        present = manifest.field_at(field.name)
        if path in used or len(fields) >= room:
            continue
        if not _takes(objects, present, path):
            field = msgspec.structs.replace(field, name=_free(field.name, taken))
        taken.add(field.name)
        names[path] = field.name
        fields.append(field)
    actions = tuple(_actions(found, names, manifest, has_reboot=(3, 0) in set(instances)))
    return Offers(_sentence(fields), tuple(fields), actions)


def _offered(
    objects: ObjectMap, instances: Iterable[ResourcePath], values: Mapping[ResourcePath, Any]
) -> Iterator[ResourcePath]:
    """The resources to offer, in the order of the instances."""
    listed = set(instances)
    numbers = {path[0] for path in listed}
    read = {path[0] for path in values}
    of_management = (
        path
        for path in _OF_MANAGEMENT
        if path[0] in numbers and (path in values or (path in _MANDATORY and path[0] not in read))
    )
    yield from sorted(of_management)
    given = dict[ResourcePath, list[ResourcePath]]()
    for path in sorted(values):
        if path[0] not in _MANAGED and (path[:2] in listed or path[:1] in listed):
            given.setdefault(path[:2], []).append(path)
    unread = [path for path in listed if len(path) == 2 and path[0] not in _MANAGED and path not in given]
    for instance in sorted({*given, *unread}):
        if instance in given:
            yield from (path for path in given[instance] if path[2] not in _DESCRIBING)
            continue
        main = [one for one in (*_MAIN, *_MAIN_OF_CONTROLS) if objects.described((*instance, one)) is not None]
        yield from ((*instance, one) for one in (main if _ON_OFF in main else main[:1]))


def _field(
    objects: ObjectMap, path: ResourcePath, described: Resource, values: Mapping[ResourcePath, Any]
) -> OfferedField:
    said = values.get((*path[:2], _UNITS_OF_SENSOR)) if path[2] in _MAIN else None
    unit = said if isinstance(said, str) and len(said) <= MAX_NAME else described.unit or unit_of(path[0], path[2])
    value_class = _CLASSES[described.type]
    if described.type in (ValueType.STRING, ValueType.BOOLEAN):
        unit = ""
    return OfferedField(
        path, _name(objects, path, described), value_class, described.is_multiple, _UNITS.get(unit, unit)
    )


def _name(objects: ObjectMap, path: ResourcePath, described: Resource) -> str:
    """`temperature` for the main resource of the object, `lightControlDimmer` for another one; `temperature_1` for that
    of instance 1."""
    found = objects.property_at(path)
    group = "" if found is None else found.name.partition(".")[0]
    if path[0] in _MANAGED:
        name = described.name
    elif path[2] in _MAIN and all(objects.described((*path[:2], one)) is None for one in _before(path[2])):
        name = group
    else:
        name = group + described.name[:1].upper() + described.name[1:]
    return (name[: MAX_NAME - 10] + (f"_{path[1]}" if path[1] else "")) or f"object{path[0]}_{path[2]}"


def _before(number: int) -> tuple[int, ...]:
    return _MAIN[: _MAIN.index(number)]


def _takes(objects: ObjectMap, field: Field | None, path: ResourcePath) -> bool:
    """Whether a field that is there under the offered name can have the values of this resource."""
    if field is None:
        return True
    return field.lwm2m is None and objects.problem_of(msgspec.structs.replace(field, lwm2m=path)) is None


def _free(name: str, taken: Collection[str]) -> str:
    return next(one for number in range(2, MAX_FIELDS + 3) if (one := f"{name}_of_device{number}") not in taken)


def _actions(
    found: Iterable[tuple[ResourcePath, Resource]],
    names: Mapping[ResourcePath, str],
    manifest: Manifest,
    *,
    has_reboot: bool,
) -> Iterator[Mapping[str, Any]]:
    used = {one.path for one in manifest.operations.values()}
    taken = {one.name for one in manifest.actions}
    room = MAX_ACTIONS - len(manifest.actions)
    offered = list[Mapping[str, Any]]()
    for path, described in found:
        if "W" not in described.operations or path in used or path not in names or path[2] in _ADJUSTING:
            continue
        if described.is_multiple or path[0] in _MANAGED:
            continue
        offered += _setting(path, described, names[path])
    if has_reboot and _REBOOT not in used:
        offered.append(_action("reboot", "CUSTOM", {"execute": address_text(_REBOOT)}))
    yield from [one for one in offered if one["name"] not in taken][: max(0, room)]


def _setting(path: ResourcePath, described: Resource, field: str) -> Iterator[Mapping[str, Any]]:
    where = address_text(path)
    if path[2] == _ON_OFF:
        suffix = f"_{path[1]}" if path[1] else ""
        for name, type_, value in (("setOn", "SET_ON", True), ("setOff", "SET_OFF", False)):
            yield _action(name + suffix, type_, {"write": where, "value": value}, is_standard=not suffix)
        return
    parameters = [{"name": "value", "valueClass": str(_CLASSES[described.type])}]
    name = "set" + field[:1].upper() + field[1:]
    yield _action(name[:MAX_NAME], "CUSTOM", {"write": where, "parameter": "value"}, parameters)


def _action(
    name: str,
    type_: str,
    operation: Mapping[str, Any],
    parameters: list[dict[str, Any]] | None = None,
    *,
    is_standard: bool = False,
) -> Mapping[str, Any]:
    return {
        "name": name,
        "type": type_,
        "isStandard": is_standard,
        "parameters": parameters or [],
        "lwm2m": operation,
    }


def _sentence(fields: Collection[OfferedField]) -> str:
    if not fields:
        return ""
    shown = [
        f"{one.name} ({', '.join(filter(None, (address_text(one.path), one.unit_shown)))})"
        for one in list(fields)[:_NAMED]
    ]
    if len(fields) > _NAMED:
        shown.append(f"{len(fields) - _NAMED} more")
    return f"This board offers {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}."
