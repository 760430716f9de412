"""Devices that people own already, from their first minute in the console."""

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broker.device_types.examples import load_examples
from tests.broker.topic_devices.payloads import SHELLY, SHELLY_ID
from tests.browser import DESKTOP, WIDTHS, Chromium
from tests.daemon import ADA, USER_TOKEN, bearer, device_id, device_token, start_command
from tests.e2e.console.measures import measured
from tests.e2e.console.test_developer import go
from tests.e2e.console.user import User
from tests.e2e.console.world import SHELLY_TYPE, Site
from tests.programs import require_program
from tests.properties import in_ci

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


def published(
    site: Site, payload: Mapping[str, Any], topic: str = f"{SHELLY_ID}/events/rpc", *, number: int = 70
) -> None:
    """By one of Ada's devices, as the Shelly signs in."""
    host, port = site.daemon.host_port("mqtt")
    who = ("-u", device_id(number), "-P", device_token(number), "-q", "1", "-t", topic)
    command = [require_program("mosquitto_pub"), "-h", host, "-p", str(port), *who, "-m", json.dumps(payload)]
    subprocess.run(command, check=True, timeout=30)


def notification(power: float) -> dict[str, Any]:
    """At this moment."""
    switch = {**SHELLY["params"]["switch:0"], "output": power > 0, "apower": power}
    return {**SHELLY, "params": {"ts": time.time(), "switch:0": switch}}


def is_in_the_chart(ada: User, did: str, field: str, shots: tuple[Path | None, str]) -> None:
    ada.open(f"/devices/{did}")
    ada.sees(field, "#values")
    ada.sees("latest", ".chart .latest")
    ada.eventually(lambda: any(text.startswith("latest ") for text in ada.browser.texts(".chart .latest")))
    assert measured(ada.browser) == []
    shot(ada.browser, shots[0], f"{shots[1]}-device")
    ada.browser.show(DESKTOP, dark=False)


def is_used(ada: User, site: Site, did: str, field: str, shots: tuple[Path | None, str]) -> None:
    """The value of a field is in a rule and its explanation, and in an export."""
    condition = {"sdid": did, "field": field, "operator": ">", "operand": {"value": 0}}
    then = [{"ddid": device_id(71), "action": "setOn", "parameters": {}}]
    rule = {"name": f"About {shots[1]}", "scope": "allApplications", "rule": {"if": {"and": [condition]}, "then": then}}
    made = site.of_ada_at_the_console(ada, "POST", "/rules", rule)["id"]
    ada.open(f"/rules/{made}")
    ada.sees("running", "#standing")
    ada.click("The last hour")
    ada.sees(f"{field} > 0 holds", "#why")
    shot(ada.browser, shots[0], f"{shots[1]}-rule")
    ada.browser.show(DESKTOP, dark=False)
    now = round(time.time() * 1000)
    asked = {"sdids": did, "startDate": now - 3_600_000, "endDate": now, "order": "asc", "format": "csv2"}
    export = site.of_ada("POST", "/messages/export", json=asked)["data"]["exportId"]
    ada.eventually(lambda: site.of_ada("GET", f"/messages/export/{export}/status")["status"] == "Success")
    answer = httpx.get(f"{site.daemon.base_url}/messages/export/{export}/result", headers=bearer(USER_TOKEN))
    with tarfile.open(fileobj=io.BytesIO(answer.raise_for_status().content)) as archive:
        texts = [archive.extractfile(one).read().decode() for one in archive if one.isfile()]  # type: ignore[union-attr]
    assert any(did in text and field in text for text in texts)
    ada.open("/exports")
    ada.click("Export the messages")
    ada.sees("ready", "#exports")
    shot(ada.browser, shots[0], f"{shots[1]}-export")
    ada.browser.show(DESKTOP, dark=False)
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{made}", None)


def test_a_shelly_from_its_first_minute(ada: User, site: Site, screenshots: Path | None) -> None:
    go(ada, "/developer/types")
    (example,) = (one for one in load_examples() if one.unique_name == "example.shelly")
    dtid = made_type(ada, site, "Shelly", SHELLY_TYPE)
    document = {"manifest": json.loads(example.manifest_document)}
    site.of_ada_at_the_console(ada, "POST", f"/devicetypes/{dtid}/manifests", document)

    def found() -> list[str]:
        published(site, notification(11.5))
        listed = site.of_ada("GET", f"/users/{ADA}/devices?dtid={dtid}")["data"]["devices"]
        return [one["id"] for one in listed]

    ada.eventually(lambda: bool(found()))
    (did,) = found()
    ada.open("")
    ada.browser.fill("Search", SHELLY_ID)
    ada.sees(SHELLY_ID, "#devices")
    is_in_the_chart(ada, did, "power", (screenshots, "shelly"))
    ada.sees("11.5 W", "#values")
    published(site, notification(12.5))
    ada.sees("12.5 W", "#values")
    is_used(ada, site, did, "power", (screenshots, "shelly"))
    go(ada, "/operator")
    ada.sees("shellies", "#topics")
    assert measured(ada.browser) == []
    shot(ada.browser, screenshots, "shelly-operator")


PLUG: Final = {
    "dev": {"ids": ["zigbee_0x1"], "name": "Zigbee plug", "mdl": "TS011F", "mf": "Tuya"},
    "o": {"name": "Zigbee2MQTT"},
    "stat_t": "zigbee2mqtt/plug",
    "cmps": {
        "power": {"p": "sensor", "unit_of_meas": "W", "val_tpl": "{{ value_json.power }}"},
        "switch": {"p": "switch", "cmd_t": "zigbee2mqtt/plug/set", "val_tpl": "{{ value_json.state }}"},
        "robot": {"p": "vacuum", "cmd_t": "zigbee2mqtt/plug/robot"},
    },
}


@in_ci
def test_a_zigbee_plug_from_its_first_minute(ada: User, site: Site, screenshots: Path | None) -> None:
    """As Zigbee2MQTT announces it: found, accepted, and then in the chart as any device."""
    published(site, PLUG, "homeassistant/device/zigbee_0x1/config", number=72)
    ada.eventually(lambda: bool(site.of_ada("GET", f"/users/{ADA}/found")["data"]["found"]))
    ada.open("")
    ada.sees("Zigbee plug (TS011F) has values: power, switch; Actions: set_switch.", "#found")
    ada.sees("robot: vacuum is no kind of component", "#found")
    assert measured(ada.browser) == []
    shot(ada.browser, screenshots, "zigbee-found")
    ada.browser.show(DESKTOP, dark=False)
    ada.click("Ignore Zigbee plug")
    ada.sees("Zigbee plug is ignored", "#found")
    ada.click("List Zigbee plug again")
    ada.click("Accept Zigbee plug")
    ada.sees("Zigbee plug is in your list", "#offers")
    (one,) = site.of_ada("GET", f"/users/{ADA}/found")["data"]["found"]
    published(site, {"power": 11.5, "state": "ON", "linkquality": 80}, "zigbee2mqtt/plug", number=72)
    is_in_the_chart(ada, one["did"], "power", (screenshots, "zigbee"))
    ada.sees("11.5 W", "#values")


@in_ci
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
        is_in_the_chart(ada, device["id"], "temperature", (screenshots, "board"))
    # Why nothing comes of a device that never registered.
    other = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": dtid, "name": "In its box"})["id"]
    ada.open(f"/devices/{other}")
    ada.sees("temperature: The device is not registered", "#trail")
