"""What a link from one of our mails says when it is too late."""

from dataclasses import dataclass

from broker.errors import Gone


@dataclass(eq=False)
class LinkOver(Gone):
    """It has expired, was used, or never was one: nobody learns here which."""

    template = "This link has expired or was used already."
