"""Receivers of events of rules and subscriptions: their users through their applications, and these (reference 20)."""

from msgspec.structs import replace

from broker.accounts.permissions import Reach
from broker.accounts.tokens import Caller
from broker.facts import Fact, RuleReported, SubscriptionReported
from broker.routing.events import EventNames, EventSubscriber, FeedEvent
from broker.services import Services
from protocols.websocket.events import EventSelection
from storage.keys import ApplicationKey, Milliseconds
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB_TOKEN, DASHBOARD, World


async def told(services: Services, fact: Fact, pattern: str) -> FeedEvent:
    """The event of a fact. Checks who may have it."""
    seen: list[FeedEvent] = []

    def take(event: FeedEvent) -> bool:
        seen.append(event)
        return False

    subscriber = EventSubscriber(take, lambda _: None, lambda _: b"", b"", lambda _: None)
    with services.routing.events.subscribe(subscriber):
        services.core.router.publish(fact)
    (event,) = seen
    for token, concerned in ((ADA_TOKEN, True), (APPLICATION_TOKEN, True), (BOB_TOKEN, False)):
        caller = await services.accounts.tokens.caller(token)
        reach = await services.accounts.permissions.reach(caller)
        assert EventSelection(reach, EventNames([pattern])).concerns(event) is concerned, token
        assert not EventSelection(reach, EventNames(["device.*"])).concerns(event)
        elsewhere = replace(caller, application=ApplicationKey(99))
        assert not EventSelection(replace_caller(reach, elsewhere), EventNames([pattern])).concerns(event)
    return event


def replace_caller(reach: Reach, caller: Caller) -> Reach:
    return Reach(caller, reach._grants)


async def test_an_event_of_a_rule_goes_to_its_user_and_its_application(services: Services, world: World) -> None:
    at_ms = Milliseconds(7)
    fact = RuleReported("failed", "5" * 32, world.ada, ADA, world.application, DASHBOARD, "rule.then.0", "why", at_ms)
    event = await told(services, fact, "rule.*")
    assert (event.name, event.ts) == ("rule.failed", 7)
    assert event.data == {"uid": ADA, "aid": DASHBOARD, "rid": "5" * 32, "field": "rule.then.0", "message": "why"}


async def test_an_event_of_a_subscription_goes_to_its_user_and_its_application(
    services: Services, world: World
) -> None:
    at_ms = Milliseconds(7)
    fact = SubscriptionReported("suspended", "5" * 32, world.ada, ADA, world.application, DASHBOARD, "why", 12, at_ms)
    event = await told(services, fact, "subscription.*")
    assert (event.name, event.ts) == ("subscription.suspended", 7)
    assert event.data == {
        "uid": ADA,
        "aid": DASHBOARD,
        "subscriptionId": "5" * 32,
        "message": "why",
        "backlog": 12,
    }
