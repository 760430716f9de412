"""The user that a path names, for callers who act for that user."""

from broker.accounts.tokens import Caller, TokenKind
from broker.services import Services
from protocols.http.guard import Guard
from storage.records import UserRecord


class NamedUsers:
    """Every call on one user asks it first: token, user, permission, rate limit (reference 3.2)."""

    def __init__(self, services: Services, guard: Guard) -> None:
        self._services = services
        self._guard = guard

    async def get(self, user_id: str, *kinds: TokenKind) -> tuple[Caller, UserRecord]:
        """Raises Unauthorized, UserNotFound, PermissionDenied, RateLimitExceeded."""
        async with self._guard.before_limit(*kinds) as caller:
            user = await self._services.accounts.users.find(user_id, caller)
            await self._services.accounts.permissions.require_user(caller, user.key)
        return caller, user
