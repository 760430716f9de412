"""Waits of device tasks, each in one sentence (reference 15.2)."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from broker.device_management.configuration import Configurations
from broker.device_management.device_work import DeviceWork
from broker.device_management.downloads import Downloads
from broker.device_management.rollouts import Rollout, RolloutPhase
from broker.device_management.shared_registrations import SharedRegistrations, ShownRegistration
from broker.device_management.states import ENDED, OPEN, TASK_ENDED, Acceptance, DeviceTaskStatus
from broker.device_management.updates import Step
from broker.device_types.catalog import DeviceTypes
from broker.devices.presence import Presence
from storage.database import Database
from storage.firmware import FirmwareImageRecord
from storage.keys import DeviceKey
from storage.records import PresenceRecord
from storage.tasks import DeviceTaskRecord, TaskRecord
from storage.transaction import Transaction


class TaskWait(msgspec.Struct, frozen=True):
    """Reason why a device task waits, and the share of its image that has been sent, in per cent. None: nothing."""

    waits_for: str | None
    progress: int | None


class _Facts(msgspec.Struct, frozen=True):
    task: TaskRecord
    image: FirmwareImageRecord | None
    rollout: Rollout | None
    properties_enabled: bool
    presences: Mapping[DeviceKey, PresenceRecord]
    #: Of several nodes, on whatever node they are.
    registrations: Mapping[DeviceKey, ShownRegistration]
    #: By device: the id of the older task that is under way.
    earlier: Mapping[DeviceKey, str]


@dataclass(slots=True, eq=False, repr=False)
class Waiting:
    _database: Database
    _types: DeviceTypes
    _presence: Presence
    _configurations: Configurations
    _work: DeviceWork
    _downloads: Downloads
    _shared: SharedRegistrations | None = None

    async def explain(self, task: TaskRecord, entries: Sequence[DeviceTaskRecord]) -> list[TaskWait]:
        """Explain entries of a task, at most a page of them."""
        devices = [entry.device for entry in entries if entry.status not in ENDED]

        def read(tx: Transaction) -> tuple[FirmwareImageRecord | None, dict[DeviceKey, str]]:
            image = None if task.image is None else tx.firmware.image(task.image)
            return image, _earlier(tx, task.key, devices)

        image, earlier = await self._database.read(read)
        configuration = await self._configurations.of(await self._types.get(task.device_type))
        facts = _Facts(
            task,
            image,
            None if task.status in TASK_ENDED else await self._work.rollouts.of(task),
            configuration.device_properties_enabled,
            await self._presence.of_all(devices),
            {} if self._shared is None else await self._shared.shown(devices),
            earlier,
        )
        return [self._explained(entry, facts) for entry in entries]

    def _explained(self, entry: DeviceTaskRecord, facts: _Facts) -> TaskWait:
        progress = self._progress(entry, facts.image)
        if entry.status in ENDED:
            return TaskWait(None, progress)
        return TaskWait(self._sentence(entry, facts, progress), progress)

    def _progress(self, entry: DeviceTaskRecord, image: FirmwareImageRecord | None) -> int | None:
        if entry.download is None or image is None:
            return None
        return min(100, 100 * self._downloads.fetched(entry) // max(1, image.size))

    def _sentence(self, entry: DeviceTaskRecord, facts: _Facts, progress: int | None) -> str:
        if entry.status == DeviceTaskStatus.REQUESTED:
            return "The task is still being given to its devices."
        if entry.acceptance == Acceptance.WAITING:
            return "The owner of the device has not accepted the update yet."
        session, elsewhere = self._work.session_of(entry.device), facts.registrations.get(entry.device)
        is_connected = session is not None or (elsewhere is not None and elsewhere.is_ready)
        is_asleep = elsewhere is not None and elsewhere.is_asleep if session is None else session.is_asleep
        if entry.status == DeviceTaskStatus.QUEUED:
            return self._queued(entry, facts, is_connected)
        if not is_connected:
            return _interrupted(entry, facts.presences[entry.device], progress)
        # While it fetches the image, and while it installs it, what it does says more.
        if is_asleep and not progress and entry.step != Step.REBOOT:
            return "The device sleeps, and is asked when it is heard again."
        if facts.task.image is None:
            return "The device has not answered the request yet."
        return self._under_way(entry, facts, progress)

    def _queued(self, entry: DeviceTaskRecord, facts: _Facts, is_connected: bool) -> str:
        rollout = facts.rollout
        if rollout is not None and rollout.phase is RolloutPhase.PAUSED:
            return (
                f"The roll-out is paused: {rollout.succeeded} of {rollout.ended} canary devices succeeded, and"
                f" {rollout.plan.canary_success_percent} % are needed."
            )
        if not is_connected:
            return _away(entry, facts.presences[entry.device])
        if (earlier := facts.earlier.get(entry.device)) is not None:
            return f"The device is busy with the older task {earlier}."
        if not (facts.task.image is not None or facts.properties_enabled):
            return "Device properties are not enabled for the device type."
        if rollout is not None and rollout.phase is RolloutPhase.CANARY:
            canaries = rollout.plan.canary_devices or 0
            return f"The roll-out waits for its canary devices: {rollout.ended} of {canaries} have ended."
        if rollout is not None and rollout.batch is not None and rollout.running >= rollout.batch:
            return f"The roll-out has {_devices(rollout.running)} under way; the next begins when one has ended."
        if rollout is not None:
            rate = _devices(rollout.plan.devices_per_minute or 0)
            return f"The roll-out begins on {rate} in a minute, and the device's turn comes later."
        return "The device begins now."

    def _under_way(self, entry: DeviceTaskRecord, facts: _Facts, progress: int | None) -> str:
        match Step(entry.step):
            case Step.NONE | Step.CHECK:
                if entry.reported:
                    return f"The device is busy with another update: its update state is {entry.reported}."
                return "The device has not answered the request for its update state yet."
            case Step.OFFER:
                return "The device has not confirmed the address of the image yet."
            case Step.DOWNLOAD:
                if not progress and not self._downloads.fetched(entry):
                    return "The device has the address of the image, and has not begun to download it."
                return f"The device downloads the image: {progress} % so far."
            case Step.INSTALL:
                return "The device has the image, and has not confirmed the order to install it yet."
            case Step.REBOOT:
                return "The device installs the image, and has not registered again yet."
            case Step.VERIFY:
                version = entry.reported or "no version"
                wanted = "a deleted image" if facts.image is None else facts.image.version
                return f"The device reports {version} instead of {wanted}; it is asked up to three times."


def _away(entry: DeviceTaskRecord, presence: PresenceRecord) -> str:
    if presence.is_connected and presence.protocol == "LWM2M" and not entry.attempts:
        return "The device has registered; its properties are read first."
    if entry.attempts and presence.is_connected:
        return "The device did not answer; it is asked again at its next registration or update."
    failed = {0: "", 1: ", and one attempt failed"}.get(entry.attempts, f", and {entry.attempts} attempts failed")
    return f"The device is not connected; it was last seen {_when(presence)}{failed}."


def _devices(number: int) -> str:
    return "one device" if number == 1 else f"{number} devices"


def _interrupted(entry: DeviceTaskRecord, presence: PresenceRecord, progress: int | None) -> str:
    since = _when(presence)
    match Step(entry.step):
        case Step.DOWNLOAD if progress is not None:
            return f"The device's connection was lost after {progress} % of the download; it was last seen {since}."
        case Step.REBOOT | Step.VERIFY:
            return f"The device installs the image, and has not registered again since {since}."
    return f"The device's connection was lost; it was last seen {since}."


def _when(presence: PresenceRecord) -> str:
    if presence.last_seen_on is None:
        return "at an unknown time"
    return dt.datetime.fromtimestamp(presence.last_seen_on / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _earlier(tx: Transaction, task: int, devices: Sequence[DeviceKey]) -> dict[DeviceKey, str]:
    """The id of another task that is under way, by device."""
    found = {}
    for device in devices:
        for entry in tx.tasks.entries_of_device(device, OPEN, limit=10):
            other = None if entry.task == task else tx.tasks.task(entry.task)
            if other is not None and entry.status in {DeviceTaskStatus.PROCESSING, DeviceTaskStatus.CANCEL_REQUESTED}:
                found[device] = other.id
                break
    return found
