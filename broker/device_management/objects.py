"""Which LWM2M resources are which device properties (reference 18.4).

The resources of objects 3 to 7 have fixed names, of instance 0 only. Other objects appear with their instances: by the
names of a model file (`models`) or of the public registry (`registry`), or by number.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.device_management.sessions import ResourcePath
from broker.device_management.values import ValueType, value_of
from broker.device_types.manifest import Field, ResourceOperation, ValueClass, address_text


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource as it is described: `operations` has some of the letters R, W and E."""

    name: str
    operations: str
    type: ValueType
    is_multiple: bool = False
    description: str = ""
    unit: str = ""


class ObjectModel(msgspec.Struct, frozen=True):
    """An object as it is described: its name, and its resources by number."""

    number: int
    name: str
    resources: Mapping[int, Resource]
    #: It comes from the registry, and not from a model file.
    is_shipped: bool = False


class Property(msgspec.Struct, frozen=True):
    """A resource of one instance, and its name below `deviceProperties`."""

    path: ResourcePath
    name: str
    resource: Resource


_NUMBERS: Final = frozenset({ValueClass.DOUBLE, ValueClass.FLOAT, ValueClass.INTEGER, ValueClass.LONG})
#: Classes of fields that can have values of a type: normalisation converts them (reference 8.4).
_CLASSES: Final[Mapping[ValueType, frozenset[ValueClass]]] = {
    ValueType.STRING: frozenset({ValueClass.STRING}),
    ValueType.INTEGER: _NUMBERS | {ValueClass.STRING},
    ValueType.UNSIGNED_INTEGER: _NUMBERS | {ValueClass.STRING},
    ValueType.FLOAT: _NUMBERS | {ValueClass.STRING},
    ValueType.BOOLEAN: frozenset({ValueClass.BOOLEAN, ValueClass.STRING}),
    ValueType.TIME: _NUMBERS - {ValueClass.INTEGER} | {ValueClass.STRING},
    ValueType.OPAQUE: frozenset({ValueClass.STRING}),
    ValueType.NONE: frozenset(),
}
_STRING, _INTEGER, _FLOAT = ValueType.STRING, ValueType.INTEGER, ValueType.FLOAT
_BOOLEAN, _TIME, _NONE = ValueType.BOOLEAN, ValueType.TIME, ValueType.NONE


def _resources(
    *described: tuple[int, str, str, ValueType] | tuple[int, str, str, ValueType, bool],
) -> dict[int, Resource]:
    return {number: Resource(name, *rest) for number, name, *rest in described}  # type: ignore[arg-type]


_MAPPED: Final[Mapping[int, tuple[str, Mapping[int, Resource]]]] = {
    3: (
        "device",
        _resources(
            (0, "manufacturer", "R", _STRING),
            (1, "modelNumber", "R", _STRING),
            (2, "serialNumber", "R", _STRING),
            (3, "firmwareVersion", "R", _STRING),
            (4, "reboot", "E", _NONE),
            (5, "factoryReset", "E", _NONE),
            (6, "availablePowerSources", "R", _INTEGER, True),
            (7, "powerSourceVoltage", "R", _INTEGER, True),
            (8, "powerSourceCurrent", "R", _INTEGER, True),
            (9, "batteryLevel", "R", _INTEGER),
            (10, "memoryFree", "R", _INTEGER),
            (11, "errorCode", "R", _INTEGER, True),
            (12, "resetErrorCode", "E", _NONE),
            (13, "currentTime", "RW", _TIME),
            (14, "utcOffset", "RW", _STRING),
            (15, "timezone", "RW", _STRING),
            (16, "supportedBindingAndModes", "R", _STRING),
            (17, "deviceType", "R", _STRING),
            (18, "hardwareVersion", "R", _STRING),
            (19, "softwareVersion", "R", _STRING),
            (20, "batteryStatus", "R", _INTEGER),
            (21, "memoryTotal", "R", _INTEGER),
        ),
    ),
    4: (
        "connectivityMonitoring",
        _resources(
            (0, "networkBearer", "R", _INTEGER),
            (1, "availableNetworkBearer", "R", _INTEGER, True),
            (2, "radioSignalStrength", "R", _INTEGER),
            (3, "linkQuality", "R", _INTEGER),
            (4, "ipAddresses", "R", _STRING, True),
            (5, "routerIpAddresses", "R", _STRING, True),
            (6, "linkUtilization", "R", _INTEGER),
            (7, "apn", "R", _STRING, True),
            (8, "cellId", "R", _INTEGER),
            (9, "smnc", "R", _INTEGER),
            (10, "smcc", "R", _INTEGER),
        ),
    ),
    5: (
        "firmwareUpdate",
        _resources(
            (1, "packageURI", "W", _STRING),
            (2, "update", "E", _NONE),
            (3, "state", "R", _INTEGER),
            (4, "updateSupportedObjects", "RW", _BOOLEAN),
            (5, "updateResult", "R", _INTEGER),
            (6, "pkgName", "R", _STRING),
            (7, "pkgVersion", "R", _STRING),
        ),
    ),
    6: (
        "location",
        _resources(
            (0, "latitude", "R", _FLOAT),
            (1, "longitude", "R", _FLOAT),
            (2, "altitude", "R", _FLOAT),
            (3, "uncertainty", "R", _FLOAT),
            (4, "velocity", "R", ValueType.OPAQUE),
            (5, "timestamp", "R", _TIME),
        ),
    ),
    7: (
        "connectivityStatistics",
        _resources(
            (0, "smsTxCounter", "R", _INTEGER),
            (1, "smsRxCounter", "R", _INTEGER),
            (2, "txData", "R", _INTEGER),
            (3, "rxData", "R", _INTEGER),
            (4, "maxMessageSize", "R", _INTEGER),
            (5, "averageMessageSize", "R", _INTEGER),
            (6, "start", "E", _NONE),
            (7, "stop", "E", _NONE),
            (8, "collectionPeriod", "RW", _INTEGER),
        ),
    ),
}
#: Objects 0 and 2 hold keys and access rights, which no server reads.
_HIDDEN: Final = frozenset({0, 2})
_ANY: Final = Resource("", "RWE", ValueType.STRING)
_BY_NUMBER: Final = re.compile(r"object(0|[1-9][0-9]{0,4})")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,4}")
_LARGEST: Final = 65_534  # of the numbers in a path: 65,535 is reserved

PACKAGE_URI: Final[ResourcePath] = (5, 0, 1)
UPDATE: Final[ResourcePath] = (5, 0, 2)
STATE: Final[ResourcePath] = (5, 0, 3)
RESULT: Final[ResourcePath] = (5, 0, 5)
FIRMWARE_VERSION: Final[ResourcePath] = (3, 0, 3)


class ObjectMap:
    """Properties by name and by resource, in both directions."""

    def __init__(self, models: Iterable[ObjectModel] = ()) -> None:
        """Describe objects by models. Of several models of an object the first one counts."""
        self._models: dict[int, ObjectModel] = {}
        self._numbers = {name: number for number, (name, _) in _MAPPED.items()}
        for model in models:
            if model.number in _MAPPED or model.number in _HIDDEN or model.number in self._models:
                continue
            # A name that another object has already would be ambiguous: this object appears by number.
            if model.name in self._numbers:
                continue
            self._models[model.number] = model
            self._numbers[model.name] = model.number

    def property_at(self, path: ResourcePath) -> Property | None:
        """The property that a resource is; None for a resource without one."""
        if len(path) != 3 or not all(0 <= number <= _LARGEST for number in path):
            return None
        number, instance, resource = path
        if number in _HIDDEN:
            return None
        if (mapped := _MAPPED.get(number)) is not None:
            found = mapped[1].get(resource)
            return None if found is None or instance else Property(path, f"{mapped[0]}.{found.name}", found)
        model = self._models.get(number)
        if model is None:
            return Property(path, f"object{number}.{instance}.{resource}", _ANY)
        described = model.resources.get(resource, _ANY)
        return Property(path, f"{model.name}.{instance}.{described.name or resource}", described)

    def property_named(self, name: str) -> Property | None:
        """The property with this name below `deviceProperties`. Objects but 3 to 7 are also found by their numbers."""
        parts = name.split(".")
        number = self._number_of(parts[0])
        if number is None:
            return None
        if number in _MAPPED:
            resources = _MAPPED[number][1]
            found = [key for key, one in resources.items() if len(parts) == 2 and one.name == parts[1]]
            return self.property_at((number, 0, found[0])) if found else None
        if len(parts) != 3 or _NUMBER.fullmatch(parts[1]) is None:
            return None
        return self._of_instance(number, int(parts[1]), parts[2])

    def _of_instance(self, number: int, instance: int, resource: str) -> Property | None:
        model = self._models.get(number)
        for key, described in model.resources.items() if model is not None else ():
            if described.name == resource:
                return self.property_at((number, instance, key))
        if _NUMBER.fullmatch(resource) is None:
            return None
        return self.property_at((number, instance, int(resource)))

    def group_named(self, name: str) -> ResourcePath | None:
        """The object instance whose resources are the properties below this name; None when it names no group."""
        parts = name.split(".")
        number = self._number_of(parts[0])
        if number is None or number in _HIDDEN:
            return None
        if number in _MAPPED:
            return (number, 0) if len(parts) == 1 else None
        if len(parts) != 2 or _NUMBER.fullmatch(parts[1]) is None or int(parts[1]) > _LARGEST:
            return None
        return (number, int(parts[1]))

    def _number_of(self, name: str) -> int | None:
        if (number := self._numbers.get(name)) is not None:
            return number
        match = _BY_NUMBER.fullmatch(name)
        if match is None or int(match[1]) > _LARGEST or int(match[1]) in _MAPPED:
            return None
        return int(match[1])

    def type_at(self, path: ResourcePath) -> ValueType | None:
        """The type of a resource's value; None if no table and no model describes it."""
        found = self.property_at(path)
        return None if found is None or found.resource is _ANY else found.resource.type

    def described(self, path: ResourcePath) -> Resource | None:
        """The description of a resource; None if no table and no model has it."""
        number, _, key = path
        if number in _MAPPED:
            return _MAPPED[number][1].get(key)
        model = self._models.get(number)
        return None if model is None else model.resources.get(key)

    def problem_of(self, field: Field) -> str | None:
        """Why a field of a Manifest cannot have the values of its `lwm2m`; None if it can, or is not described."""
        path = field.lwm2m or ()
        if (described := self.described(path)) is None:
            return None
        if "R" not in described.operations:
            return f"{address_text(path)} cannot be read"
        if field.settable and ("W" not in described.operations or described.is_multiple):
            return f"{address_text(path)} cannot be written, so the field is not settable"
        if described.is_multiple and not field.is_collection:
            return f"{address_text(path)} has several values, so isCollection must be true"
        classes = _CLASSES[described.type]
        if field.value_class not in classes:
            names = ", ".join(sorted(classes))
            return f"{address_text(path)} is {described.type.value}, so valueClass must be one of {names}"
        return None

    def problem_of_operation(self, operation: ResourceOperation) -> str | None:
        """Why an Action cannot be this operation; None if it can, or if its resource is not described."""
        path = operation.path
        if (described := self.described(path)) is None:
            return None
        if operation.is_execute:
            return None if "E" in described.operations else f"{address_text(path)} cannot be executed"
        if "W" not in described.operations or described.is_multiple:
            return f"{address_text(path)} cannot be written"
        if operation.parameter is not None or operation.value is None:
            return None
        try:
            value_of(operation.value, described.type)
        except ValueError:
            return f"{address_text(path)} is {described.type.value}, which this value is not"
        return None

    def present_name(self, name: str) -> str:
        """The name of a property that was stored before its object was described."""
        if not name.startswith("object"):
            return name
        found = self.property_named(name)
        return name if found is None else found.name

    def is_shipped(self, number: int) -> bool:
        """Whether the object is described by the registry alone."""
        model = self._models.get(number)
        return model is not None and model.is_shipped

    def groups(self) -> Iterable[tuple[int, str, Mapping[int, Resource]]]:
        """The described objects: number, name, and resources by number."""
        for number, (name, resources) in _MAPPED.items():
            yield number, name, resources
        for number, model in self._models.items():
            yield number, model.name, model.resources


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted path as nested objects."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *groups, name = path.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return tree


def values_by_path(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested objects by dotted path. An empty object is no value."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= values_by_path(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
