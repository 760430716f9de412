"""The refusal that only scenes have (reference 12.5)."""

from dataclasses import dataclass

from broker.errors import DomainError


@dataclass(eq=False)
class SceneInvalid(DomainError):
    """The scene cannot be activated; nothing was sent."""

    status = 400
    template = "{reason}"
    reason: str
