"""The table `[[subscriptions]]` of the provision file (reference 26.2)."""

from typing import Any

import msgspec
import pytest

from broker.errors import ValidationFailed
from broker.services import Services
from broker.subscriptions.creation import StreamsNotInstalled
from broker.subscriptions.port import AttemptOutcome
from broker.subscriptions.subscription import SubscriptionStatus
from tests.builders import ServicesOpener
from tests.callbacks import URL, FakeCallbacks, FakeStreams, sent, settled, streaming
from tests.factories import ADA, BOBS, DASHBOARD, KITCHEN, LIGHT_TYPE, World, build_world

ENTRY: dict[str, Any] = {"owner": "ada@example.org", "application": DASHBOARD, "sdid": KITCHEN, "callback_url": URL}
STREAM: dict[str, Any] = {
    "id": "57" * 16,
    "owner": ADA,
    "application": DASHBOARD,
    "subscription_type": "cloudStream",
    "cloud_key": "AKIA",
    "cloud_secret": "very/secret",
    "cloud_region": "eu-west-1",
    "cloud_stream_name": "lights",
}


async def provision(services: Services, *entries: dict[str, Any], dry_run: bool = False) -> str:
    """The changes of the entries. No secret is in the report."""
    report = await services.provisioning.apply({"subscriptions": list(entries)}, dry_run=dry_run)
    assert b"/secret" not in msgspec.json.encode(report)
    counts = report.tables["subscriptions"]
    return " ".join(name for name in ("created", "changed", "unchanged") for _ in range(getattr(counts, name)))


@pytest.mark.both_engines
async def test_a_callback_is_made_active_without_a_handshake_changed_and_left_alone(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    assert await provision(services, ENTRY, dry_run=True) == "created"
    assert services.subscriptions.subscriptions.all() == []
    assert await provision(services, ENTRY) == "created"
    assert await provision(services, ENTRY) == "unchanged"
    (position,) = await sent(services)
    await callbacks.wait_received(1)
    assert callbacks.received[0].positions == [position]
    assert callbacks.handshakes == []
    assert await provision(services, ENTRY | {"description": "Kitchen", "payload": "notification"}) == "changed"
    (subscription,) = services.subscriptions.subscriptions.all()
    assert (subscription.record.description, subscription.record.payload) == ("Kitchen", "notification")
    moved = ENTRY | {"id": subscription.id, "callback_url": f"{URL}/moved"}
    assert await provision(services, moved) == "changed"
    await sent(services)
    await callbacks.wait(lambda: callbacks.received[-1].url.endswith("/moved"))


async def test_a_stream_has_its_secret_sealed_and_replaced(
    services: Services, world: World, streams: FakeStreams
) -> None:
    assert await provision(services, STREAM) == "created"
    assert await provision(services, STREAM) == "unchanged"
    assert await provision(services, STREAM | {"cloud_secret": "another/secret"}) == "changed"
    await sent(services)
    await settled(services, lambda: bool(streams.written))
    assert streams.calls[0][0].secret == "another/secret"
    (subscription,) = services.subscriptions.subscriptions.all()
    assert b"/secret" not in (subscription.record.stream_secret or b"")


@pytest.mark.both_engines
async def test_what_was_deleted_is_made_again_and_what_is_suspended_stays_so(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    entry = ENTRY | {"id": "58" * 16}
    assert await provision(services, entry) == "created"
    subscriptions = services.subscriptions.subscriptions
    await subscriptions.remove(subscriptions.all()[0])
    assert subscriptions.all() == []
    assert await provision(services, entry) == "changed"
    await sent(services)
    await callbacks.wait_received(1)
    callbacks.answer = lambda _received: AttemptOutcome(http_status=410)
    await sent(services)
    await settled(services, lambda: subscriptions.all()[0].record.status == SubscriptionStatus.SUSPENDED)
    assert await provision(services, entry) == "unchanged"
    assert subscriptions.all()[0].record.status == SubscriptionStatus.SUSPENDED


async def test_a_wrong_entry_changes_nothing(services: Services, world: World) -> None:
    assert await provision(services, STREAM) == "created"
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"owner": "nobody@example.org"}, "owner", "there is no user"),
        ({"application": "Nothing"}, "application", "there is no application"),
        ({"owner": "bob@example.org", "sdid": BOBS}, "application", "nothing: see [[grants]]"),
        ({"sdid": "0" * 32}, "sdid", "there is no device"),
        ({"sdid": BOBS}, "sdid", "may not read this device"),
        ({"sdid": None, "sdtid": "no.such"}, "sdtid", "there is no device type"),
        ({"sdtid": LIGHT_TYPE}, "sdtid", "Invalid value: "),
        ({"message_type": "action", "sdid": None}, "ddid", "Required parameter"),
        ({"message_type": "event"}, "message_type", "invalid enum value"),
        ({"callback_url": None}, "callback_url", "Required parameter"),
        ({"callback_url": "https://elsewhere.example.com/"}, "callback_url", "on the domain example.org"),
        ({"callback_url": "http://app.example.org/"}, "callback_url", "an address with https"),
        ({"cloud_key": "k"}, "cloud_key", "only for a stream"),
        ({"description": "x" * 257}, "description", "at most 256 characters"),
        ({"id": "57" * 16}, "id", "covers something else"),
        ({"id": "57"}, "id", "must be 32"),
        (STREAM | {"sdid": None, "callback_url": None, "cloud_region": "a.b"}, "cloud_region", "a region such as"),
        (STREAM | {"sdid": None, "callback_url": None, "cloud_secret": None}, "cloud_secret", "required for a stream"),
        (STREAM | {"sdid": None}, "callback_url", "not for a stream"),
    ]
    for changes, field, text in wrong:
        entry = {key: value for key, value in (ENTRY | changes).items() if value is not None}
        with pytest.raises(ValidationFailed) as refused:
            await provision(services, entry)
        (finding,) = refused.value.findings
        assert finding.field == f"subscriptions[0].{field}", changes
        assert text in finding.messages[0], (changes, finding)
    assert len(services.subscriptions.subscriptions.all()) == 1


async def test_without_the_library_a_stream_is_refused_and_those_that_are_there_stay(
    opener: ServicesOpener, callbacks: FakeCallbacks, streams: FakeStreams
) -> None:
    async with opener(callbacks=callbacks, streams=streams) as services:
        await build_world(services.core.database, services.core.vault)
        await services.provisioning.apply({"subscriptions": [STREAM]})
    async with opener(callbacks=callbacks, streams=None) as services:  # type: ignore[arg-type]
        assert await provision(services, STREAM) == "unchanged"
        with pytest.raises(ValidationFailed) as refused:
            await provision(services, STREAM | {"id": "58" * 16, "cloud_stream_name": "other"})
        assert "can install the extra streams" in str(refused.value.findings)
        with pytest.raises(StreamsNotInstalled) as error:
            await streaming(services)
        assert error.value.status == 501
        assert len(services.subscriptions.subscriptions.all()) == 1
