"""The same requests to a daemon on SQLite and to one on PostgreSQL: statuses and bodies are the same, ids and times of
now apart. The texts are those in which engines differ: NUL, half characters, signs of SQL, numbers beyond 64 bits."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.daemon import ADA, DASHBOARD, LIGHT_TYPE, USER_TOKEN, Daemon, bearer, command_output, device_id, write_world
from tests.postgresql import server
from tests.properties import IS_CI, chance, examples

pytestmark = pytest.mark.sqlite("in each run it has a daemon on either engine")
DEVICE, OTHER = device_id(0), device_id(1)
#: As JSON, so that half a surrogate and a NUL can be sent.
TEXTS: Final = (
    "",
    " ",
    r"a\u0000b",
    r"\u0000",
    r"\u001a0",
    r"\ud800",
    r"\udc00x",
    r"\ud83d\ude00",
    "%",
    "%s %(name)s %%",
    ":name",
    "a::text",
    "$1 ?1 ?",
    "'; DROP TABLE user; --",
    r"\"quoted\" 'twice' ''",
    r"back\\slash \\u0000",
    "user end window select",
    "ÄÖß İı ſ K",
    "LIGHT",
    "äöß",
    "e\u0301 \u00e9",
    "_ % [a-z] * \\\\%",
    "x" * 300,
)
NUMBERS: Final = (
    "0",
    "-0",
    "-0.0",
    "1e400",
    "-1e400",
    "1e308",
    "5e-324",
    "1e-400",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "1" + "0" * 60,
    "0.1",
    "1.0",
    "NaN",
    "true",
    "null",
    '"5"',
)
#: Values that differ from run to run; a cursor has the id of its store in it.
_OF_RUN: Final = frozenset(
    [
        "createdOn",
        "modifiedOn",
        "cts",
        "receivedOn",
        "ts",
        "expiresOn",
        "lastMessageTs",
        "lastSeenOn",
        "lastUpdated",
        "next",
    ]
)
_MADE: Final = re.compile(r"(?<![0-9a-z])(?:dt)?[0-9a-f]{32}(?![0-9a-z])")

#: The run has one in so many of the pairs.
FRACTION: Final = 1 if examples(100) == 100 else 4 if IS_CI else 8

Call = tuple[str, str, str | None]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    postgresql = server()
    name = postgresql.new_database(template="template0")
    with ExitStack() as stack:
        stack.callback(postgresql.drop, name)
        clients = []
        for folder, settings in (("sqlite", ""), ("postgresql", f'[storage]\nurl = "{postgresql.url(name)}"\n')):
            home: Path = tmp_path_factory.mktemp(folder) / "home"
            config, file = write_world(home, devices=3, settings=settings)
            command_output("provision", file, "--config", config)
            daemon = Daemon(home / "state", settings)
            daemon.start()
            stack.callback(daemon.kill)
            url = f"http://{daemon.addresses['http']}/v1.1"
            clients.append(stack.enter_context(httpx.Client(base_url=url, headers=bearer(USER_TOKEN), timeout=30)))
        sqlite, other = clients
        yield sqlite, other


class Answers:
    """Of one daemon: its answers, with ids by the order in which they came."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._ids: dict[str, str] = {}

    def ask(self, method: str, path: str, body: str | None) -> tuple[int, Any]:
        for id_, name in self._ids.items():
            path, body = path.replace(name, id_), None if body is None else body.replace(name, id_)
        headers = {} if body is None else {"Content-Type": "application/json"}
        answer = self._client.request(method, path, content=None if body is None else body.encode(), headers=headers)
        text = _MADE.sub(self._named, answer.text)
        try:
            return answer.status_code, _without_times(json.loads(text))
        except ValueError:
            return answer.status_code, text

    def _named(self, found: re.Match[str]) -> str:
        id_ = found[0]
        if id_ in {ADA, DASHBOARD, LIGHT_TYPE, DEVICE, OTHER}:
            return id_
        return self._ids.setdefault(id_, f"<{len(self._ids)}>")


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: "now" if name in _OF_RUN else _without_times(one) for name, one in value.items()}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


def _bodies(text: str) -> Iterator[Call]:
    """A text wherever people may write one."""
    yield "POST", "/devices", f'{{"uid":"{ADA}","dtid":"{LIGHT_TYPE}","name":"{text}"}}'
    yield "PUT", f"/devices/{OTHER}", f'{{"name":"{text}"}}'
    yield "PUT", f"/users/{ADA}", f'{{"fullName":"{text}"}}'
    yield "POST", "/messages", f'{{"sdid":"{DEVICE}","ts":1,"data":{{"text":"{text}","{text}":1}}}}'
    yield "POST", "/messages", f'{{"sdid":"{text}","data":{{"state":true}}}}'
    action = f'{{"actions":[{{"name":"setOn","parameters":{{"{text}":"{text}"}}}}]}}'
    yield "POST", "/actions", f'{{"ddid":"{DEVICE}","ts":1,"type":"action","data":{action}}}'
    rule = f'{{"if":{{"and":[{{"sdid":"{DEVICE}","field":"text","operator":"=","operand":{{"value":"{text}"}}}}]}},'
    rule += f'"then":[{{"ddid":"{OTHER}","action":"setOn","parameters":{{}}}}]}}'
    yield "POST", f"/rules?uid={ADA}", f'{{"name":"{text}","description":"{text}","rule":{rule}}}'
    yield "POST", f"/scenes?uid={ADA}", f'{{"name":"{text}","description":"{text}","actions":[]}}'
    yield "POST", "/devicetypes", f'{{"uid":"{ADA}","oid":"","name":"{text}","uniqueName":"{text}"}}'
    yield "POST", f"/devices/{DEVICE}/shares", f'{{"email":"{text}"}}'


def _searches(text: str) -> Iterator[Call]:
    """A text in every query."""
    try:
        sent = quote(json.loads(f'"{text}"'), safe="")
    except UnicodeEncodeError:  # half a surrogate: its three bytes
        sent = quote(json.loads(f'"{text}"').encode("utf-8", "surrogatepass"), safe="")
    yield "GET", f"/devicetypes?name={sent}", None
    yield "GET", f"/users/{ADA}/devices?name={sent}", None
    yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&filter={sent}", None
    yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&fieldPresence={sent}", None
    yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&offset={sent}", None
    yield "GET", f"/messages?uid={ADA}&sdtid={sent}&startDate=0&endDate=9", None
    yield "GET", f"/messages?mid={sent}&uid={ADA}", None
    yield "GET", f"/messages/snapshots?sdids={sent}", None
    yield "GET", f"/messages/analytics/aggregates?sdid={DEVICE}&field={sent}&startDate=0&endDate=9", None
    yield "GET", f"/devices/{sent}", None
    yield "GET", f"/devicetypes/{sent}", None
    yield "GET", f"/users/{sent}", None
    yield "GET", f"/rules/{sent}", None


def _numbers() -> Iterator[Call]:
    for number in NUMBERS:
        for field in ("intensity", "temperature", "text", "samples"):
            value = f"[{number}]" if field == "samples" else number
            yield "POST", "/messages", f'{{"sdid":"{DEVICE}","ts":5,"data":{{"{field}":{value}}}}}'
        yield "POST", "/messages", f'{{"sdid":"{OTHER}","ts":{number},"data":{{"state":true}}}}'
        sent = quote(number)
        yield "GET", f"/messages?sdid={DEVICE}&startDate={sent}&endDate=9", None
        yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate={sent}&count=1", None
        yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&count={sent}", None
        yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&filter=temperature%3E{sent}", None
        yield "GET", f"/users/{ADA}/devices?count={sent}", None
        yield "GET", f"/users/{ADA}/devices?offset={sent}", None


def _readings() -> Iterator[Call]:
    """All that the others left."""
    yield "GET", f"/users/{ADA}", None
    yield "GET", f"/users/{ADA}/devices?count=100", None
    yield "GET", f"/users/{ADA}/rules?count=100", None
    yield "GET", f"/users/{ADA}/scenes?count=100", None
    yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&count=1000", None
    yield "GET", f"/messages?sdid={DEVICE}&startDate=0&endDate=9&count=1000&order=desc", None
    yield "GET", f"/messages/last?sdids={DEVICE},{OTHER}&count=100", None
    yield "GET", f"/messages/snapshots?sdids={DEVICE},{OTHER}&includeTimestamp=true", None
    yield "GET", f"/actions?ddid={DEVICE}&startDate=0&endDate=9", None
    for field in ("intensity", "temperature", "samples", "text"):
        yield "GET", f"/messages/analytics/aggregates?sdid={DEVICE}&field={field}&startDate=0&endDate=9", None
        yield (
            "GET",
            f"/messages/analytics/histogram?sdid={DEVICE}&field={field}&interval=minute&startDate=0&endDate=9",
            None,
        )


def test_both_engines_answer_the_same(both: tuple[httpx.Client, httpx.Client]) -> None:
    # A statement has any text in the same way: each run has a part of the pairs, in which each statement and text is.
    pairs = [(*_bodies(text), *_searches(text)) for text in TEXTS]
    some = chance().randrange(FRACTION)
    calls = [call for n, of_text in enumerate(pairs) for m, call in enumerate(of_text) if (n + m) % FRACTION == some]
    calls += [call for n, call in enumerate(_numbers()) if n % FRACTION == some]
    calls += [*_readings()]
    sqlite, postgresql = (Answers(client) for client in both)
    different, statuses = [], set()
    for call in calls:
        expected, found = sqlite.ask(*call), postgresql.ask(*call)
        statuses.add(expected[0])
        if expected != found or found[0] >= 500:
            different.append(f"{call}\n  sqlite     {expected}\n  postgresql {found}")
    assert not different, f"{len(different)} of {len(calls)}:\n" + "\n".join(different)[:20_000]
    assert {200, 400, 404} <= statuses
