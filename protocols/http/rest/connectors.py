"""/devices/{did}/providerauth and /cloudconnectors: devices that live in a third party's cloud (reference 2.12 and 23).

Under /cloudconnectors, browsers come back from third parties, and third parties call. These calls have no token: the
one-time state, or a check of the plug-in, says who calls.
"""

from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.connectors.catalog import NO_CONNECTOR
from broker.connectors.plugin import IncomingRequest
from broker.connectors.service import Connectors
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import BadRequest
from config.limits import CONNECTOR_NOTIFICATION_BYTES
from protocols.http.answers import NO_SNIFF, Answer
from protocols.http.calls import (
    ANY_TOKEN,
    FORM,
    NO_TOKEN,
    NOTHING,
    Accepts,
    Answers,
    Chapter,
    Counted,
    RestCall,
    RestCalls,
)
from protocols.http.reading import read_body
from protocols.http.request_context import current_request
from protocols.http.rest.device_records import DeviceObject, device_record
from protocols.http.schema import Data, Id, Shape, about

_PROVIDER_AUTH: Final = "/devices/{did}/providerauth"
_NOTIFICATIONS: Final = "/cloudconnectors/{dtid}/thirdpartynotifications"
_BODY_BYTES: Final = 16 * 1024
_PARAMETERS: Final = 100
_NO_CONNECTOR: Final = {409: NO_CONNECTOR}
_LOCATION: Final = {"Location": Annotated[str, about("Where the browser goes on", format="uri")]}
_NOTIFIED: Final = Answers(
    type=Annotated[str, about("Whatever the connector answers")],
    content_type="text/plain",
    about="Unless the connector says otherwise",
    example="",
)


class _Wish(Shape):
    token: Annotated[Id, about("The token, unless it is in the header")] | None = None
    mobile: bool | None = None


class _ForScreen(Shape):
    mobile: Annotated[bool, about("Whether the page is for a small screen", default=False)] | None = None


class _FromThirdParty(Shape):
    # Read by the connector: the names are those of its third party.
    state: Annotated[str, about("As it was given to the third party")] | None = None
    code: Annotated[str, about("From the third party")] | None = None


class ConnectorCalls(RestCalls):
    chapter = Chapter(
        "Cloud connectors",
        "Devices that live in somebody else's cloud. Their users link them with their account over there; while "
        "`needProviderAuth` is true, nothing can be fetched.",
    )

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, connectors: Connectors) -> None:
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._connectors = connectors

    async def _holder(self, caller: Caller, did: str) -> Device:
        """The device that holds the link of the device in the path, for callers who may manage the holder."""
        device = await self._connectors.holder(await self._devices.find(did))
        await self._permissions.require(caller, device, Permission.MANAGE)
        return device

    @RestCall(
        "POST",
        _PROVIDER_AUTH,
        tokens=ANY_TOKEN,
        has_token_in_body=True,
        on=_holder,
        summary="Begin to link a device",
        about="The browser goes to the third party, from there back to this service, and at last to `Referer`, "
        "whose scheme and host must be those of a redirect URI of the application. For a device token that belongs to "
        "no application, any application will do. A link that stands is replaced once the new one is whole.",
        headers={
            "Referer": Annotated[
                str, about("Where the browser ends", format="uri", example="https://app.example.org/devices")
            ]
        },
        body_limit=_BODY_BYTES,
        accepts=Accepts({"application/json": _Wish, FORM: _Wish}, {"mobile": False}, is_required=False),
        answers=Answers(status=302, headers=_LOCATION, about="To the third party"),
        refusals=_NO_CONNECTOR,
    )
    async def authorize(self, caller: Caller, device: Device, query: _ForScreen, body: _Wish) -> Answer:
        mobile = bool(body.mobile) if query.mobile is None else query.mobile
        referer = current_request().header(b"referer")
        return _redirect(await self._connectors.authorize(caller, device, referer=referer, mobile=mobile))

    @RestCall(
        "DELETE",
        _PROVIDER_AUTH,
        tokens=ANY_TOKEN,
        on=_holder,
        summary="Unlink a device",
        about="Removes the credentials of the third party. Nothing of the third party is stored after the answer.",
        refusals=_NO_CONNECTOR,
    )
    async def revoke(self, caller: Caller, device: Device, did: str) -> Data[DeviceObject]:
        await self._connectors.revoke(device, application_id=caller.application_id)
        return Data(device_record(await self._devices.find(did)))

    @RestCall(
        "GET",
        "/cloudconnectors/{dtid}/auth",
        tokens=NO_TOKEN,
        on=NOTHING,
        query=_FromThirdParty,
        summary="Where third parties send browsers back to",
        about="The parameters are those of OAuth; the one-time `state` says whose device it is.",
        counted=Counted.ADDRESS,
        answers=Answers(status=302, headers=_LOCATION, about="To where the application began"),
        refusals={
            400: "What the third party said cannot be understood.",
            403: "It is not the device's own way back.",
            409: "The device can no longer be linked.",
            410: "The state is over or was used.",
        },
    )
    async def authorized(self, dtid: str) -> Answer:
        return _redirect(await self._connectors.authorized(dtid, _parameters()))

    @RestCall(
        "GET",
        _NOTIFICATIONS,
        tokens=NO_TOKEN,
        on=NOTHING,
        summary="Where third parties prove an address",
        about="The connector of the type reads the request and says whether it may come in.",
        counted=Counted.ADDRESS,
        answers=_NOTIFIED,
        refusals=_NO_CONNECTOR,
    )
    async def proved(self, dtid: str) -> Answer:
        return await self._notified(dtid, await read_body(limit=CONNECTOR_NOTIFICATION_BYTES))

    @RestCall(
        "POST",
        _NOTIFICATIONS,
        tokens=NO_TOKEN,
        on=NOTHING,
        summary="Where third parties tell what is new",
        about="The connector of the type reads the request and names the devices concerned.",
        counted=Counted.ADDRESS,
        body_limit=CONNECTOR_NOTIFICATION_BYTES,
        accepts=Accepts(
            {"application/json": Annotated[Any, about("Of the third party")]}, {"event": "changed"}, is_required=False
        ),
        answers=_NOTIFIED,
        refusals=_NO_CONNECTOR,
    )
    async def notified(self, dtid: str, body: bytes) -> Answer:
        return await self._notified(dtid, body)

    async def _notified(self, dtid: str, body: bytes) -> Answer:
        request = current_request()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        heard = await self._connectors.notified(dtid, IncomingRequest(request.method, _parameters(), headers, body))
        return Answer(heard.body, heard.status, (NO_SNIFF,), "text/plain; charset=utf-8")


def _redirect(address: str) -> Answer:
    """A redirection that is not stored. The address is kept byte for byte."""
    headers = (("Location", address), ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"))
    return Answer(b"", 302, headers, "text/html; charset=utf-8")


def _parameters() -> dict[str, str]:
    """The query, whose parameters are the third party's. Raises BadRequest when they are too many."""
    text = current_request().query.decode("latin-1")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_PARAMETERS))
    except ValueError as error:
        raise BadRequest from error
