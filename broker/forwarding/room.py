"""Builds forwarding: to upstreams, and from stores that forward to this one."""

from hashlib import blake2b

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.forwarding.edge_actions import EdgeActions
from broker.forwarding.edge_batches import EdgeBatches
from broker.forwarding.edge_book import EdgeBook
from broker.forwarding.edge_devices import EdgeDevices
from broker.forwarding.edge_types import EdgeTypes
from broker.forwarding.edges import Edges
from broker.forwarding.forwarding import Forwarding
from broker.forwarding.port import Upstreams
from broker.loops import Loop
from broker.messages.room import MessagesRoom

_LOOK_SECONDS = 60.0


class ForwardingRoom(msgspec.Struct, frozen=True):
    forwarding: Forwarding
    edges: Edges
    batches: EdgeBatches
    edge_types: EdgeTypes
    edge_actions: EdgeActions
    book: EdgeBook


async def open_forwarding(
    core: Core,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    upstreams: Upstreams | None,
) -> ForwardingRoom:
    """Without `upstreams`, nothing is forwarded; positions stay where they are."""
    database, clock = core.database, core.clock
    store = _store_id(await database.read(lambda tx: tx.messages.mid_key()))
    edges = Edges(database, clock, store)
    edge_types = EdgeTypes(database, clock, device_types.catalog, device_types.making, edges)
    edge_devices = EdgeDevices(database, devices.registry, devices.inventory, device_types.catalog, store)
    edge_actions = EdgeActions(database, clock, core.router, messages.mids, edges)
    batches = EdgeBatches(database, clock, devices.registry, messages.ingest, edges, edge_types, edge_devices)
    await edges.load()
    book = EdgeBook(database, clock, messages.mids, edges)
    lease = core.leases.of(LeaseName.FORWARDS)
    forwarding = Forwarding(
        database,
        lease,
        clock,
        core.router,
        devices.registry,
        messages.ingest,
        upstreams,
        store,
        core.settings,
        messages.follower,
    )
    accounts.claims.ends("Stores that forward here", book.end_all_of)
    core.life.worker(
        "edges",
        Loop(edges.load, every=_LOOK_SECONDS, failure="edges_not_read").run,
        statistics=edges.statistics,
    )
    core.life.worker(
        "forwards",
        forwarding.run_forever,
        lease=lease,
        save=forwarding.save,
        forget=forwarding.forget_all,
        statistics=forwarding.statistics,
    )
    return ForwardingRoom(forwarding, edges, batches, edge_types, edge_actions, book)


def _store_id(mid_key: bytes) -> str:
    """The id of a store, the same in its backups, and in no other store: 32 hexadecimal digits, of the key of its mids,
    which cannot be found from them."""
    return blake2b(b"", digest_size=16, key=mid_key, person=b"trunkline-store").hexdigest()
