"""Makes the objects that Schemathesis asks for, and puts their ids into the document (test_schemathesis.py)."""

import datetime as dt
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx

from protocols.http.openapi import samples
from tests.certificates import Authority
from tests.daemon import ADA, ADA_EMAIL, DASHBOARD, LIGHT_TYPE, USER_TOKEN

LIGHT: Final = "example.light"
#: Stands for a subscription that is deleted in the examples; it is in no document.
ENDED: Final = "ended subscription"
#: Stands for an application that is changed in the examples: that of the tokens goes on managing its organization.
CHANGED: Final = "changed application"
#: Stands for one that is deleted in the examples.
DELETED: Final = "deleted application"
HOUR_MS: Final = 3_600_000


#: Calls that leave a trial unusable for later calls: each has a trial of its own.
OWN_TRIALS: Final = (
    ("delete", "/trials/{tid}"),
    ("put", "/trials/{tid}/invitations/{iid}"),
    ("delete", "/trials/{tid}/participants/{uid}"),
    ("delete", "/trials/{tid}/participants/{uid}/devices/{did}"),
    ("delete", "/trials/{tid}/devicetypes/{dtid}"),
    ("post", "/trials/{tid}/devicetypes"),
    ("post", "/trials/{tid}/participants/{uid}/devices"),
    ("delete", "/trials/sessions/{sid}"),
)


def furnish(client: httpx.Client, kitchen: str) -> dict[str, str]:
    """Make the objects of the examples, as the owner would; by their ids in the document."""

    def made(method: str, path: str, **body: Any) -> Any:
        return client.request(method, path, **body).raise_for_status().json()["data"]

    stream = {"cloudKey": "k", "cloudSecret": "secret", "cloudRegion": "eu-west-1", "cloudStreamName": "lights"}
    wanted = {"messageType": "message", "uid": ADA, "sdid": kitchen, "subscriptionType": "cloudStream", **stream}
    subscription, ended = [made("POST", "/subscriptions", json=wanted)["id"] for _ in range(2)]
    recently = int(time.time() * 1000) - 2 * HOUR_MS
    for ts in range(recently, recently + 60_000, 10_000):
        body = {"sdid": kitchen, "ts": ts, "data": {"intensity": ts % 100, "state": True}}
        mid = made("POST", "/messages", json=body)["mid"]
    signed, to_be_signed = (Authority(name, now=dt.datetime.now(dt.UTC)).pem for name in ("Maker", "Other maker"))
    certificates = f"/devicetypes/{LIGHT_TYPE}/whitelist/certificates"
    upload = made("POST", f"/devicetypes/{LIGHT_TYPE}/whitelist", content=f"vdid\n{samples.VDID}\nno good\n")
    export = {"sdids": kitchen, "startDate": recently, "endDate": recently + HOUR_MS}
    task = {"dtid": LIGHT_TYPE, "dids": [kitchen], "taskType": "R", "property": "serverProperties.site"}
    in_an_hour = int(time.time() * 1000) + HOUR_MS  # so that it can be cancelled
    image = made("POST", f"/devicemgmt/devicetypes/{LIGHT_TYPE}/images?version=2", content=b"firmware")
    while not (deliveries := made("GET", f"/subscriptions/{subscription}/deliveries")):
        time.sleep(0.05)
    scene = {"name": "Evening", "actions": [{"ddid": kitchen, "action": "setOn"}]}
    source = {"did": kitchen, "field": "intensity"}
    parameters = {"sourceToPredict": source, "predictIn": 60}
    model = {"data": {"sources": [source]}, "type": "prediction", "parameters": parameters}
    condition = {"sdid": kitchen, "field": "intensity", "operator": ">", "operand": {"value": 80}}
    rule = {"name": "Rule", "rule": {"if": condition, "then": {"ddid": kitchen, "action": "setOn"}}}
    ringing = {"severity": "info", "text": "Dark"}
    made("POST", "/rules", json={"name": "Rings", "rule": {"if": {**condition, "operator": ">="}, "alarm": ringing}})
    made("POST", "/messages", json={"sdid": kitchen, "data": {"intensity": 90}})
    while not (alarms := client.get("/alarms").raise_for_status().json()["data"]):
        time.sleep(0.05)
    oid = made("GET", "/developer/organizations")["organizations"][0]["id"]
    changed, deleted = [
        made("POST", f"/developer/organizations/{oid}/applications", json={"name": name, "methods": ["pkce"]})["id"]
        for name in (f"Board of {kitchen}", f"Panel of {kitchen}")
    ]
    return {
        CHANGED: changed,
        DELETED: deleted,
        samples.ALARM: alarms[0]["id"],
        samples.RULE: made("POST", "/rules", json=rule)["id"],
        samples.SUBSCRIPTION: subscription,
        samples.NOTIFICATION: deliveries[-1]["id"],
        ENDED: ended,
        samples.MODEL: made("POST", "/ml/models", json=model)["id"],
        samples.SCENE: made("POST", "/scenes", json=scene)["id"],
        samples.BOARD: samples.BOARD,  # there is none: the application may not change profiles
        samples.TASK: made("POST", "/devicemgmt/tasks", json={**task, "scheduledOn": in_an_hour})["id"],
        samples.IMAGE: image["updateId"],
        samples.OID: oid,
        samples.UID: ADA,
        samples.AID: DASHBOARD,
        samples.DID: kitchen,
        samples.DTID: LIGHT_TYPE,
        samples.TYPE_NAME: LIGHT,
        samples.MID: mid,
        samples.SHARE_ID: made("POST", f"/devices/{kitchen}/shares", json={"email": "bob@example.org"})["id"],
        samples.UPLOAD: upload["uploadId"],
        samples.EXPORT: made("POST", "/messages/export", json=export)["exportId"],
        samples.IMPORT: imported(client, kitchen),
        samples.DELETION: made("DELETE", f"/messages?sdid={kitchen}&startDate=0&endDate=1")["id"],
        samples.CERTIFICATE: made("POST", certificates, json={"certificate": signed})["id"],
        samples.TOKEN: USER_TOKEN,
        "steps": "intensity",
        "-----BEGIN CERTIFICATE-----\\n…\\n-----END CERTIFICATE-----\\n": to_be_signed.replace("\n", "\\n"),
    }


def imported(client: httpx.Client, kitchen: str) -> str:
    headers = {"Content-Type": "text/csv"}
    answer = client.post(f"/messages/import?sdid={kitchen}", content=b"time,intensity", headers=headers)
    made: str = answer.raise_for_status().json()["data"]["id"]
    return made


def furnish_trials(client: httpx.Client, kitchen: str, *, own: bool) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Ada's trial that the examples are about, by what stands for it; and with `own` the ids of `OWN_TRIALS`."""

    def made(method: str, path: str, **body: Any) -> Any:
        return client.request(method, path, json=body or None).raise_for_status().json()["data"]

    def trial(*, types: bool, joined: bool, connected: bool) -> dict[str, str]:
        given = [{"dtid": LIGHT_TYPE}] if types else []
        tid: str = made("POST", "/trials", name="Trial", deviceTypes=given)["id"]
        path = f"/trials/{tid}"
        invitation = made("POST", f"{path}/invitations", email=ADA_EMAIL, invitationType="participant")
        if joined:
            made("PUT", f"{path}/invitations/{invitation['id']}", status="accepted")
        if connected:
            made("POST", f"{path}/participants/self/devices", did=kitchen)
        return {"tid": tid, "iid": invitation["id"], "uid": ADA, "did": kitchen, "dtid": LIGHT_TYPE}

    main = trial(types=True, joined=True, connected=True)
    path = f"/trials/{main['tid']}"
    note, about_rules = [
        made("POST", f"{path}/sessions/{kind}", key="mood")["id"] for kind in ("metadata", "rules/metadata")
    ]
    world = {
        samples.TRIAL: main["tid"],
        samples.TRIAL_INVITATION: made(
            "POST", f"{path}/invitations", email="zoe@example.org", invitationType="participant"
        )["id"],
        samples.TRIAL_SESSION: made("POST", "/trials/sessions", trialId=main["tid"], participantId=ADA)["id"],
        samples.TRIAL_METADATA: note,
        samples.TRIAL_RULE: made("POST", f"{path}/sessions/rules", name="Remind")["id"],
        samples.RULE_METADATA: about_rules,
    }
    if not own:
        return world, []
    others = [
        trial(types=types, joined=joined, connected=connected)
        for types, joined, connected in (
            (False, False, False),
            (True, False, False),
            (True, True, False),
            (True, True, True),
            (True, False, False),
            (False, False, False),
            (True, True, False),
        )
    ]
    return world, [*others, {"sid": made("POST", "/trials/sessions", trialId=main["tid"], participantId=ADA)["id"]}]


def with_own_trials(document: dict[str, Any], own: list[dict[str, str]]) -> None:
    """Put the ids of `furnish_trials` into the examples of the calls of `OWN_TRIALS`."""
    for (method, path), ids in zip(OWN_TRIALS, own, strict=True):
        for parameter in document["paths"][path][method]["parameters"]:
            if parameter["in"] == "path":
                parameter["example"] = ids[parameter["name"]]


def about_this_world(document: str, world: Mapping[str, str]) -> str:
    """The document with the ids and times of this world in its examples."""
    for sample, real in world.items():
        document = document.replace(sample, real)
    shift = int(time.time() * 1000) // HOUR_MS * HOUR_MS - 3 * HOUR_MS - samples.TS
    return re.sub(r"\b150\d{10}\b", lambda ts: str(int(ts[0]) + shift), document)


def close_answers(document: dict[str, Any]) -> None:
    """Forbid members of answers that the document does not name. (The document itself lets others come later.)"""
    seen = set()

    def close(part: Any) -> None:
        if isinstance(part, list):
            for one in part:
                close(one)
        if not isinstance(part, dict):
            return
        if (reference := part.get("$ref")) is not None and reference not in seen:
            seen.add(reference)
            _, *names = reference.split("/")
            target: Any = document
            for name in names:
                target = target[name]
            close(target)
        if isinstance(part.get("properties"), dict):
            part.setdefault("additionalProperties", False)
        for keyword, value in part.items():
            if keyword != "example":
                close(value)

    for _, operation in operations(document):
        close(operation["responses"])


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if not path.startswith("/cert/"):
                yield f"{method.upper()} {path}", operation


def refused_operations(document: Mapping[str, Any], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The operations that refuse a token of this kind."""
    return [
        (name, one) for name, one in operations(document) if one["x-token-kinds"] and kind not in one["x-token-kinds"]
    ]


def dictionaries_of(world: Mapping[str, str]) -> dict[str, list[str | int]]:
    now = int(time.time() * 1000) // HOUR_MS * HOUR_MS
    return {
        "types": [LIGHT_TYPE, LIGHT],
        "users": [ADA, "self"],
        "shares": [world[samples.SHARE_ID]],
        "uploads": [world[samples.UPLOAD]],
        "models": [world[samples.MODEL]],
        "scenes": [world[samples.SCENE]],
        "boards": [world[samples.BOARD]],
        "exports": [world[samples.EXPORT]],
        "deletions": [world[samples.DELETION]],
        "imports": [world[samples.IMPORT]],
        "rules": [world[samples.RULE]],
        "alarms": [world[samples.ALARM]],
        "mids": [world[samples.MID]],
        "subscriptions": [world[samples.SUBSCRIPTION]],
        "notifications": [world[samples.NOTIFICATION]],
        "fields": ["intensity", "temperature", "colorRGB.r", "text", "no.such"],
        "starts": [now - 3 * HOUR_MS, now - 2 * HOUR_MS],
        "ends": [now - HOUR_MS, now],
    }


_BOUND: Final = {
    "path.did": "devices",
    "path.dtid": "types",
    "path.uid": "users",
    "path.shareId": "shares",
    "path.uploadId": "uploads",
    "path.sceneId": "scenes",
    "path.boardId": "boards",
    "path.modelId": "models",
    "path.exportId": "exports",
    "path.deletionId": "deletions",
    "path.importId": "imports",
    "path.ruleId": "rules",
    "path.alarmId": "alarms",
    "query.mid": "mids",
    "path.subscriptionId": "subscriptions",
    "path.nid": "notifications",
    "query.sdid": "devices",
    "query.ddid": "devices",
    "query.sdids": "devices",
    "query.dids": "devices",
    "query.uid": "users",
    "query.field": "fields",
    "query.fieldPresence": "fields",
    "query.startDate": "starts",
    "query.endDate": "ends",
    "body.sdid": "devices",
    "body.ddid": "devices",
    "body.dtid": "types",
    "body.ts": "starts",
    "body.startDate": "starts",
    "body.endDate": "ends",
}


def settings_of(
    dictionaries: Mapping[str, list[Any]], examples: int, not_fuzzed: list[str], unprobed: list[str]
) -> str:
    """`not_fuzzed`: refused before their parameters are looked at, whatever these are; their examples show it.

    `unprobed`: they are not called without a token, and with a wrong one, once more.
    """
    words = [_SETTINGS.format(examples=examples), "[dictionaries]"]
    words += [f"{name} = {{ values = {json.dumps(values)} }}" for name, values in dictionaries.items()]
    words.append("[parameters]")
    words += [f'"{place}" = {{ dictionary = "{name}", probability = 0.8 }}' for place, name in _BOUND.items()]
    if not_fuzzed:
        off = "phases.fuzzing.enabled = false\nphases.coverage.enabled = false"
        words.append(f"[[operations]]\ninclude-name = {json.dumps(not_fuzzed)}\n{off}")
    if unprobed:
        words.append(f"[[operations]]\ninclude-name = {json.dumps(unprobed)}\nchecks.ignored_auth.enabled = false")
    return "\n".join(words)


_SETTINGS: Final = """
seed = 1
request-timeout = 30
continue-on-failure = true
warnings = false

[generation]
deterministic = true
max-examples = {examples}
database = "none"

# A method that a path does not have: tests/protocols/http/test_conventions.py.
[phases.coverage]
unexpected-methods = []

# reference 1.3: unknown, empty and malformed parameters are ignored, numbers may come as texts, a wrong type of
# content is read all the same. So much of what breaks a schema is answered.
[checks.negative_data_rejection]
enabled = false

# Values that fit the schemas may still be wrong: an end before its start, a time in the future, a tag too many.
[checks.positive_data_acceptance]
enabled = false

# `Referer` is judged after the device, which comes first in the order of reference 3.2.
[checks.missing_required_header]
enabled = false

# Methods that /devices/status does not have, /devices/{{did}} has: the answer is about a device called "status".
[checks.unsupported_method]
enabled = false
"""
