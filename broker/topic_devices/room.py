"""Builds what makes messages of topic devices and hooks."""

import msgspec

from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from broker.topic_devices.entries import entries_of
from broker.topic_devices.intake import TopicDevices
from broker.topics.room import TopicsRoom


class TopicDevicesRoom(msgspec.Struct, frozen=True):
    intake: TopicDevices


async def open_topic_devices(
    core: Core,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    limits: LimitsRoom,
    messages: MessagesRoom,
    topics: TopicsRoom,
) -> TopicDevicesRoom:
    """Raises SettingsError."""
    entries = entries_of(core.settings)
    intake = TopicDevices(
        core.database,
        core.clock,
        devices.registry,
        device_types.catalog,
        devices.inventory,
        messages.ingest,
        limits.meters,
        core.router,
        core.refusals,
        entries,
    )
    if topics.space is not None and any(not one.is_hook for one in entries):
        topics.space.hear(intake.hear)
        topics.space.prepare_with(intake)
    if entries:
        await intake.look_up()  # before wills of an earlier daemon are published
    core.life.worker("topic devices", intake.run_forever, statistics=intake.statistics)
    return TopicDevicesRoom(intake)
