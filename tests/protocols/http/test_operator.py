"""/operator: how the service is, for its operators at the console and nobody else (reference 27.21)."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio
from msgspec.structs import replace

from broker.accounts.sign_up import add_account
from broker.cluster.leases import NodeStatus
from broker.cluster.reports import NodeReport, NodeSeen
from broker.connectors.problems import NO_DEVICE, Doing
from broker.operating.port import BackupFailedError, Check, ListenerStatus, Room, RoomPart
from broker.services import Services
from broker.trace.refusals import LISTED_SOURCES, Tally
from config.settings import ConsoleSettings, PaymentSettings, Settings
from protocols.http.rest.nouns import NOUNS
from protocols.http.rest.operator import masked_settings
from storage.keys import Milliseconds
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB, BOB_TOKEN, KITCHEN_TOKEN, LIGHT_TYPE, World
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import bind, terms
from tests.third_party_cloud import ThirdPartyCloud

CALLS: Final = [
    (call.method, call.path) for noun in NOUNS for call in noun.declared() if call.path.startswith("/operator/")
]


class FakeMachine:
    """Stands for the daemon's own machine. A backup waits for `gate`."""

    version = "1.2.3"

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.failure = ""

    async def problem(self) -> str:
        return "coaps does not listen: no GnuTLS"

    def listeners(self) -> Sequence[ListenerStatus]:
        return [ListenerStatus("http", "127.0.0.1:1", "", {"200": 3}), ListenerStatus("coaps", "", "no GnuTLS", {})]

    def counters(self) -> dict[str, object]:
        return {"coap": {"requests": 7}}

    async def room(self) -> Room:
        return Room(4096, 10_000, 1_000, 10, "make room", [RoomPart("index", 1_024, 7)])

    async def examine(self) -> Sequence[Check]:
        return [Check("disk", False, "make room")]

    async def back_up(self, folder: Path, *, keep: int, copied: Callable[[int, int], None]) -> Path:
        copied(1, 4)
        await self.gate.wait()
        if self.failure:
            raise BackupFailedError(self.failure)
        copied(3, 4)
        return folder / f"kept-{keep}"

    async def available(self, _folder: Path) -> int:
        return 10_000

    async def backups(self, _folder: Path) -> Sequence[tuple[str, int, int]]:
        return [("trunkline-1.tar.gz", 4096, 7)]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    payments = PaymentSettings(stripe_key="sk_live_secret")
    console = ConsoleSettings(operators=("ADA@example.org", "eve@example.org"))
    return Settings(state_dir=settings.state_dir, console=console, payments=payments)


@pytest.fixture
def machine(services: Services) -> FakeMachine:
    services.operating.machine = made = FakeMachine()
    return made


@pytest.fixture
async def ada(services: Services, machine: FakeMachine, world: World) -> str:
    return await console_token(services, ADA)


async def console_token(services: Services, user: str) -> str:
    session = await services.accounts.sessions.begin(await services.accounts.users.find(user))
    return (await services.accounts.console.token(session)).value


async def ask(api: httpx.AsyncClient, method: str, path: str, token: str, **options: Any) -> Any:
    answer = await api.request(method, f"/operator{path}", headers=bearer(token), **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_nobody_but_an_operator_at_the_console_gets_in(
    api: httpx.AsyncClient, services: Services, ada: str
) -> None:
    """The operator's own token of an application does not either; an address counts only once it is verified."""
    bob = await console_token(services, BOB)
    eve = await services.core.database.write(
        lambda tx: add_account(
            tx, "eve@example.org", full_name="Eve", password_hash=None, now_ms=1, email_verified=False
        )
    )
    unverified = await console_token(services, eve.id)
    for method, path in CALLS:
        for token in (ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN, bob, unverified):
            assert (await api.request(method, path, json={}, headers=bearer(token))).status_code == 403, path
        assert (await api.request(method, path, json={})).status_code == 401


async def test_the_overview_answers_the_first_questions(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    found = await ask(api, "GET", "/overview", ada)
    assert (found["version"], found["problem"]) == ("1.2.3", "coaps does not listen: no GnuTLS")
    assert found["room"]["fullOn"] == found["now"] + 10 * 86_400_000
    assert found["room"]["parts"] == [{"name": "index", "bytes": 1_024, "bytesADay": 7}]
    assert found["statistics"]["coap"] == {"requests": 7}
    assert "messages" in found["statistics"]["ingest"]
    services.operating.machine = None
    assert (await api.get("/operator/overview", headers=bearer(ada))).status_code == 503


async def test_the_overview_names_the_connectors_that_fail(
    api: httpx.AsyncClient, services: Services, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bind(services, terms(ThirdPartyCloud(url="http://127.0.0.1:1")))
    (lights,) = services.connectors.types()
    name = lights.record.unique_name
    assert (await ask(api, "GET", "/overview", ada))["connectors"] == []
    services.connectors.problems.note(lights.key, NO_DEVICE, Doing.NOTIFICATION, "It could not be read.")
    (found,) = (await ask(api, "GET", "/overview", ada))["connectors"]
    now_ms = services.core.clock.now_ms()
    assert found == {"dtid": LIGHT_TYPE, "uniqueName": name, "problem": "It could not be read.", "lastOn": now_ms}
    services.connectors.problems.note_success(lights.key, NO_DEVICE, Doing.NOTIFICATION)
    monkeypatch.setattr("broker.connectors.catalog.GENERIC", "no plug-in has this name")
    await services.connectors.catalog.reload()
    (found,) = (await ask(api, "GET", "/diagnostics", ada))["overview"]["connectors"]
    assert (found["uniqueName"], found["lastOn"]) == (name, None)
    assert found["problem"].startswith("The connector's plug-in cannot be used")


async def test_refusals_are_shown_by_what_why_and_from_where(api: httpx.AsyncClient, ada: str) -> None:
    for _ in range(3):
        await api.get("/users/self", headers=bearer("9" * 32))
    (found,) = (await ask(api, "GET", "/refusals", ada))["refusals"]
    assert (found["event"], found["source"], found["times"]) == ("http_credentials_refused", "127.0.0.1", 3)


def test_the_latest_refusals_are_kept_and_no_more() -> None:
    tally = Tally()
    for number in range(LISTED_SOURCES + 10):
        tally.add("http_refused", "http", f"192.0.2.{number}", "", "r" * 1000, number)
        tally.add("http_refused", "http", "198.51.100.1", "", "always", number)
    found = tally.latest()
    assert len(found) == LISTED_SOURCES
    assert (found[0].source, found[0].times) == ("198.51.100.1", LISTED_SOURCES + 10)
    assert max(len(one.reason) for one in found) == 200


async def test_the_audit_log_is_searched(api: httpx.AsyncClient, ada: str) -> None:
    entries = (await ask(api, "GET", "/audit?event=sign_in&actor=&count=5", ada))["entries"]
    assert [one["event"] for one in entries] == ["sign_in"] * len(entries) != []
    assert (await ask(api, "GET", "/audit?event=none", ada))["entries"] == []
    assert (await api.get("/operator/audit?count=10001", headers=bearer(ada))).status_code == 400


async def test_the_overview_names_the_engine_and_the_node(
    api: httpx.AsyncClient, services: Services, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await ask(api, "GET", "/overview", ada)
    assert (found["engine"], found["node"]) == ("sqlite", None)
    status = NodeStatus("a", 3, 7.25, 0.00441, ("b",), oldest_snapshot_seconds=7.5)
    monkeypatch.setattr(services.core.leases, "status", lambda: status)
    assert (await ask(api, "GET", "/overview", ada))["node"] == {
        "name": "a",
        "leaseEpoch": 3,
        "leaseLeftSeconds": 7.2,
        "latencySeconds": 0.0044,
        "standbys": ["b"],
        "oldestSnapshotSeconds": 7.5,
        "nodes": [],
        "freeLeases": [],
        "apart": [],
    }


async def test_the_overview_has_each_node_that_serves_and_what_nobody_does(
    api: httpx.AsyncClient, services: Services, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = NodeReport(8.0, is_draining=True, connections=7, behind_rows=3, behind_facts=2, latency_seconds=0.01234)
    nodes = (
        NodeSeen("a", 3, "1.0", 1_000, 0.4, ("folds", "rules", "mails", "models"), NodeReport()),
        NodeSeen("b", 1, "1.0", 2_000, 1.9, ("subscriptions", "connectors", "tasks", "forwards"), report),
    )
    monkeypatch.setattr(services.core.leases, "status", lambda: NodeStatus("a", 3, 7.25, 0.0, (), nodes=("a", "b")))
    monkeypatch.setattr(services.core.leases, "nodes", lambda: nodes)
    found = (await ask(api, "GET", "/overview", ada))["node"]
    assert found["freeLeases"] == ["upkeep"]
    assert "Refused at the start: mqtt.topics = open." in found["apart"]
    assert [one["name"] for one in found["nodes"]] == ["a", "b"]
    assert found["nodes"][1] == {
        "name": "b",
        "epoch": 1,
        "version": "1.0",
        "since": 2_000,
        "heardSeconds": 1.9,
        "leaseSeconds": 8.0,
        "isDraining": True,
        "connections": 7,
        "behindRows": 3,
        "behindChanges": 2,
        "latencySeconds": 0.0123,
        "leases": ["subscriptions", "connectors", "tasks", "forwards"],
    }


async def test_a_backup_goes_on_in_the_background_one_at_a_time(
    api: httpx.AsyncClient, services: Services, machine: FakeMachine, ada: str
) -> None:
    assert (await ask(api, "POST", "/backups", ada))["status"] == "running"
    assert (await api.post("/operator/backups", headers=bearer(ada))).status_code == 409
    machine.gate.set()
    done = await ended(api, ada)
    assert (done["status"], done["file"], done["done"], done["total"]) == ("done", "kept-7", 4, 4)
    machine.failure = "the disk is full"
    await ask(api, "POST", "/backups", ada)
    assert (await ended(api, ada))["problem"] == "the disk is full"
    commands = (await ask(api, "GET", "/audit?event=command", ada))["entries"]
    assert [(one["actor"], one["outcome"], one["details"]["command"]) for one in commands] == [
        (f"user {ADA}", "failed", "backup"),
        (f"user {ADA}", "done", "backup"),
    ]


async def ended(api: httpx.AsyncClient, token: str) -> Any:
    with trio.fail_after(20):
        while (found := (await ask(api, "GET", "/backups", token))["latest"])["status"] == "running":
            await trio.lowlevel.checkpoint()
    return found


async def test_the_diagnostics_have_no_secrets(api: httpx.AsyncClient, ada: str) -> None:
    found = await ask(api, "GET", "/diagnostics", ada)
    text = json.dumps(found)
    assert "sk_live_secret" not in text
    assert ada not in text
    assert found["settings"]["payments"]["stripe_key"] == "set"
    assert found["settings"]["storage"]["retention_days"] == 0
    assert found["checks"] == [{"check": "disk", "ok": False, "text": "make room"}]


def test_of_texts_only_whether_they_are_set_is_shown() -> None:
    shown = masked_settings({"a": "secret", "b": "", "c": 7, "d": ["x", "y"], "e": {"f": None, "g": True}})
    assert shown == {"a": "set", "b": "", "c": 7, "d": "2 set", "e": {"f": None, "g": True}}


@pytest.mark.both_engines
async def test_what_waits_is_decided(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)
    free = {"name": "Free", "type": "free", "messageLimit": 5, "cost": "0"}
    await services.monetization.plans.add(type_, {"type": "count", "tiers": [free]})
    advanced = {"fields": [{"name": "t", "valueClass": "Double"}], "transform": {"format": "json", "expression": "@"}}
    await services.device_types.manifests.upload(LIGHT_TYPE, advanced)
    waiting = await ask(api, "GET", "/waiting", ada)
    assert [one["dtid"] for one in waiting["plans"]] == [LIGHT_TYPE]
    (manifest,) = waiting["manifests"]
    decision = {"dtid": LIGHT_TYPE, "version": waiting["plans"][0]["version"], "decision": "APPROVED"}
    assert (await ask(api, "POST", "/plans", ada, json=decision))["status"] == "APPROVED"
    assert (await api.post("/operator/plans", json=decision, headers=bearer(ada))).status_code == 409
    await ask(api, "POST", "/manifests", ada, json={"dtid": LIGHT_TYPE, "version": manifest["version"]})
    assert (await ask(api, "GET", "/waiting", ada)) == {"plans": [], "payments": [], "manifests": []}
    unknown = {"reference": "none", "outcome": "accepted"}
    assert (await api.post("/operator/payments", json=unknown, headers=bearer(ada))).status_code == 404


@pytest.mark.both_engines
async def test_an_operator_deletes_a_user(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    bob = await console_token(services, BOB)
    refused = await api.delete(f"/users/{ADA}", headers=bearer(bob))
    assert refused.status_code == 403, "Bob is no operator"
    answer = await api.delete(f"/users/{BOB}", headers=bearer(ada))
    assert answer.json()["data"]["id"] == BOB, answer.text
    for token in (bob, BOB_TOKEN):
        assert (await api.get("/users/self", headers=bearer(token))).status_code == 401
    assert (await api.delete(f"/users/{BOB}", headers=bearer(ada))).status_code == 404
    (entry,) = (await ask(api, "GET", "/audit?event=account_deleted", ada))["entries"]
    assert (entry["actor"], entry["object"]) == (f"user {ADA}", f"account {BOB}")


async def pages(api: httpx.AsyncClient, path: str, token: str) -> Any:
    answer = await api.get(f"/operator{path}", headers=bearer(token))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.both_engines
async def test_users_are_found_disabled_and_helped(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    found = await pages(api, "/users?search=BOB@", ada)
    assert ([one["id"] for one in found["data"]], found["total"]) == ([BOB], 1)
    assert (await pages(api, "/users?search=%25", ada))["total"] == 0, "a per cent sign is one"
    assert (await pages(api, "/users?count=1&offset=1", ada))["total"] > 1
    bobs = await console_token(services, BOB)
    await ask(api, "POST", "/users", ada, json={"uid": BOB, "action": "disable"})
    assert (await api.get("/users/self", headers=bearer(bobs))).status_code == 401
    assert (await pages(api, "/users?search=bob@", ada))["data"][0]["isDisabled"]
    await ask(api, "POST", "/users", ada, json={"uid": BOB, "action": "enable"})
    assert not (await pages(api, "/users?search=bob@", ada))["data"][0]["isDisabled"]
    link = (await ask(api, "POST", "/users", ada, json={"uid": BOB, "action": "resetPassword"}))["link"]
    assert (await services.accounts.resets.find(link.partition("code=")[2])).id == BOB
    assert "link" not in await ask(api, "POST", "/users", ada, json={"uid": BOB, "action": "resetSecondFactor"})
    unknown = await api.post("/operator/users", json={"uid": "9" * 32, "action": "disable"}, headers=bearer(ada))
    assert unknown.status_code == 404


async def test_somebody_is_invited(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    body = {"email": "new@example.net", "organization": "Acme", "role": "viewer"}
    link = (await ask(api, "POST", "/invitations", ada, json=body))["link"]
    assert (await services.accounts.invitations.find(link.partition("code=")[2])).email == "new@example.net"
    wrong = body | {"organization": "Nobody"}
    answer = await api.post("/operator/invitations", json=wrong, headers=bearer(ada))
    assert answer.status_code == 400, answer.text


@pytest.mark.both_engines
async def test_devices_connections_and_organizations_are_shown(
    api: httpx.AsyncClient, services: Services, ada: str
) -> None:
    found = (await pages(api, "/devices?search=kitchen", ada))["data"]
    assert [one["name"] for one in found] == ["Kitchen light"]
    assert [one["name"] for one in (await ask(api, "GET", "/organizations", ada))["organizations"]][:1] == ["Acme"]
    assert (await ask(api, "GET", "/connections", ada)) == {"connections": [], "total": 0}
    kitchen = await services.devices.registry.find(found[0]["id"])
    now_ms = services.core.clock.now_ms()
    with services.routing.connections.connect(
        kitchen, protocol="MQTT", token=b"", exclusive=True, deliver=None, close=lambda _: None
    ):
        (one,) = (await ask(api, "GET", "/connections", ada))["connections"]
    assert (one["name"], one["protocol"]) == ("Kitchen light", "MQTT")
    assert one["since"] >= now_ms


async def test_samples_tell_of_a_day(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    await services.operating.samples.take()
    (one,) = (await ask(api, "GET", "/samples", ada))["samples"]
    assert one["storeBytes"] > 0
    assert one["connections"] == 0
    record = (await services.operating.samples.all())[0]
    later = replace(record, at=Milliseconds(record.at + 90_000_000))
    await services.core.database.write(lambda tx: tx.operating.add_sample(later, kept_from_ms=later.at - 86_400_000))
    assert [one.at for one in await services.operating.samples.all()] == [later.at], "of the last day only"


async def test_a_sample_reads_statistics_on_the_loop_alone(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread has no event loop, whose tasks are counted, too."""
    read, before_write = 0, list[int]()
    write = services.core.database.write

    def counted() -> None:
        nonlocal read
        read += 1

    async def writing(work: Callable[[Any], Any]) -> Any:
        before_write.append(read)
        return await write(work)

    services.core.life.observe("loop", counted)
    monkeypatch.setattr(services.core.database, "write", writing)
    await services.operating.samples.take()
    assert before_write == [read]
