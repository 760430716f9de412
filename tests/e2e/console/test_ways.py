"""The main ways through the console, as a person goes them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from tests.browser import ARROW_LEFT, Chromium
from tests.daemon import DEMO_ON_ANY_PORT, LIGHT_TYPE, device_id, device_token
from tests.e2e.console.board_programs import output_of
from tests.e2e.console.measures import measured
from tests.e2e.console.user import User
from tests.e2e.console.world import BOARD, BOB_EMAIL, Site
from tests.programs import require_dtls, require_micropython_module, require_program
from tests.properties import chance, in_ci
from tests.stores import storage_of

SECONDS: Final = 60
MOST_CLICKS: Final = 6
MOST_SECONDS: Final = 120.0
PROGRAMS: Final = {"curl": "curl", "MQTT": "mosquitto_pub", "CoAP": "coap-client-notls"}


@contextmanager
def pasted(line: str, program: Path) -> Iterator[None]:
    """The line runs in a shell, until it ends or is ended."""
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", line], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as shell:
        try:
            yield
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(SECONDS)


def line_of(user: User) -> str:
    return user.browser.texts("#way pre")[0]


@in_ci
def test_from_the_printed_link_to_the_first_point_of_ones_own_device(
    tmp_path: Path, chromium: Chromium, program: Path
) -> None:
    """Opening the link is the first click. Nothing has to be read or typed."""
    require_program("curl")
    state = tmp_path / "demo"
    command = [str(program), "demo", "--state", str(state), "--store", storage_of(state).url, *DEMO_ON_ANY_PORT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        link = next(line.split()[1] for line in demo.stdout if "/console/enter?" in line)
        user = User(chromium, link.partition("/console")[0])
        user.clicks += 1
        began = time.monotonic()
        chromium.open(link)
        user.sees("temperature", "#devices")  # the simulated devices move
        user.click("Add a device")
        user.sees("Actions:")
        user.click("Add the device")
        user.sees("Waiting for the first message")
        user.sees("Development Board", "h1")  # without a name of its own, that of its type
        user.click("Show me the line")
        user.sees("Hide the token")
        with pasted(line_of(user), program):
            user.sees("Your device is connected", "#waiting")
        user.sees("stored", "#trail")
        user.eventually(lambda: chromium.texts(".chart .latest")[0] != "")
        assert user.clicks + 1 <= MOST_CLICKS  # and one to copy the line
        assert time.monotonic() - began < MOST_SECONDS
        assert "code=" not in chromium.url
        chromium.open("about:blank")
        demo.terminate()
        demo.wait(SECONDS)


def test_every_line_that_a_page_shows_works_when_it_is_pasted(ada: User, site: Site, program: Path) -> None:
    for number, (way, name) in enumerate(PROGRAMS.items(), start=2):
        require_program(name)
        ada.open(f"/devices/{device_id(number)}")
        ada.click("Show me the line")
        ada.sees("Hide the token")
        ada.click(way)
        with pasted(line_of(ada), program):
            ada.sees("Your device is connected", "#waiting")
            ada.sees("stored", "#trail")
    ada.open(f"/devices/{device_id(5)}")
    ada.click("Show me the line")
    ada.sees("Hide the token")
    ada.click("WebSocket")
    with pasted(
        line_of(ada).replace("example.light", "example.smart_light"), program
    ):  # which the program has built in
        ada.sees("online", "#standing")
        ada.sees("Your device is connected", "#waiting")
    ada.sees("offline", "#standing")


def programs_of(user: User, number: int) -> dict[str, str]:
    user.open(f"/devices/{device_id(number)}")
    user.click("Show me the line")
    user.sees("Hide the token")
    found = {}
    for way in ("Node.js", "MicroPython", "ESP-IDF", "Zephyr"):
        user.click(way)
        found[way] = line_of(user)
        assert device_token(number) in found[way], way
        assert "intensity" in found[way], way
    return found


@in_ci
def test_the_program_for_micropython_sends_and_hears(ada: User, site: Site, tmp_path: Path) -> None:
    """By MicroPython itself, on Linux instead of a board, with its own umqtt.simple."""
    micropython, modules = require_micropython_module("umqtt.simple")
    did = device_id(11)
    (tmp_path / "main.py").write_text(programs_of(ada, 11)["MicroPython"], encoding="utf-8")
    with subprocess.Popen(
        [micropython, tmp_path / "main.py"], env={"MICROPYPATH": modules}, stdout=subprocess.PIPE, text=True
    ) as device:
        assert device.stdout is not None
        try:
            ada.sees("Your device is connected", "#waiting")
            stored = site.of_ada("GET", f"/messages/last?sdids={did}")["data"][0]["data"]
            assert stored.items() >= {"state": True, "intensity": 21}.items()
            site.of_ada("POST", "/actions", json={"ddid": did, "data": {"actions": [{"name": "setOn"}]}})
            assert device.stdout.readline() == f"/v1.1/actions/{did} {{'actions': [{{'name': 'setOn'}}]}}\n"
            site.of_ada("PUT", f"/devices/{did}/wanted", json={"data": {"intensity": 40}})
            assert device.stdout.readline() == f"/v1.1/wanted/{did} {{'data': {{'intensity': 40}}}}\n"
        finally:
            device.kill()


@in_ci
def test_a_page_has_programs_for_boards_filled_in(ada: User, site: Site, tmp_path: Path) -> None:
    """That for Node.js runs. Those in C are compiled against declarations that stand in for their systems
    (board_programs.py says what that shows), and run to their first message."""
    node, did, token = require_program("node"), device_id(7), device_token(7)
    found = programs_of(ada, 7)
    file = tmp_path / "device.mjs"
    file.write_text(found["Node.js"], encoding="utf-8")
    with subprocess.Popen([node, file], stdout=subprocess.PIPE, text=True) as device:
        assert device.stdout is not None
        try:
            stored, wanted = device.stdout.readline(), device.stdout.readline()
            assert stored.startswith("stored ")
            assert stored.endswith(" []\n"), "no field of it is unknown"
            assert wanted == "wanted {}\n"
            ada.sees("Your device is connected", "#waiting")
        finally:
            device.kill()
    *about, topic, payload = output_of(found["ESP-IDF"], "ESP-IDF", tmp_path / "esp")
    host, port = site.daemon.host_port("mqtt")
    actions, wishes = f"/v1.1/actions/{did} 0", f"/v1.1/wanted/{did} 0"
    assert about == [f"mqtt://{host}:{port}", did, did, token, actions, wishes]
    assert topic == f"/v1.1/messages/{did} 0 1 0"
    assert json.loads(payload).items() >= {"state": True, "intensity": 21}.items()
    *path, kind, body = output_of(found["Zephyr"], "Zephyr", tmp_path / "zephyr")
    assert path[1:] == ["11 v1.1", "11 messages", f"11 {token}"]
    assert kind == "12 50"  # JSON
    assert json.loads(body) == {"data": json.loads(payload)}


@in_ci
def test_an_update_waits_for_the_owner(ada: User, site: Site, program: Path) -> None:
    """The line for LWM2M registers a device; its maker's update is installed after the owner has accepted it."""
    require_dtls()
    did = device_id(6)
    ada.open(f"/devices/{did}")
    ada.click("Show me the line")
    ada.sees("Hide the token")
    ada.click("LWM2M")
    with pasted(line_of(ada).replace("example.light", "example.smart_light"), program):
        ada.sees("online", "#standing")
        images = f"/devicemgmt/devicetypes/{LIGHT_TYPE}/images?version=2.0.0"
        image = site.of_ada("POST", images, content=b"new software")["data"]["updateId"]
        task = {
            "dtid": LIGHT_TYPE,
            "dids": [did],
            "taskType": "W",
            "property": "akc.update",
            "needsAcceptance": True,
            "taskParameters": {"update": {"updateId": image}},
        }
        ada.eventually(lambda: waits(site, task))
        ada.open(f"/devices/{did}")
        ada.sees("An update waits for you")
        ada.click("Install it")
        ada.sees_no("An update waits for you")
        assert tasks_of(site, did)[0]["acceptanceStatus"] == "ACCEPTED"
        # The device's own properties, with the units of the registry (issue 44, 5).
        site.of_ada("PUT", f"/devicemgmt/devicetypes/{LIGHT_TYPE}", json={"devicePropertiesEnabled": True})
        ada.eventually(lambda: "device" in properties_of(site, did))
        ada.browser.open(f"{ada.origin}/developer/types/{LIGHT_TYPE}/devices")
        ada.sees("device.batteryLevel: 100 /100")
        site.of_ada("PUT", f"/devicemgmt/devicetypes/{LIGHT_TYPE}", json={"devicePropertiesEnabled": False})


def properties_of(site: Site, did: str) -> dict[str, Any]:
    found: dict[str, Any] = site.of_ada("GET", f"/devicemgmt/devices/{did}/properties")["data"]["deviceProperties"]
    return found


def tasks_of(site: Site, did: str) -> list[dict[str, Any]]:
    """The newest first."""
    found: list[dict[str, Any]] = site.of_ada("GET", f"/devicemgmt/devices/{did}/tasks")["data"]["tasks"]
    return found


def waits(site: Site, task: dict[str, Any]) -> bool:
    """The task waits for the owner. A task for a device whose registration is not stored yet fails; then another."""
    known = site.of_ada("GET", f"/devicemgmt/tasks?dtid={LIGHT_TYPE}")["data"]["tasks"]
    if all(one["status"] in {"COMPLETE", "CANCELLED"} for one in known):  # also those of other tests
        site.of_ada("POST", "/devicemgmt/tasks", json=task)
    (did,) = task["dids"]
    return any(one["status"] == "QUEUED" and one["acceptanceStatus"] == "WAITING" for one in tasks_of(site, did))


def test_a_device_is_shared_accepted_and_taken_back(ada: User, site: Site) -> None:
    """With the other person it says whose it is, and asks for nothing that only the owner may see."""
    browser = ada.browser
    ada.open(f"/devices/{device_id(7)}")
    ada.sees("Nobody else sees this device")
    browser.fill("E-mail address", BOB_EMAIL)
    ada.click("Share")
    ada.sees("pending", "#shares")
    browser.fresh()
    bob = User(browser, site.origin)
    bob.sign_in(BOB_EMAIL)
    bob.sees("Ada shares Light 7 with you.", "#offers")
    bob.click("Accept")
    bob.sees("Light 7 is in your list")
    bob.click("Open it")
    bob.sees("shared with you by Ada", "#standing")
    site.send(7, intensity=7)
    bob.sees("stored", "#trail")
    bob.sees_no("Delete")
    assert browser.traffic().complaints == ()
    assert measured(browser) == []
    browser.fresh()
    ada.take_session()
    ada.open(f"/devices/{device_id(7)}")
    ada.sees("accepted", "#shares")
    ada.click(f"Stop sharing with {BOB_EMAIL}")
    ada.sees("Nobody else sees this device")


def test_an_action_is_sent_and_stands_among_the_messages(ada: User, site: Site) -> None:
    did = device_id(8)
    ada.open(f"/devices/{did}")
    ada.sees("Send an Action")
    ada.click("Send")
    ada.sees("setOn is on its way")
    ada.sees("setOn, sent to the device", "#trail")
    ada.click("As a command")
    ada.sees(f'"ddid":"{did}","data":{{"actions":[{{"name":"setOn"}}]}}', "dialog")


def test_a_value_is_wanted_until_the_device_reports_it(ada: User, site: Site) -> None:
    ada.open(f"/devices/{device_id(8)}")
    ada.sees("Nothing is wanted of the device")
    ada.browser.write("#wanted-0", "40")
    ada.click("Want it")
    ada.sees("intensity waits until the device reports it")
    ada.sees("The device has not been given it yet", "#wanted")
    site.send(8, intensity=80)
    site.send(8, intensity=40)
    ada.sees("The device has reported 40.", "#wanted")
    ada.sees("wanted: reached", "#trail")
    ada.browser.write("#wanted-0", "1")
    ada.click("Want it")
    ada.click("Withdraw")
    ada.sees("It is wanted no more")


def test_what_became_of_each_message(ada: User, site: Site) -> None:
    """Taken, failed and refused, with the reason. Whatever a device sends is text."""
    hostile = "<img src=x onerror=document.title='owned'>"
    did = device_id(9)
    site.send(9, state=True, text=hostile, opne=1)
    site.send(9, **{hostile: 1})
    site.of_ada("PUT", f"/devices/{did}", json={"connected": False})
    with pytest.raises(Exception, match="403"):
        site.send(9, state=False)
    ada.open(f"/devices/{did}")
    ada.sees("stored", "#trail")
    ada.sees(f"the message had {hostile}; the type has state", "#trail")
    ada.sees("Source device is disconnected (403), from device", "#trail")
    ada.sees("opne: not in the Manifest. The rest of the message was stored.", "#trail")
    ada.sees(hostile, "#values")
    assert "owned" not in ada.browser.run("return document.title")
    assert ada.browser.count("img") == 0


def test_a_device_is_renamed_disabled_and_deleted(ada: User, site: Site) -> None:
    did = device_id(10)
    ada.open(f"/devices/{did}")
    ada.click("Rename")
    ada.browser.fill("New name", "a <b> name")
    ada.click("Save")
    ada.sees("Invalid", ".finding")
    ada.was_refused(400)
    ada.browser.fill("New name", "Lamp in the hall")
    ada.click("Save")
    ada.sees("Lamp in the hall", "h1")
    ada.click("Disable")
    ada.sees("disabled", "#standing")
    ada.click("Delete")
    ada.click("Cancel")
    ada.sees("Lamp in the hall", "h1")
    ada.click("Delete")
    ada.browser.leaving(lambda: ada.click("Delete the device"))
    ada.sees("1–25 of")
    ada.sees_no("Lamp in the hall", "#devices")


def test_messages_are_exported(ada: User, site: Site) -> None:
    site.send(11, state=True)
    ada.open("/exports")
    ada.click("Export the messages")
    ada.sees("ready", "#exports")
    ada.browser.click("#exports td button")
    ada.sees("is in your downloads")


@in_ci
def test_messages_are_brought_back_and_deleted(ada: User, site: Site, tmp_path: Path) -> None:
    """Of a device that the lists do not have at first: there are more than they show."""
    device, name = device_id(97), "Light 97"
    now = round(time.time() * 1000)
    times = [datetime.fromtimestamp((now - ago) / 1000, UTC).isoformat() for ago in (7_200_000, 3_600_000, 60_000)]
    table = tmp_path / "light.csv"
    table.write_text("time,intensity\n" + "".join(f"{at},{20 + place}\n" for place, at in enumerate(times)) + "x,5\n")
    ada.open("/data")
    ada.sees_all()
    assert name not in ada.browser.texts("#into option")
    ada.browser.take_file("#file", table)
    ada.browser.write("#import [type=search]", name)
    ada.browser.choose("#into", name)
    ada.click("Import")
    ada.sees("The import has begun")
    ada.sees("done", "#imports")
    assert ada.browser.texts("#imports td.size")[1:] == ["3", "0", "1"]
    ada.browser.click("#imports summary")
    ada.sees("Line 5: time: “x” is not a time", "#imports")
    assert measured(ada.browser) == []

    def left() -> list[int]:
        found = site.of_ada("GET", "/messages", params={"sdid": device, "startDate": 0, "endDate": now + 1})["data"]
        return [one["data"]["intensity"] for one in found]

    assert left() == [20, 21, 22]
    ada.browser.write("#delete [type=search]", name)
    ada.browser.choose("#of", name)
    local = "new Date(%d - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 16)"
    ada.browser.run(f"document.querySelector('#from').value = {local % (now - 5_400_000)}")
    ada.click("Delete these messages")
    ada.sees(f"Delete messages of {name}?", "dialog")
    ada.click("Cancel")
    ada.sees_no(f"Delete messages of {name}?")
    ada.click("Delete these messages")
    ada.click("Delete")
    ada.sees("The deletion has begun")
    ada.sees("done", "#deletions")
    assert ada.browser.texts("#deletions td.size") == ["2"]
    assert left() == [20]
    ada.browser.reload()
    ada.eventually(lambda: ada.browser.count("#readers tbody tr") > 0)  # reading them was counted


def test_an_application_is_revoked(ada: User, site: Site) -> None:
    ada.open("/applications")
    ada.click(f"Revoke {BOARD}")
    ada.sees(f"Revoke {BOARD}?", "dialog")
    ada.click("Revoke")
    ada.sees(f"{BOARD} no longer sees anything of yours")
    ada.sees_no(BOARD, "#applications")


def test_a_name_is_changed_and_stands_in_what_happened(ada: User, site: Site) -> None:
    ada.open("/account")
    ada.sees("Sign in", "#activity")
    ada.browser.fill("Name", "x" * 64)
    ada.click("Change")
    ada.sees("Your name is changed")
    ada.sees("Profile changed", "#activity")
    ada.browser.reload()
    ada.eventually(lambda: ada.browser.value("Name") == "x" * 64)
    ada.sees("Profile changed", "#activity")  # a list that is still to come would replace the next one
    ada.browser.fill("Name", "Ada")
    ada.click("Change")
    ada.eventually(lambda: len([one for one in ada.browser.texts("#activity th") if one == "Profile changed"]) == 2)


def test_devices_are_searched_sorted_and_paged(ada: User) -> None:
    ada.open("")
    ada.sees("1–25 of")
    ada.click("Next")
    ada.sees("26–", "#range")
    ada.browser.fill("Search", "light 2")
    ada.sees("11", "#number")
    ada.browser.run("called('#sort')[0].focus()")
    ada.browser.keys("Name, Z")
    ada.eventually(lambda: ada.browser.texts("#devices tbody th a")[0] == "Light 29")
    ada.browser.reload()  # what was asked for is in the address
    ada.eventually(lambda: ada.browser.texts("#devices tbody th a")[:1] == ["Light 29"])


def test_a_lost_connection_is_shown_and_comes_back(ada: User, site: Site) -> None:
    """With another version of the service: the page says so by itself, and keeps what was typed."""
    did = device_id(12)
    site.send(12, intensity=1)
    ada.open(f"/devices/{did}")
    ada.sees("1", "#values")
    ada.browser.run("document.querySelector('meta[name=build]').content = 'the version before'")
    ada.browser.fill("E-mail address", BOB_EMAIL)
    site.daemon.stop()
    ada.sees("No connection to the server", "#connection")
    assert ada.browser.texts("#outdated") == []
    site.start()
    ada.sees_no("No connection", "#connection")
    ada.sees("another version now", "#outdated")
    site.send(12, intensity=77)
    ada.sees("77", "#values")
    assert ada.browser.value("E-mail address") == BOB_EMAIL
    complaints = ada.browser.traffic().complaints
    expected = ("401", "HTTP Authentication failed", "ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "WebSocket connection to")
    assert [one for one in complaints if not any(part in one for part in expected)] == []


def test_signing_out_leaves_nothing_to_see(ada: User) -> None:
    ada.open("")
    ada.sees_all()
    ada.browser.press("Sign out")
    assert ada.browser.heading == "Sign in"
    ada.browser.back()
    ada.eventually(lambda: ada.browser.heading == "Sign in")
    # Requests of the page in between were refused at once.
    complaints = ada.browser.traffic().complaints
    assert [one for one in complaints if "401" not in one and "HTTP Authentication failed" not in one] == []


def first_point_says(user: User, words: str) -> bool:
    """What a chart of intensity says after an arrow key. It may still show another span, whose points say others."""
    user.browser.run(
        "Array.from(document.querySelectorAll('.chart')).find((one) => one.textContent.startsWith('intensity'))"
        ".querySelector('canvas').focus()"
    )
    user.browser.keys(ARROW_LEFT)
    return any(words in text for text in user.browser.texts(".chart .latest"))


def test_the_days_of_a_chart_are_those_of_the_viewer(ada: User, site: Site) -> None:
    """In zones to the west and to the east of this one, of which each run draws one."""
    zone = chance().choice(["America/Los_Angeles", "Asia/Kolkata", "Pacific/Auckland"])
    ts = round(time.time() * 1000) - 3 * 86_400_000
    site.of_ada("POST", "/messages", json={"sdid": device_id(31), "data": {"intensity": 7}, "ts": ts})
    day = datetime.fromtimestamp(ts / 1000, ZoneInfo(zone)).date()
    ada.browser.tell("Emulation.setTimezoneOverride", timezoneId=zone)
    try:
        ada.open(f"/devices/{device_id(31)}")
        for span, first in (("Month", day), ("Year", day.replace(day=1))):
            ada.click(span)
            ada.sees("7", ".chart .latest")
            ada.eventually(partial(first_point_says, ada, f"{first:%b} {first.day}, {first.year}, 12:00:00"))
    finally:
        ada.browser.tell("Emulation.setTimezoneOverride", timezoneId="")
