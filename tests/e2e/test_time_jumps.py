"""The real daemon on a clock that jumps, on every protocol, with quotas and retention on (reference 27.7)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from protocols.operation.time_sync import is_clock_synchronized
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id
from tests.faults.clients import PROTOCOLS
from tests.programs import skip_without
from tests.properties import in_ci

SETTINGS = '[storage]\nretention_days = 30\n[coap]\nbind = "127.0.0.1:0"\n'
NEAR_MS = 600_000  # less than any jump, more than a busy machine takes


class Time:
    """Sets the clock of daemons that run with libfaketime. Their steady clock is left alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set("+0")

    def set(self, offset: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset}\n", encoding="ascii")
        fresh.replace(self._file)  # the daemon never reads half of it


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Time:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        skip_without("libfaketime")
    found = Time(tmp_path / "offset")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(tmp_path / "offset"))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("TRUNKLINE_LIMITS_QUOTAS", "on")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    return found


@contextmanager
def running(tmp_path: Path) -> Iterator[Daemon]:
    with (tmp_path / "log").open("a", encoding="utf-8") as log:
        daemon = Daemon(tmp_path / "state", SETTINGS, log=log)
        try:
            yield daemon
        finally:
            daemon.stop()


def send(daemon: Daemon, value: int) -> None:
    """A message by each protocol; each is acknowledged, so no quota refuses it."""
    for device, protocol in enumerate(PROTOCOLS):
        with ExitStack() as held:
            protocol(daemon, device, held)(value)


def messages(daemon: Daemon, start_ms: int, end_ms: int) -> list[tuple[int, int, int]]:
    """Value, ts and cts of every message in the range, by value."""
    found = []
    for device in range(len(PROTOCOLS)):
        parameters: dict[str, str | int] = {
            "sdid": device_id(device),
            "startDate": start_ms,
            "endDate": end_ms,
            "count": 100,
        }
        answer = httpx.get(f"{daemon.base_url}/messages", params=parameters, headers=bearer(USER_TOKEN), timeout=30)
        found += [(one["data"]["intensity"], one["ts"], one["cts"]) for one in answer.raise_for_status().json()["data"]]
    return sorted(found)


def wait_for_log(tmp_path: Path, event: str) -> None:
    while event not in (tmp_path / "log").read_text(encoding="utf-8"):
        time.sleep(0.05)


@in_ci
@pytest.mark.timeout(300)  # the library reads its file for each look at the clock
def test_a_clock_that_jumps_poisons_locks_out_and_deletes_nothing(tmp_path: Path, faked: Time) -> None:
    each = len(PROTOCOLS)
    with running(tmp_path) as daemon:
        daemon.configure(devices=each)
        daemon.start()
        send(daemon, 1)
        faked.set("+1h")
        send(daemon, 2)
        faked.set("+0")
        send(daemon, 3)  # `ts` and `cts` are the clock's again, at once
        now_ms = time.time_ns() // 1_000_000
        lately = messages(daemon, now_ms - NEAR_MS, now_ms + NEAR_MS)
        assert [value for value, _, _ in lately] == [1] * each + [3] * each
        assert all(abs(cts - now_ms) < NEAR_MS for _, _, cts in lately)

        faked.set("+400d")  # in the middle of which the daemon starts again
        send(daemon, 4)
        assert daemon.stop() == 0
        daemon.start()
        send(daemon, 5)
        if not is_clock_synchronized():  # else the daemon believes the operating system
            wait_for_log(tmp_path, "nothing_is_deleted")
        faked.set("-20000d")  # a machine without a battery
        send(daemon, 6)
        assert daemon.stop() == 0
        faked.set("+0")
        daemon.start()
        send(daemon, 7)
        now_ms = time.time_ns() // 1_000_000
        found = messages(daemon, 0, now_ms + 500 * 86_400_000)
        if not is_clock_synchronized():
            assert [value for value, _, _ in found] == [value for value in range(1, 8) for _ in range(each)]
        latest = [(ts, cts) for value, ts, cts in found if value == 7]
        assert all(abs(ts - now_ms) < NEAR_MS and abs(cts - now_ms) < NEAR_MS for ts, cts in latest)
