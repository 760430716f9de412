"""Nodes that serve one store together: clients of others meet on different ones (reference 27.25)."""

import json
import subprocess
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
import paho.mqtt.client as paho
import pytest
import websocket
from joserfc import jwt
from joserfc.jwk import KeySet
from paho.mqtt.enums import CallbackAPIVersion

from tests.cluster.checker import BUSY_SECONDS
from tests.cluster.node import PATIENCE_SECONDS, Node, running_nodes, wait_until
from tests.daemon import ADA, ADA_EMAIL, LIGHT_TYPE, USER_TOKEN, bearer, command_output, device_id, device_token
from tests.factories import LIGHT_MANIFEST
from tests.programs import require_program
from tests.protocols.http.accounts.browser import Form

pytestmark = pytest.mark.processes

_ACTION: Final = {"actions": [{"name": "setOn", "parameters": {}}]}


#: Calls of a device in a minute, and messages of an organization in a month.
_MINUTE, _MONTH = 30, 60
_MANY: Final = "100000/1000000"
_LIMITS: Final = {
    "RATE_LIMITS": "on",
    "QUOTAS": "on",
    "REST_DEVICE": f"{_MINUTE}/100000",
    **dict.fromkeys(("REST_USER", "MESSAGES_USER", "MESSAGES_DEVICE", "MQTT_DEVICE"), _MANY),
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _LIMITS.items():
            patch.setenv(f"TRUNKLINE_LIMITS_{name}", value)
        with running_nodes(tmp_path_factory.mktemp("cluster"), "a", "b") as found:
            yield found


class Light:
    """A device on MQTT, as paho does it."""

    def __init__(self, node: Node, number: int, *, will: int | None = None) -> None:
        """`will`: the value that is sent for it when it has gone without a word."""
        self.number, self.actions, self.lost = number, list[Any](), threading.Event()
        self._told, ready = threading.Semaphore(0), threading.Event()
        self.client = client = paho.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
        client.username_pw_set(device_id(number), device_token(number))
        if will is not None:
            client.will_set(f"/v1.1/messages/{device_id(number)}", json.dumps({"intensity": will}), qos=1)
        client.on_connect = self._connected
        client.on_subscribe = lambda *_: ready.set()
        client.on_message = lambda _client, _data, message: self.actions.append(json.loads(message.payload))
        client.on_publish = lambda *_: self._told.release()
        client.on_disconnect = lambda *_: self.lost.set()
        client.connect("127.0.0.1", node.mqtt)
        client.loop_start()
        assert ready.wait(PATIENCE_SECONDS)

    def _connected(self, client: paho.Client, *_: object) -> None:
        client.subscribe(f"/v1.1/actions/{device_id(self.number)}")

    def send(self, value: int) -> bool:
        """Whether it was acknowledged."""
        self.client.publish(f"/v1.1/messages/{device_id(self.number)}", json.dumps({"intensity": value}), qos=1)
        return self._told.acquire(timeout=PATIENCE_SECONDS)

    def told(self) -> bool:
        """Whether one more was acknowledged."""
        return self._told.acquire(blocking=False)

    def close(self) -> None:
        self.client.loop_stop()
        self.client.disconnect()


class Feed(websocket.WebSocket):
    """As the library's, whose `close` leaves the socket to the garbage collector when the node has closed first."""

    def close(self, *arguments: Any, **options: Any) -> None:
        super().close(*arguments, **options)
        self.shutdown()  # type: ignore[no-untyped-call] # of the library


def live_feed(node: Node, *numbers: int) -> websocket.WebSocket:
    ids = ",".join(map(device_id, numbers))
    query = f"userId={ADA}&sdids={ids}&Authorization=bearer+{USER_TOKEN}"
    return websocket.create_connection(f"{node.websocket}/live?{query}", timeout=PATIENCE_SECONDS, class_=Feed)


def values_of(feed: websocket.WebSocket, number: int) -> list[int]:
    found: list[int] = []
    while len(found) < number:
        told = json.loads(feed.recv())
        if told.get("type") != "ping":
            found.append(told["data"]["intensity"])
    return found


def send_action(node: Node, number: int) -> httpx.Response:
    body = {"ddid": device_id(number), "type": "action", "data": _ACTION}
    return httpx.post(f"{node.base}/actions", headers=bearer(USER_TOKEN), json=body, timeout=PATIENCE_SECONDS)


def stored_values(node: Node, number: int) -> list[int]:
    """The values of a device, oldest first, as REST of a node gives them."""
    found, offset = list[int](), None
    while True:
        query: dict[str, Any] = {
            "sdid": device_id(number),
            "startDate": 0,
            "endDate": int(time.time() * 1000) + 60_000,
        }
        query |= {"count": 100, "order": "asc", **({"offset": offset} if offset else {})}
        answer = httpx.get(f"{node.base}/messages", headers=bearer(USER_TOKEN), params=query, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        found += [row["data"]["intensity"] for row in answer.json()["data"]]
        if not (offset := answer.json().get("next")):
            return found


def test_each_of_two_feeds_has_the_order_of_the_log(nodes: list[Node]) -> None:
    a, b = nodes
    with (
        closing(live_feed(a, 0, 1)) as of_a,
        closing(live_feed(b, 0, 1)) as of_b,
        closing(Light(a, 0)) as first,
        closing(Light(b, 1)) as second,
    ):
        for value in range(20):
            assert (first, second)[value % 2].send(value)
        assert values_of(of_a, 20) == values_of(of_b, 20) == list(range(20))


def test_an_action_reaches_a_device_on_another_node(nodes: list[Node]) -> None:
    a, b = nodes
    with closing(Light(a, 2)) as light:
        assert send_action(b, 2).status_code == 200
        wait_until(lambda: bool(light.actions), "the Action is there")
        assert light.actions[0]["actions"] == [{"name": "setOn", "parameters": {}}]


def test_an_acknowledged_message_is_read_on_the_other_node(nodes: list[Node]) -> None:
    curl = require_program("curl")
    a, b = nodes
    for value in (100, 101):
        body = json.dumps({"sdid": device_id(3), "type": "message", "data": {"intensity": value}})
        sent = subprocess.run(
            [
                *(curl, "-sf", "-H", f"Authorization: bearer {device_token(3)}", "-d", body),
                *("-H", "Content-Type: application/json", f"{a.base}/messages"),
            ],
            check=False,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        assert sent.returncode == 0, sent.stdout
        assert stored_values(b, 3)[-1] == value
        snapshot = httpx.get(
            f"{b.base}/messages/snapshots?sdids={device_id(3)}", headers=bearer(USER_TOKEN), timeout=30
        )
        assert snapshot.json()["data"][0]["data"]["intensity"]["value"] == value


def test_the_newest_connection_of_a_device_wins_on_all_nodes(nodes: list[Node]) -> None:
    a, b = nodes
    with closing(Light(a, 4)) as first, closing(Light(b, 4)) as second:
        wait_until(first.lost.is_set, "the connection to the other node is closed")
        assert second.send(1)
        wait_until(lambda: is_connected(a, 4) and is_connected(b, 4), "both nodes know it")
        with closing(Light(a, 4)) as third:
            wait_until(second.lost.is_set, "the newest one is on the first node")
            assert third.send(2)
    wait_until(lambda: not (is_connected(a, 4) or is_connected(b, 4)), "both nodes know that it is away")
    assert stored_values(b, 4) == [1, 2]


def events_feed(node: Node) -> websocket.WebSocket:
    path = f"{node.websocket}/events?authorization=bearer+{USER_TOKEN}"
    return websocket.create_connection(path, timeout=PATIENCE_SECONDS, class_=Feed)


def events_of(feed: websocket.WebSocket, number: int, count: int) -> list[str]:
    names: list[str] = []
    while len(names) < count:
        told = json.loads(feed.recv())
        if told.get("data", {}).get("did") == device_id(number):
            names.append(told["event"])
    return names


def test_events_of_going_online_and_offline_come_from_each_node(nodes: list[Node]) -> None:
    a, b = nodes
    with closing(events_feed(b)) as feed:
        with closing(Light(a, 7)):
            wait_until(lambda: is_connected(b, 7), "the other node knows it")
        assert events_of(feed, 7, 2) == ["device.status.online", "device.status.offline"]


def is_connected(node: Node, number: int) -> bool:
    answer = httpx.get(f"{node.base}/devices/{device_id(number)}/presence", headers=bearer(USER_TOKEN), timeout=30)
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["data"]["connected"])


def upload_spare(node: Node, folder: Path) -> None:
    """Give the lights one more field, which may be wanted."""
    changed: dict[str, Any] = json.loads(json.dumps(LIGHT_MANIFEST))
    changed["fields"].append({"name": "spare", "valueClass": "Integer", "settable": True})
    (folder / "light.json").write_text(json.dumps(changed), encoding="utf-8")
    manifest = json.dumps(str(folder / "light.json"))
    file = folder / "change.toml"
    file.write_text(
        f'[[device_types]]\nid = "{LIGHT_TYPE}"\nunique_name = "example.light"\nname = "Light"\n'
        f'organization = "Acme"\nmanifest = {manifest}\n',
        encoding="utf-8",
    )
    command_output("provision", file, "--config", node.daemon.config)


def send_spare(node: Node, number: int, value: int) -> bool:
    """Whether the node takes it and knows the field."""
    body = {"sdid": device_id(number), "type": "message", "data": {"intensity": 2, "spare": value}}
    sent = httpx.post(f"{node.base}/messages", headers=bearer(device_token(number)), json=body, timeout=30)
    return "warnings" not in sent.json()["data"] and sent.status_code == 200


def test_a_wanted_value_is_reached_by_a_message_to_another_node(nodes: list[Node], tmp_path: Path) -> None:
    """One of the nodes stores what is reached, so each of them gets the message once. And each of them knows the
    Manifest that is uploaded to one."""
    upload_spare(nodes[0], tmp_path)
    for value, (asked, sent) in enumerate((nodes, nodes[::-1]), start=20):
        wait_until(partial(send_spare, sent, 6, 3), "the node has the Manifest")
        path, body = f"/devices/{device_id(6)}/wanted", {"data": {"spare": value}}
        assert httpx.put(asked.base + path, headers=bearer(USER_TOKEN), json=body, timeout=30).status_code == 200
        wait_until(partial(spare_is, "waiting", sent, path), "the other node knows it")
        assert send_spare(sent, 6, value)
        wait_until(partial(spare_is, "reached", asked, path), "it is reached")


def spare_is(state: str, node: Node, path: str) -> bool:
    found = httpx.get(node.base + path, headers=bearer(USER_TOKEN), timeout=30).raise_for_status().json()
    return bool(found["data"]["fields"].get("spare", {}).get("state") == state)


def test_a_rule_that_is_made_on_one_node_runs_for_messages_to_each(nodes: list[Node]) -> None:
    a, b = nodes
    condition = {"sdid": device_id(0), "field": "intensity", "operator": ">", "operand": {"value": 50}}
    rule = {"if": condition, "then": {"ddid": device_id(2), "action": "setOn"}}
    made = httpx.post(f"{b.base}/rules", headers=bearer(USER_TOKEN), json={"name": "Bright", "rule": rule}, timeout=30)
    assert made.status_code == 200, made.text
    with closing(Light(b, 2)) as sink:
        for node in (a, b):
            with closing(Light(node, 0)) as source:
                before = len(sink.actions)

                def has_triggered(source: Light = source, before: int = before) -> bool:
                    # The node that runs rules hears of the rule a moment after it was made.
                    assert source.send(51)
                    return len(sink.actions) > before

                wait_until(has_triggered, "the rule has triggered")


def test_a_mail_that_one_node_queues_is_sent_by_the_other_at_once(nodes: list[Node]) -> None:
    """One of the two nodes has the lease of mails: the mail of the other one is sent by it."""
    outboxes = [node.daemon.state / "outbox" for node in nodes]
    for sent, (node, number) in enumerate(zip(nodes, (6, 7), strict=True), 1):
        shares, address = f"{node.base}/devices/{device_id(number)}/shares", {"email": "bob@example.org"}
        answer = httpx.post(shares, headers=bearer(USER_TOKEN), json=address, timeout=30)
        assert answer.status_code == 200, answer.text
        # A worker that nobody wakes looks once a minute.
        wait_until(lambda sent=sent: sum(len(list(one.glob("*"))) for one in outboxes) == sent, "it is sent", 20)  # type: ignore[misc]
    assert sorted(len(list(one.glob("*"))) for one in outboxes) == [0, 2]


class Asker(threading.Thread):
    """Asks one node as fast as it answers, and when it refuses, twenty times a second."""

    def __init__(self, node: Node, token: str, path: str, body: dict[str, Any] | None, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.accepted, self.refused, self.reasons = list[float](), list[float](), set[str]()
        self.counted = 0  # what the node says that all nodes have accepted
        self._address, self._token, self._body, self._over = f"{node.base}{path}", token, body, over

    def run(self) -> None:
        method = "GET" if self._body is None else "POST"
        with httpx.Client(headers=bearer(self._token), timeout=PATIENCE_SECONDS) as client:
            while not self._over.is_set():
                answer = client.request(method, self._address, json=self._body)
                (self.accepted if answer.status_code == 200 else self.refused).append(time.monotonic())
                self.counted = (
                    int(answer.headers.get("x-quota-organization-limits", "0/").split("/")[0]) or self.counted
                )
                if answer.status_code != 200:
                    self.reasons.add(answer.json()["error"]["message"])
                    self._over.wait(0.05)

    def is_used_up(self) -> bool:
        """It has been refused for two seconds."""
        since = max(self.accepted, default=0.0)
        first = next((at for at in self.refused if at > since), None)
        return first is not None and self.refused[-1] > first + 2


def _asked_until_used_up(nodes: list[Node], token: str, path: str, body: dict[str, Any] | None = None) -> list[Asker]:
    over = threading.Event()
    askers = [Asker(node, token, path, body, over) for node in nodes]
    for one in askers:
        one.start()
    wait_until(lambda: all(one.is_used_up() for one in askers), "each node refuses")
    over.set()
    for one in askers:
        one.join()
    return askers


def test_a_minute_limit_is_that_of_all_nodes_together(nodes: list[Node]) -> None:
    """R10: what one node has let pass, another one counts a second later."""
    (first,), (second,) = (_asked_until_used_up([node], device_token(7), f"/devices/{device_id(7)}") for node in nodes)
    assert (len(first.accepted), len(second.accepted)) == (_MINUTE, 0)
    assert first.reasons | second.reasons == {"MINUTE rate limit exceeded"}


def test_a_quota_holds_within_what_is_sent_in_two_seconds(nodes: list[Node], tmp_path: Path) -> None:
    """R10: one counter of all nodes, to which each adds each second."""
    device, token = "ed" * 16, "ec" * 16
    (tmp_path / "light.json").write_text(json.dumps(LIGHT_MANIFEST), encoding="utf-8")
    file = tmp_path / "metered.toml"
    file.write_text(
        f'[[organizations]]\nname = "Small"\nmonthly_messages = {_MONTH}\n'
        '[[device_types]]\nunique_name = "example.metered"\nname = "Metered"\norganization = "Small"\n'
        f'manifest = "light.json"\n[[devices]]\nid = "{device}"\nowner = "{ADA_EMAIL}"\n'
        f'type = "example.metered"\nname = "Metered"\ntoken = "{token}"\n',
        encoding="utf-8",
    )
    command_output("provision", file, "--config", nodes[0].daemon.config)
    body = {"sdid": device, "type": "message", "data": {"intensity": 1}}
    askers = _asked_until_used_up(nodes, token, "/messages", body)
    accepted = sum(len(one.accepted) for one in askers)
    most = max(
        sum(at <= other < at + 2 + BUSY_SECONDS for other in one.accepted) for one in askers for at in one.accepted
    )
    assert _MONTH <= accepted <= _MONTH + (len(nodes) - 1) * most
    assert all(one.counted > len(one.accepted) for one in askers), "each knows what the other one has accepted"
    assert all("Monthly message limit" in reason for one in askers for reason in one.reasons)
    assert askers[0].reasons


def test_a_token_that_is_revoked_on_one_node_ends_the_connection_to_the_other(nodes: list[Node]) -> None:
    a, b = nodes
    with closing(Light(a, 5)) as light:
        answer = httpx.delete(f"{b.base}/devices/{device_id(5)}/tokens", headers=bearer(USER_TOKEN), timeout=30)
        assert answer.status_code == 200, answer.text
        wait_until(light.lost.is_set, "its connection is closed")
    body = {"sdid": device_id(5), "type": "message", "data": {"intensity": 1}}
    refused = httpx.post(f"{a.base}/messages", headers=bearer(device_token(5)), json=body, timeout=30)
    assert refused.status_code == 401


def test_a_sign_in_at_one_node_is_exchanged_and_verified_at_the_other(nodes: list[Node]) -> None:
    """OpenID Connect (reference 4.11): the code of one, the ID token of the other, and the keys of both."""
    a, b = (str(node.base).removesuffix("/v1.1") for node in nodes)
    verifier, callback = "v" * 43, "https://app.example.org/callback"
    digest = sha256(verifier.encode()).digest()
    with httpx.Client(timeout=PATIENCE_SECONDS) as browser:
        form = Form(browser.get(f"{a}/console", follow_redirects=True).text)
        signed_in = form.fields | {"email": ADA_EMAIL, "password": "correct horse battery staple"}
        page = browser.post(f"{a}{form.action}", data=signed_in, follow_redirects=True).text
        proof = page.partition('name="csrf" content="')[2].partition('"')[0]
        given = browser.post(f"{a}/console/token", headers={"X-Console": proof}).raise_for_status().json()
        of_console = bearer(given["accessToken"])
        found = browser.get(f"{b}/v1.1/developer/organizations", headers=of_console).raise_for_status()
        (acme,) = found.json()["data"]["organizations"]
        body = {"name": "Grafana", "methods": ["pkce"], "redirectUris": [callback]}
        path = f"{b}/v1.1/developer/organizations/{acme['id']}/applications"
        client_id = browser.post(path, headers=of_console, json=body).raise_for_status().json()["data"]["id"]
        asked = {
            "client_id": client_id,
            "response_type": "code",
            "scope": "openid email",
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        back = urlsplit(browser.get(f"{a}/accounts/authorize", params=asked).headers["location"])
        exchange = {
            "grant_type": "authorization_code",
            "client_id": client_id,
            "code": parse_qs(back.query)["code"][0],
            "code_verifier": verifier,
        }
        token = browser.post(f"{b}/accounts/token", data=exchange).raise_for_status().json()["id_token"]
        keys = [browser.get(f"{root}/accounts/jwks.json").raise_for_status().json() for root in (a, b)]
    assert keys[0] == keys[1]
    claims = jwt.decode(token, KeySet.import_key_set(keys[0]), algorithms=["RS256"]).claims
    assert (claims["aud"], claims["email"]) == (client_id, ADA_EMAIL)
