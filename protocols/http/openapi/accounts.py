"""Calls of the accounts server on the REST root (reference 2.2, 4.3 and 4.5)."""

from typing import Final

from protocols.http.openapi import samples
from protocols.http.openapi.operation import ANY_TOKEN, Answer, Body, Noun, Operation, Parameter
from protocols.http.openapi.shapes import data, id_, integer, nullable, one_of, record, text

_TOKEN: Final = record({"token": text("The token in question")})

ACCOUNTS: Final = Noun(
    "Tokens",
    "Tokens come from the accounts server, under `/accounts`: see the overview. These three of its calls are here as "
    "well. None of them is counted by the rate limits.",
    (
        Operation(
            method="POST",
            path="/accounts/token",
            summary="Refresh an implicit token",
            about="For tokens of the implicit flow only. The old access token may be expired; it comes as the bearer, "
            "or as `old_access_token`.",
            counted=None,
            body=Body(
                {
                    "application/x-www-form-urlencoded": record(
                        {"grant_type": one_of(("refresh_token",)), "refresh_token": id_()},
                        {"old_access_token": id_("Unless it is the bearer")},
                    )
                },
                {"grant_type": "refresh_token", "refresh_token": samples.NONCE, "old_access_token": samples.TOKEN},
            ),
            answer=Answer(
                record(
                    {
                        "access_token": id_(),
                        "token_type": one_of(("bearer",)),
                        "expires_in": integer("Seconds", lowest=0),
                        "refresh_token": id_(),
                        "scope": text(),
                    }
                ),
                {
                    "access_token": samples.TOKEN,
                    "token_type": "bearer",
                    "expires_in": 1_209_600,
                    "refresh_token": samples.NONCE,
                    "scope": "read,write",
                },
            ),
            refusals={400: "This API works only with implicit apps."},
        ),
        Operation(
            method="POST",
            path="/accounts/checkToken",
            summary="Whether a token is valid",
            counted=None,
            body=Body(
                {"application/json": _TOKEN, "application/x-www-form-urlencoded": _TOKEN}, {"token": samples.TOKEN}
            ),
            answer=Answer(data(record({"message": text()})), {"data": {"message": "Token is valid"}}),
            refusals={401: "Please provide a valid authorization header"},
        ),
        Operation(
            method="GET",
            path="/accounts/tokenInfo",
            summary="What a token is",
            tokens=ANY_TOKEN,
            counted=None,
            query=(Parameter("token", id_("The token in question; by default the bearer"), example=samples.TOKEN),),
            answer=Answer(
                data(
                    record(
                        {
                            "device_id": nullable(id_("Of a device token")),
                            "user_id": nullable(id_("Of a user token")),
                            "expires_in": integer("Seconds; -1 for ever", lowest=-1),
                        },
                        {"client_id": id_("The application")},
                    )
                ),
                {"data": {"device_id": None, "user_id": samples.UID, "client_id": samples.AID, "expires_in": 224_617}},
            ),
        ),
    ),
)
