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
from tests.daemon import ADA, DASHBOARD, LIGHT_TYPE, USER_TOKEN

LIGHT: Final = "example.light"
HOUR_MS: Final = 3_600_000


def furnish(client: httpx.Client, kitchen: str) -> dict[str, str]:
    """What the examples are about, as the owner would make it; by what stands for it in the document."""

    def made(method: str, path: str, **body: Any) -> Any:
        return client.request(method, path, **body).raise_for_status().json()["data"]

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
    scene = {"name": "Evening", "actions": [{"ddid": kitchen, "action": "setOn"}]}
    source = {"did": kitchen, "field": "intensity"}
    parameters = {"sourceToPredict": source, "predictIn": 60}
    model = {"data": {"sources": [source]}, "type": "prediction", "parameters": parameters}
    condition = {"sdid": kitchen, "field": "intensity", "operator": ">", "operand": {"value": 80}}
    rule = {"name": "Rule", "rule": {"if": condition, "then": {"ddid": kitchen, "action": "setOff"}}}
    return {
        samples.RULE: made("POST", "/rules", json=rule)["id"],
        samples.MODEL: made("POST", "/ml/models", json=model)["id"],
        samples.SCENE: made("POST", "/scenes", json=scene)["id"],
        samples.TASK: made("POST", "/devicemgmt/tasks", json={**task, "scheduledOn": in_an_hour})["id"],
        samples.IMAGE: image["updateId"],
        samples.UID: ADA,
        samples.AID: DASHBOARD,
        samples.DID: kitchen,
        samples.DTID: LIGHT_TYPE,
        samples.TYPE_NAME: LIGHT,
        samples.MID: mid,
        samples.SHARE_ID: made("POST", f"/devices/{kitchen}/shares", json={"email": "bob@example.org"})["id"],
        samples.UPLOAD: upload["uploadId"],
        samples.EXPORT: made("POST", "/messages/export", json=export)["exportId"],
        samples.CERTIFICATE: made("POST", certificates, json={"certificate": signed})["id"],
        samples.TOKEN: USER_TOKEN,
        "steps": "intensity",
        "-----BEGIN CERTIFICATE-----\\n…\\n-----END CERTIFICATE-----\\n": to_be_signed.replace("\n", "\\n"),
    }


def about_this_world(document: str, world: Mapping[str, str]) -> str:
    """The document with the ids and times of this world in its examples."""
    for sample, real in world.items():
        document = document.replace(sample, real)
    shift = int(time.time() * 1000) // HOUR_MS * HOUR_MS - 3 * HOUR_MS - samples.TS
    return re.sub(r"\b150\d{10}\b", lambda ts: str(int(ts[0]) + shift), document)


def close_answers(document: dict[str, Any]) -> None:
    """Answers may have no members but those that the document names. (The document itself lets others come later.)"""
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


def dictionaries_of(world: Mapping[str, str]) -> dict[str, list[str | int]]:
    now = int(time.time() * 1000) // HOUR_MS * HOUR_MS
    return {
        "types": [LIGHT_TYPE, LIGHT],
        "users": [ADA, "self"],
        "shares": [world[samples.SHARE_ID]],
        "uploads": [world[samples.UPLOAD]],
        "models": [world[samples.MODEL]],
        "scenes": [world[samples.SCENE]],
        "exports": [world[samples.EXPORT]],
        "rules": [world[samples.RULE]],
        "mids": [world[samples.MID]],
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
    "path.modelId": "models",
    "path.exportId": "exports",
    "path.ruleId": "rules",
    "query.mid": "mids",
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


def settings_of(dictionaries: Mapping[str, list[Any]], examples: int) -> str:
    words = [_SETTINGS.format(examples=examples), "[dictionaries]"]
    words += [f"{name} = {{ values = {json.dumps(values)} }}" for name, values in dictionaries.items()]
    words.append("[parameters]")
    words += [f'"{place}" = {{ dictionary = "{name}", probability = 0.8 }}' for place, name in _BOUND.items()]
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

# reference 1.3: unknown, empty and malformed parameters are ignored, numbers may come as texts, a wrong type of
# content is read all the same. So much of what breaks a schema is answered.
[checks.negative_data_rejection]
enabled = false

# What fits the schemas may still be wrong: an end before its start, a time in the future, a tag too many.
[checks.positive_data_acceptance]
enabled = false

# `Referer` is judged after the device, which comes first in the order of reference 3.2.
[checks.missing_required_header]
enabled = false

# Methods that /devices/status does not have, /devices/{{did}} has: the answer is about a device called "status".
[checks.unsupported_method]
enabled = false
"""
