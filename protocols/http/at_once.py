"""Messages that devices post, accepted without waiting: what `rest/sending.py: Sending` does, where nothing is to load.

Device and token are in memory, and the body is a valid message of the device itself. Whatever else a request is, the
other way decides about it, from its beginning: nothing has been done about it here.
"""

from typing import Final, NamedTuple

from broker.accounts.tokens import TokenKind
from broker.device_types.dropped import DroppedField
from broker.errors import DomainError
from broker.limits.meters import Channel
from broker.services import Services
from config.limits import MAX_MESSAGE_BODY_BYTES
from protocols.http.answers import Answer, plain_answer
from protocols.http.guard import Guard, bearer
from protocols.http.reading import members
from protocols.http.rest.sending import NewMessage, payload_of, stored_message, time_of
from protocols.http.this_request import ThisRequest, answering
from storage.keys import Position

#: The name of the call, as `dispatch` gives it.
POST_MESSAGES: Final = "rest.POST /messages"


class Accepted(NamedTuple):
    """A message that the next commit stores."""

    position: Position
    dropped: list[DroppedField]  # the fields that the Manifest does not keep


class MessagesAtOnce:
    def __init__(self, services: Services, guard: Guard) -> None:
        self.ingest = services.messages.ingest
        self._tokens = services.accounts.tokens
        self._devices = services.devices.registry
        self._admission = services.registration.admission
        self._guard = guard

    def accept(self, request: ThisRequest, body: bytes) -> Accepted | None:
        """Accept the message of a request of a peer whose token was valid once; None for one that is not for here.

        Raises DomainError: the request is refused, by its limits or by `Ingest.submit`.
        """
        token = bearer(request.authorization)
        caller = None if token is None else self._tokens.caller_nowait(token)
        if caller is None or caller.kind is not TokenKind.DEVICE or caller.device is None:
            return None
        device = self._devices.get_nowait(caller.device)
        if device is None or not self.ingest.has_room or len(body) > MAX_MESSAGE_BODY_BYTES:
            return None
        try:
            self._admission.check(device, request.certificate)
            message = members(body, NewMessage, caller)
            if message.type.lower() != "message" or (message.sdid and message.sdid != device.id):
                return None
            payload = payload_of(message.data, anything=device.manifest.takes_any_payload)
        except DomainError:
            return None
        # Everything above has changed nothing. What follows is in the order of reference 3.2.
        answering(request)
        request.caller = caller
        caller.act()
        refusal = self._guard.count(caller, Channel.MESSAGES)
        if refusal is not None:
            raise refusal
        request.charged = device, None
        dropped: list[DroppedField] = []
        return Accepted(self.ingest.submit(device, payload, time_of(message.ts), dropped), dropped)

    def stored(self, accepted: Accepted) -> Answer:
        """The answer after the commit."""
        return plain_answer(stored_message(self.ingest.mid(accepted.position), accepted.dropped))
