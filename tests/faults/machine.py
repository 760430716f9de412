"""Faults of the daemon and of its machine, over any store."""

import json
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.daemon import Daemon, device_id, device_token
from tests.faults.clients import PROTOCOLS, RefusedError, mqtt_link
from tests.faults.world import Act, Fleet, Row, W, World, make_rounds, process_of, under_load, wait

_STOPPED_SECONDS: Final = 8.0
#: Forwards and backwards, by an hour as of a wrong time zone, and to where a machine without a battery begins.
_JUMPS: Final = ("+1h", "-1h", "+400d", "-20000d", "+0")
_EXHAUSTED_SECONDS: Final = 3.0
_STRANGERS: Final = 200
#: What the daemon may take for a flood.
_MORE_MIB: Final = 16
_FLOOD_SECONDS: Final = 5.0
_FLOODS: Final = 40
_FLOOD_BYTES: Final = 900
#: Of the floods, those over MQTT: of devices whose own client has another protocol, because each has one connection.
_OVER_MQTT: Final = (1, 3)


def directly(fault: str, seen: str, act: Act[W], *, most: int = 120) -> Callable[[W, int], Row]:
    """Rounds of a fault that needs only the daemon; see `make_rounds`."""

    def run(world: W, rounds: int) -> Row:
        with ExitStack() as held:
            return make_rounds(world, Row(fault, seen, rounds), world.daemon(held), act, most=most)

    return run


def kill(_world: World, daemon: Daemon, _fleet: Fleet) -> float:
    daemon.kill()
    at = time.monotonic()
    daemon.start()
    return at


def _stop(_world: World, daemon: Daemon, _fleet: Fleet) -> float:
    os.kill(process_of(daemon), signal.SIGSTOP)
    time.sleep(_STOPPED_SECONDS)
    os.kill(process_of(daemon), signal.SIGCONT)
    return time.monotonic()


class Clock:
    """The clock of processes that start with its environment: libfaketime moves it, and not their steady clock."""

    def __init__(self, folder: Path, library: str = "libfaketimeMT.so.1") -> None:
        self._file = folder / "offset"
        folder.chmod(0o755)
        self.environment = {
            "LD_PRELOAD": str(faketime(library)),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.jump("+0")

    def jump(self, offset: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset}\n", encoding="ascii")
        fresh.chmod(0o644)
        fresh.replace(self._file)


def faketime(name: str) -> Path:
    """The library. Raises FileNotFoundError."""
    library = next(Path("/usr/lib").glob(f"*/faketime/{name}"), None)
    if library is None:
        raise FileNotFoundError("libfaketime is not installed")
    return library


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Processes that start within the block have the variables."""
    former = dict(os.environ)
    os.environ |= variables
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= former


def clock_jumps(world: World, rounds: int) -> Row:
    """Devices on each protocol are acknowledged after each jump. Tokens of users end on the way, so none is used."""
    row = Row(f"the daemon's clock jumps: {', '.join(_JUMPS)}", "nothing", rounds)
    with TemporaryDirectory(prefix="trunkline-clock-") as name, ExitStack() as held:
        clock = Clock(Path(name))
        held.enter_context(environment(clock.environment))

        def act(_world: World, _daemon: Daemon, fleet: Fleet) -> float:
            at = 0.0
            for jump in _JUMPS:
                at = time.monotonic()
                clock.jump(jump)
                fleet.goes_on(at)
            return at

        return make_rounds(world, row, world.daemon(held), act, protocols=PROTOCOLS)


def descriptors(world: World, rounds: int) -> Row:
    """The process may open no more files than it has: strangers have the last ones. Other clients come meanwhile."""
    row = Row(
        f"no free descriptors for {_EXHAUSTED_SECONDS:.0f} s, and new clients of each protocol",
        "`connections_refused` once for each listener",
        rounds,
    )

    def act(world: World, daemon: Daemon, _fleet: Fleet) -> float:
        process = process_of(daemon)
        former = resource.prlimit(process, resource.RLIMIT_NOFILE)
        highest = max(int(one.name) for one in Path(f"/proc/{process}/fd").iterdir())
        resource.prlimit(process, resource.RLIMIT_NOFILE, (highest + 1, former[1]))
        with ExitStack() as held:
            for number in range(_STRANGERS):
                one = held.enter_context(closing(socket.socket()))
                one.setblocking(False)
                one.bind((f"127.1.0.{number + 1}", 0))
                with suppress(BlockingIOError):
                    one.connect(daemon.host_port("mqtt" if number % 2 else "http"))
            with under_load(world, row, [daemon], protocols=PROTOCOLS):
                time.sleep(_EXHAUSTED_SECONDS)
        resource.prlimit(process, resource.RLIMIT_NOFILE, former)
        return time.monotonic()

    with ExitStack() as held:
        return make_rounds(world, row, world.daemon(held), act)


def flooded(world: World, rounds: int, *, more: int = _MORE_MIB) -> Row:
    """Devices send long messages as fast as the daemon takes them, and read no answer, while it may have little more
    memory than before. A daemon that ends is started again, as systemd does."""
    row = Row(
        f"a flood of messages with {more} MiB of memory more than before",
        "nothing; without memory, systemd restarts the daemon",
        rounds,
    )
    ended = 0

    def act(world: World, daemon: Daemon, fleet: Fleet) -> float:
        nonlocal ended
        process = process_of(daemon)
        former = resource.prlimit(process, resource.RLIMIT_DATA)
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
        most = (int(status.split("VmData:")[1].split()[0]) << 10) + (more << 20)
        resource.prlimit(process, resource.RLIMIT_DATA, (most, former[1]))
        stop = threading.Event()
        floods = [
            threading.Thread(target=partial(_flood, daemon, n % world.devices, stop, over_mqtt=n in _OVER_MQTT))
            for n in range(_FLOODS)
        ]
        for one in floods:
            one.start()
        time.sleep(_FLOOD_SECONDS)
        stop.set()
        for one in floods:
            one.join()
        at = time.monotonic()
        with suppress(ProcessLookupError):
            resource.prlimit(process, resource.RLIMIT_DATA, former)
        running = daemon.process
        assert running is not None
        wait(lambda: running.poll() is not None or fleet.acknowledged[-1][0] > at, "an acknowledgement, or an end")
        if running.poll() is not None:
            ended += 1
            daemon.kill()
            daemon.start()
        return at

    with ExitStack() as held:
        row = make_rounds(world, row, world.daemon(held), act)
    row.fault += f"; the daemon ended {ended} times"
    return row


def _flood(daemon: Daemon, device: int, stop: threading.Event, *, over_mqtt: bool) -> None:
    """Messages of a device, without a look at their answers."""
    text = json.dumps({"intensity": 0, "filler": "x" * _FLOOD_BYTES}).encode()
    while not stop.is_set():
        with suppress(OSError, RefusedError), ExitStack() as held:
            if over_mqtt:
                link = mqtt_link(daemon, device, held, 1.0)
                topic = f"/v1.1/messages/{device_id(device)}".encode()
                body = struct.pack("!H", len(topic)) + topic + b"\x00\x01" + text
                size = len(body)
                length = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
                packet = b"\x32" + length + body
            else:
                link = held.enter_context(socket.create_connection(daemon.host_port("http"), timeout=1))
                content = b'{"data":%b}' % text
                packet = (
                    f"POST /v1.1/messages HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {device_token(device)}\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                ).encode() + content
            while not stop.is_set():
                link.sendall(packet)


killed: Final = directly("kill -9 of the daemon", "systemd restarts the daemon", kill, most=400)

#: Each fault by its short name: how many rounds it has for each round that is wished, and what makes them.
FAULTS: Final[dict[str, tuple[float, Callable[[World, int], Row]]]] = {
    "stopped": (0.25, directly(f"SIGSTOP for {_STOPPED_SECONDS:.0f} s", "nothing", _stop)),
    "daemon's clock": (0.25, clock_jumps),
    "descriptors": (0.25, descriptors),
    "memory": (0.25, flooded),
    "no memory": (0.25, partial(flooded, more=0)),
}
