"""The router: each fact to those who asked for its type, and one bad listener harms nobody."""

from structlog.testing import capture_logs

from broker.facts import DeviceChanged, Fact, Router, TokenRevoked


def test_a_fact_reaches_those_who_asked_for_its_type_in_the_order_in_which_they_asked() -> None:
    router = Router()
    heard: list[str] = []
    router.subscribe(DeviceChanged, lambda fact: heard.append(f"first {fact.device}"))
    router.subscribe(TokenRevoked, lambda _fact: heard.append("other"))
    router.subscribe(DeviceChanged, lambda fact: heard.append(f"second {fact.device}"))
    router.publish(DeviceChanged(7))
    assert heard == ["first 7", "second 7"]


def test_a_fact_that_nobody_asked_for_is_no_error() -> None:
    Router().publish(DeviceChanged(1))


def test_a_handler_that_raises_is_logged_and_harms_neither_the_sender_nor_the_others() -> None:
    router = Router()
    heard: list[Fact] = []

    def fail(_fact: DeviceChanged) -> None:
        raise ZeroDivisionError

    router.subscribe(DeviceChanged, fail)
    router.subscribe(DeviceChanged, heard.append)
    with capture_logs() as logs:
        router.publish(DeviceChanged(1))
        router.publish(DeviceChanged(2))
    assert heard == [DeviceChanged(1), DeviceChanged(2)]
    assert [(entry["event"], entry["fact"]) for entry in logs] == [("fact_handler_failed", "DeviceChanged")] * 2


def test_a_handler_may_publish() -> None:
    router = Router()
    heard: list[Fact] = []
    router.subscribe(DeviceChanged, lambda _fact: router.publish(TokenRevoked(b"x")))
    router.subscribe(TokenRevoked, heard.append)
    router.publish(DeviceChanged(1))
    assert heard == [TokenRevoked(b"x")]
