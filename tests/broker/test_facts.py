"""The router: each fact reaches the handlers of its type, phase by phase; a failing handler harms no other."""

import ast
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.facts import DeviceChanged, Fact, FactPhase, Router, TokenRevoked
from storage.keys import DeviceKey
from tests.rows import each_row

pytestmark = pytest.mark.slow


def test_a_fact_reaches_the_handlers_of_its_type_in_the_order_of_their_subscriptions() -> None:
    router = Router()
    heard: list[str] = []
    router.subscribe(DeviceChanged, lambda fact: heard.append(f"first {fact.device}"))
    router.subscribe(TokenRevoked, lambda _fact: heard.append("other"))
    router.subscribe(DeviceChanged, lambda fact: heard.append(f"second {fact.device}"))
    router.publish(DeviceChanged(DeviceKey(7)))
    assert heard == ["first 7", "second 7"]


@each_row("order", list(permutations(["caches", "delivers", "counts", "closes"])))
def test_state_is_up_to_date_before_any_effect_whatever_the_order_of_the_subscriptions(order: tuple[str, ...]) -> None:
    router = Router()
    heard: list[str] = []
    phases = {
        "caches": FactPhase.STATE,
        "counts": FactPhase.STATE,
        "delivers": FactPhase.EFFECT,
        "closes": FactPhase.EFFECT,
    }

    def note(name: str, _fact: DeviceChanged) -> None:
        heard.append(name)

    for name in order:
        router.subscribe(DeviceChanged, partial(note, name), phases[name])
    router.publish(DeviceChanged(DeviceKey(7)))
    assert heard == sorted(order, key=lambda name: (phases[name], order.index(name)))


def test_every_subscription_of_the_product_states_its_phase() -> None:
    calls = [
        call
        for folder in ("broker", "protocols")
        for path in Path(folder).rglob("*.py")
        if "subscribe" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("router.subscribe")
    ]
    assert len(calls) > 20
    for call in calls:
        assert ast.unparse(call.args[2]).startswith("FactPhase."), ast.unparse(call)


def test_a_fact_without_subscriptions_is_no_error() -> None:
    Router().publish(DeviceChanged(DeviceKey(1)))


def test_a_handler_that_raises_is_logged_and_harms_neither_the_publisher_nor_the_others() -> None:
    router = Router()
    heard: list[Fact] = []

    def fail(_fact: DeviceChanged) -> None:
        raise ZeroDivisionError

    router.subscribe(DeviceChanged, fail)
    router.subscribe(DeviceChanged, heard.append)
    with capture_logs() as logs:
        router.publish(DeviceChanged(DeviceKey(1)))
        router.publish(DeviceChanged(DeviceKey(2)))
    assert heard == [DeviceChanged(DeviceKey(1)), DeviceChanged(DeviceKey(2))]
    assert [(entry["event"], entry["fact"]) for entry in logs] == [("fact_handler_failed", "DeviceChanged")] * 2


def test_a_handler_may_publish() -> None:
    router = Router()
    heard: list[Fact] = []
    router.subscribe(DeviceChanged, lambda _fact: router.publish(TokenRevoked(b"x")))
    router.subscribe(TokenRevoked, heard.append)
    router.publish(DeviceChanged(DeviceKey(1)))
    assert heard == [TokenRevoked(b"x")]
