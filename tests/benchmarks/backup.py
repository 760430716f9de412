"""Cost of a running backup for ingest: MQTT QoS 1 with and without one, alternating on one daemon.

    python -m tests.benchmarks.backup [--seconds 2] [--rounds 4] [--rate 16]

The daemon and the load generator keep both cores of a small machine busy, so this is the worst case: what the backup
takes, it takes from them. `--rate` and the priority are those of systemd/trunkline-backup.service.
"""

import argparse
import itertools
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.load import publish_qos1
from tests.daemon import TRUNKLINE, Daemon, device_id, device_token, running_daemon

_DEVICES = 50
_PAYLOAD = b'{"state":true,"intensity":50}'
_FILL_SECONDS = 8.0


def messages_a_second(daemon: Daemon, seconds: float) -> float:
    credentials = [(device_id(number), device_token(number)) for number in range(_DEVICES)]
    return publish_qos1(daemon.port("mqtt"), credentials, _PAYLOAD, window=20, seconds=seconds, warmup=0.5).rate


@contextmanager
def backing_up(daemon: Daemon, folder: Path, rate: float, numbers: Iterator[int]) -> Iterator[subprocess.Popen[bytes]]:
    target = folder / f"{next(numbers)}.tar.gz"
    words: list[str | Path] = [
        "nice",
        "-n",
        "19",
        TRUNKLINE,
        "backup",
        target,
        "--rate",
        str(rate),
        "--config",
        daemon.config,
    ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rate", type=float, default=16, help="MiB a second")
    options = parser.parse_args()
    without, during, numbers = [], [], itertools.count()
    with tempfile.TemporaryDirectory() as name, running_daemon(Path(name), devices=_DEVICES) as daemon:
        messages_a_second(daemon, _FILL_SECONDS)
        size = sum(path.stat().st_size for path in daemon.state.glob("store.sqlite*")) / 1048576
        print(f"store: {size:,.0f} MiB, so a backup takes at least {2 * size / options.rate:,.0f} s")
        for number in range(options.rounds):
            for is_backing_up in (False, True) if number % 2 else (True, False):
                if not is_backing_up:
                    without.append(messages_a_second(daemon, options.seconds))
                    continue
                with backing_up(daemon, Path(name), options.rate, numbers) as process:
                    during.append(messages_a_second(daemon, options.seconds))
                    assert process.poll() is None, "the backup has ended before the measurement: use a longer fill"
    ratios = [one / other for one, other in zip(during, without, strict=True)]
    print(f"without {statistics.median(without):,.0f} msg/s, during a backup {statistics.median(during):,.0f} msg/s")
    print(f"ratio {statistics.median(ratios):.2f} (of each round: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
