"""Three daemons on one database, the clients that send through every fault, and what is stored in the end."""

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, TypeVar

import httpx
import psycopg
import trio

from protocols.control.client import ControlFailedError, ControlUnavailableError, send_command
from storage.engines.postgresql_target import Target
from storage.sql import StoreError
from tests.cluster import mutants
from tests.cluster.checker import (
    DURATION_SECONDS,
    Count,
    Epoch,
    Fold,
    Period,
    Record,
    Span,
    StoredRow,
    Tables,
    due_effects,
)
from tests.cluster.clients import (
    AGO_SECONDS,
    Callback,
    Changes,
    Client,
    Coap,
    Feed,
    Paho,
    PahoTwice,
    Requests,
    Revoked,
    Session,
    SessionOnce,
    Tasks,
    Timed,
    WebSocket,
    session_of,
    session_token,
)
from tests.cluster.node import Node, wait_until
from tests.cluster.wrong_clock import WrongClock
from tests.cutting_proxy import CuttingProxy
from tests.daemon import (
    ADA,
    ADA_EMAIL,
    USER_TOKEN,
    bearer,
    command_output,
    device_id,
    device_token,
    write_world,
)
from tests.faults.machine import environment
from tests.fork_server import FIRST
from tests.postgresql import Server

ClientKind = TypeVar("ClientKind", bound=Client)
PATIENCE_SECONDS: Final = 3.0
#: Whoever needs longer than this has stopped.
WAIT_SECONDS: Final = 60.0
_FENCED: Final = 5
_FOR_GOOD: Final = (1_000_000, 1_000_000)  # messages
_NODES: Final = ("a", "b", "c")
_KINDS: Final[Sequence[type[Client]]] = (
    Paho,
    PahoTwice,
    WebSocket,
    Requests,
    Coap,
    Revoked,
    Changes,
    Timed,
    Tasks,
    Session,
    SessionOnce,
)
#: The device whose messages trigger the rule and go to the callback, that of the rule with a duration, and the one that
#: the rules' Actions go to.
_SOURCE: Final = _KINDS.index(Requests)
_TIMED: Final = _KINDS.index(Timed)
_SESSIONS: Final = (_KINDS.index(Session), _KINDS.index(SessionOnce))
_SINK: Final = "ee" * 16
_SETTINGS: Final = "[outbound]\nallow_private_addresses = true\n"
_MQTT: Final = 'persistent_sessions = "on"\n'
#: As operators have it: a commit waits for the disk.
_DURABLE: Final = ("fsync=on", "full_page_writes=on", "max_wal_size=256MB", "checkpoint_timeout=5min")
_SINK_TYPE: Final = f"""
[[device_types]]
unique_name = "example.sink"
name = "Sink"
organization = "Acme"
manifest = "sink.json"

[[grants]]
user = "{ADA_EMAIL}"
application = "Dashboard"
device_type = "example.sink"
permissions = ["READ", "WRITE"]

"""
_SINK_DEVICE: Final = """
[[devices]]
id = "{id}"
owner = "{owner}"
type = "example.sink"
name = "Sink"
token = "{token}"
"""
_SINK_MANIFEST: Final = (
    '{"fields":[{"name":"number","valueClass":"Integer"}],'
    '"actions":[{"name":"count","parameters":[{"name":"number","valueClass":"Integer"}]},'
    '{"name":"due","parameters":[{"name":"number","valueClass":"Integer"}]}]}'
)


class ClusterWorld:
    """Use `running`."""

    def __init__(
        self, folder: Path, server: Server, database: str, seed: int, names: Sequence[str], calm: float = 1.0
    ) -> None:
        self._calm = calm
        self.server, self.database = server, database
        self.chance = random.Random(seed)  # noqa: S311 - a seed for a test
        self.record = Record(patience=PATIENCE_SECONDS, once={_KINDS.index(SessionOnce)})
        self.proxies = {name: CuttingProxy(server.folder / ".s.PGSQL.5432") for name in names}
        settings = f'{_SETTINGS}[storage]\nurl = "{server.url(database)}"\n'
        config, file = write_world(folder / "provisioned", devices=len(_KINDS), settings=settings)
        (folder / "provisioned" / "sink.json").write_text(_SINK_MANIFEST, encoding="utf-8")
        world = file.read_text(encoding="utf-8").replace("https://app.example.org/callback", "http://localhost/")
        with file.open("w", encoding="utf-8") as more:
            more.write(world + _SINK_TYPE)
            sinks = {_SINK: "ef" * 16, **{session_of(number): session_token(number) for number in _SESSIONS}}
            for id_, token in sinks.items():
                more.write(_SINK_DEVICE.format(id=id_, token=token, owner=ADA_EMAIL))
        command_output("provision", file, "--config", config)
        self.folder, self.key = folder, folder / "provisioned" / "state" / "key"
        self.nodes = [self.new_node(name, name) for name in names]
        self.clocks: dict[str, WrongClock] = {}
        self.restarts: Counter[str] = Counter()
        self.unwanted = set[str]()  # these nodes are not to be started again
        self.callback = Callback(self.record, range(len(_KINDS)))
        self.over = threading.Event()
        self.problems: list[str] = []
        self._begun_behind = 0  # the position before the history
        self._new_clients([0] * len(_KINDS))

    def _new_clients(self, numbers: Sequence[int]) -> None:
        """`numbers`: what each has sent before."""
        self.clients = [
            kind(self.nodes, self.record, device, self.chance.random()) for device, kind in enumerate(_KINDS)
        ]
        for client, number in zip(self.clients, numbers, strict=True):
            client.number, client.calm = number, self._calm
        # The last node has a feed now and then: in between it passes over the messages of the others.
        rests = random.Random(self.chance.random())  # noqa: S311 - as above
        self.feeds = [
            Feed(node, self.record, range(len(_KINDS)), rests if node is self.nodes[-1] else None)
            for node in self.nodes
        ]

    def new_node(self, name: str, folder: str) -> Node:
        """A daemon behind the proxy of its name, which does not run yet."""
        port = self.proxies[name].port
        url = f"postgresql://postgres@127.0.0.1:{port}/{self.database}?sslmode=disable&gssencmode=disable"
        cluster = f"patience_seconds = {PATIENCE_SECONDS}\n"
        return Node(
            *(self.folder / folder, name, url, self.key),
            nodes="several",
            settings=_SETTINGS,
            cluster=cluster,
            mqtt=_MQTT,
        )

    @property
    def target(self) -> Target:
        return self.server.target(self.database)

    def node(self) -> Node:
        return self.chance.choice(self.nodes)

    # While it runs

    def begin(self, *, skewed: bool = False) -> None:
        """`skewed`: the clocks of the nodes can be set."""
        if not skewed:
            (mutants_ := self.folder / "mutants").mkdir()
            self._environment = {FIRST: mutants.__name__, mutants.FOLDER: str(mutants_)}
        for node in self.nodes:
            if skewed:
                (folder := self.folder / f"clock-{node.name}").mkdir()
                self.clocks[node.name] = WrongClock(folder)
            self._begin(node)
        for node in self.nodes:
            node.daemon.wait_ready()
        for run in (self._supervise, self._look_at_leases):
            threading.Thread(target=run, daemon=True).start()
        for feed in self.feeds:
            feed.start()
        self._make_rule_and_subscription()
        for client in self.clients:
            client.start()

    def _begin(self, node: Node) -> None:
        """Start its daemon: with a clock that can be set, or as one that can be a mutant."""
        clock = self.clocks.get(node.name)
        with environment(clock.environment if clock is not None else self._environment):
            node.begin()

    def begin_again(self) -> None:
        """A new history of the same nodes, with new clients, which stay with a node as long as they can."""
        self._end_clients()
        for feed in self.feeds:
            feed.over.set()
        rows, source = self._rows(), self.clients[_SOURCE]
        self._begun_behind = rows[-1].position
        self.record = self.callback.record = Record(patience=PATIENCE_SECONDS, rule=(_SOURCE, source.number + 1))
        self.record.called[_SOURCE] = source.number + 1
        self.record.once = {_KINDS.index(SessionOnce)}
        self._new_clients([client.number for client in self.clients])
        for client in self.clients:
            client.STAYS = _FOR_GOOD
        for one in (*self.feeds, *self.clients):
            one.start()

    def _end_clients(self) -> None:
        for client in self.clients:
            client.over.set()
        for client in self.clients:
            client.join(WAIT_SECONDS)

    def client(self, kind: type[ClientKind]) -> ClientKind:
        return next(client for client in self.clients if type(client) is kind)

    @contextmanager
    def mutated(self, *names: str) -> Iterator[None]:
        """Until the block ends, the daemons are these mutants."""
        files = [self.folder / "mutants" / name for name in names]
        for file in files:
            file.touch()
        try:
            yield
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def _supervise(self) -> None:
        """As systemd: start a daemon that has ended again, unless another one has its name."""
        while not self.over.wait(0.2):
            for node in self.nodes:
                process = node.daemon.process
                if process is None or (status := process.poll()) is None or node.name in self.unwanted:
                    continue
                if status not in {-signal.SIGKILL, _FENCED}:
                    last = "\n".join(node.log().splitlines()[-40:])
                    self.problems.append(f"node {node.name} has ended with status {status}:\n{last}")
                self.restarts[node.name] += 1
                self._begin(node)

    def _look_at_leases(self) -> None:
        """Note each epoch of each lease that is seen when one looks ten times a second.

        A new history notes the present epochs first: a mutant may give one of them to another node.
        """
        record, known = self.record, set[Epoch]()
        while not self.over.is_set():
            with suppress(psycopg.Error, StoreError), self.target.connect(name="tests") as connection:
                while not self.over.wait(0.1):
                    rows = connection.execute("SELECT name, epoch, instance FROM lease").fetchall()
                    if record is not self.record:
                        record, known = self.record, set()
                    for one in sorted(Epoch(*row) for row in rows):
                        if one not in known:
                            known.add(one)
                            record.epochs.append(one._replace(at=time.monotonic()))
            self.over.wait(0.2)

    def holder(self, lease: str) -> Node:
        """The node that has the lease of a worker."""
        found = list[Node]()

        def is_held() -> bool:
            rows = self._query("SELECT node FROM lease WHERE name = %s AND until <> 0", lease)
            found[:] = [node for node in self.nodes if (node.name,) in rows]
            return bool(found)

        wait_until(is_held, f"somebody has the lease {lease}", WAIT_SECONDS)
        return found[0]

    def ask(self, method: str, path: str, *, token: str = USER_TOKEN, **body: Any) -> Any:
        """Of any node that answers."""
        found: list[Any] = []

        def is_answered() -> bool:
            with suppress(httpx.TransportError):
                answer = httpx.request(method, f"{self.node().base}{path}", headers=bearer(token), timeout=10, **body)
                if answer.status_code == 200:
                    found.append(answer.json()["data"])
                elif answer.status_code != 503:
                    raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
            return bool(found)

        wait_until(is_answered, f"{method} {path}", WAIT_SECONDS)
        return found[0]

    def _make_rule_and_subscription(self) -> None:
        """What the source sends from the next number on triggers the rule, and goes to the callback."""
        source = self.clients[_SOURCE]
        assert isinstance(source, Requests)
        wanted = {"messageType": "message", "uid": ADA, "sdid": device_id(_SOURCE), "callbackUrl": self.callback.url}
        made = self.ask("POST", "/subscriptions", json=wanted)["id"]
        wait_until(lambda: self.callback.nonce is not None, "the handshake", WAIT_SECONDS)
        told = self.callback.nonce or {}
        self.ask("POST", f"/subscriptions/{made}/validate", json={"aid": told["aid"], "nonce": told["nonce"]})
        self._subscription = made
        for device, action, more in (
            (_SOURCE, "count", {}),
            (_TIMED, "due", {"duration": {"value": int(DURATION_SECONDS)}}),
        ):
            field = {"sdid": device_id(device), "field": "intensity"}
            then = {"ddid": _SINK, "action": action, "parameters": {"number": {"valueFrom": field}}}
            rule = {"if": field | {"operator": ">", "operand": {"value": 0}, **more}, "then": then}
            self.ask("POST", "/rules", json={"name": action, "rule": rule})

        def both() -> bool:
            """The rule and the subscription know of the device's last message."""
            source.number += 1
            ts = int((time.time() - AGO_SECONDS) * 1000)
            body = {"sdid": device_id(_SOURCE), "ts": ts, "data": {"intensity": source.number}}
            self.ask("POST", "/messages", json=body, token=device_token(_SOURCE))
            until = time.monotonic() + 1
            while time.monotonic() < until:
                notified = {one.number for one in self.record.of("notified")}
                if source.number in notified and source.number in self.effects():
                    return True
                time.sleep(0.02)
            return False

        wait_until(both, "the rule and the callback", WAIT_SECONDS)
        self.record.rule = _SOURCE, source.number
        self.record.called[_SOURCE] = source.number

    @contextmanager
    def fault(self, name: str, kind: str, nodes: Sequence[Node] = ()) -> Iterator[None]:
        """Note when the block began and ended."""
        begun = time.monotonic()
        try:
            yield
        finally:
            names = frozenset(node.name for node in nodes)
            self.record.spans.append(Span(name, kind, names, begun, time.monotonic()))

    def goes_on(self) -> float:
        """Wait until each node is ready, and each client was acknowledged again; the seconds."""
        at = time.monotonic()
        for node in self.nodes:
            wait_until(lambda of=node: of.health("/readyz") == 200, f"node {node.name} is ready", WAIT_SECONDS)  # type: ignore[misc]
        for client in self.clients:
            if client.IS_WAITED_FOR:
                wait_until(lambda of=client: of.last_acknowledged > at, client.name, WAIT_SECONDS)  # type: ignore[misc]
        seconds = time.monotonic() - at
        self._count(self.node())
        return seconds

    # In the end

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.target.connect(name="tests") as connection:
            return connection.execute(sql.encode(), values).fetchall()

    def effects(self, action: str = "count", device: str = _SINK) -> list[int]:
        """The numbers in the Actions of this name to a device."""
        rows = self._query(
            "SELECT a.data::json #>> '{actions,0,parameters,number}' FROM action AS a"
            " JOIN device AS d ON d.key = a.device WHERE d.id = %s AND a.data::json #>> '{actions,0,name}' = %s"
            " AND a.position > %s ORDER BY a.position",
            device,
            action,
            self._begun_behind,
        )
        return [int(number) for (number,) in rows if number is not None]

    def _recount(self) -> Fold:
        """What is stored of the source, also before this history."""
        value = "(m.data::json ->> 'intensity')::bigint"
        ((number, least, highest, sum_, latest),) = self._query(
            f"SELECT count(*), min({value}), max({value}), sum({value}),"  # noqa: S608 - constants
            f" (array_agg({value} ORDER BY m.ts DESC, m.position DESC))[1]"
            " FROM message AS m JOIN device AS d ON d.key = m.device WHERE d.id = %s",
            device_id(_SOURCE),
        )
        return Fold(number, least, highest, int(sum_), latest)

    def _fold(self, node: Node) -> Fold | None:
        """The same as a node says; None: it does not answer, or refuses."""
        now = int(time.time() * 1000)
        query: dict[str, Any] = {"sdid": device_id(_SOURCE), "field": "intensity"}
        query |= {"startDate": now - 7_200_000, "endDate": now}
        headers = bearer(USER_TOKEN)
        try:
            found = httpx.get(
                f"{node.base}/messages/analytics/aggregates", params=query, headers=headers, timeout=WAIT_SECONDS
            )
            snapshot = httpx.get(
                f"{node.base}/messages/snapshots",
                params={"sdids": device_id(_SOURCE)},
                headers=headers,
                timeout=WAIT_SECONDS,
            )
        except httpx.TransportError:
            return None
        if found.status_code != 200 or snapshot.status_code != 200:
            return None
        (of,) = found.json()["data"]
        latest = snapshot.json()["data"][0]["data"]["intensity"]["value"]
        return Fold(of["count"], of["min"], of["max"], of["sum"], latest)

    def _count(self, node: Node) -> None:
        """Compare what a node counts with what is stored."""
        before, found = self._recount().number, self._fold(node)
        if found is not None:
            self.record.counts.append(Count(node.name, before, found.number, self._recount().number))

    def _periods(self) -> list[Period]:
        """In which the condition of the rule with a duration held, but for the last one. A message that a node stores
        late, after others have stored newer ones, changes nothing: the rule looks at the newest by its time."""
        rows = self._query(
            "SELECT m.cts, (m.data::json ->> 'intensity')::bigint, m.ts FROM message AS m"
            " JOIN device AS d ON d.key = m.device WHERE d.id = %s AND m.position > %s ORDER BY m.position",
            device_id(_TIMED),
            self._begun_behind,
        )
        newest = rows[:1]
        newest += [
            row
            for row, latest in zip(rows[1:], accumulate((row[2] for row in rows), max), strict=False)
            if row[2] >= latest
        ]
        return [
            Period(number, begun, ended)
            for (begun, number, _), (ended, after, _) in pairwise(newest)
            if number > 0 > after
        ]

    def _all_due_came(self) -> bool:
        """Whether each duration that was over has its effect: that of the last one may come after it."""
        found = set(self.effects("due"))
        return all(one.number in found or one.ended - one.begun <= 1000 * DURATION_SECONDS for one in self._periods())

    def _states(self) -> dict[int, list[str]]:
        """Of the device in each task, by the task's number."""
        tasks = self.client(Tasks).made
        found: dict[str, list[str]] = {task: [] for task in tasks.values()}
        for task, status in self._query(
            "SELECT t.id, h.status FROM task AS t JOIN task_history AS h ON h.task = t.key ORDER BY h.key"
        ):
            if task in found:
                found[task].append(status)
        return {number: found[task] for number, task in tasks.items()}

    def _rows(self) -> list[StoredRow]:
        of = {device_id(device): device for device in range(len(_KINDS))}
        rows = self._query(
            "SELECT m.position, d.id, (m.data::json ->> 'intensity')::bigint, m.ts FROM message AS m"
            " JOIN device AS d ON d.key = m.device WHERE m.position > %s ORDER BY m.position",
            self._begun_behind,
        )
        return [StoredRow(position, of[id_], number, ts) for position, id_, number, ts in rows if id_ in of]

    def end(self, *, patience_seconds: float = 30.0) -> Tables:
        """Have the clients end, wait for what is to come, and return what is stored."""
        self._end_clients()
        first = self.record.rule[1] if self.record.rule else 0
        rows = self._rows()
        due = due_effects(rows, _SOURCE, first)
        sent = {row.number for row in rows if row.device == _SOURCE and row.number >= first}
        patiently(lambda: Counter(number for number in self.effects() if number >= first) == due, patience_seconds)

        def all_came() -> bool:
            notified = {one.number for one in self.record.of("notified") if one.device == _SOURCE}
            if sent <= notified:
                return True
            # Attempts that failed are due again in seconds or minutes.
            pending = self.ask("GET", f"/subscriptions/{self._subscription}/deliveries?status=PENDING")
            if pending:
                replay = {"ids": [one["id"] for one in pending][:100]}
                self.ask("POST", f"/subscriptions/{self._subscription}/deliveries/replay", json=replay)
            return False

        patiently(all_came, patience_seconds)
        patiently(lambda: all("SUCCEEDED" in states for states in self._states().values()), patience_seconds)
        patiently(self._all_due_came, patience_seconds)
        facts = [number for (number,) in self._query("SELECT number FROM fact ORDER BY number")]
        patiently(lambda: all(heard >= facts[-1:] for heard in map(_heard, self.nodes)), 10)
        heard = {node.name: number for node in self.nodes for number in _heard(node)}
        for feed in self.feeds:
            feed.over.set()
        recount = self._recount()
        found = Tables(self._rows(), self.effects(), facts, heard, recount=recount)
        found.folds = {node.name: fold for node in self.nodes if (fold := self._fold(node)) is not None}
        found.periods, found.due = self._periods(), self.effects("due")
        found.tasks = self._states()
        found.actions = {number: self.effects(device=session_of(number)) for number in _SESSIONS}
        return found

    def stall(self, begun: float, ended: float, nodes: Sequence[str] | None = None) -> float:
        """The longest time in which nobody was acknowledged, by these nodes or any."""
        times = sorted(
            one.at
            for one in self.record.of("acknowledged")
            if begun <= one.at <= ended and (nodes is None or one.node in nodes)
        )
        moments = [begun, *times, ended]
        return max(after - before for before, after in pairwise(moments))


def _heard(node: Node) -> list[int]:
    """The number of the last fact that it knows; none while it does not serve."""
    with suppress(ControlUnavailableError, ControlFailedError, trio.TooSlowError):
        return [trio.run(_statistics, node)["other nodes"]["heard"]]
    return []


async def _statistics(node: Node) -> Any:
    with trio.fail_after(WAIT_SECONDS):
        return await send_command(node.daemon.state, "statistics", {})


def patiently(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until it is so; the checker says what is not."""
    with suppress(AssertionError):
        wait_until(is_so, "", seconds)


@contextmanager
def own_server(on: Path) -> Iterator[Server]:
    """A server in a folder below `on`, where its user may enter."""
    folder = Path(mkdtemp(prefix="trunkline-pg.", dir=on))
    server = Server(folder)
    try:
        server.make(*_DURABLE)
        server.start()
        server.administration.execute("CREATE DATABASE store TEMPLATE template0")
        server.administration.close()
        yield server
        server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_servers(on: Path) -> Iterator[tuple[Server, Server]]:
    """As `own_server`, and a synchronous standby of it, for which commits wait."""
    with own_server(on) as first:
        standby = first.standby(Path(f"{first.folder}.standby"))
        with (standby.data / "postgresql.conf").open("a", encoding="ascii") as file:
            file.write("cluster_name = 'standby'\n")
        standby.start()
        first.set("synchronous_standby_names", "1 (standby)")
        try:
            yield first, standby
        finally:
            standby.stop("immediate")
            shutil.rmtree(standby.folder, ignore_errors=True)
            if not (first.data / "postmaster.pid").exists():  # it failed over
                first.start()


@contextmanager
def running(
    folder: Path,
    server: Server,
    database: str,
    seed: int,
    *,
    names: Sequence[str] = _NODES,
    skewed: bool = False,
    calm: float = 1.0,
) -> Iterator[ClusterWorld]:
    """Daemons and clients, until the block ends. `calm`: how many times longer than usual a client waits."""
    world = ClusterWorld(folder, server, database, seed, names, calm)
    try:
        world.begin(skewed=skewed)
        yield world
    except BaseException:  # whatever it is: raised again
        for node in world.nodes:
            print(f"\nnode {node.name}:", *node.log().splitlines()[-20:], sep="\n", file=sys.stderr)  # noqa: T201
        raise
    finally:
        world.over.set()
        for over in (one.over for ones in (world.clients, world.feeds) for one in ones):
            over.set()
        for node in world.nodes:
            with suppress(ProcessLookupError):
                node.close()
        for one in (*world.clients, *world.feeds):
            if one.is_alive():
                one.join(WAIT_SECONDS)
        for proxy in world.proxies.values():
            proxy.close()
        world.callback.close()


def process_of(node: Node) -> int:
    assert node.daemon.process is not None
    return node.daemon.process.pid


def send(node: Node, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_of(node), number)
