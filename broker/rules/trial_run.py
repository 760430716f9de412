"""Sends the Actions of a rule once, because its owner asks for it (reference 12.1)."""

from dataclasses import dataclass

from broker.accounts.permissions import Permissions
from broker.clock import Clock
from broker.errors import DomainError
from broker.rules.budgets import NO_CAUSES
from broker.rules.requests import RequestQueue
from broker.rules.rule import Match, Rule
from broker.rules.running import RunningRule, acting
from broker.rules.sending import Firing, Problem, Sending
from broker.rules.state import StateView, members_of
from storage.database import Database, Transaction
from storage.rules import RuleRecord


@dataclass(eq=False)
class RuleNotTestable(DomainError):
    """An Action depends on messages: it has a `matched` selector or `valueFrom`."""

    status = 400
    template = "Rule is not testable"


class TrialRuns:
    def __init__(
        self, database: Database, clock: Clock, permissions: Permissions, sending: Sending, requests: RequestQueue
    ) -> None:
        self._database = database
        self._clock = clock
        self._permissions = permissions
        self._sending = sending
        self._requests = requests

    async def run(self, record: RuleRecord, rule: Rule) -> None:
        """Send all Actions. What goes wrong with one is a problem of the rule. Raises RuleNotTestable."""
        if not rule.is_static:
            raise RuleNotTestable
        now_ms = self._clock.now_ms()
        types = rule.type_writes
        members = await self._database.read(
            lambda tx: {(rule.owner, one): members_of(tx, rule.owner, one) for one in types}
        )
        view = StateView(now_ms, None, {}, members, lambda *_: None)
        running = RunningRule.made(record, rule, await self._permissions.reach(acting(record)), None)
        firing = Firing(running, now_ms, None, rule.outgoing(view, Match({})), NO_CAUSES)
        known = await self._sending.addressees([firing], ())
        batch = self._sending.submit([firing], (), known, reads=False)

        def work(tx: Transaction) -> list[Problem]:
            return self._sending.write(tx, batch, now_ms)

        await self._database.write(work)
        self._requests.wake()
