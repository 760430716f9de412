"""Opens every capability once, each with the ones it builds on. `Services` holds them for the protocols."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import trio

from broker.accounts.provider_port import Providers
from broker.accounts.room import AccountsRoom, open_accounts
from broker.alarms.room import AlarmsRoom, open_alarms
from broker.alarms.ways import AlarmWays
from broker.assistants.room import open_assistants
from broker.assistants.tool_calls import ToolCalls
from broker.boards.room import BoardsRoom, open_boards
from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.cluster.leases import LeaseName, Leases
from broker.cluster.news import News
from broker.connectors.port import ThirdParty
from broker.connectors.room import open_connectors
from broker.connectors.service import Connectors
from broker.core import Core
from broker.device_management.room import DeviceManagementRoom, open_device_management
from broker.device_sessions.room import DeviceSessionsRoom, open_device_sessions
from broker.device_types.room import DeviceTypesRoom, open_device_types
from broker.devices.room import DevicesRoom, open_devices
from broker.export.exports import Exports
from broker.export.room import open_export
from broker.facts import Router
from broker.files import Files
from broker.forwarding.port import Upstreams
from broker.forwarding.room import ForwardingRoom, open_forwarding
from broker.found.room import FoundRoom, open_found
from broker.home_assistant.room import HomeAssistantRoom, open_home_assistant
from broker.leaving.room import LeavingRoom, open_leaving
from broker.life import Life
from broker.limits.room import LimitsRoom, open_limits
from broker.mail import Mails, MailTransport
from broker.mail.room import open_mail
from broker.messages.log_feeds import LogFeeds, open_log_feeds
from broker.messages.room import MessagesRoom, open_messages
from broker.models.learner import Learner
from broker.models.room import ModelsRoom, open_models
from broker.monetization.port import Processor
from broker.monetization.room import MonetizationRoom, open_monetization
from broker.my_data.room import MyDataRoom, open_my_data
from broker.operating.room import OperatingRoom, open_operating
from broker.provisioning.room import open_provisioning
from broker.provisioning.service import Provisioning
from broker.registration.room import RegistrationRoom, open_registration
from broker.routing.room import RoutingRoom, open_routing
from broker.rules.room import RulesRoom, open_rules
from broker.rules.sending.requests import RuleRequests
from broker.scenes.room import ScenesRoom, open_scenes
from broker.secrets import Vault
from broker.site import Site
from broker.store_key import check_store_key, mark_store_key
from broker.subscriptions.port import Callbacks, Streams
from broker.subscriptions.room import SubscriptionsRoom, open_subscriptions
from broker.topic_devices.room import TopicDevicesRoom, open_topic_devices
from broker.topics.room import TopicsRoom, open_topics
from broker.trace.audit import AuditLog
from broker.trace.refusals import Refusals
from broker.trials.room import TrialsRoom, open_trials
from broker.trusted_time import TrustedTime
from broker.wanted.room import open_wanted
from broker.wanted.wanted import Wanted
from broker.wills.room import open_wills
from broker.wills.wills import Wills
from config.settings import Settings
from storage.database import Database
from storage.engines.sqlite_upgrade import copies_of


class Services(msgspec.Struct, frozen=True):
    """The capabilities, in the order in which they build on each other."""

    core: Core
    mail: Mails
    accounts: AccountsRoom
    device_types: DeviceTypesRoom
    devices: DevicesRoom
    registration: RegistrationRoom
    limits: LimitsRoom
    monetization: MonetizationRoom
    messages: MessagesRoom
    wanted: Wanted
    device_sessions: DeviceSessionsRoom
    topics: TopicsRoom
    wills: Wills
    routing: RoutingRoom
    log_feeds: LogFeeds
    trials: TrialsRoom
    export: Exports
    my_data: MyDataRoom
    connectors: Connectors
    device_management: DeviceManagementRoom
    scenes: ScenesRoom
    boards: BoardsRoom
    models: ModelsRoom
    alarms: AlarmsRoom
    rules: RulesRoom
    subscriptions: SubscriptionsRoom
    found: FoundRoom
    home_assistant: HomeAssistantRoom
    topic_devices: TopicDevicesRoom
    forwarding: ForwardingRoom
    leaving: LeavingRoom
    provisioning: Provisioning
    operating: OperatingRoom
    assistants: ToolCalls


@asynccontextmanager
async def open_services(
    settings: Settings,
    database: Database,
    vault: Vault,
    clock: Clock | None = None,
    *,
    mail_transport: MailTransport | None = None,
    providers: Providers | None = None,
    third_party: ThirdParty | None = None,
    processor: Processor | None = None,
    learner: Learner | None = None,
    rule_requests: RuleRequests | None = None,
    is_clock_synchronized: Callable[[], bool] = lambda: False,
    callbacks: Callbacks | None = None,
    streams: Streams | None = None,
    alarm_ways: AlarmWays | None = None,
    upstreams: Upstreams | None = None,
    tell_of_upgrade: Callable[[str], None] = lambda _text: None,
    leases: Leases | None = None,
    peers: FactLog | None = None,
) -> AsyncIterator[Services]:
    """Open the store, build the capabilities and run their workers for as long as the block lasts.

    `leases`: what this daemon is the one to do; None: everything, as the only one on its store. `peers`: what other
    daemons on the store write; None: nobody else writes.
    `is_clock_synchronized` says whether the operating system keeps the clock right (broker/trusted_time.py).
    `tell_of_upgrade` is told how far the start is with files of an earlier version (broker/files.py).

    When the block ends, the workers save their state and the journal is drained before the store is closed. Each of the
    ten ports may be missing; its capability's `room.py` says what happens then.

    Raises:
        StoreError: the store cannot be opened, or `vault` has another store's key.
    """
    if peers is not None:
        database.share(peers)
    await database.open()
    clock = clock or Clock()
    trusted_time = TrustedTime(database, clock, is_clock_synchronized)
    try:
        await check_store_key(database, vault)
        await trusted_time.resume()
    except BaseException:  # whatever it is: no connection must stay open; raised again
        with trio.CancelScope(shield=True):
            await database.close()
        raise
    clock = replace(clock, may_delete=trusted_time.may_delete)
    audit = AuditLog(database, clock, settings.audit)
    refusals = Refusals(clock, audit.put)
    store = settings.state_dir / "store.sqlite"
    files = Files(database, clock, settings.state_dir, lambda: bool(copies_of(store)), tell_of_upgrade)
    site = Site(settings)
    router, leases = Router(), leases or Leases()
    news = News(database, router)
    if peers is not None:
        peers.open(database, news)
    core = Core(
        settings,
        database,
        vault,
        clock,
        router,
        news,
        site,
        Life(),
        leases,
        audit,
        refusals,
        trusted_time,
        files,
        peers,
    )
    core.life.observe("store", database.statistics)
    core.life.worker("clock", trusted_time.watch_forever, save=trusted_time.save, statistics=trusted_time.statistics)
    # In this order: what is saved last at the end gets what the others have to say.
    core.life.worker("refusals", refusals.look_forever, save=refusals.flush, statistics=refusals.statistics)
    core.life.worker("files", files.work_forever, lease=leases.of(LeaseName.UPKEEP))
    if peers is not None:
        core.life.worker("other nodes", peers.follow_forever, statistics=peers.statistics)
    core.life.worker("audit log", audit.write_forever, save=audit.flush, statistics=audit.statistics)
    async with trio.open_nursery() as nursery:
        # Shielded: when this block is cancelled from outside, the writer still commits what the workers save.
        writer = trio.CancelScope(shield=True)
        await nursery.start(_write, database, writer)
        try:
            await mark_store_key(database, vault)
            services = await _open_rooms(
                core,
                mail_transport,
                providers,
                third_party,
                processor,
                learner,
                rule_requests,
                callbacks,
                streams,
                alarm_ways,
                upstreams,
            )
            async with core.life.running():
                yield services
        finally:
            writer.cancel()


async def _write(
    database: Database, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with scope:
        await database.commit_forever(task_status=task_status)


async def _open_rooms(
    core: Core,
    mail_transport: MailTransport | None,
    providers: Providers | None,
    third_party: ThirdParty | None,
    processor: Processor | None,
    learner: Learner | None,
    rule_requests: RuleRequests | None,
    callbacks: Callbacks | None,
    streams: Streams | None,
    alarm_ways: AlarmWays | None,
    upstreams: Upstreams | None,
) -> Services:
    mail = await open_mail(core, mail_transport)
    accounts = await open_accounts(core, mail, providers)
    device_types = await open_device_types(core)
    devices = await open_devices(core, mail, accounts, device_types)
    registration = await open_registration(core, accounts, device_types, devices)
    limits = await open_limits(core, mail, devices)
    monetization = await open_monetization(core, mail, device_types, devices, limits, processor)
    messages = await open_messages(core, devices, limits)
    wanted = await open_wanted(core, devices, messages, limits)
    device_sessions = await open_device_sessions(core)
    topics = await open_topics(core, device_sessions)
    wills = await open_wills(core, devices, limits, messages, device_sessions, topics)
    routing = await open_routing(
        core, devices, sender=messages.ingest.sender, quota=limits.charged, follower=messages.follower
    )
    log_feeds = open_log_feeds(core, devices, messages, routing)
    trials = await open_trials(core, mail, accounts, device_types, devices)
    export = await open_export(core, mail, accounts, device_types, devices, messages, trials)
    my_data = await open_my_data(core, accounts, device_types, devices, messages, export)
    connectors = await open_connectors(core, device_types, devices, limits, messages, third_party)
    device_management = await open_device_management(core, device_types, devices, limits, messages, wanted)
    scenes = await open_scenes(core, accounts, device_types, devices, messages, wanted)
    models = await open_models(core, accounts, devices, learner)
    alarms = await open_alarms(core, mail, accounts, devices, alarm_ways)
    reason = device_management.resources.reason
    rules = await open_rules(
        core,
        mail,
        accounts,
        device_types,
        devices,
        messages,
        rule_requests,
        models,
        reason,
        wanted,
        alarms.telling.wake,
    )
    subscriptions = await open_subscriptions(core, mail, accounts, device_types, devices, messages, callbacks, streams)
    found = await open_found(core, device_types, devices, messages, device_sessions, topics)
    home_assistant = await open_home_assistant(core, devices, messages, topics, found)
    topic_devices = await open_topic_devices(core, device_types, devices, limits, messages, topics)
    forwarding = await open_forwarding(core, accounts, device_types, devices, messages, upstreams)
    leaving = await open_leaving(core, mail, accounts, devices, messages, export)
    provisioning = await open_provisioning(
        core,
        mail,
        accounts,
        device_types,
        devices,
        registration,
        limits,
        connectors,
        device_management,
        rules,
        subscriptions,
    )
    return Services(
        core=core,
        mail=mail,
        accounts=accounts,
        device_types=device_types,
        devices=devices,
        registration=registration,
        limits=limits,
        monetization=monetization,
        messages=messages,
        wanted=wanted,
        device_sessions=device_sessions,
        topics=topics,
        wills=wills,
        routing=routing,
        log_feeds=log_feeds,
        trials=trials,
        export=export,
        my_data=my_data,
        connectors=connectors,
        device_management=device_management,
        scenes=scenes,
        boards=open_boards(core, accounts, devices, messages),
        models=models,
        alarms=alarms,
        rules=rules,
        subscriptions=subscriptions,
        found=found,
        home_assistant=home_assistant,
        topic_devices=topic_devices,
        forwarding=forwarding,
        leaving=leaving,
        provisioning=provisioning,
        operating=await open_operating(core, accounts, device_types, subscriptions),
        assistants=await open_assistants(core),
    )
