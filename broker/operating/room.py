"""Builds what the operator's page needs."""

from dataclasses import dataclass, field

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.errors import StorageUnavailable
from broker.operating.backups import Backups
from broker.operating.names import Names
from broker.operating.overview import Overview, overview
from broker.operating.port import Machine
from broker.operating.progress import ProgressFeed
from broker.operating.samples import Samples
from broker.subscriptions.room import SubscriptionsRoom


@dataclass(slots=True)
class OperatingRoom:
    """`machine` is None until the daemon listens."""

    core: Core
    backups: Backups
    progress: ProgressFeed
    names: Names
    samples: Samples
    started_on: int
    machine: Machine | None = field(default=None)

    def the_machine(self) -> Machine:
        """Raises StorageUnavailable before the daemon listens."""
        if self.machine is None:
            raise StorageUnavailable
        return self.machine

    async def overview(self) -> Overview:
        return await overview(self.core, self.the_machine(), self.started_on)


async def open_operating(
    core: Core, accounts: AccountsRoom, device_types: DeviceTypesRoom, subscriptions: SubscriptionsRoom
) -> OperatingRoom:
    settings = core.settings
    backups = Backups(core, settings.backup_dir, settings.console.keep_backups)
    core.life.worker("backups", backups.work_forever)
    progress = ProgressFeed(
        core.database, core.clock, core.router, accounts, device_types.catalog, subscriptions.subscriptions
    )
    core.life.worker("progress", progress.tell_forever)
    names = Names(core.database, accounts.operators)
    samples = Samples(core)
    core.life.worker("samples", samples.take_forever, lease=core.leases.of(LeaseName.UPKEEP))
    return OperatingRoom(core, backups, progress, names, samples, core.clock.now_ms())
