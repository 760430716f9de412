"""/accounts on the REST root: three calls of the accounts server (reference 2.2, 4.3 and 4.5)."""

from typing import Annotated, Final

from msgspec import UNSET, UnsetType
from quart import Response

from broker.accounts.grants import IMPLICIT_ONLY
from broker.accounts.room import AccountsRoom
from broker.accounts.token_server import TokenResponse
from broker.errors import Unauthorized
from protocols.http.accounts.information import tell_about, validate_token
from protocols.http.accounts.token import note_refused_request, token_request
from protocols.http.answers import json_answer
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
from protocols.http.openapi import samples
from protocols.http.schema import Data, Id, Shape, about, integer, one_of


class _Refresh(Shape, rename=None):
    grant_type: Annotated[str, one_of(("refresh_token",))]
    refresh_token: Id
    old_access_token: Annotated[Id, about("Unless it is the bearer")] | None = None


class _Refreshed(Shape, rename=None):
    access_token: Id
    token_type: Annotated[str, one_of(("bearer",))]
    expires_in: Annotated[int, integer("Seconds", lowest=0)]
    refresh_token: Id
    scope: str


class _Token(Shape):
    token: Annotated[str, about("The token in question")]


class _Message(Shape):
    message: str


class _OfToken(Shape):
    token: Annotated[Id, about("The token in question; by default the bearer", example=samples.TOKEN)] | None = None


class _TokenInformation(Shape, rename=None, kw_only=True):
    device_id: Annotated[Id, about("Of a device token")] | None
    user_id: Annotated[Id, about("Of a user token")] | None
    client_id: Annotated[Id, about("The application")] | UnsetType = UNSET
    expires_in: Annotated[int, integer("Seconds; -1 for ever", lowest=-1)]


_INFORMATION: Final = {"device_id": None, "user_id": samples.UID, "client_id": samples.AID, "expires_in": 224_617}


class AccountsCalls(RestCalls):
    chapter = Chapter(
        "Tokens",
        "Tokens come from the accounts server, under `/accounts`: see the overview. These three of its calls are here "
        "as well. They count for the address only, like other calls without a token.",
    )

    def __init__(self, accounts: AccountsRoom) -> None:
        self._grants = accounts.grants
        self._tokens = accounts.tokens

    @RestCall(
        "POST",
        "/accounts/token",
        tokens=NO_TOKEN,  # the old token may be expired: it is checked by the grant
        on=NOTHING,
        summary="Refresh an implicit token",
        about="For tokens of the implicit flow only. The old access token may be expired; it comes as the bearer, "
        "or as `old_access_token`.",
        counted=Counted.ADDRESS,
        accepts=Accepts(
            {FORM: _Refresh},
            {"grant_type": "refresh_token", "refresh_token": samples.NONCE, "old_access_token": samples.TOKEN},
        ),
        answers=Answers(
            type=_Refreshed,
            example={
                "access_token": samples.TOKEN,
                "token_type": "bearer",
                "expires_in": 1_209_600,
                "refresh_token": samples.NONCE,
                "scope": "read,write",
            },
        ),
        refusals={400: IMPLICIT_ONLY},
    )
    async def refresh(self) -> Response:
        answer = await self._grants.refresh_implicit(await token_request())
        note_refused_request(answer)
        return _with_text_code(answer)

    @RestCall(
        "POST",
        "/accounts/checkToken",
        tokens=NO_TOKEN,
        on=NOTHING,
        summary="Whether a token is valid",
        counted=Counted.ADDRESS,
        accepts=Accepts({"application/json": _Token, FORM: _Token}, {"token": samples.TOKEN}),
        answers=Answers(type=Data[_Message], example={"data": {"message": "Token is valid"}}),
        refusals={401: Unauthorized.template},
    )
    async def check_token(self) -> Response:
        return await validate_token(self._tokens)

    @RestCall(
        "GET",
        "/accounts/tokenInfo",
        tokens=ANY_TOKEN,
        on=NOTHING,
        query=_OfToken,
        summary="What a token is",
        counted=Counted.ADDRESS,
        answers=Answers(type=Data[_TokenInformation], example={"data": _INFORMATION}),
    )
    async def token_info(self) -> Response:
        return await tell_about(self._tokens)


def _with_text_code(answer: TokenResponse) -> Response:
    body = answer.body
    if "error" in body:
        body = {"error": {"code": body["error"], "message": body.get("error_description", body["error"])}}
    response = json_answer(body, answer.status)
    response.headers.update(answer.headers)
    return response
