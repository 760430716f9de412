"""Device types and their Manifests (reference 2.5, 8.1 and 8.6)."""

from typing import Final

from config.limits import DESCRIPTION_MAX_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.openapi.operation import (
    ANY_TOKEN,
    PAGING,
    USER_OR_APPLICATION,
    Answer,
    Noun,
    Operation,
    Parameter,
    flag,
)
from protocols.http.openapi.shapes import (
    array,
    boolean,
    by_name,
    data,
    free,
    id_,
    ids,
    integer,
    milliseconds,
    nullable,
    one_of,
    page,
    record,
    ref,
    text,
    type_id,
)

_VALUE_CLASSES: Final = ("Boolean", "Double", "Float", "Integer", "Long", "String")
_TYPE: Final = {
    "id": samples.DTID,
    "oid": samples.OID,
    "uid": samples.UID,
    "name": "Smart Light",
    "published": True,
    "approved": True,
    "protected": False,
    "latestVersion": 2,
    "uniqueName": samples.TYPE_NAME,
    "vid": "0",
    "rsp": False,
    "issuerDn": None,
    "description": "",
    "tags": [{"name": "home", "isCategory": True}],
    "inStore": True,
    "hasCloudConnector": False,
    "lastUpdated": samples.TS,
    "ownedByCurrentUser": True,
}
_ACTIONS: Final = {
    "setVolume": {
        "description": "",
        "isStandard": False,
        "parameters": {"volume": {"type": "Integer", "isCollection": False, "description": ""}},
    }
}
_LIST: Final = Answer(page(record({"deviceTypes": array(ref("DeviceType"))})), samples.page(deviceTypes=[_TYPE]))

DEVICE_TYPES: Final = Noun(
    "Device types",
    "What devices there are, and what each declares in its Manifest: the fields of its messages and the Actions that "
    "it takes. Wherever a call takes the id of a type, it takes its unique name, too.",
    (
        Operation(
            method="GET",
            path="/devicetypes",
            summary="Find device types",
            about="All published types and the caller's own. Exact matches come first.",
            tokens=USER_OR_APPLICATION,
            query=(
                Parameter("name", text("A part of the name or unique name, any case")),
                Parameter("nameSearch", text("The same as `name`")),
                flag("createDevice", "Only types of which the caller may create devices"),
                Parameter("tags", ids("Tags that the types must all have")),
                *PAGING,
            ),
            answer=_LIST,
        ),
        Operation(
            method="GET",
            path="/devicetypes/cloudconnectors",
            summary="Device types with a cloud connector",
            tokens=USER_OR_APPLICATION,
            query=PAGING,
            answer=_LIST,
        ),
        Operation(
            method="GET",
            path="/devicetypes/{dtid}",
            summary="One device type",
            tokens=ANY_TOKEN,
            answer=Answer(data(ref("DeviceType")), {"data": _TYPE}),
        ),
        Operation(
            method="GET",
            path="/users/{uid}/devicetypes",
            summary="A user's device types",
            tokens=USER_OR_APPLICATION,
            query=(
                *PAGING,
                flag("includeShared", "Adds the types of devices that are shared with the user"),
                flag("includeOrganization", "Adds the types of the user's organization"),
            ),
            answer=_LIST,
        ),
        Operation(
            method="GET",
            path="/applications/{aid}/devicetypes",
            summary="Device types that an application asks permissions for",
            tokens=USER_OR_APPLICATION,
            query=PAGING,
            answer=_LIST,
        ),
        Operation(
            method="GET",
            path="/devicetypes/{dtid}/availablemanifestversions",
            summary="Versions of a type's Manifest",
            tokens=ANY_TOKEN,
            answer=Answer(
                data(record({"versions": array(integer(lowest=1), "Ascending")})), {"data": {"versions": [1, 2]}}
            ),
        ),
        Operation(
            method="GET",
            path="/devicetypes/{dtid}/manifests/{version}/properties",
            summary="What a Manifest declares",
            about="404 for a version that does not exist, and for `latest` while no Manifest is approved.",
            tokens=ANY_TOKEN,
            answer=Answer(
                data(ref("ManifestProperties")),
                {
                    "data": {
                        "properties": {
                            "fields": {
                                "volume": {"type": "Integer", "isCollection": False, "description": "", "unit": "%"}
                            },
                            "actions": _ACTIONS,
                        },
                        "actions": _ACTIONS,
                        "version": 2,
                    }
                },
            ),
        ),
    ),
    {
        "DeviceType": record(
            {
                "id": type_id(),
                "oid": id_("The organization that owns it"),
                "name": text(),
                "published": boolean(),
                "approved": boolean("Whether its latest Manifest was approved"),
                "protected": boolean("Only for users of the owner's applications"),
                "latestVersion": integer("Of its Manifest; 0 before there is one", lowest=0),
                "uniqueName": text(),
                "vid": text("Vendor; 0 without one"),
                "rsp": boolean("Whether its devices register with certificates"),
                "issuerDn": nullable(text("Issuer of those certificates")),
                "description": nullable(text(longest=DESCRIPTION_MAX_CHARACTERS)),
                "inStore": boolean(),
                "hasCloudConnector": boolean(),
                "lastUpdated": milliseconds("Its last Manifest"),
            },
            {
                "uid": id_("The user who owns it"),
                "tags": array(ref("Tag")),
                "billingSubscriptionId": text("With a plan"),
                "ownedByCurrentUser": boolean("For user tokens: whether the user has a device of this type"),
            },
        ),
        "ManifestProperties": record(
            {
                "properties": record(
                    {"fields": by_name(ref("ManifestField")), "actions": by_name(ref("ManifestAction"))}
                ),
                "actions": by_name(ref("ManifestAction"), "As in properties"),
                "version": integer(lowest=1),
            }
        ),
        "ManifestField": {
            "description": "A field, or a group of fields by name",
            "anyOf": [
                record(
                    {"type": one_of(_VALUE_CLASSES), "isCollection": boolean(), "description": text()},
                    {"unit": text("As text, like °C"), "metadata": free("By type of metadata")},
                ),
                by_name(ref("ManifestField")),
            ],
        },
        "ManifestAction": record(
            {
                "description": text(),
                "isStandard": boolean(),
                "parameters": by_name(ref("ManifestField")),
            }
        ),
    },
)
