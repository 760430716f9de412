"""The port: what delivers a mail, and how it says that it could not. Implemented in protocols/outbound/mail.py."""

from dataclasses import dataclass
from email.message import EmailMessage
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """One mail, ready to go. A repeated attempt has the same Message-ID, date and text."""

    message_id: str  # without angle brackets
    created_on: int
    sender: str
    recipient: str
    message: EmailMessage


class MailError(Exception):
    """The mail was not delivered. The text is one line for the operator's log."""


class MailDeferred(MailError):
    """Not now: try this mail again later."""


class MailRejected(MailError):
    """Never: this mail cannot be delivered."""


class MailServerUnavailable(MailError):
    """No mail can be delivered now: the server is not reached, not trusted, or does not know us."""


class MailTransport(Protocol):
    async def deliver(self, mail: OutgoingMail) -> None:
        """Return when someone else has taken responsibility for the mail.

        Cancelled, it returns at once; the mail may then have been delivered or not.

        Raises:
            MailDeferred, MailRejected, MailServerUnavailable: it was not delivered.
        """
