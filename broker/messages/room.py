"""Builds the message log: the way in, what is computed from the log, and the ways to read it."""

import msgspec

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.analytics import Analytics
from broker.messages.batches import Batches
from broker.messages.claims import UnprovedClaims
from broker.messages.entry_merger import EntryMerger
from broker.messages.failed_again import FailedAgain
from broker.messages.follower import LogFollower
from broker.messages.heavy_reads import HeavyReads
from broker.messages.history import Cursors, MessageHistory
from broker.messages.ingest import Ingest
from broker.messages.mids import Mids
from broker.messages.projections import Projector
from broker.messages.retention import Retention
from broker.messages.rollup_days import RollupDays
from broker.messages.snapshots import Snapshots
from broker.messages.status import Statuses
from broker.messages.values import NewestValues
from storage.journal import Journal


class MessagesRoom(msgspec.Struct, frozen=True):
    ingest: Ingest
    batches: Batches
    claims: UnprovedClaims
    mids: Mids
    history: MessageHistory
    projector: Projector
    snapshots: Snapshots
    analytics: Analytics
    statuses: Statuses
    retention: Retention
    values: NewestValues
    #: Publishes the rows of other nodes; None: no other node writes.
    follower: LogFollower | None


async def open_messages(core: Core, devices: DevicesRoom, limits: LimitsRoom) -> MessagesRoom:
    database, router, clock, life = core.database, core.router, core.clock, core.life
    head, last_cts, mid_key = await database.read(
        lambda tx: (tx.messages.head(), tx.messages.last_cts(), tx.messages.mid_key())
    )
    mids = Mids(mid_key)
    ingest = Ingest(
        Journal(database, head=head),
        mids,
        router,
        clock,
        core.settings.limits.future_grace_seconds * 1000,
        limits.charged,
        last_cts,
    )
    life.observe("ingest", ingest.statistics)
    follower = None
    if core.peers is not None:
        follower = core.peers.rows = LogFollower(database, router, devices.registry, mids, core.peers.instance, head)
        follower.on_begin = core.peers.listen_anew
        life.observe("follower", follower.statistics)
        ingest.notes_holders = True
    projector = Projector(database, core.leases.of(LeaseName.FOLDS), None if core.peers else router)
    snapshots = Snapshots(database, projector)
    await projector.resume()
    life.worker(
        "folds",
        projector.run_forever,
        lease=core.leases.of(LeaseName.FOLDS),
        save=projector.save,
        forget=projector.forget_all,
        statistics=projector.statistics,
    )
    if core.peers is not None:
        life.worker("folds of others", projector.note_others_forever)
    rollup_days = RollupDays.of(core.settings.storage)
    retention = Retention(
        database,
        core.leases.of(LeaseName.UPKEEP),
        clock,
        days=core.settings.storage.retention_days,
        rollups=rollup_days,
    )
    core.trusted_time.on_confirm(retention.wakeup.set)
    life.worker(
        "retention", retention.sweep_forever, lease=core.leases.of(LeaseName.UPKEEP), statistics=retention.statistics
    )
    life.worker(
        "index",
        EntryMerger(database, core.leases.of(LeaseName.FOLDS)).merge_forever,
        lease=core.leases.of(LeaseName.FOLDS),
    )
    failed_again = FailedAgain(database, core.leases.of(LeaseName.UPKEEP), clock, router, devices.registry, ingest)
    life.worker(
        "failed messages",
        failed_again.read_forever,
        lease=core.leases.of(LeaseName.UPKEEP),
        statistics=failed_again.statistics,
    )
    heavy_reads = HeavyReads(database)
    claims = UnprovedClaims(devices.registry, ingest.refused, clock)
    life.worker("claims", claims.look_up_forever)
    return MessagesRoom(
        ingest=ingest,
        batches=Batches(ingest),
        claims=claims,
        mids=mids,
        history=MessageHistory(database, devices.registry, mids, Cursors(mid_key), heavy_reads),
        projector=projector,
        snapshots=snapshots,
        analytics=Analytics(heavy_reads, clock, projector, rollup_days.kept),
        statuses=Statuses(database, core.clock, devices.presence, snapshots),
        retention=retention,
        values=NewestValues(snapshots, clock),
        follower=follower,
    )
