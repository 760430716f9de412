"""Cost of rate limits and quotas, compared with ingest without them in the same run.

    python -m tests.benchmarks.limits [--seconds 2] [--rounds 6]

First in the process: a message of a device is counted and submitted, and committed 500 at a time to a store that does
not wait for the disk, so that nothing hides the cost. Then over MQTT, as in `mqtt_ingest`, and over the device channel,
as in `websocket`: rates, and the time of the daemon for each message, which other work on the machine disturbs less.
The limits are set so high that nothing is refused. Target (issue 6): they cost less than 15 % of the daemon's time on
both. Exits with 1 when it is missed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from broker.limits.meters import Channel
from broker.secrets import Vault
from broker.services import open_services
from config.settings import Limits, Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.keys import OrganizationKey
from tests.benchmarks.load import publish_qos1
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.websocket import cpu_seconds, senders
from tests.benchmarks.websocket_load import Drive
from tests.daemon import Daemon, device_id, device_token, running_daemon
from tests.factories import KITCHEN, KITCHEN_TOKEN, build_world

MOST_COST = 0.15
_HIGH = "1000000/1000000000"
_AT_ONCE = 500
_DEVICES = 50


async def in_process(folder: Path, seconds: float, *, on: bool) -> tuple[float, float]:
    """Messages per second of the whole, and of submitting alone."""
    switch = "on" if on else "off"
    limits = Limits(rate_limits=switch, quotas=switch, mqtt_device=_HIGH)  # type: ignore[arg-type]
    database = Database(SqliteEngine(folder / f"{switch}.sqlite", synchronous="off"))
    settings = Settings(state_dir=folder, limits=limits)
    async with open_services(settings, database, Vault(Vault.new_key())) as services:
        if not await database.read(lambda tx: tx.accounts.organization_named("Acme")):
            await build_world(database, services.core.vault)
            await database.write(
                lambda tx: tx.accounts.change_organization(OrganizationKey(1), name="Acme", monthly_messages=-1)
            )
        await services.limits.quotas.reload()
        device, caller = await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)
        meter = services.limits.meters.of(Channel.MQTT, caller)
        submit, messages, submitting, begin = services.messages.ingest.submit, 0, 0.0, time.perf_counter()
        while (started := time.perf_counter()) - begin < seconds:
            for _ in range(_AT_ONCE):
                if meter is not None:
                    meter.count()
                submit(device, PAYLOAD)
            submitting += time.perf_counter() - started
            await services.messages.ingest.wait_committed()
            messages += _AT_ONCE
        return messages / (time.perf_counter() - begin), messages / submitting


@dataclass(slots=True)
class Side:
    """A daemon with limits or one without, and what was measured with it so far."""

    daemon: Daemon
    messages: int = 0
    seconds: float = 0.0
    used: float = 0.0  # seconds of the daemon

    def measure(self, channel: str, seconds: float) -> None:
        assert self.daemon.process is not None
        process, begin = self.daemon.process.pid, time.perf_counter()
        used = cpu_seconds(process)
        self.messages += CHANNELS[channel](self.daemon, seconds)
        self.used += cpu_seconds(process) - used
        self.seconds += time.perf_counter() - begin

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cost(self) -> float:
        """Microseconds of the daemon for each message."""
        return self.used / self.messages * 1e6


def mqtt(daemon: Daemon, seconds: float) -> int:
    """Messages that 50 devices with 20 in flight sent."""
    credentials = [(device_id(number), device_token(number)) for number in range(_DEVICES)]
    return publish_qos1(daemon.port("mqtt"), credentials, PAYLOAD, window=20, seconds=seconds, warmup=0.0).messages


def websocket(daemon: Daemon, seconds: float) -> int:
    """As `mqtt`."""
    talking = senders(daemon, window=20)
    drive = Drive(talking)
    drive.run(seconds)
    drive.settle(talking)
    drive.close()
    return sum(one.acknowledged for one in talking)


CHANNELS: Mapping[str, Callable[[Daemon, float], int]] = {"MQTT": mqtt, "WebSocket": websocket}


@contextmanager
def side(folder: Path, *, on: bool) -> Iterator[Side]:
    switch = "on" if on else "off"
    (folder / switch).mkdir()
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        names = {"RATE_LIMITS": switch, "QUOTAS": switch, "MQTT_DEVICE": _HIGH, "WEBSOCKET_DEVICE": _HIGH}
        for name, value in names.items():
            environment.setenv(f"TRUNKLINE_LIMITS_{name}", value)
        yield Side(stack.enter_context(running_daemon(folder / switch, devices=_DEVICES)))


def over(channel: str, seconds: float, rounds: int) -> float:
    """The share of limits in the daemon's time. Both daemons run all the time and are measured alternately."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        without, with_limits = (stack.enter_context(side(Path(name), on=on)) for on in (False, True))
        for number in range(rounds):
            for one in (without, with_limits) if number % 2 else (with_limits, without):
                one.measure(channel, seconds)
    cost = with_limits.cost / without.cost - 1
    print(
        f"{channel:<10} {without.rate:>9,.0f} -> {with_limits.rate:>9,.0f} msg/s  {with_limits.rate / without.rate:.2f}"
        f"   daemon {without.cost:>6.1f} -> {with_limits.cost:>6.1f} µs each  {cost:+.1%}"
    )
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    whole, alone = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            off = trio.run(lambda: in_process(folder, options.seconds, on=False))  # noqa: B023
            on = trio.run(lambda: in_process(folder, options.seconds, on=True))  # noqa: B023
        whole.append(on[0] / off[0])
        alone.append(on[1] / off[1])
        print(
            f"in process, submit alone {off[1]:>9,.0f} -> {on[1]:>9,.0f} msg/s  {alone[-1]:.2f}"
            f"   with commits {off[0]:>8,.0f} -> {on[0]:>8,.0f}  {whole[-1]:.2f}"
        )
    submit, ingest = 1 - statistics.median(alone), 1 - statistics.median(whole)
    print(f"median cost in process: submit {submit:.1%}, ingest {ingest:.1%}")
    costs = [over(channel, options.seconds, options.rounds) for channel in CHANNELS]
    sys.exit(0 if max(costs) < MOST_COST else 1)


if __name__ == "__main__":
    main()
