"""A daemon with few descriptors, and strangers or devices that take all of them.

    python -m tests.attacks.descriptors

It prints how long a device that has its connection waits for its answers, and after how long a new one gets in when the
descriptors are free again.
"""

import resource
import socket
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.attacks.measuring import Exchange, reads_a_device
from tests.daemon import USER_TOKEN, Daemon, device_id, running_daemon

_DESCRIPTORS = 300
_SECONDS = 4.0
_ALLOWED_SECONDS = 1.0


def few_descriptors(daemon: Daemon) -> None:
    assert daemon.process is not None
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))


def take_all(daemon: Daemon, stop: threading.Event, *, authenticated: bool) -> None:
    """Open connections until `stop`, then close all of them."""
    call = f"GET /v1.1/devices/{device_id(0)} HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {USER_TOKEN}\r\n\r\n"
    opened: list[socket.socket] = []
    number = 0
    while not stop.wait(0.002):
        number += 1
        if len(opened) >= 2 * _DESCRIPTORS + 2500:  # more than the queue of the kernel takes
            continue
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.1.0.{number % 200 + 1}", 0))
        with suppress(BlockingIOError):
            one.connect(daemon.host_port("http"))
        opened.append(one)
        if authenticated:
            time.sleep(0.001)
            with suppress(OSError):
                one.send(call.encode())
    for one in opened:
        one.close()


def longest_wait(exchange: Exchange, seconds: float) -> float:
    end, longest = time.perf_counter() + seconds, 0.0
    while (begin := time.perf_counter()) < end:
        exchange()
        longest = max(longest, time.perf_counter() - begin)
        time.sleep(0.01)
    return longest


def time_to_get_in(daemon: Daemon) -> float:
    """From now to the first answer on a new connection. A client that is refused tries again after 0.1 s."""
    begin = time.perf_counter()
    while time.perf_counter() < begin + 30:
        with suppress(OSError, AssertionError):
            reads_a_device(daemon)()
            break
        time.sleep(0.1)
    return time.perf_counter() - begin


def main() -> None:
    for authenticated in (False, True):
        with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder), devices=1) as daemon:
            established = reads_a_device(daemon)
            established()
            few_descriptors(daemon)
            stop = threading.Event()
            attack = threading.Thread(target=partial(take_all, daemon, stop, authenticated=authenticated))
            attack.start()
            waited = longest_wait(established, _SECONDS)
            during = threading.Thread(target=partial(time_to_get_in, daemon))
            during.start()  # a client that comes too early
            stop.set()
            attack.join()
            got_in = time_to_get_in(daemon)
            during.join()
            after = longest_wait(established, 1.0)
            verdict = "within bounds" if got_in <= _ALLOWED_SECONDS else "OUT OF BOUNDS"
            print(
                f"descriptors taken by {'callers with a token' if authenticated else 'strangers'}\n"
                f"  an established client waited at most {1000 * waited:.0f} ms, after it {1000 * after:.0f} ms\n"
                f"  a new one got in {got_in:.2f} s after the descriptors were free: {verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
