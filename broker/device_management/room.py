"""Builds device management: properties, tasks and firmware images."""

from pathlib import Path

import msgspec
import structlog

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_management.configuration import Configurations
from broker.device_management.device_actions import DeviceActions
from broker.device_management.device_resources import DeviceResources
from broker.device_management.downloads import Downloads
from broker.device_management.engine import ManagementEngine
from broker.device_management.images import Images
from broker.device_management.models import read_models
from broker.device_management.objects import ObjectMap, ObjectModel
from broker.device_management.operations import Operations
from broker.device_management.properties import DeviceProperties
from broker.device_management.registry import shipped_models
from broker.device_management.reports import Reports
from broker.device_management.shared_registrations import SharedRegistrations
from broker.device_management.tasks import Tasks
from broker.device_management.waiting import Waiting
from broker.device_management.wanted_writes import WantedWrites
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from broker.wanted.wanted import Wanted

_log = structlog.get_logger(__name__)


class DeviceManagementRoom(msgspec.Struct, frozen=True):
    objects: ObjectMap
    configurations: Configurations
    properties: DeviceProperties
    tasks: Tasks
    waiting: Waiting
    actions: DeviceActions
    resources: DeviceResources
    images: Images
    downloads: Downloads
    #: Receives the reports of the server to which devices register.
    registrations: ManagementEngine


async def open_device_management(
    core: Core,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    limits: LimitsRoom,
    messages: MessagesRoom,
    wanted: Wanted,
) -> DeviceManagementRoom:
    database, clock, settings = core.database, core.clock, core.settings.device_management
    objects = ObjectMap([*_models(core), *shipped_models()])
    device_types.documents.models = objects
    configurations = Configurations(database, clock, core.news)
    properties = DeviceProperties(database, clock, devices.registry, devices.presence, objects)
    images = Images(database, clock, core.files, max_bytes=settings.image_max_bytes)
    downloads = Downloads(database, clock, core.router)
    core.life.worker("downloads", downloads.flush_forever, save=downloads.flush, statistics=downloads.statistics)
    reports = Reports(properties, messages.ingest)
    operations = Operations(objects, properties, reports)
    shared = None if core.peers is None else SharedRegistrations(database, clock, core.peers)
    actions = DeviceActions(core, devices.registry, objects, messages.history, limits.charged, shared)
    core.life.worker("device actions", actions.run_forever, save=actions.save, statistics=actions.statistics)
    writes = WantedWrites(core, wanted, objects)
    core.life.worker("wanted writes", writes.run_forever, statistics=writes.statistics)
    engine = ManagementEngine(
        core, devices.presence, configurations, properties, reports, operations, actions, writes, shared
    )
    core.life.worker(
        "tasks",
        engine.run_forever,
        lease=core.leases.of(LeaseName.TASKS),
        forget=engine.forget_all,
        statistics=engine.statistics,
    )
    core.life.worker("device tasks", engine.work_forever)
    return DeviceManagementRoom(
        objects=objects,
        configurations=configurations,
        properties=properties,
        tasks=Tasks(database, clock, configurations, objects, engine, core.site.image_root),
        waiting=Waiting(
            database, device_types.catalog, devices.presence, configurations, engine.work, downloads, shared
        ),
        actions=actions,
        resources=DeviceResources(devices.registry, actions.session_of, actions.sessions, objects, properties, shared),
        images=images,
        downloads=downloads,
        registrations=engine,
    )


def _models(core: Core) -> list[ObjectModel]:
    folder = core.settings.device_management.model_folder
    if not folder:
        return []
    try:
        return read_models(Path(folder))
    except OSError as error:
        _log.warning("models_not_read", folder=folder, reason=error.strerror)
        return []
