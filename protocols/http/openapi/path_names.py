"""What the names in paths stand for (reference 1.1 and 2), each with an example."""

from typing import Annotated, Any, Final

from protocols.http.openapi import samples
from protocols.http.schema import Id, TypeId, about, text

PATH_NAMES: Final[dict[str, tuple[Any, str]]] = {
    "uid": (Annotated[str, text("A user id, or self with a user token", pattern="^(self|[0-9a-f]{32})$")], "self"),
    "aid": (Annotated[Id, about("An application")], samples.AID),
    "did": (Annotated[Id, about("A device")], samples.DID),
    "dtid": (Annotated[TypeId, about("A device type: its id or its unique name")], samples.TYPE_NAME),
    "version": (
        Annotated[str, text("Of the Manifest: a number, or latest", pattern="^(latest|[1-9][0-9]{0,8})$")],
        "latest",
    ),
    "shareId": (Annotated[Id, about("A share")], samples.SHARE_ID),
    "rid": (Annotated[Id, about("A registration")], samples.RID),
    "uploadId": (Annotated[Id, about("An upload")], samples.UPLOAD),
    "vdid": (Annotated[str, text("A vendor id", pattern="^[A-Za-z0-9_-]{1,64}$")], samples.VDID),
    "certificateId": (Annotated[Id, about("A certificate")], samples.CERTIFICATE),
    "exportId": (Annotated[Id, about("An export")], samples.EXPORT),
}
