"""/devicetypes/{dtid}/manifests: the versions of a type and what each declares (reference 8.6)."""

import re
from typing import Annotated, Any, Final

from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType, ManifestVersion
from broker.device_types.room import DeviceTypesRoom
from broker.errors import NotFound
from protocols.http.calls import ANY_TOKEN, RestCall, RestCalls
from protocols.http.rest.device_types import DEVICE_TYPES
from protocols.http.schema import Data, Shape, about, component, integer

_LATEST: Final = "latest"
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")

_ACTIONS: Final = {
    "setVolume": {
        "description": "",
        "isStandard": False,
        "parameters": {"volume": {"type": "Integer", "isCollection": False, "description": ""}},
    }
}
_FIELDS: Final = {"volume": {"type": "Integer", "isCollection": False, "description": "", "unit": "%"}}
_FIELD: Final = {"$ref": component("ManifestField")}

_Fields = Annotated[dict[str, Any], about("", additionalProperties=_FIELD)]
_Actions = Annotated[dict[str, Any], about("", additionalProperties={"$ref": component("ManifestAction")})]


class _Versions(Shape):
    versions: Annotated[list[Annotated[int, integer(lowest=1)]], about("Ascending", example=[1, 2])]


class _Declared(Shape):
    fields: _Fields
    actions: _Actions


class ManifestProperties(Shape):
    shape = "ManifestProperties"
    example = {"properties": {"fields": _FIELDS, "actions": _ACTIONS}, "actions": _ACTIONS, "version": 2}

    properties: _Declared
    actions: Annotated[_Actions, about("As in properties")]
    version: Annotated[int, integer(lowest=1)]


class ManifestCalls(RestCalls):
    chapter = DEVICE_TYPES
    components = {
        "ManifestField": {
            "description": "A field, or a group of fields by name",
            "anyOf": [{"$ref": component("ManifestValue")}, {"$ref": component("ManifestGroup")}],
        },
        "ManifestValue": {
            "type": "object",
            "required": ["type", "isCollection", "description"],
            "properties": {
                "type": {"type": "string", "enum": ["Boolean", "Double", "Float", "Integer", "Long", "String"]},
                "isCollection": {"type": "boolean"},
                "description": {"type": "string"},
                "unit": {"type": "string", "description": "As text, like °C"},
                "lwm2m": {"type": "string", "description": "The resource of the field, like /3303/0/5700"},
                "settable": {"type": "boolean", "description": "True: values may be wanted of it"},
                "tolerance": {"type": "number", "description": "How near to a wanted value is near enough"},
                "metadata": {
                    "type": "object",
                    "description": "By type of metadata",
                    "additionalProperties": True,
                },
            },
        },
        "ManifestGroup": {"type": "object", "additionalProperties": _FIELD},
        "ManifestAction": {
            "type": "object",
            "required": ["description", "isStandard", "parameters"],
            "properties": {
                "description": {"type": "string"},
                "isStandard": {"type": "boolean"},
                "parameters": {"type": "object", "additionalProperties": _FIELD},
                "lwm2m": {
                    "type": "object",
                    "description": "The operation on a resource: `execute`, or `write` with `value` or `parameter`",
                    "additionalProperties": True,
                },
            },
        },
    }

    def __init__(self, device_types: DeviceTypesRoom) -> None:
        self._types = device_types.catalog
        self._lists = device_types.lists

    async def _type(self, caller: Caller, dtid: str) -> DeviceType:
        """The type, for callers who may see it. Raises PermissionDenied."""
        device_type = await self._types.find(dtid)
        await self._lists.see(caller, device_type.record)
        return device_type

    @RestCall(
        "GET",
        "/devicetypes/{dtid}/availablemanifestversions",
        tokens=ANY_TOKEN,
        on=_type,
        summary="Versions of a type's Manifest",
    )
    async def versions(self, device_type: DeviceType) -> Data[_Versions]:
        return Data(_Versions(device_type.versions))

    async def _manifest(self, caller: Caller, dtid: str, version: str) -> ManifestVersion:
        return _chosen(await self._type(caller, dtid), version)

    @RestCall(
        "GET",
        "/devicetypes/{dtid}/manifests/{version}/properties",
        tokens=ANY_TOKEN,
        on=_manifest,
        summary="What a Manifest declares",
        about="404 for a version that does not exist, and for `latest` while no Manifest is approved.",
    )
    async def properties(self, found: ManifestVersion) -> Data[ManifestProperties]:
        declared: dict[str, Any] = found.manifest.properties()
        return Data(ManifestProperties(_Declared(**declared), declared["actions"], found.version))


def _chosen(device_type: DeviceType, version: str) -> ManifestVersion:
    """A version of a type. Raises NotFound, also for the latest version of a type without versions."""
    found = None
    if version == _LATEST:
        found = device_type.latest if device_type.versions else None
    elif _VERSION.fullmatch(version):
        found = device_type.version(int(version))
    if found is None:
        raise NotFound
    return found
