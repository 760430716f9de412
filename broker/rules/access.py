"""Decides which parts of a rule a caller sees, and whether it may change the rule (reference 12.1)."""

from typing import Final

import msgspec

from broker.accounts.permissions import Permission, Permissions
from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied, ValidationFailed
from broker.rules.language.rule import CompiledRule
from broker.rules.rulebook import THIS_APPLICATION
from broker.rules.running.index import through
from broker.rules.running.names import NameResolver
from storage.rules import RuleRecord

_OF_ANOTHER: Final = "a rule of another application"


class Access(msgspec.Struct, frozen=True):
    permissions: Permissions
    names: NameResolver

    async def require_user(self, caller: Caller, record: RuleRecord) -> None:
        """Raises PermissionDenied unless the caller acts for the user whose rule it is."""
        await self.permissions.require_user(caller, record.owner)

    async def require_own(self, caller: Caller, record: RuleRecord) -> None:
        """Check that the caller may change a rule: its application made the rule, or the rule is for all applications.

        Raises PermissionDenied.
        """
        await self.require_user(caller, record)
        if caller.application != record.application and record.scope == THIS_APPLICATION:
            raise PermissionDenied(_OF_ANOTHER)
        if caller.application != record.application and await self.is_hidden(caller, record):
            raise PermissionDenied(_OF_ANOTHER)

    async def require_changed_by(self, caller: Caller, record: RuleRecord, *, only_switch: bool) -> None:
        """The same, but the owner at the console may turn any rule off and on, whichever application made it."""
        if only_switch and caller.is_console:
            await self.require_user(caller, record)
        else:
            await self.require_own(caller, record)

    async def require_shown(self, caller: Caller, record: RuleRecord) -> None:
        """Raises PermissionDenied unless the caller sees the whole rule."""
        await self.require_user(caller, record)
        if await self.is_hidden(caller, record):
            raise PermissionDenied(
                _OF_ANOTHER if caller.application != record.application else "the devices of the rule"
            )

    async def require_write(self, caller: Caller, record: RuleRecord, rule: CompiledRule) -> None:
        """Raises PermissionDenied unless the caller may send to every destination of the rule."""
        missing = await self.names.missing(rule, through(caller, record), (Permission.WRITE,))
        if missing is not None:
            raise PermissionDenied(missing)

    async def require_read(self, caller: Caller, record: RuleRecord, rule: CompiledRule) -> None:
        """Raises PermissionDenied unless the caller may read every source of the rule: its values are told."""
        missing = await self.names.missing(rule, through(caller, record), (Permission.READ,))
        if missing is not None:
            raise PermissionDenied(missing)

    async def may_read(self, caller: Caller, record: RuleRecord) -> bool:
        """Whether the caller may be told values of the rule's sources."""
        try:
            await self.require_read(caller, record, await self.names.compiled(record))
        except (PermissionDenied, ValidationFailed):
            return False
        return True

    async def is_hidden(self, caller: Caller, record: RuleRecord) -> bool:
        """Whether the caller sees only that the rule exists: it lacks permissions on the devices of the rule.

        A rule that the caller's application made for itself is never hidden, and none from its owner at the console. Of
        an invalid rule it is not known what the devices are for: other applications do not see it, and its own one only
        if it may use all that exist.
        """
        if caller.is_console or (caller.application == record.application and record.scope == THIS_APPLICATION):
            return False
        try:
            rule = await self.names.compiled(record)
        except ValidationFailed:
            if caller.application != record.application:
                return True
            body = msgspec.json.decode(record.body)
            return not await self.names.may_use_devices(through(caller, record), body)
        return await self.names.missing(rule, through(caller, record)) is not None
