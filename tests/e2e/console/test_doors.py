"""Devices that people own already, from their first minute in the console."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser import DESKTOP, WIDTHS, Chromium
from tests.daemon import start_command
from tests.e2e.console.measures import measured
from tests.e2e.console.test_developer import go
from tests.e2e.console.user import User
from tests.e2e.console.world import Site

OFFER: Final = "This board offers batteryLevel (/3/0/9, %), temperature (/3303/0/5700, °C), lightControlOnOff"


@contextmanager
def simulated_board(site: Site, did: str, token: str) -> Iterator[None]:
    command = ("simulate", "--protocol", "lwm2m", "--address", site.daemon.addresses["lwm2m_dtls"], "--period", "0.5")
    environment = {**os.environ, "TRUNKLINE_TOKEN": token}
    type_ = ("--type", "example.managed_board")
    process = start_command(*command, *type_, "--device", did, environment=environment)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def made_type(ada: User, site: Site, name: str, unique_name: str) -> str:
    (acme,) = site.of_ada("GET", "/developer/organizations")["data"]["organizations"]
    made = {"uniqueName": unique_name, "name": name}
    return str(
        site.of_ada_at_the_console(ada, "POST", f"/developer/organizations/{acme['id']}/devicetypes", made)["id"]
    )


def shot(browser: Chromium, folder: Path | None, name: str) -> None:
    """At three widths; without a folder nothing."""
    if folder is not None:
        for width, height in WIDTHS:
            browser.show((width, height), dark=False)
            browser.screenshot(folder / f"{name}-{width}.png")
        browser.show(DESKTOP, dark=False)


def test_a_board_offers_its_manifest(ada: User, site: Site, screenshots: Path | None) -> None:
    if "lwm2m_dtls" not in site.daemon.addresses:
        pytest.skip("DTLS is not available")
    go(ada, "/developer/types")
    dtid = made_type(ada, site, "Terrace board", "zz.terrace")
    site.of_ada("PUT", f"/devicemgmt/devicetypes/{dtid}", json={"devicePropertiesEnabled": True})
    device: dict[str, Any] = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": dtid, "name": "Terrace"})
    token = site.of_ada_at_the_console(ada, "PUT", f"/devices/{device['id']}/tokens", None)["accessToken"]
    with simulated_board(site, device["id"], token):
        offered = f"/devices/{device['id']}/lwm2m"
        ada.eventually(lambda: site.of_ada("GET", offered)["data"]["offers"]["sentence"].startswith(OFFER))
        go(ada, f"/developer/types/{dtid}")
        ada.sees(OFFER, '[aria-label="Registered boards"]')
        assert measured(ada.browser) == []
        ada.browser.show(DESKTOP, dark=False)
        go(ada, "/developer")
        ada.sees(OFFER, '[aria-label="Registered boards"]')
        ada.sees("Actions: setOn, setOff, setLightControlDimmer, reboot", '[aria-label="Registered boards"]')
        assert measured(ada.browser) == []
        shot(ada.browser, screenshots, "board-offers")
        ada.browser.show(DESKTOP, dark=False)
        ada.click("Use these for Terrace board")
        ada.sees("Version 1 is in use")
        ada.sees_no(OFFER)
        ada.open(f"/devices/{device['id']}")
        ada.sees("temperature", "#values")
        shot(ada.browser, screenshots, "board-device")
