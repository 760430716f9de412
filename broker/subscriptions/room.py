"""Builds the subscriptions and their deliveries."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.kinds import REPLAYED, SUBSCRIPTION, Replay
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.mail import Mails
from broker.messages.room import MessagesRoom
from broker.subscriptions.creation import Creation
from broker.subscriptions.deliveries import DeliveryWorkers
from broker.subscriptions.endings import Endings
from broker.subscriptions.entries import NotificationEntries, NotificationIds
from broker.subscriptions.handshakes import Handshakes
from broker.subscriptions.log import DeliveryLog
from broker.subscriptions.outlets import Outlets
from broker.subscriptions.port import Callbacks, Streams
from broker.subscriptions.reader import Reader
from broker.subscriptions.secrets import Signers
from broker.subscriptions.sender import NotificationSender
from broker.subscriptions.subscriptions import Subscriptions
from broker.subscriptions.upkeep import Upkeep


class SubscriptionsRoom(msgspec.Struct, frozen=True):
    subscriptions: Subscriptions
    endings: Endings
    log: DeliveryLog
    signers: Signers
    deliveries: DeliveryWorkers
    sender: NotificationSender


async def open_subscriptions(
    core: Core,
    mails: Mails,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    callbacks: Callbacks | None,
    streams: Streams | None,
) -> SubscriptionsRoom:
    """Open subscriptions. Without `callbacks`, nothing is delivered and no handshake is made; what is due stays in the
    log. Without `streams`, no subscription to a stream can be made.
    """
    database, clock, settings = core.database, core.clock, core.settings
    creation = Creation(
        database,
        accounts.permissions,
        accounts.users,
        device_types.catalog,
        devices.registry,
        callbacks,
        has_streams=streams is not None,
        allow_private=settings.outbound.allow_private_addresses,
    )
    subscriptions = Subscriptions(
        database,
        core.vault,
        clock,
        accounts.permissions,
        creation,
        payload=settings.subscriptions.payload,
        allow_private=settings.outbound.allow_private_addresses,
    )
    endings = Endings(database, clock, core.router, mails, subscriptions)
    ids = NotificationIds(await database.read(lambda tx: tx.messages.mid_key()))
    entries = NotificationEntries(database, devices.registry, messages.history, messages.mids)
    signers = Signers(database, core.vault, clock)
    outlets = Outlets()
    lease = core.leases.of(LeaseName.SUBSCRIPTIONS)
    sender = NotificationSender(
        database,
        lease,
        clock,
        core.router,
        endings,
        outlets,
        entries,
        ids,
        signers,
        callbacks,
        streams,
        devices.readers,
    )
    reader = Reader(database, lease, clock, core.router, devices.registry, outlets, sender.send, messages.follower)
    upkeep = Upkeep(
        database, lease, clock, keep_days=settings.subscriptions.keep_days, keep_bytes=settings.subscriptions.keep_bytes
    )
    core.trusted_time.on_confirm(upkeep.wakeup.set)
    deliveries = DeliveryWorkers(
        database,
        lease,
        clock,
        accounts.permissions,
        subscriptions,
        endings,
        outlets,
        reader,
        sender,
        Handshakes(clock, core.vault, subscriptions, callbacks),
        upkeep,
        callbacks,
        settings.subscriptions.batch_seconds,
    )

    def replayed(replay: Replay, _content: None) -> None:
        if (outlet := outlets.get(replay.subscription)) is not None:
            outlet.pending += replay.added
        sender.look_for_due()

    core.news.listen(REPLAYED, replayed)
    core.news.listen(SUBSCRIPTION, subscriptions.changed)
    log = DeliveryLog(
        database,
        clock,
        accounts.permissions,
        subscriptions,
        entries,
        ids,
        sender.flush,
        devices.readers,
    )
    await subscriptions.load()
    accounts.claims.ends("Subscriptions", subscriptions.end_all_of)
    accounts.application_ends.ends("subscription", subscriptions.end_all_of_application)
    core.life.worker(
        "subscriptions",
        deliveries.run_forever,
        lease=lease,
        save=deliveries.save,
        forget=deliveries.forget_all,
        statistics=deliveries.statistics,
    )
    return SubscriptionsRoom(subscriptions, endings, log, signers, deliveries, sender)
