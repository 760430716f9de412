"""Runs training in a process of its own, bounded in time and memory (`learning` is that process)."""

import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Final, Protocol

import msgspec
import structlog
import trio

from broker.errors import DomainError
from broker.models.state import Learned, TrainingJob
from broker.threads import run_in_thread
from config.limits import MODEL_TRAINING_WAIT_SECONDS


@dataclass(eq=False)
class LearningNotInstalled(DomainError):
    """The library that trains models is an optional part of the installation."""

    status = 501
    template = "This server cannot train models: its operator can install the extra learning"


class LearningFailed(Exception):
    """Training ended without a result; the text says why."""


_COMMAND: Final = (sys.executable, "-P", "-m", "broker.models.learning")
#: Nothing of the daemon's environment, which may have secrets. One thread: another would take the daemon's processor.
_ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_log = structlog.get_logger(__name__)


class Learner(Protocol):
    @property
    def is_installed(self) -> bool: ...

    async def __call__(self, job: TrainingJob) -> Learned:
        """Raises LearningFailed."""


class ProcessLearner:
    @property
    def is_installed(self) -> bool:
        return find_spec("river") is not None

    async def __call__(self, job: TrainingJob) -> Learned:
        """Raises LearningFailed."""
        body = await run_in_thread(partial(msgspec.json.encode, job))
        try:
            with trio.move_on_after(MODEL_TRAINING_WAIT_SECONDS) as time:
                ended = await trio.run_process(
                    _COMMAND,
                    stdin=body,
                    capture_stdout=True,
                    capture_stderr=True,
                    env=_ENVIRONMENT,
                    check=False,
                )
        except OSError as error:
            raise LearningFailed(f"no process can be started: {error.strerror}") from error
        if time.cancelled_caught:
            raise LearningFailed(f"training took more than {MODEL_TRAINING_WAIT_SECONDS} seconds")
        try:
            learned = msgspec.json.decode(ended.stdout or b"", type=Learned)
        except msgspec.DecodeError as error:
            said = (ended.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
            _log.warning("training_process_failed", status=ended.returncode, said=said[:200])
            raise LearningFailed("the values cannot be learned from") from error
        if not learned.is_finite:
            raise LearningFailed("the values cannot be learned from")
        return learned
