"""From a plan to a paid device with the real daemon: payments by hand, and with a stand-in for Stripe."""

import json
import signal
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trio

from tests.daemon import USER_TOKEN, Daemon, bearer, command_output, device_id, running_daemon
from tests.protocols.outbound.stripe_stand_in import KEY, WEBHOOK_SECRET, StripeStandIn, signed

CALLBACK = "https://app.example.org/callback"
PLAN = {
    "tiers": [
        {"type": "free", "name": "Free", "messageLimit": 2},
        {"type": "paid", "name": "Plus", "cost": "4.99"},
    ]
}


def trunkline(daemon: Daemon, *arguments: str) -> str:
    """The output of an operator's command."""
    return command_output(*arguments, "--config", daemon.config)


def begin_payment(daemon: Daemon, http: httpx.Client) -> httpx.Response:
    """Add a plan, have it approved, and press the button of the upgrade page."""
    light = "example.light"
    http.post(f"{daemon.base_url}/pricing/devicetypes/{light}/pricingtiers", json=PLAN).raise_for_status()
    assert "Plus: 4.99" in trunkline(daemon, "plans")
    assert json.loads(trunkline(daemon, "plans", "--json"))["version"] == 1
    assert trunkline(daemon, "plans", "approve", light, "1").endswith("APPROVED\n")
    return press_button(daemon, http)


def press_button(daemon: Daemon, http: httpx.Client) -> httpx.Response:
    """The form of the page at a new upgrade address."""
    upgrade = http.get(f"{daemon.base_url}/pricing/devices/{device_id(0)}/revenueshare/upgradepath").json()["data"][
        "url"
    ]
    page = http.get(f"{upgrade}&redirect_uri={CALLBACK}")
    assert "4.99 USD" in page.text
    token = urlsplit(upgrade).query.partition("=")[2]
    return http.post(upgrade.partition("?")[0], data={"token": token, "redirect_uri": CALLBACK})


def active_tier(daemon: Daemon, http: httpx.Client) -> str:
    path = f"{daemon.base_url}/pricing/devices/{device_id(0)}/pricingtiers?active=true"
    return str(http.get(path).json()["data"]["pricingTiers"][0]["name"])


def send(daemon: Daemon, http: httpx.Client) -> httpx.Response:
    return http.post(f"{daemon.base_url}/messages", json={"sdid": device_id(0), "data": {"state": True}})


def test_the_daily_quota_of_the_free_tier_ends_with_a_payment_that_an_operator_confirms_by_hand(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    daemon.config.write_text(daemon.config.read_text(encoding="utf-8").replace('quotas = "off"', 'quotas = "on"'))
    daemon.start()
    try:
        with httpx.Client(headers=bearer(USER_TOKEN)) as http:
            back = f"http://{daemon.addresses['http']}{begin_payment(daemon, http).headers['Location']}"
            sent = [send(daemon, http) for _ in range(3)]
            assert [answer.status_code for answer in sent] == [200, 200, 429]
            assert sent[1].headers["x-quota-device-limits"] == "2/2"
            assert sent[2].json()["error"]["message"] == (
                f"Plan quota exceeded for device {device_id(0)}. Reason: Daily message limit."
            )
            reference = trunkline(daemon, "payments").split()[0]
            assert reference in http.get(back).text
            assert json.loads(trunkline(daemon, "payments", "--json"))["reference"] == reference
            trunkline(daemon, "payments", "accept", reference)
            assert http.get(back).headers["Location"] == f"{CALLBACK}?status=accepted"
            assert active_tier(daemon, http) == "Plus"
            assert trunkline(daemon, "payments") == ""
            assert send(daemon, http).status_code == 200
            daemon.stop()
            daemon.start()
            assert send(daemon, http).status_code == 200
    finally:
        daemon.stop()


def stripe_settings(stripe: StripeStandIn) -> str:
    return (
        f'[payments]\nprocessor = "stripe"\nstripe_key = "{KEY}"\nstripe_webhook_secret = "{WEBHOOK_SECRET}"\n'
        f'stripe_url = "{stripe.url}"\n'
    )


async def test_stripe_collects_and_its_signed_notification_counts(tmp_path: Path, nursery: trio.Nursery) -> None:
    stripe = StripeStandIn()
    await nursery.start(stripe.run)
    await trio.to_thread.run_sync(partial(_pay_with_stripe, tmp_path, stripe))


def _pay_with_stripe(folder: Path, stripe: StripeStandIn) -> None:
    with (
        running_daemon(folder, devices=1, settings=stripe_settings(stripe)) as daemon,
        httpx.Client(headers=bearer(USER_TOKEN)) as http,
    ):
        assert begin_payment(daemon, http).headers["Location"].startswith("https://checkout.example/pay/")
        [session] = stripe.sessions.values()
        success_url, paid = session.form["success_url"], session.pay()
        webhook = f"http://{daemon.addresses['http']}/accounts/pricing/notifications"

        assert "Waiting" in http.get(success_url).text  # the return of the browser does not prove the payment
        assert http.post(webhook, content=paid, headers=signed(paid, time.time(), secret="whsec_x")).status_code == 400
        assert active_tier(daemon, http) == "Free"

        for _ in range(2):  # Stripe may repeat a notification
            assert http.post(webhook, content=paid, headers=signed(paid, time.time())).status_code == 200
        assert http.get(success_url).headers["Location"] == f"{CALLBACK}?status=accepted"
        assert active_tier(daemon, http) == "Plus"


async def test_no_payment_is_captured_twice_after_a_crash_during_a_request_to_stripe(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    stripe = StripeStandIn()
    await nursery.start(stripe.run)
    await trio.to_thread.run_sync(partial(_killed_while_asking, tmp_path, stripe))


def _killed_while_asking(folder: Path, stripe: StripeStandIn) -> None:
    with (
        running_daemon(folder, devices=1, settings=stripe_settings(stripe)) as daemon,
        httpx.Client(headers=bearer(USER_TOKEN)) as http,
    ):

        async def kill() -> None:
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGKILL)

        stripe.before_answer = kill
        with pytest.raises(httpx.TransportError):
            begin_payment(daemon, http)
        stripe.before_answer = trio.lowlevel.checkpoint
        daemon.kill()  # the process has ended; this waits for it
        daemon.start()

        assert [press_button(daemon, http).status_code for _ in range(2)] == [302, 302]
        lost, first, second = stripe.sessions.values()
        assert [lost.status, first.status, second.status] == [
            "open",
            "expired",
            "open",
        ]  # the daemon does not know `lost`
        assert second.reference in trunkline(daemon, "payments")

        _notify(daemon, http, second.pay())
        assert active_tier(daemon, http) == "Plus"
        assert trunkline(daemon, "payments") == ""
        _notify(daemon, http, lost.pay())  # no browser knows its checkout; the operator would see it
        assert trunkline(daemon, "payments").endswith("to be refunded: stripe\n")
        assert trunkline(daemon, "payments", "refunded", lost.reference) == f"{lost.reference}  refunded\n"
        assert trunkline(daemon, "payments") == ""


def _notify(daemon: Daemon, http: httpx.Client, notification: bytes) -> None:
    webhook = f"http://{daemon.addresses['http']}/accounts/pricing/notifications"
    http.post(webhook, content=notification, headers=signed(notification, time.time())).raise_for_status()
