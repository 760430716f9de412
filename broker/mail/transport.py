"""The port to the mail server. Implemented in protocols/outbound/mail.py."""

from email.message import EmailMessage
from typing import Protocol

import msgspec


class OutgoingMail(msgspec.Struct, frozen=True):
    """One mail, ready to send. A repeated attempt has the same Message-ID, date and text."""

    message_id: str  # without angle brackets
    created_on: int
    sender: str
    recipient: str
    message: EmailMessage


class MailError(Exception):
    """The mail was not delivered. The text is one line for the operator's log."""


class MailDeferred(MailError):
    """The server does not take this mail now: try it again later."""


class MailRejected(MailError):
    """This mail can never be delivered."""


class MailServerUnavailable(MailError):
    """No mail can be delivered now: the server cannot be reached, is not trusted, or refuses the login."""


class MailTransport(Protocol):
    #: The log event of a mail that it has delivered.
    done: str

    async def deliver(self, mail: OutgoingMail) -> None:
        """Return when the server has accepted the mail.

        When it is cancelled, it returns at once, and the mail may have been delivered or not.

        Raises:
            MailDeferred, MailRejected, MailServerUnavailable: the mail was not delivered.
        """

    async def forget(self, address: str, name: str) -> None:
        """Remove this machine's copies of mails to a person, and of mails that name the person.

        Raises MailServerUnavailable: there may be copies still.
        """
