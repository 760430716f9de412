"""Builds the sessions of devices."""

import msgspec

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_sessions.sessions import DeviceSessions


class DeviceSessionsRoom(msgspec.Struct, frozen=True):
    """`sessions` is None when deliveries have QoS 0 and sessions end with their connection (reference 16.2). The open
    topic space has sessions, too, which then end with their connection."""

    sessions: DeviceSessions | None
    all: DeviceSessions


async def open_device_sessions(core: Core) -> DeviceSessionsRoom:
    settings = core.settings.mqtt
    sessions = DeviceSessions(
        core.database, core.clock, core.news, longest_seconds=settings.session_max_seconds, peers=core.peers
    )
    core.life.observe("mqtt sessions", sessions.statistics)
    if settings.persistent_sessions == "off":
        return DeviceSessionsRoom(None if settings.topics == "service" else sessions, sessions)
    await sessions.resume()
    core.life.worker("mqtt sessions", sessions.sweep_forever, lease=core.leases.of(LeaseName.UPKEEP))
    return DeviceSessionsRoom(sessions, sessions)
