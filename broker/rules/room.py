"""Builds rules: the engine, the rulebook, and what explains them."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import trio

from broker.accounts.room import AccountsRoom
from broker.cluster.kinds import RULE, RULE_COMPILED
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.mail import Mails
from broker.messages.room import MessagesRoom
from broker.models.room import ModelsRoom
from broker.rules.access import Access
from broker.rules.explaining.replay import Replays
from broker.rules.explaining.simulation import SimulationSlots
from broker.rules.explaining.status import RuleStatuses
from broker.rules.explaining.why import RuleExplainer
from broker.rules.rulebook import Rulebook
from broker.rules.running.engine import RuleEngine
from broker.rules.running.evaluator import Evaluator
from broker.rules.running.guards import LoopGuard
from broker.rules.running.index import RuleIndex
from broker.rules.running.loader import RuleInvalidator, RuleLoader
from broker.rules.running.models import ConditionModels
from broker.rules.running.names import NameResolver
from broker.rules.sending.requests import RequestQueue, RuleRequests
from broker.rules.sending.sender import RuleSender, TrialRuns
from broker.wanted.wanted import Wanted
from storage.outages import Outage
from storage.sql import StoreError

_RETRY_SECONDS: Final = 1.0


class RulesRoom(msgspec.Struct, frozen=True):
    rulebook: Rulebook
    names: NameResolver
    access: Access
    statuses: RuleStatuses
    trial_runs: TrialRuns
    replays: Replays
    explainer: RuleExplainer


async def _settled(load: Callable[[], Awaitable[None]]) -> None:
    outage = Outage("rules_not_loaded")
    while True:
        try:
            return await load()
        except StoreError as error:
            outage.failed(error)
            await trio.sleep(_RETRY_SECONDS)


async def open_rules(
    core: Core,
    mails: Mails,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    requests: RuleRequests | None,
    of_models: ModelsRoom,
    reason: Callable[[Device, str], Awaitable[str]],
    wanted: Wanted,
    alarms_raised: Callable[[], None] = lambda: None,
) -> RulesRoom:
    """Open rules. Without `requests`, HTTP requests of rules stay in the queue. `reason` says why no value of a field
    comes; empty when nothing is known. `alarms_raised` is called when there are new alarms."""
    database, clock, life, router = core.database, core.clock, core.life, core.router
    models = ConditionModels(of_models.models)
    lease = core.leases.of(LeaseName.RULES)
    index, loops = RuleIndex(devices.registry), LoopGuard()
    queue = RequestQueue(database, lease, clock, core.knock(LeaseName.RULES, "rule requests"))
    evaluator = Evaluator(database, devices.registry, index, models, loops)
    sending = RuleSender(database, devices.registry, device_types.catalog, messages.ingest, mails, queue, loops, wanted)
    engine = RuleEngine(
        database,
        lease,
        clock,
        router,
        core.news,
        index,
        evaluator,
        sending,
        queue,
        core.peers,
        messages.follower,
        alarms_raised,
    )
    names = NameResolver(devices.registry, device_types.catalog, accounts.permissions)
    loader = RuleLoader(database, clock, accounts.permissions, names, engine, models, mails)
    core.news.listen(RULE, loader.changed)
    core.news.listen(RULE_COMPILED, loader.changed)
    rulebook = Rulebook(database, clock, accounts.permissions, names, loader, models)
    accounts.claims.ends("Rules", rulebook.end_all_of)
    accounts.application_ends.ends("rule", rulebook.end_all_of_application)
    invalidation = RuleInvalidator(database, router, loader, index, evaluator, lambda: engine.is_open)
    loader.set_compiler(invalidation.compile)
    if core.peers is None:
        await loader.load_all()
        await engine.resume()

    async def run(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        if core.peers is not None:  # another node has run them
            engine.open()
            await _settled(loader.load_all)
        await engine.run_forever(task_status=task_status)

    life.worker(
        "rules",
        run,
        lease=lease,
        save=engine.save,
        forget=engine.forget_all,
        statistics=engine.statistics,
    )
    life.worker(
        "rule checks",
        invalidation.run_forever,
        lease=lease,
        statistics=invalidation.statistics,
    )
    if requests is None:
        life.observe("rule requests", queue.statistics)
    else:
        life.worker(
            "rule requests",
            partial(queue.send_forever, requests, engine),
            lease=lease,
            statistics=queue.statistics,
        )
    slots = SimulationSlots(database)
    explainer = RuleExplainer(database, clock, messages.mids, index, slots, models.output, devices.registry, reason)
    return RulesRoom(
        rulebook=rulebook,
        names=names,
        access=Access(accounts.permissions, names),
        statuses=RuleStatuses(database, clock, explainer, names, models),
        trial_runs=TrialRuns(database, clock, accounts.permissions, sending, queue),
        replays=Replays(slots, models.output),
        explainer=explainer,
    )
