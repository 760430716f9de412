"""Ada's home: lights that send messages, and rules about them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trio.testing import wait_all_tasks_blocked

from broker.accounts.tokens import Caller
from broker.rules.rulebook import NewRule, RuleChanges
from broker.services import Services
from storage.keys import Position
from storage.records import ActionRow
from storage.rules import RuleRecord
from tests.factories import ADA, ADA_TOKEN, KITCHEN
from tests.tickets import at

ON: Mapping[str, Any] = {"action": "setOn", "parameters": {}}


def when(field: str, operator: str, value: Any, device: Any = KITCHEN, **more: Any) -> dict[str, Any]:
    """A condition."""
    return {"sdid": device, "field": field, "operator": operator, "operand": {"value": value}} | more


def body(conditions: list[dict[str, Any]] | dict[str, Any], *actions: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's body; a bare condition stays one. Without Actions, the light in the hall goes on."""
    wanted = {"and": conditions} if isinstance(conditions, list) else conditions
    return {"if": wanted, "then": list(actions) or [{"ddid": HALL_ID, **ON}]}


HALL_ID = "12" * 16


@dataclass
class Home:
    services: Services

    async def ada(self) -> Caller:
        return await self.services.accounts.tokens.caller(ADA_TOKEN)

    async def rule(
        self, content: Mapping[str, Any], name: str = "A rule", *, token: str = ADA_TOKEN, **more: Any
    ) -> RuleRecord:
        caller = await self.services.accounts.tokens.caller(token)
        owner = await self.services.accounts.users.find(ADA)
        new = NewRule(name, json.dumps(content).encode(), **more)
        return await self.services.rules.rulebook.create(caller, owner, new)

    async def change(self, record: RuleRecord, changes: RuleChanges) -> RuleRecord:
        return await self.services.rules.rulebook.change(await self.ada(), record, changes)

    async def says(self, data: Mapping[str, Any], device: str = KITCHEN, ts: int | None = None) -> str:
        """A device sends a message; returns its mid when the rules have followed."""
        ingest = self.services.messages.ingest
        found = await self.services.devices.registry.find(device)
        position = ingest.submit(found, json.dumps(data).encode(), ts)
        await ingest.wait_committed()
        await wait_all_tasks_blocked()
        return ingest.mid(at(position))

    async def actions(self) -> list[ActionRow]:
        """All Actions in the log."""

        return await self.services.core.database.read(lambda tx: tx.messages.actions_after(Position(0), limit=10_000))

    async def count(self) -> int:
        return len(await self.actions())

    async def triggered(self, rule: RuleRecord) -> int:
        """How often the rule was triggered."""
        state = await self.services.core.database.read(lambda tx: tx.rules.state(rule.key))
        return 0 if state is None else state.triggered

    async def status(self, rule: RuleRecord) -> Any:
        record = await self.services.rules.rulebook.find(rule.id)
        return await self.services.rules.statuses.status(record, with_waiting=True)
