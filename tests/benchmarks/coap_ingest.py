"""CoAP compared with aiocoap's server in the same run: messages, handshakes, memory of sessions, notifications.

    python -m tests.benchmarks.coap_ingest [--seconds 5] [--devices 50]
    python -m tests.benchmarks.coap_ingest --soak 600

The daemon's listener authenticates, normalises and commits each message with synchronous=FULL before it answers.
aiocoap's server answers at once and stores nothing. The load comes from another process (coap_load.py).
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiocoap
import aiocoap.resource

from tests.protocols.coap.dtls.client import make_certificate

_SERVER, _LOAD = "tests.benchmarks.coap_server", "tests.benchmarks.coap_load"
OBSERVERS, SESSIONS, SAMPLES = 100, 1000, 30


def _load(what: str, port: int, *options: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", _LOAD, what, "--port", str(port), "--seconds", str(seconds), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _memory(pid: int) -> float:
    """Resident, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def _processor(pid: int) -> float:
    """Processor seconds of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class _Theirs(aiocoap.resource.Resource):  # type: ignore[misc]
    async def render_post(self, _request: aiocoap.Message) -> aiocoap.Message:
        return aiocoap.Message(code=aiocoap.CREATED, payload=b'{"data":{"mid":"0"}}', content_format=50)


async def _serve_theirs() -> None:
    site = aiocoap.resource.Site()
    site.add_resource(["m"], _Theirs())
    await aiocoap.Context.create_server_context(site, bind=("::ffff:127.0.0.1", 15_683), transports=["udp6"])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()


@contextmanager
def _running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _report(what: str, result: dict[str, Any], cost: float, yardstick: float) -> None:
    print(
        f"{what:<34}{result['rate']:>9,.0f}/s   x{result['rate'] / yardstick:.2f}   {cost * 1e6:>5.0f} µs of CPU each"
        f"   p50 {result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms   lost {result['lost']}"
    )


def _measured(pid: int, what: str, port: int, *options: str, seconds: float, yardstick: float = 0) -> float:
    before = _processor(pid)
    result = _load("posts", port, *options, seconds=seconds)
    answered = result["rate"] * (seconds + 1)  # with the second of warm-up
    _report(what, result, (_processor(pid) - before) / max(answered, 1), yardstick or result["rate"])
    rate: float = result["rate"]
    return rate


def _ours(server: subprocess.Popen[str], ports: dict[str, int], options: argparse.Namespace, theirs: float) -> None:
    pid, seconds, devices = server.pid, options.seconds, ["--devices", str(options.devices)]
    for window in ("1", "20"):
        what = f"plain, {options.devices} devices, {window} in flight"
        _measured(pid, what, ports["coap"], *devices, "--window", window, seconds=seconds, yardstick=theirs)
    for window in ("1", "20"):
        what = f"DTLS, {options.devices} devices, {window} in flight"
        _measured(pid, what, ports["coaps"], *devices, "--window", window, "--dtls", seconds=seconds, yardstick=theirs)
    before = _memory(pid)
    with _running(_LOAD, "idle", "--port", str(ports["coaps"]), "--devices", str(options.sessions)) as idle:
        result = json.loads(_said(idle))
        grown = (_memory(pid) - before) / result["sessions"]
        print(f"handshakes                        {result['rate']:>9,.0f}/s   {result['sessions']} sessions")
        print(f"an idle DTLS session              {grown:>9,.1f} KiB")
    for name, port in (("plain", "coap"), ("DTLS", "coaps")):
        flags = ["--dtls"] if port == "coaps" else []
        command = [_LOAD, "observers", "--port", str(ports[port]), "--devices", str(OBSERVERS), "--seconds"]
        with _running(*command, str(seconds), *flags) as observers:
            time.sleep(2)
            _tell(server, f"actions {seconds}")
            result = json.loads(_said(observers))
        print(f"notifications, {OBSERVERS} observers, {name:<5}{result['rate']:>9,.0f}/s")


def _soak(server: subprocess.Popen[str], ports: dict[str, int], options: argparse.Namespace) -> None:
    """Print the resident memory at full rate, once plain and once over DTLS."""
    for name, port, flags in (("plain", "coap", ()), ("DTLS", "coaps", ("--dtls",))):
        command = (_LOAD, "posts", "--port", str(ports[port]), "--devices", str(options.devices), *flags)
        begin, processor = time.monotonic(), _processor(server.pid)
        print(f"{name}: seconds and MiB resident", end="", flush=True)
        with _running(*command, "--window", "20", "--seconds", str(options.soak)) as load:
            while load.poll() is None:
                print(f"  {time.monotonic() - begin:.0f}:{_memory(server.pid) / 1024:.0f}", end="", flush=True)
                with suppress(subprocess.TimeoutExpired):
                    load.wait(timeout=max(1.0, options.soak / SAMPLES))
            result = json.loads(_said(load))
        cost = (_processor(server.pid) - processor) / max(result["rate"] * options.soak, 1)
        print()
        _report(f"{name}, 20 in flight", result, cost, result["rate"])


def _rate_of_theirs(options: argparse.Namespace) -> float:
    with _running("tests.benchmarks.coap_ingest", "--theirs") as theirs:
        _said(theirs)
        flags = ["--aiocoap", "--devices", str(options.devices)]
        rate = _measured(theirs.pid, "aiocoap's server", 15_683, *flags, seconds=options.seconds)
        print(f"{'':<34}{_memory(theirs.pid) / 1024:>9,.0f} MiB resident after that")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--soak", type=float, default=0.0, help="seconds at full rate, instead of everything else")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="idle DTLS sessions whose memory is measured")
    parser.add_argument("--folder", type=Path, default=None, help="where the store goes; a real disk, not tmpfs")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.theirs:
        asyncio.run(_serve_theirs())
    folder = Path(tempfile.mkdtemp(prefix="coap-", dir=options.folder))
    try:
        rate = 0.0 if options.soak else _rate_of_theirs(options)
        certificate, key = make_certificate(folder, "ecdsa")
        devices = str(max(options.devices, OBSERVERS))
        with _running(_SERVER, str(folder), str(certificate), str(key), devices) as server:
            ports = json.loads(_said(server))
            if options.soak:
                _soak(server, ports, options)
            else:
                _ours(server, ports, options, rate)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
