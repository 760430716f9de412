"""The document at /v1.1/openapi.json and its pages at /docs: they say what is served, all of it and nothing else."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from broker.services import Services
from config.settings import Limits, Settings
from protocols.http.answers import REST_ROOT
from protocols.http.application import build_app
from protocols.http.docs.chapters import slug_of
from protocols.http.openapi.schemas import Schemas
from protocols.http.openapi.serving import ALL_NOUNS, described
from protocols.http.schema import Shape
from tests.factories import ADA_TOKEN
from tests.programs import require_node_module, require_program
from tests.properties import in_ci
from tests.protocols.http.conftest import bearer

pytestmark = pytest.mark.slow


ORIGIN = "https://trunkline.example.net"
TITLES = {noun.chapter.title for noun in ALL_NOUNS}
PATHS_WITHOUT_A_TOKEN = ("/v1.1/openapi.json", "/docs", "/docs/devices", "/docs/search.json")


@cache
def document() -> Mapping[str, Any]:
    """Made by the process that runs these tests. Each of the tests' processes imports this file."""
    return described(f"{ORIGIN}{REST_ROOT}")


@pytest.fixture
def calls_by_address() -> int:
    return 100  # more than there are pages


@pytest.fixture
def settings(tmp_path: Path, calls_by_address: int) -> Settings:
    limits = Limits(rate_limits="on", quotas="off", calls_per_address=calls_by_address)
    return Settings(state_dir=tmp_path, public_url=ORIGIN, limits=limits)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def named(template: str) -> str:
    """A path whose names do not matter."""
    return re.sub(r"<[^>]*>|\{[^}]*\}", "{}", template)


def _answer(path: str, method: str) -> dict[str, Any]:
    content: dict[str, Any] = document()["paths"][path][method]["responses"]["200"]["content"]["application/json"]
    name = content["schema"]["$ref"].rpartition("/")[2]
    properties: dict[str, Any] = document()["components"]["schemas"][name]["properties"]
    return properties


class TestDocument:
    def test_many_statuses_have_no_pages(self) -> None:
        members = _answer("/devices/status", "get")
        said = {name: members[name]["description"] for name in ("total", "offset", "count")}
        assert said == {"total": "Entries", "offset": "Always 0", "count": "Entries"}

    def test_both_spellings_of_a_parameter_have_the_default(self) -> None:
        parameters = {one["name"]: one["schema"] for one in document()["paths"]["/devices/{did}"]["get"]["parameters"]}
        for name in ("includeProperties", "properties"):
            assert parameters[name]["type"] == "boolean"
            assert parameters[name]["default"] is False

    def test_answers_about_exports_have_the_defaults_of_the_request(self) -> None:
        made = document()["components"]["schemas"]["Export"]["properties"]
        listed = document()["components"]["schemas"]["ExportEntry"]["properties"]["request"]["properties"]
        assert {name: made[name]["default"] for name in ("order", "format", "csvHeaders")} == {
            "order": "asc",
            "format": "json",
            "csvHeaders": True,
        }
        assert {name: listed[name]["default"] for name in ("order", "format")} == {"order": "asc", "format": "json"}

    def test_every_answer_has_a_name(self) -> None:
        unnamed = [
            f"{method} {path}"
            for method, path, operation in operations()
            for answer in operation["responses"].values()
            for media in answer.get("content", {}).values()
            if "$ref" not in media["schema"] and media["schema"].get("type") in {"object", "array"}
        ]
        assert unnamed == []

    @in_ci  # schemas, examples and links have tests of their own
    @pytest.mark.processes
    def test_redocly_warns_of_ambiguous_paths_only(self, tmp_path: Path) -> None:
        """The document is valid, and every other recommended rule holds.

        The paths are given; the document says which of two that fit is meant.
        """
        modules = Path(require_node_module("@redocly/cli/package.json"))
        (tmp_path / "openapi.json").write_text(json.dumps(document()), encoding="utf-8")
        run = subprocess.run(
            ["node", modules / "@redocly/cli/bin/cli.js", "lint", "openapi.json", "--format=json"],
            cwd=tmp_path,
            env={**os.environ, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found = {(one["ruleId"], one["location"][0]["pointer"]) for one in json.loads(run.stdout)["problems"]}
        ambiguous = (
            "/devicetypes/{dtid}/whitelist/certificates/{certificateId}",
            "/devicetypes/{dtid}/whitelist/vdid/{vdid}",
            "/trials/sessions/{sid}",
            "/trials/{tid}/sessions",
        )
        assert found == {("no-ambiguous-paths", f"#/paths/{path.replace('/', '~1')}") for path in ambiguous}

    @in_ci
    @pytest.mark.processes
    def test_a_generator_of_clients_drops_no_operation(self, tmp_path: Path) -> None:
        """openapi-python-client leaves out the bodies of types that it does not know, and nothing else."""
        (tmp_path / "openapi.json").write_text(json.dumps(document()), encoding="utf-8")
        (tmp_path / "config.yaml").write_text("post_hooks: []\n", encoding="utf-8")
        (tmp_path / "templates").mkdir()
        for name in ("endpoint_module", "model"):  # of which nobody reads what would be in them
            (tmp_path / f"templates/{name}.py.jinja").touch()
        words = [
            "generate",
            "--path",
            "openapi.json",
            "--config",
            "config.yaml",
            "--output-path",
            "client",
            "--meta",
            "none",
            "--custom-template-path",
            "templates",
        ]
        run = subprocess.run(
            [require_program("openapi-python-client"), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        modules = {path.stem for path in (tmp_path / "client/api").glob("*/*.py")} - {"__init__"}
        assert len(modules) == len(list(operations()))
        warned = re.findall(r"(?m)^WARNING parsing (\S+ \S+) within", run.stdout + run.stderr)
        assert sorted(warned) == [
            "GET /messages/export/{exportId}/result",
            "GET /users/{uid}/archive/result",
            "POST /devicetypes/{dtid}/whitelist",
            "POST /messages/import",
        ]

    async def test_it_has_every_route_and_no_other(self, services: Services) -> None:
        served = {
            (method, named(rule.rule.removeprefix(REST_ROOT)))
            for rule in build_app(services, is_secure=True).url_map.iter_rules()
            if rule.rule.startswith(f"{REST_ROOT}/")
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        }
        described = {(method, named(path)) for method, path, _ in operations()}
        assert described == served

    async def test_what_is_only_on_the_secure_listener_says_so(self, services: Services) -> None:
        ordinary = {named(rule.rule.removeprefix(REST_ROOT)) for rule in build_app(services).url_map.iter_rules()}
        secure = {path for _, path, operation in operations() if operation.get("security") == [{"certificate": []}]}
        assert secure == {path for path in document()["paths"] if named(path) not in ordinary}

    def test_every_example_and_every_default_fits_its_schema(self) -> None:
        from openapi_schema_validator import OAS31Validator

        wrong = [
            f"{where}: {error.message}"
            for where, schema, example in [*_examples(), *_defaults(document(), "")]
            for error in OAS31Validator(schema | {"components": document()["components"]}).iter_errors(example)
        ]
        assert wrong == []

    def test_every_shape_is_answered_somewhere(self) -> None:
        text = json.dumps(document())
        unused = [name for name in document()["components"]["schemas"] if f'"#/components/schemas/{name}"' not in text]
        assert unused == []

    def test_no_shape_has_two_meanings(self) -> None:
        class One(Shape):
            shape = "Twin"
            member: int

        class Other(Shape):
            shape = "Twin"
            member: int

        schemas = Schemas()
        schemas.of(One)
        with pytest.raises(TypeError, match="Twin"):
            schemas.of(Other)

    def test_operations_have_names_of_their_own(self) -> None:
        ids = [operation["operationId"] for _, _, operation in operations()]
        assert len(ids) == len(set(ids))


def _examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    for method, path, operation in operations():
        for parameter in operation.get("parameters", ()):
            if "example" in parameter:
                yield f"{method} {path} {parameter['name']}", parameter["schema"], parameter["example"]
        for part in (operation.get("requestBody", {}), *operation["responses"].values()):
            yield from _examples_of(part, f"{method} {path}")
    for name, part in document()["components"]["responses"].items():
        yield from _examples_of(part, name)


def _examples_of(part: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    for media in part.get("content", {}).values():
        if "example" in media:
            yield where, media["schema"], media["example"]


def _defaults(part: Any, where: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    if isinstance(part, Mapping):
        if "default" in part and {"type", "anyOf", "$ref"} & part.keys():
            yield where, {name: value for name, value in part.items() if name != "default"}, part["default"]
        for name, inner in part.items():
            yield from _defaults(inner, f"{where}/{name}")
    elif isinstance(part, list):
        for number, inner in enumerate(part):
            yield from _defaults(inner, f"{where}/{number}")


class TestServing:
    async def test_it_needs_no_token_and_names_the_public_address(self, api: httpx.AsyncClient) -> None:
        answer = await api.get("/openapi.json")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.json() == document()

    async def test_it_is_sent_once(self, api: httpx.AsyncClient) -> None:
        etag = (await api.get("/openapi.json")).headers["ETag"]
        again = await api.get("/openapi.json", headers={"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
        other = await api.get("/openapi.json", headers={"If-None-Match": '"other"'})
        assert other.status_code == 200

    @pytest.mark.parametrize("calls_by_address", [2 * len(PATHS_WITHOUT_A_TOKEN)])
    async def test_calls_are_counted_by_address_alone(self, api: httpx.AsyncClient, calls_by_address: int) -> None:
        calls = [*PATHS_WITHOUT_A_TOKEN * 3]
        answers = [await api.get(api.base_url.copy_with(path=path), headers=bearer(ADA_TOKEN)) for path in calls]
        refused = len(calls) - calls_by_address
        assert [answer.status_code for answer in answers] == [200] * calls_by_address + [429] * refused
        assert all("X-Rate-Limit-Limit" not in answer.headers for answer in answers[:calls_by_address])


class TestPages:
    async def test_every_call_is_on_the_page_of_its_noun_and_every_link_leads_somewhere(
        self, api: httpx.AsyncClient
    ) -> None:
        overview = await self.page(api, "/docs")
        assert {"/docs", *(f"/docs/api/{slug_of(title)}" for title in TITLES)} <= {
            urlsplit(link).path for link in overview.links
        }
        pages: dict[str, Page] = {}
        for link in sorted(overview.links):
            _, _, path, _, fragment = urlsplit(urljoin("/docs", link))
            if path.startswith("/docs") and "/static/" not in path:
                pages[path] = pages.get(path) or await self.page(api, path)
                assert not fragment or fragment in pages[path].ids
            else:
                assert (await api.get(api.base_url.copy_with(path=path))).status_code in {
                    200,
                    302,
                }  # the console asks who you are
        for method, path, operation in operations():
            (noun,) = operation["tags"]
            anchors = pages[f"/docs/api/{slug_of(noun)}"].anchors
            assert anchors[operation["operationId"]] == f"{method} {REST_ROOT}{path}"

    async def test_pages_need_nothing_from_elsewhere(self, api: httpx.AsyncClient) -> None:
        answer = await api.get(api.base_url.copy_with(path="/docs/api/messages"))
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        found = Page(answer.text)
        assert found.tags.isdisjoint({"iframe", "form", "img", "style"})
        assert [link for link in found.links if urlsplit(link).netloc] == []

    async def test_an_unknown_page_is_a_page_for_browsers_and_json_for_programs(self, api: httpx.AsyncClient) -> None:
        nowhere = api.base_url.copy_with(path="/docs/nothing")
        for accepted, content_type in (("text/html,*/*;q=0.8", "text/html"), ("*/*", "application/json")):
            answer = await api.get(nowhere, headers={"Accept": accepted})
            assert answer.status_code == 404
            assert answer.headers["Content-Type"].startswith(content_type)

    @staticmethod
    async def page(api: httpx.AsyncClient, path: str) -> "Page":
        return parsed((await api.get(api.base_url.copy_with(path=path))).raise_for_status().text)


@cache
def parsed(text: str) -> "Page":
    return Page(text)


class Page(HTMLParser):
    """Parts of a page. `anchors`: the method and path of each call, by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.anchors: dict[str, str] = {}
        self._call = ""
        self._in_line = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: Mapping[str, str] = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.ids.add(given.get("id", ""))
        if "href" in given:
            self.links.add(given["href"])
        if given.get("class") == "call":
            self._call = given["id"]
        self._in_line = given.get("class") == "line" or (self._in_line and tag in {"span", "code", "wbr"})

    def handle_endtag(self, tag: str) -> None:
        self._in_line = self._in_line and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._in_line:
            self.anchors[self._call] = f"{self.anchors.get(self._call, '')}{data}"
