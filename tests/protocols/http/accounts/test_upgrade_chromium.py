"""The upgrade page in a real browser, which applies the policy of a form to every redirect that follows the form."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import trio

from broker.monetization.port import Checkout, ManualProcessor, PaymentFailed, PaymentOrder
from broker.services import Services
from config.settings import Address
from tests.broker.accounts.oauth_world import provision_application
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, DASHBOARD, KITCHEN, LIGHT_TYPE, World
from tests.properties import in_ci
from tests.protocols.http.accounts.test_chromium import site
from tests.rows import each_row

if TYPE_CHECKING:  # most processes that collect tests have no use for a browser
    from tests.browser import Chromium

pytestmark = [pytest.mark.processes, in_ci]


@dataclass
class Collector(ManualProcessor):
    """A payment processor with a page at `url`; without `url` it refuses to begin a payment."""

    url: str = ""
    name: str = "collector"

    async def begin(self, order: PaymentOrder) -> Checkout:
        if not self.url:
            raise PaymentFailed("closed")
        return Checkout(self.url, order.reference)


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
async def services(opener: ServicesOpener, collector: Collector) -> AsyncIterator[Services]:
    async with opener(processor=collector) as opened:
        yield opened


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The URL of a page that redirects to another origin: with the daemon there are three origins."""
    with ExitStack() as stack:
        landing = stack.enter_context(site())
        yield f"http://127.0.0.1:{stack.enter_context(site(f'http://127.0.0.1:{landing}/landing'))}/first"


@each_row("is_open", [True, False])
async def test_the_button_leads_to_the_processor_and_to_the_application(
    services: Services,
    door: Address,
    world: World,
    collector: Collector,
    elsewhere: str,
    window: "Chromium",
    is_open: bool,
) -> None:
    collector.url = elsewhere if is_open else ""
    await provision_application(services, DASHBOARD, redirect_uri=elsewhere)
    plan = {"device_type": LIGHT_TYPE, "free_messages_per_day": 150, "paid_cost": "2.99"}
    await services.provisioning.apply({"plans": [plan]})
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    url = await services.monetization.payments.upgrade_url(
        caller, await services.devices.registry.find(KITCHEN), "upgrade"
    )
    address = f"http://{door}/accounts{url.partition('/accounts')[2]}&redirect_uri={elsewhere}"

    def drive() -> None:
        window.fresh()
        window.open(address)
        window.press("Pay 2.99 USD")
        assert (window.heading, window.url.rpartition("/")[2]) == ("Arrived", "landing")
        assert window.traffic().complaints == ()

    await trio.to_thread.run_sync(drive)
