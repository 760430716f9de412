"""The firmware update of one device, step by step (reference 18.5).

`Updates.advance` takes one step of a device task: it talks to the device, and returns what follows. It writes nothing,
so that a step that a restart interrupts is taken again. Between two steps nothing waits in memory: a step that waits
returns how long, and is taken again then, at a notification, or at the next registration.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from broker.device_management.objects import FIRMWARE_VERSION, PACKAGE_URI, RESULT, STATE, UPDATE
from broker.device_management.sessions import (
    DeviceRefusedError,
    ManagedSession,
    ResourcePath,
    SessionLostError,
    UnreadableAnswerError,
    latest,
)
from broker.device_management.states import ErrorCode, TaskFailure
from storage.firmware import FirmwareImageRecord
from storage.tasks import DeviceTaskRecord

_POLL_SECONDS: Final = 30
_VERIFY_SECONDS: Final = 10
_VERIFICATIONS: Final = 3
_RESTARTS: Final = 3
_IDLE, _DOWNLOADING, _DOWNLOADED, _UPDATING = 0, 1, 2, 3
_SUCCESS: Final = 1
RESULTS: Final = {
    2: "there is not enough storage",
    3: "the device ran out of memory",
    4: "the connection was lost during the download",
    5: "the checksum of the image is wrong",
    6: "the device does not support this kind of package",
    7: "the address of the image is invalid",
    8: "the installation failed",
    9: "the device does not support the protocol of the address",
}


class Step(StrEnum):
    """The next step of a device task; NONE before it has begun."""

    NONE = ""
    CHECK = "CHECK"
    OFFER = "OFFER"
    DOWNLOAD = "DOWNLOAD"
    INSTALL = "INSTALL"
    REBOOT = "REBOOT"
    VERIFY = "VERIFY"


class Go(msgspec.Struct, frozen=True):
    """Take this step now, or in `seconds`. `is_restart`: the download starts over, which counts as an attempt."""

    step: Step
    seconds: int = 0
    tries: int = 0
    is_restart: bool = False


class Rest(msgspec.Struct, frozen=True):
    """The connection is lost: the device task stays PROCESSING and goes on with `step` at the next registration."""

    step: Step


class PutBack(msgspec.Struct, frozen=True):
    """The connection is lost before anything was begun: the device task is QUEUED again."""


class Done(msgspec.Struct, frozen=True):
    """The device runs the version of the image."""


class Failed(msgspec.Struct, frozen=True):
    failure: TaskFailure


Verdict = Go | Rest | PutBack | Done | Failed


class Firmware(msgspec.Struct, frozen=True):
    """Report of a device on its firmware object. None: it did not report this."""

    state: int | None
    result: int
    version: str | None = None


async def advance(
    session: ManagedSession,
    entry: DeviceTaskRecord,
    image: FirmwareImageRecord | None,
    url: str,
    *,
    is_resumed: bool,
) -> tuple[Verdict, Firmware | None]:
    """Take the step in which the device task is; return what follows and what the device said.

    `is_resumed`: the device task came to this step in an earlier registration, or the connection failed since.
    """
    run = _Run(session, entry, image, url, is_resumed)
    step = Step(entry.step)
    try:
        verdict = await run.take(step)
    except SessionLostError:
        verdict = PutBack() if step in {Step.NONE, Step.CHECK, Step.OFFER} else Rest(step)
    except DeviceRefusedError as error:
        # Only the answer to the first question says that the device has no firmware object.
        verdict = Failed(task_failure(error) if step in {Step.NONE, Step.CHECK} else _refused(error))
    except UnreadableAnswerError as error:
        verdict = Failed(TaskFailure(ErrorCode.DEVICE_ERROR, error.reason))
    return verdict, run.firmware


@dataclass(slots=True, eq=False, repr=False)
class _Run:
    _session: ManagedSession
    _entry: DeviceTaskRecord
    _image: FirmwareImageRecord | None
    _url: str
    _is_resumed: bool
    firmware: Firmware | None = field(default=None, init=False)

    async def take(self, step: Step) -> Verdict:
        match step:
            case Step.NONE | Step.CHECK:
                return await self._check()
            case Step.OFFER:
                return await self._offer()
            case Step.DOWNLOAD:
                return await self._download()
            case Step.INSTALL:
                return await self._install()
            case Step.REBOOT:
                return await self._reboot()
            case Step.VERIFY:
                return await self._verify()

    async def _check(self) -> Verdict:
        """Step 2: what the device does now."""
        state = await self._number(STATE)
        self.firmware = Firmware(state, 0)
        if state in {_DOWNLOADING, _UPDATING}:
            return Go(Step.CHECK, _POLL_SECONDS)
        if state == _DOWNLOADED:
            with suppress(DeviceRefusedError):  # the address that follows replaces the image as well
                await self._session.write(PACKAGE_URI, "")
        return Go(Step.OFFER)

    async def _offer(self) -> Verdict:
        """Step 3: where the image is."""
        if self._image is None:
            return Failed(TaskFailure(ErrorCode.IMAGE_NOT_FOUND, "The firmware image was deleted."))
        await self._session.write(PACKAGE_URI, self._url)
        # Its result may still be that of the last update: it is not read before the device has had some time.
        return Go(Step.DOWNLOAD, _POLL_SECONDS)

    async def _download(self) -> Verdict:
        """Step 4: until the device has the image."""
        now = await self._firmware()
        if now.result > _SUCCESS:
            return Failed(of_result(now.result))
        if now.state == _DOWNLOADED:
            return Go(Step.INSTALL)
        if now.state == _UPDATING:
            return Go(Step.REBOOT)
        if now.state == _IDLE and now.result == _SUCCESS and await self._runs_the_image():
            return Done()  # it installed the image by itself
        if now.state == _IDLE and self._is_resumed:
            return self._begin_again()
        return Go(Step.DOWNLOAD, _POLL_SECONDS)

    async def _install(self) -> Verdict:
        """Step 5: tell the device to install."""
        if self._is_resumed:
            now = await self._firmware()
            if now.result > _SUCCESS:
                return Failed(of_result(now.result))
            if now.state == _DOWNLOADING:
                return Go(Step.DOWNLOAD, _POLL_SECONDS)
            if now.state == _UPDATING:
                return Go(Step.REBOOT, _POLL_SECONDS)
            if now.state == _IDLE:
                return Done() if await self._runs_the_image() else self._begin_again()
        try:
            await self._session.execute(UPDATE)
        except SessionLostError:
            return Rest(Step.REBOOT)  # it may reboot before it answers
        return Go(Step.REBOOT, _POLL_SECONDS)

    async def _reboot(self) -> Verdict:
        """Step 6: until the device is there again."""
        try:
            now = await self._firmware()
        except (DeviceRefusedError, UnreadableAnswerError):
            now = Firmware(None, 0)
        if now.result > _SUCCESS:
            return Failed(of_result(now.result))
        # `tries` remembers over several looks that the device has registered again.
        is_back = self._is_resumed or self._entry.tries > 0
        if now.state == _DOWNLOADED and is_back and self._entry.restarts < _RESTARTS:
            return Go(Step.INSTALL, is_restart=True)  # the order to install was lost
        if now.state != _UPDATING and (is_back or (now.state == _IDLE and now.result == _SUCCESS)):
            return Go(Step.VERIFY)
        return Go(Step.REBOOT, _POLL_SECONDS, tries=int(is_back))

    async def _verify(self) -> Verdict:
        """Step 7: the version is that of the image."""
        tries = self._entry.tries + 1
        try:
            version = await self._version()
        except DeviceRefusedError as error:
            return Failed(_refused(error)) if tries >= _VERIFICATIONS else Go(Step.VERIFY, _VERIFY_SECONDS, tries)
        self.firmware = Firmware(None, 0, version)
        if self._image is not None and version == self._image.version:
            return Done()
        if tries < _VERIFICATIONS:
            return Go(Step.VERIFY, _VERIFY_SECONDS, tries)
        wanted = "" if self._image is None else f" instead of {self._image.version}"
        return Failed(
            TaskFailure(ErrorCode.VERSION_MISMATCH, f"The device reports version {version or 'none'}{wanted}.")
        )

    def _begin_again(self) -> Verdict:
        if self._entry.restarts >= _RESTARTS:
            lost = f"The device lost its download {self._entry.restarts + 1} times."
            return Failed(TaskFailure(ErrorCode.DEVICE_TIMEOUT, lost))
        return Go(Step.OFFER, is_restart=True)

    async def _firmware(self) -> Firmware:
        state = await self._number(STATE)
        try:
            result = await self._number(RESULT)
        except DeviceRefusedError:
            result = 0
        self.firmware = Firmware(state, result)
        return self.firmware

    async def _runs_the_image(self) -> bool:
        try:
            return self._image is not None and await self._version() == self._image.version
        except DeviceRefusedError:
            return False

    async def _version(self) -> str:
        return str(latest(await self._session.read(FIRMWARE_VERSION)).get(FIRMWARE_VERSION, ""))

    async def _number(self, path: ResourcePath) -> int:
        value = latest(await self._session.read(path)).get(path)
        try:
            return int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            name = "/".join(map(str, path))
            raise UnreadableAnswerError(f"The device's answer for /{name} is not a number.") from None


def task_failure(error: DeviceRefusedError) -> TaskFailure:
    """The failure of the task that a refusal of the device means."""
    if error.code == "4.04":
        return TaskFailure(ErrorCode.PROPERTY_NOT_FOUND, "The device does not have the resource: 4.04.")
    return _refused(error)


def _refused(error: DeviceRefusedError) -> TaskFailure:
    return TaskFailure(ErrorCode.DEVICE_ERROR, f"The device refused the operation: {error.code}.")


def of_result(result: int) -> TaskFailure:
    reason = RESULTS.get(result, "the device gives no known reason")
    return TaskFailure(f"{ErrorCode.UPDATE_RESULT}_{result}", f"The update failed with result {result}: {reason}.")
