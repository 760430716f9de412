"""The error of a one-time link in a mail that can no longer be used."""

from dataclasses import dataclass

from broker.errors import Gone


@dataclass(eq=False)
class LinkOver(Gone):
    """The code is unknown, was used or has expired. The answer does not say which."""

    template = "This link has expired or was used already."
