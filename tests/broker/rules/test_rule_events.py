"""Who hears of a rule on /events: its user through its application, and that application (reference 20)."""

from broker.facts import RuleReported
from broker.routing.events import EventNames, EventSubscriber, FeedEvent
from broker.services import Services
from protocols.websocket.events import EventSelection
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB_TOKEN, DASHBOARD, World


async def test_an_event_of_a_rule_goes_to_its_user_and_its_application(services: Services, world: World) -> None:
    seen: list[FeedEvent] = []

    def take(event: FeedEvent) -> bool:
        seen.append(event)
        return False

    subscriber = EventSubscriber(take, lambda _: None, lambda _: b"", b"", lambda _: None)
    with services.routing.events.subscribe(subscriber):
        services.core.router.publish(
            RuleReported("failed", "5" * 32, world.ada, ADA, world.application, DASHBOARD, "rule.then.0", "why", 7)  # type: ignore[arg-type]
        )
    (event,) = seen
    assert (event.name, event.ts) == ("rule.failed", 7)
    assert event.data == {"uid": ADA, "aid": DASHBOARD, "rid": "5" * 32, "field": "rule.then.0", "message": "why"}
    for token, concerned in ((ADA_TOKEN, True), (APPLICATION_TOKEN, True), (BOB_TOKEN, False)):
        caller = await services.accounts.tokens.caller(token)
        reach = await services.accounts.permissions.reach(caller)
        assert EventSelection(reach, EventNames(["rule.*"])).concerns(event) is concerned, token
        assert not EventSelection(reach, EventNames(["device.*"])).concerns(event)
