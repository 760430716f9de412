"""Faulty plug-ins do not affect the daemon, and the results of hooks are checked."""

import math
import threading
from collections.abc import Callable
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from broker.connectors.catalog import load_plugin, make_plugin
from broker.connectors.generic import GenericConnector
from broker.connectors.hooks import Hooks, PluginFailedError, Record
from broker.connectors.plugin import (
    AccessToken,
    Account,
    ActionDefinition,
    ConnectorPlugin,
    Event,
    IncomingRequest,
    LinkedDevice,
    Notification,
    Notified,
    Phase,
    Remember,
    Request,
    Response,
    Setting,
    Unreadable,
)
from broker.connectors.terms import ConnectorTerms
from config.limits import CONNECTOR_HOOK_SECONDS
from tests.plugin_distribution import install_plugins
from tests.rows import each_row

DEVICE = LinkedDevice("d" * 32, AccessToken(value="t"))
REQUEST = Request("GET", "https://cloud.example/")
SETTING = Setting("dt1", {}, lambda: "https://we.example/")


class Plugin(ConnectorPlugin):
    """A plug-in whose hooks return what the test gives."""

    def __init__(self, hook: Callable[[], Any]) -> None:
        super().__init__(SETTING)
        self._hook = hook

    def fetch(self, *_about: object) -> Any:
        return self._hook()

    def fetch_response(self, *_about: object) -> Any:
        return self._hook()

    def notification(self, *_about: object) -> Any:
        return self._hook()


def hooks(returned: Any) -> Hooks:
    return Hooks(Plugin(lambda: returned))


async def fetched(returned: Any) -> Any:
    return await hooks(returned).fetched(DEVICE, REQUEST, Response(200))


async def test_results_of_a_fetch_are_converted() -> None:
    outcome = await fetched(
        [
            Event({"a": 1}, ts=5),
            Event({"actions": []}, kind="action", sub_device="x"),
            ActionDefinition("setOn", {"level": 3}, sub_device="y"),
            ActionDefinition("setOff"),
            Remember("since", "7"),
            Account("ada"),
        ]
    )
    assert outcome.records == (
        Record(b'{"a":1}', 5, None, is_action=False),
        Record(b'{"actions":[]}', None, "x", is_action=True),
        Record(b'{"actions":[{"name":"setOn","parameters":{"level":3}}]}', None, "y", is_action=True),
        Record(b'{"actions":[{"name":"setOff"}]}', None, None, is_action=True),
    )
    assert (outcome.remembered, outcome.account) == ((Remember("since", "7"),), "ada")


@each_row(
    "returned",
    [
        None,
        7,
        ["text"],
        [None],
        repeat(Event({})),
        [Event({"a": object()})],
        [Event({}, kind="other")],  # type: ignore[arg-type]
        [Event({}, series="a\nb")],
        [Unreadable({}, "a reason", series="x" * 129)],
        [Unreadable(object(), "a reason")],
        [Remember("", "x")],
        [Remember("x", "y" * 20_000)],
        [Remember("x", 7)],  # type: ignore[arg-type]
        [Account("")],
    ],
)
async def test_invalid_results(returned: Any) -> None:
    with pytest.raises(PluginFailedError, match="fetch_response"):
        await fetched(returned)


@pytest.mark.parametrize(
    "event",
    [
        Event({"a": "x" * 100_000}, 5, series="s"),
        Event({}, sub_device=""),
        Event({}, sub_device="x" * 129),
        Event({}, sub_device="a\nb"),
        Event({}, sub_device=7),  # type: ignore[arg-type]
    ],
)
async def test_an_event_that_cannot_be_stored_harms_no_other(event: Event) -> None:
    bad, good = (await fetched([event, Event({"a": 1})])).records
    assert (bad.ts, bad.sub_device, bad.series) == (None, None, event.series)
    assert bad.problem
    assert good == Record(b'{"a":1}', None, None, is_action=False)


@each_row(
    "returned",
    [
        None,
        [None],
        ["https://cloud.example/"],
        [Request("STEAL", "https://cloud.example/")],
        [Request("GET", "https://cloud.example/" + "x" * 8000)],
        [Request("GET", "https://cloud.example/", body=b"x" * (1024 * 1024 + 1))],
        [REQUEST] * 21,
        (REQUEST for _ in count()),
    ],
)
async def test_invalid_requests(returned: Any) -> None:
    with pytest.raises(PluginFailedError, match="fetch"):
        await hooks(returned).fetch(DEVICE)


@each_row(
    "returned",
    [
        None,
        Notification(status=99),
        Notification(status=True),
        Notification(body="text"),  # type: ignore[arg-type]
        Notification(body=b"x" * 70_000),
        Notification([Notified()]),
        Notification([Notified(device="a", account="b")]),
        Notification([Notified(device="")]),
        Notification([Notified(device="a")] * 101),
        Notification([Notified(device="a", results=[7])]),  # type: ignore[list-item]
    ],
)
async def test_invalid_notifications(returned: Any) -> None:
    with pytest.raises(PluginFailedError, match="notification"):
        await hooks(returned).notification(IncomingRequest("GET", {}, {}, b""))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("for the operator"), "fetch: ValueError: for the operator"),
        (RuntimeError("may have a secret"), "fetch: RuntimeError"),
        (SystemExit(1), "fetch: SystemExit"),
        (KeyboardInterrupt(), "fetch: KeyboardInterrupt"),
    ],
)
async def test_every_exception_of_a_hook_is_one_failure(error: BaseException, text: str) -> None:
    def fail() -> Any:
        raise error

    with pytest.raises(PluginFailedError) as raised:
        await Hooks(Plugin(fail)).fetch(DEVICE)
    assert str(raised.value) == text


async def test_hooks_that_hang_are_abandoned(autojump_clock: MockClock) -> None:
    released = threading.Event()
    hanging = Hooks(Plugin(lambda: released.wait(60)))
    try:
        for _ in range(5):  # one more than it has threads
            began = trio.current_time()
            with pytest.raises(PluginFailedError, match=f"not done after {CONNECTOR_HOOK_SECONDS} s"):
                await hanging.fetch(DEVICE)
            assert trio.current_time() - began == pytest.approx(CONNECTOR_HOOK_SECONDS)
        autojump_clock.autojump_threshold = math.inf  # a thread has to do the work of the next one
        assert await hooks([REQUEST]).fetch(DEVICE) == (REQUEST,)
    finally:
        released.set()


async def test_hooks_run_in_worker_threads() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> Any:
        entered.set()
        assert leave.wait(30)
        return [REQUEST]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Hooks(Plugin(hold)).fetch, DEVICE)
        while not entered.is_set():  # the event loop keeps running
            await trio.lowlevel.checkpoint()
        leave.set()


async def test_the_default_hooks_do_nothing() -> None:
    plain = Hooks(ConnectorPlugin(SETTING))
    assert await plain.prepared(REQUEST, DEVICE, Phase.FETCH) is None
    assert await plain.subscribe(DEVICE) == await plain.unsubscribe(DEVICE) == await plain.fetch(DEVICE) == ()
    assert await plain.action(DEVICE, ActionDefinition("setOn")) == ()
    assert (await plain.fetched(DEVICE, REQUEST, Response(200))).records == ()
    assert (await plain.subscribed(DEVICE, REQUEST, Response(201))).records == ()
    assert (await plain.notification(IncomingRequest("GET", {}, {}, b""))).status == 404
    await plain.unsubscribed(DEVICE, REQUEST, Response(500))
    with pytest.raises(PluginFailedError, match="answered with 403"):
        await plain.subscribed(DEVICE, REQUEST, Response(403))


def test_tokens_are_not_shown() -> None:
    token = AccessToken(value="visible", secret="visible", refresh="visible")
    assert "visible" not in repr(LinkedDevice("d", token))
    assert "visible" not in repr(Request("POST", "https://cloud.example/", body=b"visible"))


# Installed plug-ins


MODULE = """
from broker.connectors.plugin import ConnectorPlugin

class Good(ConnectorPlugin):
    pass

class Choosy(ConnectorPlugin):
    def __init__(self, setting):
        raise ValueError(f"needs room, got {sorted(setting.parameters)}")

class NoPlugin:
    pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = {"good": "Good", "choosy": "Choosy", "no-plugin": "NoPlugin", "gone": "Gone", "generic": "Good"}
    install_plugins(
        tmp_path,
        monkeypatch,
        modules={"acme_connectors": MODULE, "acme_broken": "raise SystemExit('at import')"},
        plugins={name: f"acme_connectors:{kind}" for name, kind in plugins.items()} | {"broken": "acme_broken:Any"},
    )


@pytest.mark.usefixtures("installed")
def test_an_installed_plug_in_is_found() -> None:
    plugin = make_plugin(ConnectorTerms(plugin="good"), SETTING)
    assert type(plugin).__name__ == "Good"


@pytest.mark.usefixtures("installed")
def test_an_installed_plug_in_cannot_replace_generic() -> None:
    assert load_plugin("generic") is GenericConnector


@pytest.mark.usefixtures("installed")
@each_row(
    ("name", "problem"),
    [
        ("unknown", "no plug-in 'unknown' is installed"),
        ("no-plugin", "acme_connectors:NoPlugin is no ConnectorPlugin"),
        ("gone", "gone: AttributeError"),
        ("broken", "broken: SystemExit"),
        ("choosy", r"choosy: ValueError: needs room, got \[\]"),
    ],
)
def test_a_plug_in_that_cannot_be_used(name: str, problem: str) -> None:
    with pytest.raises(PluginFailedError, match=problem):
        make_plugin(ConnectorTerms(plugin=name), SETTING)
