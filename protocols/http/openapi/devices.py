"""Devices and their tokens (reference 2.4, 6.1 and 6.2)."""

from typing import Final

from config.limits import FORBIDDEN_IN_NAMES, VENDOR_ID_MAX_CHARACTERS
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
    json_body,
)
from protocols.http.openapi.shapes import (
    array,
    boolean,
    data,
    free,
    id_,
    integer,
    milliseconds,
    name,
    nullable,
    one_of,
    page,
    record,
    ref,
    text,
    type_id,
)

_DEVICE: Final = Answer(data(ref("Device")), {"data": samples.DEVICE})
_TOKEN: Final = Answer(
    data(ref("DeviceToken")),
    {"data": {"accessToken": samples.TOKEN, "uid": samples.UID, "did": samples.DID, "cid": samples.AID}},
)
_POLICY: Final = one_of(
    ("LATEST", "DEVICE"), "LATEST follows the newest Manifest, DEVICE stays on manifestVersion; any case"
)
_VERSION: Final = integer("Version of the Manifest that parses the device's messages", lowest=1, highest=999_999_999)
_NAME: Final = name(f"Without the characters {' '.join(sorted(FORBIDDEN_IN_NAMES))}")
_PROPERTIES: Final = flag("includeProperties", "Adds `properties`")
#: What records and list entries have in common.
_INVENTORY: Final = {
    "dtid": type_id(),
    "name": text(longest=64),
    "manifestVersion": integer("Version of the Manifest in use; 0 while the type has none", lowest=0),
    "manifestVersionPolicy": one_of(("LATEST", "DEVICE")),
    "needProviderAuth": boolean("True exactly while `cloudAuthorization` is UNAUTHORIZED"),
    "cloudAuthorization": one_of(("NO_AUTHORIZATION", "AUTHORIZED", "UNAUTHORIZED")),
    "createdOn": milliseconds(),
    "connected": boolean("Whether the device is enabled; it says nothing about being online"),
}
_SHARED: Final = {
    "sharedWithOthers": boolean("Whether a share of it was accepted"),
    "sharedWithMe": id_("The caller's share in it, when it is somebody else's"),
    "properties": free("Only when asked for"),
}
_ENTRY: Final = {
    member: value
    for member, value in samples.DEVICE.items()
    if member not in {"uid", "eid", "certificateSignature", "certificateInfo"}
}

DEVICES: Final = Noun(
    "Devices",
    "The inventory: what a user owns, and the one access token that each device may have.",
    (
        Operation(
            method="GET",
            path="/users/{uid}/devices",
            summary="A user's devices",
            about="In the order of their creation. Entries tell who shares them only when asked.",
            tokens=USER_OR_APPLICATION,
            query=(
                *PAGING,
                _PROPERTIES,
                Parameter(
                    "owner",
                    one_of(
                        ("ALL", "ME", "SHARED_WITH_ME"), "Whose; of shared ones only accepted shares", default="ALL"
                    ),
                ),
                flag("includeShareInfo", "Adds `sharedWithOthers` to own devices"),
                Parameter("dtid", type_id("Only devices of this type")),
                Parameter("dt_name", text("Only devices of the type of exactly this name or unique name", longest=128)),
            ),
            answer=Answer(page(record({"devices": array(ref("DeviceEntry"))})), samples.page(devices=[_ENTRY])),
        ),
        Operation(
            method="POST",
            path="/devices",
            summary="Add a device",
            about="Without a name it is called like its type. `uid` may be left out with a user token. `vdid` and "
            "`svdid` are for types whose approved list is enabled: an unused id of the list, and the Base64 of its "
            "signature.",
            tokens=USER_OR_APPLICATION,
            body=json_body(
                record(
                    {"dtid": type_id("Id or unique name of the device type")},
                    {
                        "uid": id_("The owner; an application must name one"),
                        "name": _NAME,
                        "manifestVersion": _VERSION,
                        "manifestVersionPolicy": {**_POLICY, "default": "LATEST"},
                        "vdid": text("Vendor's id, from the approved list", longest=VENDOR_ID_MAX_CHARACTERS),
                        "svdid": text("Base64 of the signature over vdid"),
                    },
                ),
                {"uid": samples.UID, "dtid": samples.TYPE_NAME, "name": "Kitchen light"},
            ),
            answer=_DEVICE,
            refusals={
                404: "The type or the user does not exist.",
                409: "Vendor device id already registered for this device type",
            },
        ),
        Operation(
            method="GET",
            path="/devices/{did}",
            summary="One device",
            tokens=ANY_TOKEN,
            query=(_PROPERTIES, flag("properties", "The same as `includeProperties`")),
            answer=_DEVICE,
        ),
        Operation(
            method="PUT",
            path="/devices/{did}",
            summary="Change a device",
            about="Only the members sent are changed. `connected` false disables it: its connections are closed, and "
            "it neither sends nor receives until it is enabled again.",
            tokens=USER_OR_APPLICATION,
            body=json_body(
                record(
                    {},
                    {
                        "name": _NAME,
                        "manifestVersion": _VERSION,
                        "manifestVersionPolicy": _POLICY,
                        "connected": boolean("Whether it is enabled"),
                    },
                ),
                {"name": "Kitchen lamp"},
            ),
            answer=_DEVICE,
        ),
        Operation(
            method="DELETE",
            path="/devices/{did}",
            summary="Delete a device",
            about="Its messages leave all queries at once. The operator can bring it back for 30 days.",
            tokens=USER_OR_APPLICATION,
            answer=_DEVICE,
        ),
        Operation(
            method="GET",
            path="/devices/{did}/tokens",
            summary="The device's token",
            about="404 when it has none.",
            tokens=USER_OR_APPLICATION,
            answer=_TOKEN,
        ),
        Operation(
            method="PUT",
            path="/devices/{did}/tokens",
            summary="A new token for the device",
            about="The former one ends at once, and so do the connections that it holds. A body is ignored.",
            tokens=USER_OR_APPLICATION,
            answer=_TOKEN,
        ),
        Operation(
            method="DELETE",
            path="/devices/{did}/tokens",
            summary="Revoke the device's token",
            about="404 when it has none.",
            tokens=USER_OR_APPLICATION,
            answer=_TOKEN,
        ),
    ),
    {
        "Device": record(
            {
                "id": id_(),
                "uid": id_("The owner"),
                **_INVENTORY,
                "eid": nullable(text("Id at the third party, of a connector's device")),
                "certificateSignature": nullable(text("Of the registered certificate, in hexadecimal")),
                "certificateInfo": nullable(
                    record(
                        {member: text() for member in ("Issuer-DN", "Cert-UID", "Cert-CN", "Cert-SN", "Cert-FP")},
                        about="Of a securely registered device",
                    )
                ),
                "sharedWithOthers": _SHARED["sharedWithOthers"],
            },
            {member: _SHARED[member] for member in ("sharedWithMe", "properties")},
        ),
        "DeviceEntry": record({"id": id_(), **_INVENTORY}, _SHARED),
        "DeviceToken": record(
            {"accessToken": id_("The secret"), "uid": id_("The device's owner"), "did": id_()},
            {"cid": id_("The application that created it; absent when the operator did")},
        ),
    },
)
