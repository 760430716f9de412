"""Whatever happens between a third party and the service: each reading is stored once, and none is missed."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.connectors.plugin import Request, Response
from broker.connectors.port import ThirdPartySilentError
from broker.services import Services
from config.settings import Limits, Settings
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, NOW_MS, build_world
from tests.fakes import BreakableEngine, FakeClock
from tests.properties import examples
from tests.stores import MigratedEngine

pytestmark = pytest.mark.slow


GRACE_MS: Final = 600_000
MINUTE_MS: Final = 60_000
REFERER: Final = "https://app.example.org/"
CONNECTOR: Final[dict[str, Any]] = {
    "device_type": LIGHT_TYPE,
    "pull_minutes": 1,
    "oauth2": {
        "authorize_url": "https://cloud.example/authorize",
        "token_url": "https://cloud.example/token",
        "client_id": "us",
        "pkce": False,
    },
    "parameters": {
        "subscribe": [{"method": "PUT", "url": "https://cloud.example/subscriptions"}],
        "fetch": [
            {
                "url": "https://cloud.example/readings?since={since}",
                "items": "readings",
                "payload": "{temperature: number}",
                "ts": "at",
                "sub_device": "who",
            }
        ],
    },
}
SENSORS: Final = (None, "cellar", "attic")
#: Faults of the third party during one pull.
TROUBLES: Final = ("silent", "busy", "token refused", "token endpoint busy", "client refused")

Step = tuple[str, int, int]
_RARE: Final = ("link", "link fails", "unlink", "revoke", "restart", "kill", "kill while linking")
SECONDS = st.integers(-900, 900)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read"] * 5 + ["pull"] * 4 + ["disk", "disk", "trouble", "unreadable", "set clock", *_RARE]),
        st.integers(0, 2),
        SECONDS,
    ),
    max_size=20,
)


class Cloud:
    """A third party: readings of sensors whose clocks may be wrong.

    `sends_all`: an answer has all readings. Otherwise it has only readings newer than the requested time.
    """

    def __init__(self, clock: FakeClock, *, sends_all: bool) -> None:
        self._clock = clock
        self._sends_all = sends_all
        self.readings: list[dict[str, Any]] = []
        self.offsets = [0, 0, 0]
        self.trouble = ""
        self.holds = ""  # the path whose requests get no answer
        self.held = trio.Event()

    def read(self, sensor: int) -> None:
        at = self._clock.now + self.offsets[sensor] * 1_000
        self.readings.append({"at": at, "number": len(self.readings), "who": SENSORS[sensor]})

    def set_clock(self, sensor: int, seconds: int) -> None:
        # A service that is asked for newer readings only cannot send readings of a slow clock (reference 23.4).
        self.offsets[sensor] = seconds if self._sends_all else abs(seconds)

    async def send(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        parts = urlsplit(request.url)
        if parts.path == self.holds:
            self.held.set()
            await trio.sleep_forever()
        if self.trouble == "silent":
            raise ThirdPartySilentError("nothing")
        match parts.path:
            case "/token":
                return self._token(request)
            case "/subscriptions":
                return Response(500 if self.trouble == "busy" else 200)
            case "/readings":
                return self._readings(int(parse_qs(parts.query)["since"][0]))
        raise AssertionError(request.url)

    def _token(self, request: Request) -> Response:
        if b"refresh_token" in request.body:
            if self.trouble == "client refused":
                return Response(401, {}, b'{"error":"invalid_client"}')
            if self.trouble == "revoked":
                return Response(400, {}, b'{"error":"invalid_grant"}')
            if self.trouble == "token endpoint busy":
                return Response(503)
        return Response(200, {}, b'{"access_token":"a","refresh_token":"r"}')

    def _readings(self, since: int) -> Response:
        if self.trouble == "busy":
            return Response(503)
        if self.trouble in {"token refused", "token endpoint busy", "client refused", "revoked"}:
            if self.trouble == "token refused":
                self.trouble = ""
            return Response(401)
        found = [one for one in self.readings if self._sends_all or not isinstance(one["at"], int) or one["at"] > since]
        return Response(200, {}, msgspec.json.encode({"readings": found}))


class Story:
    """The service, its third party, and what happens to the two."""

    def __init__(self, folder: Path, *, sends_all: bool) -> None:
        self.clock = FakeClock(NOW_MS)
        self.cloud = Cloud(self.clock, sends_all=sends_all)
        self._engine = BreakableEngine(MigratedEngine(folder / "store.sqlite"))
        limits = Limits(rate_limits="off", quotas="off", future_grace_seconds=GRACE_MS // 1_000)
        self._opener = ServicesOpener(
            Settings(state_dir=folder, limits=limits), self._engine, self.clock.clock, third_party=self.cloud
        )
        self._open = AsyncExitStack()

    async def start(self) -> None:
        self.services: Services = await self._open.enter_async_context(self._opener())

    async def stop(self) -> None:
        await self._open.aclose()

    async def play(self, steps: Sequence[Step]) -> None:
        await self.start()
        try:
            await build_world(self.services.core.database, self.services.core.vault)
            await self.services.provisioning.apply({"connectors": [CONNECTOR]})
            await self._link()
            for step in steps:
                await self._step(*step)
                self.clock.advance(1_000)
                self._check_once(await self._stored())
            await self._end()
        finally:
            await self.stop()

    async def _step(self, name: str, sensor: int, number: int) -> None:
        match name:
            case "read":
                self.cloud.read(sensor)
            case "unreadable":
                self.cloud.readings.append({"at": "noon", "number": len(self.cloud.readings), "who": None})
            case "set clock":
                self.cloud.set_clock(sensor, number)
            case "pull":
                await self._pull()
            case "trouble":
                await self._with_trouble(TROUBLES[number % len(TROUBLES)])
            case "disk":
                await self._disk_gets_full(sensor)
            case "link":
                await self._link()
            case "link fails":
                self.cloud.trouble = "busy"
                await self._link()
                self.cloud.trouble = ""
            case "unlink":
                await self.services.connectors.revoke(await self._device())
            case "revoke":
                await self._with_trouble("revoked")
            case "restart":
                await self.stop()
                await self.start()
            case "kill":
                await self._killed("/readings", self._pull)
            case "kill while linking":
                await self._killed("/subscriptions", self._link)

    async def _with_trouble(self, trouble: str) -> None:
        """Pull while something is wrong at the third party."""
        self.cloud.trouble = trouble
        await self._pull()
        self.cloud.trouble = ""

    async def _disk_gets_full(self, commits: int) -> None:
        """Pull, and let this many commits succeed before the disk is full."""
        await self.services.connectors.fetches.pull_due()
        last = self.services.core.database.statistics().commits + commits
        while self.services.connectors.statistics().waiting:
            if self.services.core.database.statistics().commits >= last:
                self._engine.error = StoreError("the disk is full")
            await trio.lowlevel.checkpoint()
        self._engine.error = None
        self.clock.advance(MINUTE_MS)

    async def _killed(self, path: str, work: Any) -> None:
        """Begin a work, and restart when it waits for an answer at this path."""
        self.cloud.holds, self.cloud.held = path, trio.Event()
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await work()
                nursery.cancel_scope.cancel()  # it asked for nothing at this path

            nursery.start_soon(run)
            await self.cloud.held.wait()
            nursery.cancel_scope.cancel()
        await self.stop()
        self.clock.advance(MINUTE_MS)
        self.cloud.holds = ""
        await self.start()

    async def _device(self) -> Any:
        return await self.services.devices.registry.find(KITCHEN)

    async def _link(self) -> None:
        caller = await self.services.accounts.tokens.caller(ADA_TOKEN)
        connectors = self.services.connectors
        begun = await connectors.authorize(caller, await self._device(), referer=REFERER, mobile=False)
        state = parse_qs(urlsplit(begun).query)["state"][0]
        await connectors.authorized(LIGHT_TYPE, {"state": state, "code": "c"})
        await self._quiet()

    async def _pull(self) -> None:
        await self.services.connectors.fetches.pull_due()
        await self._quiet()
        self.clock.advance(MINUTE_MS)  # the next pull is due

    async def _quiet(self) -> None:
        while self.services.connectors.statistics().waiting:
            await trio.lowlevel.checkpoint()

    async def _stored(self) -> Counter[int]:
        rows = await self.services.core.database.read(
            lambda tx: [row["data"] for row in tx.connection.execute("SELECT data FROM message")]
        )
        return Counter(int(msgspec.json.decode(data)["temperature"]) for data in rows)

    def _check_once(self, stored: Counter[int]) -> None:
        assert all(count == 1 for count in stored.values()), stored

    async def _end(self) -> None:
        """Nothing is wrong any more: what may be stored is there after two pulls, and the rest is not."""
        await self._link()
        self.clock.advance(MINUTE_MS)
        await self._pull()
        await self._pull()
        stored = await self._stored()
        self._check_once(stored)
        latest = self.clock.now - MINUTE_MS + GRACE_MS
        readable = [one for one in self.cloud.readings if isinstance(one["at"], int)]
        assert sorted(stored) == [one["number"] for one in readable if one["at"] <= latest]
        await self._check_failed()

    async def _check_failed(self) -> None:
        """Unreadable readings are among the failed messages."""
        found = await self.services.device_types.manifests.failures(LIGHT_TYPE, limit=1_000)
        numbers = {msgspec.json.decode(one.payload).get("number") for one in found.messages if "noon" in one.payload}
        assert numbers == {one["number"] for one in self.cloud.readings if one["at"] == "noon"}


@pytest.mark.both_engines
@settings(max_examples=examples(25))
@given(STEPS, st.tuples(SECONDS, SECONDS, SECONDS), st.booleans())
def test_each_reading_is_stored_once_and_none_is_missed(
    steps: list[Step], clocks: tuple[int, ...], sends_all: bool
) -> None:
    with TemporaryDirectory() as folder:
        story = Story(Path(folder), sends_all=sends_all)
        for sensor, seconds in enumerate(clocks):
            story.cloud.set_clock(sensor, seconds)
        with patch("broker.connectors.hooks.CONNECTOR_HOOK_SECONDS", inf):  # a busy machine may take its time
            trio.run(story.play, steps)
