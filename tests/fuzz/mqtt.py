"""Fuzz the MQTT decoder and the whole front end: all versions, lasting sessions, and open topics.

    python -m tests.fuzz.mqtt [--seconds 600] [--engine atheris|hypothesis] [FILE ...]

With atheris (the extra `fuzz`), inputs follow the coverage of `protocols.mqtt`, `broker.topics` and
`broker.device_sessions`; else hypothesis makes them up. An input that breaks a rule of `mqtt_world.py` ends the run
and is written to a file, and running the command with that file shows the fault again.
"""

import argparse
import importlib
import importlib.util
import logging
import queue
import random
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from types import ModuleType
from typing import Any, Final

import structlog
import trio
from trio.testing import MockClock

_LONGEST: Final = 1_024
_INSTRUMENTED: Final = ("protocols.mqtt", "protocols.streams.outbox", "broker.topics", "broker.device_sessions")


class World:
    """Runs inputs on services that stay open, one after the other.

    The event loop runs as a guest of this thread: a fuzzing engine calls us, and it must return between two inputs.
    """

    def __init__(self, world: ModuleType, folder: Path) -> None:
        self._world = world
        self.folder = folder
        self._callbacks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._input: bytes | None = None
        self._error: BaseException | None = None
        self.executions = 0
        trio.lowlevel.start_guest_run(
            self._serve,
            run_sync_soon_threadsafe=self._callbacks.put,
            done_callback=self._ended,
            clock=MockClock(),
        )

    def run(self, data: bytes) -> None:
        """Raises what must not happen."""
        self.executions += 1
        if data[:1] > b"\xc0":
            self._world.decode(data[1:])
            return
        self._input = data
        while self._input is not None and self._error is None:
            self._callbacks.get()()
        if self._error is not None:
            traceback.print_exception(self._error)  # atheris shows the outermost of a group only
            raise self._error

    async def _serve(self) -> None:
        async with self._world.opened(self.folder) as services:
            while True:
                while self._input is None:
                    await trio.lowlevel.checkpoint()
                await services.run(self._input)
                self._input = None

    def _ended(self, outcome: Any) -> None:
        self._error = getattr(outcome, "error", None) or RuntimeError("the services have ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), default=None)
    parser.add_argument("files", nargs="*", type=Path, help="inputs to run instead")
    options = parser.parse_args()
    engine = options.engine or ("atheris" if importlib.util.find_spec("atheris") else "hypothesis")
    logging.disable()
    structlog.configure(processors=[_drop])
    with TemporaryDirectory(prefix="trunkline-fuzz-") as folder:
        with _instrumented(engine):
            world_of = importlib.import_module("tests.fuzz.mqtt_world")
        world = World(world_of, Path(folder))
        if options.files:
            for path in options.files:
                world.run(path.read_bytes())
        else:
            {"atheris": _with_atheris, "hypothesis": _with_hypothesis}[engine](world, options.seconds)
        print(f"{engine}: {world.executions:,} executions without a fault", flush=True)


def _drop(*_event: object) -> Any:
    raise structlog.DropEvent


def _instrumented(engine: str) -> Any:
    if engine != "atheris":
        return nullcontext()
    atheris = importlib.import_module("atheris")
    return atheris.instrument_imports(include=list(_INSTRUMENTED))


def _with_atheris(world: World, seconds: int) -> None:
    """libFuzzer ends the process itself: it prints the number of its runs."""
    atheris = importlib.import_module("atheris")
    corpus = world.folder / "corpus"
    corpus.mkdir()
    for number in range(64):
        (corpus / str(number)).write_bytes(random.Random(number).randbytes(16 * (1 + number)))  # noqa: S311
    limits = [f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-timeout=60", "-rss_limit_mb=2048"]
    limits.append(f"-artifact_prefix={Path(gettempdir())}/")
    atheris.Setup([sys.argv[0], *limits, str(corpus)], world.run)
    atheris.Fuzz()


def _with_hypothesis(world: World, seconds: int) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    end = time.monotonic() + seconds
    none = list(HealthCheck)

    @settings(max_examples=1_000, deadline=None, database=None, suppress_health_check=none)
    @given(st.binary(max_size=_LONGEST))
    def one(data: bytes) -> None:
        if time.monotonic() < end:
            world.run(data)

    while time.monotonic() < end:
        one()


if __name__ == "__main__":
    main()
