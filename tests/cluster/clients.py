"""Clients that nobody here wrote, which go from node to node and note what they do and see (tests/cluster/checker.py).

Each device counts: a number is sent once, and one that was not acknowledged is not sent again. So what is stored twice
was stored twice by the nodes.
"""

import asyncio
import http.client
import json
import math
import random
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from socket import create_connection
from typing import Any, Final

import aiocoap
import httpx
import paho.mqtt.client as paho
import websocket
from aiocoap.numbers.contentformat import ContentFormat
from paho.mqtt.enums import CallbackAPIVersion

from tests.cluster.checker import Event, Record
from tests.cluster.node import Node
from tests.daemon import ADA, LIGHT_TYPE, USER_TOKEN, bearer, device_id, device_token

#: A client tries another node when it has no answer for so long.
ANSWER_SECONDS: Final = 2.0
AGO_SECONDS: Final = 120
#: How long it usually waits at most before it sends a message.
_PAUSE_SECONDS: Final = 0.02
#: A task of device management begins so long after it is made.
TASK_SECONDS: Final = 1.0
#: Nobody here speaks TLS; each client would take 10 ms to be ready for it.
_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_links = count(1)


class RefusedError(Exception):
    """Not acknowledged: the status, or why."""


class Client(threading.Thread):
    """A device, which stays with a node for a while and then goes on to another one."""

    #: How many messages it sends to a node.
    STAYS = (10, 60)
    #: How many times longer than usual it waits before it does something again.
    calm = 1.0
    #: Whether it is waited for until it goes on after a fault.
    IS_WAITED_FOR = True

    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(name=f"{type(self).__name__}-{device}", daemon=True)
        self.nodes, self.record, self.device = nodes, record, device
        self.chance = random.Random(seed)  # noqa: S311 - a seed for a test
        self.over = threading.Event()
        self.number = 0
        self.last_acknowledged = 0.0

    def note(self, what: str, number: int, node: Node, link: int = 0, text: str = "") -> None:
        at = time.monotonic()
        if what in {"acknowledged", "changed"}:
            self.last_acknowledged = at
        self.record.events.append(Event(at, what, self.device, number, node.name, link, text))

    def run(self) -> None:
        node = self.chance.choice(self.nodes)
        while not self.over.is_set():
            link = next(_links)
            try:
                self.talk(node, link)
            except RefusedError as error:
                self.note("refused", self.number, node, link, str(error))
            except ConnectionRefusedError:
                self.note("refused", self.number, node, link, "nobody listens")
            except TimeoutError:
                self.note("refused", self.number, node, link, "no answer")
            except (OSError, ValueError, http.client.HTTPException, websocket.WebSocketException):
                self.note("refused", self.number, node, link, "closed")
            self.note("closed", self.number, node, link)
            node = self.chance.choice([one for one in self.nodes if one is not node])
            self.over.wait(0.05)
        self.end()

    def talk(self, node: Node, link: int) -> None:
        """Send some messages. Raises RefusedError, OSError and what the library raises."""
        raise NotImplementedError

    def end(self) -> None:
        """Close what is open."""

    def rest(self, seconds: float) -> None:
        self.over.wait(seconds * self.calm)

    def pause(self, seconds: float) -> None:
        """As `rest`, between requests of which each test needs some: a calm client waits a third as long."""
        self.over.wait(seconds * max(1.0, self.calm / 3))

    def turns(self) -> range:
        return range(self.chance.randint(*self.STAYS))

    def next(self, node: Node, link: int) -> tuple[int, str]:
        """The next number and its message, which is about to be sent."""
        self.rest(self.chance.uniform(0, _PAUSE_SECONDS))
        self.number += 1
        self.note("sent", self.number, node, link)
        return self.number, json.dumps({"intensity": self.number})


class Paho(Client):
    """The connection to the former node stays open, and sends once more, when this one has taken it over."""

    QOS = 1

    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(nodes, record, device, seed)
        self._former: tuple[paho.Client, Node, int] | None = None

    def talk(self, node: Node, link: int) -> None:
        client, told, ready = paho.Client(CallbackAPIVersion.VERSION2), threading.Semaphore(0), threading.Event()
        lost = threading.Event()
        client.username_pw_set(device_id(self.device), device_token(self.device))
        client.connect_timeout = ANSWER_SECONDS
        client.on_connect = lambda *_: ready.set()
        client.on_publish = lambda *_: told.release()

        def disconnected(*_: object) -> None:
            lost.set()
            ready.set()
            told.release()

        client.on_disconnect = disconnected
        client.connect("127.0.0.1", node.mqtt, keepalive=10)
        client.loop_start()
        try:
            if not ready.wait(ANSWER_SECONDS) or lost.is_set():
                raise RefusedError("no CONNACK")
            self.note("connected", self.number, node, link)
            self._end_former()
            for _ in self.turns():
                if self.over.is_set() or lost.is_set():
                    break
                number, body = self.next(node, link)
                client.publish(f"/v1.1/messages/{device_id(self.device)}", body, qos=self.QOS)
                if not told.acquire(timeout=ANSWER_SECONDS):
                    raise TimeoutError
                if lost.is_set():
                    raise RefusedError("closed")
                self.note("acknowledged", number, node, link)
        except BaseException:
            client.disconnect()
            client.loop_stop()
            raise
        self._former = client, node, link

    def _end_former(self) -> None:
        if self._former is None:
            return
        (client, node, link), self._former = self._former, None
        if client.is_connected():
            _, body = self.next(node, link)
            client.publish(f"/v1.1/messages/{device_id(self.device)}", body, qos=self.QOS)
        client.disconnect()
        client.loop_stop()

    def end(self) -> None:
        self._end_former()


class PahoTwice(Paho):
    """With QoS 2: the acknowledgement is PUBCOMP."""

    QOS = 2


class WebSocket(Client):
    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(nodes, record, device, seed)
        self._former: tuple[websocket.WebSocket, Node, int] | None = None

    def talk(self, node: Node, link: int) -> None:
        sock = create_connection(("127.0.0.1", node.http), timeout=ANSWER_SECONDS)
        try:
            channel = websocket.create_connection(f"{node.websocket}/websocket?ack=true", socket=sock)
            register = {"type": "register", "sdid": device_id(self.device)}
            channel.send(json.dumps(register | {"Authorization": f"bearer {device_token(self.device)}"}))
            if "200" not in (answer := str(channel.recv())):
                raise RefusedError(_code(answer))
            self.note("connected", self.number, node, link)
            self.end()
            for _ in self.turns():
                if self.over.is_set():
                    break
                number, _ = self._send(channel, node, link)
                while "mid" not in (answer := str(channel.recv())):
                    if '"ping"' not in answer:
                        raise RefusedError(_code(answer))
                self.note("acknowledged", number, node, link)
        except BaseException:
            sock.close()
            raise
        self._former = channel, node, link

    def _send(self, channel: websocket.WebSocket, node: Node, link: int) -> tuple[int, str]:
        number, body = self.next(node, link)
        channel.send(f'{{"sdid":"{device_id(self.device)}","data":{body}}}')
        return number, body

    def end(self) -> None:
        if self._former is not None:
            (channel, node, link), self._former = self._former, None
            with suppress(OSError, websocket.WebSocketException):
                self._send(channel, node, link)
            with suppress(OSError, websocket.WebSocketException):
                channel.close(timeout=0)
            channel.shutdown()  # type: ignore[no-untyped-call] # of the library


def _code(answer: str) -> str:
    with suppress(ValueError, AttributeError, TypeError):
        told = json.loads(answer)
        return str((told.get("error") or told.get("data") or {}).get("code", "closed"))
    return "closed"


class Requests(Client):
    """http.client. Some of what is acknowledged is read on another node. Messages are of two minutes ago: aggregates
    have them already."""

    def talk(self, node: Node, link: int) -> None:  # noqa: ARG002 - a device may have many of these connections
        with closing(http.client.HTTPConnection("127.0.0.1", node.http, timeout=ANSWER_SECONDS)) as connection:
            for _ in self.turns():
                if self.over.is_set():
                    return
                number, body = self.next(node, 0)
                mid = self.post(connection, body, device_token(self.device))
                self.note("acknowledged", number, node)
                if self.chance.random() < 0.2:
                    self._read(self.chance.choice(self.nodes), number, mid)

    def post(self, connection: http.client.HTTPConnection, body: str, token: str) -> str:
        """The mid. Raises RefusedError."""
        self.request(connection, body, token)
        return self.answer(connection)

    def request(self, connection: http.client.HTTPConnection, body: str, token: str) -> None:
        headers = {"Authorization": f"bearer {token}", "Content-Type": "application/json"}
        ts = int((time.time() - AGO_SECONDS) * 1000)
        message = f'{{"sdid":"{device_id(self.device)}","ts":{ts},"data":{body}}}'
        connection.request("POST", "/v1.1/messages", message, headers)

    def answer(self, connection: http.client.HTTPConnection) -> str:
        """The mid. Raises RefusedError."""
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RefusedError(str(answer.status))
        return str(json.loads(content)["data"]["mid"])

    def _read(self, node: Node, number: int, mid: str) -> None:
        """What one node has acknowledged is read on each, unless that one does not answer or refuses."""
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection("127.0.0.1", node.http, timeout=ANSWER_SECONDS)) as connection,
        ):
            connection.request("GET", f"/v1.1/messages?mid={mid}&uid={ADA}", headers=bearer(USER_TOKEN))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 200:
                found = [row["data"]["intensity"] for row in json.loads(content)["data"]]
                self.note("read" if found == [number] else "missing", number, node)
            elif answer.status == 404:
                self.note("missing", number, node)


class Revoked(Requests):
    """Gets a token, uses it, has it revoked on one node, and tries to use it on each, and later to read with it."""

    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(nodes, record, device, seed)
        self._ended = list[str]()

    def talk(self, node: Node, link: int) -> None:
        token = self._made(node)
        for _ in range(3):
            self._use(self.chance.choice(self.nodes), token, link)
            self.pause(0.1)
        self._end(self.chance.choice(self.nodes), token, link)
        for one in self.nodes:
            with suppress(RefusedError, OSError, http.client.HTTPException):
                self._use(one, token, link)
        for former in self._ended[-5:]:
            self._read_with(self.chance.choice(self.nodes), former)
        self._ended.append(token)
        self.pause(0.2)

    def use_ended(self, node: Node, other: Node, hold: AbstractContextManager[None]) -> None:
        """Use a token on a node, end it on another one while the first hears of nothing, since `hold` holds up its way
        to the database, and use it once more there. In the test's own thread, when this one has ended."""
        token = self._made(node)
        self._use(node, token, 0)
        with closing(http.client.HTTPConnection("127.0.0.1", node.http, timeout=ANSWER_SECONDS)) as connection:
            with hold:
                self._end(other, token, 0)
                number, body = self.next(node, 0)
                self.note("used", number, node, text=token)
                self.request(connection, body, token)
            self.answer(connection)
            self.note("acknowledged", number, node)

    def _made(self, node: Node) -> str:
        """A new token."""
        return str(self._ask("PUT", node)["accessToken"])

    def _end(self, node: Node, token: str, link: int) -> None:
        self._ask("DELETE", node)
        self.note("revoked", self.number, node, link, token)

    def _ask(self, method: str, node: Node) -> Any:
        address = f"http://127.0.0.1:{node.http}/v1.1/devices/{device_id(self.device)}/tokens"
        try:
            answer = httpx.request(method, address, headers=bearer(USER_TOKEN), timeout=ANSWER_SECONDS, verify=_TLS)
        except httpx.HTTPError as error:
            raise RefusedError("closed") from error
        if answer.status_code != 200:
            raise RefusedError(str(answer.status_code))
        return answer.json()["data"]

    def _read_with(self, node: Node, token: str) -> None:
        address = f"http://127.0.0.1:{node.http}/v1.1/devices/{device_id(self.device)}"
        with suppress(httpx.HTTPError):
            if httpx.get(address, headers=bearer(token), timeout=ANSWER_SECONDS, verify=_TLS).status_code == 200:
                self.note("shown", self.number, node, text=token)

    def _use(self, node: Node, token: str, link: int) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", node.http, timeout=ANSWER_SECONDS)) as connection:
            number, body = self.next(node, 0)
            self.note("used", number, node, link, token)
            self.post(connection, body, token)
            self.note("acknowledged", number, node)


class Changes(Client):
    """Changes its device's name on a node, by httpx, and reads it on another one."""

    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(nodes, record, device, seed)
        self._doubtful = set[str]()  # changes without an answer, which may come later

    def talk(self, node: Node, link: int) -> None:
        path = f"/v1.1/devices/{device_id(self.device)}"
        other = self.chance.choice([one for one in self.nodes if one is not node])
        with httpx.Client(headers=bearer(USER_TOKEN), timeout=ANSWER_SECONDS, verify=_TLS) as user:
            for _ in range(self.chance.randint(1, 5)):
                if self.over.is_set():
                    return
                self.number += 1
                name = f"Light {self.number}"
                self._doubtful.add(name)
                try:
                    changed = user.put(f"http://127.0.0.1:{node.http}{path}", json={"name": name})
                except httpx.HTTPError as error:
                    raise RefusedError("closed") from error
                if changed.status_code != 200:
                    raise RefusedError(str(changed.status_code))
                self._doubtful.discard(name)
                self.note("changed", self.number, node, link)
                with suppress(httpx.HTTPError):
                    found = user.get(f"http://127.0.0.1:{other.http}{path}")
                    if found.status_code == 200:
                        is_there = found.json()["data"]["name"] in {name, *self._doubtful}
                        self.note("read" if is_there else "missing", self.number, other)
                self.pause(0.05)


class Timed(Requests):
    """A device of a rule with a duration: the condition holds while the latest value is above 0, for a random time."""

    IS_WAITED_FOR = False

    def talk(self, node: Node, link: int) -> None:  # noqa: ARG002 - as above
        with closing(http.client.HTTPConnection("127.0.0.1", node.http, timeout=ANSWER_SECONDS)) as connection:
            while not self.over.is_set():
                self.number += 1
                # It is sent on other nodes until it is acknowledged, so each period ends.
                self._send(connection, node, -self.number)
                self.number += 1
                self.over.wait(0.1)
                self._send(connection, node, self.number)
                self.over.wait(self.chance.choice([0.4, 1.6, 2.5]))

    def _send(self, connection: http.client.HTTPConnection, node: Node, number: int) -> None:
        self.note("sent", number, node)
        self.post(connection, json.dumps({"intensity": number}), device_token(self.device))
        self.note("acknowledged", number, node)


class Tasks(Client):
    """Makes tasks of device management on a node, by httpx, which begin a moment later."""

    IS_WAITED_FOR = False

    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(nodes, record, device, seed)
        #: Those that were made, by their number.
        self.made: dict[int, str] = {}

    def talk(self, node: Node, link: int) -> None:
        with httpx.Client(headers=bearer(USER_TOKEN), timeout=ANSWER_SECONDS, verify=_TLS) as user:
            while not self.over.is_set():
                self.number += 1
                wanted = {
                    "dtid": LIGHT_TYPE,
                    "dids": [device_id(self.device)],
                    "taskType": "W",
                    "property": "serverProperties.count",
                    "taskParameters": {"value": str(self.number)},
                    "scheduledOn": int((time.time() + TASK_SECONDS) * 1000),
                }
                try:
                    made = user.post(f"http://127.0.0.1:{node.http}/v1.1/devicemgmt/tasks", json=wanted)
                except httpx.HTTPError as error:
                    raise RefusedError("closed") from error
                if made.status_code != 200:
                    raise RefusedError(str(made.status_code))
                self.made[self.number] = made.json()["data"]["id"]
                self.note("made", self.number, node, link)
                self.pause(0.5)


class Session(Client):
    """A paho client with a session that outlives its connections: Actions that are sent while it is away come when it
    connects to another node. `clean_session` is false, and the client is the same all the time, as a device's is."""

    QOS = 1
    IS_WAITED_FOR = False

    def __init__(self, nodes: Sequence[Node], record: Record, device: int, seed: float) -> None:
        super().__init__(nodes, record, device, seed)
        #: The numbers of the Actions that were acknowledged, and those that have come.
        self.sent, self.came = set[int](), set[int]()
        self._now = nodes[0]
        self._subscribed, self._lost = threading.Event(), threading.Event()
        client = self._client = paho.Client(
            CallbackAPIVersion.VERSION2, session_of(device), clean_session=False, reconnect_on_failure=False
        )
        client.username_pw_set(session_of(device), session_token(device))
        client.connect_timeout = ANSWER_SECONDS
        client.on_connect = self._connected
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.on_disconnect = self._disconnected
        client.on_message = self._came

    def _connected(self, client: paho.Client, *_: object) -> None:
        client.subscribe(f"/v1.1/actions/{session_of(self.device)}", self.QOS)

    def _disconnected(self, *_: object) -> None:
        self._lost.set()
        self._subscribed.set()

    def _came(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        for action in json.loads(message.payload)["actions"]:
            number = action["parameters"]["number"]
            self.came.add(number)
            self.note("delivered", number, self._now)

    def talk(self, node: Node, link: int) -> None:
        with self._online(node, link):
            self.over.wait(0.05)
            self._send(node)
            self.rest(0.1)
        for _ in range(2):
            self._send(self.chance.choice(self.nodes))

    @contextmanager
    def _online(self, node: Node, link: int) -> Iterator[None]:
        self._now = node
        self._subscribed.clear()
        self._lost.clear()
        self._client.connect("127.0.0.1", node.mqtt, keepalive=10)
        self._client.loop_start()
        try:
            if not self._subscribed.wait(ANSWER_SECONDS) or self._lost.is_set():
                raise RefusedError("no CONNACK")
            self.note("connected", self.number, node, link)
            yield
        finally:
            self._client.disconnect()
            self._client.loop_stop()

    def _send(self, node: Node) -> None:
        self.number += 1
        parameters = {"name": "count", "parameters": {"number": self.number}}
        action = {"ddid": session_of(self.device), "type": "action", "data": {"actions": [parameters]}}
        address = f"http://127.0.0.1:{node.http}/v1.1/actions"
        try:
            answer = httpx.post(address, headers=bearer(USER_TOKEN), json=action, timeout=ANSWER_SECONDS, verify=_TLS)
        except httpx.HTTPError as error:
            raise RefusedError("closed") from error
        if answer.status_code != 200:
            raise RefusedError(str(answer.status_code))
        self.sent.add(self.number)

    def end(self) -> None:
        """Get what is due still, until nothing has come for a while."""
        last = time.monotonic()
        while not self.sent <= self.came and time.monotonic() < last + ANSWER_SECONDS:
            with suppress(RefusedError, OSError), self._online(self.chance.choice(self.nodes), next(_links)):
                number = len(self.came)
                while not self._lost.wait(0.05) and not self.sent <= self.came:
                    if len(self.came) > number:
                        last, number = time.monotonic(), len(self.came)
                    elif time.monotonic() > last + ANSWER_SECONDS:
                        break
        del self._client  # which closes its sockets


class SessionOnce(Session):
    QOS = 2


def session_of(device: int) -> str:
    """The id of the device with a session."""
    return f"{0xE0000000 + device:032x}"


def session_token(device: int) -> str:
    return f"{0xE8000000 + device:032x}"


class Coap(Client):
    """aiocoap."""

    def talk(self, node: Node, link: int) -> None:  # noqa: ARG002 - datagrams
        asyncio.run(self._talk(node))

    async def _talk(self, node: Node) -> None:
        context = await aiocoap.Context.create_client_context()
        try:
            for _ in self.turns():
                if self.over.is_set():
                    return
                number, body = self.next(node, 0)
                message = aiocoap.Message(
                    code=aiocoap.POST,
                    uri=f"coap://127.0.0.1:{node.coap}/v1.1/messages/{device_token(self.device)}",
                    payload=f'{{"data":{body}}}'.encode(),
                    content_format=ContentFormat.JSON,
                )
                try:
                    answer = await asyncio.wait_for(context.request(message).response, ANSWER_SECONDS)
                except aiocoap.error.Error as error:
                    raise RefusedError("closed") from error
                if answer.code != aiocoap.CREATED:
                    raise RefusedError(answer.code.dotted)
                self.note("acknowledged", number, node)
        finally:
            await context.shutdown()


class Feed(threading.Thread):
    """A live feed of one node. `rests`: it ends after some seconds, and begins again after some."""

    def __init__(self, node: Node, record: Record, devices: Sequence[int], rests: random.Random | None = None) -> None:
        super().__init__(name=f"feed-{node.name}", daemon=True)
        self.node, self.record, self.over = node, record, threading.Event()
        self._rests = rests
        self._of = {device_id(device): device for device in devices}

    def run(self) -> None:
        query = f"userId={ADA}&sdids={','.join(self._of)}&Authorization=bearer+{USER_TOKEN}"
        while not self.over.wait(0.1 if self._rests is None else self._rests.uniform(0.1, 3)):
            link = next(_links)
            until = math.inf if self._rests is None else time.monotonic() + self._rests.uniform(0.5, 6)
            with (
                suppress(OSError, ValueError, websocket.WebSocketException),
                create_connection(("127.0.0.1", self.node.http), timeout=30) as sock,
            ):
                feed = websocket.create_connection(f"{self.node.websocket}/live?{query}", socket=sock)
                while not self.over.is_set() and time.monotonic() < until:
                    told = json.loads(feed.recv())
                    if "intensity" in (data := told.get("data", {})):
                        device = self._of[told["sdid"]]
                        event = Event(time.monotonic(), "received", device, data["intensity"], self.node.name, link)
                        self.record.events.append(event)


class Callback:
    """A receiver of notifications, by the server of the standard library."""

    def __init__(self, record: Record, devices: Sequence[int]) -> None:
        of, subscribed = {device_id(device): device for device in devices}, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if subscribed.hangs.is_set():
                    subscribed.hung += 1
                    subscribed.goes_on.wait(ANSWER_SECONDS * 30)
                    return
                if "nonce" in told:
                    subscribed.nonce = told
                for row in told.get("data", ()):
                    number = row["data"]["intensity"]
                    event = Event(time.monotonic(), "notified", of[row["sdid"]], number, "", 0, told["id"])
                    subscribed.record.events.append(event)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.record = record
        self.nonce: dict[str, Any] | None = None
        #: While this is set, a notification gets no answer, and is not noted.
        self.hangs, self.goes_on, self.hung = threading.Event(), threading.Event(), 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://localhost:{self._server.server_port}/"

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()
