"""Errors of signing in with an external identity provider (external.py)."""

from dataclasses import dataclass

from broker.errors import DomainError


@dataclass(eq=False)
class ProviderUnavailable(DomainError):
    status = 503
    template = "{provider} cannot be reached at this moment. Please try again later, or sign in another way."
    provider: str


@dataclass(eq=False)
class ProviderRefused(DomainError):
    """The provider refused, or its tokens are not valid. The log has the reason."""

    status = 403
    template = "Signing in with {provider} did not work."
    provider: str


@dataclass(eq=False)
class NotBegunHere(DomainError):
    """The `state` is unknown, was used, has expired, or belongs to another browser."""

    status = 400
    template = "This sign-in was not begun in this browser, or took too long. Please try again."


@dataclass(eq=False)
class NoAccountHere(DomainError):
    status = 403
    template = "There is no account here for you. Ask whoever runs this service for an invitation."


@dataclass(eq=False)
class EmailNotVerified(DomainError):
    status = 403
    template = "{provider} does not confirm that you have an e-mail address of your own."
    provider: str
