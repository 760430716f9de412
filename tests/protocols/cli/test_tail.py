"""`trunkline tail --field`: a line for each value, with those before it. The feed itself is in test_commands.py."""

import json

import pytest

from protocols.cli.tail import Trails


def frame(data: object, *, sdid: str = "a", ts: int = 1000) -> str:
    return json.dumps({"mid": "m", "data": data, "ts": ts, "sdid": sdid})


def test_each_device_has_a_sparkline_of_its_own() -> None:
    trails = Trails("temperature")
    lines = [
        trails.line(frame({"temperature": value}, sdid=sdid, ts=ts))
        for sdid, value, ts in (("a", 1, 0), ("b", 9.5, 1000), ("a", 8, 2000), ("a", 1, 60_000))
    ]
    assert lines == [
        "1970-01-01 00:00:00  a             1  ▁",
        "1970-01-01 00:00:01  b           9.5  ▁",
        "1970-01-01 00:00:02  a             8  ▁█",
        "1970-01-01 00:01:00  a             1  ▁█▁",
    ]


def test_a_sparkline_has_forty_values() -> None:
    trails = Trails("n")
    lines = [trails.line(frame({"n": number})) for number in range(100)]
    assert [len((line or "").split()[-1]) for line in lines] == [*range(1, 41), *[40] * 60]


@pytest.mark.parametrize(
    ("path", "data", "is_shown"),
    [
        ("colorRGB.r", {"colorRGB": {"r": 1}}, True),
        ("colorRGB.g", {"colorRGB": {"r": 1}}, False),
        ("colorRGB", {"colorRGB": {"r": 1}}, False),
        ("state.x", {"state": True}, False),
        ("state", {"state": True}, False),
        ("text", {"text": "5"}, False),
        ("actions", {"actions": [{"name": "setOn"}]}, False),
    ],
)
def test_only_messages_with_a_number_are_shown(path: str, data: object, is_shown: bool) -> None:
    assert (Trails(path).line(frame(data)) is not None) is is_shown
