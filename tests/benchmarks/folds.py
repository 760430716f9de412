"""Cost of snapshots and rollups per message, in processor time of the process, compared with a run without them.

    python -m tests.benchmarks.folds [--seconds 1] [--rounds 5] [--write-seconds 60]

Messages go through ingest and durable commits within the process, without a protocol, so nothing of a socket is in the
figures. With folds and without them take turns. A short run is over before a device is written for the first time;
`--write-seconds 1` writes each device every second, sixty times as often as the daemon.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import trio

from broker.devices.registry import Device
from broker.facts import MessagesStored
from broker.messages import projections, room
from broker.messages.projections import Projector
from broker.services import Services
from tests.benchmarks.rules import bench

_DATA = b'{"temperature":%d.53,"intensity":%d,"state":true,"text":"ok"}'
SIZES = ((50, 20), (50, 1), (1_000, 1), (5_000, 1))


async def processor_us(services: Services, devices: Sequence[Device], in_flight: int, seconds: float) -> float:
    """Processor time of a message in microseconds. Each device sends again when its messages are acknowledged."""
    ingest, sent = services.messages.ingest, 0
    until, used = time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < until:
        for _ in range(in_flight):
            for device in devices:
                sent += 1
                ingest.submit(
                    device, b'{"temperature":%d.53,"intensity":%d,"state":true,"text":"ok"}' % (sent % 30, sent)
                )
        await ingest.wait_committed()
        await trio.lowlevel.checkpoint()
    return (time.process_time() - used) / sent * 1e6


class Switched(Projector):
    """A projector that does not hear of messages while `is_on` is False."""

    is_on = True

    def _messages_stored(self, fact: MessagesStored) -> None:
        if Switched.is_on:
            super()._messages_stored(fact)


async def compare(count: int, in_flight: int, seconds: float, rounds: int) -> None:
    async with bench(count) as one:
        projector = one.services.messages.projector
        with_folds, without = [], []
        await processor_us(one.services, one.devices, in_flight, seconds)
        for _ in range(rounds):
            with_folds.append(await processor_us(one.services, one.devices, in_flight, seconds))
            Switched.is_on = False
            without.append(await processor_us(one.services, one.devices, in_flight, seconds))
            Switched.is_on = True
        cost = statistics.median(a - b for a, b in zip(with_folds, without, strict=True))
        lag = projector.position - projector.statistics().written_position
        print(
            f"{count:>6,} devices x {in_flight:>2}: {statistics.median(without):6.1f} us a message without folds,"
            f" {statistics.median(with_folds):6.1f} with, {cost:+5.1f}; {lag:>8,} positions not written",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write-seconds", type=float, default=projections.WRITE_SECONDS)
    options = parser.parse_args()
    vars(room)["Projector"] = Switched
    vars(projections)["WRITE_SECONDS"] = options.write_seconds
    for count, in_flight in SIZES:
        trio.run(compare, count, in_flight, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
