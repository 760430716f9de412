"""The page of a read-only link to a board, and what its script asks for (reference 12.14).

The secret is behind the # of the address, which browsers send to no server. The script sends it in a header, which no
log has.
"""

from typing import Final

import msgspec
from quart import Blueprint, Response, request

from broker.boards.kiosk import Kiosk
from broker.errors import NotFound, TooManyAttempts
from protocols.http.accounts.browsers import remote_address
from protocols.http.answers import Answer
from protocols.http.console.doors import HOME

#: Longer ones are none of ours.
_SECRET_CHARACTERS: Final = 64
_ENCODER: Final = msgspec.json.Encoder()


def add_kiosk(routes: Blueprint, kiosk: Kiosk) -> None:
    @routes.post(f"{HOME}/kiosk")
    async def look() -> Response:
        """The board of the secret in the header X-Kiosk, with the points of charts if the query wants them, by the days
        of its `zone`."""
        secret = request.headers.get("X-Kiosk", "")[: _SECRET_CHARACTERS + 1]
        asked = request.args
        try:
            shown = await kiosk.look(
                secret,
                address=remote_address(),
                with_charts=asked.get("charts") == "1",
                zone=asked.get("zone", ""),
            )
        except NotFound:
            return Answer(b'{"error":{"code":404,"message":"This link is no longer valid"}}', 404).response()
        except TooManyAttempts as refused:
            answer = Answer(b'{"error":{"code":429,"message":"Too many attempts"}}', 429).response()
            answer.headers["Retry-After"] = str(refused.retry_seconds)
            return answer
        return Answer(_ENCODER.encode({"data": shown})).response()
