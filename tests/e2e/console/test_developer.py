"""The developer's pages, as a person goes through them (reference 27.21)."""

import email
import email.policy
import json
from pathlib import Path
from typing import Any, Final

import httpx

from tests.browser import Chromium
from tests.daemon import ADA, ADA_EMAIL, LIGHT_TYPE, USER_TOKEN, bearer, device_id
from tests.e2e.console.user import User
from tests.e2e.console.world import BOB_EMAIL, Site
from tests.properties import in_ci
from tests.third_party_cloud import ThirdPartyCloud

#: The daemon is shared: names of new types come after that of the light, which other tests expect first.
HEATER: Final[dict[str, Any]] = {
    "fields": [
        {"name": "temperature", "type": "CUSTOM", "valueClass": "Double", "isCollection": False, "description": ""}
    ],
    "messageFormat": "json",
    "actions": [],
}


def go(user: User, path: str) -> None:
    user.browser.open(f"{user.origin}{path}")


def write(user: User, name: str, text: str) -> None:
    """Into the field of this name, in place of what it has."""
    user.browser.until("called(arguments[0]).length", f"[name={name}]")
    user.browser.run(
        "const [one] = called(arguments[0]); one.value = arguments[1]; one.dispatchEvent(new Event('input'))",
        f"[name={name}]",
        text,
    )


def test_from_an_application_to_its_token(ada: User, site: Site) -> None:
    go(ada, "/developer/applications")
    ada.sees("Dashboard", "#page h2")
    ada.sees("New application")
    box = '[aria-label="New application"] '
    ada.browser.write(box + "[name=name]", "a <b> name")
    ada.click("Create the application")
    ada.sees("must not contain any of", ".finding")
    ada.was_refused(400)
    ada.browser.write(box + "[name=name]", "Thermostat")
    ada.browser.click(box + "[name=client_credentials]")
    ada.browser.write(box + "[name=redirectUris]", "https://example.org/back\nmyapp://done")
    ada.click("Create the application")
    ada.sees("The client secret of Thermostat")
    secret = ada.browser.texts(".secret code")[0]
    ada.sees("myapp://done", '[aria-label="Thermostat"]')
    aid = ada.browser.texts('[aria-label="Thermostat"] dd code')[0]
    assert issued(site, aid, secret) == 200
    ada.browser.click('//section[@aria-label="Thermostat"]//button[.="Renew the secret"]')
    ada.click("Renew")
    ada.sees("The secret is renewed")
    renewed = ada.browser.texts('[aria-label="Thermostat"] .secret code')[0]
    assert issued(site, aid, secret) == 401
    assert issued(site, aid, renewed) == 200
    # Many applications are a table, from which one is chosen.
    (acme,) = site.of_ada("GET", "/developer/organizations")["data"]["organizations"]
    made = f"/developer/organizations/{acme['id']}/applications"
    for number in range(20):
        site.of_ada_at_the_console(ada, "POST", made, {"name": f"Robot {number}"})
    go(ada, "/developer/applications")
    ada.sees("Filter applications")
    ada.browser.fill("Filter applications", "robot 17")
    ada.click("Robot 17")
    ada.sees("none: it gets no tokens", '[aria-label="Robot 17"]')
    assert len(ada.browser.texts("tbody tr")) == 1
    assert "already" not in ada.browser.text


def issued(site: Site, aid: str, secret: str) -> int:
    form = {"grant_type": "client_credentials", "client_id": aid, "client_secret": secret}
    return httpx.post(f"{site.origin}/accounts/token", data=form).status_code


def test_from_a_manifest_with_a_mistake_to_the_first_message(ada: User, site: Site) -> None:
    go(ada, "/developer/types")
    ada.sees("example.light", "table")
    ada.browser.fill("Unique name", "acme.heater")
    ada.browser.fill("Name", "Room heater")
    ada.browser.leaving(lambda: ada.click("Create the device type"))
    ada.sees("Room heater", "h1")
    write(ada, "manifest", json.dumps(HEATER).replace('"Double"', '"Duble"'))
    write(ada, "payload", '{"temperature":"21.5","more":1}')
    ada.click("Try it")
    ada.sees("Not valid", "#verdict")
    ada.sees("valueClass", "#verdict code")
    write(ada, "manifest", json.dumps(HEATER))
    ada.click("Try it")
    ada.sees('"temperature": 21.5', "#tried")
    ada.click("Upload as the next version")
    ada.sees("Version 1 is in use")
    dtid = ada.browser.url.split("/")[-2]
    device = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": dtid, "name": "Hall heater"})
    token = site.of_ada_at_the_console(ada, "PUT", f"/devices/{device['id']}/tokens", None)["accessToken"]
    base = site.daemon.base_url
    for data in ({"temperature": "19.5", "x": 1}, {"x": "<img src=x onerror=alert(1)>"}):
        httpx.post(f"{base}/messages", json={"sdid": device["id"], "data": data}, headers=bearer(token))
    last = site.of_ada_at_the_console(ada, "GET", f"/messages/last?sdids={device['id']}", None, whole=True)
    assert [one["data"] for one in last["data"]] == [{"temperature": 19.5}]
    go(ada, f"/developer/types/{dtid}/errors")
    ada.sees(device["name"], "#page")
    newer = {**HEATER, "fields": [*HEATER["fields"], {"name": "x", "valueClass": "String"}]}
    site.of_ada_at_the_console(ada, "POST", f"/devicetypes/{dtid}/manifests", {"manifest": newer})
    go(ada, f"/developer/types/{dtid}/errors")
    ada.sees("Version 2 of the Manifest: of 1 failed messages 1 fit now", "#page")
    ada.was_refused(400)  # what was wrong with the Manifest


TYPE_PAGE: Final = f"/developer/types/{LIGHT_TYPE}"


def choose_file(user: User, name: str, path: Path) -> None:
    user.browser.take_file(f"[name={name}]", path)


def test_an_approved_list_is_uploaded(ada: User, tmp_path: Path) -> None:
    ids = tmp_path / "ids.csv"
    ids.write_text("vdid\n" + "".join(f"light-{number:04}\n" for number in range(60)) + "no good\n", encoding="utf-8")
    go(ada, f"{TYPE_PAGE}/list")
    ada.sees("The list is empty")
    choose_file(ada, "file", ids)
    ada.click("Upload")
    ada.sees("60 stored, 1 refused, of 61", "#upload")
    ada.sees("Row 61: Invalid vdid", "#upload")
    ada.sees("1–50 of 60", ".pages")
    ada.click("Next")
    ada.sees("51–60 of 60", ".pages")
    ada.browser.fill("Filter vendor ids", "0059")
    ada.eventually(lambda: ada.browser.texts("tbody th") == ["light-0059"])
    write(ada, "certificate", "no certificate")
    ada.click("Add the certificate")
    ada.eventually(lambda: bool(ada.browser.texts('[name="certificate"] + .finding')))
    ada.was_refused(400)
    # An upload that is not there any more is forgotten.
    kept = f"trunkline upload {LIGHT_TYPE}"
    script = ada.browser.run
    script("localStorage.setItem(arguments[0], arguments[1])", kept, f"../{'9' * 32}")
    go(ada, f"{TYPE_PAGE}/list")
    ada.eventually(lambda: script("return localStorage.getItem(arguments[0])", kept) is None)
    ada.was_refused(404)
    ada.sees("1–50 of 60", ".pages")
    write(ada, "ids", "-typed =typed")
    ada.click("Upload")
    ada.sees("1 stored, 1 refused, of 2", "#upload")  # as typed: a spreadsheet's apostrophe would refuse both
    ada.sees("Row 2: Invalid vdid", "#upload")


@in_ci
def test_firmware_is_rolled_out_and_a_device_fails(ada: User, site: Site, tmp_path: Path) -> None:
    """The test goes from the upload of the image to the sentence that says why the device was not updated."""
    image = tmp_path / "firmware.bin"
    image.write_bytes(b"new software" * 1000)
    go(ada, f"{TYPE_PAGE}/firmware")
    ada.sees("Upload an image")
    ada.browser.fill("Version, as the device reports it", "9.9.1")
    choose_file(ada, "image", image)
    ada.click("Upload the image")
    ada.sees("Version 9.9.1 is stored", "#sent")
    ada.sees("9.9.1", "tbody th")
    ada.now(lambda: write(ada, "dids", f"{device_id(20)}\n{device_id(21)}"))
    ada.browser.fill("Stop above % failed", "50")
    ada.click("Begin the roll-out")
    ada.sees("Firmware roll-out", "h1")
    ada.sees("DEVICE_NOT_REGISTERED", "tbody")
    ada.sees("2 failed", "#standing")
    # An expert finds it again from the first page in one click; another test may have a roll-out of this name.
    path = ada.browser.url.removeprefix(ada.origin)
    go(ada, "/developer")
    ada.sees("Roll-out: akc.update on Light")
    ada.browser.click(f'//a[@href="{path}"][.="Open" or @aria-label="Open akc.update on Light"]')
    ada.sees("DEVICE_NOT_REGISTERED", "tbody")


def test_what_fails_is_found_from_the_first_page_in_two_clicks(ada: User, site: Site) -> None:
    """A rule that cannot work, and a subscription whose deliveries fail; the delivery is sent again."""
    ada.open("")
    wanted = {"messageType": "message", "sdid": device_id(22), "subscriptionType": "cloudStream"}
    stream = {"cloudKey": "k", "cloudSecret": "secret", "cloudRegion": "eu-west-1", "cloudStreamName": "lights"}
    uid = site.of_ada("GET", "/users/self")["data"]["id"]
    made = site.of_ada("POST", "/subscriptions", json={**wanted, **stream, "uid": uid, "description": "<b>Hall"})
    site.send(22, state=True)
    source, sink = device_id(23), device_id(24)
    condition = {"sdid": source, "field": "state", "operator": "=", "operand": {"value": True}}
    rule = {"name": "Broken rule", "rule": {"if": condition, "then": {"ddid": sink, "action": "setOn"}}}
    rule_id = site.of_ada_at_the_console(ada, "POST", "/rules", rule)["id"]
    go(ada, "/developer")
    ada.sees("Needs attention")
    site.of_ada("DELETE", f"/devices/{sink}")
    ada.sees("Rule: Broken rule")  # the page follows the feed of events
    assert state_of(site, ada, rule_id) == "invalid"
    (acme,) = site.of_ada("GET", "/developer/organizations")["data"]["organizations"]
    listed = f"/developer/organizations/{acme['id']}/subscriptions"
    ada.eventually(lambda: any("problem" in one for one in site.of_ada("GET", listed)["data"]))
    go(ada, "/developer")
    ada.clicks = 0
    ada.click("Open Broken rule")
    ada.sees("Broken rule", "h1")
    assert ada.clicks <= 2
    go(ada, "/developer")
    ada.clicks = 0
    ada.sees("Subscription: <b>Hall")
    ada.click("Open <b>Hall")
    ada.sees("pending", "tbody")
    assert ada.clicks <= 2
    ada.sees("failing", ".facts .badge.bad")
    assert ada.browser.texts(".facts .badge.good") == [], "a subscription whose deliveries fail is not green"
    before = attempts(site, made["data"]["id"])
    ada.click("Deliver again")
    ada.sees("delivered again, with the same id")
    ada.eventually(lambda: attempts(site, made["data"]["id"]) > before)
    ada.sees("The latest replay", "#replay")
    go(ada, f"/developer/subscriptions/{made['data']['id']}")  # it can be left and found again
    ada.sees("The latest replay", "#replay")
    ada.sees("0 of 1 answered", "#replay")
    assert ada.browser.count("h1 b") == 0
    go(ada, "/developer/subscriptions")
    ada.sees("failing", "tbody .badge.bad")
    assert ada.browser.texts("tbody .badge.good") == []
    assert [one for one in ada.browser.traffic().complaints if sink not in one] == []  # the device that is gone
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{rule_id}", None)


@in_ci
def test_a_failing_connector_is_found_from_the_first_page(ada: User, site: Site) -> None:
    """Its third party cannot be reached when an account is to be linked; the page says so, and since when."""
    ada.open("")
    (acme,) = site.of_ada_at_the_console(ada, "GET", "/developer/organizations", None)["organizations"]
    new_type = {"uniqueName": "acme.lamp", "name": "Party lamp"}
    made = f"/developer/organizations/{acme['id']}/devicetypes"
    dtid = site.of_ada_at_the_console(ada, "POST", made, new_type)["id"]
    cloud = ThirdPartyCloud(url="http://127.0.0.1:1").provision_file()  # nobody listens there
    site.provision(cloud.replace('"example.light"', '"acme.lamp"'))
    did = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": dtid, "name": "Lamp"})["id"]
    go(ada, f"/developer/types/{dtid}/connector")
    ada.sees("working", ".badge")
    ada.sees("Nothing fails", "#page")
    come_back_from_the_third_party(site, did, dtid)
    ada.sees("failing", "#standing .badge")  # the page follows
    go(ada, "/developer")
    ada.clicks = 0
    ada.sees("Connector: Party lamp")
    ada.sees("The third party cannot be reached")
    ada.click("Open Party lamp")
    ada.sees("linking an account", "tbody")
    ada.sees("Lamp", '[aria-label="Your devices that are not linked"] tbody')
    assert ada.clicks <= 2
    go(ada, "/operator")
    ada.sees("The connector of acme.lamp fails")


def come_back_from_the_third_party(site: Site, did: str, dtid: str) -> None:
    """As a browser that was sent to the third party, and was given a code there."""
    asked = httpx.post(
        f"{site.daemon.base_url}/devices/{did}/providerauth",
        headers=bearer(USER_TOKEN) | {"Referer": "https://app.example.org/callback"},
    )
    assert asked.status_code == 302, asked.text
    state = httpx.URL(asked.headers["Location"]).params["state"]
    path = f"{site.daemon.base_url}/cloudconnectors/{dtid}/auth"
    back = httpx.get(path, params={"state": state, "code": "given"})
    assert "error=temporarily_unavailable" in back.headers["Location"]


def state_of(site: Site, user: User, rule: str) -> str:
    return str(site.of_ada_at_the_console(user, "GET", f"/rules/{rule}", None)["state"])


def attempts(site: Site, subscription: str) -> int:
    found = site.of_ada("GET", f"/subscriptions/{subscription}/deliveries")["data"]
    return sum(len(one["attempts"]) for one in found)


@in_ci
def test_from_the_invitation_to_a_trial_to_its_acceptance(ada: User, site: Site) -> None:
    go(ada, "/developer/trials")
    ada.sees("New trial")
    ada.browser.fill("Name", "Does dimmed light help?")
    ada.browser.fill("Device types, each by its id or unique name", "example.light")
    ada.browser.leaving(lambda: ada.click("Create the trial"))
    ada.sees("Does dimmed light help?", "h1")
    ada.browser.fill("E-mail address", BOB_EMAIL)
    ada.click("Send the invitation")
    ada.sees("sent", ".badge")
    trial = ada.browser.url
    link = ada.browser.wait(lambda: invitation_in(site))
    ada.browser.fresh()
    bob = User(ada.browser, site.origin)
    bob.take_session(BOB_EMAIL)
    bob.browser.open(link)
    bob.click("Accept")
    bob.eventually(lambda: "Accept" not in bob.browser.texts("button"))
    bob.browser.fresh()
    ada.take_session()
    ada.browser.open(trial)
    ada.sees("accepted", ".badge")
    ada.sees(BOB_EMAIL, '[aria-label="Participants"]')


def invitation_in(site: Site) -> str | None:
    """The link in the mail that invites Bob, once it is written."""
    for path in (site.daemon.state / "outbox").glob("*.eml"):
        with path.open("rb") as file:
            body = email.message_from_binary_file(file, policy=email.policy.default).get_body(["plain"])
        words = [] if body is None else body.get_content().split()
        if found := [word for word in words if "/accept/trial?code=" in word]:
            return str(found[0])
    return None


@in_ci
def test_from_a_plan_to_its_payment(ada: User, site: Site) -> None:
    """A developer proposes it, an operator approves it, the device's owner pays, and the operator accepts that."""
    ada.open("")
    organization = site.of_ada_at_the_console(ada, "GET", "/developer/organizations", None)["organizations"][0]
    new_type = {"uniqueName": "acme.meter", "name": "Water meter"}
    path = f"/developer/organizations/{organization['id']}/devicetypes"
    dtid = site.of_ada_at_the_console(ada, "POST", path, new_type)["id"]
    did = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": dtid, "name": "Meter"})["id"]
    go(ada, f"/developer/types/{dtid}/plans")
    ada.sees("New plan")
    ada.browser.fill("Price of unlimited messages, paid once", "2,99")
    ada.click("Propose the plan")
    ada.eventually(lambda: bool(ada.browser.texts(".finding")))
    ada.was_refused(400)
    ada.browser.fill("Price of unlimited messages, paid once", "2.99")
    ada.click("Propose the plan")
    ada.sees("new", ".badge")
    go(ada, "/operator/decisions")
    ada.click("Approve")
    ada.sees("The plan is approved")
    url = site.of_ada("GET", f"/pricing/devices/{did}/revenueshare/upgradepath")["data"]["url"]
    ada.browser.open(url)
    ada.browser.press("Pay 2.99 USD")
    go(ada, "/operator/decisions")
    ada.click("Accept")
    ada.sees("The payment is accepted")
    ada.sees_no("2.99 USD", "tbody")
    tiers = site.of_ada_at_the_console(ada, "GET", f"/pricing/devices/{did}/pricingtiers?active=true", None)
    assert [tier["type"] for tier in tiers["pricingTiers"]] == ["paid"]


@in_ci
def test_a_role_that_is_lost_while_a_page_is_open_is_told(chromium: Chromium, site: Site) -> None:
    """Bob gets a role at the console of the operator's shell, opens a page, and loses the role."""
    bob = User(chromium, site.origin)
    bob.take_session(BOB_EMAIL)
    site.set_role(BOB_EMAIL, "developer")
    go(bob, f"{TYPE_PAGE}/firmware")
    bob.sees("Roll-outs are for administrators")
    go(bob, "/developer/applications")  # a page of forms, which shows nothing that changes
    bob.sees("New application", "h2")
    site.set_role(BOB_EMAIL, "viewer")
    bob.sees("This is not for you")
    complaints = bob.browser.traffic().complaints
    assert [one for one in complaints if "403" not in one] == []


TEN_THOUSAND_ROWS: Final = """
const done = arguments[arguments.length - 1];
const folder = document.querySelector("script").src.replace(/[^/]*$/, "");
import(`${folder}data-table.js`).then(async ({ DataTable }) => {
  const rows = Array.from({ length: 10000 }, (_, at) => ({
    name: at === 7 ? '=1+1,"<b>;@x' : `row ${at}`, size: (at * 7919) % 10000 }));
  const table = new DataTable("Rows", [{ name: "Name", value: (one) => one.name, isName: true },
    { name: "Size", value: (one) => one.size, isNumber: true }], { order: [1, false] });
  document.querySelector("#page").replaceChildren(table.element);
  table.set(rows);
  let blob = null;
  const made = URL.createObjectURL;
  URL.createObjectURL = (given) => { blob = given; return made.call(URL, given); };
  HTMLAnchorElement.prototype.click = () => {};
  table.saveCsv();
  done((await blob.text()).split("\\r\\n"));
}).catch((error) => done([String(error)]));
"""


def test_a_table_of_ten_thousand_rows_pages_sorts_filters_and_goes_out(ada: User) -> None:
    """In the CSV file no text is a formula; on the page no text is HTML."""
    go(ada, "/developer/usage")
    ada.sees("Used this month")
    lines = ada.browser.run_async(TEN_THOUSAND_ROWS)
    assert len(lines) == 10_001
    assert [int(line.rpartition(",")[2]) for line in lines[1:]] == list(range(10_000))
    assert [line for line in lines if "1+1" in line] == ['"\'=1+1,""<b>;\'@x",' + str(7 * 7919 % 10_000)]
    ada.sees("1–50 of 10,000", ".pages")
    assert ada.browser.texts("tbody td")[:3] == ["0", "1", "2"]
    ada.click("Next")
    ada.sees("51–100 of 10,000", ".pages")
    ada.click("Size ↑")
    ada.eventually(lambda: ada.browser.texts("tbody td")[:1] == ["9999"])
    ada.browser.fill("Filter rows", "<B>")
    ada.eventually(lambda: ada.browser.texts("tbody th") == ['=1+1,"<b>;@x'])


@in_ci
def test_an_application_is_deleted_after_its_name_is_typed(ada: User, site: Site) -> None:
    ada.open("")
    (acme,) = site.of_ada("GET", "/developer/organizations")["data"]["organizations"]
    path = f"/developer/organizations/{acme['id']}/applications"
    made = site.of_ada_at_the_console(ada, "POST", path, {"name": "Short-lived", "methods": ["pkce"]})
    site.provision(f'[[tokens]]\napplication = "{made["id"]}"\nuser = "{ADA_EMAIL}"\n')
    go(ada, "/developer/applications")
    ada.sees("Short-lived")
    choose(ada, "Short-lived")
    deleting(ada, "Short-lived")
    ada.sees("1 person can no longer use it", "dialog")
    ada.sees("1 access token with its connections", "dialog")
    assert ada.browser.count(in_dialog("Delete for good") + "[@disabled]") == 1
    ada.browser.fill("Type its name, Short-lived, to confirm", "short-lived")
    ada.browser.click(in_dialog("Delete for good"))
    ada.sees("Short-lived is deleted")
    ada.sees_no("Short-lived", "#page")
    # One that a provision file makes is not deleted here, and the page says why.
    choose(ada, "Light Board")
    deleting(ada, "Light Board")
    ada.sees("Light Board cannot be deleted", "dialog")
    ada.sees("A provision file makes this application", "dialog")
    ada.click("Close")


def choose(user: User, name: str) -> None:
    """Where there are many applications, they are a table, of which one is shown."""
    user.eventually(lambda: name in user.browser.text)
    if user.browser.count("#page table"):
        user.browser.fill("Filter applications", name)
        user.click(name)
    user.sees(name, "#page section h2")


def deleting(user: User, name: str) -> None:
    user.browser.click(f'//section[@aria-label="{name}"]//button[.="Delete"]')


def in_dialog(words: str) -> str:
    return f'//dialog//button[.="{words}"]'


@in_ci
def test_what_an_application_asks_people_for_is_chosen(ada: User, site: Site) -> None:
    ada.open("")
    (acme,) = site.of_ada("GET", "/developer/organizations")["data"]["organizations"]
    path = f"/developer/organizations/{acme['id']}/applications"
    made = site.of_ada_at_the_console(ada, "POST", path, {"name": "Asker", "methods": ["pkce"]})
    go(ada, "/developer/applications")
    choose(ada, "Asker")
    ada.browser.click('//section[@aria-label="Asker"]//button[.="Change"]')
    form = '[aria-label="Change Asker"]'
    ada.sees("Permissions it asks for", form)
    for _ in range(2):
        ada.browser.click('//form[@aria-label="Change Asker"]//button[.="Ask for more"]')
    ada.browser.write(f"{form} .ask input", "none.such")
    press_in(ada, "Change Asker", "Save")
    ada.sees("There is no such device type", f"{form} .finding")
    ada.was_refused(400)
    ada.browser.write(f"{form} .ask input", "example.light")
    press_in(ada, "Change Asker", "Save")
    ada.sees("The application is changed")
    asked = site.of_ada_at_the_console(ada, "GET", f"/developer/applications/{made['id']}", None)["permissions"]
    assert asked == [
        {"deviceType": LIGHT_TYPE, "permissions": ["READ"]},
        {"deviceType": "*", "permissions": ["READ"]},
    ]
    ada.sees_no("Asker", "#chosen")  # the list has been read again, and nothing is chosen
    choose(ada, "Asker")
    ada.sees("see: devices of every type", '[aria-label="Asker"] dd')
    site.of_ada_at_the_console(ada, "DELETE", f"/developer/applications/{made['id']}", None)


@in_ci
def test_a_subscription_is_made_and_deleted(ada: User, site: Site) -> None:
    go(ada, "/developer/subscriptions")
    ada.sees("New subscription")
    assert ada.browser.count("[name=cloudRegion]:enabled") == 0
    pick(ada, "application", "Dashboard")
    pick(ada, "source", "Messages of one device")
    pick(ada, "receiver", "Into a cloud stream")
    for name, text in (("cloudRegion", "eu-west-1"), ("cloudStreamName", "lights"), ("cloudKey", "key")):
        write(ada, name, text)
    write(ada, "cloudSecret", "secret")
    write(ada, "description", "Lights for the archive")
    ada.click("Create the subscription")
    ada.sees("The subscription is made")
    ada.sees("Lights for the archive", "#page table")
    ada.browser.leaving(lambda: ada.click("Lights for the archive"))
    ada.sees("Lights for the archive", "h1")
    made = site.of_ada("GET", f"/subscriptions/{ada.browser.url.split('/')[-1]}")["data"]
    assert (made["uid"], made["sdid"], made["cloudStreamName"]) == (ADA, device_id(0), "lights")
    ada.click("Delete")
    ada.browser.leaving(lambda: ada.click("Delete it"))
    ada.sees("New subscription")
    ada.sees_no("Lights for the archive", "#page table")


def test_a_subscription_to_alarms_is_made(ada: User, site: Site) -> None:
    ada.open("")
    (acme,) = site.of_ada("GET", "/developer/organizations")["data"]["organizations"]
    applications = site.of_ada("GET", f"/developer/organizations/{acme['id']}/applications")["data"]
    (dashboard,) = [one for one in applications if one["name"] == "Dashboard"]
    path = f"/developer/applications/{dashboard['id']}"
    site.of_ada_at_the_console(ada, "PUT", path, {"redirectUris": ["http://localhost/"]})  # callbacks have its domain
    go(ada, "/developer/subscriptions")
    ada.sees("New subscription")
    pick(ada, "receiver", "Into a cloud stream")
    pick(ada, "application", "Dashboard")
    pick(ada, "source", "Alarms of the application's rules")
    assert ada.browser.count("[name=cloudRegion]:enabled") == 0  # alarms go to callbacks only
    write(ada, "callbackUrl", "http://localhost:9/alarms")
    write(ada, "description", "Alarms for the shift")
    ada.click("Create the subscription")
    ada.sees("waits for its callback")
    ada.browser.leaving(lambda: ada.click("Alarms for the shift"))
    ada.sees("Alarms", "#page dl")
    made = site.of_ada("GET", f"/subscriptions/{ada.browser.url.split('/')[-1]}")["data"]
    assert (made["uid"], made["messageType"], made["callbackUrl"]) == (ADA, "alarm", "http://localhost:9/alarms")
    ada.click("Delete")
    ada.browser.leaving(lambda: ada.click("Delete it"))
    ada.sees("New subscription")
    site.of_ada_at_the_console(ada, "PUT", path, {"redirectUris": dashboard["redirectUris"]})


def pick(user: User, name: str, words: str) -> None:
    user.browser.choose(f"[name={name}]", words)


def press_in(user: User, form: str, words: str) -> None:
    user.browser.click(f'//form[@aria-label="{form}"]//button[.="{words}"]')
