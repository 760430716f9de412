"""The refusals that only models have (reference 12.6)."""

from dataclasses import dataclass

from broker.errors import DomainError


@dataclass(eq=False)
class LearningNotInstalled(DomainError):
    """The library that trains models is an optional part of the installation."""

    status = 501
    template = "Models need the extra learning of this server: pip install 'trunkline[learning]'"


class LearningFailed(Exception):
    """Training ended without a result; the text says why."""
