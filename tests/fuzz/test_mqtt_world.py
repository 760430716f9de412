"""The fuzzer's targets run: some inputs that need no engine."""

import random
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.fuzz.mqtt_world import decode, opened

pytestmark = pytest.mark.slow


async def test_inputs_leave_the_services_whole(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as services:
        for number in range(12):
            await services.run(random.Random(number).randbytes(400))  # noqa: S311


def test_streams_do_not_depend_on_how_they_were_cut() -> None:
    for number in range(200):
        decode(random.Random(number).randbytes(200))  # noqa: S311
