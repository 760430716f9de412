"""The guides for makers of devices and applications: every example is run as it stands, with the programs it names.

tests/e2e/test_readme.py runs the examples that need the demo.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from broker.site import Site
from config.settings import Address, Settings
from protocols.http.docs.guides import Example, guides
from tests.daemon import ADA_EMAIL, USER_TOKEN, Daemon, bearer, command_output, device_id, device_token
from tests.e2e.conftest import Rest
from tests.e2e.readme_gateway import documents
from tests.e2e.test_mosquitto import listening
from tests.factories import LIGHT_MANIFEST
from tests.programs import require_dtls, require_program
from tests.properties import in_ci
from tests.protocols.http.accounts.browser import PASSWORD, Form

yaml: Any = import_module("yaml")  # of amqtt, without types
DEVICE, DEVICE_TOKEN = "d0" * 16, b"sixteen bytes ok".hex()
GUIDES = ("devices", "applications", "manifests", "limits", "recipes")
SIGN_IN = ("", "code", "device", "refresh")
CLIENT, REDIRECT = "c1" * 16, "http://localhost:3000/signed-in"
_MORE = f"""
[[devices]]
id = "{DEVICE}"
owner = "ada@example.org"
type = "example.light"
name = "Guided"
token = "{DEVICE_TOKEN}"

[[applications]]
id = "{CLIENT}"
name = "Guided"
organization = "Acme"
secret = "s3cret"
redirect_uri = "{REDIRECT}"
methods = ["pkce", "client_credentials", "limited_input"]
permissions = [{{ device_type = "*", permissions = ["READ", "WRITE"] }}]

[[device_types]]
unique_name = "example.room"
organization = "Acme"
"""


@dataclass(frozen=True, slots=True)
class World:
    daemon: Daemon
    folder: Path
    examples: Mapping[str, tuple[Example, ...]]
    environment: Mapping[str, str]

    def find(self, guide: str, language: str, when: str = "") -> list[str]:
        return [one.code for one in self.examples[guide] if (one.language, one.when) == (language, when)]

    @contextmanager
    def begin(self, language: str, code: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        suffix = {"python": "py", "js": "mjs", "sh": "sh"}[language]
        file = self.folder / f"{len(list(self.folder.iterdir()))}.{suffix}"
        file.write_text(code, encoding="utf-8")
        program = {"python": sys.executable, "js": require_program("node"), "sh": "sh"}[language]
        with subprocess.Popen(
            [program, file],
            env={**os.environ, **self.environment, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, language: str, code: str, **more: str) -> str:
        with self.begin(language, code, **more) as process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        return output


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[World]:
    require_dtls()
    folder = tmp_path_factory.mktemp("guides")
    settings = f'''[coap]
bind = "127.0.0.1:0"
dtls_bind = "127.0.0.1:0"
[accounts]
device_poll_seconds = 1
[tls]
certificate = "{certificate}"
key = "{certificate.with_name("key.pem")}"
'''
    daemon = Daemon(folder / "state", settings)
    daemon.configure(devices=1)
    (folder / "more.toml").write_text(_MORE, encoding="utf-8")
    command_output("provision", folder / "more.toml", "--config", daemon.config)
    daemon.start()
    try:
        site = Site(Settings(state_dir=folder))
        site.listens_on({name: Address.parse(address) for name, address in daemon.addresses.items()})
        found = {guide.slug: guide.examples for guide in guides(site) if guide.slug in GUIDES}
        (folder / "pasted").mkdir()
        yield World(daemon, folder / "pasted", found, _set_up(found))
    finally:
        daemon.stop()


def _set_up(found: Mapping[str, tuple[Example, ...]]) -> Mapping[str, str]:
    """The variables of the first blocks, with what the reader puts in."""
    code = next(one.code for one in found["devices"] if one.when == "setup")
    filled = {"id of the device": DEVICE, "its token": DEVICE_TOKEN, "a user token": USER_TOKEN}
    more = {"id of the application": CLIENT, "its secret": "s3cret", "its redirect URI": REDIRECT}
    code += next(one.code for one in found["applications"] if one.when == "setup")
    for placeholder, value in (filled | more).items():
        assert f'"{placeholder}"' in code
        code = code.replace(placeholder, value)
    names = "URL WS_URL ACCOUNTS HOST MQTT_PORT COAP_PORT COAPS_PORT DEVICE DEVICE_TOKEN TOKEN CLIENT SECRET REDIRECT"
    shown = subprocess.run(["sh", "-c", f"{code}env"], capture_output=True, text=True, check=True).stdout
    pairs = (line.partition("=") for line in shown.splitlines())
    return {name: value for name, _, value in pairs if name in names.split()}


def last_data(world: World) -> object:
    return last_message(world)["data"]


def last_message(world: World) -> Mapping[str, object]:
    url = f"{world.daemon.base_url}/messages/last?sdids={DEVICE}&count=1"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {USER_TOKEN}"}).raise_for_status()
    message: Mapping[str, object] = answer.json()["data"][0]
    return message


def test_every_block_is_known(world: World) -> None:
    """A block of another kind would be run by no test here."""
    kinds = {(guide, one.language, one.when) for guide, examples in world.examples.items() for one in examples}
    assert set(world.examples) == set(GUIDES)
    assert {kind for kind in kinds if kind[2] not in {"setup", "demo"}} == {
        ("devices", "sh", ""),
        ("devices", "python", ""),
        ("devices", "sh", "coap"),
        ("devices", "sh", "coaps"),
        *(
            ("applications", language, when)
            for language in ("python", "js")
            for when in ("", "code", "device", "refresh")
        ),
        ("applications", "sh", ""),
        *(("applications", language, "feed") for language in ("sh", "python", "js")),
        ("manifests", "json", "manifest"),
        ("manifests", "sh", "operator"),
        ("manifests", "sh", ""),
        ("limits", "sh", ""),
        *(("recipes", language, "") for language in ("sh", "toml", "cpp")),
        *(("recipes", "yaml", program) for program in ("zigbee2mqtt", "esphome", "prometheus")),
        *(("recipes", language, when) for language in ("toml", "sh") for when in ("open", "home", "found")),
        ("recipes", "sh", "accept"),
        ("recipes", "toml", "rules"),
        ("recipes", "sh", "sessions"),
        ("recipes", "json", "node-red"),
        ("recipes", "ini", "grafana"),
        ("recipes", "js", "node-red-sign-in"),
        ("recipes", "conf", "bridge"),
    }


def test_devices_send_and_get_actions(world: World) -> None:
    http, batch, mqtt, action, wanted, failures = world.find("devices", "sh")
    lamp, channel = world.find("devices", "python")
    assert '{"data":{"mid":"' in world.run("sh", http)
    assert last_data(world) == {"state": True, "intensity": 80}
    (stored,) = documents(world.run("sh", batch))
    assert (stored["data"]["stored"], stored["data"]["refused"]) == (2, 0)
    assert last_data(world) == {"intensity": 80}
    require_program("mosquitto_pub")
    world.run("sh", mqtt)
    assert last_data(world) == {"state": True, "intensity": 40}
    guide = (Path(__file__).parents[2] / "docs/devices.md").read_text(encoding="utf-8")
    (own_time,) = re.findall(r"`(-V 5 -D PUBLISH user-property ts [0-9]+)`", guide)
    world.run("sh", f"{mqtt.strip()} {own_time}")
    assert last_message(world)["ts"] == int(own_time.split()[-1])
    with world.begin("python", lamp) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n"
        assert last_data(world) == {"state": False}
        world.run("sh", action)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "do setOff\n")
    waits, sleeps, _, reached = documents(world.run("sh", wanted))
    assert (waits["data"]["data"], sleeps["wanted"]) == ({"intensity": 30}, {"intensity": 30})
    assert reached["data"]["fields"]["intensity"]["state"] == "reached"
    registered, sent = world.run("python", channel).splitlines()
    assert json.loads(registered)["data"]["code"] == "200"
    assert json.loads(sent)["data"]["cid"] == "2"
    lost = documents(world.run("sh", failures))
    assert [list(answer["data"]) for answer in lost] == [["failures"], ["refusals"], ["fields"]]


def test_devices_speak_coap(world: World) -> None:
    for program in ("coap-client-notls", "coap-client-openssl", "openssl"):
        require_program(program)
    post, observe = world.find("devices", "sh", "coap")
    secure, handshake = world.find("devices", "sh", "coaps")
    for line in (post, secure):
        assert '{"data":{"mid":"' in world.run("sh", line)
    assert world.run("sh", observe).strip() == "{}"
    said = world.run("sh", handshake)
    assert "Cipher    : " in said
    assert "PSK" in said
    assert "0000" not in said.partition("Cipher    : ")[2].splitlines()[0]


@pytest.mark.parametrize("language", ["python", "js"])
def test_applications_sign_in(world: World, person: "Person", language: str) -> None:
    (credentials,) = world.find("applications", language)
    assert world.run(language, credentials) == "bearer\n"
    (code,) = world.find("applications", language, "code")
    with world.begin(language, code) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        output, _ = process.communicate(person.agree(address) + "\n", timeout=60)
    assert process.returncode == 0, output
    assert output.endswith("read,write 1209600\n")
    (device,) = world.find("applications", language, "device")
    with world.begin(language, device) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        person.type_code(words[1], words[-1])
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "read,write\n")
    (refresh,) = world.find("applications", language, "refresh")
    first = person.token_of_code()
    second = world.run(language, refresh, REFRESH_TOKEN=first).strip()
    assert second != first
    assert len(world.run(language, refresh, REFRESH_TOKEN=second).strip()) == 32


def test_feeds_are_read(world: World) -> None:
    """Each begins with a message that is there, or with the position behind the last one."""
    require_program("curl")
    world.run("sh", world.find("devices", "sh")[0])
    for example in world.find("applications", "sh", "feed"):
        with world.begin("sh", example) as process:
            assert process.stdout is not None
            assert any(line.startswith("id: ") for line in process.stdout), example
    (script,), (program,) = world.find("applications", "js", "feed"), world.find("applications", "python", "feed")
    compile(program, "feed.py", "exec")
    (world.folder / "feed.mjs").write_text(script, encoding="utf-8")
    subprocess.run([require_program("node"), "--check", world.folder / "feed.mjs"], check=True)


def test_what_a_token_is(world: World) -> None:
    (lines,) = world.find("applications", "sh")
    assert '"user_id"' in (said := world.run("sh", lines))
    assert '"email"' in said


def test_manifests_are_uploaded_and_messages_normalised(world: World, tmp_path: Path) -> None:
    simple, *advanced = world.find("manifests", "json", "manifest")
    (upload,) = world.find("manifests", "sh", "operator")
    for number, manifest in enumerate([simple, *advanced], 1):
        (tmp_path / "room.json").write_text(manifest, encoding="utf-8")
        _, *words, name = upload.split()
        assert str(number) in command_output(*words, tmp_path / name, "--config", world.daemon.config)
    (lines,) = world.find("manifests", "sh")
    assert '"data":{"intensity":80}' in world.run("sh", lines)


def test_limits_can_be_asked_for(world: World) -> None:
    headers, quota = world.find("limits", "sh")
    assert world.run("sh", headers).startswith("HTTP/1.1 200")
    assert json.loads(world.run("sh", quota))


def test_recipes_are_what_their_programs_read(world: World) -> None:
    (grafana,) = world.find("recipes", "sh")
    assert "data" in json.loads(world.run("sh", grafana))
    (prometheus,) = world.find("recipes", "yaml", "prometheus")
    (job,) = yaml.safe_load(prometheus)["scrape_configs"]
    assert (job["metrics_path"], job["static_configs"]) == (
        "/v1.1/values",
        [{"targets": [world.environment["URL"].removeprefix("http://")]}],
    )
    (telegraf,) = world.find("recipes", "toml")
    (output,) = tomllib.loads(telegraf)["outputs"]["http"]
    body = output["json_transformation"].replace("<device id>", DEVICE).replace("fields", '{"intensity":5}')
    sent = httpx.post(output["url"], headers={"Authorization": f"Bearer {DEVICE_TOKEN}"}, content=body)
    assert sent.status_code == 200
    assert last_data(world) == {"intensity": 5}
    (flow,) = world.find("recipes", "json", "node-red")
    nodes = json.loads(flow)
    wired = {id_ for node in nodes for wire in node.get("wires", []) for id_ in wire}
    assert wired <= {node["id"] for node in nodes}
    assert {node["port"] for node in nodes if node["type"] == "mqtt-broker"} == {world.environment["MQTT_PORT"]}


def test_the_broker_of_a_home_is_this_one(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mosquitto_pub", "mosquitto_sub"):
        require_program(name)
    (zigbee,), (esp,) = world.find("recipes", "yaml", "zigbee2mqtt"), world.find("recipes", "yaml", "esphome")
    assert yaml.safe_load(zigbee)["mqtt"]["server"].endswith(f":{world.environment['MQTT_PORT']}")
    assert yaml.safe_load(esp)["mqtt"]["port"] == int(world.environment["MQTT_PORT"])
    (settings,), (rules,), (home,) = (world.find("recipes", "toml", when) for when in ("open", "rules", "home"))
    for name, value in (tomllib.loads(home)["mqtt"] | tomllib.loads(settings)["mqtt"]).items():
        monkeypatch.setenv(f"TRUNKLINE_MQTT_{name.upper()}", value)
    (found,), (list_found,) = world.find("recipes", "toml", "found"), world.find("recipes", "sh", "found")
    monkeypatch.setenv("TRUNKLINE_DISCOVER", json.dumps(tomllib.loads(found)["discover"]))
    monkeypatch.setenv("TRUNKLINE_HOME_ASSISTANT", json.dumps(tomllib.loads(home)["home_assistant"]))
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    intensity = {"name": "setIntensity", "parameters": [{"name": "intensity", "valueClass": "Integer"}]}
    (tmp_path / "dimmed.json").write_text(
        json.dumps({**LIGHT_MANIFEST, "actions": [{"name": "setOn"}, intensity]}), encoding="utf-8"
    )
    dimmed = '[[device_types]]\nunique_name = "example.light"\norganization = "Acme"\nmanifest = "dimmed.json"\n'
    rules = rules.replace("<e-mail of the owner>", ADA_EMAIL)
    provisioned = _MORE + dimmed + rules + rules.replace("zigbee2mqtt/#", "homeassistant/#")
    (tmp_path / "more.toml").write_text(provisioned, encoding="utf-8")
    command_output("provision", tmp_path / "more.toml", "--config", daemon.config)
    daemon.start()
    try:
        where = {"URL": daemon.base_url.removesuffix("/v1.1"), "MQTT_PORT": str(daemon.port("mqtt"))}
        (topics,), (sessions,) = (world.find("recipes", "sh", when) for when in ("open", "sessions"))
        shown, announced = world.find("recipes", "sh", "home")
        assert world.run("sh", topics, **where) == 'zigbee2mqtt/kitchen {"state":"ON"}\n'
        assert json.loads(world.run("sh", list_found, **where)) == {"data": {"found": []}}
        said = world.run("sh", shown, **where)
        assert said.startswith(f"trunkline/{DEVICE}/state {{")
        assert "Warning" not in said
        components = json.loads(world.run("sh", announced, **where))["components"].values()
        assert any(one.get("command_topic", "") in shown.replace("$DEVICE", DEVICE) for one in components)
        said = world.run("sh", sessions, **where)
        assert said.splitlines()[-1].endswith('{"actions":[{"name":"setOn"}]}')
        refused = topics.replace("zigbee2mqtt/", "others/").splitlines()[1]
        with world.begin("sh", refused, **where) as process:
            output, _ = process.communicate(timeout=60)
        assert "denied" in output.lower(), output
    finally:
        daemon.stop()


@pytest.mark.parametrize(
    "version",
    [pytest.param("", id="default", marks=in_ci), pytest.param("bridge_protocol_version mqttv50", id="5.0")],
)
def test_a_mosquitto_is_a_bridge_in_both_directions(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """With its default settings, mosquitto asks for level 0x84 first and must get on with the refusal."""
    for name in ("mosquitto", "mosquitto_pub", "mosquitto_sub"):
        require_program(name)
    (settings,), (bridge,) = world.find("recipes", "toml", "open"), world.find("recipes", "conf", "bridge")
    for name, value in tomllib.loads(settings)["mqtt"].items():
        monkeypatch.setenv(f"TRUNKLINE_MQTT_{name.upper()}", value)
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=2)
    daemon.start()
    port = str(daemon.port("mqtt"))
    for written, given in {
        world.environment["MQTT_PORT"]: port,
        "<device id>": device_id(0),
        "<its token>": device_token(0),
    }.items():
        assert written in bridge
        bridge = bridge.replace(written, given)
    config, socket = tmp_path / "mosquitto.conf", str(tmp_path / "socket")
    config.write_text(
        # How soon it tries again is the one setting that is not mosquitto's own.
        f"listener 0 {socket}\nallow_anonymous true\nuser {getuser()}\n{bridge}restart_timeout 1\n{version}\n",
        encoding="utf-8",
    )
    here = ["--unix", socket]
    there = ["-h", "127.0.0.1", "-p", port, "-u", device_id(1), "-P", device_token(1)]
    with (
        httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client,
        subprocess.Popen(
            ["timeout", "60", "mosquitto", "-v", "-c", config],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as mosquitto,
    ):
        try:
            assert mosquitto.stdout is not None
            subscribed = (line for line in mosquitto.stdout if "Received SUBACK" in line)
            assert next(subscribed)
            assert next(subscribed)
            # In version 3.1.1, what the bridge has published comes back to it.
            echoes = [] if version else ["home/up 1"]
            with listening(["mosquitto_sub", *here], ["home/#"], 2 + len(echoes)) as local:
                with listening(["mosquitto_sub", *there], ["home/#"], 1) as remote:
                    speak(here, "home/up", "1")
                    assert heard(remote, "home/") == ["home/up 1"]
                speak(there, "home/down", "2")
                assert heard(local, "home/") == ["home/up 1", *echoes, "home/down 2"]
            speak(here, "lamp/values", '{"state":true}')
            assert next(line for line in mosquitto.stdout if "Sending PUBLISH" in line and "/v1.1/messages/" in line)
            assert next(line for line in mosquitto.stdout if "Received PUBACK" in line)
            assert [message["data"] for message in Rest(client).last(0)] == [{"state": True}]
            with listening(["mosquitto_sub", *here], ["lamp/actions"], 1) as local:
                Rest(client).act(0, {"name": "setOn"})
                assert heard(local, "lamp/") == ['lamp/actions {"actions":[{"name":"setOn"}]}']
        finally:
            mosquitto.terminate()
            daemon.stop()


def speak(command: list[str], topic: str, text: str) -> None:
    subprocess.run(["mosquitto_pub", *command, "-q", "1", "-t", topic, "-m", text], check=True, timeout=60)


def heard(process: "subprocess.Popen[str]", topics: str) -> list[str]:
    """The messages that `mosquitto_sub` shows until it ends, as topic and payload."""
    assert process.stdout is not None
    return [line.rstrip("\n") for line in process.stdout if line.startswith(topics)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++: is not installed")
def test_the_sketch_is_valid_c_plus_plus(world: World, tmp_path: Path) -> None:
    """Against declarations of what it uses of the board's libraries; no board was there."""
    (sketch,) = world.find("recipes", "cpp")
    (tmp_path / "WiFi.h").write_text(_BOARD, encoding="utf-8")
    (tmp_path / "PubSubClient.h").write_text(_PUBSUB, encoding="utf-8")
    (tmp_path / "sketch.cpp").write_text(sketch, encoding="utf-8")
    run = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-I", tmp_path, tmp_path / "sketch.cpp"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    errors = [line for line in run.stderr.splitlines() if "error:" in line]
    assert (run.returncode, errors) == (0, [])


@pytest.fixture
def person(world: World) -> Iterator["Person"]:
    with httpx.Client(timeout=30) as client:
        yield Person(world, client)


class Person:
    """Ada, in a browser without scripts."""

    def __init__(self, world: World, client: httpx.Client) -> None:
        self._world = world
        self._client = client

    def agree(self, address: str) -> str:
        """Sign in and agree; where the browser comes back to."""
        answer = self._client.get(address)
        while not answer.headers.get("location", "").startswith(REDIRECT):
            answer = self._follow(answer)
        return str(answer.headers["location"])

    def type_code(self, address: str, code: str) -> None:
        answer = self._client.get(address)
        while "<h1>Device connected</h1>" not in answer.text:
            answer = self._follow(answer, user_code=code)

    def token_of_code(self) -> str:
        verifier = "v" * 43
        challenge = "7w_YNF9DSfIdPf_pRjSq646_kPr-2-o9NAl16JGghdM"
        query = {"client_id": CLIENT, "response_type": "code", "redirect_uri": REDIRECT, "code_challenge": challenge}
        url = httpx.URL(
            f"{self._world.environment['ACCOUNTS']}/authorize", params=query | {"code_challenge_method": "S256"}
        )
        (code,) = parse_qs(urlsplit(self.agree(str(url))).query)["code"]
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "client_id": CLIENT}
        token = self._client.post(f"{self._world.environment['ACCOUNTS']}/token", data=form)
        return str(token.raise_for_status().json()["refresh_token"])

    def _follow(self, answer: httpx.Response, **typed: str) -> httpx.Response:
        """The next page: of a redirect, or of the form that was shown."""
        if "location" in answer.headers:
            return self._client.get(answer.url.join(answer.headers["location"]))
        form = Form(answer.text)
        assert form.action, answer.text
        known = {"email": "ada@example.org", "password": PASSWORD, **typed}
        fields = form.fields | {name: value for name, value in known.items() if name in form.fields}
        if 'name="decision"' in answer.text:
            fields["decision"] = "allow"
        return self._client.post(answer.url.join(form.action), data=fields)


_BOARD = """
#pragma once
#include <string>
typedef unsigned char byte;
struct String {
  std::string text;
  String(const char* t = "") : text(t) {}
  String operator+(const char* t) const { return String((text + t).c_str()); }
  String operator+(int n) const { return String((text + std::to_string(n)).c_str()); }
  const char* c_str() const { return text.c_str(); }
};
struct SerialPort { void begin(long) {} void write(byte*, unsigned) {} };
extern SerialPort Serial;
enum Status { WL_CONNECTED };
struct Network { void begin(const char*, const char*) {} Status status() { return WL_CONNECTED; } };
extern Network WiFi;
struct WiFiClient {};
void delay(int);
unsigned long millis();
int analogRead(int);
"""
_PUBSUB = """
#pragma once
struct PubSubClient {
  PubSubClient(WiFiClient&) {}
  void setServer(const char*, int) {}
  void setBufferSize(int) {}
  void setCallback(void (*)(char*, byte*, unsigned int)) {}
  bool connected();
  bool connect(const char*, const char*, const char*);
  bool subscribe(const char*);
  bool publish(const char*, const char*);
  void loop();
};
"""
