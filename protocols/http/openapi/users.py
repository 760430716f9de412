"""Users (reference 2.3 and 5)."""

from typing import Final

from config.limits import APPLICATION_PROPERTIES_MAX_CHARACTERS
from protocols.http.openapi.operation import USER, USER_OR_APPLICATION, Answer, Noun, Operation, Parameter, json_body
from protocols.http.openapi.samples import AID, TS, UID
from protocols.http.openapi.shapes import data, id_, milliseconds, record, ref, text

_PATH: Final = "/users/{uid}/properties"
_AID: Final = Parameter("aid", text("The application of the token, and no other", minLength=1, longest=64))
_TEXT: Final = text(
    "Whatever the application wants to keep; empty after removal", longest=APPLICATION_PROPERTIES_MAX_CHARACTERS
)
_KEPT: Final = Answer(data(ref("UserProperties")), {"data": {"uid": UID, "aid": AID, "properties": '{"theme":"dark"}'}})
_BODY: Final = json_body(
    record(
        {"properties": _TEXT},
        {"uid": id_("As in the path"), "aid": id_("The application of the token")},
    ),
    {"properties": '{"theme":"dark"}'},
)

USERS: Final = Noun(
    "Users",
    "The person behind a user token, and what an application keeps about its users.",
    (
        Operation(
            method="GET",
            path="/users/self",
            summary="The caller's own profile",
            tokens=USER,
            answer=Answer(
                data(ref("User")),
                {
                    "data": {
                        "id": UID,
                        "name": "ada",
                        "email": "ada@example.net",
                        "fullName": "Ada Example",
                        "accountType": "LOCAL",
                        "createdOn": TS,
                        "modifiedOn": TS,
                    }
                },
            ),
        ),
        Operation(
            method="GET",
            path=_PATH,
            summary="What the application keeps about a user",
            about="404 before anything was kept, and after it was removed.",
            tokens=USER_OR_APPLICATION,
            query=(_AID,),
            answer=_KEPT,
        ),
        Operation(
            method="POST",
            path=_PATH,
            summary="Keep something about a user",
            about="Creates or replaces, like PUT.",
            tokens=USER_OR_APPLICATION,
            query=(_AID,),
            body=_BODY,
            answer=_KEPT,
        ),
        Operation(
            method="PUT",
            path=_PATH,
            summary="Replace what is kept about a user",
            about="Creates or replaces, like POST.",
            tokens=USER_OR_APPLICATION,
            query=(_AID,),
            body=_BODY,
            answer=_KEPT,
        ),
        Operation(
            method="DELETE",
            path=_PATH,
            summary="Forget what is kept about a user",
            tokens=USER_OR_APPLICATION,
            query=(_AID,),
            answer=Answer(data(ref("UserProperties")), {"data": {"uid": UID, "aid": AID, "properties": ""}}),
        ),
    ),
    {
        "User": record(
            {
                "id": id_(),
                "name": text("Unique user name"),
                "email": text(format="email"),
                "fullName": text("Display name"),
                "accountType": text("LOCAL, or the name of the identity provider"),
                "createdOn": milliseconds(),
                "modifiedOn": milliseconds(),
            }
        ),
        "UserProperties": record({"uid": id_(), "aid": id_(), "properties": _TEXT}),
    },
)
