"""Schemathesis, which we did not write, holds the daemon to the document that it serves.

It calls every operation with the document's own examples, with values at the edges of the schemas, and with what it
makes up. No answer may be a 5xx or anything that the document does not say: status, content type, headers, and members,
here exactly those. Nothing is allowed without a token, or with a token of a kind that the operation does not accept.

Values at the edges and made up ones are tried of some operations, and of others in the next run. Of all of them:

    pytest --hypothesis-profile=full tests/e2e/test_schemathesis.py
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.daemon import (
    ADA,
    APPLICATION_TOKEN,
    USER_TOKEN,
    Daemon,
    bearer,
    device_id,
    device_token,
    running_daemon,
)
from tests.e2e.schemathesis_world import (
    CHANGED,
    DELETED,
    ENDED,
    OWN_TRIALS,
    about_this_world,
    close_answers,
    dictionaries_of,
    furnish,
    furnish_trials,
    operations,
    refused_operations,
    settings_of,
    with_own_trials,
)
from tests.factories import LIGHT_MANIFEST
from tests.properties import IS_CI, drawn, in_ci

SCHEMATHESIS: Final = Path(__file__).with_name("schemathesis_program.py")
DEVICES: Final = 60
#: The device whose token is used: what others may delete are the ones behind it.
SPEAKER: Final = 0
OWNED: Final = [device_id(number) for number in range(4, DEVICES)]
ROOT: Final = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)

#: Calls that need more than this small world has. They are tested where that is.
OUT_OF_REACH: Final = {
    "DELETE /devices/{did}/providerauth": "a cloud connector",
    "POST /devices/{did}/providerauth": "a cloud connector",
    "GET /cloudconnectors/{dtid}/auth": "a cloud connector",
    "GET /cloudconnectors/{dtid}/thirdpartynotifications": "a cloud connector",
    "POST /cloudconnectors/{dtid}/thirdpartynotifications": "a cloud connector",
    "GET /developer/devicetypes/{dtid}/connector": "a cloud connector",
    "PUT /devices/registrations/pin": "a device with a certificate",
    "GET /devices/registrations/{rid}/status": "a device with a certificate",
    "DELETE /devices/{did}/registrations": "a device with a certificate",
    "PUT /devices/{did}/shares/{shareId}": "the one who is invited",
    "PUT /devices/{did}/transfer": "the one to whom it is offered",
    "GET /messages/export/{exportId}/result": "an export that is done",
    "GET /pricing/devices/{did}/revenueshare/upgradepath": "a plan that the operator approved",
    "PUT /pricing/devices/{did}/pricingtiers": "a plan that the operator approved",
    "POST /accounts/token": "an implicit token",
    "PUT /devicemgmt/tasks/{tid}/devices/{did}": "a device that registered over LWM2M",
    "POST /devicemgmt/tasks/{tid}/devices/{did}/acceptance": "a device that registered over LWM2M",
    "POST /ml/models/{modelId}/predict": "a model that was trained",
    "GET /alarms/{alarmId}/explain": "a message that `DELETE /messages` has left",
    "GET /updates/urls/{downloadId}": "a device that registered over LWM2M",
    "POST /subscriptions/{subscriptionId}/validate": "the nonce of a handshake",
    "PUT /users/{uid}": "an application that may change profiles",
    "GET /users/{uid}/boards": "an application that may change profiles",
    "POST /users/{uid}/boards": "an application that may change profiles",
    "GET /boards/{boardId}": "an application that may change profiles",
    "PUT /boards/{boardId}": "an application that may change profiles",
    "DELETE /boards/{boardId}": "an application that may change profiles",
    "PUT /boards/{boardId}/link": "the console",
    "DELETE /boards/{boardId}/link": "the console",
    "GET /users/{uid}/telling": "an application that may change profiles",
    "PUT /users/{uid}/telling": "an application that may change profiles",
    "POST /users/{uid}/telling/test": "an application that may change profiles",
    "GET /users/{uid}/audit": "an application that may change profiles",
    "GET /users/{uid}/automations": "an application that may change profiles",
    "PUT /found/{fid}": "a device that was announced over open topics",
    "GET /names": "the console",
    "GET /users/{uid}/sessions": "an application that may change profiles",
    "GET /users/{uid}/archive": "the console",
    "POST /users/{uid}/archive": "the console",
    "GET /users/{uid}/archive/result": "the console",
    "DELETE /users/{uid}": "an application that may change profiles",
    "DELETE /users/{uid}/sessions": "an application that may change profiles",
    "DELETE /users/{uid}/sessions/{sessionId}": "an application that may change profiles",
    "DELETE /users/{uid}/applications/{aid}": "another application of the user",
    "DELETE /trials/{tid}/administrators/{uid}": "another administrator",
    "GET /operator/overview": "the console",
    "GET /operator/refusals": "the console",
    "GET /operator/audit": "the console",
    "GET /operator/doctor": "the console",
    "GET /operator/backups": "the console",
    "POST /operator/backups": "the console",
    "GET /operator/diagnostics": "the console",
    "GET /operator/users": "the console",
    "POST /operator/users": "the console",
    "POST /operator/invitations": "the console",
    "GET /operator/organizations": "the console",
    "GET /operator/devices": "the console",
    "GET /operator/connections": "the console",
    "GET /operator/samples": "the console",
    "GET /operator/waiting": "the console",
    "POST /operator/plans": "the console",
    "POST /operator/payments": "the console",
    "POST /operator/manifests": "the console",
}

#: What a call is refused for before its values are looked at.
REFUSED_BEFORE: Final = ("the console", "an application that may change profiles")

#: What their examples are about is no longer so after a user's run.
USED_UP: Final = ("PUT /devicetypes/{dtid}/whitelist/enable", "PUT /alarms/{alarmId}")

#: Of so many operations, values are made up for one, and the edges of one are tried.
FUZZED, AT_THE_EDGES = 4, 6
#: Of so many operations that accept the token, one is called. The developer's run looks at a part of the answers alone.
CALLED: Final = 1 if IS_CI else 4

#: Nobody is there: what subscriptions write waits.
NO_STREAMS: Final = '[outbound]\nstream_endpoint = "http://127.0.0.1:1"\n'

Statuses = Mapping[str, Counter[int]]


@dataclass(frozen=True, slots=True)
class ServedDocument:
    """A daemon, and the document that it serves."""

    daemon: Daemon
    schemathesis: "subprocess.Popen[str]"
    folder: Path
    served: str

    def run(self, kind: str, token: str, *, kitchen: int, phases: str, examples: int, devices: list[str]) -> "Found":
        """Run Schemathesis; return its answers for each operation. Fails with its report when it found something.

        `kitchen` numbers the device in the document's examples; each run has its own, because runs change it.
        """
        with httpx.Client(base_url=self.daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
            world = furnish(client, device_id(kitchen))
            of_trials: dict[str, str] = {}
            own_trials: list[dict[str, str]] = []
            if kind == "user":
                of_trials, own_trials = furnish_trials(client, device_id(kitchen), own=phases != "coverage")
        document = json.loads(about_this_world(self.served, world | of_trials))
        close_answers(document)
        if own_trials:
            with_own_trials(document, own_trials)
        document["paths"]["/devices/{did}"]["delete"]["parameters"][0]["example"] = OWNED[kitchen]
        document["paths"]["/subscriptions/{subscriptionId}"]["delete"]["parameters"][0]["example"] = world[ENDED]
        upload = document["paths"]["/devicetypes/{dtid}/manifests"]["post"]["requestBody"]["content"]
        upload["application/json"]["example"] = {"manifest": LIGHT_MANIFEST}  # the lights keep what they have
        # The application of the document's examples is that of the token.
        for method, path, other in (
            ("delete", "/users/{uid}/applications/{aid}", "f" * 32),
            ("put", "/developer/applications/{aid}", world[CHANGED]),
            ("delete", "/developer/applications/{aid}", world[DELETED]),
        ):
            (aid,) = [one for one in document["paths"][path][method]["parameters"] if one["name"] == "aid"]
            aid["example"] = other
        if kind == "application":  # it is nobody's "self"
            for _, one in operations(document):
                for parameter in one.get("parameters", ()):
                    if parameter["name"] in {"uid", "userId"}:
                        parameter["example"] = ADA
        described, settings, statuses = (
            self.folder / f"{kind}-{kitchen}.{suffix}" for suffix in ("json", "toml", "statuses")
        )
        refused = {name for name, _ in refused_operations(document, kind)}
        not_fuzzed: set[str] = set()
        tried_in_examples = [
            name
            for name, one in operations(document)
            if name not in USED_UP and '"example' in json.dumps(one.get("requestBody", one.get("parameters")))
        ]
        # Nor are a user's operations called without a token again.
        of_users = {name for name, _ in operations(document)} - {
            name for name, _ in refused_operations(document, "user")
        }
        unprobed = sorted(of_users) if kind != "user" or phases == "coverage" else []
        if phases == "coverage":  # nor are values that nobody looks at, nor is the trial ended that the others are of
            not_fuzzed |= {name for name, needed in OUT_OF_REACH.items() if needed in REFUSED_BEFORE}
            not_fuzzed |= {f"{method.upper()} {path}" for method, path in OWN_TRIALS}
            _keep(document, drawn([name for name, _ in operations(document) if name not in not_fuzzed], AT_THE_EDGES))
        else:
            not_fuzzed |= set(tried_in_examples)
            if kind == "user":  # what is made up for a user is not made up again
                not_fuzzed -= set(drawn(sorted(not_fuzzed - refused), FUZZED))
            with httpx.Client(base_url=self.daemon.base_url, headers=bearer(token), timeout=30) as client:
                check_refused(client, document, kind)
            _keep(document, drawn([name for name, _ in operations(document) if name not in refused], CALLED))
        described.write_text(json.dumps(document), encoding="utf-8")
        settings.write_text(
            settings_of(dictionaries_of(world) | {"devices": devices}, examples, sorted(not_fuzzed), unprobed),
            encoding="utf-8",
        )
        command = ["--config-file", str(settings), "run", str(described), "--phases", phases]
        command += ["--url", self.daemon.base_url, "--header", f"Authorization: bearer {token}", "--no-color"]
        # Those are for the secure listener (test_secure_devices.py).
        left_out = (
            "^/cert/|^/trials/.*(metadata|rules)" if phases == "coverage" else "^/cert/"
        )  # any object is valid there
        command += ["--exclude-path-regex", left_out]
        output = described.with_suffix(".output")
        assert self.schemathesis.stdin is not None
        assert self.schemathesis.stdout is not None
        print(json.dumps([command, str(statuses), str(output)]), file=self.schemathesis.stdin, flush=True)
        assert self.schemathesis.stdout.readline() == "0\n", output.read_text(encoding="utf-8")
        return Found(kind, document, _read(statuses))


def check_refused(client: httpx.Client, document: Mapping[str, Any], kind: str) -> None:
    """A token of a kind that an operation does not accept never gets through. That is said before anything else is
    looked at, so one call of each is enough, and Schemathesis need not think of values."""
    for name, operation in refused_operations(document, kind):
        method, path = name.split()
        examples = {
            one["name"]: one.get("example", 1) for one in operation.get("parameters", ()) if one["in"] == "path"
        }
        answer = client.request(method, path.format_map(examples))
        assert (answer.status_code, name) == (403, name)
        assert "403" in operation["responses"], name
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        (error,) = answer.json().values()
        assert error["code"] == 403
        assert error.keys() - {"errorType", "errorMessage"} == {"code", "message", "id"}


@dataclass(frozen=True, slots=True)
class Found:
    kind: str
    document: dict[str, Any]
    statuses: Statuses

    def check_successes(self) -> None:
        """The rest would say little if no call had ever succeeded."""
        allowed = [
            name for name, one in operations(self.document) if self.kind in (one["x-token-kinds"] or (self.kind,))
        ]
        assert {name for name in allowed if not self._succeeded(name)} <= set(OUT_OF_REACH)

    def _succeeded(self, name: str) -> bool:
        return any(status < 400 for status in self.statuses[name])


def _keep(document: dict[str, Any], names: Collection[str]) -> None:
    """Leave the other operations out of it."""
    for path, methods in document["paths"].items():
        for method in [one for one in methods if f"{one.upper()} {path}" not in names]:
            del methods[method]


@pytest.fixture(scope="module")
def served_document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedDocument]:
    folder = tmp_path_factory.mktemp("schemathesis")
    settings = f'{NO_STREAMS}[trials]\nsessions = "on"\n'
    with running_daemon(folder, devices=DEVICES, settings=settings) as daemon:
        served = httpx.get(f"{daemon.base_url}/openapi.json", timeout=30).raise_for_status().text
        with _running_schemathesis(folder) as schemathesis:
            yield ServedDocument(daemon, schemathesis, folder, served)


@contextmanager
def _running_schemathesis(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    environment = {
        "PATH": os.environ["PATH"],  # no more: each request looks for proxies in all variables, twice
        "HOME": str(folder),  # each request looks there for passwords, and else asks for the user's folder, twice
        "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),  # tables of Unicode, which take a second to make
    }
    with subprocess.Popen(
        [sys.executable, "-P", SCHEMATHESIS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # also the run of a test that took too long


def test_a_user_gets_what_the_document_says(served_document: ServedDocument) -> None:
    found = served_document.run("user", USER_TOKEN, kitchen=1, phases="examples,fuzzing", examples=1, devices=OWNED)
    if CALLED == 1:  # some need what others have made
        found.check_successes()


@in_ci
def test_values_at_the_edges_of_the_schemas_get_what_the_document_says(served_document: ServedDocument) -> None:
    served_document.run("user", USER_TOKEN, kitchen=2, phases="coverage", examples=1, devices=OWNED)


@in_ci
def test_an_application_gets_what_the_document_says(served_document: ServedDocument) -> None:
    found = served_document.run(
        "application", APPLICATION_TOKEN, kitchen=3, phases="examples,fuzzing", examples=1, devices=OWNED
    )
    found.check_successes()


@in_ci
def test_a_device_gets_what_the_document_says(served_document: ServedDocument) -> None:
    found = served_document.run(
        "device",
        device_token(SPEAKER),
        kitchen=SPEAKER,
        phases="examples,fuzzing",
        examples=1,
        devices=[device_id(SPEAKER)],
    )
    found.check_successes()


def _read(file: Path) -> Statuses:
    """How often each operation was answered with which status."""
    found = json.loads(file.read_text(encoding="utf-8"))
    return defaultdict(
        Counter, {name: Counter({int(one): n for one, n in all_.items()}) for name, all_ in found.items()}
    )
