"""The answer of /userinfo: the person of an access token, as far as its scopes say (OpenID Connect Core 1.0, 5.3)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from broker.accounts.openid import OPENID, claims_about
from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied, Unauthorized
from storage.database import Database
from storage.transaction import Transaction


class Userinfo(msgspec.Struct, frozen=True):
    database: Database

    async def of(self, caller: Caller) -> Mapping[str, Any]:
        """Raises PermissionDenied: the token did not come of a sign-in with the scope `openid`."""

        def work(tx: Transaction) -> Mapping[str, Any]:
            token = tx.accounts.token(caller.token)
            user = None if caller.user is None else tx.accounts.user(caller.user)
            if token is None or user is None:  # it has ended since
                raise Unauthorized
            scope = "" if token.family is None else tx.authorizations.scope_of(token.family)
            if OPENID not in scope.split():
                raise PermissionDenied("the scope openid")
            return claims_about(user, scope)

        return await self.database.look_up(work)
