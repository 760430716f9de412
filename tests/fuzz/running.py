"""Runs the inputs of a target, and checks its rules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.target import MOST_SECONDS, Target, Watch
from tests.fuzz.targets import TARGETS
from tests.fuzz.world import World


@contextmanager
def opened(name: str, times: float = 1.0) -> Iterator[Callable[[bytes], None]]:
    """A function that runs an input, and raises what must not happen. `times` the usual processor time is allowed."""
    target, watch = TARGETS[name], Watch(MOST_SECONDS * times)
    if target.run is not None:
        run = target.run
        yield lambda data: watch.run(lambda given: _refused(target, run, given), data)
        return
    assert target.opened is not None
    with TemporaryDirectory(prefix="trunkline-fuzz-") as folder:
        world = World(target.opened, Path(folder))
        yield lambda data: watch.run(world.run, data)
        world.close()


def _refused(target: Target, run: Callable[[bytes], None], data: bytes) -> None:
    with suppress(*target.allowed):
        run(data)
