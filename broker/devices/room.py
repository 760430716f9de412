"""Builds the inventory: devices, their tokens and shares, presence and removal."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.device_tokens import DeviceTokens
from broker.devices.inventory import Inventory
from broker.devices.labels import Labels
from broker.devices.listing import DeviceLists
from broker.devices.presence import Presence
from broker.devices.readers import DataReaders
from broker.devices.registry import Devices
from broker.devices.removal import Removal
from broker.devices.shares import Shares
from broker.devices.transfers import DeviceTransfers
from broker.mail import Mails


class DevicesRoom(msgspec.Struct, frozen=True):
    registry: Devices
    inventory: Inventory
    lists: DeviceLists
    tokens: DeviceTokens
    shares: Shares
    transfers: DeviceTransfers
    labels: Labels
    presence: Presence
    removal: Removal
    readers: DataReaders


async def open_devices(core: Core, mails: Mails, accounts: AccountsRoom, device_types: DeviceTypesRoom) -> DevicesRoom:
    database, router, clock = core.database, core.router, core.clock
    registry = Devices(database, router, core.news, device_types.catalog, accounts.tokens)
    presence = Presence(database, router, clock, None if core.peers is None else core.peers.node)
    await presence.resume()
    core.life.worker("presence", presence.flush_forever, save=presence.flush, statistics=presence.statistics)
    removal = Removal(database, core.leases.of(LeaseName.UPKEEP), clock)
    core.trusted_time.on_confirm(removal.wakeup.set)
    core.life.worker(
        "removal", removal.sweep_forever, lease=core.leases.of(LeaseName.UPKEEP), statistics=removal.statistics
    )
    shares = Shares(database, clock, mails)
    inventory = Inventory(database, core.news, clock, registry)
    core.life.worker(
        "devices of closed accounts", inventory.delete_of_closed_forever, lease=core.leases.of(LeaseName.UPKEEP)
    )
    accounts.claims.ends("Devices of others, shared with the account", shares.end_all_of)
    accounts.claims.ends("Devices", inventory.end_all_of)
    readers = DataReaders(database, clock)
    core.life.worker("readers", readers.flush_forever, save=readers.save)
    tokens = DeviceTokens(database, clock, core.vault)
    return DevicesRoom(
        registry=registry,
        inventory=inventory,
        lists=DeviceLists(database, registry, device_types.catalog, accounts.permissions, shares),
        tokens=tokens,
        shares=shares,
        transfers=DeviceTransfers(database, clock, mails),
        labels=Labels(database, clock, device_types.catalog, tokens),
        presence=presence,
        removal=removal,
        readers=readers,
    )
