"""/accept/label: from the QR code of a label to a device of one's own (reference 6.6)."""

import pytest

from broker.devices.labels import ImportedDevice
from broker.services import Services
from config.limits import LABEL_MISSES
from tests.broker.accounts.oauth_world import OAuthWorld
from tests.factories import LIGHT_TYPE, World
from tests.protocols.http.accounts.browser import Browser

pytestmark = pytest.mark.slow


LINK = "accept/label"


@pytest.fixture
async def lamp(services: Services, world: World, oauth: OAuthWorld) -> ImportedDevice:
    """Imported by Bob."""
    bob = await services.accounts.users.named("bob@example.org")
    (made,) = await services.devices.labels.import_devices(f"name,type\nLamp,{LIGHT_TYPE}\n", bob)
    assert oauth.ada.key != bob.key
    return made


async def signed_in(browser: Browser, code: str = "") -> str:
    shown = await browser.open(LINK, **({"code": code} if code else {}))
    assert "<h1>Sign in</h1>" in shown.text
    assert "Lamp" not in shown.text, "a stranger is told nothing of a label"
    back = await browser.sign_in(shown)
    assert back.status_code == 302
    return back.headers["location"]


async def owner(services: Services, lamp: ImportedDevice) -> str:
    return (await services.devices.registry.find(lamp.id)).owner_id


async def test_from_the_qr_code_to_ones_own_device(
    services: Services, browser: Browser, oauth: OAuthWorld, lamp: ImportedDevice
) -> None:
    before = await owner(services, lamp)
    asked = await browser.open(await signed_in(browser, lamp.code))
    for text in ("Make this device yours?", "Lamp", "Smart Light", "ada@example.org"):
        assert text in asked.text
    assert await owner(services, lamp) == before, "GET changes nothing"
    forged = await browser.send(asked, csrf="00" * 16)
    assert (forged.status_code, await owner(services, lamp)) == (403, before)
    done = await browser.send(asked)
    assert (done.status_code, "<h1>The device is yours</h1>" in done.text) == (200, True)
    assert await owner(services, lamp) == oauth.ada.id
    assert "The device is yours" in (await browser.open(LINK, code=lamp.code)).text


async def test_the_second_is_told_why_not(
    services: Services, browser: Browser, oauth: OAuthWorld, lamp: ImportedDevice
) -> None:
    asked = await browser.open(await signed_in(browser, lamp.code))
    bob = await services.accounts.users.named("bob@example.org")
    await services.devices.labels.claim(lamp.code, bob)
    for answer in (await browser.send(asked), await browser.open(LINK, code=lamp.code)):
        assert (answer.status_code, "its device has an owner" in answer.text) == (410, True)
    assert await owner(services, lamp) == bob.id


async def test_the_code_can_be_typed_and_guessing_is_bounded(
    browser: Browser, oauth: OAuthWorld, lamp: ImportedDevice
) -> None:
    page = await browser.open(await signed_in(browser))
    assert "Code on the label" in page.text
    for _ in range(LABEL_MISSES - 1):
        wrong = await browser.send(page, code="WRONG")
        assert (wrong.status_code, "There is no such label" in wrong.text) == (404, True)
    right = await browser.send(page, code=f"{lamp.code[:4]}-{lamp.code[4:].lower()}")
    assert "Make this device yours?" in right.text
    await browser.send(page, code="WRONG")
    refused = await browser.send(page, code=lamp.code)
    assert refused.status_code == 429
    assert "Lamp" not in refused.text
