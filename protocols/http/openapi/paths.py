"""Names in paths (reference 1.1 and 2)."""

import re
from typing import Final

from protocols.http.openapi import samples
from protocols.http.openapi.shapes import Schema, id_, text, type_id

#: Each with an example.
PATH_PARAMETERS: Final[dict[str, tuple[Schema, str]]] = {
    "uid": (text("A user id, or self with a user token", pattern="^(self|[0-9a-f]{32})$"), "self"),
    "aid": (id_("An application"), samples.AID),
    "did": (id_("A device"), samples.DID),
    "dtid": (type_id("A device type: its id or its unique name"), samples.TYPE_NAME),
    "version": (text("Of the Manifest: a number, or latest", pattern="^(latest|[1-9][0-9]{0,8})$"), "latest"),
    "shareId": (id_("A share"), samples.SHARE),
    "rid": (id_("A registration"), samples.RID),
    "uploadId": (id_("An upload"), samples.UPLOAD),
    "vdid": (text("A vendor id", pattern="^[A-Za-z0-9_-]{1,64}$"), samples.VDID),
    "certificateId": (id_("A certificate"), samples.CERTIFICATE),
    "exportId": (id_("An export"), samples.EXPORT),
}

_NAME: Final = re.compile(r"\{(\w+)\}")


def names_in(path: str) -> list[str]:
    return _NAME.findall(path)


def filled(path: str) -> str:
    """The path with examples in the place of its names."""
    return _NAME.sub(lambda name: PATH_PARAMETERS[name[1]][1], path)
