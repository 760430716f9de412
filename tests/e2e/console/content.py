"""A store in which every page has much to show: long names, many rows, missing devices, things that fail.

Its sentences, names and addresses are as long as the service allows, its words as long as people write them.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.browser import Chromium
from tests.daemon import ADA_EMAIL, LIGHT_TYPE, USER_TOKEN, bearer, device_id
from tests.e2e.console.user import PASSWORD, User
from tests.e2e.console.world import Site, running_site
from tests.protocols.http.accounts.browser import Form
from tests.stores import columns_of
from tests.third_party_cloud import ThirdPartyCloud

#: Each of 64 characters, with the longest words that a name of a device has.
LONG_NAME: Final = "Feuchtigkeitsmesser und Rauchmelder im Konferenzraum, Stockwerk 12"[:64]
LONG_TYPE: Final = "Temperaturmessgerät für Klimaanlagen der Baureihe 4711 (Ausland)"[:64]
LONG_EMAIL: Final = "anna.mustermann@instruments.example.org"  # 39 characters
MEMBER, VIEWER, PLAIN = "developer@example.org", "viewer@example.org", LONG_EMAIL
STATION: Final = "dt" + "57" * 16
#: A device whose messages have every field of a wide type, and one that is deleted while rules and scenes have it.
WIDE, GONE = "57" * 15 + "01", "57" * 15 + "02"
ARTICLES: Final = (
    "ventilationTemperature",
    "relativeHumidity",
    "carbonDioxide",
    "batteryVoltage",
    "soundPressureLevel",
)
_MANIFEST: Final[dict[str, Any]] = {
    "fields": [
        *(
            {
                "name": name,
                "type": "CUSTOM",
                "valueClass": "Double",
                "description": "As measured at the inlet of the air",
            }
            for name in ARTICLES[1:]
        ),
        {"name": ARTICLES[0], "valueClass": "Double", "unit": "SI.CELSIUS", "description": "As measured at the inlet"},
        {"name": "windowOpen", "valueClass": "Boolean"},
        {"name": "note", "valueClass": "String"},
        {"name": "outside", "children": [{"name": "atmosphericPressure", "valueClass": "Double"}]},
    ],
    "actions": [
        {"name": "setOn", "description": "Turns the ventilation on", "parameters": []},
        {
            "name": "setVentilationSchedule",
            "description": "When it is on",
            "parameters": [
                {"name": "firstHour", "valueClass": "Integer"},
                {"name": "lastHour", "valueClass": "Integer"},
            ],
        },
    ],
}


@dataclass
class Content:
    """The site, and the ids that stand in the paths of its pages."""

    site: Site
    ids: dict[str, str] = field(default_factory=dict)
    of: dict[str, dict[str, str]] = field(default_factory=dict)  # those of other people, by e-mail address

    @contextmanager
    def as_person(self, email: str = ADA_EMAIL) -> Iterator[httpx.Client]:
        """A client with the token that the console gives the pages of this person."""
        origin = self.site.origin
        with httpx.Client(follow_redirects=True, timeout=30) as client:
            form = Form(client.get(f"{origin}/console").text)
            shown = client.post(f"{origin}{form.action}", data=form.fields | {"email": email, "password": PASSWORD})
            proof = shown.text.partition('name="csrf" content="')[2].partition('"')[0]
            given = client.post(f"{origin}/console/token", headers={"X-Console": proof}).raise_for_status().json()
            client.headers["Authorization"] = f"Bearer {given['accessToken']}"
            client.base_url = httpx.URL(self.site.daemon.base_url)
            yield client

    def user(self, browser: Chromium, email: str = ADA_EMAIL) -> User:
        user = User(browser, self.site.origin)
        user.take_session(email)
        return user


@contextmanager
def full_site(folder: Path) -> Iterator[Content]:
    with running_site(folder) as site:
        content = Content(site)
        _provision(content, folder)
        with content.as_person() as ada:
            _Ada(content, ada).fill()
        yield content


def _provision(content: Content, folder: Path) -> None:
    (folder / "station.json").write_text(json.dumps(_MANIFEST), encoding="utf-8")
    for number in range(3):
        (folder / f"image-{number}.bin").write_bytes(b"software" * 1000 * (number + 1))
    content.site.provision(_PROVISIONED + ThirdPartyCloud(url="http://127.0.0.1:1").provision_file())


class _Ada:
    """Makes Ada's objects, at her console."""

    def __init__(self, content: Content, client: httpx.Client) -> None:
        self.content, self.site, self.ids = content, content.site, content.ids
        self._client = client

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        if body is not None:
            options["json"] = body
        answer = self._client.request(method, path.lstrip("/"), **options)
        assert answer.is_success, (method, path, answer.text)
        found = answer.json()
        return found.get("data", found)

    def fill(self) -> None:
        self.uid = self.call("GET", "/users/self")["id"]
        (acme, *_) = self.call("GET", "/developer/organizations")["organizations"]
        self.acme = acme["id"]
        self.messages()
        self.automations()
        self.people()
        self.developing()
        self.operating()
        self.call("DELETE", f"/devices/{GONE}")
        site = self.site
        # Refusals of somebody unknown and of a device; and a message without a known field
        for path in ("/users/self", f"/devices/{WIDE}"):
            httpx.get(site.daemon.base_url + path, headers=bearer("9" * 32))
        self.send(WIDE, {"unknownMeasurementOfTheStation": 1}, status=200)
        self.send(WIDE, "no object", status=400)

    def send(self, did: str, data: object, *, ts: int | None = None, status: int = 200) -> None:
        body: dict[str, Any] = {"sdid": did, "data": data} | ({} if ts is None else {"ts": ts})
        answer = httpx.post(f"{self.site.daemon.base_url}/messages", json=body, headers=bearer(_TOKEN))
        assert answer.status_code == status, answer.text

    def messages(self) -> None:
        now = int(time.time() * 1000)
        for at in range(30):
            values: dict[str, Any] = {name: round(20 + at * 1.137 + number, 3) for number, name in enumerate(ARTICLES)}
            values |= {"windowOpen": at % 2 == 0, "outside": {"atmosphericPressure": 1013.25 - at}}
            values["note"] = "Wartungsarbeiten an der Lüftungsanlage abgeschlossen. " * 2
            self.send(WIDE, values, ts=now - (30 - at) * 8000)
        for number in range(25):
            self.site.send(number, state=True, intensity=number, temperature=21.5, text="a rather long text " * 3)
        self.call("POST", "/actions", {"ddid": WIDE, "data": {"actions": [{"name": "setOn"}]}})
        self.call(
            "POST", f"/devicemgmt/devices/{WIDE}/serverproperties", {"site": {"floor": "12", "building": LONG_TYPE}}
        )

    def automations(self) -> None:
        conditions = [_above(WIDE, name) for name in ARTICLES[:3]] + [_above(GONE, ARTICLES[0])]
        conditions[0]["duration"] = {"value": 60, "acceptUpdate": True}
        conditions.append(
            {"field": "datetime", "operator": "=", "operand": {"value": "30 7 * * mon-fri * TZ Europe/Berlin"}}
        )
        schedule = {"firstHour": {"value": 7}, "lastHour": {"value": 19}}
        actions: list[dict[str, Any]] = [
            {"ddid": WIDE, "action": "setVentilationSchedule", "parameters": schedule},
            {"ddid": GONE, "action": "setOn", "parameters": {}},
            {
                "action": "sendEmail",
                "parameters": {"subject": {"value": LONG_NAME}, "body": {"value": f"{LONG_NAME} " * 3}},
            },
        ]
        rule = {"if": {"and": conditions}, "then": actions}
        made = self.call("POST", "/rules", {"name": LONG_NAME, "scope": "allApplications", "rule": rule})
        self.ids["rule"] = made["id"]
        simple = {"if": {"and": [_above(WIDE, ARTICLES[0])]}, "then": [actions[0]]}
        for severity in ("info", "warning", "critical"):
            alarm = {"severity": severity, "text": f"{LONG_NAME} {severity}"}
            ringing = {**simple, "alarm": alarm}
            self.call("POST", "/rules", {"name": f"{LONG_NAME[:50]} {severity}", "rule": ringing})
        for number in range(30):
            named = {"name": f"{LONG_NAME[:58]} {number}", "scope": "allApplications", "rule": simple}
            self.ids["running rule"] = self.call("POST", "/rules", named)["id"]
        foreign = {"name": "Of the dashboard", "rule": simple}
        answer = httpx.post(f"{self.site.daemon.base_url}/rules", json=foreign, headers=bearer(USER_TOKEN))
        self.ids["foreign rule"] = answer.raise_for_status().json()["data"]["id"]
        self.send(WIDE, {ARTICLES[0]: 99.5})
        scene = [one for one in actions if "ddid" in one] * 3
        scene.append({"ddid": {"selector": "every", "dtid": STATION}, "action": "setOn"})
        made = self.call("POST", "/scenes", {"name": LONG_NAME, "description": f"{LONG_NAME} " * 5, "actions": scene})
        self.ids["scene"] = made["id"]
        for number in range(30):
            body = {"name": f"{LONG_NAME[:58]} {number}", "actions": scene[:1]}
            self.call("POST", "/scenes", body)

    def people(self) -> None:
        now = int(time.time() * 1000)
        self.call("POST", f"/devices/{WIDE}/shares", {"email": LONG_EMAIL})
        self.call("POST", f"/devices/{device_id(0)}/transfer", {"email": LONG_EMAIL})
        for format_ in ("csv2", "csv1", "json"):
            body = {"startDate": now - 3_600_000, "endDate": now, "format": format_, "uids": self.uid}
            self.call("POST", "/messages/export", body)
        self.ids |= {"device": WIDE, "gone": GONE}
        for email in (PLAIN, MEMBER, VIEWER):
            with self.content.as_person(email) as other:
                self.content.of[email] = _own_things(other)
        shared = self.content.of[PLAIN]["device"]
        self.ids["shared"] = shared
        offers = self.call("GET", f"/users/{self.uid}/shares", params={"filter": "WAITING"})["shares"]
        share = next(one["id"] for one in offers if one["did"] == shared)
        self.call("PUT", f"/devices/{shared}/shares/{share}", {"status": "ACCEPTED"})

    def developing(self) -> None:
        self.ids["light"] = LIGHT_TYPE
        types = f"/developer/organizations/{self.acme}/devicetypes"
        for number in range(20):
            new_type = {"uniqueName": f"acme.ventilation.number{number}", "name": f"{LONG_TYPE[:60]} {number}"}
            self.call("POST", types, new_type)
        lists = f"/devicetypes/{STATION}/whitelist"
        rows = "vdid\n" + "\n".join(f"{number:032x}" for number in range(60))
        self.call("POST", lists, content=rows.encode(), headers={"Content-Type": "text/csv"})
        tomorrow = int(time.time() * 1000) + 86_400_000
        task: dict[str, Any] = {"dtid": STATION, "taskType": "W"}
        for number in range(10):
            written = {"property": "serverProperties.site.floor", "dids": [WIDE], "taskParameters": {"value": "12"}}
            later = {"scheduledOn": tomorrow} if number % 2 else {}
            self.call("POST", "/devicemgmt/tasks", {**task, **written, **later})
        image = self.call("GET", f"/devicemgmt/devicetypes/{STATION}/images")["images"][0]["updateId"]
        plan = {"devicesPerMinute": 60, "canaryDevices": 1, "canarySuccessPercent": 90, "abortPercent": 10}
        update = {"property": "akc.update", "taskParameters": {"update": {"updateId": image, "rollout": plan}}}
        self.ids["task"] = self.call("POST", "/devicemgmt/tasks", {**task, **update})["id"]
        self.call("POST", f"/pricing/devicetypes/{STATION}/pricingtiers", _PLAN)
        listed = self.call("GET", f"/developer/organizations/{self.acme}/subscriptions")
        self.ids["subscription"] = next(one["id"] for one in listed if one["subscriptionType"] == "cloudStream")
        invited = [
            {"email": f"participant.number{at}@instruments.example.org", "invitationType": "participant"}
            for at in range(12)
        ]
        trial: dict[str, Any] = {
            "name": LONG_NAME,
            "description": f"{LONG_TYPE} " * 8,
            "deviceTypes": [{"dtid": STATION}],
        }
        self.ids["trial"] = self.call("POST", "/trials", {**trial, "invitations": invited})["id"]
        with self.content.as_person(PLAIN) as anna:
            given = {"email": PLAIN, "invitationType": "participant"}
            made = self.call("POST", f"/trials/{self.ids['trial']}/invitations", given)
            path = f"trials/{self.ids['trial']}/invitations/{made['id']}"
            anna.put(path, json={"status": "accepted"}).raise_for_status()

    def operating(self) -> None:
        self.call("POST", "/operator/backups")
        now = int(time.time() * 1000)
        day = [(now - at * 300_000, 300, 9_000 * (at % 40), 120 + at, 40, 900 + at, at % 7, 2**30) for at in range(288)]
        with self.site.daemon.store() as store:
            store.execute("DELETE FROM operator_sample")
            store.insert_many("operator_sample", columns_of(store)["operator_sample"], day)


def _own_things(other: httpx.Client) -> dict[str, str]:
    """A device that is offered to Ada, a rule and a scene."""
    did = other.post("devices", json={"dtid": STATION, "name": LONG_NAME}).json()["data"]["id"]
    other.post(f"devices/{did}/shares", json={"email": ADA_EMAIL}).raise_for_status()
    action = {"ddid": did, "action": "setOn", "parameters": {}}
    rule = {"if": {"and": [_above(did, ARTICLES[0])]}, "then": [action]}
    made = (
        other.post("rules", json={"name": "Mine", "scope": "allApplications", "rule": rule}).raise_for_status().json()
    )
    scene = other.post("scenes", json={"name": "Mine", "actions": [action]}).raise_for_status().json()["data"]["id"]
    trial = other.post("trials", json={"name": "Mine"}).raise_for_status().json()["data"]["id"]
    own = {"trial": trial, "device": did, "gone": did, "shared": did, "scene": scene}
    return own | dict.fromkeys(("rule", "running rule", "foreign rule"), made["data"]["id"])


def _above(device: str, name: str) -> dict[str, Any]:
    return {"sdid": device, "field": name, "operator": ">", "operand": {"value": 20}}


_PLAN: Final = {
    "type": "count",
    "tiers": [
        {"name": "Free", "type": "free", "messageLimit": 100, "cost": "0"},
        {"name": "Paid", "type": "paid", "messageLimit": -1, "cost": "2.99"},
    ],
}
_TOKEN: Final = "58" * 16
_STREAM: Final = (
    'subscription_type = "cloudStream"\ncloud_key = "k"\ncloud_secret = "secret"\ncloud_region = "eu-west-1"\n'
)
_PATH: Final = "customer-portal/oauth2/authorization-code/callback"
_PROVISIONED: Final = (
    f"""
[[users]]
email = "{LONG_EMAIL}"
full_name = "Anna Theodora Mustermann-Hohenlohe-Schillingsfürst"
password = "{PASSWORD}"

[[users]]
email = "{MEMBER}"
full_name = "Developer"
password = "{PASSWORD}"
organization = "Acme"
role = "developer"

[[users]]
email = "{VIEWER}"
full_name = "Viewer"
password = "{PASSWORD}"
organization = "Acme"
role = "viewer"

[[device_types]]
id = "{STATION}"
unique_name = "acme.ventilation.station"
name = "{LONG_TYPE}"
organization = "Acme"
published = true
manifest = "station.json"

[[devices]]
id = "{WIDE}"
owner = "{ADA_EMAIL}"
type = "acme.ventilation.station"
name = "{LONG_NAME}"

[[devices]]
id = "{GONE}"
owner = "{ADA_EMAIL}"
type = "acme.ventilation.station"
name = "{LONG_NAME[:57]} (gone)"

[[tokens]]
value = "{_TOKEN}"
application = "Dashboard"
user = "{ADA_EMAIL}"

[[grants]]
user = "{ADA_EMAIL}"
application = "Dashboard"
device_type = "*"
permissions = ["READ", "WRITE"]

[[subscriptions]]
owner = "{ADA_EMAIL}"
application = "Dashboard"
sdid = "{WIDE}"
description = "{LONG_NAME}"
cloud_stream_name = "measurements"
{_STREAM}
[[subscriptions]]
owner = "{ADA_EMAIL}"
application = "Dashboard"
sdid = "{device_id(1)}"
callback_url = "https://collector.instruments.example.org/measurements/incoming/{"0" * 32}"
"""
    + "".join(
        f"""
[[firmware]]
device_type = "acme.ventilation.station"
version = "2026.11.{number}-release-candidate"
file = "image-{number}.bin"
"""
        for number in range(3)
    )
    + "".join(
        f"""
[[users]]
email = "operator.of.the.building{number}@instruments.example.org"
full_name = "Maximilian Alexander von Hohenfels-Westerwald {number}"
password = "{PASSWORD}"
"""
        for number in range(20)
    )
    + "".join(
        f"""
[[applications]]
name = "{LONG_TYPE[:60]} {number}"
organization = "Acme"
redirect_uri = "https://application.instruments.example.org/signed-in/{_PATH}?installation={number}&return={_PATH}"
methods = ["authorization_code", "pkce"]
"""
        for number in range(24)
    )
)
