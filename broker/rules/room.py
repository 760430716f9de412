"""Builds rules: the engine, the rulebook, and what explains them."""

from dataclasses import dataclass
from functools import partial

from broker.accounts.room import AccountsRoom
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.mail import Mails
from broker.messages.room import MessagesRoom
from broker.models.room import ModelsRoom
from broker.rules.access import Access
from broker.rules.budgets import LoopGuard
from broker.rules.engine import Engine
from broker.rules.evaluator import Evaluator
from broker.rules.index import RuleIndex
from broker.rules.invalidation import Invalidation
from broker.rules.judging import Judging
from broker.rules.looking_up import LookingUp
from broker.rules.models_of_rules import ConditionModels
from broker.rules.replay import Replays
from broker.rules.requests import RequestQueue, RuleRequests
from broker.rules.rulebook import Rulebook
from broker.rules.sending import Sending
from broker.rules.showing import Showing
from broker.rules.trial_run import TrialRuns
from broker.rules.turns import Turns
from broker.rules.why import Reasons


@dataclass(frozen=True, slots=True)
class RulesRoom:
    rulebook: Rulebook
    looking_up: LookingUp
    access: Access
    showing: Showing
    trial_runs: TrialRuns
    replays: Replays
    reasons: Reasons


async def open_rules(
    core: Core,
    mails: Mails,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    requests: RuleRequests | None,
    of_models: ModelsRoom,
) -> RulesRoom:
    """Without `requests`, HTTP requests of rules stay in the queue."""
    database, clock, life, router = core.database, core.clock, core.life, core.router
    models = ConditionModels(of_models.models)
    index, loops, queue = RuleIndex(devices.registry), LoopGuard(), RequestQueue(database, clock)
    evaluator = Evaluator(database, devices.registry, index, models, loops)
    sending = Sending(database, devices.registry, device_types.catalog, messages.ingest, mails, queue, loops)
    engine = Engine(database, clock, router, index, evaluator, sending, queue)
    looking_up = LookingUp(devices.registry, device_types.catalog, accounts.permissions)
    judging = Judging(database, clock, accounts.permissions, looking_up, engine, models, mails, router)
    rulebook = Rulebook(database, clock, accounts.permissions, looking_up, judging, models)
    accounts.claims.ends("Rules", rulebook.end_all_of)
    invalidation = Invalidation(database, router, judging, index, evaluator)
    await judging.begin_all()
    await engine.resume()
    life.worker("rules", engine.run_forever, save=engine.save, statistics=engine.statistics)
    life.worker("rule checks", invalidation.run_forever, statistics=invalidation.statistics)
    if requests is None:
        life.observe("rule requests", queue.statistics)
    else:
        life.worker("rule requests", partial(queue.send_forever, requests, engine), statistics=queue.statistics)
    turns = Turns(database)
    reasons = Reasons(database, clock, messages.mids, index, turns, models.output)
    return RulesRoom(
        rulebook=rulebook,
        looking_up=looking_up,
        access=Access(accounts.permissions, looking_up),
        showing=Showing(database, clock, reasons, looking_up, models),
        trial_runs=TrialRuns(database, clock, accounts.permissions, sending, queue),
        replays=Replays(turns, models.output),
        reasons=reasons,
    )
