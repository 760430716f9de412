"""A small world that every version can make: a provision file, requests that fill it, and questions about it.

Only the standard library: the requests go to daemons of any age.
"""

import json
import urllib.error
import urllib.request
from typing import Any, Final

ADA, BOB = "ada0" * 8, "b0b0" * 8
APPLICATION = "aa" * 16
ADA_TOKEN, BOB_TOKEN = "31" * 16, "32" * 16
DEVICE_TYPE = "dt" + "1e" * 16
KITCHEN, HALL = "11" * 16, "12" * 16
KITCHEN_TOKEN, HALL_TOKEN = "21" * 16, "22" * 16
PASSWORD: Final = "correct horse battery staple"

#: 2025-11-13T02:13:20Z: in the past of every version.
SINCE_MS: Final = 1_763_000_000_000
_MINUTE_MS: Final = 60_000
_MESSAGES: Final = 90
_UNTIL_MS: Final = SINCE_MS + 2 * _MESSAGES * _MINUTE_MS
_RANGE: Final = f"startDate={SINCE_MS - _MINUTE_MS}&endDate={_UNTIL_MS}"

MANIFEST: Final = {
    "fields": [
        {"name": "state", "valueClass": "Boolean"},
        {"name": "intensity", "valueClass": "Integer"},
        {"name": "temperature", "valueClass": "Double"},
        {"name": "text", "valueClass": "String"},
        {"name": "colorRGB", "children": [{"name": name, "valueClass": "Integer"} for name in ("r", "g", "b")]},
    ],
    "actions": [{"name": "setOn", "parameters": []}],
}

PROVISION: Final = f"""
[[organizations]]
name = "Acme"
monthly_messages = -1

[[users]]
id = "{ADA}"
email = "ada@example.org"
full_name = "Ada"
password = "{PASSWORD}"
organization = "Acme"
role = "administrator"

[[users]]
id = "{BOB}"
email = "bob@example.org"
full_name = "Bob"
password = "{PASSWORD}"

[[applications]]
id = "{APPLICATION}"
name = "Dashboard"
organization = "Acme"
secret = "s3cret"
redirect_uri = "https://app.example.org/callback"
methods = ["client_credentials"]
permissions = [{{ device_type = "*", permissions = ["READ", "WRITE"] }}]

[[device_types]]
id = "{DEVICE_TYPE}"
unique_name = "example.light"
name = "Light"
organization = "Acme"
published = true
manifest = "light.json"

[[devices]]
id = "{KITCHEN}"
owner = "ada@example.org"
type = "example.light"
name = "Kitchen light"
token = "{KITCHEN_TOKEN}"

[[devices]]
id = "{HALL}"
owner = "bob@example.org"
type = "example.light"
name = "Hall light"
token = "{HALL_TOKEN}"

[[tokens]]
value = "{ADA_TOKEN}"
application = "{APPLICATION}"
user = "ada@example.org"
expires_in = 3153600000

[[tokens]]
value = "{BOB_TOKEN}"
application = "{APPLICATION}"
user = "bob@example.org"
expires_in = 3153600000

[[grants]]
user = "ada@example.org"
application = "{APPLICATION}"
device_type = "example.light"
permissions = ["READ", "WRITE"]

[[grants]]
user = "bob@example.org"
application = "{APPLICATION}"
device_type = "example.light"
permissions = ["READ", "WRITE"]
"""

Request = tuple[str, str, str, Any]  # method, path, token, body


def _message(number: int) -> dict[str, Any]:
    data = {
        "state": number % 2 == 0,
        "intensity": number,
        "temperature": 20 + number / 8,
        "text": f"message {number} é",
        "colorRGB": {"r": number, "g": 255 - number, "b": 7},
    }
    return {"data": data, "ts": SINCE_MS + number * _MINUTE_MS}


#: A version that does not know one of them refuses it.
FILLING: Final[tuple[Request, ...]] = (
    *[("POST", "/messages", KITCHEN_TOKEN, _message(number)) for number in range(_MESSAGES)],
    *[("POST", "/messages", HALL_TOKEN, _message(number)) for number in range(0, _MESSAGES, 9)],
    ("POST", "/messages", KITCHEN_TOKEN, {"data": {"unknown": 1}}),
    ("POST", "/actions", ADA_TOKEN, {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn", "parameters": {}}]}}),
    ("POST", f"/devices/{KITCHEN}/shares", ADA_TOKEN, {"email": "bob@example.org"}),
    (
        "POST",
        "/rules",
        ADA_TOKEN,
        {
            "name": "Bright",
            "rule": {
                "if": {"and": [{"sdid": KITCHEN, "field": "intensity", "operator": ">", "operand": {"value": 1000}}]},
                "then": [{"ddid": KITCHEN, "action": "setOn", "parameters": {}}],
            },
        },
    ),
    (
        "POST",
        "/scenes",
        ADA_TOKEN,
        {"name": "Evening", "actions": [{"ddid": KITCHEN, "action": "setOn", "parameters": {}}]},
    ),
    ("PUT", f"/devices/{HALL}", BOB_TOKEN, {"name": "Hall"}),
)

QUESTIONS: Final[tuple[tuple[str, str], ...]] = (
    ("/users/self", ADA_TOKEN),
    (f"/users/{ADA}/devices?includeProperties=true", ADA_TOKEN),
    (f"/users/{BOB}/devices?includeShared=true", BOB_TOKEN),
    (f"/devices/{KITCHEN}", ADA_TOKEN),
    (f"/devices/{KITCHEN}/tokens", ADA_TOKEN),
    (f"/devices/{KITCHEN}/shares", ADA_TOKEN),
    (f"/devices/{KITCHEN}/failures", ADA_TOKEN),
    (f"/devicetypes/{DEVICE_TYPE}", ADA_TOKEN),
    (f"/devicetypes/{DEVICE_TYPE}/manifests/latest/properties", ADA_TOKEN),
    (f"/messages?sdid={KITCHEN}&{_RANGE}&count=100", ADA_TOKEN),
    (f"/messages?sdid={HALL}&{_RANGE}&count=4&order=desc", BOB_TOKEN),
    (f"/messages?sdid={KITCHEN}&{_RANGE}&filter=intensity%3D7", ADA_TOKEN),
    (f"/messages/last?sdids={KITCHEN}&count=3", ADA_TOKEN),
    (f"/messages/snapshots?sdids={KITCHEN}", ADA_TOKEN),
    (f"/messages/analytics/aggregates?sdid={KITCHEN}&field=intensity&{_RANGE}", ADA_TOKEN),
    (f"/messages/analytics/histogram?sdid={KITCHEN}&field=temperature&interval=hour&{_RANGE}", ADA_TOKEN),
    (f"/messages/presence?sdid={KITCHEN}&interval=hour&{_RANGE}", ADA_TOKEN),
    (f"/actions?ddid={KITCHEN}&startDate=1&endDate=4000000000000", ADA_TOKEN),
    (f"/users/{ADA}/rules", ADA_TOKEN),
    (f"/users/{ADA}/scenes", ADA_TOKEN),
    ("/devices/status?dids=" + KITCHEN, ADA_TOKEN),
)

Answer = tuple[int, Any]


def asked_by(path: str) -> str:
    """The token with which this question is asked."""
    return dict(QUESTIONS)[path]


def ask(base: str, method: str, path: str, token: str, body: Any = None) -> Answer:
    """The status, and the body read from JSON."""
    request = urllib.request.Request(base + path, method=method)  # noqa: S310 - http on this machine
    request.add_header("Authorization", f"bearer {token}")
    content = None if body is None else json.dumps(body).encode()
    if content is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, content, timeout=30) as answer:  # noqa: S310 - as above
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
