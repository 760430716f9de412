"""Meanings of the names in the paths of several nouns (reference 1.1 and 2), each with an example."""

from typing import Annotated, Any, Final

from protocols.http.openapi import samples
from protocols.http.schema import Id, TypeId, about, text

PATH_NAMES: Final[dict[str, tuple[Any, str]]] = {
    "uid": (Annotated[str, text("A user id, or self with a user token", pattern="^(self|[0-9a-f]{32})$")], "self"),
    "aid": (Annotated[Id, about("An application")], samples.AID),
    "did": (Annotated[Id, about("A device")], samples.DID),
    "dtid": (Annotated[TypeId, about("A device type: its id or its unique name")], samples.TYPE_NAME),
    "oid": (Annotated[Id, about("An organization")], samples.OID),
    "version": (
        Annotated[str, text("Of the Manifest: a number, or latest", pattern="^(latest|[1-9][0-9]{0,8})$")],
        "latest",
    ),
}
