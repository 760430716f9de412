"""`trunkline tail --field`: a line for each value, with those before it. The feed itself is in test_commands.py."""

import json
import os
import ssl
import sys
from contextlib import suppress

import pytest
import trio
from click.testing import CliRunner
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketRequest, serve_websocket

from protocols.cli import main, tail
from protocols.cli.tail import Trails, _print_forever, _Printer
from tests.rows import each_row


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


@each_row(
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


async def test_it_ends_when_nobody_reads_its_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`trunkline tail | head -3` does that."""

    async def serve(request: WebSocketRequest) -> None:
        socket = await request.accept()
        with suppress(ConnectionClosed):
            while True:
                await socket.send_message(frame({"n": 1}))

    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve_websocket, serve, "127.0.0.1", 0, None)
            with trio.fail_after(30):
                printer = _Printer(Trails("n").line, None)
                await _print_forever(f"ws://127.0.0.1:{server.port}/", "t", printer, ssl.create_default_context())
            nursery.cancel_scope.cancel()
    assert capsys.readouterr().err == ""


async def test_a_lost_feed_is_opened_again_until_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tail, "_FIRST_WAIT_SECONDS", 0.0)
    opened = 0

    async def serve(request: WebSocketRequest) -> None:
        nonlocal opened
        opened += 1
        if opened == 3:
            await request.reject(401)
            return
        socket = await request.accept()
        await socket.send_message(frame({"n": opened}))
        await socket.aclose(1001, "going away")

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, serve, "127.0.0.1", 0, None)
        printer = _Printer(Trails("n").line, None)
        with pytest.RaisesGroup(ConnectionRejected, allow_unwrapped=True, flatten_subgroups=True):
            await _print_forever(f"ws://127.0.0.1:{server.port}/", "t", printer, ssl.create_default_context())
        nursery.cancel_scope.cancel()
    out, err = capsys.readouterr()
    assert [line.split()[3] for line in out.splitlines()] == ["1", "2"]
    assert err.count("connecting again") == 2


async def test_a_feed_goes_on_behind_the_last_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tail, "_FIRST_WAIT_SECONDS", 0.0)
    paths: list[str] = []

    async def serve(request: WebSocketRequest) -> None:
        paths.append(request.path)
        if len(paths) == 3:
            await request.reject(401)
            return
        socket = await request.accept()
        number = len(paths)
        for told in ({"type": "gap"}, {"mid": f"m{number}", "n": number}, {"type": "position", "mid": f"p{number}"}):
            await socket.send_message(json.dumps(told))
        await socket.aclose(1001, "going away")

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, serve, "127.0.0.1", 0, None)
        url = f"ws://127.0.0.1:{server.port}/live?since=1&sdids=a"
        with pytest.RaisesGroup(ConnectionRejected, allow_unwrapped=True, flatten_subgroups=True):
            await _print_forever(url, "t", _Printer(lambda line: line, None), ssl.create_default_context())
        nursery.cancel_scope.cancel()
    assert paths == ["/live?since=1&sdids=a", "/live?sdids=a&after=p1", "/live?sdids=a&after=p2"]
    out, err = capsys.readouterr()
    assert [json.loads(line)["mid"] for line in out.splitlines()] == ["m1", "m2"]
    assert err.count("retention has deleted") == 2


def test_a_feed_that_was_never_open_ends_the_command() -> None:
    for url in ("ws://127.0.0.1:1/", "http://127.0.0.1:1/"):
        done = CliRunner().invoke(main, ["tail", "--live", url], env={"TRUNKLINE_TOKEN": "t"})
        assert done.exit_code == 1
        assert f"trunkline: {url}: " in done.stderr
