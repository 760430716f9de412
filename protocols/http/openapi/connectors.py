"""Provider authentication and cloud connectors (reference 2.4, 2.12 and 23)."""

from typing import Final

from protocols.http.openapi import samples
from protocols.http.openapi.operation import ANY_TOKEN, Answer, Body, Noun, Operation, Parameter
from protocols.http.openapi.shapes import Schema, boolean, data, id_, record, ref, text

_PATH: Final = "/devices/{did}/providerauth"
_CALLED: Final = "/cloudconnectors/{dtid}/thirdpartynotifications"
_LOCATION: Final[dict[str, Schema]] = {"Location": text("Where the browser goes on", format="uri")}
_BODY: Final = record({}, {"token": id_("The token, unless it is in the header"), "mobile": boolean()})
_NOTIFIED: Final = Answer(
    text("Whatever the connector answers"), "", content_type="text/plain", about="Unless the connector says otherwise"
)
_NO_CONNECTOR: Final = {409: "Device type has no cloud connector."}

CONNECTORS: Final = Noun(
    "Cloud connectors",
    "Devices that live in somebody else's cloud. Their users link them with their account over there; while "
    "`needProviderAuth` is true, nothing can be fetched.",
    (
        Operation(
            method="POST",
            path=_PATH,
            summary="Begin to link a device",
            about="The browser goes to the third party, from there back to this service, and at last to `Referer`, "
            "whose scheme and host must be those of a redirect URI of the application.",
            tokens=ANY_TOKEN,
            query=(
                Parameter("mobile", boolean("Whether the page is for a small screen", default=False)),
                Parameter(
                    "Referer",
                    text("Where the browser ends", format="uri"),
                    required=True,
                    place="header",
                    example="https://app.example.org/devices",
                ),
            ),
            body=Body(
                {"application/json": _BODY, "application/x-www-form-urlencoded": _BODY},
                {"mobile": False},
                required=False,
            ),
            answer=Answer(None, status=302, headers=_LOCATION, about="To the third party"),
            refusals=_NO_CONNECTOR,
        ),
        Operation(
            method="DELETE",
            path=_PATH,
            summary="Unlink a device",
            about="Removes the credentials of the third party.",
            tokens=ANY_TOKEN,
            answer=Answer(data(ref("Device")), {"data": samples.DEVICE}),
            refusals=_NO_CONNECTOR,
        ),
        Operation(
            method="GET",
            path="/cloudconnectors/{dtid}/auth",
            summary="Where third parties send browsers back to",
            about="The parameters are those of OAuth; the one-time `state` says whose device it is.",
            counted=None,
            query=(
                Parameter("state", text("As it was given to the third party")),
                Parameter("code", text("From the third party")),
            ),
            answer=Answer(None, status=302, headers=_LOCATION, about="To where the application began"),
            refusals={
                400: "What the third party said cannot be understood.",
                403: "It is not the device's own way back.",
                409: "The device can no longer be linked.",
                410: "The state is over or was used.",
            },
        ),
        Operation(
            method="GET",
            path=_CALLED,
            summary="Where third parties prove an address",
            about="The connector of the type reads the request and says whether it may come in.",
            counted=None,
            answer=_NOTIFIED,
            refusals=_NO_CONNECTOR,
        ),
        Operation(
            method="POST",
            path=_CALLED,
            summary="Where third parties tell what is new",
            about="The connector of the type reads the request and names the devices concerned.",
            counted=None,
            body=Body(
                {"application/json": {"description": "Of the third party"}}, {"event": "changed"}, required=False
            ),
            answer=_NOTIFIED,
            refusals=_NO_CONNECTOR,
        ),
    ),
)
